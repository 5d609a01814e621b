"""Gradients of determinants, of singular matrices, too."""

from __future__ import annotations

import numpy as np
import pytest

import weft

RNG = np.random.default_rng(0)
WHOLE = RNG.normal(size=(4, 4))
LOW = RNG.normal(size=(4, 3)) @ RNG.normal(size=(3, 4))
LOWER = RNG.normal(size=(4, 2)) @ RNG.normal(size=(2, 4))


def cofactors(a: np.ndarray) -> np.ndarray:
    """Signed minors, each from the matrix without a row and a column."""
    n = len(a)
    minors = [[np.linalg.det(np.delete(np.delete(a, i, 0), j, 1)) for j in range(n)] for i in range(n)]
    signs = (-1.0) ** np.add.outer(np.arange(n), np.arange(n))
    return signs * np.array(minors)


@pytest.mark.parametrize(
    "a", [WHOLE, LOW, LOWER, np.stack([WHOLE, LOW]), np.array([[2.0]]), np.array([[0.0]])]
)
def test_the_gradient_of_a_determinant(a: np.ndarray) -> None:
    x = weft.tensor(a, requires_grad=True)
    weft.linalg.det(x).sum().backward()
    assert x.grad is not None
    want = (
        np.stack([cofactors(m) for m in a])
        if a.ndim == 3
        else cofactors(a)
        if len(a) > 1
        else np.ones((1, 1))
    )
    np.testing.assert_allclose(x.grad.numpy(), want, rtol=1e-9, atol=1e-9)
