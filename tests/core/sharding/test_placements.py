"""Placements as users name them, and layouts."""

from __future__ import annotations

import pytest

from weft.core.sharding.placements import Partial, Placement, Replicate, Shard, layout_for, placements_of
from weft.errors import ArgumentError, DTypeError
from weft.ir import placement
from weft.ir.ops import Op
from weft.ir.placement import Free, Mesh

MESH = Mesh("mesh:0", ("a:0", "a:1", "a:2", "a:3", "a:4", "a:5"), (2, 3), ("dp", "tp"))
FREE = (Free(), Free())


def test_placements_say_what_they_are() -> None:
    assert Shard(1).is_shard() and Shard(1).is_shard(1) and not Shard(1).is_shard(0)
    assert Replicate().is_replicate() and not Replicate().is_shard()
    assert Partial().is_partial() and Partial("max").is_partial("max") and not Partial().is_partial("max")
    assert isinstance(Shard(0), Placement)
    assert repr(Shard(1)) == "Shard(dim=1)"


def test_a_layout_has_the_placements_of_the_axes_that_are_given() -> None:
    assert layout_for("f", [Shard(-1)], (4, 5), MESH, (1,), FREE) == (Free(), placement.Shard(1))
    assert layout_for("f", [Replicate(), Shard(0, (1, 3, 0))], (4, 5), MESH, (0, 1), FREE) == (
        placement.Replicate(), placement.Shard(0, (1, 4, 4)),
    )  # fmt: skip


def test_layouts_are_read_as_they_were_written() -> None:
    given = (Shard(0, (1, 3, 0)), Shard(1), Replicate(), Partial("max"))
    layout = (
        placement.Shard(0, (1, 4, 4)),
        placement.Shard(1),
        placement.Replicate(),
        placement.Partial(Op.MAX),
    )
    assert placements_of(layout) == given


@pytest.mark.parametrize(
    ("placements", "text"),
    [
        ([Shard(0)], r"a placement for each of the 2 dimensions of mesh:0 \(dp: 2, tp: 3\)"),
        ([Shard(2), Replicate()], r"Shard\(dim=2\) is out of range for a tensor of shape \(4, 5\)"),
        ([Shard(-3), Replicate()], "out of range"),
        ([Shard(0, (1, 2)), Replicate()], r"must part the 4 elements .* among 2 devices of mesh:0 \(dp: 2\)"),
        ([Shard(0, (5, -1)), Replicate()], "must part"),
        ([Partial(), Replicate()], "cannot be asked to be Partial"),
    ],
)
def test_what_cannot_be_laid_out_is_refused(placements: list[Placement], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        layout_for("f", placements, (4, 5), MESH, (0, 1), FREE)


def test_other_things_are_no_placements() -> None:
    with pytest.raises(DTypeError, match=r"expected Shard\(dim\) or Replicate\(\), got 0"):
        layout_for("f", [0, Replicate()], (4, 5), MESH, (0, 1), FREE)
    with pytest.raises(DTypeError, match="must be an int"):
        Shard("rows")
