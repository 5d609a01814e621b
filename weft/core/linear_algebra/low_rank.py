"""Approximations of low rank by random projections.

Source: Halko, Martinsson & Tropp, "Finding structure with randomness", SIAM Review 53 (2011), algorithms 4.4 and 5.1.
"""
# Tests: tests/core/functions/test_windows.py

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.args.handle import value_of
from weft.core.composed.autocast import widens
from weft.core.functions.random import randn
from weft.core.functions.reductions import mean
from weft.core.linear_algebra.orthogonal_factors import qr
from weft.core.linear_algebra.spectra import svd
from weft.errors import ArgumentError, ShapeError

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


@widens
def svd_lowrank(
    A: Tensor, q: int | None = 6, niter: int | None = 2, M: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """U, S, V of rank q with A (less M) nearly U diag(S) V^T; `niter` power iterations sharpen it. Random."""
    v = value_of("svd_lowrank", A)
    if len(v.shape) < 2:
        raise ShapeError(f"svd_lowrank: needs matrices, got shape {tuple(v.shape)}")
    m, n = v.shape[-2:]
    rank, rounds = 6 if q is None else q, 2 if niter is None else niter
    if not isinstance(m, int) or not isinstance(n, int) or not 0 <= rank <= min(m, n):
        raise ArgumentError(f"svd_lowrank: q must be from 0 to {m} and {n}, got {rank}")
    if rounds < 0:
        raise ArgumentError(f"svd_lowrank: niter must not be negative, got {rounds}")
    x = A if M is None else A - M
    turned = m < n
    x = x.mT if turned else x
    basis = qr(x @ randn(*v.shape[:-2], min(m, n), rank, dtype=v.dtype, device=v.node.device)).Q
    for _ in range(rounds):
        basis = qr(x @ qr(x.mT @ basis).Q).Q
    found = svd(basis.mT @ x, full_matrices=False)
    left, right = basis @ found.U, found.Vh.mT
    return (right, found.S, left) if turned else (left, found.S, right)


@widens
def pca_lowrank(
    A: Tensor, q: int | None = None, center: bool = True, niter: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    """U, S, V of rank q (6 at most by default) of A less the mean of its rows: V's columns are principal directions."""
    v = value_of("pca_lowrank", A)
    if len(v.shape) < 2:
        raise ShapeError(f"pca_lowrank: needs matrices, got shape {tuple(v.shape)}")
    m, n = v.shape[-2:]
    if not isinstance(m, int) or not isinstance(n, int):
        raise ShapeError("pca_lowrank: the sizes must be known")
    rank = min(6, m, n) if q is None else q
    if not 0 <= rank <= min(m, n):
        raise ArgumentError(f"pca_lowrank: q must be from 0 to {min(m, n)}, got {rank}")
    return svd_lowrank(A - mean(A, -2, keepdim=True) if center else A, rank, niter)


__all__ = ["pca_lowrank", "svd_lowrank"]
