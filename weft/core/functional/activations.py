"""Activation functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from weft.autograd.value import Value
from weft.core.args import broadcast as bc
from weft.core.args.axes import axis
from weft.core.args.defaults import get_default_dtype
from weft.core.args.handle import Handle, describe, value_of, wrap
from weft.core.args.requirements import at_least, finite, floats, needs, one_dtype
from weft.core.composed.autocast import widens_on_gpus
from weft.core.composed.composite import composite
from weft.core.composed.precision import widened
from weft.core.composed.smooth import smooth
from weft.core.functions.reductions import reduce
from weft.core.layout.movement import chunk, positions
from weft.core.pointwise.elementwise import (
    abs,
    clamp,
    div,
    eq,
    erf,
    exp,
    expm1,
    ge,
    gt,
    le,
    log,
    log1p,
    logical_and,
    lt,
    maximum,
    neg,
    sigmoid,
    sub,
    tanh,
    where,
    with_gradient_of,
)  # fmt: skip
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import DType, Kind, float64
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def into(input: Tensor, out: Tensor, inplace: bool) -> Tensor:
    """`out`, or with inplace the input, which stands for it from now on."""
    return input.become("copy_", out.value) if inplace else out


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0); NaN stays, the gradient at 0 is 0."""
    v = value_of("relu", input)
    if v.dtype.kind is Kind.BOOL:
        raise DTypeError("relu: not defined on bool; convert with .to(...) first")
    return into(input, _relu(input), inplace)


@composite(rounds_once=False)
def _relu(input: Tensor) -> Tensor:
    return where(le(input, 0), 0, input)


def _only_floats(op: str, input: Tensor) -> None:
    """As the requirement `floats`, for functions that take little longer than to look at requirements."""
    if isinstance(input, Handle) and not input.value.node.dtype.is_float:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DTypeError(
            f"{op}: input must be a float tensor, got {input.value.dtype.name}; convert it with .float()"
        )


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(x, 0), 6)."""
    if value_of("relu6", input).dtype.kind is Kind.BOOL:
        raise DTypeError("relu6: not defined on bool; convert with .to(...) first")
    return hardtanh(input, 0.0, 6.0, inplace)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """x limited to [min_val, max_val]; the gradient on the bounds is 0."""
    if min_val > max_val:
        raise ArgumentError(f"hardtanh: min_val {min_val} must not be greater than max_val {max_val}")
    if min_val != min_val or max_val != max_val:
        min_val = max_val = math.nan
    inner = where(ge(input, max_val), max_val, input) if max_val == max_val else input * max_val
    out = where(le(input, min_val), min_val, inner)
    return into(input, wrap(bc.cast(out.value, value_of("hardtanh", input).dtype)), inplace)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x for x > 0, else negative_slope * x."""
    _only_floats("leaky_relu", input)
    return into(input, where(gt(input, 0), input, input * negative_slope), inplace)


@composite
@needs(one_dtype("input", "weight"), floats("input"))
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x for x > 0, else weight * x; one weight, or one per channel (dimension 1)."""
    w, rank = value_of("prelu", weight), len(value_of("prelu", input).shape)
    if w.shape == (1,) and rank == 0:
        w = bc.reshape(w, ())
    channels = value_of("prelu", input).shape[1] if rank > 1 else 1
    if w.shape not in ((), (1,), (channels,)):
        raise ShapeError(
            f"prelu: weight must have one element or one per channel, got shape {tuple(w.shape)} for "
            f"{describe(input)}"
        )
    if w.shape not in ((), (1,)) and rank > 1:
        w = bc.reshape(w, (*w.shape, *(1 for _ in range(rank - 2))))
    return where(gt(input, 0), input, wrap(w) * input)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x for x > threshold, else value."""
    v = value_of("threshold", input)
    if v.dtype.is_int and math.isfinite(threshold):
        threshold = int(threshold)  # as in torch
    x = wrap(widened(v)) if v.dtype.is_float else input
    out = where(le(x, threshold), value, x)
    return into(input, wrap(bc.cast(out.value, v.dtype)), inplace)


