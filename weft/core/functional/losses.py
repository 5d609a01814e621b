"""Losses: how far predictions are from targets.

`size_average` and `reduce` are torch's older way to say `reduction`; they win over it when given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.autograd.value import Value, apply, composed
from weft.core.args import broadcast as bc
from weft.core.args.axes import axis
from weft.core.args.broadcast import size_tensor
from weft.core.args.handle import describe, value_of, wrap
from weft.core.args.requirements import at_least, floats, needs, one_dtype
from weft.core.composed.autocast import widens
from weft.core.composed.composite import composite
from weft.core.composed.known_values import check_known
from weft.core.composed.precision import rounded_once
from weft.core.functional.activations import log_one_plus_exp, log_softmax
from weft.core.functions.reductions import mean, sum
from weft.core.layout.gather import index_range, index_value, take
from weft.core.pointwise.elementwise import (
    abs,
    clamp,
    exp,
    log,
    lt,
    mul,
    ne,
    neg,
    sub,
    where,
)  # fmt: skip
from weft.errors import ArgumentError, DTypeError, IndexError, ShapeError
from weft.ir.graph import Along, elements
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def how_reduced(
    op: str, size_average: bool | str | None, reduce: bool | None, reduction: str, *more: str
) -> str:
    """The reduction asked for, by its name or in torch's older way. ArgumentError for an unknown name."""
    if isinstance(size_average, str):
        raise ArgumentError(f"{op}: this place is size_average's; pass reduction={size_average!r} by name")
    if size_average is not None or reduce is not None:
        if reduce is False:
            return "none"
        return "sum" if size_average is False else "mean"
    if reduction not in ("mean", "sum", "none", *more):
        names = ", ".join(map(repr, ("mean", "sum", *more)))
        raise ArgumentError(f"{op}: reduction must be {names} or 'none', got {reduction!r}")
    return reduction


def reduced(loss: Tensor, how: str) -> Tensor:
    """The mean or sum of a loss, or the loss itself."""
    return mean(loss) if how == "mean" else sum(loss) if how == "sum" else loss


def _same_shape(op: str, input: Tensor, target: Tensor) -> None:
    x, y = value_of(op, input).shape, value_of(op, target).shape
    if x != y:
        raise ShapeError(f"{op}: input has shape {tuple(x)}, target {tuple(y)}; they must be equal")


def _difference(op: str, input: Tensor, target: Tensor) -> Tensor:
    """input - target, of which one may be bools."""
    x, y = value_of(op, input), value_of(op, target)
    dtype = bc.result_dtype((x, y))
    return sub(wrap(bc.cast(x, dtype)), wrap(bc.cast(y, dtype)))


def _weighted_mean(op: str, loss: Tensor, weight: Tensor | None, how: str) -> Tensor:
    """The loss times its weights; the mean is divided by the sum of the weights."""
    if weight is None:
        return reduced(loss, how)
    if value_of(op, weight).shape != loss.value.shape:
        raise ShapeError(
            f"{op}: weight has shape {tuple(weight.value.shape)}, the loss {tuple(loss.value.shape)}"
        )
    each = loss * weight
    return sum(each) / sum(weight) if how == "mean" else reduced(each, how)


@composite(autocast=widens)
def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """(input - target)**2; both broadcast. With a weight per element, the mean is weighted."""
    value_of("mse_loss", target)
    how = how_reduced("mse_loss", size_average, reduce, reduction)
    d = _difference("mse_loss", input, target)
    return _weighted_mean("mse_loss", d * d, weight, how)


@composite(autocast=widens)
def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """|input - target|; both broadcast. With a weight per element, the mean is weighted."""
    value_of("l1_loss", target)
    how = how_reduced("l1_loss", size_average, reduce, reduction)
    return _weighted_mean("l1_loss", abs(_difference("l1_loss", input, target)), weight, how)


