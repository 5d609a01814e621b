"""KL(p || q), the expectation of log p - log q under p, in closed form: a table by the types of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.linear_algebra.solving import solve_triangular
from weft.core.pointwise.elementwise import exp, log, square, where
from weft.core.pointwise.special_functions import digamma, lgamma, xlogy
from weft.core.tensor.tensor import Tensor
from weft.distributions.composed import Independent, MultivariateNormal
from weft.distributions.continuous import Exponential, Gumbel, HalfNormal, Laplace, LogNormal, Normal, Uniform
from weft.distributions.discrete import Bernoulli, Binomial, Categorical, Geometric, Poisson
from weft.distributions.distribution import Distribution, sum_last
from weft.distributions.gammas import Beta, Dirichlet, Gamma

DivergenceRule = Callable[[Any, Any], Tensor]


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """KL(p || q) for each pair of the batch. NotImplementedError for pairs of types without a formula here."""
    for (first, second), rule in RULES.items():
        if isinstance(p, first) and isinstance(q, second):
            return rule(p, q)
    raise NotImplementedError(
        f"kl_divergence: no formula for {type(p).__name__} and {type(q).__name__}; average p.log_prob(x) - "
        "q.log_prob(x) over samples x of p"
    )


def register_kl(
    type_p: type[Distribution], type_q: type[Distribution]
) -> Callable[[DivergenceRule], DivergenceRule]:
    """A decorator that has a function be the formula for two types; it comes before those that are there."""

    def register(rule: DivergenceRule) -> DivergenceRule:
        others = dict(RULES)
        RULES.clear()
        RULES[type_p, type_q] = rule
        RULES.update({k: v for k, v in others.items() if k != (type_p, type_q)})
        return rule

    return register


def _normal(p: Any, q: Any) -> Tensor:
    ratio = square(p.scale / q.scale)
    return 0.5 * (ratio + square((p.loc - q.loc) / q.scale) - 1 - log(ratio))


def _half_normal(p: HalfNormal, q: HalfNormal) -> Tensor:
    ratio = square(p.scale / q.scale)
    return 0.5 * (ratio - 1 - log(ratio))


def _laplace(p: Laplace, q: Laplace) -> Tensor:
    ratio, off = p.scale / q.scale, (p.loc - q.loc).abs()
    return -log(ratio) + off / q.scale + ratio * exp(-off / p.scale) - 1


def _gumbel(p: Gumbel, q: Gumbel) -> Tensor:
    euler, ratio = 0.57721566490153286060, p.scale / q.scale
    at, shift = q.loc / q.scale, p.loc / q.scale
    return -log(ratio) - at + shift + ratio * euler + exp(at + lgamma(1 + ratio) - shift) - (1 + euler)


def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - log(ratio) - 1


def _uniform(p: Uniform, q: Uniform) -> Tensor:
    inside = (q.low <= p.low) & (q.high >= p.high)
    return where(inside, log((q.high - q.low) / (p.high - p.low)), float("inf"))


def _gamma(p: Gamma, q: Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    return (
        b * log(p.rate / q.rate)
        + lgamma(b)
        - lgamma(a)
        + (a - b) * digamma(a)
        + (q.rate - p.rate) * (a / p.rate)
    )


def _beta(p: Beta, q: Beta) -> Tensor:
    a, b, c, d = p.concentration1, p.concentration0, q.concentration1, q.concentration0
    before = lgamma(c) + lgamma(d) + lgamma(a + b) - lgamma(c + d) - lgamma(a) - lgamma(b)
    return before + (a - c) * digamma(a) + (b - d) * digamma(b) + (c + d - a - b) * digamma(a + b)


def _dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    before = lgamma(total) - lgamma(b.sum(-1)) - (lgamma(a) - lgamma(b)).sum(-1)
    return before + ((a - b) * (digamma(a) - digamma(total).unsqueeze(-1))).sum(-1)


def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    return xlogy(p.probs, p.probs / q.probs) + xlogy(1 - p.probs, (1 - p.probs) / (1 - q.probs))


def _binomial(p: Binomial, q: Binomial) -> Tensor:
    each = p.probs * (p.logits - q.logits) + log(1 - p.probs) - log(1 - q.probs)
    return where(p.total_count > q.total_count, float("inf"), p.total_count * each)


def _categorical(p: Categorical, q: Categorical) -> Tensor:
    terms = where(p.probs == 0, 0, p.probs * (p.logits - q.logits))
    return where(q.probs == 0, where(p.probs == 0, 0, float("inf")), terms).sum(-1)


def _geometric(p: Geometric, q: Geometric) -> Tensor:
    return -p.entropy() - log(1 - q.probs) / p.probs - q.logits


def _poisson(p: Poisson, q: Poisson) -> Tensor:
    return p.rate * (log(p.rate) - log(q.rate)) - (p.rate - q.rate)


def _multivariate_normal(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    ours, theirs = p.scale_tril, q.scale_tril
    logs = log(theirs.diagonal(0, -2, -1)).sum(-1) - log(ours.diagonal(0, -2, -1)).sum(-1)
    spread = square(solve_triangular(theirs, ours, upper=False)).sum((-2, -1))
    off = square(solve_triangular(theirs, (q.loc - p.loc).unsqueeze(-1), upper=False)).sum((-2, -1))
    return logs + 0.5 * (spread + off - p.event_shape[0])


def _independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("kl_divergence: both Independent must reinterpret as many dimensions")
    return sum_last(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


RULES: dict[tuple[type[Distribution], type[Distribution]], DivergenceRule] = {
    (Normal, Normal): _normal,
    (LogNormal, LogNormal): _normal,
    (HalfNormal, HalfNormal): _half_normal,
    (Laplace, Laplace): _laplace,
    (Gumbel, Gumbel): _gumbel,
    (Exponential, Exponential): _exponential,
    (Uniform, Uniform): _uniform,
    (Gamma, Gamma): _gamma,
    (Beta, Beta): _beta,
    (Dirichlet, Dirichlet): _dirichlet,
    (Bernoulli, Bernoulli): _bernoulli,
    (Binomial, Binomial): _binomial,
    (Categorical, Categorical): _categorical,
    (Geometric, Geometric): _geometric,
    (Poisson, Poisson): _poisson,
    (MultivariateNormal, MultivariateNormal): _multivariate_normal,
    (Independent, Independent): _independent,
}
"""The formula of each pair; the first that fits is taken."""
