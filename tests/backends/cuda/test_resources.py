"""What the main kernels take of a multiprocessor: no stack, nothing spilled, as many blocks as they are made for.

`pytest -s` prints the table.
"""

from __future__ import annotations

from collections.abc import Callable
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
from weft.ir.loops import LoopKind
from weft.ir.ops import ELEMENTWISE
from weft.scheduler.kernelize.kernels import kernelize
from weft.scheduler.lowering import lowered

H200 = DeviceInfo(
    name="cuda:0", kind="cuda", description="", cores=132, vector_bytes=16, vector_registers=255,
    l1_bytes=228 << 10, l2_bytes=50 << 20, l3_bytes=0, memory_bytes=141 << 30, local_bytes=227 << 10,
    bandwidth=4.8e12, flops=6.7e13, launch_ns=2500.0, task_kind=LoopKind.BLOCK, native=ELEMENTWISE & scalar.NATIVE,
    warp=32, matrix_units=units((9, 0)),
)  # fmt: skip
GROUPS = replace(H200, matrix_units=(*warpgroups.units((9, 0)), *H200.matrix_units))
TF32 = replace(H200, matrix_units=units((9, 0), tf32=True))

REGISTERS, THREADS, SHARED = 1 << 16, 2048, 228 << 10
"""Of one multiprocessor of an H200."""


def t(*shape: int, dtype: weft.DType = weft.float32) -> weft.Tensor:
    """A tensor that is there, of whatever contents."""
    return weft.tensor(np.broadcast_to(np.float32(0), shape)).to(dtype).realize()


def product(n: int, dtype: weft.DType) -> weft.Tensor:
    return t(n, n, dtype=dtype) @ t(n, n, dtype=dtype)


def attention(d: int, dtype: weft.DType) -> weft.Tensor:
    q, k, v = (t(8, 16, 1024, d, dtype=dtype) for _ in "qkv")
    return weft.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


B, F = weft.bfloat16, weft.float32
KERNELS: dict[str, tuple[Callable[[], weft.Tensor], DeviceInfo, int]] = {
    "product bf16": (lambda: product(2048, B), H200, 2),
    "product bf16, by groups": (lambda: product(2048, B), GROUPS, 1),
    "product bf16 4096, by groups": (lambda: product(4096, B), GROUPS, 1),
    "product f32": (lambda: product(2048, F), H200, 2),
    "product tf32": (lambda: product(2048, F), TF32, 2),
    "attention bf16, 64": (lambda: attention(64, B), H200, 2),
    "attention bf16, 128": (lambda: attention(128, B), H200, 2),
    "attention bf16, 256": (lambda: attention(256, B), H200, 1),
    "attention f32, 64": (lambda: attention(64, F), H200, 2),
    "softmax": (lambda: weft.nn.functional.softmax(t(1024, 4096), -1), H200, 4),
    "layer norm": (lambda: weft.nn.functional.layer_norm(t(4096, 1024), (1024,)), H200, 4),
    "sum of rows": (lambda: t(1024, 4096).sum(1), H200, 4),
    "chain": (lambda: (t(1 << 20) * 2 + 1).exp().sin(), H200, 4),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str, cuda_module: Callable[[str], Any]) -> None:
    make, info, wanted = KERNELS[name]
    module = cuda_module("assembler")
    if module.library() is None:
        pytest.skip("the wheel nvidia-nvjitlink, which assembles PTX, is not installed")
    specs = kernelize([make().value.node])
    programs = [replace(lowered(s.algorithm, info), name=f"k{n}") for n, s in enumerate(specs)]
    ptx, entries = compile_programs(programs, target((9, 0)), info.local_bytes, info is GROUPS)
    found = module.resources(ptx, "sm_90a")
    for part in (p for e in entries for p in e.parts):
        r = found[part.name]
        shared = r.shared + part.local_bytes
        at_once = min(
            REGISTERS // (part.threads * -(-r.registers // 8) * 8),
            THREADS // part.threads,
            SHARED // max(1, shared),
        )
        print(f"| {name} | {part.threads} | {r.registers} | {shared:,} | {r.stack} | {at_once} |")
        assert r.stack == 0 and r.spilled == 0
        assert at_once >= wanted
