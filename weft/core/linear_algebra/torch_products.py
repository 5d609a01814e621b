"""Products and distances made of matmul, and norms: what torch offers beside it."""
# Tests: tests/core/test_surface.py, tests/core/composed/test_halves.py

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.args import broadcast as bc
from weft.core.args.handle import Dims, Number, describe, value_of, wrap
from weft.core.args.requirements import at_least, at_most_dims, needs, no_bools, one_dtype, one_of
from weft.core.composed.autocast import lowers, widens, widens_on_gpus
from weft.core.composed.composite import composite
from weft.core.composed.precision import rounded_once
from weft.core.execute import run
from weft.core.functions.matmul import bmm, dot, matmul, mul_scaled, outer, tensordot
from weft.core.functions.norms import vector_norm
from weft.core.functions.reductions import mean, sum
from weft.core.layout.movement import flip, reshape, squeeze, unsqueeze
from weft.core.linear_algebra.norms import matrix_norm
from weft.core.linear_algebra.products import cross as cross_along
from weft.core.linear_algebra.products import multi_dot
from weft.core.pointwise.elementwise import pow, sqrt, where
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import DType, int64
from weft.ir.index import Int

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def inner(input: Tensor, other: Tensor) -> Tensor:
    """The sum of products over the last dimension of both; scalars multiply."""
    x, y = value_of("inner", input), value_of("inner", other)
    if not x.shape or not y.shape:
        return input * other
    if x.shape[-1] != y.shape[-1]:
        raise ShapeError(f"inner: the last dimensions of {tuple(x.shape)} and {tuple(y.shape)} differ")
    return tensordot(input, other, ([len(x.shape) - 1], [len(y.shape) - 1]))


def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The dot product of two vectors."""
    return dot(input, other)


@composite
def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product: each element of input times the whole of other."""
    x, y = value_of("kron", input).shape, value_of("kron", other).shape
    rank = max(len(x), len(y))
    x, y = (1,) * (rank - len(x)) + x, (1,) * (rank - len(y)) + y
    left = reshape(input, tuple(n for k in range(rank) for n in (x[k], 1)))
    right = reshape(other, tuple(n for k in range(rank) for n in (1, y[k])))
    return reshape(left * right, tuple(n * m for n, m in zip(x, y, strict=True)))


@lowers
def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of matrices in the cheapest order."""
    return matrices[0] if len(matrices) == 1 else multi_dot(matrices)


@composite(autocast=lowers)
@needs(one_dtype("input", "batch1", "batch2"), at_most_dims("input", 2))
def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta * input + alpha * the sum over the batch of batch1 @ batch2."""
    return mul_scaled(input, sum_first(bmm(batch1, batch2)), beta, alpha)


def sum_first(x: Tensor) -> Tensor:
    """The sum over dimension 0."""
    return sum(x, 0, dtype=x.value.dtype)


@composite(autocast=lowers)
@needs(at_most_dims("input", 2))
def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """beta * input + alpha * outer(vec1, vec2)."""
    a, b = value_of("addr", vec1), value_of("addr", vec2)
    if len(a.shape) != 1 or len(b.shape) != 1:
        raise ShapeError(f"addr: needs vectors, got shapes {tuple(a.shape)} and {tuple(b.shape)}")
    return mul_scaled(input, outer(vec1, vec2), beta, alpha)


@composite
@needs(one_dtype("input", "other"), no_bools("input"))
def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The cross product along dim, by default the first dimension of size 3."""
    if dim is None:
        shape = value_of("cross", input).shape
        found = [k for k, n in enumerate(shape) if n == 3]
        if not found:
            raise ShapeError(f"cross: no dimension of shape {tuple(shape)} has size 3")
        dim = found[0]
    return cross_along(input, other, dim=dim)


def vander(x: Tensor, N: Int | None = None, increasing: bool = False) -> Tensor:
    """The powers of each element of a vector as rows, the highest first unless increasing."""
    from weft.core.layout.creation import arange

    v = value_of("vander", x)
    if len(v.shape) != 1:
        raise ShapeError(f"vander: needs a vector, got shape {tuple(v.shape)}")
    n = v.shape[0] if N is None else N
    if isinstance(n, int) and n < 0:
        raise ArgumentError(f"vander: N must not be negative, got {n}")
    base = x if v.dtype.is_float else wrap(bc.cast(v, int64))
    powers = arange(n)
    order = powers if increasing else flip(powers, 0)
    return pow(unsqueeze(base, 1), order)


@composite(autocast=widens_on_gpus)
def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of input - other."""
    return vector_norm(input - other, p)


