"""Every kind of kernel assembles for every architecture, on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends.cuda import warpgroups
from weft.backends.cuda.compile import compile_programs, target
from weft.backends.cuda.matrix import units
from weft.backends.llvm import scalar
from weft.backends.protocol import DeviceInfo
from weft.ir import dtypes
from weft.ir.dtypes import DTYPES, DType
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.loops import LoopKind
from weft.ir.ops import ELEMENTWISE
from weft.scheduler.kernelize.kernels import kernelize
from weft.scheduler.lowering import lowered
from weft.testing.kernels import CASES, attention, columns, convolution, matmul, softmax

INFO = DeviceInfo(
    name="cuda:0", kind="cuda", description="", cores=132, vector_bytes=16, vector_registers=255,
    l1_bytes=228 << 10, l2_bytes=50 << 20, l3_bytes=0, memory_bytes=1 << 37, local_bytes=227 << 10,
    bandwidth=4.8e12, flops=6.7e13, launch_ns=2500.0, task_kind=LoopKind.BLOCK, warp=32,
    shuffles=True,     native=ELEMENTWISE & scalar.NATIVE,
    matrix_units=units((9, 0)),
)  # fmt: skip

ARCHITECTURES = {"sm_80": (8, 0), "sm_90": (9, 0), "sm_90a": (9, 0)}


@pytest.fixture(scope="module")
def assemble(cuda_module: Callable[[str], Any]) -> Callable[[str, str], bytes]:
    module = cuda_module("assembler")
    if module.library() is None:
        pytest.skip("the wheel nvidia-nvjitlink, which assembles PTX, is not installed")
    return module.assemble


def check(
    algorithms: Sequence[Algorithm], assemble: Callable[[str, str], bytes], info: DeviceInfo = INFO
) -> None:
    programs = [replace(lowered(a, info), name=f"k{n}") for n, a in enumerate(algorithms)]
    for arch, capability in ARCHITECTURES.items():
        chip = replace(target(capability), cpu=arch)
        ptx, entries = compile_programs(programs, chip, INFO.local_bytes)
        cubin = assemble(ptx, arch)
        assert cubin.startswith(b"\x7fELF")
        for e in entries:
            assert e.parts
            assert all(1 <= p.threads <= 1024 and p.local_bytes <= INFO.local_bytes for p in e.parts)


KERNELS = {
    **CASES,
    "matmul 512": matmul(512, 512, 512),
    "matmul 4096": matmul(4096, 4096, 64),
    "matmul odd": matmul(1000, 777, 333),
    "softmax 4096": softmax(4096, 4096),
    "softmax 50257": softmax(64, 50257),
    "columns long": columns(100000, 8),
    "attention 1024": attention(8, 1024, 64, True),
    "convolution 56": convolution(4, 8, 56, 16),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str, assemble: Callable[[str, str], bytes]) -> None:
    check([KERNELS[name].algorithm], assemble)


def test_tf32(assemble: Callable[[str, str], bytes]) -> None:
    info = replace(INFO, matrix_units=units((8, 0), tf32=True))
    check([matmul(128, 128, 64).algorithm, matmul(1000, 600, 48).algorithm], assemble, info)


def test_groups_of_warps(assemble: Callable[[str, str], bytes]) -> None:
    """Factors stored along rows or terms, whole tiles and edges."""
    info = replace(INFO, cores=4, matrix_units=(*warpgroups.units((9, 0)), *INFO.matrix_units))
    x, y = t(512, 128).to(weft.bfloat16).realize(), t(128, 520).to(weft.bfloat16).realize()
    u, v = t(128, 512).to(weft.float16).realize(), t(512, 128).to(weft.float16).realize()
    specs = [s for z in (x @ y, u.T @ v.T) for s in kernelize([z.value.node])]
    programs = [replace(lowered(s.algorithm, info), name=f"k{n}") for n, s in enumerate(specs)]
    ptx, entries = compile_programs(programs, target((9, 0)), info.local_bytes, groups=True)
    assert ptx.count("wgmma.mma_async") == 8 and assemble(ptx, "sm_90a").startswith(b"\x7fELF")
    assert all(p.local_bytes <= info.local_bytes for e in entries for p in e.parts)
    older, _ = compile_programs(programs, target((8, 0)), info.local_bytes, groups=True)
    assert "wgmma" not in older and "mma.sync" in older


def t(*shape: int, dtype: Any = np.float32) -> weft.Tensor:
    return weft.tensor(np.ones(shape, dtype))


def backward(loss: weft.Tensor, *leaves: weft.Tensor) -> list[weft.Tensor]:
    loss.backward()
    return [loss, *(x.grad for x in leaves if x.grad is not None)]


def mlp() -> list[weft.Tensor]:
    x, w1, w2 = t(64, 100), t(100, 50).requires_grad_(), t(50, 10).requires_grad_()
    return backward(
        weft.nn.functional.cross_entropy((x @ w1).relu() @ w2, weft.tensor(np.zeros(64, np.int64))), w1, w2
    )


def convnet() -> list[weft.Tensor]:
    x, w = t(2, 3, 12, 12), t(4, 3, 3, 3).requires_grad_()
    y = weft.nn.functional.conv2d(x, w, padding=1).relu()
    return backward(weft.nn.functional.max_pool2d(y, 2).mean(), w)


def embedding() -> list[weft.Tensor]:
    table, i = t(100, 32).requires_grad_(), weft.tensor(np.arange(20) % 7)
    return backward((table[i] * table[i]).sum(), table)


GRAPHS: dict[str, Callable[[], list[weft.Tensor]]] = {
    "elementwise": lambda: [(t(1000, 33) * 2 + t(33)).exp().sin()],
    "reductions": lambda: [
        t(100000).sum(),
        t(33, 1000).max(1)[0],
        t(5, 7, 9).mean((0, 2)),
        t(64, 100).argmax(1),
    ],
    "layer norm": lambda: [weft.nn.functional.layer_norm(t(16, 768), (768,))],
    "softmax": lambda: [weft.nn.functional.softmax(t(16, 1000), -1)],
    "attention": lambda: [
        weft.nn.functional.scaled_dot_product_attention(t(2, 4, 64, 32), t(2, 4, 64, 32), t(2, 4, 64, 32))
    ],
    "attention bf16": lambda: [
        weft.nn.functional.scaled_dot_product_attention(
            *(t(2, 4, 256, 64).to(weft.bfloat16).realize() for _ in "qkv"), is_causal=True
        )
    ],
    "cumsum": lambda: [t(10, 100).cumsum(1)],
    "half": lambda: [
        (t(64, 64).to(weft.float16) @ t(64, 64).to(weft.float16)),
        t(64, 64).to(weft.bfloat16).sum(1),
    ],
    "half large": lambda: [
        t(256, 64).to(weft.bfloat16) @ t(64, 256).to(weft.bfloat16),
        t(2, 200, 48).to(weft.float16) @ t(2, 100, 48).to(weft.float16).mT,
    ],
    "pad and flip": lambda: [weft.nn.functional.pad(t(4, 5), (1, 2)).flip(0), t(4, 5).T.contiguous()],
    "random": lambda: [weft.rand(100, 10)],
    "mlp": mlp,
    "convnet": convnet,
    "embedding": embedding,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str, assemble: Callable[[str, str], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [x.value.node for x in GRAPHS[name]()]
    specs = kernelize([n for n in nodes if n.storage is None])
    check([s.algorithm for s in specs], assemble)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda d: d.name)
def test_dtypes(dtype: DType, assemble: Callable[[str, str], bytes]) -> None:
    x = t(5, 40).to(dtype)
    results = [x * x, x == x, x.to(weft.float32), weft.where(x == x, x, x)]
    if dtype.is_float8:
        results += [abs(x), x.float().exp().to(dtype)]
        check([s.algorithm for s in kernelize([r.value.node for r in results])], assemble)
        return
    results += [x + x, x.max(1)[0]]
    if dtype is not dtypes.bool_:
        results += [x.sum(1), abs(x), x // x, x % x]
    if dtype.is_float:
        results += [x.sqrt(), x.exp(), x.log(), x.tanh(), x / x, x.floor(), x.round(), x**x]
    elif dtype.is_int:
        results += [x & x, x << x, x >> x]
    check([s.algorithm for s in kernelize([r.value.node for r in results])], assemble)
