"""Gradients kept within bounds, between `backward()` and the optimizer's step."""
# Tests: tests/nn/test_utils.py

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

from weft.core.args.modes import no_grad
from weft.core.execute.changes import restored_on_error
from weft.core.execute.realization import realize_large
from weft.core.functional.clipping import joined_norm, limited, norm_as_vector, scaled_to_norm
from weft.core.layout.creation import as_tensor, tensor
from weft.core.layout.movement import cat
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, GradError


def get_total_norm(
    tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """The norm of all tensors taken as one vector; with error_if_nonfinite it is computed now, and must be finite."""
    items = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if not items:
        return tensor(0.0)
    with no_grad():
        total = joined_norm(cat([norm_as_vector(g, norm_type) for g in items]), norm_type)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise GradError(f"get_total_norm: the norm of the gradients is {total.item()}")
    return total


def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """g *= min(1, max_norm / (total_norm + 1e-6)) for the gradient of each parameter. Large ones are computed before:
    see `clip_grad_norm_`."""
    learned = _with_gradients(parameters)
    realize_large([as_tensor(total_norm), *[g for _, g in learned]])
    with restored_on_error((), [p for p, _ in learned]), no_grad():
        for p, g in learned:
            p.grad = scaled_to_norm(g, total_norm, max_norm)


def _listed(op: str, parameters: Any) -> list[Tensor]:
    if not isinstance(parameters, Iterable):
        raise DTypeError(f"{op}: expected Tensors, got {parameters!r}")
    return [parameters] if isinstance(parameters, Tensor) else list(cast("Iterable[Tensor]", parameters))


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0,
    error_if_nonfinite: bool = False, foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """Scale all gradients so that their norm, taken as one vector's, is at most `max_norm`; the norm before.

    g *= min(1, max_norm / (norm + 1e-6)). Source: Pascanu et al. 2012, arXiv:1211.5063. The scaling becomes part of
    the optimizer's step. So does all else, unless error_if_nonfinite or where gradients are large: these are computed
    here. Their norm needs all of them in memory before the first is scaled; if they stay there, the step need not keep
    the parameters that they were computed from.
    """
    if norm_type <= 0:
        raise ArgumentError(f"clip_grad_norm_: norm_type must be positive, got {norm_type}")
    items = _listed("clip_grad_norm_", parameters)
    learned = _with_gradients(items)
    if not learned:
        raise ArgumentError("clip_grad_norm_: no parameter has a gradient; call backward() first")
    total = get_total_norm([g for _, g in learned], norm_type, error_if_nonfinite)
    clip_grads_with_norm_(items, max_norm, total)
    return total


def clip_grad_value_(
    parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    """Limit every element of every gradient to [-clip_value, clip_value]."""
    learned = _with_gradients(parameters)
    with restored_on_error((), [p for p, _ in learned]), no_grad():
        for p, g in learned:
            p.grad = limited(g, clip_value)


def _with_gradients(parameters: Tensor | Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    items = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [(p, p.grad) for p in items if p.grad is not None]
