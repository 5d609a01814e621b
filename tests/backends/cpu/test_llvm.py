"""The llvmlite wrapper and the machine description."""

import ctypes
from dataclasses import replace

import pytest

from weft.backends.cpu.llvm import (
    Loaded,
    Module,
    assembly_of,
    compile_ir,
    host_target,
    link,
    version,
)
from weft.backends.cpu.machine import host, portable, usable_threads, vector_shape
from weft.backends.cpu.native import runtime_ir
from weft.backends.cpu.targets import LLVMError, Optimization, Target

ANSWER = "define i32 @answer() { ret i32 42 }"
TWICE = """
declare i32 @answer()
define i32 @twice() {
  %x = call i32 @answer()
  %y = add i32 %x, %x
  ret i32 %y
}
"""


def load_object(data: bytes, exports: list[str], imports: dict[str, int] | None = None) -> Loaded:
    """One object, linked by LLVM, whatever weft's own linker makes of it."""
    return link([data], exports, imports or {})


def call(address: int) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int32)(address)()


def test_text_to_a_callable_function() -> None:
    code = load_object(compile_ir(ANSWER, host_target()), ["answer"])
    assert call(code.address("answer")) == 42
    code.release()
    code.release()
    with pytest.raises(LLVMError, match="released"):
        code.address("answer")


def test_objects_link_with_each_other_and_with_given_addresses() -> None:
    answer, twice = compile_ir(ANSWER, host_target()), compile_ir(TWICE, host_target())
    both = link([answer, twice], ["twice"], {})
    assert call(both.address("twice")) == 84
    first = load_object(answer, ["answer"])
    second = load_object(twice, ["twice"], {"answer": first.address("answer")})
    assert call(second.address("twice")) == 84
    with pytest.raises(KeyError):
        second.address("answer")


def test_the_same_symbol_may_be_loaded_many_times() -> None:
    codes = [
        load_object(compile_ir(f"define i32 @f() {{ ret i32 {k} }}", host_target()), ["f"]) for k in range(9)
    ]
    assert [call(code.address("f")) for code in codes] == list(range(9))


def test_what_is_missing_or_broken_is_an_error_and_no_crash() -> None:
    with pytest.raises(LLVMError, match=r"twice.*imports"):
        load_object(compile_ir(TWICE, host_target()), ["twice"])
    with pytest.raises(LLVMError):
        load_object(compile_ir(ANSWER, host_target()), ["question"])
    with pytest.raises(LLVMError):
        load_object(b"not an object", ["answer"])
    with pytest.raises(LLVMError, match="expected"):
        Module("define i32 @f( { ret i32 1 }")
    with pytest.raises(LLVMError):
        Module("define i32 @f() { ret i64 1 }")
    with pytest.raises(LLVMError):
        compile_ir(ANSWER, Target("nowhere-unknown-unknown"))


def test_optimizing_and_single_passes() -> None:
    text = "define i32 @f(i32 %x) {\n %p = alloca i32\n store i32 %x, ptr %p\n %y = load i32, ptr %p\n ret i32 %y\n}"
    for prepare in (
        lambda m: m.optimize(host_target(), Optimization(level=1)),
        lambda m: m.run_passes(host_target(), ["sroa", "simplify_cfg"]),
    ):
        module = Module(text)
        assert "alloca" in module.text
        prepare(module)
        module.verify()
        assert "alloca" not in module.text
    with pytest.raises(LLVMError, match="no_such"):
        Module(text).run_passes(host_target(), ["no_such"])


def test_assembly_of_the_host_and_of_a_gpu() -> None:
    assert "answer" in assembly_of(ANSWER, host_target())
    ptx = assembly_of(
        "define ptx_kernel void @k(ptr addrspace(1) %p) {\n store i32 1, ptr addrspace(1) %p\n ret void\n}",
        Target("nvptx64-nvidia-cuda", "sm_80"),
    )
    assert ".visible .entry k" in ptx


def test_versions_name_both() -> None:
    assert version().startswith("llvm ")
    assert "llvmlite" in version()


def test_the_host_is_plausible() -> None:
    machine = host()
    assert machine.vector_bytes in (16, 32, 64)
    assert 1 <= machine.cores <= machine.hardware_threads == len(usable_threads())
    assert 8 << 10 <= machine.l1d_bytes <= machine.l2_bytes
    assert 1 <= machine.l1d_ways <= 64 and machine.l1d_bytes % machine.l1d_ways == 0
    assert machine.memory_bytes > 1 << 28
    assert machine is host()


def test_descriptions_can_be_overridden() -> None:
    machine = replace(host(), target=Target("x86_64-unknown-linux-gnu", "znver4", "+avx512f"))
    reduced = portable(machine, "x86-64-v3")
    assert (reduced.vector_bytes, reduced.vector_registers) == (32, 16)
    assert reduced.has("avx2")
    assert not reduced.has("avx512f")
    assert reduced.l2_bytes == machine.l2_bytes
    assert vector_shape(portable(machine, "x86-64-v4").target) == (64, 32)
    assert "zmm" not in assembly_of(
        "define void @f(ptr %p) {\n %x = load <16 x float>, ptr %p\n"
        " %y = fmul <16 x float> %x, %x\n store <16 x float> %y, ptr %p\n ret void\n}",
        reduced.target,
    )
    with pytest.raises(ValueError, match="x86-64-v9"):
        portable(machine, "x86-64-v9")
    with pytest.raises(ValueError, match="not x86-64"):
        portable(replace(machine, target=Target("aarch64-linux-gnu")), "x86-64-v3")


@pytest.mark.parametrize(
    "features, shape",
    [
        ("+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx2", (64, 32)),
        ("+avx512f,+avx512bw,+avx512dq,+avx512vl,+prefer-256-bit", (32, 32)),
        ("+avx512f,+avx2", (32, 16)),
        ("+sse2", (16, 16)),
    ],
)
def test_vector_widths(features: str, shape: tuple[int, int]) -> None:
    assert vector_shape(Target("x86_64-pc-linux-gnu", "x", features)) == shape
    assert vector_shape(Target("arm64-apple-darwin", "x", features)) == (16, 32)


@pytest.mark.parametrize(
    "triple",
    [
        "x86_64-unknown-linux-gnu",
        "aarch64-unknown-linux-gnu",
        "arm64-apple-darwin23",
        "x86_64-pc-windows-msvc",
        "riscv64-unknown-linux-gnu",
    ],
)
def test_the_runtime_compiles_for_other_systems(triple: str) -> None:
    assert len(compile_ir(runtime_ir(triple), Target(triple), Optimization(level=0))) > 1000
