"""Gamma, and what is made of it."""

from __future__ import annotations

import math

from weft.core.args.handle import Number
from weft.core.functions.random import randn
from weft.core.layout.movement import stack
from weft.core.pointwise.elementwise import log, log1p, square, where
from weft.core.pointwise.special_functions import digamma, gammainc, lgamma, xlogy
from weft.core.tensor.tensor import Tensor
from weft.distributions.distribution import Distribution, Size, known, together
from weft.distributions.reparameterized import draw_dirichlet, draw_gamma
from weft.errors import ArgumentError


class Gamma(Distribution):
    """rate^a x^(a-1) exp(-rate x) / Gamma(a) with a = concentration."""

    has_rsample = True
    parameters = ("concentration", "rate")

    def __init__(
        self, concentration: Tensor | Number, rate: Tensor | Number, validate_args: bool | None = None
    ) -> None:
        self.concentration, self.rate = together(concentration, rate)
        super().__init__(known(self.rate.shape))

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def variance(self) -> Tensor:
        return self.concentration / square(self.rate)

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        return draw_gamma(self.concentration, self.extended(sample_shape)) / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        a = self.concentration
        return xlogy(a, self.rate) + xlogy(a - 1, value) - self.rate * value - lgamma(a)

    def entropy(self) -> Tensor:
        a = self.concentration
        return a - log(self.rate) + lgamma(a) + (1 - a) * digamma(a)

    def cdf(self, value: Tensor) -> Tensor:
        return gammainc(self.concentration, self.rate * value)


class Chi2(Gamma):
    """Gamma(df / 2, 1 / 2): the sum of df squares of standard normal numbers."""

    parameters = ("df", "concentration", "rate")

    def __init__(self, df: Tensor | Number, validate_args: bool | None = None) -> None:
        (self.df,) = together(df)
        super().__init__(self.df / 2, 0.5)


class Dirichlet(Distribution):
    """On vectors that add up to 1: the product of x_i^(a_i - 1), over B(a), with a = concentration."""

    has_rsample = True
    parameters = ("concentration",)

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if not concentration.ndim:
            raise ArgumentError("Dirichlet: concentration needs at least one dimension")
        self.concentration = concentration
        shape = known(concentration.shape)
        super().__init__(shape[:-1], shape[-1:])

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def variance(self) -> Tensor:
        total = self.concentration.sum(-1, keepdim=True)
        return self.concentration * (total - self.concentration) / (square(total) * (total + 1))

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        return draw_dirichlet(self.concentration, self.extended(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        a = self.concentration
        return xlogy(a - 1, value).sum(-1) + lgamma(a.sum(-1)) - lgamma(a).sum(-1)

    def entropy(self) -> Tensor:
        a = self.concentration
        total, k = a.sum(-1), self.event_shape[0]
        normalizer = lgamma(a).sum(-1) - lgamma(total)
        return normalizer - (k - total) * digamma(total) - ((a - 1) * digamma(a)).sum(-1)


class Beta(Distribution):
    """x^(a-1) (1-x)^(b-1) / B(a, b) with a = concentration1, b = concentration0."""

    has_rsample = True
    parameters = ("concentration1", "concentration0")

    def __init__(
        self,
        concentration1: Tensor | Number,
        concentration0: Tensor | Number,
        validate_args: bool | None = None,
    ) -> None:
        self.concentration1, self.concentration0 = together(concentration1, concentration0)
        super().__init__(known(self.concentration1.shape))

    @property
    def mean(self) -> Tensor:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def variance(self) -> Tensor:
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (square(total) * (total + 1))

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        both = stack([self.concentration1, self.concentration0], -1)
        return draw_dirichlet(both, (*self.extended(sample_shape), 2))[..., 0]

    def _log_beta(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return lgamma(a) + lgamma(b) - lgamma(a + b)

    def log_prob(self, value: Tensor) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return xlogy(a - 1, value) + xlogy(b - 1, 1 - value) - self._log_beta()

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        together_ = (a + b - 2) * digamma(a + b)
        return self._log_beta() - (a - 1) * digamma(a) - (b - 1) * digamma(b) + together_


class StudentT(Distribution):
    """loc + scale x, where x is normal over the root of an independent Chi2(df) / df."""

    has_rsample = True
    parameters = ("df", "loc", "scale")

    def __init__(
        self,
        df: Tensor | Number,
        loc: Tensor | Number = 0.0,
        scale: Tensor | Number = 1.0,
        validate_args: bool | None = None,
    ) -> None:
        self.df, self.loc, self.scale = together(df, loc, scale)
        super().__init__(known(self.df.shape))

    @property
    def mean(self) -> Tensor:
        return where(self.df > 1, self.loc, math.nan)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        finite = square(self.scale) * self.df / where(self.df > 2, self.df - 2, 1)
        return where(self.df > 2, finite, where(self.df > 1, math.inf, math.nan))

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        shape = self.extended(sample_shape)
        x = randn(shape, dtype=self.df.dtype, device=self.df.device)
        z = 2 * draw_gamma(self.df / 2, shape)
        return self.loc + self.scale * x * (self.df / z).sqrt()

    def log_prob(self, value: Tensor) -> Tensor:
        y, n = (value - self.loc) / self.scale, self.df
        normalizer = (
            log(self.scale) + 0.5 * log(n) + 0.5 * math.log(math.pi) + lgamma(n / 2) - lgamma((n + 1) / 2)
        )
        return -0.5 * (n + 1) * log1p(square(y) / n) - normalizer

    def entropy(self) -> Tensor:
        n = self.df
        log_beta = lgamma(n / 2) + 0.5 * math.log(math.pi) - lgamma((n + 1) / 2)
        spread = 0.5 * (n + 1) * (digamma(0.5 * (n + 1)) - digamma(0.5 * n))
        return log(self.scale) + spread + 0.5 * log(n) + log_beta


__all__ = ["Beta", "Chi2", "Dirichlet", "Gamma", "StudentT"]
