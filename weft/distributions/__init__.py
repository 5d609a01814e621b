"""Probability distributions, under the names of torch.distributions: draws, log-probabilities, entropies, divergences.

>>> policy = weft.distributions.Categorical(logits=model(state))
>>> action = policy.sample()
>>> loss = -policy.log_prob(action) * reward
"""
# Tests: tests/distributions/test_distributions.py

from weft.distributions.composed import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    Independent,
    MultivariateNormal,
    SigmoidTransform,
    TanhTransform,
    Transform,
    TransformedDistribution,
)
from weft.distributions.continuous import (
    Cauchy,
    Exponential,
    Gumbel,
    HalfNormal,
    Laplace,
    LogNormal,
    Normal,
    Uniform,
)
from weft.distributions.discrete import (
    Bernoulli,
    Binomial,
    Categorical,
    Geometric,
    OneHotCategorical,
    Poisson,
)
from weft.distributions.distribution import Distribution
from weft.distributions.gammas import Beta, Chi2, Dirichlet, Gamma, StudentT
from weft.distributions.kl import kl_divergence, register_kl
from weft.module_paths import offer_paths

offer_paths(__name__, {
    "bernoulli": "weft.distributions.discrete",
    "beta": "weft.distributions.gammas",
    "categorical": "weft.distributions.discrete",
    "dirichlet": "weft.distributions.gammas",
    "gamma": "weft.distributions.gammas",
    "independent": "weft.distributions.composed",
    "multivariate_normal": "weft.distributions.composed",
    "normal": "weft.distributions.continuous",
    "transformed_distribution": "weft.distributions.composed",
    "transforms": "weft.distributions.composed",
    "uniform": "weft.distributions.continuous",
})  # fmt: skip

__all__ = [
    "AffineTransform", "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Chi2", "ComposeTransform",
    "Dirichlet", "Distribution", "ExpTransform", "Exponential", "Gamma", "Geometric", "Gumbel", "HalfNormal",
    "Independent", "Laplace", "LogNormal", "MultivariateNormal", "Normal", "OneHotCategorical", "Poisson",
    "SigmoidTransform", "StudentT", "TanhTransform", "Transform", "TransformedDistribution", "Uniform",
    "kl_divergence", "register_kl",
]  # fmt: skip
