"""Shapes as torch's: tuples that stay shapes when they are joined."""

from __future__ import annotations

import pytest

import weft


def test_shapes_are_joined_with_tuples() -> None:
    shape = weft.ones(2, 3).shape
    assert shape + (4,) == (2, 3, 4) and (4, *shape) == (4,) + shape  # noqa: RUF005
    assert type(shape + (4,)) is type((4,) + shape) is weft.Size  # noqa: RUF005
    assert (shape + (4,)).numel() == ((4,) + shape).numel() == 24  # noqa: RUF005


def test_shapes_are_not_joined_with_lists() -> None:
    shape = weft.ones(2, 3).shape
    for act in (lambda: shape + [4], lambda: [4] + shape):  # type: ignore[operator]  # noqa: RUF005
        with pytest.raises(TypeError):
            act()


def test_a_slice_of_a_shape_is_a_shape_and_an_item_a_number() -> None:
    shape = weft.ones(2, 3).shape
    assert type(shape[:1]) is weft.Size and shape[:1] == (2,) and shape[:1].numel() == 2
    assert type(shape[1]) is int and shape[1] == 3
