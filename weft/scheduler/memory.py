"""Memory planning: where in one workspace each intermediate tensor lives.

Two tensors may share bytes when their lifetimes do not meet. Placing largest first, each at the lowest offset free
over its lifetime, is within a few percent of the best possible on real graphs ("greedy by size", Pisarchyk & Lee
2020, arXiv:2001.03288).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 256
"""Of every offset: what WebGPU and most OpenCL devices want of a buffer within a buffer."""


@dataclass(frozen=True, slots=True)
class Request:
    """`nbytes` bytes needed from step `first` to step `last`, both included. `name` is for messages."""

    nbytes: int
    first: int
    last: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """The offset of each request, and the size of the whole."""

    offsets: tuple[int, ...]
    nbytes: int


def plan(requests: Sequence[Request]) -> Layout:
    """Offsets for all requests."""
    order = sorted(range(len(requests)), key=lambda k: (-requests[k].nbytes, requests[k].first, k))
    offsets = [0] * len(requests)
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last, by offset
    total = 0
    for k in order:
        r = requests[k]
        size = -(-r.nbytes // ALIGNMENT) * ALIGNMENT
        if not size:
            continue
        at = 0
        for offset, end, first, last in placed:
            if first > r.last or last < r.first:
                continue
            if offset - at >= size:
                break
            at = max(at, end)
        offsets[k] = at
        insort(placed, (at, at + size, r.first, r.last))
        total = max(total, at + size)
    return Layout(tuple(offsets), total)
