"""Linear equations over several dimensions."""

from __future__ import annotations

import numpy as np
import pytest

import weft

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dims", [None, (0, 2)])
def test_tensorsolve(dims: tuple[int, ...] | None) -> None:
    a = RNG.normal(size=(2, 3, 3, 2) if dims is None else (3, 2, 2, 3))
    b = RNG.normal(size=(2, 3))
    want = np.linalg.tensorsolve(a, b, dims)
    np.testing.assert_allclose(weft.linalg.tensorsolve(weft.tensor(a), weft.tensor(b), dims).numpy(), want)


def test_tensorsolve_needs_as_many_equations_as_unknowns() -> None:
    with pytest.raises(weft.ShapeError, match="do not fit"):
        weft.linalg.tensorsolve(weft.ones(2, 3, 5), weft.ones(2, 3))
