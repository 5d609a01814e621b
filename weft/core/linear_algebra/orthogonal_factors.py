"""The QR factorization and products of reflections."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.autograd.value import Value, zero_gradient
from weft.core.args import broadcast as bc
from weft.core.args.handle import wrap
from weft.core.args.requirements import needs, one_dtype, same_lead
from weft.core.composed.autocast import widens
from weft.core.layout.creation import eye
from weft.core.layout.movement import expand, narrow, tril, unsqueeze
from weft.core.linear_algebra.cholesky_factors import diagonal_matrix
from weft.core.linear_algebra.host import (
    derived,
    floats,
    host_array,
    known_size,
    known_sizes,
    lapack,
    leaf,
    matrices,
    padded,
)
from weft.core.linear_algebra.solving import solve_triangular
from weft.errors import ArgumentError, ShapeError

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


class QR(NamedTuple):
    """Orthonormal columns Q and an upper triangle R."""

    Q: Tensor
    R: Tensor


@widens
def qr(A: Tensor, mode: str = "reduced") -> QR:
    """A = Q R. mode "complete" gives a square Q, "r" only R."""
    v = matrices("linalg.qr", A)
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(f"linalg.qr: mode must be 'reduced', 'complete' or 'r', got {mode!r}")
    array = host_array("linalg.qr", v)
    if mode == "r":
        r = lapack("linalg.qr", np.linalg.qr, array, "r")
        return QR(wrap(bc.scalar(0, v.dtype, (0,))), wrap(leaf(r, v)))
    q, r = lapack("linalg.qr", np.linalg.qr, array, mode)
    m, n = array.shape[-2:]
    if mode == "complete" and m > n:

        def refuse(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
            raise ArgumentError(
                "linalg.qr: mode='complete' has no derivative for more rows than columns; use mode='reduced'"
            )

        return QR(derived(q, (v,), refuse), derived(r, (v,), refuse))
    q_leaf, r_leaf = leaf(q, v), leaf(r, v)

    def back(gq: Tensor | None, gr: Tensor | None, x: Tensor) -> Tensor:
        Q, R = (wrap(Value(q_leaf.node)), wrap(Value(r_leaf.node))) if not x.value.needs_grad else qr(x)
        return _qr_gradient(gq, gr, Q, R, x)

    return QR(
        derived(q, (v,), lambda g, y, x: (back(g, None, x),)),
        derived(r, (v,), lambda g, y, x: (back(None, g, x),)),
    )


@widens
def torch_qr(input: Tensor, some: bool = True) -> QR:
    """torch.qr: A = Q R; a square Q with some=False."""
    return qr(input, "reduced" if some else "complete")


def _qr_gradient(gq: Tensor | None, gr: Tensor | None, Q: Tensor, R: Tensor, x: Tensor) -> Tensor:
    m, n = known_sizes(x.value)
    if m >= n:
        return _qr_tall(gq, gr, Q, R)
    # wide: A = [X | Y] with square X = Q U, and Y = Q V: gradients of U and V
    left, right = narrow(R, -1, 0, m), narrow(R, -1, m, n - m)
    g_left = None if gr is None else narrow(gr, -1, 0, m)
    g_right = None if gr is None else narrow(gr, -1, m, n - m)
    y = narrow(x, -1, m, n - m)
    inner = gq
    if g_right is not None:
        extra = y @ g_right.mT
        inner = extra if inner is None else inner + extra
    gx = _qr_tall(inner, g_left, Q, left)
    gy = Q @ g_right if g_right is not None else right * 0
    from weft.core.layout.movement import cat

    return cat([gx, gy], -1)


def _qr_tall(gq: Tensor | None, gr: Tensor | None, Q: Tensor, R: Tensor) -> Tensor:
    inner: Tensor | None = None
    if gr is not None:
        inner = R @ gr.mT
    if gq is not None:
        part = gq.mT @ Q
        inner = -part if inner is None else inner - part
    assert inner is not None
    low = tril(inner, -1)
    symmetric = low + low.mT + diagonal_matrix(inner)
    right = Q @ symmetric
    right = right if gq is None else right + gq
    return solve_triangular(R.mT, right, upper=False, left=False)


@widens
@needs(one_dtype("A", "tau"), same_lead("tau", 1, "A", 2))
def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first columns of the product of reflections I - tau v v^T, v the columns of A below a unit diagonal."""
    v, t = matrices("linalg.householder_product", A), floats("linalg.householder_product", tau)
    m, n = known_sizes(v)
    k = known_size(t)
    if m < n or n < k:
        raise ShapeError(
            f"linalg.householder_product: shapes {tuple(v.shape)} and {tuple(t.shape)} do not fit"
        )
    unit = tril(A, -1) + eye(m, n, dtype=v.dtype, device=v.node.device)
    out = expand(eye(m, n, dtype=v.dtype, device=v.node.device), v.shape)
    out = out if k else wrap(zero_gradient(out.value, v, t))
    for i in reversed(range(k)):
        column = narrow(unit, -1, i, 1)
        factor = unsqueeze(narrow(tau, -1, i, 1), -1)
        out = out - factor * (column @ (column.mT @ out))
    return out


@widens
@needs(one_dtype("input", "tau", "other"), same_lead("tau", 1, "input", 2), same_lead("other", 2, "input", 2))
def ormqr(input: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """The product of `other` with the orthogonal matrix that reflections (geqrf) stand for."""
    v = matrices("ormqr", input)
    m, n = known_sizes(v)
    k = known_size(tau.value)
    wide = padded(input, -1, m - n) if m > n else narrow(input, -1, 0, m)
    q = householder_product(wide, tau if k <= m else narrow(tau, -1, 0, m))
    q = q.mT if transpose else q
    return q @ other if left else other @ q


class Reflections(NamedTuple):
    """A QR factorization as LAPACK keeps it."""

    a: Tensor
    tau: Tensor


@widens
def geqrf(input: Tensor) -> Reflections:
    """The QR factorization as reflections: R above, vectors below the diagonal, and their factors."""
    v = matrices("geqrf", input)
    array = host_array("geqrf", v)
    lead, (m, n) = array.shape[:-2], array.shape[-2:]
    if not array.size:
        return Reflections(wrap(leaf(array, v)), wrap(leaf(np.zeros((*lead, min(m, n)), array.dtype), v)))
    h, tau = np.linalg.qr(array, mode="raw")
    return Reflections(wrap(leaf(h.swapaxes(-1, -2), v)), wrap(leaf(tau, v)))
