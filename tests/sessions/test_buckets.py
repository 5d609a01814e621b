"""Classes of changes: sizes are few, starts are apart, numbers go along."""

from __future__ import annotations

from weft.ir import graph
from weft.ir.dtypes import float32
from weft.ir.index import Var
from weft.ir.regions.boxes import Interval
from weft.ir.regions.region import Region
from weft.sessions.buckets import Bucket, Follows, changes, placed

LEAVES = {0: graph.buffer((10, 64), float32, "cpu:0", None), 1: graph.buffer((), float32, "cpu:0", None)}


def box(*ends: tuple[int, int]) -> tuple[Interval, ...]:
    return tuple([Interval(*e) for e in ends])


def test_boxes_are_widened_to_powers_of_two_within_the_axis() -> None:
    (found,) = placed({0: Region((box((8, 10), (61, 64)),))}, LEAVES, {})
    assert found.bucket == Bucket((), 0, (2, 4)) and found.starts == (8, 60)
    (whole,) = placed({0: Region((box((1, 10), (0, 64)),))}, LEAVES, {})
    assert whole.bucket == Bucket((0,)) and whole.starts == ()


def test_boxes_are_steps_and_whole_inputs_come_with_the_first() -> None:
    region = Region((box((0, 1), (0, 1)), box((5, 6), (9, 10))))
    first, second = placed({0: region, 1: Region(((),))}, LEAVES, {})
    assert first.bucket == Bucket((1,), 0, (1, 1)) and second.bucket == Bucket((), 0, (1, 1))
    assert (first.starts, second.starts) == ((0, 0), (5, 9))


def test_a_number_close_behind_a_box_goes_along_with_it() -> None:
    t = Var("t", 0, 63)
    (found,) = placed({0: Region((box((0, 10), (7, 8)),))}, LEAVES, {t: 7}, [t])
    assert found.bucket.follows == Follows(t, 1, 0) and found.bucket.moved == (t,)
    (later,) = placed({0: Region((box((0, 10), (7, 8)),))}, LEAVES, {t: 9})
    assert later.bucket.follows == Follows(t, 1, 3) and later.starts == (6,) and later.bucket.sizes == (10, 2)
    said = changes(later.bucket, LEAVES)
    (start,) = said.starts
    assert said.follows == {t: start + 3} and (start.lo, start.hi) == (0, 60)


def test_a_number_alone_is_a_step() -> None:
    t = Var("t", 0, 63)
    assert placed({}, LEAVES, {t: 7}) == []
    assert [p.bucket for p in placed({}, LEAVES, {t: 7}, [t])] == [Bucket(moved=(t,))]
