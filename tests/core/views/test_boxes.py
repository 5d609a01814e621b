"""Boxes: who may share elements is found, and who cannot mostly is not; writes through views by it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.growth import best_ratio
from weft.core.execute import edits
from weft.core.views import views
from weft.core.views.boxes import Boxes, Spans

_SHAPE = (64, 8)


@st.composite
def _boxes(draw: st.DrawFn) -> Spans:
    spans: list[tuple[int, int] | None] = []
    for size in _SHAPE[: draw(st.integers(0, 2))]:
        first = draw(st.integers(0, size - 1))
        last = draw(st.integers(first, size - 1))
        spans.append(draw(st.sampled_from([None, (first, last), (first, first)])))
    return tuple(spans)


def _meet(a: Spans, b: Spans) -> bool:
    return not any(
        p is not None and q is not None and (p[1] < q[0] or q[1] < p[0]) for p, q in zip(a, b, strict=False)
    )


@given(st.lists(_boxes(), max_size=12), _boxes())
def test_all_that_meet_are_near(boxes: list[Spans], asked: Spans) -> None:
    index = Boxes[int](_SHAPE)
    for k, box in enumerate(boxes):
        index.add(k, box)
    assert set(index.near(asked)) >= {k for k, box in enumerate(boxes) if _meet(box, asked)}


def test_rows_are_not_near_each_other_and_columns_are_near_rows() -> None:
    index = Boxes[str](_SHAPE)
    for i in range(64):
        index.add(f"row {i}", ((i, i), (0, 7)))
    for j in range(8):
        index.add(f"column {j}", ((0, 63), (j, j)))
    index.add("half", ((0, 31), (0, 7)))
    assert sorted(index.near(((3, 3), (0, 7)))) == [*(f"column {j}" for j in range(8)), "half", "row 3"]
    assert sorted(index.near(((40, 41), (5, 5)))) == ["column 5", "row 40", "row 41"]


def _rows(x: Any) -> Sequence[Any]:
    return [x[i] for i in range(len(x))]


def _unbound(x: Any) -> Sequence[Any]:
    return x.unbind(0)


def _windows(x: Any) -> Sequence[Any]:
    return [x[i : i + 2] for i in range(len(x) - 1)]


def _mixed(x: Any) -> Sequence[Any]:
    return [*x.unbind(0), *x.unbind(1), *x.split(3), x.t()[1:, 2:], x.view(-1), x[::2], *x[:, 1:].unbind(0)]


@pytest.mark.parametrize("look", [_rows, _unbound, _windows, _mixed])
def test_many_views_see_what_is_written_through_each_other(look: Callable[[Any], Sequence[Any]]) -> None:
    start = np.arange(60, dtype=np.float32).reshape(20, 3)
    ours, theirs = weft.tensor(start), torch.tensor(start)
    for k, (a, b) in enumerate(zip(look(ours), look(theirs), strict=True)):
        a += k
        b += k
    ours_views, theirs_views = look(ours), look(theirs)
    for k in (5, 0, 11, 5):
        for found in (ours_views, theirs_views):
            found[k].mul_(2.0)
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    for a, b in zip(ours_views, theirs_views, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_a_view_that_moved_in_place_and_one_of_other_elements_are_found_where_they_look_now() -> None:
    x, other = weft.zeros(20, 3) + 1, weft.zeros(20, 3) + 5
    rows = [x[i] for i in range(20)]
    rows[0] += 1
    columns = [other[:, j] for j in range(3)]
    many = [other[i] for i in range(20)]
    many[0] += 1
    rows[7].data = other[3]
    x.t_()
    x[1, 4] = 100.0
    many[3].add_(10.0)
    columns[1].mul_(2.0)
    assert rows[4].tolist() == [1.0, 100.0, 1.0]
    assert rows[7].tolist() == [15.0, 30.0, 15.0]
    assert x[:, 7].tolist() == [1.0, 1.0, 1.0]


def test_a_tensor_that_is_made_to_look_elsewhere_is_found_there() -> None:
    x = weft.tensor(np.zeros((20, 3), np.float32))
    rows = [x[i] for i in range(20)]
    rows[0] += 1
    other = rows[5].look
    assert other is not None
    edits.share(rows[3], views.ViewOf(other.shared, other.steps))
    rows[5] += 7
    assert rows[3].tolist() == [7.0, 7.0, 7.0]


def test_views_that_are_gone_are_not_written() -> None:
    x = weft.zeros(100, 2) + 1
    for i in range(100):
        row = x[i]
        row += i
        del row
    gc.collect()
    assert x.look is not None
    assert len(x.look.shared.members) < 50
    assert x[99].tolist() == [100.0, 100.0]


@pytest.mark.parametrize("look", [_rows, _unbound, _windows])
def test_a_write_does_not_look_at_all_views(look: Callable[[Any], Sequence[Any]]) -> None:
    def views(n: int) -> Sequence[Any]:
        return look(weft.tensor(np.zeros((n, 2), np.float32)))

    def write(found: Sequence[Any]) -> None:
        for v in found:
            v.add_(1.0)

    write(views(50))
    assert best_ratio(views, write, 100, 8) < 2.5


def test_places_are_kept_from_write_to_write_where_nobody_looks_at_the_same_elements() -> None:
    """To look all of them up again at each write would take as long as there are views."""
    x = weft.zeros(40, 2).realize()
    rows = list(x.unbind(0))
    del x
    rows[0].add_(1)
    look = rows[0].look
    assert look is not None
    boxes = look.shared.boxes
    assert boxes is not None
    for row in rows:
        row.add_(1)
        assert look.shared.boxes is boxes


def test_views_that_are_gone_are_forgotten_by_the_next_write() -> None:
    x = weft.zeros(4, 2).realize()
    rows = [x[i] for i in range(4)]
    look = x.look
    assert look is not None and len(look.shared.members) == 5
    del rows
    x.add_(1)
    assert look.shared.are_only(x)
