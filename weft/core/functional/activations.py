"""Activation functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from weft.autograd.value import Value
from weft.core import broadcast as bc
from weft.core.axes import axis
from weft.core.defaults import get_default_dtype
from weft.core.elementwise import (
    abs,
    clamp,
    div,
    erf,
    exp,
    expm1,
    ge,
    gt,
    le,
    log,
    log1p,
    maximum,
    minimum,
    neg,
    sigmoid,
    sub,
    tanh,
    where,
)  # fmt: skip
from weft.core.handle import value_of, wrap
from weft.core.movement import chunk
from weft.core.precision import rounded_once, widened
from weft.core.reductions import reduce
from weft.errors import DTypeError, ShapeError
from weft.ir.dtypes import DType, Kind
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor import Tensor


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0); NaN stays, the gradient at 0 is 0."""
    v = value_of("relu", input)
    if v.dtype.kind is Kind.BOOL:
        raise DTypeError("relu: not defined on bool; convert with .to(...) first")
    return where(le(input, 0), 0, input)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(x, 0), 6)."""
    return hardtanh(input, 0.0, 6.0)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """x limited to [min_val, max_val]; the gradient on the bounds is 0."""
    return where(le(input, min_val), min_val, where(ge(input, max_val), max_val, input))


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x for x > 0, else negative_slope * x."""
    return where(gt(input, 0), input, input * negative_slope)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x for x > 0, else weight * x; one weight, or one per channel (dimension 1)."""
    w, rank = value_of("prelu", weight), len(value_of("prelu", input).shape)
    if w.shape not in ((), (1,)) and rank > 1:
        w = bc.reshape(w, (*w.shape, *(1 for _ in range(rank - 2))))
    return where(gt(input, 0), input, wrap(w) * input)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x for x > threshold, else value."""
    return where(le(input, threshold), value, input)


@rounded_once
def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x for x > 0, else alpha * (exp(x) - 1)."""
    return where(gt(input, 0), input, expm1(minimum(input, 0.0)) * alpha)


@rounded_once
def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x for x > 0, else alpha * (exp(x / alpha) - 1)."""
    return where(gt(input, 0), input, expm1(minimum(input, 0.0) / alpha) * alpha)


@rounded_once
def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """elu with the scale and alpha that keep mean 0 and variance 1 (Klambauer et al. 2017, arXiv:1706.02515)."""
    return elu(input, 1.6732632423543772848) * 1.0507009873554804934


@rounded_once
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x * Phi(x), Phi the normal distribution function; "tanh": 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x**3))).

    Source: Hendrycks & Gimpel 2016, arXiv:1606.08415.
    """
    x = input
    if approximate == "tanh":
        return x * 0.5 * (tanh((x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)) + 1)
    if approximate != "none":
        from weft.errors import ArgumentError

        raise ArgumentError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    return x * 0.5 * (erf(x * math.sqrt(0.5)) + 1)


@rounded_once
def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x * sigmoid(x)."""
    return input * sigmoid(input)


@rounded_once
def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * tanh(softplus(x))."""
    return input * tanh(softplus(input))


@rounded_once
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta, and x where beta x > threshold."""
    y = input * beta if beta != 1.0 else input
    smooth = maximum(y, 0.0) + log1p(exp(neg(abs(y))))
    return where(gt(y, threshold), input, smooth / beta if beta != 1.0 else smooth)


@rounded_once
def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(x)) = min(x, 0) - log(1 + exp(-|x|))."""
    return minimum(input, 0.0) - log1p(exp(neg(abs(input))))


@rounded_once
def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return div(input, abs(input) + 1)


@rounded_once
def tanhshrink(input: Tensor) -> Tensor:
    """x - tanh(x)."""
    return sub(input, tanh(input))


@rounded_once
def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(x + 3, 0), 6) / 6."""
    return hardtanh(input + 3, 0.0, 6.0) / 6


@rounded_once
def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * hardsigmoid(x)."""
    return input * clamp(input + 3, 0.0, 6.0) / 6


@rounded_once
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half along dim times the sigmoid of the second."""
    v = value_of("glu", input)
    n = v.shape[axis("glu", dim, v.shape)]
    if isinstance(n, int) and n % 2:
        raise ShapeError(f"glu: dimension {dim} of shape {tuple(v.shape)} must have an even size")
    a, b = chunk(input, 2, dim)
    return a * sigmoid(b)


def _softmax_input(
    op: str, input: Tensor, dim: int, dtype: DType | None
) -> tuple[Tensor, tuple[int, ...], DType]:
    """x - max(x) in the accumulator's dtype, the axes of the reduction, and the dtype of the result.

    The maximum cancels in the result, so for differentiation it is a constant.
    """
    v = value_of(op, input)
    if dtype is not None:
        v = bc.cast(v, dtype)
    elif not v.dtype.is_float:
        v = bc.cast(v, get_default_dtype())
    over = (axis(op, dim, v.shape),) if v.shape else (axis(op, dim, v.shape),)[:0]
    x = widened(v)
    if any(x.shape[k] == 0 for k in over):
        return wrap(x), over, v.dtype
    top = Value(reduce(Op.REDUCE_MAX, x, over, keepdim=True).node)
    return wrap(x) - wrap(bc.expand(top, x.shape)), over, v.dtype


def softmax(input: Tensor, dim: int = -1, dtype: DType | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) along dim, the maximum taken out first."""
    x, over, result = _softmax_input("softmax", input, dim, dtype)
    e = exp(x)
    total = bc.expand(reduce(Op.SUM, e.value, over, keepdim=True), e.value.shape)
    return wrap(bc.cast((e / wrap(total)).value, result))


def softmin(input: Tensor, dim: int = -1, dtype: DType | None = None) -> Tensor:
    """softmax of -x."""
    return softmax(neg(input), dim, dtype)


def log_softmax(input: Tensor, dim: int = -1, dtype: DType | None = None) -> Tensor:
    """x - log(sum(exp(x))) along dim, the maximum taken out first."""
    x, over, result = _softmax_input("log_softmax", input, dim, dtype)
    total = log(wrap(reduce(Op.SUM, exp(x).value, over, keepdim=True)))
    return wrap(bc.cast((x - wrap(bc.expand(total.value, x.value.shape))).value, result))


__all__ = [
    "celu", "elu", "gelu", "glu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log_softmax", "logsigmoid",
    "mish", "prelu", "relu", "relu6", "selu", "sigmoid", "silu", "softmax", "softmin", "softplus", "softsign", "tanh",
    "tanhshrink", "threshold",
]  # fmt: skip
