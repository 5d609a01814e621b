"""Pinned numerics: sums whose order depends on their length alone, so that all ways to compute them give equal bits.

In the mode "same" each reduction of floats is a fixed tree. It is read from the graph's node: the lengths of the
reduced axes, and which of three forms the sum has. No other extent, schedule, tile, thread count or device enters.

    products   sums of a contraction: one fused multiply-add after the other, in blocks
    chain      sums over axes that are not the last, or shorter than 16: one addition after the other, in blocks
    lanes      sums over the last axis: term k goes to lane k mod w, the lanes are added as a tree, in blocks

A block of a chain has `CHAIN_TERMS` terms; the sums of blocks are summed in the same way. Where blocks end, a sum may
be cut between devices: `cuts`. No other operation is contracted to a multiply-add, since that would depend on fusion.
"""
# Tests: tests/scheduler/test_pinned.py, tests/ir/test_numerics.py

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum, auto

from weft.ir.expr import Const, Expr, ScalarCall
from weft.ir.ops import Op

CHAIN_TERMS = 128
"""The most additions in sequence: what the accuracy of sums allows (see `scheduler/optimize/levels.py`)."""

LANES = 64
"""Lanes of a row's partial sums: four vectors of f32 where vectors are widest, which hides an addition's latency."""

MIN_ROW = 16
"""The terms from which on a sum over the last axis runs in lanes; fewer are a chain."""

LANE_TERMS = 64
"""Terms of each lane in a block of a row."""


class Tree(Enum):
    """The order in which a reduction combines its terms."""

    FREE = auto()  # whichever a schedule takes
    LANES = auto()  # along the last reduced axis in lanes, whatever else is reduced around it
    CHAIN = auto()  # in sequence, in blocks
    PRODUCTS = auto()  # the same, each term a product that is added in one rounding


_mode: ContextVar[bool] = ContextVar("weft.numerics", default=False)

pinned = _mode.get
"""True where what is computed is computed in the mode "same"."""


@contextmanager
def switched(same: bool) -> Generator[None]:
    """The mode within the block, in this thread or task."""
    before = _mode.set(same)
    try:
        yield
    finally:
        _mode.reset(before)


def levels(n: int) -> tuple[int, ...]:
    """The terms of a block, then the blocks of a block of blocks, and so on, of a chain of `n` terms."""
    found: list[int] = []
    while n > CHAIN_TERMS:
        found.append(CHAIN_TERMS)
        n = -(-n // CHAIN_TERMS)
    return tuple(found)


def lanes(n: int) -> int:
    """The lanes of a row of `n` terms: a power of two, as many as the row has, at most `LANES`."""
    return min(LANES, 1 << max(n - 1, 1).bit_length())


def row_block(n: int) -> int:
    """The terms of each block of a row of `n`; all of them where there would be two blocks at most."""
    block = lanes(n) * LANE_TERMS
    return n if n <= 2 * block else block


def cuts(n: int, tree: Tree = Tree.PRODUCTS) -> range:
    """The positions at which a reduced axis of `n` terms may be cut so that partial sums combine to the same bits.

    Each part computes the sums of its blocks, side by side; the block sums of all parts, in their order, are then
    summed as the whole sums them: as a chain. So one element for each block crosses between devices.
    """
    block = row_block(n) if tree is Tree.LANES else CHAIN_TERMS
    return range(block, n, block)


def rounded_product(a: Expr, b: Expr) -> Expr:
    """a * b, in a form that no pass and no backend takes for a product to contract."""
    return ScalarCall(a.dtype, Op.FMA, (a, b, Const(a.dtype, -0.0)))