@composite(autocast=widens)
@needs(floats("input", "target"), at_least("delta", 0, above=True))
def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """d**2 / 2 where d = |input - target| <= delta, else delta * (d - delta / 2)."""
    if delta <= 0:
        raise ArgumentError(f"huber_loss: delta must be positive, got {delta}")
    how = how_reduced("huber_loss", None, None, reduction)
    apart = _difference("huber_loss", input, target)
    d = abs(apart)  # whose square has no second derivative at 0
    loss = where(lt(d, delta), apart * apart * 0.5, (d - 0.5 * delta) * delta)
    return _weighted_mean("huber_loss", loss, weight, how)


@composite(autocast=widens)
def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """d**2 / (2 beta) where d = |input - target| < beta, else d - beta / 2."""
    if beta < 0:
        raise ArgumentError(f"smooth_l1_loss: beta must not be negative, got {beta}")
    how = how_reduced("smooth_l1_loss", size_average, reduce, reduction)
    apart = _difference("smooth_l1_loss", input, target)
    d = abs(apart)  # whose square has no second derivative at 0
    smooth = where(lt(d, beta), apart * apart * (0.5 / beta), d - 0.5 * beta) if beta else d
    return reduced(smooth, how)


@composite(autocast=widens)
@needs(floats("input", "target"))
def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """target * (log(target) - input), input being log-probabilities; "batchmean" divides the sum by the batch size."""
    how = how_reduced("kl_div", size_average, reduce, reduction, "batchmean")
    if log_target:
        loss = exp(target) * (target - input)
    else:
        positive = where(ne(target, 0), target, 1.0)
        loss = target * log(positive) - target * input
    if how == "batchmean":
        n = loss.value.shape[0] if loss.value.shape else 1
        return sum(loss) / size_tensor(n, loss.value.dtype)
    return reduced(loss, how)


@composite(autocast=widens, recorded=False)
@needs(floats("input", "target"), one_dtype("input", "target"))
def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-(y log x + (1 - y) log(1 - x)), the logarithms at least -100."""
    how = how_reduced("binary_cross_entropy", size_average, reduce, reduction)
    _same_shape("binary_cross_entropy", input, target)
    check_known("binary_cross_entropy", "input", input.value, 0, 1)
    check_known("binary_cross_entropy", "target", target.value, 0, 1)
    loss = wrap(
        _cross_entropy_of_two(
            input.value, bc.cast(value_of("binary_cross_entropy", target), input.value.dtype)
        )
    )
    return reduced(loss if weight is None else loss * weight, how)


def _cross_entropy_of_two(x: Value, y: Value) -> Value:
    """-(y log x + (1 - y) log(1 - x)). Its gradient, (x - y) / max(x (1 - x), 1e-12), is finite at 0 and 1."""
    p, t = wrap(Value(x.node)), wrap(Value(y.node))
    yes, no = clamp(log(p), min=-100.0), clamp(log(1 - p), min=-100.0)

    def rule(g: Value, _out: Value, x: Value, y: Value) -> tuple[Value, Value]:
        p, t, slope = wrap(x), wrap(y), wrap(g)
        by_x = slope * (p - t) / clamp(p * (1 - p), min=1e-12)
        return by_x.value, (slope * (log(1 - p) - log(p))).value

    return composed(neg(t * yes + (1 - t) * no).value.node, (x, y), rule)


@composite(autocast=widens)
@needs(floats("input", "target"))
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """binary_cross_entropy of sigmoid(input), without overflow: (1 - y) x + w (log(1 + exp(-|x|)) + max(-x, 0))."""
    how = how_reduced("binary_cross_entropy_with_logits", size_average, reduce, reduction)
    _same_shape("binary_cross_entropy_with_logits", input, target)
    x, y = input, target
    smooth = log_one_plus_exp(neg(x))
    loss = (1 - y) * x + (smooth if pos_weight is None else smooth * ((pos_weight - 1) * y + 1))
    return reduced(loss if weight is None else loss * weight, how)


def _classes(op: str, input: Tensor, target: Tensor) -> tuple[Value, Value, int]:
    """Input, target indices, and the axis of the classes: 1, or 0 without a batch."""
    x, y = value_of(op, input), index_value(op, target)
    k = 0 if len(x.shape) == 1 else 1
    if not x.shape or (*x.shape[:k], *x.shape[k + 1 :]) != y.shape:
        raise ShapeError(
            f"{op}: input of shape {tuple(x.shape)} needs a target of shape {(*x.shape[:k], *x.shape[k + 1 :])}, "
            f"got {tuple(y.shape)}"
        )
    if not x.dtype.is_float:
        raise DTypeError(f"{op}: needs float input, got {x.dtype.name}")
    return x, y, k


def _check_targets(op: str, y: Value, classes: object, ignore_index: int) -> None:
    known = index_range(y)
    if known is None or not isinstance(classes, int):
        return
    for bad in known:
        if not 0 <= bad < classes and bad != ignore_index:
            raise IndexError(f"{op}: target {bad} is out of range for {classes} classes")


@composite(autocast=widens, recorded=False)
@needs(one_dtype("input", "weight"))
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-weight[target] * input[target], input being log-probabilities; targets equal to ignore_index count for nothing.

    Shapes: input (n, classes, ...) or (classes), target (n, ...) or () of class indices. The mean is weighted.
    """
    how = how_reduced("nll_loss", size_average, reduce, reduction)
    x, y, k = _classes("nll_loss", input, target)
    ignores = _some_ignored("nll_loss", x, y, k, ignore_index)
    return _nll_of("nll_loss", wrap(x), wrap(y), k, weight, ignore_index, ignores, how)


