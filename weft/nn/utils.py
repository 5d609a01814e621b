"""Gradients kept within bounds, between `backward()` and the optimizer's step."""

from __future__ import annotations

import math
from collections.abc import Iterable

from weft.core.elementwise import clamp
from weft.core.modes import no_grad
from weft.core.movement import stack
from weft.core.reductions import amax, norm
from weft.core.tensor import Tensor
from weft.errors import ArgumentError
from weft.ir.dtypes import DType, accumulator, float32


def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scale all gradients so that their norm, taken as one vector's, is at most `max_norm`; the norm before.

    g *= min(1, max_norm / (norm + 1e-6)). Source: Pascanu et al. 2012, arXiv:1211.5063. Nothing is computed here: the
    scaling becomes part of the optimizer's step.
    """
    if norm_type <= 0:
        raise ArgumentError(f"clip_grad_norm_: norm_type must be positive, got {norm_type}")
    learned = _with_gradients(parameters)
    if not learned:
        raise ArgumentError("clip_grad_norm_: no parameter has a gradient; call backward() first")
    with no_grad():
        each = stack([norm(g.detach().to(_wide(g)).flatten(), norm_type).to(float32) for _, g in learned])
        total = amax(each) if math.isinf(norm_type) else norm(each, norm_type)
        scale = clamp(max_norm / (total + 1e-6), max=1.0)
        for p, g in learned:
            p.grad = g.detach() * scale.to(g.dtype)
    return total


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Limit every element of every gradient to [-clip_value, clip_value]."""
    with no_grad():
        for p, g in _with_gradients(parameters):
            p.grad = clamp(g.detach(), -clip_value, clip_value)


def _with_gradients(parameters: Tensor | Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    items = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [(p, p.grad) for p in items if p.grad is not None]


def _wide(g: Tensor) -> DType:
    return accumulator(g.dtype)
