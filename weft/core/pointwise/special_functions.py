"""Special functions, as in torch.special, composed from elementary ones.

Where cancellation would cost digits in float32 they are computed in float64 and rounded once. The approximations are
Chebyshev series (`approximations.py`), recurrences and asymptotic expansions named beside each.
Source of the formulas: NIST Digital Library of Mathematical Functions, https://dlmf.nist.gov.
"""
# Tests: tests/core/composed/test_halves.py, tests/core/test_surface.py

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from weft.core.args import broadcast as bc
from weft.core.args.handle import Handle, Number, TensorLike, value_of, wrap
from weft.core.args.requirements import needs, no_bools
from weft.core.composed.autocast import widens_on_gpus
from weft.core.composed.composite import composite
from weft.core.composed.smooth import Function1, Function2, chebyshev, float_input, like, on, smooth, smooth2
from weft.core.execute import run
from weft.core.pointwise import approximations as tables
from weft.core.pointwise.elementwise import (
    abs,
    cos,
    eq,
    erf,
    exp,
    floor,
    ge,
    gt,
    le,
    log,
    log1p,
    logical_and,
    logical_or,
    lt,
    maximum,
    minimum,
    ne,
    pow,
    round,
    sigmoid,
    sin,
    sqrt,
    tan,
    trunc,
    where,
)  # fmt: skip
from weft.core.pointwise.float_format import copysign, from_bits, raw_bits
from weft.errors import ArgumentError, DTypeError
from weft.ir.dtypes import float64

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

_TWO_OVER_ROOT_PI = 2 / math.sqrt(math.pi)
_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)
_ROOT_HALF = math.sqrt(0.5)


# ---------------------------------------------------------------------------------------------- error functions


def _scaled_complement(a: Tensor) -> Tensor:
    """exp(a**2) erfc(a) for a >= 0: one series in (a - 3.75) / (a + 3.75) for all of them."""
    c = tables.ERFCX_F64 if a.value.dtype is float64 else tables.ERFCX_F32
    u = where(gt(a, 1e30), 1.0, (a - 3.75) / (a + 3.75))
    return chebyshev(u, c) * 0.5 / (a + 0.5)


def _exp_minus_square(a: Tensor) -> Tensor:
    """exp(-a * a), the square in two parts so that its rounding is not raised to a power."""
    dtype = a.value.dtype
    mask = ~((1 << 27) - 1) if dtype is float64 else ~((1 << 12) - 1)
    high = from_bits(raw_bits(a.value) & mask, dtype)
    return exp(-high * high) * exp((high - a) * (high + a))


def _complement(x: Tensor) -> Tensor:
    a = minimum(abs(x), like(x, 30.0))
    far = _exp_minus_square(a) * _scaled_complement(a)
    return where(lt(abs(x), 0.5), 1 - erf(x), where(lt(x, 0), 2 - far, far))


@composite
def erfc(input: Tensor) -> Tensor:
    """1 - erf(x), exact also where erf is almost 1."""
    return smooth("erfc", input, _complement, lambda x: exp(-x * x) * -_TWO_OVER_ROOT_PI)


@composite
def erfcx(input: Tensor) -> Tensor:
    """exp(x**2) erfc(x), which does not underflow."""

    def value(x: Tensor) -> Tensor:
        a = abs(x)
        mirrored = 2 / _exp_minus_square(minimum(a, like(x, 30.0))) - _scaled_complement(a)
        return where(lt(x, 0), where(lt(x, -29.0), math.inf, mirrored), _scaled_complement(a))

    return smooth("erfcx", input, value, lambda x: x * 2 * erfcx(x) - _TWO_OVER_ROOT_PI, wide=True)


_INVERSE_NEAR = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                 -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_INVERSE_FAR = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
                0.00943887047, 1.00167406, 2.83297682)  # fmt: skip


def _horner(x: Tensor, c: tuple[float, ...]) -> Tensor:
    out: Tensor = x * c[0] + c[1]
    for a in c[2:]:
        out = out * x + a
    return out


