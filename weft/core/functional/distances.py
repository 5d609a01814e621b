"""Distances and similarities of vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.autograd.value import zero_gradient
from weft.core.args import broadcast as bc
from weft.core.args.axes import known_sizes
from weft.core.args.handle import value_of, wrap
from weft.core.args.requirements import at_least, needs
from weft.core.composed.autocast import widens_on_gpus
from weft.core.composed.composite import composite
from weft.core.composed.precision import widened
from weft.core.functions.reductions import amax, amin, sum
from weft.core.layout.creation import tensor
from weft.core.layout.gather import rows
from weft.core.layout.movement import box
from weft.core.pointwise.elementwise import abs, clamp, eq, ne, pow, sqrt, where
from weft.errors import ArgumentError, DTypeError, ShapeError

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


@composite(autocast=widens_on_gpus)
@needs(at_least("eps", 0))
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x1 . x2 / (|x1| |x2|) along dim, each norm at least eps.

    Shapes: two that broadcast -> theirs without dim.
    """
    a, b = value_of("cosine_similarity", x1), value_of("cosine_similarity", x2)
    dtype = bc.result_dtype((a, b))
    if not dtype.is_float:
        raise DTypeError(f"cosine_similarity: needs float tensors, got {dtype.name}; convert with .float()")
    x, y = (wrap(widened(v)) for v in bc.broadcast("cosine_similarity", (a, b), dtype))
    # the bound below the root, so that the gradient of a zero vector is 0 and not 0 * inf
    lengths = sqrt(clamp(sum(x * x, dim), min=eps * eps)) * sqrt(clamp(sum(y * y, dim), min=eps * eps))
    return wrap(bc.cast((sum(x * y, dim) / lengths).value, dtype))


def vector_norm(x: Tensor, p: float, dim: int, keepdim: bool = False) -> Tensor:
    """(sum |x|**p) ** (1/p) along dim, with gradient 0 where it is 0."""
    if p == 0:
        return sum(wrap(zero_gradient(bc.cast(ne(x, 0).value, x.value.dtype), x.value)), dim, keepdim)
    if p == float("inf"):
        return amax(abs(x), dim, keepdim)
    if p == float("-inf"):
        return amin(abs(x), dim, keepdim)
    if p == 1:
        return sum(abs(x), dim, keepdim)
    if p < 0:
        return pow(sum(pow(abs(x), p), dim, keepdim), 1.0 / p)
    total = sum(x * x if p == 2 else _power(abs(x), p), dim, keepdim)
    none = eq(total, 0)
    safe = where(none, 1.0, total)
    return where(none, 0.0, sqrt(safe) if p == 2 else pow(safe, 1.0 / p))


def _power(x: Tensor, p: float) -> Tensor:
    """x ** p for x >= 0, with gradient 0 at 0 also for p < 1."""
    none = eq(x, 0)
    return where(none, 0.0, pow(where(none, 1.0, x), p))


@composite
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of x1 - x2 + eps over the last dimension. Shapes: (..., d), (..., d) -> (...)."""
    a, b = value_of("pairwise_distance", x1), value_of("pairwise_distance", x2)
    if not a.shape or not b.shape:
        raise ShapeError("pairwise_distance: needs tensors of at least 1 dimension")
    return vector_norm(x1 - x2 + eps, p, -1, keepdim)


@composite(autocast=widens_on_gpus, recorded=False)
@needs(at_least("p", 0))
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm distance of every two rows i < j. Shapes: (n, d) -> (n (n - 1) / 2)."""
    v = value_of("pdist", input)
    if len(v.shape) != 2:
        raise ShapeError(f"pdist: needs a matrix, got shape {tuple(v.shape)}")
    if not v.dtype.is_float:
        raise DTypeError(f"pdist: needs a float tensor, got {v.dtype.name}; convert it with .float()")
    if p < 0:
        raise ArgumentError(f"pdist: p must not be negative, got {p}")
    n = known_sizes("pdist", v.shape)[0]
    if n < 2:
        return sum(wrap(box(v, (0, 0), (0, v.shape[1]))), 1)
    i, j = np.triu_indices(n, 1)
    a, b = (wrap(rows(v, 0, tensor(k, device=v.node.device).value)) for k in (i, j))
    return vector_norm(a - b, p, -1)
