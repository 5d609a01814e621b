"""Types of arguments that are known at one look."""

from __future__ import annotations

import pytest

import weft
import weft.nn.functional as F


def test_a_list_that_fitted_says_nothing_of_the_next() -> None:
    x = weft.ones(1, 1, 4, 4)
    for _ in range(2):  # the second time the types are known
        assert F.avg_pool2d(x, [2, 2]).shape == (1, 1, 2, 2)
        with pytest.raises(TypeError, match="avg_pool2d: kernel_size must be"):
            F.avg_pool2d(x, ["a", "b"])  # type: ignore[list-item]
