"""Parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from weft.core.args.modes import no_grad
from weft.core.layout.movement import cat
from weft.core.tensor.tensor import Tensor
from weft.errors import ShapeError


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements of the parameters, in order, as one vector; gradients flow through."""
    return cat([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Give the parameters the elements of a vector, in order."""
    items = list(parameters)
    sizes = [p.numel() for p in items]
    if vec.ndim != 1 or vec.shape[0] != sum(n for n in sizes if isinstance(n, int)):
        raise ShapeError(
            f"vector_to_parameters: needs a vector of {sum(n for n in sizes if isinstance(n, int))} elements, got "
            f"shape {tuple(vec.shape)}"
        )
    with no_grad():
        for p, part in zip(items, vec.detach().split(sizes), strict=True):
            p.copy_(part.reshape(p.shape))