def _some_ignored(op: str, x: Value, y: Value, k: int, ignore_index: int) -> bool:
    """False where no target is known to count for nothing; IndexError for targets that are no classes, of axis k."""
    _check_targets(op, y, x.shape[k], ignore_index)
    bc.same_device(op, (x, y))
    known = index_range(y)
    return known is None or known[0] <= ignore_index <= known[1]


@composite
def _nll_of(
    op: str,
    input: Tensor,
    at: Tensor,
    k: int,
    weight: Tensor | None,
    ignore_index: int,
    ignores: bool,
    reduction: str,
    scores: bool = False,
) -> Tensor:
    """nll_loss with targets that were checked. `ignores`: some may count for nothing; `scores`: log_softmax of the
    input is meant, in one call, as most training has it at each step."""
    x, y = (log_softmax(input, k) if scores else input).value, at.value
    counted = ne(at, ignore_index)
    safe = where(counted, at, 0) if ignores else at
    wide = bc.reshape(safe.value, (*y.shape[:k], 1, *y.shape[k:]))
    picked = wrap(bc.reshape(apply(Op.GATHER, (x, wide), Along(k)), y.shape))
    loss = neg(picked)
    each: Tensor | None = None
    if weight is not None:
        w = value_of(op, weight)
        if w.shape != (x.shape[k],):
            raise ShapeError(f"{op}: weight must have shape ({x.shape[k]},), got {tuple(w.shape)}")
        each = take(weight, safe)
        loss = loss * each
    if ignores:
        loss = where(counted, loss, 0.0)
        each = where(counted, 1.0 if each is None else each, 0.0)
    if reduction != "mean" or each is None:
        return reduced(loss, reduction)
    return sum(loss) / wrap(bc.cast(sum(each).value, x.dtype))


