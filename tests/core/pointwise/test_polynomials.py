"""Orthogonal polynomials beside their closed forms and numpy's series."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.polynomial import hermite, hermite_e, laguerre, legendre

import weft

T = np.array([0.3, 0.9, 1.7, 2.6])  # angles whose cosine the Chebyshev polynomials take
TRIGONOMETRIC: dict[str, Callable[[int], Any]] = {
    "t": lambda n: np.cos(n * T),
    "u": lambda n: np.sin((n + 1) * T) / np.sin(T),
    "v": lambda n: np.cos((n + 0.5) * T) / np.cos(T / 2),
    "w": lambda n: np.sin((n + 0.5) * T) / np.sin(T / 2),
}
SERIES: dict[str, Callable[[Any, Any], Any]] = {
    "hermite_polynomial_h": hermite.hermval, "hermite_polynomial_he": hermite_e.hermeval,
    "laguerre_polynomial_l": laguerre.lagval, "legendre_polynomial_p": legendre.legval,
}  # fmt: skip


@pytest.mark.parametrize("n", range(7))
@pytest.mark.parametrize("kind", TRIGONOMETRIC)
def test_chebyshev(kind: str, n: int) -> None:
    want, x = TRIGONOMETRIC[kind](n), np.cos(T)
    plain = getattr(weft.special, f"chebyshev_polynomial_{kind}")
    shifted = getattr(weft.special, f"shifted_chebyshev_polynomial_{kind}")
    np.testing.assert_allclose(plain(weft.tensor(x), n).numpy(), want, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(shifted(weft.tensor((x + 1) / 2), n).numpy(), want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("n", range(7))
@pytest.mark.parametrize("name", SERIES)
def test_series(name: str, n: int) -> None:
    x = np.array([-1.5, -0.2, 0.0, 0.7, 2.5])
    want = SERIES[name](x, [0.0] * n + [1.0])
    np.testing.assert_allclose(
        getattr(weft.special, name)(weft.tensor(x), n).numpy(), want, rtol=1e-12, atol=1e-12
    )