def _inverse_error(y: Tensor) -> Tensor:
    """A start of seven digits (Giles, "Approximating the erfinv function", 2010), then two steps of Halley's rule."""
    rest = (1 - abs(y)) * (1 + abs(y))
    w = -log(where(eq(rest, 0), 1.0, rest))
    near = lt(w, 5)
    x = abs(y) * where(near, _horner(w - 2.5, _INVERSE_NEAR), _horner(sqrt(w) - 3.0, _INVERSE_FAR))
    for _ in range(2):
        error = where(lt(x, 0.5), erf(x) - abs(y), (1 - abs(y)) - _complement(x))
        step = error / (exp(-x * x) * _TWO_OVER_ROOT_PI)
        x = x - step / (x * step + 1)
    size = where(eq(rest, 0), math.inf, where(lt(abs(y), 1e-9), abs(y) * (1 / _TWO_OVER_ROOT_PI), x))
    return where(gt(abs(y), 1), math.nan, copysign(size, y))


@composite(autocast=widens_on_gpus)
def erfinv(input: Tensor) -> Tensor:
    """The inverse of erf: infinite at 1 and -1, NaN beyond."""
    return smooth(
        "erfinv",
        input,
        _inverse_error,
        lambda y: exp(erfinv(y) * erfinv(y)) * (1 / _TWO_OVER_ROOT_PI),
        wide=True,
    )


@composite
def ndtr(input: Tensor) -> Tensor:
    """The area under the standard normal density up to x."""
    x = input
    return smooth(
        "ndtr", x, lambda x: _complement(x * -_ROOT_HALF) * 0.5,
        lambda x: exp(x * x * -0.5) / math.sqrt(2 * math.pi), wide=True,
    )  # fmt: skip


@composite
def log_ndtr(input: Tensor) -> Tensor:
    """The logarithm of ndtr, exact also far below 0."""

    def value(x: Tensor) -> Tensor:
        low = minimum(x, like(x, -1.0))
        far = log(_scaled_complement(low * -_ROOT_HALF) * 0.5) - low * low * 0.5
        near = log1p(_complement(maximum(x, like(x, -1.0)) * _ROOT_HALF) * -0.5)
        return where(lt(x, -1.0), far, near)

    def slope(x: Tensor) -> Tensor:
        return math.sqrt(2 / math.pi) / erfcx(x * -_ROOT_HALF)

    return smooth("log_ndtr", input, value, slope, wide=True)


@composite
def ndtri(input: Tensor) -> Tensor:
    """The x at which ndtr is the input: minus and plus infinity at 0 and 1, NaN outside."""

    def value(p: Tensor) -> Tensor:
        small = minimum(p, 1 - p)
        # below 1/4 Newton's rule on log ndtr, from the tail's asymptotic form
        wanted = log(where(le(small, 0), 1.0, small))
        t = sqrt(wanted * -2.0)
        x = -(
            t
            - (2.515517 + t * (0.802853 + t * 0.010328))
            / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)))
        )
        for _ in range(3):
            tail = _scaled_complement(maximum(x * -_ROOT_HALF, like(x, 0.0)))
            x = x - (log(tail * 0.5) - x * x * 0.5 - wanted) * tail * math.sqrt(math.pi / 2)
        middle = _inverse_error(p * 2 - 1) * math.sqrt(2.0)
        out = where(gt(small, 0.25), middle, where(lt(p, 0.5), x, -x))
        out = where(eq(p, 0), -math.inf, where(eq(p, 1), math.inf, out))
        return where(logical_or(lt(p, 0), gt(p, 1)), math.nan, out)

    def slope(p: Tensor) -> Tensor:
        return exp(ndtri(p) * ndtri(p) * 0.5) * math.sqrt(2 * math.pi)

    return smooth("ndtri", input, value, slope, wide=True)


# ---------------------------------------------------------------------------------------------- gamma functions

_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
"""B(2k) / (2k (2k - 1)), the asymptotic series of log gamma in odd powers of 1 / x."""
_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12, -3617 / 8160)
"""B(2k) / 2k, that of digamma in even powers."""


def _even_series(square: Tensor, c: tuple[float, ...]) -> Tensor:
    return _horner(square, tuple(reversed(c)))


