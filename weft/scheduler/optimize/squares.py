"""Factors that lie along the sum and apart across the lanes, read in squares that are transposed in registers.

    for k in n:                              for k_o in n/16:
      vector j in 16:                          unroll k_i in 16:
        c[j] += a[k] * b[j, k]         ->        vector j in 16:
                                                   c[j] += a[16*k_o + k_i] * b[j, 16*k_o + k_i]

Lanes along j would gather. With the steps of the sum written out, backends of vectors read a row of the square for each
lane, in order, and transpose. That keeps the order of the sum, and reads each element once, from where it lies.
"""
# Tests: tests/scheduler/test_pinned.py, tests/scheduler/optimize/test_contraction.py

from __future__ import annotations

from weft.backends.costs import CostModel
from weft.backends.protocol import DeviceInfo
from weft.ir.dtypes import DType
from weft.ir.expr import Load
from weft.ir.graph import elements
from weft.ir.index import Var, coefficient, flatten, high
from weft.ir.kernel.algorithm import Param
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import attempt, run
from weft.ir.kernel.transforms.hint import PrefetchNext
from weft.ir.kernel.transforms.mark import Unroll
from weft.ir.kernel.transforms.pad import Pad
from weft.scheduler.optimize.steps import extent, split

LARGEST = 16
"""Lanes and steps of a square at most: AVX-512's 32 registers hold one, and what is summed."""

FEWEST = 4
"""Steps below which backends gather."""

AHEAD_BYTES = 1 << 15
"""Bytes of squares that are asked for early, at least: 16 rows of 512 numbers."""

FAR_CACHES = 2
"""Second-level caches that a factor fills before it counts as being in memory."""

NEAR_PARTS = 4
"""The part of the second-level cache up to which the rows of a square are not asked for: other kernels read as much
between two runs, so that what is larger was mostly driven out. To ask for what is there costs next to nothing."""


def width(dtype: DType, info: DeviceInfo) -> int:
    """The lanes of a square; 0 where vectors are too short."""
    lanes = min(info.lanes(dtype), LARGEST)
    return lanes if lanes >= FEWEST else 0


def lies_in_squares(p: Param | None, load: Load, lane: Var, summed: Var) -> bool:
    """The load's neighbours along the sum are neighbours in memory, and its lanes lie apart."""
    if p is None or load.guard:
        return False
    at = flatten(load.index, p.shape)
    return coefficient(at, summed) == 1 and (coefficient(at, lane) or 0) > 1


def cycles(size: int, costs: CostModel) -> float:
    """Cycles to transpose one element with its square: a vector of it takes part in as many shuffles as halve the
    square, each of which takes one of two units."""
    return 2 * costs.call_cycles * (size.bit_length() - 1) / size


def steps(length: int, size: int) -> int:
    """The steps of the sum that are written out: a divisor of its length, or as many as there are lanes, where the rest
    is a small part; 0 where there are too few."""
    found = next((n for n in (16, 8, 4) if n <= size and length % n == 0), 0)
    return found or (size if length > 2 * size else 0)


def in_squares(k: Kernel, loop: str, size: int) -> Kernel:
    """The innermost loop of a sum, `size` steps of it written out."""
    n = extent(k, loop)
    if n == size:
        return run(k, Unroll(loop))
    k = run(k, Pad(loop, size)) if n % size else k
    k, _, inner = split(k, loop, size, f"{loop}_o", f"{loop}_i")
    return run(k, Unroll(inner))


def ask_ahead(k: Kernel, name: str, p: Param, loop: str, terms: int, size: int, info: DeviceInfo) -> Kernel:
    """Ask for squares of `size` lanes by `terms`, of which each iteration of a loop reads one, some iterations early,
    where they are no small part of a cache: of so many rows, the hardware follows few."""
    if high(elements(p.shape)) * p.dtype.itemsize * NEAR_PARTS <= info.l2_bytes:
        return k
    count = max(1, AHEAD_BYTES // (terms * size * p.dtype.itemsize))
    return attempt(k, PrefetchNext(name, loop, count, (p.name,)))
