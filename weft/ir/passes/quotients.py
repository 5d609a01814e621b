"""Division by a constant as two products, the second of which is added in the same rounding.

    y[0] = x / 6.0   ->   y[0] = fma(x, 0.16666666, x * 4.9670538e-09)

A division takes a core as long as twenty other operations. The reciprocal is known in two parts, the higher rounded
toward zero, so that both have its sign and infinities stay what they are. A quotient so computed errs by 2^(2 - 2p)
before it is rounded to p bits, so it is rounded as the quotient itself, unless that is as near to the middle between
two numbers. The few for which it can be are known from the divisor, and tried: where one of them would be rounded
otherwise, the division stays. Quotients below 2^-101 (float32) may err by a unit in the last place, since the lower
product is rounded to what is left of the exponents' range.

Brisebarre, Muller & Raina, "Accelerating correctly rounded floating-point division when the divisor is known in
advance", IEEE Transactions on Computers 53 (8), 2004.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import copysign, frexp, ldexp
from typing import TypeAlias

from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.expr import Const, Expr, ScalarCall, call, transform
from weft.ir.loops import Program
from weft.ir.ops import Op
from weft.ir.passes.rewrite import index_map, map_block, with_body

_PRECISION: dict[DType, int] = {dtypes.float32: 24, dtypes.float64: 53}

MAX_EXPONENT: dict[DType, int] = {dtypes.float32: 40, dtypes.float64: 400}
"""Divisors have a size up to 2 to this power, and down to its inverse: both parts of the reciprocal are in range."""


def divide_by_products(p: Program) -> Program:
    """`p` with products for divisions by constants, where these give the same."""
    parts: dict[tuple[DType, float], tuple[float, float] | None] = {}
    memo: dict[Expr, Expr] = {}

    def product(e: Expr) -> Expr | None:
        if not isinstance(e, ScalarCall) or e.op is not Op.DIV or e.dtype not in _PRECISION:
            return None
        x, c = e.args
        if not isinstance(c, Const):
            return None
        key = e.dtype, float(c.value)
        if key not in parts:
            parts[key] = reciprocal(*key)
        found = parts[key]
        if found is None:
            return None
        high, low = (Const(e.dtype, part) for part in found)
        return ScalarCall(e.dtype, Op.FMA, (x, high, call(Op.MUL, x, low)))

    def expr(e: Expr) -> Expr:
        return transform(e, product, None, memo)

    return with_body(p, map_block(p.body, expr, index_map(expr)))


def reciprocal(dtype: DType, divisor: float) -> tuple[float, float] | None:
    """The two parts of 1 / divisor by which x / divisor can be computed; None where it cannot."""
    bits, most = _PRECISION[dtype], MAX_EXPONENT[dtype]
    if not 2.0**-most <= abs(divisor) <= 2.0**most:  # nor NaN
        return None
    fraction, exponent = frexp(divisor)
    found = parts_of(int(ldexp(abs(fraction), bits)), bits)
    if found is None:
        return None
    (high, k), (low, l) = found
    scale = bits - exponent
    return ldexp(copysign(high, divisor), scale - k), ldexp(copysign(low, divisor), scale - l)


Scaled: TypeAlias = tuple[int, int]
"""A number n * 2^-k as n and k."""


def parts_of(divisor: int, bits: int) -> tuple[Scaled, Scaled] | None:
    """The parts, of so many bits, of the inverse of an integer of so many bits; None where some quotient by it would be
    rounded otherwise, and for powers of two, by which one product divides."""
    unit = 2 * bits - 1
    high, rest = divmod(1 << unit, divisor)
    if not rest:
        return None
    shift = bits
    while (rest << shift) // divisor >> (bits - 1) == 0:
        shift += 1
    low = _divided(rest << shift, divisor)
    for x in _near_middles(divisor, bits):
        first, first_shift = _rounded(x * low, bits)
        total, total_shift = _rounded((x * high << shift) + (first << first_shift), bits)
        scale = bits - (x >= divisor)
        if total << (total_shift + scale) != _divided(x << scale, divisor) << (unit + shift):
            return None
    return (high, unit), (low, unit + shift)


def _near_middles(divisor: int, bits: int) -> Iterator[int]:
    """The integers of so many bits whose quotients by another one are as near to the middle between two numbers of so
    many bits as the error may be, but not there.

        x * 2^s - divisor * m = d,  m odd and of a bit more,  0 < |d| <= 8
    """
    zeros = (divisor & -divisor).bit_length() - 1
    for shift in (bits, bits + 1):
        step = 1 << (shift - zeros)
        inverse = pow(divisor >> zeros, -1, step)
        for d in range(-8, 9):
            if d == 0 or d % (1 << zeros):
                continue
            for m in range((1 << bits) + (-(d >> zeros) * inverse - (1 << bits)) % step, 2 << bits, step):
                x, rest = divmod(divisor * m + d, 1 << shift)
                if m & 1 and not rest and x.bit_length() == bits:
                    yield x


def _rounded(n: int, bits: int) -> tuple[int, int]:
    """The nearest integer of so many bits times a power of two, of two the even one; and the power."""
    shift = max(n.bit_length() - bits, 0)
    return _divided(n, 1 << shift), shift


def _divided(n: int, d: int) -> int:
    """The integer nearest to a quotient, of two the even one."""
    whole, rest = divmod(n, d)
    return whole + (2 * rest > d or (2 * rest == d and whole & 1))
