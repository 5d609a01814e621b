"""Kernels to be, as text: what each reads and writes, its algorithm, and why its fusion ended where it did."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.index import high
from weft.ir.kernel.text import show_algorithm
from weft.scheduler.kernelize.spec import KernelSpec


def show_specs(specs: Sequence[KernelSpec]) -> str:
    """All kernels, in order, without a final newline."""
    return "\n\n".join(f"#{k} {show_spec(s)}" for k, s in enumerate(specs))


def show_spec(spec: KernelSpec) -> str:
    """One kernel: cost, algorithm, buffers updated in place, reasons."""
    head = f"{spec.algorithm.name}: {high(spec.flops):,} flops, {high(spec.bytes):,} bytes"
    inplace = [f"  {name} starts as {node!r}" for name, node in spec.inplace.items()]
    reasons = [f"  {w}" for w in spec.why]
    return "\n".join([head, show_algorithm(spec.algorithm), *inplace, "because", *reasons])
