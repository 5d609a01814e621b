"""Gradients of eigenvalues and eigenvectors beside finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft

A = np.random.default_rng(0).normal(size=(4, 4))
A = A + A.T
C = np.random.default_rng(1).normal(size=(2, 4, 4))


def loss(a: Any, m: Any) -> Any:
    """A function of eigenvalues, and of eigenvectors that does not hang on their signs."""
    values, vectors = m.linalg.eigh(a)
    c = C if m is np else weft.tensor(C)
    return (values * c[0, 0]).sum() + (vectors * vectors * c[0]).sum() + (vectors @ vectors.T * c[1]).sum()


def test_eigh() -> None:
    x = weft.tensor(A, requires_grad=True)
    loss(x, weft).backward()
    assert x.grad is not None
    found = x.grad.numpy()
    for _ in range(5):
        direction = np.random.default_rng(_).normal(size=(4, 4))
        direction = direction + direction.T
        step = 1e-6
        want = (loss(A + step * direction, np) - loss(A - step * direction, np)) / (2 * step)
        assert (found * direction).sum() == pytest.approx(want, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("shape", [(4, 3), (3, 4)])
def test_full_singular_vectors_have_the_gradients_of_the_first_ones(shape: tuple[int, int]) -> None:
    """Through as many vectors as there are singular values; the others have none."""
    data, k = np.random.default_rng(5).standard_normal(shape), min(shape)
    weights = weft.tensor(np.random.default_rng(6).standard_normal((k, k)))
    found: list[np.ndarray] = []
    for full in (True, False):
        x = weft.tensor(data, requires_grad=True)
        u, _, vh = weft.linalg.svd(x, full_matrices=full)
        ((u[:k, :k] ** 2 * weights).sum() + (vh[:k, :k] ** 2 * weights).sum()).backward()
        assert x.grad is not None
        found.append(x.grad.numpy())
    np.testing.assert_allclose(*found, rtol=1e-8, atol=1e-10)
