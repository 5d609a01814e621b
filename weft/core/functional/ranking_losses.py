"""Losses on margins, rankings and distances, and those of distributions other than the categorical."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.autograd.value import Value, composed
from weft.core.args import broadcast as bc
from weft.core.args.handle import Handle, value_of, wrap
from weft.core.args.requirements import floats, needs, no_bools
from weft.core.composed.autocast import widens
from weft.core.composed.composite import composite
from weft.core.composed.known_values import check_known
from weft.core.composed.precision import rounded_once
from weft.core.composed.smooth import float_input
from weft.core.functional.activations import logsigmoid, softplus
from weft.core.functional.distances import pairwise_distance
from weft.core.functional.losses import how_reduced, reduced
from weft.core.functions.reductions import any, mean, sum
from weft.core.layout.gather import check_range, gather, index_value, take
from weft.core.layout.movement import positions
from weft.core.pointwise.elementwise import (
    clamp,
    eq,
    exp,
    gt,
    log,
    logical_and,
    minimum,
    ne,
    neg,
    sqrt,
    where,
)  # fmt: skip
from weft.errors import ArgumentError, ShapeError
from weft.ir.dtypes import int64

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


@widens
@needs(no_bools("input", "target"))
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """exp(x) - y x, or x - y log(x + eps) unless log_input.

    full adds Stirling's y log y - y + log(2 pi y) / 2 where y > 1.
    """
    how = how_reduced("poisson_nll_loss", size_average, reduce, reduction)
    x = wrap(float_input("poisson_nll_loss", input))
    return _poisson(x, target, log_input, full, eps, how)


@composite
def _poisson(input: Tensor, target: Tensor, log_input: bool, full: bool, eps: float, how: str) -> Tensor:
    loss = exp(input) - target * input if log_input else input - target * log(input + eps)
    if full:
        many = gt(target, 1)
        y = where(many, target, 1.0)
        loss = loss + where(many, y * log(y) - y + 0.5 * log(2 * math.pi * y), 0.0)
    return reduced(loss, how)


@rounded_once
def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """(log(v) + (input - target)**2 / v) / 2 with v = max(var, eps); full adds log(2 pi) / 2.

    Shapes: var as input, or with a last dimension of 1 or without it. The gradient of var ignores the bound.
    """
    how = how_reduced("gaussian_nll_loss", None, None, reduction)
    shape = value_of("gaussian_nll_loss", input).shape
    if not isinstance(var, Handle):
        if var < 0:
            raise ArgumentError(f"gaussian_nll_loss: var must not be negative, got {var}")
        var = wrap(bc.scalar(float(var), input.value.dtype, shape))
    v = var.value
    check_known("gaussian_nll_loss", "var", v)
    if v.shape != shape:
        if v.shape == shape[:-1]:
            v = bc.reshape(v, (*v.shape, 1))
        elif len(v.shape) != len(shape) or any_differs(v.shape, shape):
            raise ShapeError(
                f"gaussian_nll_loss: var of shape {tuple(v.shape)} does not fit input of shape {tuple(shape)}"
            )
    bounded = composed(clamp(wrap(Value(v.node)), min=eps).value.node, (v,), _pass)
    d = input - target
    loss = 0.5 * (log(wrap(bounded)) + d * d / wrap(bounded))
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, how)


def any_differs(small: tuple[object, ...], shape: tuple[object, ...]) -> bool:
    """True unless each size of `small` is 1 or that of `shape`."""
    return not all(n in (1, m) for n, m in zip(small, shape, strict=True))


def _pass(g: Value, _out: Value, _x: Value) -> tuple[Value]:
    return (g,)


@composite(autocast=widens)
def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """x where y = 1, max(0, margin - x) where y = -1."""
    how = how_reduced("hinge_embedding_loss", size_average, reduce, reduction)
    apart = where(ne(target, 1), _above_zero(margin - input), 0.0)
    return reduced(apart + where(ne(target, -1), input, 0.0), how)


def _above_zero(x: Tensor) -> Tensor:
    """max(x, 0), whose gradient at 0 is that of x (as torch.clamp_min)."""
    return clamp(x, min=0.0)


def _positive_part(x: Tensor) -> Tensor:
    """max(x, 0), whose gradient at 0 is 0."""
    return where(gt(x, 0), x, 0.0)


@composite(autocast=widens)
def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, -y (x1 - x2) + margin): y = 1 says that x1 should be larger, y = -1 that x2 should."""
    how = how_reduced("margin_ranking_loss", size_average, reduce, reduction)
    ranks = {len(value_of("margin_ranking_loss", t).shape) for t in (input1, input2, target)}
    if len(ranks) > 1:
        raise ShapeError(
            "margin_ranking_loss: input1, input2 and target must have equally many dimensions, got shapes "
            f"{tuple(input1.value.shape)}, {tuple(input2.value.shape)} and {tuple(target.value.shape)}"
        )
    return reduced(_above_zero(neg(target) * (input1 - input2) + margin), how)


