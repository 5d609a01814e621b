"""Distances beside scipy's formulas, and gradients where they are not smooth."""

from __future__ import annotations

import numpy as np
import pytest

import weft
import weft.nn.functional as F

A, B = np.random.default_rng(0).normal(size=(2, 4, 3))
A[0, 1] = B[0, 1]


def length(x: np.ndarray, p: float) -> np.ndarray:
    """The p-norm of rows; of p = 0, how many are not zero."""
    return np.linalg.norm(x, p, -1)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, float("inf")])
def test_cdist_and_pdist(p: float) -> None:
    want = length(A[:, None] - B[None], p) if p != 0 else (A[:, None] != B[None]).sum(-1)
    np.testing.assert_allclose(
        weft.cdist(weft.tensor(A), weft.tensor(B), p).numpy(), want, rtol=1e-9, atol=1e-12
    )
    i, j = np.triu_indices(4, 1)
    want = length(A[i] - A[j], p) if p != 0 else (A[i] != A[j]).sum(-1)
    np.testing.assert_allclose(F.pdist(weft.tensor(A), p).numpy(), want, rtol=1e-9)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0, float("inf")])
def test_pairwise_distance(p: float) -> None:
    found = F.pairwise_distance(weft.tensor(A), weft.tensor(B), p)
    np.testing.assert_allclose(found.numpy(), length(A - B + 1e-6, p), rtol=1e-9)


def test_the_count_of_differences_has_no_gradient() -> None:
    x = weft.tensor(A, requires_grad=True)
    weft.cdist(x, weft.tensor(B), 0.0).sum().backward()
    assert x.grad is not None and not x.grad.numpy().any()


def test_cosine_similarity_of_a_zero_vector() -> None:
    x = weft.zeros(1, 3, requires_grad=True)
    out = F.cosine_similarity(x, weft.ones(1, 3))
    out.sum().backward()
    assert out.item() == 0 and x.grad is not None and np.isfinite(x.grad.numpy()).all()
    want = (A * B).sum(-1) / (length(A, 2) * length(B, 2))
    np.testing.assert_allclose(F.cosine_similarity(weft.tensor(A), weft.tensor(B)).numpy(), want, rtol=1e-12)
