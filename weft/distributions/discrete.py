"""Distributions of counts and choices. Draws have no gradients."""

from __future__ import annotations

import math
from abc import abstractmethod

from weft.core.args.handle import Number
from weft.core.args.modes import no_grad
from weft.core.functions.random import bernoulli, binomial, multinomial, poisson
from weft.core.layout.creation import arange
from weft.core.layout.gather import gather
from weft.core.pointwise.dtype_info import finfo
from weft.core.pointwise.elementwise import clamp, exp, floor, log, log1p, logical_and, sigmoid, where
from weft.core.pointwise.special_functions import lgamma, xlogy
from weft.core.tensor.tensor import Tensor
from weft.distributions.continuous import open_uniform
from weft.distributions.distribution import Distribution, Size, known, together
from weft.errors import ArgumentError
from weft.nn.functional import binary_cross_entropy_with_logits, log_softmax, one_hot, softplus


def _one_of(name: str, probs: object, logits: object) -> None:
    if (probs is None) == (logits is None):
        raise ArgumentError(f"{name}: give either probs or logits")


def clamped(probs: Tensor) -> Tensor:
    """Probabilities kept off 0 and 1, whose logarithms are infinite."""
    eps = finfo(probs.dtype).eps
    return clamp(probs, eps, 1 - eps)


class _Discrete(Distribution):
    def sample(self, sample_shape: Size = ()) -> Tensor:
        with no_grad():
            return self._drawn(tuple(sample_shape))

    @abstractmethod
    def _drawn(self, sample_shape: tuple[int, ...]) -> Tensor: ...


class _OfProbability(_Discrete):
    """`probs`, or their log odds `logits`; each is computed from the other."""

    parameters = ("probs", "logits")

    def __init__(
        self,
        probs: Tensor | Number | None = None,
        logits: Tensor | Number | None = None,
        validate_args: bool | None = None,
    ) -> None:
        _one_of(type(self).__name__, probs, logits)
        if probs is not None:
            (self.probs,) = together(probs)
            kept = clamped(self.probs)
            self.logits = log(kept) - log1p(-kept)
        elif logits is not None:
            (self.logits,) = together(logits)
            self.probs = sigmoid(self.logits)
        super().__init__(known(self.probs.shape))


