"""Distributions made of others: vectors of independent ones, correlated normal ones, and functions of draws."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from weft.core.args.broadcast import broadcast_shapes
from weft.core.args.handle import Number
from weft.core.functions.random import randn
from weft.core.linear_algebra.cholesky_factors import cholesky
from weft.core.linear_algebra.inverse import inv
from weft.core.linear_algebra.solving import solve_triangular
from weft.core.pointwise.elementwise import abs as absolute
from weft.core.pointwise.elementwise import exp, log, sigmoid, square, tanh
from weft.core.pointwise.trigonometry import atanh
from weft.core.tensor.tensor import Tensor
from weft.distributions.distribution import Distribution, Size, known, sum_last
from weft.errors import ArgumentError
from weft.nn.functional import softplus


class Independent(Distribution):
    """Another distribution, whose last batch dimensions are counted as one event: log_prob adds up over them."""

    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        batch, k = base_distribution.batch_shape, reinterpreted_batch_ndims
        if not 0 <= k <= len(batch):
            raise ArgumentError(f"Independent: {k} dimensions of batch shape {batch} were asked for")
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, k
        self.has_rsample = base_distribution.has_rsample  # pyright: ignore[reportAttributeAccessIssue]
        cut = len(batch) - k
        super().__init__(batch[:cut], (*batch[cut:], *base_distribution.event_shape))

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def sample(self, sample_shape: Size = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return sum_last(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        return sum_last(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def expand(self, batch_shape: Size) -> Self:
        whole = (*batch_shape, *self.event_shape[: self.reinterpreted_batch_ndims])
        return type(self)(self.base_dist.expand(whole), self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return f"Independent({self.base_dist!r}, {self.reinterpreted_batch_ndims})"


class MultivariateNormal(Distribution):
    """Normal vectors of mean loc and covariance L L' = covariance_matrix = inverse of precision_matrix; L = scale_tril.

    The factorization runs on the host, as weft.linalg.cholesky; give scale_tril to do without.
    """

    has_rsample = True
    parameters = ("loc", "scale_tril")

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        given = [m for m in (covariance_matrix, precision_matrix, scale_tril) if m is not None]
        if len(given) != 1:
            raise ArgumentError(
                "MultivariateNormal: give one of covariance_matrix, precision_matrix and scale_tril"
            )
        n = known(loc.shape)[-1] if loc.ndim else 0
        if not n or known(given[0].shape)[-2:] != (n, n):
            raise ArgumentError(
                f"MultivariateNormal: loc of shape {tuple(loc.shape)} needs matrices (..., n, n), got "
                f"{tuple(given[0].shape)}"
            )
        if scale_tril is not None:
            factor = scale_tril
        elif covariance_matrix is not None:
            factor = cholesky(covariance_matrix)
        else:
            factor = cholesky(inv(given[0]))
        batch = known(broadcast_shapes(loc.shape[:-1], factor.shape[:-2]))
        self.loc = loc.expand(*batch, n)
        self.scale_tril = factor.expand(*batch, n, n)
        super().__init__(batch, (n,))

    @property
    def covariance_matrix(self) -> Tensor:
        """L L'."""
        return self.scale_tril @ self.scale_tril.mT

    @property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        return inv(self.covariance_matrix)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return square(self.scale_tril).sum(-1)

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        noise = randn(self.extended(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + (self.scale_tril @ noise.unsqueeze(-1)).squeeze(-1)

    def _half_log_det(self) -> Tensor:
        return log(self.scale_tril.diagonal(0, -2, -1)).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        off = value - self.loc
        factor = self.scale_tril.expand(*off.shape, self._event[0])
        whitened = solve_triangular(factor, off.unsqueeze(-1), upper=False).squeeze(-1)
        return (
            -0.5 * (self._event[0] * math.log(2 * math.pi) + square(whitened).sum(-1)) - self._half_log_det()
        )

    def entropy(self) -> Tensor:
        return 0.5 * self._event[0] * (1 + math.log(2 * math.pi)) + self._half_log_det()


class Transform(ABC):
    """A function of each element that can be undone."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """y = f(x)."""

    @abstractmethod
    def inv(self, y: Tensor) -> Tensor:
        """x with f(x) = y."""

    @abstractmethod
    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log |dy/dx|."""


class AffineTransform(Transform):
    """loc + scale x."""

    def __init__(self, loc: Tensor | Number, scale: Tensor | Number) -> None:
        self.loc, self.scale = loc, scale

    def __call__(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def inv(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return log(absolute(x * 0 + self.scale))


class ExpTransform(Transform):
    """exp(x)."""

    def __call__(self, x: Tensor) -> Tensor:
        return exp(x)

    def inv(self, y: Tensor) -> Tensor:
        return log(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class SigmoidTransform(Transform):
    """1 / (1 + exp(-x))."""

    def __call__(self, x: Tensor) -> Tensor:
        return sigmoid(x)

    def inv(self, y: Tensor) -> Tensor:
        return log(y) - log(1 - y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x) - softplus(x)


class TanhTransform(Transform):
    """tanh(x); the logarithm of its derivative is exact for large |x| too."""

    def __init__(self, cache_size: int = 0) -> None:
        del cache_size  # torch's option: values are immutable here, and equal ones are one node

    def __call__(self, x: Tensor) -> Tensor:
        return tanh(x)

    def inv(self, y: Tensor) -> Tensor:
        return atanh(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return 2 * (math.log(2) - x - softplus(-2 * x))


class ComposeTransform(Transform):
    """Transforms one after the other."""

    def __init__(self, parts: Sequence[Transform]) -> None:
        self.parts = list(parts)

    def __call__(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def inv(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part.inv(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        total: Any = 0
        for part in self.parts:
            after = part(x)
            total, x = total + part.log_abs_det_jacobian(x, after), after
        return total


class TransformedDistribution(Distribution):
    """f(x) for x of another distribution: log p(y) = log p(x) - log |dy/dx|.

    >>> policy = TransformedDistribution(Normal(mu, sigma), [TanhTransform()])  # as soft actor-critic draws
    """

    def __init__(
        self,
        base_distribution: Distribution,
        transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:
        self.base_dist = base_distribution
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        self._whole = ComposeTransform(self.transforms)
        self.has_rsample = base_distribution.has_rsample  # pyright: ignore[reportAttributeAccessIssue]
        super().__init__(base_distribution.batch_shape, base_distribution.event_shape)

    @property
    def mean(self) -> Tensor:
        raise NotImplementedError("TransformedDistribution has no mean in closed form")

    @property
    def variance(self) -> Tensor:
        raise NotImplementedError("TransformedDistribution has no variance in closed form")

    def sample(self, sample_shape: Size = ()) -> Tensor:
        return self._whole(self.base_dist.sample(sample_shape)).detach()

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        return self._whole(self.base_dist.rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        x = self._whole.inv(value)
        change = sum_last(self._whole.log_abs_det_jacobian(x, value), len(self._event))
        return self.base_dist.log_prob(x) - change

    def expand(self, batch_shape: Size) -> Self:
        return type(self)(self.base_dist.expand(batch_shape), self.transforms)

    def __repr__(self) -> str:
        return f"TransformedDistribution({self.base_dist!r}, {[type(t).__name__ for t in self.transforms]})"
