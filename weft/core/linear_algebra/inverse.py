"""The inverse and the determinant."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.autograd.value import zero_gradient
from weft.core.args import broadcast as bc
from weft.core.args.handle import value_of, wrap
from weft.core.composed.autocast import widens
from weft.core.execute import run
from weft.core.layout.creation import tensor
from weft.core.layout.movement import cat, narrow, reshape, unsqueeze
from weft.core.linear_algebra.host import (
    LinAlgError,
    codes_of,
    derived,
    eliminated,
    host_array,
    lapack,
    leaf,
    numpy_dtype,
    pivot_codes,
    square_matrices,
)
from weft.core.linear_algebra.spectra import svd
from weft.core.pointwise.elementwise import lt, where
from weft.errors import ArgumentError, ShapeError
from weft.ir.graph import elements

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


@widens
def inv(A: Tensor) -> Tensor:
    """The inverse of square matrices. LinAlgError where there is none."""
    v = square_matrices("linalg.inv", A)
    array = host_array("linalg.inv", v)
    return derived(lapack("linalg.inv", np.linalg.inv, array), (v,), lambda g, y, x: (-(y.mT @ g @ y.mT),))


class CheckedInverse(NamedTuple):
    """An inverse, and an int32 code per matrix: 0, or the number of the pivot that is zero."""

    inverse: Tensor
    info: Tensor


@widens
def inv_ex(A: Tensor, *, check_errors: bool = False) -> CheckedInverse:
    """The inverse and an int32 code per matrix, which is nonzero where there is none."""
    v = square_matrices("linalg.inv_ex", A)
    codes = pivot_codes(eliminated(host_array("linalg.inv_ex", v))[1])
    if codes.any():
        if check_errors:
            raise LinAlgError("linalg.inv_ex: singular matrix")
        shape = tuple(n for n in v.shape if isinstance(n, int))
        return CheckedInverse(wrap(bc.scalar(math.inf, v.dtype, shape)), codes_of(codes, v))
    return CheckedInverse(inv(A), codes_of(codes, v))


@widens
def det(A: Tensor) -> Tensor:
    """The determinant of square matrices."""
    v = square_matrices("linalg.det", A)
    array = np.asarray(lapack("linalg.det", np.linalg.det, host_array("linalg.det", v)), numpy_dtype(v))

    def rule(g: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor]:
        return (reshape(g, (*g.value.shape, 1, 1)) * _adjugate(x, y),)

    return derived(array, (v,), rule)


def _adjugate(x: Tensor, d: Tensor) -> Tensor:
    """The cofactors: det times the transposed inverse, and for singular matrices from their singular vectors."""
    array = run.to_numpy(x.value.node)
    if not array.size:
        return x * 0
    if np.linalg.cond(array).max(initial=0) < 1 / np.finfo(array.dtype).eps:
        return reshape(d, (*d.value.shape, 1, 1)) * inv(x).mT
    u, s, vh = svd(x)
    n = x.value.shape[-1]
    assert isinstance(n, int)
    others = [narrow(s, -1, k, 1) for k in range(n)]
    products: list[Tensor] = []
    for k in range(n):
        p: Tensor | None = None
        for j in range(n):
            if j != k:
                p = others[j] if p is None else p * others[j]
        products.append(p if p is not None else others[k] * 0 + 1)
    scale = products[0] if n == 1 else cat(products, -1)
    turn = reshape(
        tensor(
            np.linalg.det(run.to_numpy((u @ vh).value.node)), dtype=x.value.dtype, device=x.value.node.device
        ),
        (*d.value.shape, 1, 1),
    )
    return turn * ((u * unsqueeze(scale, -2)) @ vh)


class SignLog(NamedTuple):
    """The sign of a determinant and the logarithm of its size."""

    sign: Tensor
    logabsdet: Tensor


@widens
def slogdet(A: Tensor) -> SignLog:
    """The sign of the determinant and the logarithm of its size, which cannot overflow."""
    v = square_matrices("linalg.slogdet", A)
    found = lapack("linalg.slogdet", np.linalg.slogdet, host_array("linalg.slogdet", v))
    size = derived(
        np.asarray(found[1], numpy_dtype(v)), (v,),
        lambda g, y, x: (reshape(g, (*g.value.shape, 1, 1)) * inv(x).mT,),
    )  # fmt: skip
    return SignLog(wrap(zero_gradient(leaf(np.asarray(found[0], numpy_dtype(v)), v), v)), size)


@widens
def logdet(input: Tensor) -> Tensor:
    """The logarithm of the determinant; NaN where it is negative."""
    found = slogdet(input)
    return where(lt(found.sign, 0), math.nan, found.logabsdet)


@widens
def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse for tensordot over the first `ind` dimensions."""
    v = value_of("linalg.tensorinv", A)
    if ind < 1:
        raise ArgumentError(f"linalg.tensorinv: ind must be positive, got {ind}")
    rows, columns = elements(v.shape[:ind]), elements(v.shape[ind:])
    if rows != columns:
        raise ShapeError(f"linalg.tensorinv: shape {tuple(v.shape)} is not square at dimension {ind}")
    return reshape(inv(reshape(A, (rows, columns))), (*v.shape[ind:], *v.shape[:ind]))
