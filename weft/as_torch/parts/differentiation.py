"""torch.autograd beside weft.autograd: `Variable` as a class, hooks of saved tensors, dual numbers' names."""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import Any, NamedTuple, Self

import weft
from weft.as_torch.record import record
from weft.core.tensor.tensor import Tensor


class _Variables(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor)

    def __call__(cls, data: Any = (), requires_grad: bool = False, volatile: bool = False) -> Tensor:
        out = data if isinstance(data, Tensor) else weft.tensor(data)
        return out.requires_grad_() if requires_grad and not out.requires_grad else out


class Variable(metaclass=_Variables):
    """A tensor: `Variable(x)` gives it, and every tensor is an instance."""


class saved_tensors_hooks(ContextDecorator):  # noqa: N801  (torch's name)
    """A context whose functions are not called: weft keeps or computes again what a backward pass needs."""

    def __init__(self, pack_hook: Any = None, unpack_hook: Any = None) -> None:
        record.unused[f"torch.autograd.graph.{type(self).__name__}"] += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class save_on_cpu(saved_tensors_hooks):  # noqa: N801  (torch's name)
    """A context that changes nothing."""

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super().__init__()


class UnpackedDualTensor(NamedTuple):
    """A tensor and its tangent."""

    primal: Tensor
    tangent: Tensor | None


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """The tensor, without a tangent: weft's jvp keeps none in tensors."""
    return UnpackedDualTensor(tensor, None)