_threshold = threshold  # a name that the argument does not hide


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x for x > 0, else alpha * (exp(x) - 1)."""
    return into(input, _elu(input, alpha), inplace)


@composite
@needs(floats("input"))
def _elu(input: Tensor, alpha: float) -> Tensor:
    return where(le(input, 0), expm1(_not_above_zero(input)) * alpha, input)


def _not_above_zero(x: Tensor) -> Tensor:
    """min(x, 0) with the derivative 1 at 0, where that of the minimum is a half."""
    return where(le(x, 0), x, 0.0)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x for x > 0, else alpha * (exp(x / alpha) - 1)."""
    if alpha == 0:
        raise ArgumentError("celu: alpha must not be 0, by which is divided")
    return into(input, _celu(input, alpha), inplace)


@composite
@needs(floats("input"))
def _celu(input: Tensor, alpha: float) -> Tensor:
    return where(le(input, 0), expm1(_not_above_zero(input) / alpha) * alpha, input)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """elu with the scale and alpha that keep mean 0 and variance 1 (Klambauer et al. 2017, arXiv:1706.02515)."""
    return into(input, _selu(input), inplace)


@composite
@needs(floats("input"))
def _selu(input: Tensor) -> Tensor:
    return _elu(input, 1.6732632423543772848) * 1.0507009873554804934


@composite
@needs(floats("input"))
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x * Phi(x), Phi the normal distribution function; "tanh": 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x**3))).

    Source: Hendrycks & Gimpel 2016, arXiv:1606.08415.
    """
    x = input
    if approximate == "tanh":
        return x * 0.5 * (tanh((x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)) + 1)
    if approximate != "none":
        raise ArgumentError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    return x * 0.5 * (erf(x * math.sqrt(0.5)) + 1)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x * sigmoid(x)."""
    return into(input, _silu(input), inplace)


@composite
@needs(floats("input"))
def _silu(input: Tensor) -> Tensor:
    return input * sigmoid(input)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * tanh(softplus(x))."""
    return into(input, _mish(input), inplace)


@composite
@needs(floats("input"))
def _mish(input: Tensor) -> Tensor:
    return input * tanh(softplus(input))


@composite(autocast=widens_on_gpus)
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta, and x where beta x > threshold."""
    y = input * beta if beta != 1.0 else input
    curve = log_one_plus_exp(y)
    return where(gt(y, threshold), input, curve / beta if beta != 1.0 else curve)


@composite
@needs(floats("input"))
def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(x)) = min(x, 0) - log(1 + exp(-|x|))."""
    return neg(log_one_plus_exp(neg(input)))


def log_one_plus_exp(x: Tensor) -> Tensor:
    """log(1 + exp(x)), without overflow. Its value is made of functions with kinks at 0; its derivatives are smooth."""
    return smooth("softplus", x, lambda x: maximum(x, 0.0) + log1p(exp(neg(abs(x)))), sigmoid)


@composite
def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return div(input, abs(input) + 1)


@composite
def tanhshrink(input: Tensor) -> Tensor:
    """x - tanh(x), near 0 by Lambert's continued fraction tanh(x) = x / (1 + q), q = x**2 / (3 + x**2 / (5 + ...))."""

    def value(x: Tensor) -> Tensor:
        square, q = x * x, x * 0.0
        for k in range(13 if x.value.dtype is float64 else 7, 0, -1):
            q = square / (q + (2 * k + 1))
        return where(lt(abs(x), 1.5), x * (q / (q + 1)), sub(x, tanh(x)))

    return smooth("tanhshrink", input, value, lambda x: tanh(x) * tanh(x))


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(x + 3, 0), 6) / 6."""
    return into(input, _hardsigmoid(input), inplace)


@composite
@needs(floats("input"))
def _hardsigmoid(input: Tensor) -> Tensor:
    return hardtanh(input + 3, 0.0, 6.0) / 6


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * hardsigmoid(x)."""
    return into(input, _hardswish(input), inplace)


