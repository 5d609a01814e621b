"""Derives the polynomials of `weft.ir.math`: python tools/minimax.py [name ...]

Each is the minimax approximation of a target on an interval under a weight, which turns the polynomial's error into the
relative error of the function it serves. Remez's exchange on a fine grid in 50 digits; coefficients are then rounded
to the float format one by one, lowest first, and the remaining ones fitted again each time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath as mp
import numpy as np

mp.mp.dps = 50
GRID = 800
Function = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Fit:
    """`terms` coefficients for `target` on lo..hi, of `bits` bits; the first ones may be given."""

    target: Function
    weight: Function
    lo: Any
    hi: Any
    terms: int
    bits: int
    given: tuple[float, ...] = ()


def nodes(lo: Any, hi: Any) -> list[Any]:
    """A grid that is denser at the ends, where the error oscillates faster."""
    return [(lo + hi) / 2 - (hi - lo) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * GRID)) for i in range(GRID)]


def rounded(x: Any, bits: int) -> Any:
    """x with `bits` significant bits."""
    if x == 0:
        return x
    m, e = mp.frexp(x)
    return mp.ldexp(mp.nint(mp.ldexp(m, bits)), e - bits)


def extrema(error: Sequence[Any], count: int) -> list[int]:
    """Grid points of `count` extrema of alternating sign; fewer when there are not as many."""
    found: list[int] = []
    sign: bool | None = None
    for i, v in enumerate(error):
        if (v > 0) != sign:
            found.append(i)
            sign = v > 0
        elif abs(v) > abs(error[found[-1]]):
            found[-1] = i
    while len(found) > count:
        size = [abs(error[i]) for i in found]
        least = size.index(min(size))
        if len(found) == count + 1 or least in (0, len(found) - 1):
            found.pop(0 if size[0] < size[-1] else -1)
        else:  # a pair, so that the signs still alternate
            other = least - 1 if size[least - 1] < size[least + 1] else least + 1
            for i in sorted((least, other), reverse=True):
                found.pop(i)
    return found


def exchanged(reference: list[int], error: Sequence[Any]) -> list[int]:
    """The reference with the point of the largest error taken in for a neighbour of the same sign."""
    peak = max(range(len(error)), key=lambda i: abs(error[i]))
    after = sum(i < peak for i in reference)
    same = [
        i
        for i in (after - 1, after)
        if 0 <= i < len(reference) and (error[reference[i]] > 0) == (error[peak] > 0)
    ]
    if same:
        return sorted([*reference[: same[0]], peak, *reference[same[0] + 1 :]])
    return [peak, *reference[:-1]] if after == 0 else [*reference[1:], peak]


def first_reference(values: np.ndarray, basis: np.ndarray, weights: np.ndarray) -> list[int]:
    """Extrema of a float64 fit by Lawson's reweighted least squares: close to where the exchange ends."""
    y, matrix, w = values.astype(float), basis.astype(float), weights.astype(float)
    emphasis, best = np.ones(len(y)), (np.inf, y)
    for _ in range(60):
        scaled = matrix * (w * np.sqrt(emphasis))[:, None]
        norms = np.linalg.norm(scaled, axis=0)
        c = np.linalg.lstsq(scaled / norms, y * w * np.sqrt(emphasis), rcond=1e-16)[0] / norms
        error = w * (y - matrix @ c)
        peak = float(np.abs(error).max())
        if peak < best[0]:
            best = (peak, error)
        emphasis = emphasis * (np.abs(error) / peak + 1e-3)
        emphasis /= emphasis.mean()
    return extrema(best[1].tolist(), basis.shape[1] + 1)


def remez(values: np.ndarray, basis: np.ndarray, weights: np.ndarray) -> list[Any]:
    """Coefficients that minimize the largest |weights * (values - basis @ c)|."""
    n = basis.shape[1]
    reference = first_reference(values, basis, weights)
    if len(reference) <= n:
        reference = [round((GRID - 1) * i / n) for i in range(n + 1)]
    best: tuple[Any, np.ndarray] | None = None
    for _ in range(60):
        matrix, right = mp.matrix(n + 1, n + 1), mp.matrix(n + 1, 1)
        for row, i in enumerate(reference):
            for j in range(n):
                matrix[row, j] = basis[i, j] * weights[i]
            matrix[row, n], right[row] = (-1) ** row, values[i] * weights[i]
        solution = mp.lu_solve(matrix, right)
        c = np.array([solution[j] for j in range(n)], dtype=object)
        error = weights * (values - basis.dot(c))
        peak = max(abs(e) for e in error)
        if best is None or peak < best[0]:
            best = (peak, c)
        if peak <= abs(solution[n]) * mp.mpf("1.001"):
            break
        several = extrema(list(error), n + 1)
        reference = several if len(several) == n + 1 else exchanged(reference, error)
    assert best is not None
    return list(best[1])


