"""Comparisons of costs: where fusing begins to pay, and how they read."""

from __future__ import annotations

import pytest

from weft.scheduler.kernelize import cost
from weft.scheduler.kernelize.cost import Comparison, Cost

PAYS: list[tuple[Comparison, Comparison]] = [
    # two kernels, 4,000 bytes: 1,000 elements computed once more against 8,000 bytes of traffic
    (cost.recompute(2, 4000, 56, 1000, 1000), cost.recompute(2, 4000, 57, 1000, 1000)),
    # three kernels compute it twice more and store it for three
    (cost.recompute(3, 4000, 48, 1000, 0), cost.recompute(3, 4000, 49, 1000, 0)),
    # small ones are worth a kernel
    (cost.recompute(2, 4, 100, 100, 0), cost.recompute(2, 4, 101, 100, 0)),
    (cost.recompute(2, 4000, 0, 1000, 8000), cost.recompute(2, 4000, 0, 1000, None)),
    (cost.prologue(4, 1000, 4000, 4000), cost.prologue(5, 1000, 4000, 4000)),
    (cost.prologue(16, 1000, 4000, 1000), cost.prologue(17, 1000, 4000, 1000)),
    (cost.prologue(4, 1000, 4000, None), cost.prologue(5, 1000, 4000, None)),
    (cost.prologue(4, 1000, 4000, 9000), cost.prologue(5, 1000, 4000, 9000)),
    # five panels of 48 columns, eleven operations each, against one and 8,000 bytes; then six
    (cost.row_prologue(1, 1000, 4000, 240), cost.row_prologue(1, 1000, 4000, 241)),
    # one panel of 48 columns, forty operations for each element, against 8,000 bytes; then two
    (cost.divided_reads(1000, 4000, 48), cost.divided_reads(1000, 4000, 49)),
    # four panels of few elements against a kernel
    (cost.divided_reads(100, 400, 192), cost.divided_reads(100, 400, 193)),
    (cost.prologue_reads(4000, 6000), cost.prologue_reads(4000, 6001)),
    (cost.prologue_reads(4000, 0), cost.prologue_reads(4000, None)),
    (cost.small_prologue(10, 1000), cost.small_prologue(10, 1001)),
    # unpacked once for eight rows; for twice as many, what it takes more is what storing it would
    (cost.tile_prologue(99, 1000, 1000, 8), cost.tile_prologue(99, 1000, 1000, 9)),
    (cost.tile_prologue(16, 1000, 1000, 16), cost.tile_prologue(17, 1000, 1000, 16)),
    # a kernel, and 16 bytes for each of 100 elements: 228 steps without lanes
    (cost.scattered(228, 800), cost.scattered(229, 800)),
    (cost.repeat(3, 48, 4, 1000), cost.repeat(3, 49, 4, 1000)),
    (cost.repeat(2, 100, 4, 100), cost.repeat(2, 101, 4, 100)),
]
"""The dearest that pays, beside one that does not."""


@pytest.mark.parametrize("case", PAYS, ids=lambda c: str(c[0]))
def test_fusing_pays_up_to_its_limit(case: tuple[Comparison, Comparison]) -> None:
    dearest, dearer = case
    assert dearest.pays and not dearer.pays


def test_a_comparison_reads_with_its_units() -> None:
    assert (
        str(Comparison(Cost(8000, 10), Cost(10_000))) == "8,000 operations and 10 bytes <= 10,000 operations"
    )
    dear = Comparison(Cost(90_000), Cost(nbytes=1000))
    assert str(dear) == "90,000 operations > 1,000 bytes, at 8 operations per byte"
    assert str(Comparison(Cost(nbytes=None), Cost(nbytes=12))) == "uncounted bytes > 12 bytes"