@composite
@needs(floats("input"))
def _hardswish(input: Tensor) -> Tensor:
    def slope(x: Tensor) -> Tensor:
        return where(le(x, -3), 0.0, where(lt(x, 3), x / 3 + 0.5, 1.0))

    return smooth("hardswish", input, lambda x: x * (clamp(x + 3, 0.0, 6.0) / 6), slope)


@composite
@needs(floats("input"))
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half along dim times the sigmoid of the second."""
    v = value_of("glu", input)
    n = v.shape[axis("glu", dim, v.shape)]
    if isinstance(n, int) and n % 2:
        raise ShapeError(f"glu: dimension {dim} of shape {tuple(v.shape)} must have an even size")
    a, b = chunk(input, 2, dim)
    return a * sigmoid(b)


@composite(rounds_once=False)
@needs(floats("input"))
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x where |x| > lambd, else 0."""
    return where(logical_and(ge(input, -lambd), le(input, lambd)), 0.0, input)


@composite
@needs(floats("input"), at_least("lambd", 0), finite("lambd"))
def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved by lambd toward 0, and 0 where |x| <= lambd."""
    if lambd < 0:
        raise ArgumentError(f"softshrink: lambd must not be negative, got {lambd}")
    near = logical_and(ge(input, -lambd), le(input, lambd))
    return where(near, 0.0, where(gt(input, 0), input - lambd, input + lambd))


@needs(floats("input"), finite("lower", "upper"))
def rrelu(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """x for x > 0, else a x, a drawn from [lower, upper) in training and their mean otherwise.

    Source: Xu et al. 2015, arXiv:1505.00853.
    """
    v = value_of("rrelu", input)
    if not v.dtype.is_float:
        raise DTypeError(f"rrelu: needs a float tensor, got {v.dtype.name}; convert it with .float()")
    if lower > upper:
        raise ArgumentError(f"rrelu: lower {lower} must not be greater than upper {upper}")
    slope = (lower + upper) / 2
    if training:
        from weft.core.functions.random import uniform

        return into(input, _leaking(input, uniform(v.shape, v.dtype, None, v), lower, upper), inplace)
    return into(input, where(gt(input, 0), input, input * slope), inplace)


@composite
def _leaking(input: Tensor, drawn: Tensor, lower: float, upper: float) -> Tensor:
    return where(le(input, 0), input * (drawn * (upper - lower) + lower), input)


def gumbel_softmax(
    logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """softmax((logits + g) / tau), g Gumbel noise; hard: one-hot, with the gradient of the soft sample.

    Source: Jang, Gu & Poole 2016, arXiv:1611.01144. eps has no effect, as in torch.
    """
    from weft.core.functions.random import uniform
    from weft.core.functions.reductions import argmax

    v = value_of("gumbel_softmax", logits)
    if not v.dtype.is_float:
        raise DTypeError(
            f"gumbel_softmax: needs float logits, got {v.dtype.name}; convert them with .float()"
        )
    u = uniform(v.shape, v.dtype, None, v)
    tiny = 2.0**-126 if v.dtype.bits > 16 else 2.0**-14
    soft = _perturbed(logits, u, tiny, tau, dim)
    if not hard:
        return soft
    k = axis("gumbel_softmax", dim, v.shape)
    best = argmax(wrap(Value(soft.value.node)), k, keepdim=True)
    picked = wrap(bc.cast(eq(wrap(positions(v.shape, k)), best).value, v.dtype))
    return with_gradient_of(picked, soft * 1.0)


@composite
def _perturbed(logits: Tensor, u: Tensor, tiny: float, tau: float, dim: int) -> Tensor:
    """softmax((logits + g) / tau), g Gumbel noise of u on [0, 1)."""
    noise = neg(log(neg(log(maximum(u, tiny)))))
    return softmax((logits + noise) / tau, dim)


def relu_(input: Tensor) -> Tensor:
    """relu in place."""
    return relu(input, True)


def elu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """elu in place."""
    return elu(input, alpha, True)


def selu_(input: Tensor) -> Tensor:
    """selu in place."""
    return selu(input, True)


def celu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """celu in place."""
    return celu(input, alpha, True)


def leaky_relu_(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """leaky_relu in place."""
    return leaky_relu(input, negative_slope, True)


def hardtanh_(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """hardtanh in place."""
    return hardtanh(input, min_val, max_val, True)


def threshold_(input: Tensor, threshold: float, value: float) -> Tensor:
    """threshold in place."""
    return _threshold(input, threshold, value, True)


def rrelu_(input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False) -> Tensor:
    """rrelu in place."""
    return rrelu(input, lower, upper, training, True)


def _implicit(dim: int | None, rank: int) -> int:
    """torch's older choice of a dimension when none is given: the channels."""
    return dim if dim is not None else 0 if rank in (0, 1, 3) else 1