def fit(f: Fit) -> tuple[list[float], float]:
    """The coefficients and log2 of the largest weighted error."""
    xs = nodes(mp.mpf(f.lo), mp.mpf(f.hi))
    values = np.array([f.target(x) for x in xs], dtype=object)
    weights = np.array([f.weight(x) for x in xs], dtype=object)
    basis = np.array([[x**k for k in range(f.terms)] for x in xs], dtype=object)
    c = [mp.mpf(g) for g in f.given]
    while len(c) < f.terms:
        k = len(c)
        rest = values - (basis[:, :k].dot(np.array(c, dtype=object)) if k else 0)
        # x**k moves into the weight, where its sign does not matter; as a factor of the basis it would at x = 0
        power = basis[:, k]
        c.append(rounded(remez(rest / power, basis[:, : f.terms - k], weights * abs(power))[0], f.bits))
    peak = max(abs(e) for e in weights * (values - basis.dot(np.array(c, dtype=object))))
    return [float(x) for x in c], float(mp.log(peak, 2))


def of_square(f: Function) -> Function:
    """f as a function of the square of its argument."""
    return lambda z: f(mp.sqrt(z))


LN2, ROOT2 = mp.log(2), mp.sqrt(2)
HALF_PI = mp.pi / 2 * mp.mpf("1.0001")
S_MAX = (ROOT2 - 1) / (ROOT2 + 1) * mp.mpf("1.0001")


def log_tail(f: Any) -> Any:
    """(log(1 + f) - f) / f**2."""
    return (mp.log1p(f) - f) / f**2


def atanh_tail(s: Any) -> Any:
    """(2 atanh(s) / s - 2) / s**2."""
    return (2 * mp.atanh(s) / s - 2) / s**2


def power_tail(s: Any) -> Any:
    """(3 atanh(s) / s - 3 - s**2) / s**4."""
    return (3 * mp.atanh(s) / s - 3 - s**2) / s**4


def sine_tail(r: Any) -> Any:
    """(sin(r) / r - 1) / r**2."""
    return (mp.sin(r) / r - 1) / r**2


def tanh_tail(r: Any) -> Any:
    """((exp(2 r) - 1) / 2 - r) / r**2."""
    return (mp.expm1(2 * r) / 2 - r) / r**2


def root_of_erfc(u: Any) -> Any:
    """The eighth root of erfc(u + 2)."""
    return mp.erfc(u + 2) ** (mp.mpf(1) / 8)


def fits(bits: int) -> dict[str, Fit]:
    """Every polynomial for a format whose significand has `bits` bits."""
    single = bits == 24
    wide = LN2 * mp.mpf("1.001")
    quarter = LN2 / 4 * mp.mpf("1.001")
    out = {
        "exp": Fit(mp.exp, lambda r: mp.exp(-r), -wide, wide, 8 if single else 14, bits, (1.0, 1.0)),
        "exp2": Fit(lambda r: mp.mpf(2) ** r, lambda r: mp.mpf(2) ** -r, -1, 1, 8 if single else 14, bits, (1.0,)),
        "sine": Fit(
            of_square(sine_tail), of_square(lambda r: r**3 / mp.sin(r)), 0, HALF_PI**2, 4 if single else 8, bits
        ),
        "tanh": Fit(
            tanh_tail, lambda r: 2 * r**2 / abs(mp.expm1(2 * r)), -quarter, quarter, 5 if single else 10, bits, (1.0,)
        ),
        "erf_below": Fit(
            of_square(lambda x: mp.erf(x) / x - 1), of_square(lambda x: x / mp.erf(x)), 0, 1, 7 if single else 12, bits
        ),
        "erf_above": Fit(
            root_of_erfc, lambda u: 8 * root_of_erfc(u) ** 7, -1, 1.93 if single else 3.95, 8 if single else 18, bits
        ),
        "power": Fit(of_square(power_tail), lambda z: z**2 / 3, 0, S_MAX**2, 3 if single else 7, bits),
    }  # fmt: skip
    if single:
        out["log"] = Fit(
            log_tail, lambda f: f**2 / abs(mp.log1p(f)), 1 / ROOT2 - 1, ROOT2 - 1, 9, bits, (-0.5,)
        )
    else:
        out["log"] = Fit(of_square(atanh_tail), lambda z: z / 2, 0, S_MAX**2, 7, bits)
    return out


def main(names: Sequence[str]) -> None:
    """Print the polynomials called `names`, or all."""
    for bits in (24, 53):
        for name, f in fits(bits).items():
            if not names or name in names:
                c, error = fit(f)
                sys.stdout.write(
                    f"{name}, {bits} bits, error 2**{error:.2f}\n    {', '.join(map(repr, c))}\n"
                )


if __name__ == "__main__":
    main(sys.argv[1:])