def _sin_pi(x: Tensor) -> Tensor:
    """sin(pi x) by the distance to the nearest integer, its sign left out."""
    return sin((x - round(x)) * math.pi)


def _log_gamma_positive(x: Tensor) -> Tensor:
    """For x > 0: a series on [1, 3], to which smaller ones step up and those to 8 step down; Stirling's above."""
    y, product = x, like(x, 1.0)
    for _ in range(5):
        high = logical_and(ge(y, 3), lt(x, 8))
        y = where(high, y - 1, y)
        product = where(high, product * y, product)
    low = lt(x, 1)
    inside = where(low, x + 1, minimum(y, like(x, 3.0)))
    # of x + 1 the distances to 1 and 2 are x and x - 1, which lose nothing
    series = (
        where(low, x, inside - 1) * where(low, x - 1, inside - 2) * chebyshev(on(inside, 1, 3), tables.LGAMMA)
    )
    near = series + where(low, -log(x), log(product))
    large = maximum(x, like(x, 8.0))
    inverse = 1 / large
    far = (large - 0.5) * (log(large) - 1) + (_LOG_ROOT_TWO_PI - 0.5)
    far = far + inverse * _even_series(inverse * inverse, _STIRLING)
    return where(lt(x, 8), near, where(eq(x, math.inf), math.inf, far))


def _log_gamma(x: Tensor) -> Tensor:
    reflected = lt(x, 0.0)
    positive = _log_gamma_positive(where(reflected, 1 - x, x))
    turned = math.log(math.pi) - log(abs(_sin_pi(x))) - positive
    turned = where(lt(abs(x), 1e-20), -log(abs(x)), turned)  # where the sine is subnormal
    out = where(reflected, where(eq(x, trunc(x)), math.inf, turned), positive)
    return where(logical_or(eq(x, 0), eq(abs(x), math.inf)), math.inf, out)


@composite
def lgamma(input: Tensor) -> Tensor:
    """log |gamma(x)|; infinite at 0 and the negative integers."""
    return smooth("lgamma", input, _log_gamma, digamma, wide=True)


def _digamma(x: Tensor) -> Tensor:
    reflected = lt(x, 0.0)
    y = where(reflected, 1 - x, x)
    total = like(x, 0.0)
    for _ in range(10):
        small = lt(y, 10)
        total = where(small, total - 1 / y, total)
        y = where(small, y + 1, y)
    inverse = 1 / y
    square = inverse * inverse
    value = (log(y) - inverse * 0.5 - square * _even_series(square, _BERNOULLI)) + total
    value = where(eq(x, math.inf), math.inf, value)
    turned = value - math.pi / tan((x - round(x)) * math.pi)
    pole = logical_and(reflected, eq(x, trunc(x)))
    out = where(pole, math.nan, where(reflected, turned, value))
    return where(eq(x, 0), copysign(like(x, math.inf), -x), out)


@composite
def digamma(input: Tensor) -> Tensor:
    """The derivative of lgamma; -inf at 0, NaN at the negative integers."""
    return smooth("digamma", input, _digamma, lambda x: polygamma(1, x), wide=True)


def _hurwitz(s: Tensor, q: Tensor) -> Tensor:
    """sum (q + k)**-s by Euler and Maclaurin: terms up to q + k >= 10, an integral, corrections of even order."""
    total, a = like(q, 0.0), q
    for k in range(22):
        more = logical_or(le(a, 9), lt(like(q, float(k)), 9))
        total = where(more, total + pow(a, -s), total)
        a = where(more, a + 1, a)
    tail = pow(a, -s)
    total = total + tail * a / (s - 1) + tail * 0.5
    factor, power = s, tail / a
    numbers = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798)
    for j, b in enumerate(numbers, 1):
        total = total + factor * power * (b / math.factorial(2 * j))
        factor = factor * (s + (2 * j - 1)) * (s + 2 * j)
        power = power / (a * a)
    out = where(logical_and(le(q, 0), eq(q, floor(q))), math.inf, total)
    out = where(logical_and(lt(q, 0), ne(s, floor(s))), math.nan, out)
    return where(le(s, 1), where(eq(s, 1), math.inf, math.nan), where(eq(q, math.inf), 0.0, out))


