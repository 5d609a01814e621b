"""Constant folding: what an elementwise op gives on constants, in plain Python numbers.

The results are those of `weft.ir.reference_ops`, to the bit for everything that IEEE 754 rounds correctly and for
integers; the transcendental functions go through float64 and are rounded, which is at least as good as any backend.
In the mode "same" (`numerics.py`) kernels compute these, as it depends on a graph's form what is constant in a kernel.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.expr import Const, Expr, Scalar, normalize
from weft.ir.float8 import decode, encode
from weft.ir.numerics import pinned
from weft.ir.ops import Op
from weft.ir.reference_ops import FUNCTIONS

if TYPE_CHECKING:
    from fractions import Fraction

_FORMAT = {
    dtypes.uint8: "B", dtypes.uint16: "H", dtypes.uint32: "I", dtypes.uint64: "Q", dtypes.int8: "b",
    dtypes.int16: "h", dtypes.int32: "i", dtypes.int64: "q", dtypes.float16: "e", dtypes.float32: "f",
    dtypes.float64: "d",
}  # fmt: skip
_NAN = math.nan


def fold(op: Op, dtype: DType, args: tuple[Expr, ...]) -> Scalar | None:
    """The value of `op` on constants, as `dtype` holds it; None where it cannot be told or is not worth telling."""
    values: list[Any] = []
    for a in args:
        if not isinstance(a, Const):
            return None
        values.append(a.value)
    source = args[0].dtype
    match op:
        case Op.CAST:
            return _cast(source, dtype, values[0])
        case Op.BITCAST:
            return _bitcast(source, dtype, values[0])
        case Op.WHERE:
            return values[1] if values[0] else values[2]
        case Op.SHL | Op.SHR:
            return normalize(dtype, _shift(op, source, *values))
        case Op.FMA:
            return _fma(dtype, *values)
        case Op.NOT:
            return not values[0] if source is dtypes.bool_ else normalize(dtype, ~values[0])
        case _:
            rule = (_FLOAT if source.is_float else _INTEGER).get(op)
            if (
                op in FUNCTIONS
                and source.is_float
                and pinned()
                and any(x and math.isfinite(x) for x in values)
            ):
                return None  # at 0, infinities and NaN kernels give the same bits
            return None if rule is None else rounded(dtype, rule(*values))


def rounded(dtype: DType, value: Scalar) -> Scalar:
    """`value` as `dtype` holds it. What a narrow float holds was computed in f32, as on every device."""
    if dtype.is_narrow:
        value = normalize(dtypes.float32, value)
    return normalize(dtype, value)


def _cast(source: DType, dtype: DType, value: Any) -> Scalar:
    if dtype.is_float and source.is_int and dtype is not dtypes.float64:
        value = _to_odd(value)
    return rounded(dtype, value)


def _bitcast(source: DType, dtype: DType, value: Any) -> Scalar | None:
    if source.bits != dtype.bits or dtypes.bool_ in (source, dtype):
        return None
    if source.is_float8:
        raw = bytes([encode(source, value)])
    elif source is dtypes.bfloat16:
        raw = struct.pack("<f", value)[2:]
    else:
        raw = struct.pack("<" + _FORMAT[source], value)
    if dtype.is_float8:
        return decode(dtype, raw[0])
    if dtype is dtypes.bfloat16:
        return struct.unpack("<f", b"\0\0" + raw)[0]
    return struct.unpack("<" + _FORMAT[dtype], raw)[0]


def _shift(op: Op, dtype: DType, value: int, amount: int) -> int:
    if not 0 <= amount < dtype.bits:
        return -1 if op is Op.SHR and value < 0 else 0
    return value << amount if op is Op.SHL else value >> amount


def _fma(dtype: DType, a: float, b: float, c: float) -> Scalar | None:
    if dtype is not dtypes.float32 and dtype is not dtypes.float64:
        return None
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return a * b + c
    from fractions import Fraction

    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:  # the sign of a zero follows the float rules
        return math.copysign(0.0, a) * math.copysign(1.0, b) + c if a == 0 or b == 0 else 0.0
    try:
        return float(exact) if dtype is dtypes.float64 else normalize(dtype, _to_odd(exact))
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _to_odd(exact: Fraction | int) -> float:
    """`exact` in float64, rounded to odd: rounding that once more to a narrower float cannot go wrong."""
    near = float(exact)
    if near == exact or struct.unpack("<Q", struct.pack("<d", near))[0] & 1:
        return near
    return math.nextafter(near, math.inf if near < exact else -math.inf)


def _total(f: Callable[..., float]) -> Callable[..., float]:
    """`f` of Python's math, giving NaN where that raises."""

    def g(*args: float) -> float:
        try:
            return f(*args)
        except ValueError:
            return _NAN

    return g


def _numpy(f: Callable[..., Any]) -> Callable[..., float]:
    """`f` of NumPy on Python numbers."""

    def g(*args: float) -> float:
        with np.errstate(all="ignore"):
            return float(f(*map(np.float64, args)))

    return g


def _integral(f: Callable[[float], int]) -> Callable[[float], float]:
    def g(x: float) -> float:
        return math.copysign(f(x), x) if math.isfinite(x) else x

    return g


def _div(a: float, b: float) -> float:
    if b != 0:
        return a / b
    return _NAN if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)


def _int_pow(a: int, b: int) -> int:
    if b >= 0:
        return pow(a, b, 1 << 64)
    return 1 if a == 1 else (-1 if b % 2 else 1) if a == -1 else 0


def _extreme(sign: int, a: float, b: float) -> float:
    """The larger (sign 1) or smaller (-1); 0.0 counts as larger than -0.0."""
    if math.isnan(a) or math.isnan(b):
        return _NAN
    if a == b:
        return a if math.copysign(1.0, a) == sign else b
    return a if (a > b) == (sign > 0) else b


def _floordiv(a: int, b: int) -> int:
    return a // b if b else 0


def _mod(a: int, b: int) -> int:
    return a % b if b else 0


def _same(a: int) -> int:
    return a


_ARITHMETIC: dict[Op, Callable[..., Any]] = {
    Op.NEG: operator.neg,
    Op.ABS: abs,
    Op.ADD: operator.add,
    Op.SUB: operator.sub,
    Op.MUL: operator.mul,
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.EQ: operator.eq,
    Op.NE: operator.ne,
}

_INTEGER: dict[Op, Callable[..., Any]] = {
    **_ARITHMETIC,
    Op.MAX: max,
    Op.MIN: min,
    Op.FLOORDIV: _floordiv,
    Op.MOD: _mod,
    Op.POW: _int_pow,
    Op.AND: int.__and__,
    Op.OR: int.__or__,
    Op.XOR: int.__xor__,
    Op.FLOOR: _same,
    Op.CEIL: _same,
    Op.TRUNC: _same,
    Op.ROUND: _same,
}

_FLOAT: dict[Op, Callable[..., Any]] = {
    **_ARITHMETIC,
    **{op: _numpy(f) for op, f in FUNCTIONS.items()},
    Op.RECIP: partial(_div, 1.0),
    Op.DIV: _div,
    Op.SQRT: _total(math.sqrt),
    Op.FLOOR: _integral(math.floor),
    Op.CEIL: _integral(math.ceil),
    Op.TRUNC: _integral(math.trunc),
    Op.ROUND: _integral(round),
    Op.MOD: _total(math.fmod),
    Op.MAX: partial(_extreme, 1),
    Op.MIN: partial(_extreme, -1),
}
