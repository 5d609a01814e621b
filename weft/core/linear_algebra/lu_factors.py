"""The LU factorization with row exchanges and what is solved with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.autograd.context import grad_enabled
from weft.core.args import broadcast as bc
from weft.core.args.handle import value_of, wrap
from weft.core.args.requirements import integers_of, needs, one_dtype, same_lead
from weft.core.composed.autocast import widens
from weft.core.execute import run
from weft.core.layout.creation import eye, tensor
from weft.core.layout.movement import cat, narrow, tril, triu
from weft.core.linear_algebra.host import (
    Array,
    LinAlgError,
    codes_of,
    derived,
    eliminated,
    host_array,
    known_sizes,
    leaf,
    matrices,
    numpy_dtype,
    padded,
    pivot_codes,
)
from weft.core.linear_algebra.solving import solve_triangular
from weft.errors import ArgumentError
from weft.ir.dtypes import int32

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


class LU(NamedTuple):
    """A = P L U: a permutation, a lower triangle with ones on its diagonal, an upper triangle."""

    P: Tensor
    L: Tensor
    U: Tensor


class Compact(NamedTuple):
    """Both triangles of an LU factorization in one matrix, and its row exchanges, counted from 1."""

    LU: Tensor
    pivots: Tensor


class CompactChecked(NamedTuple):
    """As Compact, with an int32 code per matrix."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


