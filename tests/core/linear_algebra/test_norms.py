"""Norms of matrices beside numpy's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import weft

X = np.random.default_rng(0).normal(size=(3, 4, 5))
ORDERS: tuple[Any, ...] = ("fro", "nuc", 2, -2, 1, -1, math.inf, -math.inf)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [(-2, -1), (0, 2), (2, 0)])
@pytest.mark.parametrize("ord", ORDERS)
def test_matrix_norms(ord: Any, dim: tuple[int, int], keepdim: bool) -> None:
    found = weft.linalg.matrix_norm(weft.tensor(X), ord, dim, keepdim)
    np.testing.assert_allclose(found.numpy(), np.linalg.norm(X, ord, dim, keepdims=keepdim), rtol=1e-12)


@pytest.mark.parametrize("dtype", [weft.float16, weft.bfloat16, weft.float32])
@pytest.mark.parametrize("ord", ["nuc", 2, -2])
def test_singular_values_of_each_float(ord: Any, dtype: Any) -> None:
    x = weft.tensor(X[0], dtype=dtype)
    found = weft.linalg.matrix_norm(x, ord)
    assert found.dtype is dtype
    want = np.linalg.norm(x.double().numpy(), ord)
    np.testing.assert_allclose(found.double().numpy(), want, rtol={16: 1e-2, 32: 1e-5}[dtype.bits])


def test_dimensions_must_differ() -> None:
    with pytest.raises(weft.ArgumentError, match="must differ"):
        weft.linalg.matrix_norm(weft.tensor(X), "fro", (1, -2))
