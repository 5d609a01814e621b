"""Elementwise functions beside the operators: what ignores NaN, what counts in integers, what tests signs."""
# Tests: tests/core/test_torch_samples.py, tests/core/surface/test_foreach.py

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from weft.autograd.value import Value, zero_gradient
from weft.core.args import broadcast as bc
from weft.core.args.handle import Handle, Number, TensorLike, describe, value_of, wrap
from weft.core.pointwise.elementwise import (
    abs,
    clamp,
    eq,
    floor_divide,
    ge,
    gt,
    isnan,
    le,
    logical_or,
    ne,
    pow,
    remainder,
    sign,
    sub,
    where,
)  # fmt: skip
from weft.errors import DTypeError
from weft.ir.dtypes import bool_, float64

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def fmax(input: Tensor, other: Tensor) -> Tensor:
    """The larger of both; where one is NaN, the other."""
    return where(logical_or(ge(input, other), isnan(other)), input, other)


def fmin(input: Tensor, other: Tensor) -> Tensor:
    """The smaller of both; where one is NaN, the other."""
    return where(logical_or(le(input, other), isnan(other)), input, other)


def clamp_min(input: Tensor, min: TensorLike) -> Tensor:
    """input, at least min."""
    return clamp(input, min=min)


def clamp_max(input: Tensor, max: TensorLike) -> Tensor:
    """input, at most max."""
    return clamp(input, max=max)


def rsub(input: Tensor, other: TensorLike, *, alpha: Number = 1) -> Tensor:
    """other - alpha * input."""
    return sub(other, input, alpha=alpha)


def float_power(input: TensorLike, exponent: TensorLike) -> Tensor:
    """input ** exponent in float64."""

    def wide(x: TensorLike) -> TensorLike:
        return wrap(bc.cast(x.value, float64)) if isinstance(x, Handle) else float(x)

    base = wide(input)
    if not isinstance(base, Handle) and isinstance(exponent, Handle):
        base = wrap(bc.scalar(float(base), float64, ()))
    return pow(base, wide(exponent))


def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 below 0, `values` at 0, 1 above."""
    x, v = value_of("heaviside", input), value_of("heaviside", values)
    if x.dtype is not v.dtype:
        raise DTypeError(
            f"heaviside: input is {x.dtype.name}, values {v.dtype.name}; convert one with .to(...)"
        )
    above = wrap(bc.cast(gt(input, 0).value, x.dtype))
    return wrap(zero_gradient(where(eq(input, 0), values, above).value, x))


def sgn(input: Tensor) -> Tensor:
    """The sign, as for complex numbers in torch."""
    return sign(input)


def isposinf(input: Tensor) -> Tensor:
    """True where the input is +inf."""
    return eq(input, math.inf) if value_of("isposinf", input).dtype.is_float else ne(input, input)


def isneginf(input: Tensor) -> Tensor:
    """True where the input is -inf."""
    return eq(input, -math.inf) if value_of("isneginf", input).dtype.is_float else ne(input, input)


def isreal(input: Tensor) -> Tensor:
    """True everywhere: weft has real numbers only."""
    v = value_of("isreal", input)
    return wrap(bc.scalar(True, bool_, v.shape))


def _integers(op: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    a, b = bc.operand(op, x), bc.operand(op, y)
    dtype = bc.result_dtype((a, b))
    if not dtype.is_int:
        raise DTypeError(f"{op}: needs integer tensors, got {describe(x)} and {describe(y)}")
    left, right = bc.broadcast(op, (a, b), dtype)
    return wrap(Value(left.node)), wrap(Value(right.node))


def gcd(input: Tensor, other: Tensor) -> Tensor:
    """The greatest common divisor, by Euclid's steps, as many as the width of the dtype can need."""
    a, b = _integers("gcd", input, other)
    signed = a.value.dtype.min != 0
    a, b = (abs(a), abs(b)) if signed else (a, b)
    for _ in range(math.ceil(a.value.dtype.bits * 1.45)):
        a, b = where(eq(b, 0), a, b), remainder(a, b)
    return abs(a) if signed else a


def lcm(input: Tensor, other: Tensor) -> Tensor:
    """The least common multiple; 0 where either is 0."""
    a, b = _integers("lcm", input, other)
    divisor = gcd(a, b)
    whole = floor_divide(a, where(eq(divisor, 0), 1, divisor)) * b
    return abs(whole) if a.value.dtype.min != 0 else whole
