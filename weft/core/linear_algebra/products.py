"""Powers, exponentials and products of matrices: formulas without a factorization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.autograd.value import zero_gradient
from weft.core.args import broadcast as bc
from weft.core.args.axes import axis, is_int
from weft.core.args.handle import describe, value_of, wrap
from weft.core.args.requirements import floats, needs, no_bools, one_dtype
from weft.core.composed.composite import composite
from weft.core.composed.precision import rounded_once, widened
from weft.core.functions.matmul import matmul
from weft.core.functions.reductions import sum
from weft.core.layout.creation import eye
from weft.core.layout.movement import diagonal, expand, reshape, stack, unsqueeze
from weft.core.linear_algebra.host import host_array, known_size, known_sizes
from weft.core.linear_algebra.inverse import inv
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import int64
from weft.ir.graph import elements

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def matrix_power(A: Tensor, n: int) -> Tensor:
    """A @ A @ ... n times, by repeated squaring; of the inverse for negative n."""
    v = value_of("linalg.matrix_power", A)
    if len(v.shape) < 2 or v.shape[-1] != v.shape[-2]:
        raise ShapeError(f"linalg.matrix_power: needs square matrices, got shape {tuple(v.shape)}")
    if not is_int(n):
        raise DTypeError(f"linalg.matrix_power: n must be an int, got {describe(n)}")
    if n < 0:
        return matrix_power(inv(A), -n)
    if n == 0:
        one = expand(eye(known_size(v), dtype=v.dtype, device=v.node.device), v.shape)
        return wrap(zero_gradient(one.value, v))
    out: Tensor | None = None
    square = A
    while n:
        if n & 1:
            out = square if out is None else out @ square
        n >>= 1
        square = square @ square if n else square
    assert out is not None
    return wrap(out.value)


def matrix_exp(A: Tensor) -> Tensor:
    """The exponential of square matrices: a Taylor polynomial after halving, squared back. Computes A's norm."""
    v = value_of("linalg.matrix_exp", A)
    if len(v.shape) < 2 or v.shape[-1] != v.shape[-2]:
        raise ShapeError(f"linalg.matrix_exp: needs square matrices, got shape {tuple(v.shape)}")
    if not v.dtype.is_float:
        raise DTypeError(
            f"linalg.matrix_exp: needs a float tensor, got {v.dtype.name}; convert it with .float()"
        )
    if not elements(v.shape):
        return A
    x = wrap(widened(v))
    array = host_array("linalg.matrix_exp", x.value)
    size = float(np.abs(array).sum(-2).max(initial=0))
    reach = 1.0 if x.value.dtype.name == "float64" else 3.0  # of a Taylor polynomial of degree 18
    halvings = max(0, math.ceil(math.log2(size / reach))) if math.isfinite(size) and size > 0 else 0
    x = x * 2.0**-halvings
    one = eye(known_size(v), dtype=x.value.dtype, device=v.node.device)
    out = one + x * (1 / 18)
    for k in range(17, 0, -1):
        out = one + (x @ out) * (1 / k)
    for _ in range(halvings):
        out = out @ out
    return wrap(bc.cast(out.value, v.dtype))


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of matrices (the first and last may be vectors) in the cheapest order."""
    parts = list(tensors)
    if len(parts) < 2:
        raise ArgumentError(f"linalg.multi_dot: needs at least 2 tensors, got {len(parts)}")
    shapes = [value_of("linalg.multi_dot", p).shape for p in parts]
    if any(len(s) != 2 for s in shapes[1:-1]) or any(len(s) not in (1, 2) for s in (shapes[0], shapes[-1])):
        raise ShapeError(
            f"linalg.multi_dot: only the first and last may be vectors, got {[tuple(s) for s in shapes]}"
        )
    first, last = len(shapes[0]) == 1, len(shapes[-1]) == 1
    if first:
        parts[0] = unsqueeze(parts[0], 0)
    if last:
        parts[-1] = unsqueeze(parts[-1], 1)
    out = _chain(parts)
    if first:
        out = out.squeeze(-2)
    return out.squeeze(-1) if last else out


def _chain(parts: list[Tensor]) -> Tensor:
    """Products in the order of the fewest multiplications, by dynamic programming over where to split."""
    n = len(parts)
    sizes = [known_sizes(parts[0].value)[0], *(known_sizes(p.value)[1] for p in parts)]
    cost = [[0.0] * n for _ in range(n)]
    split = [[0] * n for _ in range(n)]
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            options = [
                (cost[i][k] + cost[k + 1][j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            ]
            cost[i][j], split[i][j] = min(options)

    return _product(parts, split, 0, n - 1)


def _product(parts: list[Tensor], split: list[list[int]], i: int, j: int) -> Tensor:
    """The product of parts i to j, split where it says."""
    if i == j:
        return parts[i]
    k = split[i][j]
    return matmul(_product(parts, split, i, k), _product(parts, split, k + 1, j))


@composite
@needs(one_dtype("input", "other"), no_bools("input"))
def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The cross product of vectors of 3 along dim."""
    x, y = value_of("linalg.cross", input), value_of("linalg.cross", other)
    if len(x.shape) != len(y.shape):
        raise ShapeError(
            f"linalg.cross: shapes {tuple(x.shape)} and {tuple(y.shape)} must have equally many dimensions"
        )
    k = axis("linalg.cross", dim, x.shape)
    if x.shape[k] != 3 or y.shape[k] != 3:
        raise ShapeError(
            f"linalg.cross: dimension {dim} must have size 3, got shapes {tuple(x.shape)} and {tuple(y.shape)}"
        )
    return input.roll(-1, k) * other.roll(1, k) - input.roll(1, k) * other.roll(-1, k)


@composite
@needs(floats("x", "y"), one_dtype("x", "y"))
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The dot product along dim."""
    return sum(x * y, dim)


@rounded_once
def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """The powers 0 to N - 1 of each element, in a new last dimension."""
    v = value_of("linalg.vander", x)
    if not v.shape and N is None:
        raise ShapeError("linalg.vander: needs at least 1 dimension")
    n = v.shape[-1] if N is None else N
    if not isinstance(n, int) or n <= 0:
        if n == 0 and N is None:
            return wrap(zero_gradient(bc.scalar(0, v.dtype, (*v.shape, 0)), v))
        raise ArgumentError(f"linalg.vander: N must be positive, got {n}")
    x = x if v.dtype.is_float else wrap(bc.cast(v, int64))
    x = x if v.shape else reshape(x, 1)
    powers: list[Tensor] = [x * 0 + 1]
    for _ in range(n - 1):
        powers.append(powers[-1] * x)
    return stack(powers, -1)


@composite
@needs(no_bools("input"))
def trace(input: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix."""
    v = value_of("trace", input)
    if len(v.shape) != 2:
        raise ShapeError(f"trace: needs a matrix, got shape {tuple(v.shape)}")
    return sum(diagonal(input))


def diagonal_of(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The diagonals of matrices, as a new last dimension."""
    return diagonal(A, offset, dim1, dim2)
