"""Numbers of a repeated computation that are read from memory."""

from __future__ import annotations

import math

import numpy as np
import pytest

import weft
from weft.core.compile.lifting import KEPT, PLAIN, Lifted


def test_a_number_is_one_leaf() -> None:
    numbers = Lifted()
    node = numbers.node(0.3, weft.float32, "cpu")
    assert node is not None and node is numbers.node(0.3, weft.float32, "cpu")
    assert node.shape == () and node.storage is not None
    other = numbers.node(0.3, weft.float64, "cpu")
    assert other is not None and other is not node and other.dtype is weft.float64


@pytest.mark.parametrize("x", [*sorted(PLAIN), math.nan, True])
def test_numbers_that_stay_constants(x: float) -> None:
    assert Lifted().node(x, weft.float32, "cpu") is None


def test_whole_numbers_of_integers_stay_constants() -> None:
    assert Lifted().node(3, weft.int64, "cpu") is None


def test_numbers_in_memory_are_bounded() -> None:
    numbers = Lifted()
    for k in range(KEPT):
        numbers.node(k + 10.0, weft.float32, "cpu")
    assert len(numbers.kept) == KEPT == 1024
    numbers.node(0.3, weft.float32, "cpu")
    assert len(numbers.kept) == 1


def test_numbers_are_rounded_to_the_dtype() -> None:
    node = Lifted().node(0.1, weft.float16, "cpu")
    assert node is not None
    assert weft.core.execute.run.to_numpy(node) == np.float16(0.1)
