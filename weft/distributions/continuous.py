"""Distributions on the real line that are moved and stretched, and draw differentiably from uniform or normal noise."""

from __future__ import annotations

import math

from weft.core.args.handle import Number
from weft.core.functions.random import rand, randn
from weft.core.pointwise.dtype_info import finfo
from weft.core.pointwise.elementwise import abs as absolute
from weft.core.pointwise.elementwise import clamp, erf, exp, expm1, log, log1p, sign, square, tan, where
from weft.core.pointwise.special_functions import erfinv
from weft.core.pointwise.trigonometry import atan
from weft.core.tensor.tensor import Tensor
from weft.distributions.distribution import Distribution, Size, known, together

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_EULER = 0.57721566490153286060


class _Scaled(Distribution):
    """loc and scale, each of the batch's shape."""

    has_rsample = True
    parameters = ("loc", "scale")

    def __init__(
        self, loc: Tensor | Number, scale: Tensor | Number, validate_args: bool | None = None
    ) -> None:
        self.loc, self.scale = together(loc, scale)
        super().__init__(known(self.loc.shape))

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    def _standard(self, value: Tensor) -> Tensor:
        return (value - self.loc) / self.scale

    def _noise(self, sample_shape: Size) -> Tensor:
        """Uniform on (0, 1), both ends left out."""
        return open_uniform(self.extended(sample_shape), self.loc)


