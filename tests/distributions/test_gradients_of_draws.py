"""Gradients through draws of the gamma family, beside torch's (which are good to three digits) and by their meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft import distributions as D
from weft.distributions.reparameterized import beta_slope, dirichlet_slope, gamma_slope

CONCENTRATIONS = (1e-3, 0.1, 0.5, 1.0, 2.0, 7.0, 50.0, 1000.0, 1e5)


def _double(x: torch.Tensor) -> weft.Tensor:
    return weft.tensor(x.numpy(), dtype=weft.float64)


def test_slopes_of_gamma_are_torchs() -> None:
    torch.manual_seed(1)
    a = torch.tensor(CONCENTRATIONS, dtype=torch.float64).repeat_interleave(200)
    x = torch._standard_gamma(a).clamp(min=1e-290)
    want = torch._standard_gamma_grad(a, x)
    np.testing.assert_allclose(gamma_slope(_double(x), _double(a)).numpy(), want, 3e-3)


def test_slopes_where_they_are_known_exactly() -> None:
    # Beta(a, 1): F = x^a, so dx/da = -x log(x) / a
    a = weft.tensor([0.2, 1.0, 3.0, 40.0], dtype=weft.float64)
    u = weft.tensor([0.3, 0.01, 0.9, 0.99], dtype=weft.float64)
    one = weft.ones_like(a)
    np.testing.assert_allclose(beta_slope(u, a, one).numpy(), (-u * u.log() / a).numpy(), 1e-11)
    # Beta(1, b): F = 1 - (1 - x)^b, and dx/db = (1 - x) log(1 - x) / b is minus the slope of 1 - x
    np.testing.assert_allclose(
        beta_slope(1 - u, a, one).numpy(), (-(1 - u) * (1 - u).log() / a).numpy(), 1e-11
    )


def test_slopes_of_dirichlet_are_torchs() -> None:
    torch.manual_seed(2)
    a = torch.tensor(
        [[0.1, 3.0], [0.5, 0.5], [1.0, 1.0], [20.0, 0.3], [30.0, 50.0], [300.0, 2.0]], dtype=torch.float64
    ).repeat_interleave(100, 0)
    x = torch._sample_dirichlet(a).clamp(1e-200, 1 - 1e-12)
    total = a.sum(-1, keepdim=True).expand_as(a)
    want = torch._dirichlet_grad(x, a, total)
    np.testing.assert_allclose(dirichlet_slope(_double(x), _double(a), _double(total)).numpy(), want, 5e-3)


@pytest.mark.parametrize(("draws", "mean"), [
    (lambda p: D.Gamma(p[0], p[1]), lambda p: p[0] / p[1]),
    (lambda p: D.Chi2(p[0]), lambda p: p[0]),
    (lambda p: D.Beta(p[0], p[1]), lambda p: p[0] / (p[0] + p[1])),
    (lambda p: D.Dirichlet(p), lambda p: p / p.sum()),
    (lambda p: D.StudentT(p[0] + 3, p[1]), lambda p: p[1]),
])  # fmt: skip
def test_the_mean_moves_as_the_draws_do(draws: Callable[[Any], Any], mean: Callable[[Any], Any]) -> None:
    weft.manual_seed(0)
    p = weft.tensor([1.5, 0.8], dtype=weft.float64, requires_grad=True)
    x = draws(p).rsample((40000,))
    weights = weft.tensor([1.0, 3.0])[: x.shape[-1] if x.ndim > 1 else 1].double()
    (found,) = weft.autograd.grad((x.reshape(40000, -1).mean(0) * weights).sum(), p)
    (want,) = weft.autograd.grad((mean(p).reshape(-1) * weights).sum(), p)
    np.testing.assert_allclose(found.numpy(), want.numpy(), atol=0.03)
    assert x.requires_grad and not draws(p).sample((3,)).requires_grad and type(draws(p)).has_rsample


def test_a_compiled_step_learns_a_concentration() -> None:
    weft.manual_seed(0)
    p = weft.tensor([0.0], requires_grad=True)
    optimizer = weft.optim.Adam([p], lr=0.2)

    @weft.compile
    def step() -> weft.Tensor:
        optimizer.zero_grad()
        loss = (D.Gamma(p.exp(), 1.0).rsample((64,)).mean() - 5) ** 2
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(60):
        step()
    assert p.exp().item() == pytest.approx(5, abs=0.7)
