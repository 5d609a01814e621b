"""Parts of floats beside numpy's."""

from __future__ import annotations

import numpy as np
import pytest

import weft


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_frexp(name: str) -> None:
    limits = np.finfo(name)
    some = [0.0, 1.0, 0.5, 3.0, 0.1, limits.max, limits.tiny, limits.tiny / 2, limits.smallest_subnormal]
    x = np.array([*some, *(-n for n in some)], name)
    want, exponents = np.frexp(x)
    found = weft.frexp(weft.from_numpy(x))
    np.testing.assert_array_equal(found.mantissa.numpy(), want)
    np.testing.assert_array_equal(found.exponent.numpy(), exponents)
    assert found.mantissa.dtype.name == name and found.exponent.dtype is weft.int32


def test_frexp_of_what_is_not_finite() -> None:
    mantissa, _ = weft.frexp(weft.tensor([float("inf"), float("-inf"), float("nan")]))
    np.testing.assert_array_equal(mantissa.numpy(), [np.inf, -np.inf, np.nan])


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_nextafter(name: str) -> None:
    limits = np.finfo(name)
    some = np.array([0.0, -0.0, 1.0, -1.0, limits.max, limits.tiny, limits.smallest_subnormal, np.inf], name)
    a, b = (m.ravel() for m in np.meshgrid(some, some))
    found = weft.nextafter(weft.from_numpy(a), weft.from_numpy(b))
    np.testing.assert_array_equal(found.numpy(), np.nextafter(a, b))
