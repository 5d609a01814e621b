"""Draws of gamma and Dirichlet distributions through which gradients reach the parameters.

A draw x has no formula in its parameter a, but its distribution function F(x; a) has a derivative, and x moves so that
F stays what it is: dx/da = -(dF/da) / f(x) with the density f (Figurnov et al. 2018, "Implicit reparameterization
gradients", arXiv:1805.08498). dF/da is an integral of (d log f/da) f over what is below x, or minus that over what is
above. On the side that the mean is not on, the integrand falls from x on, so that a substitution by an exponential and
the trapezoidal rule after s = L exp(y - exp(-y)) give all digits that float64 can (Takahasi & Mori 1974, "Double
exponential formulas for numerical integration").
"""
# Tests: tests/distributions/test_gradients_of_draws.py, tests/distributions/test_distributions.py

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.core.grad.function import Function, FunctionCtx, once_differentiable
from weft.core.layout.creation import tensor
from weft.core.pointwise.elementwise import exp, log, log1p, minimum, sqrt, where
from weft.core.pointwise.special_functions import digamma
from weft.core.tensor.tensor import Tensor
from weft.distributions.standard_gamma import standard_gamma
from weft.ir.dtypes import float64

_STEP = 0.1
_Y = np.arange(-3.7, 5.4, _STEP)
"""The points where the integrand is taken: below them s is negligible, above them the integrand."""


def _integral(scale: Tensor, integrand: Callable[[Tensor], Tensor]) -> Tensor:
    """The integral from 0 to infinity of a function that falls within a few times `scale`; s is in a last axis."""
    s = scale.unsqueeze(-1) * tensor(np.exp(_Y - np.exp(-_Y)), device=scale.device)
    weight = tensor(_STEP * (1 + np.exp(-_Y)), device=scale.device)
    return (integrand(s) * s * weight).sum(-1)


def gamma_slope(x: Tensor, a: Tensor) -> Tensor:
    """dx/da of a draw x of Gamma(a, 1). In float64.

    Below x, with t = x exp(-s): -x times the integral of (log t - digamma(a)) exp(-a s + x - t). Above it s and the
    sign are reversed.
    """
    low = x < a.clamp(min=1.0)  # for a < 1 what is above x falls too late, and most of it lies below
    side = where(low, -1.0, 1.0)
    rate = where(x < a, a - x + minimum(sqrt(x), x), where(low, a, x - a + sqrt(x)))
    shift = (log(x) - digamma(a)).contiguous()  # for itself: the integrand would compute it at each s
    x, a, side, shift = (t.unsqueeze(-1) for t in (x, a, side, shift))

    def integrand(s: Tensor) -> Tensor:
        moved = side * s
        return (shift + moved) * exp(a * moved - x * moved.expm1())

    return x.squeeze(-1) * side.squeeze(-1) * _integral(1 / rate, integrand)


def beta_slope(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """dx/da of a draw x of Beta(a, b). In float64.

    Below x, with t = x exp(-s), above it with 1 - t = (1 - x) exp(-s): f(t) dt / f(x) is a power of each of t and
    1 - t, of which one is an exponential of s.
    """
    low = x * (a + b) < a
    near, far = where(low, x, 1 - x), where(low, 1 - x, x)
    p, q = where(low, a, b), where(low, b, a)
    rate = p - q * near / far + minimum(p, sqrt(q * near) / far)
    shift = (digamma(a + b) - digamma(a)).contiguous()
    low_, near_, p_, q_, shift_ = (t.unsqueeze(-1) for t in (low, near, p, q, shift))
    rest = log1p(-near).unsqueeze(-1)

    def integrand(s: Tensor) -> Tensor:
        other = log1p(-near_ * exp(-s))  # log(1 - t) below x, log t above
        log_t = where(low_, log(near_) - s, other)
        return (log_t + shift_) * exp(-p_ * s + (q_ - 1) * (other - rest))

    return where(low, -near, near) * _integral(1 / rate, integrand)


class _Gamma(Function):
    """Draws of Gamma(a, 1) in a shape that `a` expands to."""

    @staticmethod
    def forward(ctx: FunctionCtx, a: Tensor, shape: tuple[int, ...]) -> Tensor:
        x = standard_gamma(shape, a)
        ctx.save_for_backward(x, a)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        x, a = ctx.saved_tensors
        slope = gamma_slope(x.to(float64), a.expand(*x.shape).to(float64)).to(x.dtype)
        return (grad * slope).sum_to_size(*a.shape), None


class _Dirichlet(Function):
    """Draws of Dirichlet(a) in a shape that `a` expands to.

    What one element gains, the others lose in proportion. Source: Jankowiak & Obermeyer 2018, "Pathwise derivatives
    beyond the reparameterization trick", arXiv:1806.01851.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, a: Tensor, shape: tuple[int, ...]) -> Tensor:
        drawn = standard_gamma(shape, a)
        x = drawn / drawn.sum(-1, keepdim=True)
        ctx.save_for_backward(x, a)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        x, a = ctx.saved_tensors
        wide, of = x.to(float64), a.expand(*x.shape).to(float64)
        slope = dirichlet_slope(wide, of, of.sum(-1, keepdim=True)).to(x.dtype)
        through = slope * (grad - (x * grad).sum(-1, keepdim=True))
        return through.sum_to_size(*a.shape), None


def dirichlet_slope(x: Tensor, a: Tensor, total: Tensor) -> Tensor:
    """dx/da of each element, a draw of Beta(a, total - a), per what is left, 1 - x."""
    inside = x.clamp(1e-300, 1 - 1e-15)
    return beta_slope(inside, a, total - a) / (1 - inside)


def draw_gamma(a: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Draws of Gamma(a, 1), with gradients."""
    return _Gamma.apply(a, shape)


def draw_dirichlet(a: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Draws of Dirichlet(a), with gradients."""
    return _Dirichlet.apply(a, shape)
