"""The printed forms in manuals/performance.md: schedules that the rules choose for kernels of real sizes."""

from __future__ import annotations

from dataclasses import replace

from described import INFO, algorithm, leaf, schedule_of
from forms import Forms

import weft.nn.functional as F
from weft import Tensor
from weft.backends.protocol import DeviceInfo
from weft.ir.kernel.lower import lower
from weft.ir.kernel.summary import summary
from weft.ir.loops_text import show_program
from weft.scheduler.optimize.rules import schedule

WIDE = replace(
    INFO, name="manual:1", description="two cores with AVX-512", vector_bytes=64, vector_registers=32
)


def matmul(n: int = 1024) -> Tensor:
    """A square product."""
    return leaf(n, n) @ leaf(n, n)


def chain() -> Tensor:
    """Elementwise work on more than any cache holds."""
    n = 16 << 20
    return (leaf(n) * leaf(n) + leaf(n)).relu() * 0.5 - leaf(n)


def attention(causal: bool = False) -> Tensor:
    """Eight heads, a thousand tokens."""
    q, k, v = (leaf(1, 8, 1024, 64) for _ in range(3))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


KERNELS = {
    "matmul 1024": matmul,
    "matmul 1x4096 by 4096x4096": lambda: leaf(1, 4096) @ leaf(4096, 4096),
    "relu(a*b+c)*0.5-d, 16M": chain,
    "sum of 16M": lambda: leaf(16 << 20).sum(),
    "sum 4096x4096 over rows": lambda: leaf(4096, 4096).sum(0),
    "sum 4096x4096 over columns": lambda: leaf(4096, 4096).sum(1),
    "softmax 4096x4096": lambda: leaf(4096, 4096).softmax(-1),
    "layer_norm 4096x1024": lambda: F.layer_norm(leaf(4096, 1024), (1024,), leaf(1024), leaf(1024)),
    "attention 8x1024x64": attention,
    "the same, causal": lambda: attention(True),
    "conv2d 8x64x56x56, 3x3": lambda: F.conv2d(leaf(8, 64, 56, 56), leaf(64, 64, 3, 3), padding=1),
}
"""Name -> a tensor that one kernel computes."""


def summaries(info: DeviceInfo) -> str:
    """One line for each kernel."""
    return "\n".join(f"{name}\n    {summary(schedule(algorithm(f()), info))}" for name, f in KERNELS.items())


FORMS: Forms = {
    "summaries": lambda: summaries(WIDE),
    "matmul schedule": lambda: schedule_of(schedule(algorithm(matmul()), INFO)),
    "matmul loops": lambda: show_program(lower(schedule(algorithm(matmul()), INFO))),
    "matmul schedule, wider vectors": lambda: summary(schedule(algorithm(matmul()), WIDE)),
    "column sums": lambda: schedule_of(schedule(algorithm(KERNELS["sum 4096x4096 over rows"]()), WIDE)),
    "whole sum": lambda: schedule_of(schedule(algorithm(KERNELS["sum of 16M"]()), WIDE)),
}
"""Name -> what the code prints."""
