"""Systems of equations: A X = B for square and triangular A."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.autograd.value import Value
from weft.core.args import broadcast as bc
from weft.core.args.handle import value_of, wrap
from weft.core.args.requirements import needs, one_dtype
from weft.core.composed.autocast import widens
from weft.core.layout.creation import eye
from weft.core.layout.movement import movedim, reshape, tril, triu
from weft.core.linear_algebra.host import (
    Array,
    Checked,
    as_columns,
    codes_of,
    derived,
    eliminated,
    floats,
    host_array,
    known_size,
    lapack,
    leaf,
    matrices,
    pivot_codes,
    square_matrices,
    sum_to,
)
from weft.errors import DTypeError, ShapeError
from weft.ir.graph import elements

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


@widens
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """The X with A X = B (or X A = B without `left`). B may be vectors. LinAlgError for singular A."""
    a, b = square_matrices("linalg.solve", A), floats("linalg.solve", B)
    if a.dtype is not b.dtype:
        raise DTypeError(f"linalg.solve: A is {a.dtype.name}, B {b.dtype.name}; convert one with .to(...)")
    columns, vector = as_columns("linalg.solve", a, b, left)
    if vector and not left:
        raise ShapeError("linalg.solve: B must be matrices for left=False")
    if columns.shape[-2 if left else -1] != a.shape[-1]:
        raise ShapeError(f"linalg.solve: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit")
    lead = bc.broadcast_shape("linalg.solve", (a.shape[:-2], columns.shape[:-2]))
    out = _solved(a, bc.expand(columns, (*lead, *columns.shape[-2:])), left)
    return reshape(out, out.value.shape[:-1]) if vector else out


def _solved(a: Value, b: Value, left: bool) -> Tensor:
    x, y = host_array("linalg.solve", a), host_array("linalg.solve", b)
    if left:
        array = lapack("linalg.solve", np.linalg.solve, x, y)
    else:
        array = np.swapaxes(
            lapack("linalg.solve", np.linalg.solve, np.swapaxes(x, -1, -2), np.swapaxes(y, -1, -2)), -1, -2
        )

    def rule(g: Tensor, out: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gb = solve(a.mT, g, left=left)
        ga = -(gb @ out.mT) if left else -(out.mT @ gb)
        return sum_to(ga, a.value.shape), gb

    return derived(array, (a, b), rule)


@widens
def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> Checked:
    """As solve, with an int32 code per matrix."""
    v = square_matrices("linalg.solve_ex", A)
    codes = pivot_codes(eliminated(host_array("linalg.solve_ex", v))[1])
    if codes.any() and not check_errors:
        shape = value_of("linalg.solve_ex", B).shape
        return Checked(wrap(bc.scalar(math.nan, v.dtype, shape)), codes_of(codes, v))
    return Checked(solve(A, B, left=left), codes_of(codes, v))


@widens
def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """The X with A X = B (X A = B without `left`) for triangular A, whose other half is not looked at."""
    a, b = square_matrices("linalg.solve_triangular", A), matrices("linalg.solve_triangular", B)
    if a.shape[-1] != b.shape[-2 if left else -1]:
        raise ShapeError(f"linalg.solve_triangular: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit")
    triangle = (
        triu(wrap(a), 1 if unitriangular else 0) if upper else tril(wrap(a), -1 if unitriangular else 0)
    )
    if unitriangular:
        triangle = triangle + eye(known_size(a), dtype=a.dtype, device=a.node.device)
    lead = bc.broadcast_shape("linalg.solve_triangular", (a.shape[:-2], b.shape[:-2]))
    full = bc.expand(b, (*lead, *b.shape[-2:]))
    whole = triangle.value
    x = host_array("linalg.solve_triangular", whole)
    y = host_array("linalg.solve_triangular", full)
    if (np.diagonal(x, axis1=-2, axis2=-1) == 0).any():
        array = _substituted(x, y, upper, left)
        return wrap(leaf(array, a))
    return _solved(whole, full, left)


def _substituted(x: Array, y: Array, upper: bool, left: bool) -> Array:
    """Substitution as it stands, with the infinities that a zero on the diagonal gives."""
    if not left:
        turned = _substituted(np.swapaxes(x, -1, -2), np.swapaxes(y, -1, -2), not upper, True)
        return np.swapaxes(turned, -1, -2)
    x = np.broadcast_to(x, (*y.shape[:-2], *x.shape[-2:]))
    out = np.array(y)
    n = x.shape[-1]
    with np.errstate(all="ignore"):
        for i in reversed(range(n)) if upper else range(n):
            part = slice(i + 1, n) if upper else slice(0, i)
            rest = out[..., i, :] - (x[..., i, None, part] @ out[..., part, :])[..., 0, :]
            out[..., i, :] = rest / x[..., i, i, None]
    return out


class Triangular(NamedTuple):
    """The result of triangular_solve: the solution, and a copy of A."""

    solution: Tensor
    cloned_coefficient: Tensor


@widens
@needs(one_dtype("input", "A"))
def triangular_solve(
    input: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Triangular:
    """The solution of A X = input for triangular A, and a copy of A; torch's older form of solve_triangular."""
    matrix = A.mT if transpose else A
    out = solve_triangular(matrix, input, upper=upper != transpose, unitriangular=unitriangular)
    return Triangular(out, A.clone())


@widens
def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """The X with tensordot(A, X) = B over all of X's dimensions."""
    v, b = value_of("linalg.tensorsolve", A), value_of("linalg.tensorsolve", B)
    x = A
    if dims is not None:
        x = movedim(A, tuple(dims), tuple(range(len(v.shape) - len(dims), len(v.shape))))
        v = x.value
    rest = v.shape[len(b.shape) :]
    n = elements(b.shape)
    if elements(rest) != n:
        raise ShapeError(f"linalg.tensorsolve: shapes {tuple(v.shape)} and {tuple(b.shape)} do not fit")
    return reshape(solve(reshape(x, (n, n)), reshape(B, (n,))), rest)