@widens
def lu(A: Tensor, *, pivot: bool = True) -> LU:
    """A = P L U with row exchanges (`pivot`)."""
    v = matrices("linalg.lu", A)
    if not pivot:
        raise ArgumentError("linalg.lu: pivot=False is not offered on a CPU, as in torch")
    order, packed, _ = eliminated(host_array("linalg.lu", v))
    m, n = packed.shape[-2:]
    k = min(m, n)
    low = np.tril(packed[..., :, :k], -1) + np.eye(m, k, dtype=packed.dtype)
    high = np.triu(packed[..., :k, :])
    shuffle = np.eye(m, dtype=packed.dtype)[order].swapaxes(-1, -2)
    P = wrap(leaf(shuffle, v))

    def rules(which: str) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor]]:
        def rule(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
            factors = LU(P, wrap(leaf(low, x.value)), wrap(leaf(high, x.value)))
            _, L, U = lu(x) if grad_enabled() and x.value.needs_grad else factors
            return (P @ _lu_gradient(g if which == "L" else None, g if which == "U" else None, L, U, m, n),)

        return rule

    return LU(P, derived(low, (v,), rules("L")), derived(high, (v,), rules("U")))


def _lu_gradient(gl: Tensor | None, gu: Tensor | None, L: Tensor, U: Tensor, m: int, n: int) -> Tensor:
    """The gradient of P^T A = L U, split at the square part of size min(m, n)."""
    k = min(m, n)
    L1, U1 = narrow(L, -2, 0, k), narrow(U, -1, 0, k)
    gl1 = None if gl is None else narrow(gl, -2, 0, k)
    gu1 = None if gu is None else narrow(gu, -1, 0, k)
    inner: Tensor = L1 * 0
    if gl1 is not None:
        inner = inner + tril(L1.mT @ gl1, -1)
    if gu1 is not None:
        inner = inner + triu(gu1 @ U1.mT)
    if m > n:
        g2 = None if gl is None else narrow(gl, -2, k, m - k)
        L2 = narrow(L, -2, k, m - k)
        if g2 is not None:
            inner = inner - triu(L2.mT @ g2)
            bottom = solve_triangular(U1.mT, g2, upper=False, left=False)
        else:
            bottom = L2 * 0
        top = _between(inner, L1, U1)
        return cat([top, bottom], -2)
    if n > m:
        g2 = None if gu is None else narrow(gu, -1, k, n - k)
        U2 = narrow(U, -1, k, n - k)
        if g2 is not None:
            inner = inner - tril(g2 @ U2.mT, -1)
            right = solve_triangular(L1.mT, g2, upper=True, unitriangular=True)
        else:
            right = U2 * 0
        return cat([_between(inner, L1, U1), right], -1)
    return _between(inner, L1, U1)


def _between(inner: Tensor, L1: Tensor, U1: Tensor) -> Tensor:
    """L^-T inner U^-T."""
    left = solve_triangular(L1.mT, inner, upper=True, unitriangular=True)
    return solve_triangular(U1.mT, left, upper=False, left=False)


@widens
def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> CompactChecked:
    """As lu_factor, with an int32 code per matrix: 1 + the place of the first zero pivot."""
    v = matrices("linalg.lu_factor_ex", A)
    found = lu(A, pivot=pivot)
    _, packed, pivots = eliminated(run.to_numpy(v.node))
    m, n = packed.shape[-2:]
    k = min(m, n)
    low, high = tril(found.L, -1), found.U
    if m > n:
        high = padded(high, -2, m - k)
    if n > m:
        low = padded(low, -1, n - k)
    info = pivot_codes(packed)
    if check_errors and info.any():
        raise LinAlgError("linalg.lu_factor_ex: a pivot is exactly zero")
    return CompactChecked(low + high, tensor(pivots, dtype=int32, device=v.node.device), codes_of(info, v))


@widens
def lu_factor(A: Tensor, *, pivot: bool = True) -> Compact:
    """Both triangles of the LU factorization in one matrix, and the row exchanges."""
    found = lu_factor_ex(A, pivot=pivot)
    return Compact(found.LU, found.pivots)


def _row_order(pivots: Array, m: int) -> Array:
    """The order of rows that exchanges lead to."""
    flat = (
        pivots.reshape(-1, pivots.shape[-1])
        if pivots.size
        else np.zeros((math.prod(pivots.shape[:-1]), 0), np.int64)
    )
    order = np.tile(np.arange(m), (len(flat), 1))
    for b, line in enumerate(flat):
        for j, p in enumerate(line):
            order[b, [j, p - 1]] = order[b, [p - 1, j]]
    return order.reshape(*pivots.shape[:-1], m)


@needs(integers_of("LU_pivots", int32))
def lu_unpack(LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> LU:
    """P, L and U from the compact form."""
    v = matrices("lu_unpack", LU_data)
    m, n = known_sizes(v)
    k = min(m, n)
    none = wrap(bc.scalar(0, v.dtype, (0,)))
    low, high, shuffle = none, none, none
    if unpack_data:
        low = tril(narrow(LU_data, -1, 0, k), -1) + eye(m, k, dtype=v.dtype, device=v.node.device)
        high = triu(narrow(LU_data, -2, 0, k))
    if unpack_pivots:
        order = _row_order(host_array("lu_unpack", value_of("lu_unpack", LU_pivots)), m)
        shuffle = wrap(leaf(np.eye(m, dtype=numpy_dtype(v))[order].swapaxes(-1, -2), v))
    return LU(shuffle, low, high)


@widens
@needs(one_dtype("LU", "B"), integers_of("pivots", int32), same_lead("pivots", 0, "LU", 1))
def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """The X with A X = B (X A = B, A^T X = B) from the compact LU factorization of A."""
    P, L, U = lu_unpack(LU, pivots)
    if not left:
        return lu_solve(LU, pivots, B.mT, adjoint=not adjoint).mT
    if adjoint:
        first = solve_triangular(U.mT, B, upper=False)
        return P @ solve_triangular(L.mT, first, upper=True, unitriangular=True)
    first = solve_triangular(L, P.mT @ B, upper=False, unitriangular=True)
    return solve_triangular(U, first, upper=True)


@widens
def torch_lu_solve(b: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """torch.lu_solve, the older form: b comes first."""
    return lu_solve(LU_data, LU_pivots, b)


@widens
def torch_lu(A: Tensor, pivot: bool = True, get_infos: bool = False) -> Compact | CompactChecked:
    """torch.lu, the older form of lu_factor."""
    found = lu_factor_ex(A, pivot=pivot)
    return found if get_infos else Compact(found.LU, found.pivots)