@composite
def zeta(input: TensorLike, other: TensorLike) -> Tensor:
    """Hurwitz' zeta function, the sum of (other + k)**-input for k = 0, 1, ...; differentiable in `other`."""
    return smooth2("zeta", input, other, _hurwitz, (None, lambda s, q: zeta(s + 1, q) * -s), wide=True)


def polygamma(n: Any, input: Any) -> Tensor:
    """The n-th derivative of digamma; the arguments in either order, as the method and the function have them."""
    order, x = (input, n) if isinstance(n, Handle) else (n, input)
    return _polygamma(int(cast("int", order)), cast("Tensor", x))


@composite
def _polygamma(n: int, input: Tensor) -> Tensor:
    if n < 0:
        raise ArgumentError(f"polygamma: n must not be negative, got {n}")
    if n == 0:
        return digamma(input)

    def value(x: Tensor) -> Tensor:
        if n > 1:
            return _hurwitz(like(x, n + 1.0), x) * ((-1.0) ** (n + 1) * math.factorial(n))
        low = lt(x, 0.5)
        size = math.pi / _sin_pi(x)
        high = _hurwitz(like(x, 2.0), where(low, 1 - x, x))
        return where(low, size * size - high, high)

    return smooth("polygamma", input, value, lambda x: _polygamma(n + 1, x), wide=True)


@composite
@needs(no_bools("input"))
def mvlgamma(input: Tensor, p: int) -> Tensor:
    """The multivariate log-gamma function of dimension p."""
    if p < 1:
        raise ArgumentError(f"mvlgamma: p must be at least 1, got {p}")
    x = wrap(float_input("mvlgamma", input))
    out = x * 0.0 + 0.25 * p * (p - 1) * math.log(math.pi)
    for j in range(p):
        out = out + lgamma(x - 0.5 * j)
    return out


@cache
def _quadrature() -> list[tuple[float, float]]:
    """Nodes and weights of the rule of Gauss and Legendre on [-1, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    return list(zip(nodes.tolist(), weights.tolist(), strict=True))


def _incomplete_gamma(a: Tensor, x: Tensor, upper: bool) -> Tensor:
    """P(a, x) or Q(a, x): its series below the peak, Lentz' continued fraction above, and quadrature for large a."""
    safe_a = where(logical_and(gt(a, 0), lt(a, 60)), a, 1.0)
    safe_x = where(logical_and(gt(x, 0), lt(x, math.inf)), x, 1.0)
    small_x = minimum(safe_x, safe_a + 1)
    scale = exp(safe_a * log(small_x) - small_x - _log_gamma_positive(safe_a))
    term = total = 1 / safe_a
    for k in range(1, 90):
        term = term * small_x / (safe_a + k)
        total = total + term
    lower_series = total * scale

    big_x = maximum(safe_x, safe_a + 1)
    scale = exp(safe_a * log(big_x) - big_x - _log_gamma_positive(safe_a))
    b = big_x + 1 - safe_a
    c, d = like(x, 1e300), 1 / b
    h = d
    for i in range(1, 70):
        an = (safe_a - i) * i
        b = b + 2
        d = 1 / (an * d + b)
        c = b + an / c
        h = d * c * h
    upper_fraction = scale * h

    # for large a the mass around a is smooth: Gauss and Legendre's rule from x to where nothing is left
    big_a = maximum(a, like(a, 50.0))
    peak, root = big_a - 1, sqrt(big_a)
    above = gt(safe_x, peak)
    end = where(
        above,
        maximum(peak + root * 11.5, safe_x + root * 6),
        maximum(like(x, 0.0), minimum(peak - root * 7.5, safe_x - root * 5)),
    )
    log_peak = log(peak)
    area = like(x, 0.0)
    for node, weight in _quadrature():
        t = safe_x + (end - safe_x) * (0.5 * (node + 1))
        area = area + exp(-(t - peak) + peak * (log(where(le(t, 0), 1e-300, t)) - log_peak)) * weight
    area = area * (end - safe_x) * 0.5 * exp(peak * (log_peak - 1) - _log_gamma_positive(big_a))
    quadrature_upper = where(above, area, 1 + area)
    quadrature_lower = where(above, 1 - area, -area)

    below = lt(x, a + 1)
    if upper:
        middle = where(below, 1 - lower_series, upper_fraction)
        middle = where(ge(a, 60), quadrature_upper, middle)
    else:
        middle = where(below, lower_series, 1 - upper_fraction)
        middle = where(ge(a, 60), quadrature_lower, middle)
    at_zero, at_infinity = (1.0, 0.0) if upper else (0.0, 1.0)
    out = where(eq(x, 0), at_zero, where(eq(x, math.inf), at_infinity, middle))
    out = where(eq(a, 0), where(gt(x, 0), at_infinity, math.nan), out)
    out = where(logical_and(eq(a, math.inf), lt(x, math.inf)), at_zero, out)
    both = logical_and(eq(a, math.inf), eq(x, math.inf))
    invalid = logical_or(logical_or(lt(a, 0), lt(x, 0)), logical_or(both, logical_or(ne(a, a), ne(x, x))))
    return where(invalid, math.nan, out)


