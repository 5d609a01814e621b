"""Cholesky factors, and codes of matrices that have none."""

from __future__ import annotations

import numpy as np
import pytest

import weft

GOOD = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])


def spoilt(minor: int) -> np.ndarray:
    """The matrix, of which this minor is the first that is not positive definite."""
    out = GOOD.copy()
    out[minor - 1, minor - 1] = -1.0
    return out


def test_the_code_is_the_order_of_the_first_bad_minor() -> None:
    batch = np.stack([[GOOD, spoilt(1)], [spoilt(2), spoilt(3)]])
    L, info = weft.linalg.cholesky_ex(weft.tensor(batch))
    assert info.dtype is weft.int32 and info.tolist() == [[0, 1], [2, 3]]
    assert np.isnan(L.numpy()).all()
    with pytest.raises(weft.linalg.LinAlgError, match="not positive definite"):
        weft.linalg.cholesky_ex(weft.tensor(batch), check_errors=True)


@pytest.mark.parametrize("upper", [False, True])
def test_factors(upper: bool) -> None:
    L, info = weft.linalg.cholesky_ex(weft.tensor(np.stack([GOOD, 2 * GOOD])), upper=upper)
    want = np.stack([np.linalg.cholesky(GOOD), np.linalg.cholesky(2 * GOOD)])
    np.testing.assert_allclose(L.numpy(), want.swapaxes(-1, -2) if upper else want)
    assert info.tolist() == [0, 0]
