"""The meaning of each elementwise op on NumPy arrays: one plain table, used by the interpreter and tests.

A rule sees operands of one dtype, bool, integer, f32 or f64. `apply` adds what is common: casts, and that narrow
floats are computed in f32 and rounded. Call it under `np.errstate(all="ignore")` to silence NumPy's warnings.
"""
# Tests: tests/ir/test_fold.py, tests/ir/test_ops.py

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from weft.ir.dtypes import DType, convert_array, to_numpy
from weft.ir.ops import Op

Array: TypeAlias = Any
"""A NumPy array or NumPy scalar."""

_where: Callable[[Array, Array, Array], Array] = np.where


def apply(op: Op, dtype: DType, *args: Array) -> Array:
    """`op` on NumPy operands that broadcast together; the result has the NumPy dtype of `dtype`."""
    match op:
        case Op.CAST:
            return cast(args[0], dtype)
        case Op.BITCAST:
            return np.asarray(args[0]).view(to_numpy(dtype))[()]
        case Op.WHERE:
            return _where(*args)[()]
        case _:
            wide = [
                a.astype(np.float32) if a.dtype.itemsize < 4 and a.dtype.kind not in "biu" else a
                for a in args
            ]
            return cast(np.asarray(REFERENCE[op](*wide))[()], dtype)


def cast(x: Array, dtype: DType) -> Array:
    """`x` converted: float to integer truncates and saturates, NaN gives 0; to narrow floats by way of f32."""
    target = to_numpy(dtype)
    if x.dtype == target:
        return x
    if dtype.is_narrow:
        return convert_array(x.astype(np.float32), dtype)[()]
    if not dtype.is_int or x.dtype.kind in "iub":
        return x.astype(target)
    wide = np.asarray(x.astype(np.float64))
    fits = (wide > float(dtype.min) - 1) & (wide < float(int(dtype.max) + 1))
    inside = _where(fits & ~np.isnan(wide), wide, 0.0).astype(target)
    above, below = np.asarray(int(dtype.max), target), np.asarray(int(dtype.min), target)
    return _where(np.isnan(wide) | fits, inside, _where(wide > 0, above, below))[()]


def _in_f64(f: Callable[..., Array]) -> Callable[..., Array]:
    """`f` computed in float64 and rounded to the operands' dtype."""
    return lambda *args: f(*(a.astype(np.float64) for a in args)).astype(args[0].dtype)


def _erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(np.float64)[()]


def _is_float(x: Array) -> bool:
    return x.dtype.kind == "f"


def _integral(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: f(x) if _is_float(x) else x


def _recip(x: Array) -> Array:
    return x.dtype.type(1) / x


def _floordiv(a: Array, b: Array) -> Array:
    return _where(b == 0, a * 0, np.floor_divide(a, _where(b == 0, b + 1, b)))


def _mod(a: Array, b: Array) -> Array:
    if _is_float(a):
        return np.fmod(a, b)
    return _where(b == 0, a * 0, np.remainder(a, _where(b == 0, b + 1, b)))


def _pow(a: Array, b: Array) -> Array:
    if _is_float(a):
        return _in_f64(_float_pow)(a, b)
    a, b = np.broadcast_arrays(a, b)
    result, base, left = np.ones_like(a), a.copy(), _where(b < 0, b * 0, b)
    while np.any(left):
        result = _where(left & 1, result * base, result)
        base, left = base * base, left >> 1
    unit = _where(a == 1, result, _where(b & 1, a, a * a))
    return _where(b >= 0, result, _where((a == 1) | (a + 1 == 0), unit, a * 0))


def _float_pow(a: Array, b: Array) -> Array:
    """IEEE 754's pow. For numbers 1/2 as exponents NumPy takes the square root, which is another of -0.0 and -inf."""
    root = _where(np.isinf(a), np.inf, np.sqrt(a) + 0.0)
    return _where(b == 0.5, root, np.power(a, b))


def _maximum(a: Array, b: Array) -> Array:
    if not _is_float(a):
        return np.maximum(a, b)
    larger = _where(a == b, _where(np.signbit(a), b, a), _where(a > b, a, b))
    return _where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), larger)


