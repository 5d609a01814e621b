"""Eigenvalues of symmetric matrices and singular values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.core.args import broadcast as bc
from weft.core.args.handle import wrap
from weft.core.composed.autocast import widens
from weft.core.layout.creation import eye
from weft.core.layout.movement import narrow, unsqueeze
from weft.core.linear_algebra.host import (
    Array,
    derived,
    host_array,
    known_size,
    known_sizes,
    lapack,
    leaf,
    matrices,
    square_matrices,
)
from weft.core.pointwise.elementwise import ne, reciprocal, where
from weft.errors import ArgumentError

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


class Eigen(NamedTuple):
    """Eigenvalues, ascending, and the eigenvectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


@widens
def eigh(A: Tensor, UPLO: str = "L") -> Eigen:
    """Eigenvalues and eigenvectors of symmetric matrices, of which only the triangle UPLO is looked at."""
    v = square_matrices("linalg.eigh", A)
    if UPLO.upper() not in ("L", "U"):
        raise ArgumentError(f"linalg.eigh: UPLO must be 'L' or 'U', got {UPLO!r}")
    array = host_array("linalg.eigh", v)
    w, q = lapack("linalg.eigh", np.linalg.eigh, array, UPLO.upper())

    def values_rule(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
        Q = _vectors(x, q, UPLO)[1]
        return ((Q * unsqueeze(g, -2)) @ Q.mT,)

    def vectors_rule(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
        values, Q = _vectors(x, q, UPLO, w)
        gaps = unsqueeze(values, -2) - unsqueeze(values, -1)
        n = known_size(Q.value)
        one = eye(n, dtype=Q.value.dtype, device=Q.value.node.device)
        inverse = where(ne(one, 0), 0.0, reciprocal(where(ne(one, 0), 1.0, gaps)))
        turn = Q.mT @ g
        inner = (turn - turn.mT) * inverse * 0.5  # symmetric, whether the input is taken for symmetric or not
        return (Q @ inner @ Q.mT,)

    return Eigen(derived(w, (v,), values_rule), derived(q, (v,), vectors_rule))


def _vectors(x: Tensor, q: Array, uplo: str, w: Array | None = None) -> tuple[Tensor, Tensor]:
    """The factors again: on the tape where the gradient is to be differentiated."""
    if x.value.needs_grad:
        from weft.autograd.context import grad_enabled

        if grad_enabled():
            found = eigh(x, uplo)
            return found.eigenvalues, found.eigenvectors
    return wrap(leaf(w if w is not None else q, x.value)), wrap(leaf(q, x.value))


@widens
def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of symmetric matrices, ascending."""
    return eigh(A, UPLO).eigenvalues


class SVD(NamedTuple):
    """Orthonormal columns U, singular values S descending, orthonormal rows Vh."""

    U: Tensor
    S: Tensor
    Vh: Tensor


@widens
def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> SVD:
    """A = U diag(S) Vh. Without full_matrices, only as many vectors as singular values."""
    v = matrices("linalg.svd", A)
    array = host_array("linalg.svd", v)
    u, s, vh = lapack("linalg.svd", np.linalg.svd, array, full_matrices)
    k = s.shape[-1]

    def part(which: str) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor]]:
        def rule(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
            from weft.autograd.context import grad_enabled

            factors = SVD(*(wrap(leaf(a, x.value)) for a in (u[..., :, :k], s, vh[..., :k, :])))
            U, S, Vh = svd(x, full_matrices=False) if grad_enabled() and x.value.needs_grad else factors
            if which == "S":
                return ((U * unsqueeze(g, -2)) @ Vh,)
            if which == "U":
                return (_svd_gradient(narrow(g, -1, 0, k), None, U, S, Vh),)
            return (_svd_gradient(None, narrow(g, -2, 0, k), U, S, Vh),)

        return rule

    return SVD(derived(u, (v,), part("U")), derived(s, (v,), part("S")), derived(vh, (v,), part("Vh")))


def _svd_gradient(gu: Tensor | None, gvh: Tensor | None, U: Tensor, S: Tensor, Vh: Tensor) -> Tensor:
    k = known_size(S.value)
    m, n = known_sizes(U.value)[0], known_sizes(Vh.value)[1]
    one = eye(k, dtype=S.value.dtype, device=S.value.node.device)
    same = ne(one, 0)
    row, column = unsqueeze(S, -1), unsqueeze(S, -2)
    gap = where(same, 0.0, reciprocal(where(same, 1.0, (column - row) * (column + row))))
    if gu is not None:
        a = U.mT @ gu
        inner = U @ (((a - a.mT) * gap) * column)
        if m > k:
            rest = gu / column
            inner = inner + rest - U @ (U.mT @ rest)
        return inner @ Vh
    assert gvh is not None
    b = gvh @ Vh.mT
    inner = (row * ((b.mT - b) * gap)) @ Vh
    if n > k:
        rest = gvh / row
        inner = inner + rest - (rest @ Vh.mT) @ Vh
    return U @ inner


@widens
def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """The singular values, descending."""
    return svd(A, full_matrices=False).S


class OlderSVD(NamedTuple):
    """As SVD, with V in place of its transpose."""

    U: Tensor
    S: Tensor
    V: Tensor


@widens
def torch_svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> OlderSVD:
    """torch.svd, the older form: V instead of its transpose."""
    u, s, vh = svd(input, full_matrices=not some)
    if not compute_uv:
        m, n = input.value.shape[-2:]
        lead = input.value.shape[:-2]
        zero = bc.scalar(0, input.value.dtype, (*lead, m, m)), bc.scalar(0, input.value.dtype, (*lead, n, n))
        return OlderSVD(wrap(zero[0]), s, wrap(zero[1]))
    return OlderSVD(u, s, vh.mT)