def _softmax_input(
    op: str, input: Tensor, dim: int | None, dtype: DType | None
) -> tuple[Tensor, tuple[int, ...], DType]:
    """x - max(x) in the accumulator's dtype, the axes of the reduction, and the dtype of the result.

    The maximum cancels in the result, so for differentiation it is a constant.
    """
    v = value_of(op, input)
    if dtype is not None:
        v = bc.cast(v, dtype)
    elif not v.dtype.is_float:
        v = bc.cast(v, get_default_dtype())
    k = axis(op, _implicit(dim, len(v.shape)), v.shape)
    over = (k,) if v.shape else ()
    x = widened(v)
    if any(x.shape[k] == 0 for k in over):
        return wrap(x), over, v.dtype
    top = Value(reduce(Op.REDUCE_MAX, x, over, keepdim=True).node)
    return wrap(x) - wrap(bc.expand(top, x.shape)), over, v.dtype


@composite(autocast=widens_on_gpus)
@needs(floats("input", unless="dtype"))
def softmax(
    input: Tensor, dim: int | None = None, dtype: DType | None = None, _stacklevel: int = 3
) -> Tensor:
    """exp(x) / sum(exp(x)) along dim, the maximum taken out first."""
    x, over, result = _softmax_input("softmax", input, dim, dtype)
    e = exp(x)
    total = bc.expand(reduce(Op.SUM, e.value, over, keepdim=True), e.value.shape)
    return wrap(bc.cast((e / wrap(total)).value, result))


@composite(autocast=widens_on_gpus)
@needs(floats("input", unless="dtype"))
def softmin(
    input: Tensor, dim: int | None = None, dtype: DType | None = None, _stacklevel: int = 3
) -> Tensor:
    """softmax of -x."""
    return softmax(neg(input), dim, dtype)


@composite(autocast=widens_on_gpus)
@needs(floats("input", unless="dtype"))
def log_softmax(
    input: Tensor, dim: int | None = None, dtype: DType | None = None, _stacklevel: int = 3
) -> Tensor:
    """x - log(sum(exp(x))) along dim, the maximum taken out first."""
    x, over, result = _softmax_input("log_softmax", input, dim, dtype)
    total = log(wrap(reduce(Op.SUM, exp(x).value, over, keepdim=True)))
    return wrap(bc.cast((x - wrap(bc.expand(total.value, x.value.shape))).value, result))


__all__ = [
    "celu", "elu", "gelu", "glu", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu",
    "log_softmax", "logsigmoid", "mish", "prelu", "relu", "relu6", "rrelu", "selu", "sigmoid", "silu", "softmax",
    "softmin",
    "softplus", "softshrink", "softsign", "tanh", "tanhshrink", "threshold",
]  # fmt: skip