class Bernoulli(_OfProbability):
    """1 with probability probs, else 0."""

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        return where(self.probs == 0.5, math.nan, (self.probs >= 0.5).to(self.probs.dtype))

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def _drawn(self, sample_shape: tuple[int, ...]) -> Tensor:
        return bernoulli(self.probs.expand(self.extended(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        logits, value = together(self.logits, value)
        return -binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self) -> Tensor:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")


class Geometric(_OfProbability):
    """The number of trials that fail before the first success: (1 - probs)^k probs for k = 0, 1, ..."""

    @property
    def mean(self) -> Tensor:
        return 1 / self.probs - 1

    @property
    def mode(self) -> Tensor:
        return self.probs * 0

    @property
    def variance(self) -> Tensor:
        return (1 / self.probs - 1) / self.probs

    def _drawn(self, sample_shape: tuple[int, ...]) -> Tensor:
        return floor(log(open_uniform(self.extended(sample_shape), self.probs)) / log1p(-self.probs))

    def log_prob(self, value: Tensor) -> Tensor:
        fails = where(logical_and(self.probs == 1, value == 0), 0, self.probs)
        return value * log1p(-fails) + log(self.probs)

    def entropy(self) -> Tensor:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none") / self.probs


class Binomial(_Discrete):
    """The number of total_count trials that succeed, each with probability probs."""

    parameters = ("total_count", "probs", "logits")

    def __init__(
        self,
        total_count: Tensor | Number = 1,
        probs: Tensor | Number | None = None,
        logits: Tensor | Number | None = None,
        validate_args: bool | None = None,
    ) -> None:
        _one_of("Binomial", probs, logits)
        if probs is not None:
            self.probs, self.total_count = together(probs, total_count)
            kept = clamped(self.probs)
            self.logits = log(kept) - log1p(-kept)
        elif logits is not None:
            self.logits, self.total_count = together(logits, total_count)
            self.probs = sigmoid(self.logits)
        self.total_count = self.total_count.to(self.probs.dtype)
        super().__init__(known(self.probs.shape))

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        return clamp(floor((self.total_count + 1) * self.probs), max=self.total_count)

    @property
    def variance(self) -> Tensor:
        return self.mean * (1 - self.probs)

    def _drawn(self, sample_shape: tuple[int, ...]) -> Tensor:
        shape = self.extended(sample_shape)
        return binomial(self.total_count.expand(shape), self.probs.expand(shape))

    def log_prob(self, value: Tensor) -> Tensor:
        n, x = self.total_count, self.logits
        choices = lgamma(n + 1) - lgamma(value + 1) - lgamma(n - value + 1)
        return choices + value * x - n * softplus(x)


class Poisson(_Discrete):
    """rate^k exp(-rate) / k!"""

    parameters = ("rate",)

    def __init__(self, rate: Tensor | Number, validate_args: bool | None = None) -> None:
        (self.rate,) = together(rate)
        super().__init__(known(self.rate.shape))

    @property
    def mean(self) -> Tensor:
        return self.rate

    @property
    def mode(self) -> Tensor:
        return floor(self.rate)

    @property
    def variance(self) -> Tensor:
        return self.rate

    def _drawn(self, sample_shape: tuple[int, ...]) -> Tensor:
        return poisson(self.rate.expand(self.extended(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        rate, value = together(self.rate, value)
        return xlogy(value, rate) - rate - lgamma(value + 1)


class Categorical(_Discrete):
    """The index k with probability probs[..., k] / sum of probs[..., :]; `logits` are logarithms, up to a constant.

    >>> weft.distributions.Categorical(logits=weft.zeros(3)).entropy()  # log(3)
    """

    parameters = ("probs", "logits")

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: bool | None = None
    ) -> None:
        _one_of(type(self).__name__, probs, logits)
        if probs is not None:
            if not probs.ndim:
                raise ArgumentError(f"{type(self).__name__}: probs needs at least one dimension")
            self.probs = probs / probs.sum(-1, keepdim=True)
            self.logits = log(clamped(self.probs))
        elif logits is not None:
            if not logits.ndim:
                raise ArgumentError(f"{type(self).__name__}: logits needs at least one dimension")
            self.logits = log_softmax(logits, -1)
            self.probs = exp(self.logits)
        self._classes = known(self.probs.shape)[-1]
        super().__init__(known(self.probs.shape)[:-1])

    @property
    def mean(self) -> Tensor:
        return self.probs.sum(-1) * math.nan

    @property
    def mode(self) -> Tensor:
        return self.probs.argmax(-1)

    @property
    def variance(self) -> Tensor:
        return self.mean

    def _drawn(self, sample_shape: tuple[int, ...]) -> Tensor:
        draws = math.prod(sample_shape)
        rows = self.probs.reshape(math.prod(self._batch), self._classes)
        picked = multinomial(rows, draws, replacement=True)
        return picked.t().reshape(*sample_shape, *self._batch)

    def log_prob(self, value: Tensor) -> Tensor:
        shape = (*(1 for _ in range(value.ndim - len(self._batch))), *self.logits.shape)
        wide = (*value.shape, self._classes)
        if value.ndim < len(self._batch):
            value, wide = value.expand(self._batch), (*self._batch, self._classes)
        logits = self.logits.reshape(*shape).expand(*wide)
        return gather(logits, -1, value.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        least = finfo(self.logits.dtype).min
        return -(clamp(self.logits, min=least) * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values, along a new first dimension."""
        values = arange(self._classes, device=self.probs.device).reshape(-1, *(1 for _ in self._batch))
        return values.expand(self._classes, *self._batch) if expand else values


class OneHotCategorical(Categorical):
    """As Categorical; a draw is a vector with a 1 at the index."""

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(probs, logits)
        self._event = (self._classes,)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        return one_hot(self.probs.argmax(-1), self._classes).to(self.probs.dtype)

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def _drawn(self, sample_shape: tuple[int, ...]) -> Tensor:
        return one_hot(super()._drawn(sample_shape), self._classes).to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value.argmax(-1))