def open_uniform(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Uniform numbers in (0, 1) of a dtype and device; 0 and 1 are left out."""
    info = finfo(like.dtype)
    return clamp(rand(shape, dtype=like.dtype, device=like.device), info.tiny, 1 - info.eps)


class Normal(_Scaled):
    """exp(-(x - loc)^2 / (2 scale^2)) / (scale sqrt(2 pi)).

    >>> weft.distributions.Normal(0.0, 1.0).log_prob(weft.zeros(2))
    """

    @property
    def variance(self) -> Tensor:
        return square(self.scale)

    @property
    def stddev(self) -> Tensor:
        return self.scale

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        noise = randn(self.extended(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + noise * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        return -0.5 * square(self._standard(value)) - log(self.scale) - _HALF_LOG_2PI

    def entropy(self) -> Tensor:
        return 0.5 + _HALF_LOG_2PI + log(self.scale)

    def cdf(self, value: Tensor) -> Tensor:
        return 0.5 * (1 + erf(self._standard(value) * math.sqrt(0.5)))

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * erfinv(2 * value - 1) * math.sqrt(2)


class LogNormal(_Scaled):
    """exp(x) for x of Normal(loc, scale)."""

    @property
    def mean(self) -> Tensor:
        return exp(self.loc + square(self.scale) / 2)

    @property
    def mode(self) -> Tensor:
        return exp(self.loc - square(self.scale))

    @property
    def variance(self) -> Tensor:
        s = square(self.scale)
        return expm1(s) * exp(2 * self.loc + s)

    def _log(self) -> Normal:
        return Normal(self.loc, self.scale)

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        return exp(self._log().rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        x = log(value)
        return self._log().log_prob(x) - x

    def entropy(self) -> Tensor:
        return self._log().entropy() + self.loc

    def cdf(self, value: Tensor) -> Tensor:
        return self._log().cdf(log(value))

    def icdf(self, value: Tensor) -> Tensor:
        return exp(self._log().icdf(value))


class Laplace(_Scaled):
    """exp(-|x - loc| / scale) / (2 scale)."""

    @property
    def variance(self) -> Tensor:
        return 2 * square(self.scale)

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        u = 2 * self._noise(sample_shape) - 1
        return self.loc - self.scale * sign(u) * log1p(-absolute(u))

    def log_prob(self, value: Tensor) -> Tensor:
        return -log(2 * self.scale) - absolute(self._standard(value))

    def entropy(self) -> Tensor:
        return 1 + log(2 * self.scale)

    def cdf(self, value: Tensor) -> Tensor:
        x = self._standard(value)
        return 0.5 - 0.5 * sign(x) * expm1(-absolute(x))

    def icdf(self, value: Tensor) -> Tensor:
        x = value - 0.5
        return self.loc - self.scale * sign(x) * log1p(-2 * absolute(x))


class Gumbel(_Scaled):
    """The distribution function is exp(-exp(-(x - loc) / scale))."""

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * _EULER

    @property
    def variance(self) -> Tensor:
        return square(self.scale) * (math.pi**2 / 6)

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        return self.icdf(self._noise(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        x = self._standard(value)
        return -x - exp(-x) - log(self.scale)

    def entropy(self) -> Tensor:
        return log(self.scale) + (1 + _EULER)

    def cdf(self, value: Tensor) -> Tensor:
        return exp(-exp(-self._standard(value)))

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc - self.scale * log(-log(value))


class Cauchy(_Scaled):
    """1 / (pi scale (1 + ((x - loc) / scale)^2)). It has no mean, and no finite variance."""

    @property
    def mean(self) -> Tensor:
        return self.loc * math.nan

    @property
    def variance(self) -> Tensor:
        return self.scale * math.inf

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        return self.icdf(self._noise(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        return -math.log(math.pi) - log(self.scale) - log1p(square(self._standard(value)))

    def entropy(self) -> Tensor:
        return math.log(4 * math.pi) + log(self.scale)

    def cdf(self, value: Tensor) -> Tensor:
        return atan(self._standard(value)) / math.pi + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * tan(math.pi * (value - 0.5))


class HalfNormal(Distribution):
    """|x| for x of Normal(0, scale)."""

    has_rsample = True
    parameters = ("scale",)

    def __init__(self, scale: Tensor | Number, validate_args: bool | None = None) -> None:
        (self.scale,) = together(scale)
        super().__init__(known(self.scale.shape))

    def _whole(self) -> Normal:
        return Normal(self.scale * 0, self.scale)

    @property
    def mean(self) -> Tensor:
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def mode(self) -> Tensor:
        return self.scale * 0

    @property
    def variance(self) -> Tensor:
        return square(self.scale) * (1 - 2 / math.pi)

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        return absolute(self._whole().rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        inside = self._whole().log_prob(value) + math.log(2)
        return where(value >= 0, inside, -math.inf)

    def entropy(self) -> Tensor:
        return self._whole().entropy() - math.log(2)

    def cdf(self, value: Tensor) -> Tensor:
        return 2 * self._whole().cdf(value) - 1

    def icdf(self, value: Tensor) -> Tensor:
        return self._whole().icdf((value + 1) / 2)


class Exponential(Distribution):
    """rate exp(-rate x) for x >= 0."""

    has_rsample = True
    parameters = ("rate",)

    def __init__(self, rate: Tensor | Number, validate_args: bool | None = None) -> None:
        (self.rate,) = together(rate)
        super().__init__(known(self.rate.shape))

    @property
    def mean(self) -> Tensor:
        return 1 / self.rate

    @property
    def mode(self) -> Tensor:
        return self.rate * 0

    @property
    def variance(self) -> Tensor:
        return 1 / square(self.rate)

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        return -log(open_uniform(self.extended(sample_shape), self.rate)) / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        return log(self.rate) - self.rate * value

    def entropy(self) -> Tensor:
        return 1 - log(self.rate)

    def cdf(self, value: Tensor) -> Tensor:
        return -expm1(-self.rate * value)

    def icdf(self, value: Tensor) -> Tensor:
        return -log1p(-value) / self.rate


class Uniform(Distribution):
    """1 / (high - low) on [low, high)."""

    has_rsample = True
    parameters = ("low", "high")

    def __init__(
        self, low: Tensor | Number, high: Tensor | Number, validate_args: bool | None = None
    ) -> None:
        self.low, self.high = together(low, high)
        super().__init__(known(self.low.shape))

    @property
    def mean(self) -> Tensor:
        return (self.low + self.high) / 2

    @property
    def mode(self) -> Tensor:
        return self.low * math.nan

    @property
    def variance(self) -> Tensor:
        return square(self.high - self.low) / 12

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        noise = rand(self.extended(sample_shape), dtype=self.low.dtype, device=self.low.device)
        return self.low + noise * (self.high - self.low)

    def log_prob(self, value: Tensor) -> Tensor:
        inside = (value >= self.low) & (value < self.high)
        return where(inside, -log(self.high - self.low), -math.inf)

    def entropy(self) -> Tensor:
        return log(self.high - self.low)

    def cdf(self, value: Tensor) -> Tensor:
        return clamp((value - self.low) / (self.high - self.low), 0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        return self.low + value * (self.high - self.low)