@composite(autocast=widens)
def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """1 - cos(x1, x2) where y = 1, max(0, cos(x1, x2) - margin) where y = -1.

    Shapes: (n, d), (n, d), (n) or (d), (d), () -> (n) or ().
    """
    how = how_reduced("cosine_embedding_loss", size_average, reduce, reduction)
    y = value_of("cosine_embedding_loss", target).shape
    for t in (input1, input2):
        if len(y) > 1 or len(value_of("cosine_embedding_loss", t).shape) != len(y) + 1:
            raise ShapeError(
                f"cosine_embedding_loss: target of shape {tuple(y)} needs inputs with one dimension more, got shapes "
                f"{tuple(input1.value.shape)} and {tuple(value_of('cosine_embedding_loss', input2).shape)}"
            )
    least = 1e-12
    lengths = sqrt((sum(input1 * input1, -1) + least) * (sum(input2 * input2, -1) + least))
    cos = sum(input1 * input2, -1) / lengths
    loss = where(eq(target, 1), 1 - cos, 0.0) + where(eq(target, -1), _above_zero(cos - margin), 0.0)
    return reduced(loss, how)


@composite(autocast=widens)
def soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """log(1 + exp(-y x)) for y = 1 or -1."""
    how = how_reduced("soft_margin_loss", size_average, reduce, reduction)
    return reduced(softplus(neg(target * input), threshold=math.inf), how)


