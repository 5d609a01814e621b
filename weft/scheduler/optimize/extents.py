"""Sizes that are only known at run time, as rules judge them.

What has to be right for every size (buffers, chains of additions) goes by the largest. What is a question of speed goes
by a typical one: a variable's bounds are set wide, so that one kernel serves many sizes, and most are far from the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.ir.index import Int, ceildiv, evaluate, floordiv, high, variables

TYPICAL_SHARE = 4
"""The largest value of a variable over a typical one."""

MOST_TYPICAL = 1024
"""A typical value at most: bounds beyond are those of what may be any size at all."""


def typical(n: Int) -> int:
    """A size to judge by: `n`, or what it is where each variable in it has a typical value; of a loop that is shorter
    in later blocks, what it is in the first."""
    if isinstance(n, int) or n.computed:
        return high(n)
    values = {v.name: max(v.lo, min(ceildiv(v.hi, TYPICAL_SHARE), MOST_TYPICAL)) for v in variables(n)}
    first = {v.name: 0 if v.lo == 0 else values[v.name] for v in variables(n)}
    return max(int(evaluate(n, values)), int(evaluate(n, first)), 1)


def typical_elements(shape: Sequence[Int]) -> int:
    """The elements of a typical shape to judge by: of sizes known at run time together not more than of a single one,
    since nobody has long axes only."""
    known = prod([n for n in shape if isinstance(n, int)])
    return known * min(prod([typical(n) for n in shape if not isinstance(n, int)]), MOST_TYPICAL)


def blocks_of(n: Int, size: int) -> float:
    """Blocks of `size` that cover `n`: of a size known at run time, those of a typical one and half of another."""
    return ceildiv(n, size) if isinstance(n, int) else typical(n) / size + 0.5


def divides(count: int, n: Int) -> bool:
    """Every value of `n` is a multiple of `count`, as far as its form shows."""
    return floordiv(n, count) * count == n
