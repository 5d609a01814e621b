"""The Cholesky factorization and what is solved with it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.autograd.value import Value, composed
from weft.core.args import broadcast as bc
from weft.core.args.handle import wrap
from weft.core.args.requirements import needs, one_dtype
from weft.core.composed.autocast import widens
from weft.core.layout.creation import eye
from weft.core.layout.movement import expand, tril
from weft.core.linear_algebra.host import (
    LinAlgError,
    codes_of,
    derived,
    host_array,
    known_size,
    lapack,
    matrices,
    square_matrices,
    sum_to,
)
from weft.core.linear_algebra.solving import solve_triangular

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


@widens
def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The lower triangular L with A = L L^T (or the upper one). LinAlgError unless A is positive definite."""
    v = square_matrices("linalg.cholesky", A)
    array = lapack("linalg.cholesky", np.linalg.cholesky, host_array("linalg.cholesky", v))
    lower = derived(array, (v,), _cholesky_rule)
    return lower.mT if upper else lower


def _cholesky_rule(g: Tensor, low: Tensor, x: Tensor) -> tuple[Tensor]:
    """L^-T sym(phi(L^T g)) L^-1, phi halving the diagonal of the lower triangle."""
    inner = tril(low.mT @ g)
    inner = inner - diagonal_matrix(inner) * 0.5
    whole = solve_triangular(low.mT, inner, upper=True)
    whole = solve_triangular(low, whole, upper=False, left=False)
    return ((whole + whole.mT) * 0.5,)


def diagonal_matrix(x: Tensor) -> Tensor:
    """The diagonal of square matrices, zeros elsewhere."""
    n = known_size(x.value)
    return x * eye(n, dtype=x.value.dtype, device=x.value.node.device)


class CheckedFactor(NamedTuple):
    """A Cholesky factor, and an int32 code per matrix: 0, or the order of the minor that is not positive definite."""

    L: Tensor
    info: Tensor


@widens
def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> CheckedFactor:
    """As cholesky, with an int32 code per matrix: the order of the first minor that is not positive."""
    v = square_matrices("linalg.cholesky_ex", A)
    array = host_array("linalg.cholesky_ex", v)
    codes = np.zeros(array.shape[:-2], np.int32)
    for at in np.ndindex(array.shape[:-2]):
        for k in range(1, array.shape[-1] + 1):
            try:
                np.linalg.cholesky(array[at][:k, :k])
            except np.linalg.LinAlgError:
                codes[at] = k
                break
    if codes.any():
        if check_errors:
            raise LinAlgError("linalg.cholesky_ex: matrix is not positive definite")
        return CheckedFactor(wrap(bc.scalar(math.nan, v.dtype, v.shape)), codes_of(codes, v))
    return CheckedFactor(cholesky(A, upper=upper), codes_of(codes, v))


@widens
@needs(one_dtype("B", "L"))
def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """The X with A X = B, from the Cholesky factor of A."""

    def value(B: Tensor, L: Tensor) -> Tensor:
        low = L.mT if upper else L
        first = solve_triangular(low, B, upper=False)
        return solve_triangular(low.mT, first, upper=True)

    b, factor = matrices("cholesky_solve", B), square_matrices("cholesky_solve", L)

    def rule(g: Value, out: Value, b: Value, factor: Value) -> tuple[Value | None, ...]:
        gb = cholesky_solve(wrap(g), wrap(factor), upper)
        common = gb @ wrap(out).mT
        common = common + common.mT
        gl = -(wrap(factor) @ common) if upper else -(common @ wrap(factor))
        return sum_to(gb, b.shape).value, sum_to(gl, factor.shape).value

    out = value(wrap(Value(b.node)), wrap(Value(factor.node)))
    return wrap(composed(out.value.node, (b, factor), rule))


@widens
def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """The inverse of A from its Cholesky factor."""
    v = square_matrices("cholesky_inverse", L)
    one = eye(known_size(v), dtype=v.dtype, device=v.node.device)
    out = cholesky_solve(expand(one, v.shape), wrap(Value(v.node)), upper)

    def rule(g: Value, result: Value, factor: Value) -> tuple[Value | None, ...]:
        y, common = wrap(result), wrap(g) + wrap(g).mT
        common = y @ common @ y
        return ((-(wrap(factor) @ common) if upper else -(common @ wrap(factor))).value,)

    return wrap(composed(out.value.node, (v,), rule))


@widens
def torch_cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """torch.cholesky, the older form."""
    return cholesky(input, upper=upper)
