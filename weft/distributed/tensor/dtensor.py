"""DTensor, a name for tensors on a mesh; and new tensors there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core.args.axes import Sizes
from weft.core.args.handle import Handle
from weft.core.functions import random
from weft.core.layout import creation
from weft.core.sharding import tensors
from weft.core.sharding.device_mesh import DeviceMesh
from weft.core.sharding.placements import Placement
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.ir.dtypes import DType
from weft.ir.placement import is_mesh


class _OnMesh(type):
    """Has tensors be instances of DTensor while they are on a mesh."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Handle) and is_mesh(instance.value.node.device)


class DTensor(metaclass=_OnMesh):
    """A tensor on a mesh of devices: `isinstance(t, DTensor)` is true of every Tensor that is on one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise ArgumentError(
            "DTensor: make one with distribute_tensor(t, mesh, placements) or DTensor.from_local"
        )

    @staticmethod
    def from_local(
        local_tensors: Sequence[Tensor],
        device_mesh: DeviceMesh,
        placements: Sequence[Placement] | None = None,
        *,
        run_check: bool = False,
    ) -> Tensor:
        """The tensor whose parts these are, one for each device in the order of the mesh: one process has them all."""
        return tensors.from_local(local_tensors, device_mesh, placements)


def _on_mesh(
    make: Callable[..., Tensor],
    size: Any,
    mesh: DeviceMesh,
    placements: Any,
    requires_grad: bool,
    **options: Any,
) -> Tensor:
    out = tensors.distribute_tensor(make(*size, **options), mesh, placements)
    return out.requires_grad_() if requires_grad else out


def zeros(
    *size: Sizes, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None,
    dtype: DType | None = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Zeros on a mesh."""
    return _on_mesh(creation.zeros, size, device_mesh, placements, requires_grad, dtype=dtype)


def ones(
    *size: Sizes, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None,
    dtype: DType | None = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Ones on a mesh."""
    return _on_mesh(creation.ones, size, device_mesh, placements, requires_grad, dtype=dtype)


empty = zeros


def full(
    size: Sizes, fill_value: float, *, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None,
    dtype: DType | None = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """A number in every element, on a mesh."""
    return _on_mesh(creation.full, (size, fill_value), device_mesh, placements, requires_grad, dtype=dtype)


def rand(
    *size: Sizes, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None,
    dtype: DType | None = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Uniform numbers on a mesh: those that weft.rand gives anywhere, whatever the layout."""
    return _on_mesh(random.rand, size, device_mesh, placements, requires_grad, dtype=dtype)


def randn(
    *size: Sizes, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None,
    dtype: DType | None = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Normally distributed numbers on a mesh: those that weft.randn gives anywhere, whatever the layout."""
    return _on_mesh(random.randn, size, device_mesh, placements, requires_grad, dtype=dtype)
