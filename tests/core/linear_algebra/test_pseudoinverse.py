"""Which singular values count as zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft

U, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))
V, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))
S = np.array([2.0, 1e-3, 1e-18])
A = U[:, :3] * S @ V.T


def with_rank(rank: int) -> np.ndarray:
    """The pseudoinverse that takes so many singular values for other than zero."""
    return (V[:, :rank] / S[:rank]) @ U[:, :rank].T


CUTS: dict[str, tuple[dict[str, Any], int]] = {
    "by the dtype": ({}, 2),
    "a bound": ({"atol": 1e-2}, 1),
    "a bound of zero": ({"atol": 0.0}, 2),
    "a share": ({"rtol": 1e-2}, 1),
    "both": ({"atol": 1e-6, "rtol": 1e-2}, 1),
    "a tensor for bound": ({"atol": weft.tensor(1e-2, dtype=weft.float64)}, 1),
    "a tensor of zero": ({"atol": weft.tensor(0.0, dtype=weft.float64)}, 2),
    "a tensor for share": ({"rtol": weft.tensor(1e-2, dtype=weft.float64)}, 1),
}


@pytest.mark.parametrize("kind", CUTS)
def test_small_singular_values(kind: str) -> None:
    options, rank = CUTS[kind]
    found = weft.linalg.pinv(weft.tensor(A), **options).numpy()
    np.testing.assert_allclose(found, with_rank(rank), rtol=1e-9, atol=1e-9)
    assert weft.linalg.matrix_rank(weft.tensor(A), **options).item() == rank


@pytest.mark.parametrize("shape", [(5,), (5, 2)])
def test_least_squares_of_vectors_and_columns(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(5, 3)), rng.normal(size=shape)
    got = weft.linalg.lstsq(weft.tensor(a), weft.tensor(b))
    want = np.linalg.lstsq(a, b, rcond=None)[0]
    assert got.solution.shape == want.shape
    np.testing.assert_allclose(got.solution.numpy(), want)


@pytest.mark.parametrize("rows", [4, 6])
def test_least_squares_need_as_many_rows(rows: int) -> None:
    with pytest.raises(weft.ShapeError, match=r"lstsq: .*do not fit"):
        weft.linalg.lstsq(weft.ones(5, 3), weft.ones(rows, 2))
