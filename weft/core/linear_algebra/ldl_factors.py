"""Symmetric matrices as L D L^T, D with blocks of 1 x 1 and 2 x 2: what Cholesky is to those that are not positive."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.core.args.handle import describe, value_of, wrap
from weft.core.composed.autocast import widens
from weft.core.execute import run
from weft.core.layout.creation import tensor
from weft.core.linear_algebra.host import (
    Array,
    LinAlgError,
    codes_of,
    host_array,
    known_sizes,
    leaf,
    matrices,
    square_matrices,
)
from weft.errors import DTypeError, ShapeError
from weft.ir.dtypes import int32

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

_GROWTH = (1 + math.sqrt(17)) / 8
"""The least ratio of a pivot to its column: balances the growth of 1 x 1 and 2 x 2 steps."""


class LDL(NamedTuple):
    """L below the diagonal and the blocks of D on and beside it, in one matrix; the exchanges, counted from 1."""

    LD: Tensor
    pivots: Tensor


class LDLChecked(NamedTuple):
    """As LDL, with an int32 code per matrix: 0, or the first zero pivot, counted from 1."""

    LD: Tensor
    pivots: Tensor
    info: Tensor


@widens
def ldl_factor_ex(A: Tensor, *, hermitian: bool = False, check_errors: bool = False) -> LDLChecked:
    """P L D L^T P^T = A for symmetric matrices, of which the lower triangle is read; without a derivative, as in torch.

    A pivot p > 0 exchanged rows k and p before step k; two equal ones -p, -p mark a block of 2 x 2, before which the
    second row was exchanged with p. Source: Bunch & Kaufman 1977, as LAPACK's sytrf states its results.
    """
    v = square_matrices("linalg.ldl_factor_ex", A)
    given = host_array("linalg.ldl_factor_ex", v)
    n = known_sizes(v)[-1]
    lead = given.shape[:-2]
    packed: Array = np.array(given).reshape(math.prod(lead), n, n)
    pivots: Array = np.zeros(packed.shape[:2], np.int32)
    codes: Array = np.zeros(packed.shape[:1], np.int32)
    with np.errstate(all="ignore"):
        for i, a in enumerate(packed):
            codes[i] = _factorize(a, pivots[i])
    if check_errors and codes.any():
        raise LinAlgError(f"linalg.ldl_factor_ex: the block of D at {codes[codes != 0][0]} is zero")
    return LDLChecked(
        wrap(leaf(np.tril(packed).reshape(given.shape), v)),
        tensor(pivots.reshape(*lead, n), dtype=int32, device=v.node.device),
        codes_of(codes.reshape(lead), v),
    )


@widens
def ldl_factor(A: Tensor, *, hermitian: bool = False) -> LDL:
    """See ldl_factor_ex."""
    found = ldl_factor_ex(A, hermitian=hermitian)
    return LDL(found.LD, found.pivots)


@widens
def ldl_solve(LD: Tensor, pivots: Tensor, B: Tensor, *, hermitian: bool = False) -> Tensor:
    """The X with A X = B, from what ldl_factor gives for A; batches broadcast."""
    v, b = square_matrices("linalg.ldl_solve", LD), matrices("linalg.ldl_solve", B)
    p = value_of("linalg.ldl_solve", pivots)
    if not p.dtype.is_int:
        raise DTypeError(f"linalg.ldl_solve: pivots must be integers, got {p.dtype.name}")
    if p.shape != v.shape[:-1] or b.shape[-2] != v.shape[-1]:
        raise ShapeError(
            f"linalg.ldl_solve: {describe(LD)}, pivots of shape {tuple(p.shape)} and B of shape "
            f"{tuple(b.shape)} do not fit"
        )
    if b.dtype is not v.dtype:
        raise DTypeError(
            f"linalg.ldl_solve: LD is {v.dtype.name}, B {b.dtype.name}; convert one with .to(...)"
        )
    packed, right = host_array("linalg.ldl_solve", v), host_array("linalg.ldl_solve", b)
    try:
        lead = np.broadcast_shapes(packed.shape[:-2], right.shape[:-2])
    except ValueError:
        raise ShapeError(
            f"linalg.ldl_solve: batches of shapes {packed.shape[:-2]} and {right.shape[:-2]} do not broadcast"
        ) from None
    n, k = right.shape[-2:]
    count = math.prod(lead)
    whole = np.broadcast_to(packed, (*lead, n, n)).reshape(count, n, n)
    order = np.broadcast_to(run.to_numpy(p.node), (*lead, n)).reshape(count, n)
    out = np.array(np.broadcast_to(right, (*lead, n, k))).reshape(count, n, k)
    with np.errstate(all="ignore"):
        for a, rows, x in zip(whole, order, out, strict=True):
            _solve(a, rows, x)
    return wrap(leaf(out.reshape(*lead, n, k), v))


def _factorize(a: Array, pivots: Array) -> int:
    """Overwrites the lower triangle of `a`; gives the number of the first zero block, or 0."""
    n, k, code = len(a), 0, 0
    while k < n:
        size, row = _pivot(a, k)
        last = k + size - 1
        if row != last:
            _exchange(a, k, last, row)
        rest = slice(k + size, n)
        if size == 2:
            pivots[k] = pivots[k + 1] = -(row + 1)
            columns = a[rest, k : k + 2].copy()
            off = a[k + 1, k]
            d11, d22 = a[k + 1, k + 1] / off, a[k, k] / off
            scale = 1 / (d11 * d22 - 1) / off
            first = scale * (d11 * columns[:, 0] - columns[:, 1])
            a[rest, k + 1] = scale * (d22 * columns[:, 1] - columns[:, 0])
            a[rest, k] = first
            a[rest, rest] -= np.tril(a[rest, k : k + 2] @ columns.T)
        else:
            pivots[k] = row + 1
            if a[k, k] == 0 and not np.any(a[k + 1 :, k]):
                code = code or k + 1
            else:
                column = a[rest, k].copy()
                a[rest, k] /= a[k, k]
                a[rest, rest] -= np.tril(np.outer(a[rest, k], column))
        k += size
    return code


def _pivot(a: Array, k: int) -> tuple[int, int]:
    """The size of the next block, and the row to exchange with its last."""
    below = np.abs(a[k + 1 :, k])
    if not below.size or below.max() == 0:
        return 1, k
    here, other = abs(a[k, k]), k + 1 + int(below.argmax())
    column = below.max()
    if here >= _GROWTH * column:
        return 1, k
    row = max(np.abs(a[other, k:other]).max(), np.abs(a[other + 1 :, other]).max(initial=0))
    if here >= _GROWTH * column * (column / row):
        return 1, k
    return (1, other) if abs(a[other, other]) >= _GROWTH * row else (2, other)


def _exchange(a: Array, k: int, i: int, j: int) -> None:
    """Rows and columns i < j of the symmetric rest from k, of which only the lower triangle is kept."""
    n = len(a)
    a[j + 1 : n, [i, j]] = a[j + 1 : n, [j, i]]
    between = a[i + 1 : j, i].copy()
    a[i + 1 : j, i], a[j, i + 1 : j] = a[j, i + 1 : j].copy(), between
    a[i, i], a[j, j] = a[j, j], a[i, i]
    if i > k:
        a[i, k], a[j, k] = a[j, k], a[i, k]


def _solve(a: Array, pivots: Array, x: Array) -> None:
    """Overwrites x with the solution."""
    n, k = len(a), 0
    blocks: list[tuple[int, int, int]] = []
    while k < n:
        size = 1 if pivots[k] > 0 else 2
        blocks.append((k, size, abs(int(pivots[k])) - 1))
        k += size
    for k, size, row in blocks:
        last = k + size - 1
        if row != last:
            x[[last, row]] = x[[row, last]]
        block = slice(k, k + size)
        x[k + size :] -= a[k + size :, block] @ x[block]
        if size == 1:
            x[k] /= a[k, k]
        else:
            off = a[k + 1, k]
            d11, d22 = a[k, k] / off, a[k + 1, k + 1] / off
            one, two = x[k] / off, x[k + 1] / off
            x[k], x[k + 1] = (d22 * one - two) / (d11 * d22 - 1), (d11 * two - one) / (d11 * d22 - 1)
    for k, size, row in reversed(blocks):
        block, last = slice(k, k + size), k + size - 1
        x[block] -= a[k + size :, block].T @ x[k + size :]
        if row != last:
            x[[last, row]] = x[[row, last]]
