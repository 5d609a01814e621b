"""The 8-bit floats as bytes: sign, exponent, mantissa. What constants are rounded and folded with.

    float8_e4m3fn   1 + 4 + 3 bits, bias 7:  up to 448; no infinities; NaN is 0x7f and 0xff
    float8_e5m2     1 + 5 + 2 bits, bias 15: up to 57344, infinities, NaNs: the upper half of a float16

Source: Micikevicius et al. 2022, "FP8 formats for deep learning", arXiv:2209.05433. What e4m3fn cannot hold becomes its
largest number, infinities included, as in torch.
"""
# Tests: tests/core/test_float8.py

from __future__ import annotations

import math
from bisect import bisect_left
from functools import cache

from weft.ir.dtypes import DType, float8_e4m3fn

NAN = 0x7F
"""The byte that a NaN is written as, but for its sign."""


def fraction_bits(dtype: DType) -> int:
    """Stored bits of the significand."""
    return 3 if dtype is float8_e4m3fn else 2


def exponent_bias(dtype: DType) -> int:
    """The exponent field of 1.0."""
    return 7 if dtype is float8_e4m3fn else 15


def largest(dtype: DType) -> int:
    """The byte of the largest magnitude: 448, or infinity."""
    return 0x7E if dtype is float8_e4m3fn else 0x7C


def decode(dtype: DType, byte: int) -> float:
    """The number that a byte stands for."""
    sign, magnitude = -1.0 if byte & 0x80 else 1.0, byte & 0x7F
    if magnitude > largest(dtype):
        return math.copysign(math.nan, sign)
    bits, bias = fraction_bits(dtype), exponent_bias(dtype)
    if magnitude == 0x7C and dtype is not float8_e4m3fn:
        return sign * math.inf
    exponent, fraction = divmod(magnitude, 1 << bits)
    whole = fraction + (1 << bits if exponent else 0)
    return sign * math.ldexp(whole, max(exponent, 1) - bias - bits)


def encode(dtype: DType, value: float) -> int:
    """The byte of the nearest number, ties to even."""
    sign = 0x80 if math.copysign(1.0, value) < 0 else 0
    if math.isnan(value):
        return sign | NAN
    size, known = abs(value), _magnitudes(dtype)
    above = bisect_left(known, size)
    if above == len(known):
        return sign | largest(dtype)
    if known[above] == size:
        return sign | above
    below = above - 1
    middle = (known[below] + known[above]) / 2
    up = size > middle or (size == middle and above % 2 == 0)
    return sign | (above if up else below)


@cache
def _magnitudes(dtype: DType) -> tuple[float, ...]:
    """The numbers from 0 up, by byte. In infinity's place stands what would follow the last finite number."""
    if dtype is float8_e4m3fn:
        return tuple(decode(dtype, b) for b in range(largest(dtype) + 1))
    return (*(decode(dtype, b) for b in range(largest(dtype))), 65536.0)
