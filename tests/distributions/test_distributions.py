"""Distributions against torch's: log-probabilities, moments, entropies, divergences, gradients; draws by moments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft import distributions as dist
from weft.core.functions import random

Make = Callable[[Any, Any], Any]
"""(the framework, a function from an array to a tensor of it) -> a distribution"""

POSITIVE = np.array([0.5, 1.25, 3.0], np.float32)
REAL = np.array([-1.0, 0.25, 2.0], np.float32)
UNIT = np.array([0.2, 0.5, 0.9], np.float32)
ROWS = np.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]], np.float32)
FACTOR = np.array([[1.0, 0, 0], [0.5, 0.75, 0], [-0.25, 0.5, 1.5]], np.float32)

CASES: dict[str, tuple[Make, np.ndarray]] = {
    "Normal": (lambda d, t: d.Normal(t(REAL), t(POSITIVE)), REAL + 0.5),
    "Normal of numbers": (lambda d, t: d.Normal(0.5, 2.0), REAL),
    "LogNormal": (lambda d, t: d.LogNormal(t(REAL), t(POSITIVE)), POSITIVE),
    "Laplace": (lambda d, t: d.Laplace(t(REAL), t(POSITIVE)), REAL * 2),
    "Gumbel": (lambda d, t: d.Gumbel(t(REAL), t(POSITIVE)), REAL * 2),
    "Cauchy": (lambda d, t: d.Cauchy(t(REAL), t(POSITIVE)), REAL * 2),
    "HalfNormal": (lambda d, t: d.HalfNormal(t(POSITIVE)), POSITIVE * 0.5),
    "Exponential": (lambda d, t: d.Exponential(t(POSITIVE)), POSITIVE),
    "Uniform": (lambda d, t: d.Uniform(t(REAL), t(REAL + 2)), REAL + 0.75),
    "Bernoulli": (lambda d, t: d.Bernoulli(probs=t(UNIT)), np.array([0, 1, 1], np.float32)),
    "Bernoulli logits": (lambda d, t: d.Bernoulli(logits=t(REAL)), np.array([0, 1, 1], np.float32)),
    "Geometric": (lambda d, t: d.Geometric(t(UNIT)), np.array([0, 2, 1], np.float32)),
    "Binomial": (lambda d, t: d.Binomial(5, t(UNIT)), np.array([0, 2, 5], np.float32)),
    "Poisson": (lambda d, t: d.Poisson(t(POSITIVE)), np.array([0, 2, 5], np.float32)),
    "Categorical": (lambda d, t: d.Categorical(t(ROWS)), np.array([2, 1])),
    "Categorical logits": (lambda d, t: d.Categorical(logits=t(ROWS)), np.array([[2, 1], [0, 0]])),
    "OneHotCategorical": (lambda d, t: d.OneHotCategorical(t(ROWS)), np.eye(3, dtype=np.float32)[[2, 1]]),
    "Gamma": (lambda d, t: d.Gamma(t(POSITIVE), t(UNIT)), POSITIVE),
    "Chi2": (lambda d, t: d.Chi2(t(POSITIVE + 1)), POSITIVE),
    "Beta": (lambda d, t: d.Beta(t(POSITIVE), t(POSITIVE + 1)), UNIT),
    "Dirichlet": (lambda d, t: d.Dirichlet(t(POSITIVE)), ROWS[0]),
    "StudentT": (lambda d, t: d.StudentT(t(POSITIVE + 2), t(REAL), t(POSITIVE)), REAL * 2),
    "MultivariateNormal": (
        lambda d, t: d.MultivariateNormal(t(REAL), scale_tril=t(FACTOR)),
        np.stack([REAL, POSITIVE]),
    ),
    "MultivariateNormal of a covariance": (
        lambda d, t: d.MultivariateNormal(t(REAL), t(FACTOR @ FACTOR.T)),
        POSITIVE,
    ),
    "Independent": (lambda d, t: d.Independent(d.Normal(t(ROWS), 0.5), 1), ROWS[::-1].copy()),
}
SMOOTH = [name for name in CASES if "cal" not in name]


def _of(name: str, fw: Any) -> tuple[Any, list[Any]]:
    """The distribution, and the tensors it was made of."""
    made: list[Any] = []

    def tensor(x: np.ndarray) -> Any:
        made.append(fw.tensor(x, requires_grad=True))
        return made[-1]

    return CASES[name][0](fw.distributions, tensor), made


def _close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(
        got.detach().numpy(), want.detach().numpy(), rtol=3e-5, atol=2e-6, equal_nan=True
    )


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_torchs(name: str) -> None:
    (ours, leaves), (theirs, wanted) = _of(name, weft), _of(name, torch)
    at = CASES[name][1]
    got, want = ours.log_prob(weft.tensor(at)), theirs.log_prob(torch.tensor(at))
    _close(got, want)
    assert (ours.batch_shape, ours.event_shape) == (tuple(theirs.batch_shape), tuple(theirs.event_shape))
    if wanted:
        got.sum().backward()
        want.sum().backward()
        for g, w in zip(leaves, wanted, strict=True):
            _close(g.grad, w.grad)
    for what in ("mean", "variance", "stddev", "mode"):
        try:
            expected = getattr(theirs, what)
        except NotImplementedError:
            continue
        if not (name in ("Beta", "Dirichlet", "OneHotCategorical") and what == "mode"):
            _close(getattr(ours, what), expected)
    if "Binomial" not in name and name != "Poisson":
        _close(ours.entropy(), theirs.entropy())


@pytest.mark.parametrize("name", [n for n in CASES if hasattr(getattr(dist, n, None), "icdf")])
def test_distribution_functions(name: str) -> None:
    (ours, _), (theirs, _) = _of(name, weft), _of(name, torch)
    for function, at in (("cdf", CASES[name][1]), ("icdf", UNIT)):
        try:
            want = getattr(theirs, function)(torch.tensor(at))
        except NotImplementedError:
            continue
        try:
            got = getattr(ours, function)(weft.tensor(at))
        except NotImplementedError:
            continue
        _close(got, want)


@pytest.mark.parametrize("name", CASES)
def test_draws_have_the_mean_and_variance(name: str) -> None:
    weft.manual_seed(0)
    (ours, leaves), n = _of(name, weft), 20_000
    drawn = ours.sample((n,))
    assert drawn.shape == (n, *ours.batch_shape, *ours.event_shape) and not drawn.requires_grad
    x = drawn.numpy().astype(np.float64)
    if name == "Cauchy":
        assert np.all(np.abs(np.median(x, 0) - REAL) < 0.1 * POSITIVE)
        return
    if name.startswith("Categorical"):
        x, mean = np.eye(3)[drawn.numpy()], ours.probs.detach().numpy()
        var = mean * (1 - mean)
    else:
        mean, var = ours.mean.detach().numpy(), ours.variance.detach().numpy()
    np.testing.assert_allclose(x.mean(0), mean, atol=float(6 * np.sqrt(var.max() / n)))
    if name != "LogNormal" and name != "StudentT":  # their fourth moments are too large
        np.testing.assert_allclose(x.var(0), var, rtol=0.15)
    if ours.has_rsample and leaves:
        ours.rsample((2,)).square().sum().backward()
        assert any(t.grad is not None and np.abs(t.grad.numpy()).max() > 0 for t in leaves)


PAIRS = [
    n for n in CASES if n not in ("Cauchy", "StudentT", "Chi2", "Normal of numbers", "OneHotCategorical")
]


@pytest.mark.parametrize("name", PAIRS)
def test_divergences_are_torchs(name: str) -> None:
    def pair(fw: Any) -> Any:
        p = CASES[name][0](fw.distributions, fw.tensor)
        q = CASES[name][0](
            fw.distributions, lambda x: fw.tensor(np.ascontiguousarray(x[::-1]) if x.ndim == 1 else x)
        )
        return fw.distributions.kl_divergence(p, q)

    if name.startswith("Categorical"):
        a, b = ROWS[:1], ROWS[1:]
        got = dist.kl_divergence(dist.Categorical(weft.tensor(a)), dist.Categorical(weft.tensor(b)))
        want = torch.distributions.kl_divergence(
            torch.distributions.Categorical(torch.tensor(a)), torch.distributions.Categorical(torch.tensor(b))
        )
        _close(got, want)
    else:
        _close(pair(weft), pair(torch))


def test_a_squashed_policy_is_torchs() -> None:
    def run(fw: Any) -> Any:
        d = fw.distributions
        normal = d.Normal(fw.tensor(REAL, requires_grad=True), 0.5)
        transforms = [d.transforms.TanhTransform() if fw is torch else d.TanhTransform()]
        transforms += [(d.transforms if fw is torch else d).AffineTransform(0.5, 2.0)]
        y = fw.tensor(np.array([-1.2, 0.7, 2.2], np.float32))
        return d.TransformedDistribution(normal, transforms).log_prob(y)

    _close(run(weft), run(torch))
    drawn = dist.TransformedDistribution(dist.Normal(weft.zeros(3), 1.0), [dist.TanhTransform()]).rsample(
        (5,)
    )
    assert drawn.shape == (5, 3) and float(drawn.abs().max()) < 1


def test_misuse() -> None:
    with pytest.raises(weft.ArgumentError, match="Bernoulli: give either probs or logits"):
        dist.Bernoulli()
    with pytest.raises(NotImplementedError, match="no formula for Normal and Cauchy"):
        dist.kl_divergence(dist.Normal(0.0, 1.0), dist.Cauchy(0.0, 1.0))
    with pytest.raises(NotImplementedError, match="Poisson has no draws with gradients"):
        dist.Poisson(1.0).rsample()
    with pytest.raises(weft.ArgumentError, match=r"MultivariateNormal: loc of shape \(3,\) needs matrices"):
        dist.MultivariateNormal(weft.zeros(3), weft.eye(2))


@pytest.mark.parametrize(
    "name", ["Normal", "Categorical", "Chi2", "Independent", "MultivariateNormal", "Dirichlet"]
)
def test_expanded_to_a_batch(name: str) -> None:
    ours, _ = _of(name, weft)
    wide = ours.expand((4, *ours.batch_shape))
    assert wide.batch_shape == (4, *ours.batch_shape) and wide.event_shape == ours.event_shape
    x = wide.sample((2,))
    assert x.shape == (2, 4, *ours.batch_shape, *ours.event_shape)
    _close(wide.log_prob(x), ours.log_prob(x))


@pytest.mark.parametrize("rates", [(0.0, 0.5, 1e-9, 3.0, 16.0), (0.3, 20.0, 0.0)])
def test_poissons_draws_are_the_inverse_of_its_running_sum(rates: tuple[float, ...]) -> None:
    def inverse(rate: float, u: float) -> int:
        k, term = 0, math.exp(-rate)
        total = term
        while total <= u:
            k += 1
            term *= rate / k
            total += term
        return k

    rate = np.repeat(np.array(rates), 200)
    weft.manual_seed(5)
    u = weft.rand(rate.size, dtype=weft.float64).numpy()
    weft.manual_seed(5)
    drawn = weft.poisson(weft.tensor(rate))
    assert drawn.tolist() == [inverse(r, x) if r else 0 for r, x in zip(rate, u, strict=True)]


def test_poissons_largest_draws_are_where_the_tail_ends() -> None:
    """As by bisection of the incomplete gamma function, which rates above 16 take."""
    rate = weft.tensor(np.repeat([0.0, 0.1, 2.0, 16.0], 4))
    u = weft.tensor(np.tile([0.0, 0.999, 1 - 2.0**-40, 1 - 2.0**-53], 4))
    found = random._poisson_by_terms(rate, u, 16.0).reshape(4, 4).tolist()
    assert found == [[0, 0, 0, 0], [0, 2, 7, 9], [0, 8, 18, 22], [0, 30, 51, 59]]