def _minimum(a: Array, b: Array) -> Array:
    if not _is_float(a):
        return np.minimum(a, b)
    smaller = _where(a == b, _where(np.signbit(a), a, b), _where(a < b, a, b))
    return _where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), smaller)


def _shl(a: Array, b: Array) -> Array:
    ok = (b >= 0) & (b < 8 * a.dtype.itemsize)
    return _where(ok, np.left_shift(a, _where(ok, b, b * 0)), a * 0)


def _shr(a: Array, b: Array) -> Array:
    ok = (b >= 0) & (b < 8 * a.dtype.itemsize)
    return _where(ok, np.right_shift(a, _where(ok, b, b * 0)), _where(a < 0, ~(a * 0), a * 0))


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(counter: Array, key0: Array, key1: Array) -> Array:
    """Word 0 of Threefry-2x32 with 20 rounds on the block (counter, 0). Source: Salmon et al., SC 2011."""
    return threefry_block(counter, counter * 0, key0, key1)[0]


def threefry_block(x0: Array, x1: Array, key0: Array, key1: Array) -> tuple[Array, Array]:
    """Both words of Threefry-2x32-20 on the block (x0, x1)."""
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(0x1BD11BDA))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for group in range(5):
        for r in _ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = ((x1 << np.uint32(r)) | (x1 >> np.uint32(32 - r))) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once."""
    if a.dtype == np.float32:
        return _fma_f32(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))
    return np.asarray(np.frompyfunc(_fma_f64, 3, 1)(a, b, c)).astype(np.float64)[()]


def _fma_f32(product: Array, c: Array) -> Array:
    """The product of two f32 is exact in f64; their sum is rounded to odd there, so that f32 rounds it right."""
    total = product + c
    back = total - product
    lost = (product - (total - back)) + (c - back)
    even = (np.asarray(total).view(np.int64) & 1) == 0
    step = np.nextafter(total, _where(lost > 0, np.inf, -np.inf))
    return _where(even & (lost != 0) & np.isfinite(total), step, total).astype(np.float32)


def _fma_f64(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return a * b + c
    from fractions import Fraction

    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c if a == 0 or b == 0 else 0.0
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


FUNCTIONS: dict[Op, Callable[..., Array]] = {
    Op.EXP: np.exp,
    Op.EXP2: np.exp2,
    Op.EXPM1: np.expm1,
    Op.LOG: np.log,
    Op.LOG2: np.log2,
    Op.SIN: np.sin,
    Op.COS: np.cos,
    Op.TANH: np.tanh,
    Op.ERF: _erf,
    Op.POW: _float_pow,
}
"""The function of real numbers that each transcendental op approximates, on arrays of float64."""

REFERENCE: dict[Op, Callable[..., Array]] = {
    **{op: _in_f64(f) for op, f in FUNCTIONS.items()},
    Op.NEG: operator.neg,
    Op.ABS: np.abs,
    Op.RECIP: _recip,
    Op.SQRT: np.sqrt,
    Op.FLOOR: _integral(np.floor),
    Op.CEIL: _integral(np.ceil),
    Op.TRUNC: _integral(np.trunc),
    Op.ROUND: _integral(np.rint),
    Op.NOT: operator.invert,
    Op.ADD: operator.add,
    Op.SUB: operator.sub,
    Op.MUL: operator.mul,
    Op.DIV: np.true_divide,
    Op.FLOORDIV: _floordiv,
    Op.MOD: _mod,
    Op.MAX: _maximum,
    Op.MIN: _minimum,
    Op.POW: _pow,
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.EQ: operator.eq,
    Op.NE: operator.ne,
    Op.AND: np.bitwise_and,
    Op.OR: np.bitwise_or,
    Op.XOR: np.bitwise_xor,
    Op.SHL: _shl,
    Op.SHR: _shr,
    Op.THREEFRY: threefry,
    Op.FMA: fma,
}
"""Every elementwise op but CAST, BITCAST and WHERE, which `apply` does. POW is one for integers, too."""
