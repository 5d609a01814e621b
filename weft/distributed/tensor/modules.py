"""Modules on meshes: parameters and buffers are laid out where they are, inputs and outputs where they pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from weft.core.sharding.device_mesh import DeviceMesh
from weft.core.sharding.placements import Placement
from weft.core.sharding.tensors import distribute_tensor
from weft.core.tensor.tensor import Tensor
from weft.ir.placement import is_mesh

Module: TypeAlias = Any
"""A weft.nn.Module: the package of layers is built on this one."""

M = TypeVar("M")
Place: TypeAlias = Callable[[str, Tensor], "Sequence[Placement] | None"]
"""place(name, tensor): how a parameter or buffer is laid out; None: it stays as it is."""


def lay_out(module: Module, mesh: DeviceMesh, place: Place) -> None:
    """Lay out the parameters and buffers that a module has itself. They stay the same objects."""
    wanted: dict[int, Sequence[Placement] | None] = {
        id(t): place(name, t) for name, t in module.named_tensors(recurse=False)
    }

    def on_mesh(t: Tensor) -> Tensor:
        placements = wanted.get(id(t))
        return t if placements is None else distribute_tensor(t.detach(), mesh, placements)

    module._apply(on_mesh, recurse=False)  # noqa: SLF001  (what Module.to does)


def on_mesh(t: Tensor) -> bool:
    """True for a tensor on a mesh."""
    return is_mesh(t.value.node.device)


def distribute_module(
    module: M,
    device_mesh: DeviceMesh,
    partition_fn: Callable[[str, Any, DeviceMesh], None] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> M:
    """The module, with its parameters and buffers on the mesh.

    partition_fn(name, submodule, mesh) lays out those of each submodule that it likes; the others are on every device.
    input_fn(module, inputs, mesh) is called before forward, output_fn(module, output, mesh) after it: what they return
    takes the place of what they are given.
    """
    own: Module = module

    def before(m: Module, inputs: Any) -> Any:
        assert input_fn is not None
        return input_fn(m, inputs, device_mesh)

    def after(m: Module, inputs: Any, output: Any) -> Any:
        assert output_fn is not None
        return output_fn(m, output, device_mesh)

    for name, submodule in own.named_modules():
        if partition_fn is not None:
            partition_fn(name, submodule, device_mesh)
        replicate(submodule, device_mesh)
    if input_fn is not None:
        own.register_forward_pre_hook(before)
    if output_fn is not None:
        own.register_forward_hook(after)
    return module


def replicate(module: Module, mesh: DeviceMesh) -> None:
    """Have every device hold what a module itself has that is on no mesh yet."""
    from weft.core.sharding.placements import Replicate

    lay_out(module, mesh, lambda name, t: None if on_mesh(t) else [Replicate()] * mesh.ndim)