@composite
@needs(floats("input"))
def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-(y log s(x) + (1 - y) log s(-x)), s the sigmoid, averaged over the classes (the last dimension)."""
    how = how_reduced("multilabel_soft_margin_loss", size_average, reduce, reduction)
    loss = neg(target * logsigmoid(input) + (1 - target) * logsigmoid(neg(input)))
    return reduced(mean(loss if weight is None else loss * weight, -1), how)


def _margin_input(op: str, input: Tensor, rows: tuple[object, ...]) -> Tensor:
    """The input as (n, classes); `rows` is the shape of the target without classes."""
    x = value_of(op, input)
    if len(x.shape) not in (1, 2) or (
        tuple(x.shape[:-1]) != rows and not (not x.shape[:-1] and rows in ((1,), ()))
    ):
        raise ShapeError(
            f"{op}: input must be (n, classes) or (classes), got shape {tuple(x.shape)} for target {rows}"
        )
    return wrap(bc.reshape(x, (1, *x.shape))) if len(x.shape) == 1 else input


@composite(autocast=widens, recorded=False)
@needs(floats("input"))
def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """sum over i != y of w[y] max(0, margin - x[y] + x[i])**p / classes. Shapes: (n, classes), (n) -> (n)."""
    op = "multi_margin_loss"
    how = how_reduced(op, size_average, reduce, reduction)
    if p not in (1, 2):
        raise ArgumentError(f"{op}: p must be 1 or 2, got {p}")
    if not value_of(op, input).shape:
        input = wrap(bc.reshape(input.value, (1,)))
    y = index_value(op, target)
    x = _margin_input(op, input, tuple(y.shape))
    n, classes = x.value.shape
    y = check_range(op, bc.reshape(y, (n, 1)), classes, 1, negative=False)
    if weight is not None and value_of(op, weight).shape != (classes,):
        raise ShapeError(f"{op}: weight must have shape ({classes},), got {tuple(weight.value.shape)}")
    short = _positive_part(margin - gather(x, 1, wrap(y)) + x)
    short = short * short if p == 2 else short
    if weight is not None:
        short = short * take(weight, wrap(y))
    other = ne(wrap(positions((n, classes), 1, int64)), wrap(bc.cast(y, int64)))
    loss = mean(where(other, short, 0.0), 1)
    return reduced(loss if len(input.value.shape) == 2 else sum(loss), how)


@composite(autocast=widens, recorded=False)
@needs(floats("input"))
def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """sum over targets j and other classes i of max(0, 1 - x[j] + x[i]) / classes.

    Shapes: (n, classes) and target (n, classes) of class indices, which end at the first -1 -> (n).
    """
    op = "multilabel_margin_loss"
    how = how_reduced(op, size_average, reduce, reduction)
    y = index_value(op, target)
    if not y.shape and not value_of(op, input).shape:
        y, input = bc.reshape(y, (1,)), wrap(bc.reshape(input.value, (1,)))
    if y.shape != value_of(op, input).shape:
        raise ShapeError(
            f"{op}: input has shape {tuple(input.value.shape)}, target {tuple(y.shape)}; they must be equal"
        )
    x = _margin_input(op, input, tuple(y.shape[:-1]))
    n, classes = x.value.shape
    labels = wrap(bc.reshape(y, (n, classes)))
    from weft.core.functions.scans import cumprod

    listed = ne(cumprod(labels >= 0, 1), 0)
    safe = where(listed, labels, 0)
    column = wrap(positions((1, 1, classes), 2, int64))
    is_target = any(logical_and(listed.unsqueeze(2), eq(safe.unsqueeze(2), column)), 1)
    short = _positive_part(1 - gather(x, 1, safe).unsqueeze(2) + x.unsqueeze(1))
    counted = logical_and(listed.unsqueeze(2), ~is_target.unsqueeze(1))
    loss = sum(where(counted, short, 0.0), (1, 2)) / (classes if isinstance(classes, int) else 1)
    return reduced(loss if len(y.shape) == 2 else sum(loss), how)


@composite(autocast=widens)
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, d(a, p) - d(a, n) + margin), d the pairwise distance; swap also tries d(p, n), and takes the smaller.

    Shapes: three (n, d) or (d) -> (n) or (). Source: Balntas et al., BMVC 2016.
    """
    how = how_reduced("triplet_margin_loss", size_average, reduce, reduction)
    if margin <= 0:
        raise ArgumentError(f"triplet_margin_loss: margin must be positive, got {margin}")
    return _triplet(
        anchor, positive, negative, lambda a, b: pairwise_distance(a, b, p, eps), margin, swap, how
    )


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """triplet_margin_loss with a distance of one's own."""
    how = how_reduced("triplet_margin_with_distance_loss", None, None, reduction)
    if margin <= 0:
        raise ArgumentError(f"triplet_margin_with_distance_loss: margin must be positive, got {margin}")
    if distance_function is None:
        return triplet_margin_loss(anchor, positive, negative, margin, swap=swap, reduction=reduction)
    return _triplet(anchor, positive, negative, distance_function, margin, swap, how)


def _triplet(
    anchor: Tensor, positive: Tensor, negative: Tensor, distance: Callable[[Tensor, Tensor], Tensor],
    margin: float, swap: bool, how: str,
) -> Tensor:  # fmt: skip
    ranks = {len(value_of("triplet_margin_loss", t).shape) for t in (anchor, positive, negative)}
    if len(ranks) > 1:
        raise ShapeError(
            "triplet_margin_loss: anchor, positive and negative must have equally many dimensions"
        )
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = minimum(far, distance(positive, negative))
    return reduced(_positive_part(margin + near - far), how)


__all__ = [
    "cosine_embedding_loss", "gaussian_nll_loss", "hinge_embedding_loss", "margin_ranking_loss",
    "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "poisson_nll_loss",
    "soft_margin_loss", "triplet_margin_loss", "triplet_margin_with_distance_loss",
]  # fmt: skip
