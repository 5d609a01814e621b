"""Derives `weft/core/pointwise/approximations.py`: python tools/chebyshev.py > weft/core/pointwise/approximations.py

Each table holds the Chebyshev coefficients of a smooth function on an interval, from its values in 60 digits, cut
where the rest is below what the format resolves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath as mp

mp.mp.dps = 60
Function = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Fit:
    """`target` on lo..hi, to a relative error of 2**-bits of its largest value there."""

    target: Function
    lo: Any
    hi: Any
    bits: tuple[int, ...] = (53,)


def coefficients(f: Fit, bits: int, points: int = 96) -> list[float]:
    """Chebyshev coefficients c of sum c[k] T_k(u), u from -1 to 1 over lo..hi."""
    angles = [mp.pi * (2 * i + 1) / (2 * points) for i in range(points)]
    xs = [(f.lo + f.hi) / 2 + (f.hi - f.lo) / 2 * mp.cos(t) for t in angles]
    ys = [f.target(x) for x in xs]
    c = [
        2 * mp.fsum(y * mp.cos(k * t) for y, t in zip(ys, angles, strict=True)) / points
        for k in range(points)
    ]
    c[0] /= 2
    least = min(abs(y) for y in ys)
    size = max(least, max(abs(y) for y in ys) / 64)
    rest = mp.mpf(0)
    last = points - 1
    while last > 0 and rest + abs(c[last]) < size * mp.mpf(2) ** -(bits + 3):
        rest += abs(c[last])
        last -= 1
    return [float(x) for x in c[: last + 1]]


def tail(f: Function) -> Function:
    """(f(s) / s - 1) / s**2 as a function of s**2."""

    def run(z: Any) -> Any:
        s = mp.sqrt(z)
        return (f(s) / s - 1) / z

    return run


BOTH = (24, 53)
HALF = mp.mpf(1) / 2
NEAR_0 = mp.mpf(10) ** -20


def erfcx(x: Any) -> Any:
    """exp(x**2) erfc(x)."""
    return mp.exp(x * x) * mp.erfc(x)


def of_inverse(f: Function, k: Any) -> Function:
    """f(x) sqrt(x) as a function of k / x."""

    def run(u: Any) -> Any:
        x = mp.mpf(k) / max(u, mp.mpf(10) ** -12)
        return f(x) * mp.sqrt(x)

    return run


def bessel_modulus(n: int) -> tuple[Function, Function]:
    """P and Q of J = sqrt(2 / pi x) (P cos(t) - Q sin(t)), as functions of (5 / x)**2; Q divided by 5 / x."""

    def parts(z: Any) -> tuple[Any, Any, Any]:
        u = mp.sqrt(max(z, mp.mpf(10) ** -8))
        x = 5 / u
        t = x - (2 * n + 1) * mp.pi / 4
        j, y, scale = mp.besselj(n, x), mp.bessely(n, x), mp.sqrt(mp.pi * x / 2)
        return (j * mp.cos(t) + y * mp.sin(t)) * scale, (y * mp.cos(t) - j * mp.sin(t)) * scale, u

    def q(z: Any) -> Any:
        _, value, u = parts(z)
        return value / u

    return lambda z: parts(z)[0], q


J0P, J0Q = bessel_modulus(0)
J1P, J1Q = bessel_modulus(1)


def log_part(y: Function, j: Function) -> Function:
    """y(x) - 2 / pi log(x) j(x), as a function of x**2."""

    def run(z: Any) -> Any:
        x = mp.sqrt(z)
        return y(x) - 2 / mp.pi * mp.log(x) * j(x)

    return run


def airy_zeta(x: Any) -> Any:
    """2/3 x**(3/2)."""
    return mp.mpf(2) / 3 * x ** (mp.mpf(3) / 2)


def airy_decay(u: Any) -> Any:
    """2 sqrt(pi) x**(1/4) exp(zeta) Ai(x), as a function of u = zeta(3) / zeta(x)."""
    x = 3 / max(u, mp.mpf(10) ** -6) ** (mp.mpf(2) / 3)
    return 2 * mp.sqrt(mp.pi) * mp.root(x, 4) * mp.exp(airy_zeta(x)) * mp.airyai(x)


def airy_waves() -> tuple[Function, Function]:
    """P and Q of Ai(-x) = (P cos(t) + Q sin(t)) / (sqrt(pi) x**(1/4)), t = zeta(x) - pi / 4, as functions of u**2 for
    u = zeta(5) / zeta(x); Q divided by u."""

    def parts(z: Any) -> tuple[Any, Any, Any]:
        u = mp.sqrt(max(z, mp.mpf(10) ** -8))
        x = 5 / u ** (mp.mpf(2) / 3)
        t, scale = airy_zeta(x) - mp.pi / 4, mp.sqrt(mp.pi) * mp.root(x, 4)
        a, b = mp.airyai(-x) * scale, mp.airybi(-x) * scale
        return a * mp.cos(t) - b * mp.sin(t), a * mp.sin(t) + b * mp.cos(t), u

    def q(z: Any) -> Any:
        _, value, u = parts(z)
        return value / u

    return lambda z: parts(z)[0], q


AIRY_P, AIRY_Q = airy_waves()

TABLES: dict[str, Fit] = {
    "ASIN": Fit(tail(mp.asin), mp.mpf(10) ** -9, HALF**2, BOTH),
    "ATAN": Fit(tail(mp.atan), mp.mpf(10) ** -9, (mp.sqrt(2) - 1) ** 2 * mp.mpf("1.0001"), BOTH),
    # x = 3.75 (1 + u) / (1 - u): all of 0..inf. Shepherd and Laframboise 1981
    "ERFCX": Fit(
        lambda u: (1 + 7.5 * (1 + u) / (1 - u)) * erfcx(mp.mpf("3.75") * (1 + u) / (1 - u))
        if u < 1 - mp.mpf(10) ** -9
        else 2 / mp.sqrt(mp.pi),
        -1, 1, BOTH,
    ),
    "LGAMMA": Fit(lambda x: mp.loggamma(x) / ((x - 1) * (x - 2)), 1, 3),
    "I0E_SMALL": Fit(lambda x: mp.besseli(0, x) * mp.exp(-x), 0, 8),
    "I0E_LARGE": Fit(of_inverse(lambda x: mp.besseli(0, x) * mp.exp(-x), 8), 0, 1),
    "I1E_SMALL": Fit(lambda x: mp.besseli(1, x) * mp.exp(-x) / x if x else HALF, NEAR_0, 8),
    "I1E_LARGE": Fit(of_inverse(lambda x: mp.besseli(1, x) * mp.exp(-x), 8), 0, 1),
    # as functions of x**2: K0 + log(x/2) I0 and (K1 - log(x/2) I1) x
    "K0_SMALL": Fit(
        lambda z: mp.besselk(0, mp.sqrt(z)) + mp.log(mp.sqrt(z) / 2) * mp.besseli(0, mp.sqrt(z)), NEAR_0, 4
    ),
    "K1_SMALL": Fit(
        lambda z: (mp.besselk(1, mp.sqrt(z)) - mp.log(mp.sqrt(z) / 2) * mp.besseli(1, mp.sqrt(z))) * mp.sqrt(z),
        NEAR_0, 4,
    ),
    "K0E_LARGE": Fit(of_inverse(lambda x: mp.besselk(0, x) * mp.exp(x), 2), 0, 1),
    "K1E_LARGE": Fit(of_inverse(lambda x: mp.besselk(1, x) * mp.exp(x), 2), 0, 1),
    "J0_SMALL": Fit(lambda z: mp.besselj(0, mp.sqrt(z)), 0, 25),
    "J1_SMALL": Fit(lambda z: mp.besselj(1, mp.sqrt(z)) / mp.sqrt(z), NEAR_0, 25),
    "Y0_SMALL": Fit(log_part(lambda x: mp.bessely(0, x), lambda x: mp.besselj(0, x)), NEAR_0, 25),
    "Y1_SMALL": Fit(
        lambda z: (
            (mp.bessely(1, mp.sqrt(z)) - 2 / mp.pi * (mp.log(mp.sqrt(z)) * mp.besselj(1, mp.sqrt(z)) - 1 / mp.sqrt(z)))
            / mp.sqrt(z)
        ),
        NEAR_0, 25,
    ),
    "AIRY_RISE": Fit(mp.airyai, -5, 0),
    "AIRY_FALL": Fit(lambda x: mp.airyai(x) * mp.exp(mp.mpf(4) / 3 * x), 0, 3),
    "AIRY_DECAY": Fit(airy_decay, 0, 1), "AIRY_P": Fit(AIRY_P, 0, 1), "AIRY_Q": Fit(AIRY_Q, 0, 1),
    "J0P": Fit(J0P, 0, 1), "J0Q": Fit(J0Q, 0, 1), "J1P": Fit(J1P, 0, 1), "J1Q": Fit(J1Q, 0, 1),
}  # fmt: skip


def main() -> None:
    """Print the module."""
    out = sys.stdout
    out.write(
        '"""Chebyshev coefficients of smooth functions, written by `tools/chebyshev.py`; see there what each is."""\n\n'
    )
    out.write("from __future__ import annotations\n")
    for name, f in TABLES.items():
        for bits in f.bits:
            c = coefficients(f, bits)
            label = name if len(f.bits) == 1 else f"{name}_F{32 if bits == 24 else 64}"
            out.write(f"\n{label} = (\n")
            for i in range(0, len(c), 4):
                out.write("    " + ", ".join(map(repr, c[i : i + 4])) + ",\n")
            out.write(")  # fmt: skip\n")


if __name__ == "__main__":
    main()