@composite(autocast=widens, recorded=False)
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log(softmax(input)[target]): log_softmax and nll_loss together.

    Shapes: input (n, classes, ...) or (classes); target (n, ...) of class indices, or probabilities shaped like input.
    label_smoothing mixes the target with the uniform distribution.
    """
    if not 0.0 <= label_smoothing <= 1.0:
        raise ArgumentError(f"cross_entropy: label_smoothing must be between 0 and 1, got {label_smoothing}")
    reduction = how_reduced("cross_entropy", size_average, reduce, reduction)
    v, t = value_of("cross_entropy", input), value_of("cross_entropy", target)
    k = axis("cross_entropy", 0 if len(v.shape) == 1 else 1, v.shape)
    if t.dtype.is_float:
        if t.shape != v.shape:
            raise ShapeError(
                f"cross_entropy: a float target is a probability per class and has the shape of the input, "
                f"{tuple(v.shape)}, got {tuple(t.shape)}; make class numbers integers with .long()"
            )
        return _soft_cross_entropy(input, target, k, weight, reduction, label_smoothing)
    _, y, k = _classes("cross_entropy", input, target)
    op = "cross_entropy"
    ignores = _some_ignored(op, v, y, k, ignore_index)
    if not label_smoothing:
        return _nll_of(op, input, wrap(y), k, weight, ignore_index, ignores, reduction, scores=True)
    logs = log_softmax(input, k)
    hard = _nll_of(op, logs, wrap(y), k, weight, ignore_index, ignores, reduction)
    n = v.shape[k]
    if not isinstance(n, int):
        raise ShapeError("cross_entropy: label_smoothing needs a known number of classes")
    counted = ne(target, ignore_index)
    spread_ = neg(sum(logs if weight is None else logs * _channel(weight, k, len(v.shape)), k))
    smooth = where(counted, spread_, 0.0)
    if reduction == "mean":
        if weight is None:
            total: Tensor = wrap(bc.cast(sum(counted).value, v.dtype))
        else:
            total = sum(where(counted, take(weight, where(counted, target, 0)), 0.0))
        smooth = sum(smooth) / total
    elif reduction == "sum":
        smooth = sum(smooth)
    return hard * (1.0 - label_smoothing) + smooth * (label_smoothing / n)


def _channel(weight: Tensor, k: int, rank: int) -> Tensor:
    """Class weights, shaped to broadcast along axis k."""
    w = value_of("cross_entropy", weight)
    return wrap(bc.reshape(w, (*w.shape, *(1 for _ in range(rank - k - 1)))))


def _soft_cross_entropy(
    input: Tensor, target: Tensor, k: int, weight: Tensor | None, reduction: str, label_smoothing: float
) -> Tensor:
    _same_shape("cross_entropy", input, target)
    shape = input.value.shape
    n = shape[k]
    if label_smoothing and isinstance(n, int):
        target = target * (1.0 - label_smoothing) + label_smoothing / n
    logs = log_softmax(input, k)
    loss = neg(
        sum(mul(logs, target) if weight is None else logs * target * _channel(weight, k, len(shape)), k)
    )
    if reduction != "mean":
        return reduced(loss, reduction)
    return sum(loss) / size_tensor(elements((*shape[:k], *shape[k + 1 :])), logs.value.dtype)


@rounded_once
def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: object = None,
) -> Tensor:
    """cross_entropy(linear(input, linear_weight, linear_bias), target). `options` are accepted and have no effect.

    Shapes: (n, in) or (in), linear_weight (classes, ..., in), target (n, ...) of class indices or (n, classes, ...).
    """
    from weft.core.functional.linear_maps import linear

    x, w = (
        value_of("linear_cross_entropy", input).shape,
        value_of("linear_cross_entropy", linear_weight).shape,
    )
    if len(w) < 2 or not x or x[-1] != w[-1]:
        raise ShapeError(
            f"linear_cross_entropy: input of shape {tuple(x)} does not fit linear_weight of shape {tuple(w)}, which "
            "must be (classes, ..., in)"
        )
    y = value_of("linear_cross_entropy", target)
    if len(w) > 2 and len(x) < 2:
        raise ShapeError(
            f"linear_cross_entropy: with linear_weight of shape {tuple(w)}, input must be (n, in), got {tuple(x)}"
        )
    if linear_bias is not None and value_of("linear_cross_entropy", linear_bias).shape != w[:-1]:
        raise ShapeError(
            f"linear_cross_entropy: linear_bias must have shape {tuple(w[:-1])}, got {describe(linear_bias)}"
        )
    if ignore_index is not None and y.dtype.is_float:
        raise ArgumentError(
            "linear_cross_entropy: ignore_index needs class indices, and target holds probabilities"
        )
    rows = wrap(bc.reshape(linear_weight.value, (elements(w[:-1]), w[-1])))
    bias = None if linear_bias is None else wrap(bc.reshape(linear_bias.value, (elements(w[:-1]),)))
    logits = wrap(bc.reshape(linear(input, rows, bias).value, (*x[:-1], *w[:-1])))
    ignored = -100 if ignore_index is None else ignore_index
    return cross_entropy(
        logits, target, weight, ignore_index=ignored, reduction=reduction, label_smoothing=label_smoothing
    )
