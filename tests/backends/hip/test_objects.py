"""Every kind of kernel becomes an object for AMD GPUs that can be linked and run there, checked without one."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import weft
from tests.backends.cuda.test_assemble import GRAPHS, KERNELS, t
from weft.backends.cpu.llvm import assembly_of
from weft.backends.hip.code_object import MACHINES, Kernel, parse, unpack
from weft.backends.hip.compile import OPTIMIZATION, compile_programs, target
from weft.backends.llvm import scalar
from weft.backends.protocol import DeviceInfo
from weft.ir.dtypes import DTYPES
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.loops import LoopKind
from weft.ir.ops import ELEMENTWISE
from weft.scheduler.kernelize.kernels import kernelize
from weft.scheduler.lowering import lowered

INFO = DeviceInfo(
    name="hip:0", kind="hip", description="", cores=104, vector_bytes=16, vector_registers=255,
    l1_bytes=16 << 10, l2_bytes=8 << 20, l3_bytes=0, memory_bytes=1 << 36, local_bytes=64 << 10,
    bandwidth=1.6e12, flops=2.3e13, launch_ns=5000.0, task_kind=LoopKind.BLOCK, native=ELEMENTWISE & scalar.NATIVE,
    warp=64, shuffles=True,
)  # fmt: skip

WAVES = {"gfx90a": 64, "gfx942": 64, "gfx1100": 32}
VECTOR_REGISTERS = {"gfx90a": 512, "gfx942": 512, "gfx1100": 256}


def check(algorithms: Sequence[Algorithm], chips: Sequence[str] = ("gfx90a", "gfx1100")) -> list[bytes]:
    """The objects; each is what the runtime and the launches expect."""
    programs = [replace(lowered(a, INFO), name=f"k{n}") for n, a in enumerate(algorithms)]
    return [_checked(programs, chip) for chip in chips]


def _checked(programs: Sequence, chip: str) -> bytes:
    made = compile_programs(programs, target(chip), INFO.local_bytes)
    found = parse(made.code)
    assert MACHINES[found.machine] == chip and found.relocatable
    assert found.target == f"amdgcn-amd-amdhsa--{chip}"
    undefined = [s.name for s in found.symbols if not s.defined]
    assert not undefined, undefined  # a function that nobody provides
    descriptors = {s.name: s.size for s in found.symbols if s.is_global and s.name.endswith(".kd")}
    kernels = {k.name: k for k in found.kernels}
    parts = {p.name: (p, e, g) for e, g in zip(made.entries, programs, strict=True) for p in e.parts}
    assert set(kernels) == set(parts) and set(descriptors.values()) == {64}
    for name, (part, entry, _) in parts.items():
        _check_kernel(kernels[name], chip, len(part.args), len(entry.variables))
        assert kernels[name].threads == part.threads and descriptors[f"{name}.kd"]
    return made.code


def _check_kernel(k: Kernel, chip: str, buffers: int, variables: int) -> None:
    expected = [(8 * i, 8, "global_buffer") for i in range(buffers)]
    expected += [(8 * (buffers + i), 8, "by_value") for i in range(variables)]
    assert [(a.offset, a.size, a.kind) for a in k.arguments] == expected, k  # no hidden ones
    assert k.wave == WAVES[chip] and 1 <= k.threads <= 1024
    # all waves of a block are on one compute unit, which has so many registers for each of four SIMDs
    assert k.vector_registers <= VECTOR_REGISTERS[chip] and k.scalar_registers <= 112
    assert k.local_bytes <= INFO.local_bytes and k.spills == 0, k


@pytest.fixture(scope="module")
def objects() -> dict[str, bytes]:
    """Every kernel of the tables, checked, by instruction set."""
    chips = ("gfx90a", "gfx1100")
    return dict(zip(chips, check([c.algorithm for c in KERNELS.values()], chips), strict=True))


def test_kernels(objects: dict[str, bytes]) -> None:
    assert len(parse(objects["gfx90a"]).kernels) >= len(KERNELS)


def test_graphs() -> None:
    nodes = [x.value.node for make in GRAPHS.values() for x in make()]
    check([s.algorithm for s in kernelize([n for n in dict.fromkeys(nodes) if n.storage is None])])


def test_dtypes() -> None:
    results: list[weft.Tensor] = []
    for dtype in dict.fromkeys(DTYPES.values()):
        x = t(5, 40).to(dtype)
        results += [x == x, x.to(weft.float32), weft.where(x == x, x, x)]
        if dtype.itemsize > 1 or dtype.is_int:
            results += [x + x, x * x, x.max(1)[0], x.sum(1), x // x, x % x]
        if dtype.is_float and dtype.itemsize > 1:
            results += [x.sqrt(), x.exp(), x.log(), x.tanh(), x.sin(), x / x, x.round(), x**x, x.erf()]
        elif dtype.is_int:
            results += [x & x, x << x, x >> x]
    check([s.algorithm for s in kernelize([r.value.node for r in results])])


def test_an_instinct_of_the_next_generation() -> None:
    check([KERNELS[name].algorithm for name in ("matmul 512", "softmax 4096", "attention 1024")], ["gfx942"])


def test_memory_is_accessed_in_its_own_space() -> None:
    """LLVM finds out that generic pointers are to global memory and LDS: no slow flat access, and no stack, is left."""
    for name in ("matmul 512", "softmax 4096"):
        program = replace(lowered(KERNELS[name].algorithm, INFO), name="k")
        for chip in WAVES:
            llvm = compile_programs([program], target(chip), INFO.local_bytes).llvm
            text = assembly_of(llvm, target(chip), OPTIMIZATION)
            assert "global_load" in text and not re.search(r"\b(flat|scratch)_(load|store)", text)
            assert "ds_" in text and "s_barrier" in text


def test_features_of_an_instruction_set() -> None:
    assert target("gfx90a:sramecc+:xnack-").features == "+sramecc,-xnack"
    assert target("gfx1100").features == ""


@pytest.mark.skipif(shutil.which("ld.lld") is None, reason="no ld.lld to link with")
def test_objects_link(objects: dict[str, bytes], tmp_path: Path) -> None:
    """By LLVM's linker, which is in COMGR too; the result has the descriptors in its dynamic table."""
    for chip, data in objects.items():
        (tmp_path / "k.o").write_bytes(data)
        subprocess.run(
            ["ld.lld", "-shared", "--no-undefined", "-o", tmp_path / "k.so", tmp_path / "k.o"],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        linked, before = parse((tmp_path / "k.so").read_bytes()), parse(data)
        assert (
            not linked.relocatable and linked.machine == before.machine and linked.kernels == before.kernels
        )
        names = [s.name for s in linked.symbols if s.is_global]
        assert all(names.count(k.descriptor) >= 1 for k in linked.kernels), chip


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a little-endian ELF64 file"),
        (b"\x7fELF\x02\x01" + bytes(10) + b"\x01\x00\x3e\x00" + bytes(44), "machine 62"),
        (b"\x7fELF\x02\x01" + bytes(10) + b"\x01\x00\xe0\x00", "damaged"),
    ],
    ids=["no ELF file", "another machine", "cut short"],
)
def test_what_is_no_object(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(data)


def test_messagepack() -> None:
    forms = {
        b"\xcd\x01\x00": 256, b"\xd1\xff\x00": -256, b"\xff": -1, b"\xca\x3f\x80\x00\x00": 1.0, b"\xd9\x01a": "a",
        b"\xdc\x00\x02\x01\xc2": [1, False], b"\xde\x00\x01\xa1k\xc0": {"k": None},
    }  # fmt: skip
    for data, value in forms.items():
        assert unpack(data) == value
    with pytest.raises(ValueError, match="0xc1 is not used"):
        unpack(b"\xc1")
    with pytest.raises(ValueError, match="1 bytes follow"):
        unpack(b"\x01\x01")
