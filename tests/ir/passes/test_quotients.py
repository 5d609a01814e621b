"""Division by constants as products: bits as those of a division, wherever it is taken."""

from __future__ import annotations

from fractions import Fraction
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.ir import dtypes
from weft.ir.passes.quotients import MAX_EXPONENT, parts_of, reciprocal


def rounded(x: Fraction, bits: int, down: bool = False) -> Fraction:
    """A positive number to so many bits: the nearest, of two the even one; or the next toward zero."""
    unit = Fraction(1, 1 << 4 * bits)
    while x >= unit * (1 << bits):
        unit *= 2
    return (x // unit if down else round(x / unit)) * unit


@pytest.mark.parametrize("bits", [6, 8])
def test_taken_where_all_quotients_of_few_bits_are_right(bits: int) -> None:
    numbers = range(1 << bits - 1, 1 << bits)
    refused = 0
    for divisor in numbers[1:]:
        exact = 1 / Fraction(divisor)
        high = rounded(exact, bits, down=True)
        low = rounded(exact - high, bits)
        right = all(
            rounded(x * high + rounded(x * low, bits), bits) == rounded(x * exact, bits) for x in numbers
        )
        found = parts_of(divisor, bits)
        assert (found is not None) == right
        if found is not None:
            assert [Fraction(n, 1 << k) for n, k in found] == [high, low]
        refused += not right
    assert refused == 4
    assert parts_of(numbers[0], bits) is None, "a power of two"


@given(st.floats(2.0**-40, 2.0**40, width=32), st.sampled_from([1, -1]))
def test_parts_of_a_reciprocal(divisor: float, sign: int) -> None:
    found = reciprocal(dtypes.float32, sign * divisor)
    if found is not None:
        high, low = found
        assert high == np.float32(high) and low == np.float32(low)
        assert high * sign > 0 <= low * sign
        assert abs(Fraction(high) + Fraction(low) - 1 / Fraction(sign * divisor)) <= Fraction(abs(low)) / (
            1 << 24
        )


@pytest.mark.parametrize("divisor", [0.0, inf, -inf, nan, 2.0**41, 2.0**-41, 1e-45])
def test_refused_out_of_range(divisor: float) -> None:
    assert MAX_EXPONENT[dtypes.float32] == 40
    assert reciprocal(dtypes.float32, divisor) is None


@pytest.mark.parametrize("divisor", [6.0, -3.0, 0.1, 1e6, 1.0 + 2.0**-23, 2.0 - 2.0**-23])
def test_all_significands_of_float32(divisor: float) -> None:
    x = (np.arange(1 << 23, dtype=np.uint32) | np.uint32(127 << 23)).view(np.float32)
    divided = weft.compile(lambda x: x / divisor, dynamic=False)
    assert "fma(" in str(divided.explain(weft.tensor(x))[0].show("loops"))
    assert np.array_equal(divided(weft.tensor(x)).numpy(), x / np.float32(divisor))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_numbers(dtype: type) -> None:
    with np.errstate(over="ignore"):
        top = np.finfo(dtype).max
        x = np.array([inf, -inf, nan, 0.0, -0.0, top, -top, np.finfo(dtype).tiny, 1.0], dtype)
        for divisor in (6.0, 0.7, -3.3):
            got = weft.compile(lambda x, c=divisor: x / c, dynamic=False)(weft.tensor(x)).numpy()
            expected = x / dtype(divisor)
            assert np.array_equal(got, expected, equal_nan=True)
            assert np.array_equal(np.signbit(got)[~np.isnan(x)], np.signbit(expected)[~np.isnan(x)])


def test_a_pinned_division_stays() -> None:
    """Elsewhere the divisor may be a variable, and quotients too small for two products must be equal to those."""
    x = weft.tensor(np.full(16, 1e-37, np.float32))
    divided = weft.compile(lambda x: x / 6.0, dynamic=False, numerics="same")
    assert "fma(" not in str(divided.explain(x)[0].show("loops"))