def _gamma_density(a: Tensor, x: Tensor) -> Tensor:
    return exp((a - 1) * log(x) - x - lgamma(a))


@composite
def gammainc(input: Tensor, other: Tensor) -> Tensor:
    """The regularized lower incomplete gamma function P(input, other); differentiable in `other`."""
    return smooth2(
        "gammainc",
        input,
        other,
        lambda a, x: _incomplete_gamma(a, x, False),
        (None, _gamma_density),
        wide=True,
    )


@composite
def gammaincc(input: Tensor, other: Tensor) -> Tensor:
    """The regularized upper incomplete gamma function 1 - P(input, other); differentiable in `other`."""
    return smooth2(
        "gammaincc", input, other, lambda a, x: _incomplete_gamma(a, x, True),
        (None, lambda a, x: -_gamma_density(a, x)), wide=True,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- logarithms of sums


@composite
def logaddexp(input: Tensor, other: Tensor) -> Tensor:
    """log(exp(input) + exp(other)) without overflow."""
    return _log_add("logaddexp", input, other, lambda d: log1p(exp(d)), 1.0)


@composite
def logaddexp2(input: Tensor, other: Tensor) -> Tensor:
    """log2(2**input + 2**other) without overflow."""
    from weft.core.pointwise.elementwise import exp2

    return _log_add("logaddexp2", input, other, lambda d: log1p(exp2(d)) * (1 / math.log(2)), math.log(2))


def _log_add(op: str, input: Tensor, other: Tensor, added: Function1, log_base: float) -> Tensor:
    dtype = bc.result_dtype((value_of(op, input), value_of(op, other)))
    if not dtype.is_float:
        raise DTypeError(f"{op}: needs float tensors, got {dtype.name}; convert with .float()")

    def value(x: Tensor, y: Tensor) -> Tensor:
        same = logical_and(eq(x, y), eq(abs(x), math.inf))
        return where(same, x, maximum(x, y) + added(-abs(x - y)))

    def share(x: Tensor, y: Tensor) -> Tensor:
        # a sigmoid, whose own derivatives are finite where one of both is infinite
        same = logical_and(eq(x, y), eq(abs(x), math.inf))
        return sigmoid((where(same, 0.0, x) - where(same, 0.0, y)) * log_base)

    return smooth2(op, input, other, value, (share, lambda x, y: share(y, x)))


@composite
def xlogy(input: TensorLike, other: TensorLike) -> Tensor:
    """input * log(other), 0 where input is, unless other is NaN."""
    return _times_log("xlogy", input, other, log, lambda x, y: x / y)


@composite
def xlog1py(input: TensorLike, other: TensorLike) -> Tensor:
    """input * log1p(other), 0 where input is, unless other is NaN."""
    return _times_log("xlog1py", input, other, log1p, lambda x, y: x / (y + 1))


def _times_log(op: str, input: TensorLike, other: TensorLike, of: Function1, by_other: Function2) -> Tensor:
    def value(x: Tensor, y: Tensor) -> Tensor:
        return where(ne(y, y), math.nan, where(eq(x, 0), 0.0, x * of(y)))

    def by_input(x: Tensor, y: Tensor) -> Tensor:
        return where(logical_and(eq(x, 0), le(y, 0 if op == "xlogy" else -1)), 0.0, of(y))

    return smooth2(op, input, other, value, (by_input, by_other))


@composite
def entr(input: Tensor) -> Tensor:
    """-x log(x); 0 at 0, -inf below."""

    def value(x: Tensor) -> Tensor:
        return where(gt(x, 0), -x * log(x), where(eq(x, 0), 0.0, where(lt(x, 0), -math.inf, x)))

    return smooth("entr", input, value, lambda x: -log(x) - 1)


# ---------------------------------------------------------------------------------------------- Bessel functions


def _in_two(x: Tensor, edge: float, small: tuple[float, ...], large: tuple[float, ...]) -> Tensor:
    """A scaled Bessel function of x >= 0: a series below `edge`; above, one in edge / x over sqrt(x)."""
    near = chebyshev(on(minimum(x, like(x, edge)), 0, edge), small)
    high = maximum(x, like(x, edge))
    return where(le(x, edge), near, chebyshev(on(edge / high, 0, 1), large) / sqrt(high))


def _i0e(x: Tensor) -> Tensor:
    return _in_two(abs(x), 8.0, tables.I0E_SMALL, tables.I0E_LARGE)


def _i1e(x: Tensor) -> Tensor:
    a = abs(x)
    low, high = minimum(a, like(x, 8.0)), maximum(a, like(x, 8.0))
    near = where(le(a, 8.0), x, 0.0) * chebyshev(on(low, 0, 8), tables.I1E_SMALL)
    far = chebyshev(on(8 / high, 0, 1), tables.I1E_LARGE) / sqrt(high)
    return where(le(a, 8.0), near, where(lt(x, 0), -far, far))


@composite
def i0(input: Tensor) -> Tensor:
    """The modified Bessel function of the first kind of order 0."""
    return smooth("i0", input, lambda x: _i0e(x) * exp(abs(x)), i1, wide=True)


@composite
def i0e(input: Tensor) -> Tensor:
    """exp(-|x|) i0(x)."""
    return smooth("i0e", input, _i0e, lambda x: i1e(x) - _sign(x) * i0e(x), wide=True)


@composite
def i1(input: Tensor) -> Tensor:
    """The modified Bessel function of the first kind of order 1."""
    return smooth("i1", input, lambda x: _i1e(x) * exp(abs(x)), lambda x: i0(x) - _over(i1(x), x), wide=True)


@composite
def i1e(input: Tensor) -> Tensor:
    """exp(-|x|) i1(x)."""
    return smooth("i1e", input, _i1e, lambda x: i0e(x) - i1e(x) * _sign(x) - _over(i1e(x), x), wide=True)


def _sign(x: Tensor) -> Tensor:
    from weft.core.pointwise.elementwise import sign

    return sign(x)


def _over(y: Tensor, x: Tensor) -> Tensor:
    """y / x, with the limit 1/2 at 0."""
    return where(eq(x, 0), 0.5, y / where(eq(x, 0), 1.0, x))


def _k(x: Tensor, order: int, scaled: bool) -> Tensor:
    low, high = minimum(x, like(x, 2.0)), maximum(x, like(x, 2.0))
    square = on(low * low, 0, 4)
    logarithm = log(low) - math.log(2)
    if order:
        near = chebyshev(square, tables.K1_SMALL) / low + logarithm * (_i1e(low) * exp(low))
        far = chebyshev(on(2 / high, 0, 1), tables.K1E_LARGE) / sqrt(high)
    else:
        near = chebyshev(square, tables.K0_SMALL) - logarithm * (_i0e(low) * exp(low))
        far = chebyshev(on(2 / high, 0, 1), tables.K0E_LARGE) / sqrt(high)
    out = where(le(x, 2.0), near * exp(low) if scaled else near, far if scaled else far * exp(-high))
    return where(eq(x, 0), math.inf, where(lt(x, 0), math.nan, out))


@composite
def modified_bessel_k0(input: Tensor) -> Tensor:
    """The modified Bessel function of the second kind of order 0."""
    return smooth("modified_bessel_k0", input, lambda x: _k(x, 0, False), None, wide=True)


@composite
def modified_bessel_k1(input: Tensor) -> Tensor:
    """The modified Bessel function of the second kind of order 1."""
    return smooth("modified_bessel_k1", input, lambda x: _k(x, 1, False), None, wide=True)


@composite
def scaled_modified_bessel_k0(input: Tensor) -> Tensor:
    """exp(x) modified_bessel_k0(x)."""
    return smooth("scaled_modified_bessel_k0", input, lambda x: _k(x, 0, True), None, wide=True)


@composite
def scaled_modified_bessel_k1(input: Tensor) -> Tensor:
    """exp(x) modified_bessel_k1(x)."""
    return smooth("scaled_modified_bessel_k1", input, lambda x: _k(x, 1, True), None, wide=True)


@composite
def modified_bessel_i0(input: Tensor) -> Tensor:
    """The modified Bessel function of the first kind of order 0, as i0, without a derivative, as in torch."""
    return smooth("modified_bessel_i0", input, lambda x: _i0e(x) * exp(abs(x)), None, wide=True)


@composite
def modified_bessel_i1(input: Tensor) -> Tensor:
    """The modified Bessel function of the first kind of order 1, as i1, without a derivative, as in torch."""
    return smooth("modified_bessel_i1", input, lambda x: _i1e(x) * exp(abs(x)), None, wide=True)


def _waves(x: Tensor, order: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For x > 5: modulus parts P, Q / scale and the cosine and sine of the phase, all for x - (2 order + 1) pi / 4."""
    high = maximum(x, like(x, 5.0))
    u = 5 / high
    z = on(u * u, 0, 1)
    p = chebyshev(z, tables.J1P if order else tables.J0P)
    q = u * chebyshev(z, tables.J1Q if order else tables.J0Q)
    s, c = sin(high), cos(high)
    half = _ROOT_HALF
    cosine, sine = ((s - c) * half, -(s + c) * half) if order else ((c + s) * half, (s - c) * half)
    scale = math.sqrt(2 / math.pi) / sqrt(high)
    return p * scale, q * scale, cosine, sine


def _j(x: Tensor, order: int) -> Tensor:
    a = abs(x)
    low = minimum(a, like(x, 5.0))
    near = chebyshev(on(low * low, 0, 25), tables.J1_SMALL if order else tables.J0_SMALL)
    p, q, cosine, sine = _waves(a, order)
    far = where(eq(a, math.inf), 0.0, p * cosine - q * sine)
    out = where(le(a, 5.0), near * low if order else near, far)
    return where(lt(x, 0), -out, out) if order else out


def _y(x: Tensor, order: int) -> Tensor:
    low = where(gt(x, 0), minimum(x, like(x, 5.0)), 1.0)
    z = on(low * low, 0, 25)
    if order:
        near = low * chebyshev(z, tables.Y1_SMALL) + (log(low) * _j(low, 1) - 1 / low) * (2 / math.pi)
    else:
        near = chebyshev(z, tables.Y0_SMALL) + log(low) * _j(low, 0) * (2 / math.pi)
    p, q, cosine, sine = _waves(x, order)
    out = where(le(x, 5.0), near, where(eq(x, math.inf), 0.0, p * sine + q * cosine))
    return where(eq(x, 0), -math.inf, where(lt(x, 0), math.nan, out))


@composite
def bessel_j0(input: Tensor) -> Tensor:
    """The Bessel function of the first kind of order 0."""
    return smooth("bessel_j0", input, lambda x: _j(x, 0), None, wide=True)


@composite
def bessel_j1(input: Tensor) -> Tensor:
    """The Bessel function of the first kind of order 1."""
    return smooth("bessel_j1", input, lambda x: _j(x, 1), None, wide=True)


@composite
def bessel_y0(input: Tensor) -> Tensor:
    """The Bessel function of the second kind of order 0."""
    return smooth("bessel_y0", input, lambda x: _y(x, 0), None, wide=True)


@composite
def bessel_y1(input: Tensor) -> Tensor:
    """The Bessel function of the second kind of order 1."""
    return smooth("bessel_y1", input, lambda x: _y(x, 1), None, wide=True)


@composite
def airy_ai(input: Tensor) -> Tensor:
    """The Airy function Ai, which solves y'' = x y and falls to 0; NaN at infinity, as in torch."""

    def value(x: Tensor) -> Tensor:
        middle = where(lt(x, 0), like(x, -2.5), like(x, 1.5))  # what is in range for both fits
        inner = where(logical_and(ge(x, -5.0), le(x, 3.0)), x, middle)
        rise = chebyshev(on(minimum(inner, like(x, 0.0)), -5, 0), tables.AIRY_RISE)
        right = maximum(inner, like(x, 0.0))
        fall = chebyshev(on(right, 0, 3), tables.AIRY_FALL) * exp(right * (-4 / 3))
        far = maximum(abs(x), like(x, 3.0))
        root = sqrt(far)
        zeta, quarter = far * root * (2 / 3), sqrt(root) * math.sqrt(math.pi)
        decay = chebyshev(on(2 * math.sqrt(3) / zeta, 0, 1), tables.AIRY_DECAY) * exp(-zeta) / (quarter * 2)
        u = minimum((10 / 3) * math.sqrt(5) / zeta, like(x, 1.0))
        p, q = chebyshev(on(u * u, 0, 1), tables.AIRY_P), u * chebyshev(on(u * u, 0, 1), tables.AIRY_Q)
        s, c = sin(zeta) * _ROOT_HALF, cos(zeta) * _ROOT_HALF
        wave = (p * (c + s) + q * (s - c)) / quarter
        out = where(lt(x, -5.0), wave, where(lt(x, 0), rise, where(le(x, 3.0), fall, decay)))
        return where(eq(abs(x), math.inf), math.nan, where(ne(x, x), x, out))

    return smooth("airy_ai", input, value, None, wide=True)


@composite
def spherical_bessel_j0(input: Tensor) -> Tensor:
    """sin(x) / x, and 1 at 0."""

    def value(x: Tensor) -> Tensor:
        safe = where(eq(x, 0), 1.0, x)
        return where(eq(x, 0), 1.0, where(eq(abs(x), math.inf), 0.0, sin(safe) / safe))

    return smooth("spherical_bessel_j0", input, value, None, wide=True)


# ---------------------------------------------------------------------------------------------- polynomials


def _degree(op: str, n: Tensor | Number) -> tuple[Tensor | int, int]:
    """The degree of each element, and the largest, for which a tensor of degrees is computed."""
    if not isinstance(n, Handle):
        return int(n), int(n)
    array = run.to_numpy(value_of(op, n).node)
    return n, int(np.nan_to_num(array, nan=-1, posinf=-1, neginf=-1).max()) if array.size else 0


def recurrence(
    op: str,
    input: TensorLike,
    n: Tensor | Number,
    start: Function1,
    following: Callable[[Tensor, int, Tensor, Tensor], Tensor],
    shifted: bool = False,
) -> Tensor:
    """Polynomials p(0) = 1, p(1) = first(x), p(k + 1) = step(x, k, p(k), p(k - 1)) of the degrees that n names."""
    degrees, top = _degree(op, n)

    def value(x: Tensor, degree: Tensor) -> Tensor:
        x = x * 2 - 1 if shifted else x
        before, here = like(x, 1.0), start(x)
        whole = trunc(degree)
        out = where(lt(whole, 0), 0.0, where(eq(whole, 0), before, here))
        for k in range(1, top):
            before, here = here, following(x, k, here, before)
            out = where(eq(whole, k + 1), here, out)
        return out

    return smooth2(op, input, degrees, value, (None, None), wide=True)


def host_log1p(x: float) -> float:
    """log(1 + x) of a Python number; -inf at -1."""
    return math.log1p(x) if x > -1 else -math.inf