@composite(autocast=widens)
@needs(
    one_dtype("x1", "x2"),
    at_least("p", 0),
    one_of(
        "compute_mode",
        "use_mm_for_euclid_dist_if_necessary",
        "use_mm_for_euclid_dist",
        "donot_use_mm_for_euclid_dist",
    ),
)
def cdist(
    x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary"
) -> Tensor:
    """The p-norm of the differences of every row of x1 with every row of x2: (.., m, k), (.., n, k) -> (.., m, n)."""
    a, b = value_of("cdist", x1), value_of("cdist", x2)
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-1]:
        raise ShapeError(
            f"cdist: needs matrices with equally long rows, got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if not a.dtype.is_float or not b.dtype.is_float:
        raise DTypeError("cdist: needs float tensors; convert with .float()")
    if p < 0:
        raise ArgumentError(f"cdist: p must not be negative, got {p}")
    difference = unsqueeze(x1, -2) - unsqueeze(x2, -3)
    if difference.value.shape[-1] == 0:
        return sum(difference, -1)
    if p == 2:  # whose gradient is 0 where rows are equal, whatever flows in: that of a norm is 0 times it
        from weft.core.functional import distances

        return distances.vector_norm(difference, p, -1)
    return vector_norm(difference, p, -1)


@rounded_once
@needs(no_bools("input"))
def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """The covariances of the rows, each column an observation, repeated by fweights and weighted by aweights."""
    v = value_of("cov", input)
    if len(v.shape) > 2:
        raise ShapeError(f"cov: needs at most 2 dimensions, got shape {tuple(v.shape)}")
    x = reshape(input, 1, -1) if len(v.shape) < 2 else input
    if not v.dtype.is_float:
        x = wrap(bc.cast(x.value, bc.get_default_dtype()))
    count = x.value.shape[1]
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is None:
            continue
        w = value_of("cov", given)
        if len(w.shape) > 1 or w.shape != (count,):
            raise ShapeError(
                f"cov: {name} must be a vector of {count}, one for each observation, got {describe(given)}"
            )
        if name == "fweights" and not w.dtype.is_int:
            raise DTypeError(f"cov: fweights must be integers, got {w.dtype.name}")
        known = run.host_array(w.node)
        if known is not None and known.size and known.min() < 0:
            raise ArgumentError(f"cov: {name} must not be negative")
    weight: Tensor | None = None
    if fweights is not None:
        weight = wrap(bc.cast(fweights.value, x.value.dtype))
    if aweights is not None:
        weight = aweights if weight is None else weight * aweights
    n = x.value.shape[1]
    if weight is None:
        middle = mean(x, 1, keepdim=True)
        centred = x - middle
        if not isinstance(n, int):
            raise ShapeError(f"cov: the number {n} of observations must be known")
        out = matmul(centred, centred.mT) / float(max(n - correction, 0))
    else:
        total = sum(weight)
        middle = sum(x * weight, 1, keepdim=True) / total
        centred = x - middle
        if aweights is None or correction == 0:
            norm: Tensor = total - correction
        else:
            norm = total - sum(weight * aweights) * correction / total
        norm = where(norm < 0, 0.0, norm)
        out = matmul(centred * weight, centred.mT) / norm
    return squeeze(out)


@composite
def corrcoef(input: Tensor) -> Tensor:
    """The correlations of the rows."""
    c = cov(input)
    if not c.value.shape:
        return c / c
    size = sqrt(c.diagonal())
    return (c / unsqueeze(size, 1) / unsqueeze(size, 0)).clamp(-1, 1)


@composite(autocast=widens_on_gpus)
@needs(at_least("p", 0, above=True), at_least("maxnorm", 0))
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Each slice along dim whose p-norm exceeds maxnorm scaled down to it."""
    from weft.core.args.axes import axis

    v = value_of("renorm", input)
    k = axis("renorm", dim, v.shape)
    if len(v.shape) < 2:
        raise ShapeError(f"renorm: needs at least 2 dimensions, got shape {tuple(v.shape)}")
    over = tuple(i for i in range(len(v.shape)) if i != k)
    size = vector_norm(input, p, over, keepdim=True)
    factor = where(size > maxnorm, maxnorm / (size + 1e-7), 1.0)
    return input * factor


@composite(autocast=widens_on_gpus)
def norm(
    input: Tensor,
    p: float | str | None = "fro",
    dim: Dims | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """(sum |x|**p) ** (1/p) over dim (all by default): a vector norm for numbers p and "fro"; "nuc" is of matrices."""
    match p:
        case None | "fro":
            return vector_norm(input, 2, dim, keepdim, dtype=dtype)
        case "nuc":
            pair = (-2, -1) if dim is None else tuple(dim) if not isinstance(dim, int) else (dim,)
            if len(pair) != 2:
                raise ArgumentError(f"norm: 'nuc' needs two dimensions, got {dim}")
            return matrix_norm(input, "nuc", (pair[0], pair[1]), keepdim, dtype=dtype)
        case str():
            raise ArgumentError(f"norm: p must be a number, 'fro' or 'nuc', got {p!r}")
        case _:
            return vector_norm(input, p, dim, keepdim, dtype=dtype)
