"""Pinned trees: where blocks end, and that it follows from lengths alone."""

from __future__ import annotations

import pytest

from weft.ir import numerics
from weft.ir.numerics import CHAIN_TERMS, LANES, Tree


@pytest.mark.parametrize("n", [1, 2, 3, 17, 64, 128, 129, 1000, 128 * 128, 128 * 128 + 1, 10**7])
def test_no_level_of_a_chain_has_more_terms_than_accuracy_allows(n: int) -> None:
    left = n
    for count in numerics.levels(n):
        assert count == CHAIN_TERMS
        left = -(-left // count)
    assert left <= CHAIN_TERMS


@pytest.mark.parametrize("n", [1, 2, 3, 5, 31, 64, 65, 5000])
def test_lanes_are_a_power_of_two_that_the_row_fills(n: int) -> None:
    lanes = numerics.lanes(n)
    assert lanes & (lanes - 1) == 0 and 2 <= lanes <= LANES
    assert lanes == LANES or lanes < 2 * max(n, 2)


@pytest.mark.parametrize("n", [1, 128, 129, 300, 4096, 10000])
@pytest.mark.parametrize("tree", [Tree.CHAIN, Tree.PRODUCTS, Tree.LANES])
def test_cuts_lie_between_whole_blocks(n: int, tree: Tree) -> None:
    cuts = numerics.cuts(n, tree)
    block = numerics.row_block(n) if tree is Tree.LANES else CHAIN_TERMS
    assert all(0 < c < n and c % block == 0 for c in cuts)
    assert len(cuts) == -(-n // block) - 1


def test_the_mode_ends_with_its_block_and_may_be_nested() -> None:
    assert not numerics.pinned()
    with numerics.switched(True):
        assert numerics.pinned()
        with numerics.switched(False):
            assert not numerics.pinned()
        assert numerics.pinned()
    assert not numerics.pinned()
