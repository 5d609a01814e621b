"""Principal components of matrices."""

from __future__ import annotations

import numpy as np
import pytest

import weft

A = np.random.default_rng(0).normal(size=(7, 2)) @ np.random.default_rng(1).normal(size=(2, 5))


def test_as_many_components_as_asked_for() -> None:
    for q in (0, 1, 3, 5):
        U, S, V = weft.pca_lowrank(weft.tensor(A), q=q)
        assert (U.shape, S.shape, V.shape) == ((7, q), (q,), (5, q))
    assert weft.pca_lowrank(weft.tensor(A))[1].shape == (5,)
    for q in (-1, 6):
        with pytest.raises(weft.ArgumentError, match="q must be from 0 to 5"):
            weft.pca_lowrank(weft.tensor(A), q=q)


@pytest.mark.parametrize("center", [True, False])
def test_components(center: bool) -> None:
    U, S, V = weft.pca_lowrank(weft.tensor(A), q=2, center=center)
    np.testing.assert_allclose((U * S @ V.mT).numpy(), A - A.mean(0) if center else A, atol=1e-10)
