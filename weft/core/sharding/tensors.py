"""Tensors on meshes: laying them out, and asking for their parts and for the whole.

    x = distribute_tensor(x, mesh, [Shard(0)])       rows on several devices; for all else a tensor like any other
    h = weft.shard(h, "dp", None)                    a wish: here rows are to lie along "dp"
    h.full_tensor()                                  the whole, on the default device

A wish is a COPY to the mesh with a layout. What nobody wishes is laid out as costs least.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.autograd.context import configured_device, grad_enabled
from weft.autograd.value import Value, apply
from weft.core.args.handle import describe, value_of, wrap
from weft.core.execute import meshes, tracing, watched
from weft.core.execute.realization import realize
from weft.core.layout.creation import leaf, place, tensor
from weft.core.sharding.device_mesh import DeviceMesh
from weft.core.sharding.placements import Placement, described, layout_for, placements_of
from weft.errors import ArgumentError, DTypeError
from weft.ir import placement
from weft.ir.graph import Box, Node, Target
from weft.ir.ops import Op
from weft.ir.placement import Free, Layout, Mesh, boxes, is_mesh

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

Spec: TypeAlias = str | tuple[str, ...] | None


def mesh_of(op: str, v: Value) -> Mesh:
    """The mesh that a value is on; ArgumentError for one that is elsewhere."""
    name = v.node.device
    if name is None or not is_mesh(name):
        raise ArgumentError(
            f"{op}: the tensor is on {name or configured_device()}, on no mesh; lay it out with "
            "weft.distributed.tensor.distribute_tensor(t, mesh, placements)"
        )
    return meshes.mesh_called(name)


def laid_out(v: Value, mesh: Mesh, layout: Layout) -> Value:
    """The value on the mesh, laid out so; itself if it is."""
    if v.node.device == mesh.name and meshes.layout_of(v.node) == layout:
        return v
    return apply(Op.COPY, (v,), Target(mesh.name, layout))


def laid_out_like(old: Node, v: Value) -> Value:
    """A value on the mesh of a node, as that is laid out where this is decided. A leaf that no tensor stands for yet
    stays one, as it is to be a parameter's; another tensor's leaf is where gradients go on to. What is on no mesh stays
    as it is."""
    if not is_mesh(old.device) or v.node.device not in (None, old.device) or old.shape != v.node.shape:
        return v
    layout = meshes.layout_of(old)
    if layout is None:
        return v
    mesh = meshes.mesh_called(old.device or "")
    if not (v.is_leaf and v.needs_grad) or watched.watcher(v) is not None:
        return laid_out(v, mesh, layout)
    node = laid_out(Value(v.node), mesh, layout).node
    return v if node is v.node else Value(node, v.needs_grad)


def gradient_of(old: Node, v: Value) -> Value:
    """A gradient on the mesh of a node, as that is laid out; where layouts are searched, as costs least."""
    return v if meshes.current_search() is not None else laid_out_like(old, v)


def tensor_like(data: Any, like: Tensor) -> Tensor:
    """A tensor of the data on the device of another one of its shape; on a mesh, laid out as that."""
    if not is_mesh(like.value.node.device):
        return tensor(data, device=like.device)
    node = like.value.node
    return wrap(
        laid_out(
            tensor(data).value, meshes.mesh_called(node.device or ""), current_layout("tensor", like.value)
        )
    )


def follow(state: Tensor, like: Tensor) -> None:
    """Have a tensor stand for its elements laid out as another one of its shape, which has moved to a mesh since: where
    layouts are searched, parameters do. In a function that is traced nothing moves."""
    node, there = state.value.node, like.value.node
    if node.device == there.device or not is_mesh(there.device) or is_mesh(node.device):
        return
    if node.shape == there.shape and tracing.current() is None:
        mesh = meshes.mesh_called(there.device or "")
        state.rebind(laid_out(Value(node), mesh, current_layout("step", like.value)))


def current_layout(op: str, v: Value) -> Layout:
    """The layout of a value, computed if need be. ArgumentError in a function that is traced, where none is decided."""
    found = meshes.layout_of(v.node)
    if found is None:
        if tracing.current() is not None:
            raise ArgumentError(
                f"{op}: how a tensor lies on {v.node.device} is decided when it is computed, not while a function is "
                "traced; ask for a layout with weft.shard or .redistribute, or ask outside of the function"
            )
        realize(wrap(v))
        found = meshes.layout_of(v.node)
    assert found is not None
    return found


def shard(input: Tensor, *spec: Spec, mesh: DeviceMesh | None = None) -> Tensor:
    """The tensor, which is wished to lie so: per dimension the name of a mesh dimension, several of them, or None.

        weft.shard(h, "dp", None, "tp")      rows over dp, the last dimension over tp, the same over all others

    Dimensions that are not said are None. The wish holds at this place of the program, for the gradient as well;
    elsewhere tensors are laid out as costs least. `mesh`: where the tensor is on none yet.
    """
    v = value_of("shard", input)
    if mesh is None:
        mesh = DeviceMesh.of(mesh_of("shard", v))
    if len(spec) > len(v.shape):
        raise ArgumentError(
            f"shard: {len(spec)} dimensions are named, but the tensor has shape {tuple(v.shape)}"
        )
    layout: list[placement.Placement] = [Free()] * len(mesh.root.shape)
    for axis in mesh.axes:
        layout[axis] = placement.Replicate()
    taken: dict[int, int] = {}
    for dim, names in enumerate(spec):
        wanted = [mesh.axis("shard", n) for n in ((names,) if isinstance(names, str) else names or ())]
        if wanted != sorted(wanted):
            raise ArgumentError(
                f"shard: {names} must be in the order of {described(mesh.root)}: blocks are nested from left to right"
            )
        for axis in wanted:
            if axis in taken:
                name = described(mesh.root, (axis,))
                raise ArgumentError(
                    f"shard: dimensions {taken[axis]} and {dim} of a tensor of shape {tuple(v.shape)} cannot both lie "
                    f"along {name}"
                )
            taken[axis] = dim
            layout[axis] = placement.Shard(dim)
    return wrap(moved("shard", v, mesh.root, tuple(layout)))


def moved(op: str, v: Value, mesh: Mesh, layout: Layout) -> Value:
    """A value laid out on a mesh; where the layout is free, as it is, if that is decided. ArgumentError for a value on
    another mesh."""
    if is_mesh(v.node.device) and v.node.device != mesh.name:
        here = described(meshes.mesh_called(v.node.device or ""))
        raise ArgumentError(
            f"{op}: the tensor is on {here}, the layout is for {described(mesh)}; take .full_tensor() first"
        )
    have = meshes.layout_of(v.node) if v.node.device == mesh.name else (placement.Replicate(),) * len(layout)
    if have is not None:
        layout = tuple([h if isinstance(p, Free) else p for p, h in zip(layout, have, strict=True)])
    return laid_out(v, mesh, layout)


def distribute_tensor(
    input: Tensor, device_mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None
) -> Tensor:
    """The tensor on a mesh, laid out by a placement for each of its dimensions; replicated if none are given.

    One that is on the mesh keeps the other dimensions' placements where `device_mesh` is some dimensions of it. A leaf
    that requires grad becomes another one; gradients of a result flow through.
    """
    op = "distribute_tensor"
    v = value_of(op, input)
    if not isinstance(device_mesh, DeviceMesh):
        raise DTypeError(
            f"{op}: expected a DeviceMesh, as init_device_mesh makes, got {describe(device_mesh)}"
        )
    out = _placed(op, v, device_mesh, placements)
    return leaf(Value(out.node), v.needs_grad) if v.is_leaf else wrap(out)


def _placed(op: str, v: Value, mesh: DeviceMesh, placements: Sequence[Placement] | None) -> Value:
    from weft.core.sharding.placements import Replicate

    given = [Replicate()] * mesh.ndim if placements is None else placements
    shape = _sizes(op, v)
    free: Layout = (Free(),) * len(mesh.root.shape)
    return moved(op, v, mesh.root, layout_for(op, given, shape, mesh.root, mesh.axes, free))


def _sizes(op: str, v: Value) -> tuple[int, ...]:
    found = tuple([n for n in v.shape if isinstance(n, int)])
    if len(found) < len(v.shape):
        raise ArgumentError(f"{op}: a tensor of shape {v.shape} has sizes known at run time only")
    return found


def redistribute(
    input: Tensor,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    async_op: bool = False,
) -> Tensor:
    """The same elements laid out by other placements, one for each dimension of the mesh."""
    v = value_of("redistribute", input)
    mesh = device_mesh or DeviceMesh.of(mesh_of("redistribute", v))
    return wrap(_placed("redistribute", v, mesh, placements))


def full_tensor(input: Tensor, *, grad_placements: Sequence[Placement] | None = None) -> Tensor:
    """The whole, as an ordinary tensor on the default device."""
    v = value_of("full_tensor", input)
    mesh_of("full_tensor", v)
    return wrap(place(v, None))


def to_local(
    input: Tensor, device: int | str | None = None, *, grad_placements: Sequence[Placement] | None = None
) -> Any:
    """Each device's part as a tensor on that device, in a list in the order of the mesh; or that of one `device`, given
    by name or by its number in the mesh. Gradients flow to the elements of the part.

    torch gives each process its own part; here one process drives all devices, so it gets all parts.
    """
    v = value_of("to_local", input)
    mesh = mesh_of("to_local", v)
    layout = current_layout("to_local", v)
    if device is None:
        return [wrap(_local(v, mesh, layout, k)) for k in range(len(mesh.devices))]
    return wrap(_local(v, mesh, layout, _number(mesh, device)))


def _number(mesh: Mesh, device: int | str) -> int:
    if isinstance(device, int) and 0 <= device < len(mesh.devices):
        return device
    name = getattr(device, "name", device)
    if isinstance(name, str):
        full = name if ":" in name else f"{name}:0"
        if full in mesh.devices:
            return mesh.devices.index(full)
    raise ArgumentError(f"to_local: {device!r} is not in {described(mesh)}: {', '.join(mesh.devices)}")


def _local(v: Value, mesh: Mesh, layout: Layout, k: int) -> Value:
    if v.node.storage is not None and not (v.needs_grad and grad_enabled()):
        return Value(meshes.parts(v.node)[k])
    box = boxes(layout, _sizes("to_local", v), mesh)[k]
    sizes = tuple([int(hi) - int(lo) for lo, hi in box])  # pyright: ignore[reportArgumentType]  (they are known)
    part = apply(Op.SHRINK, (v,), Box(tuple([lo for lo, _ in box]), (1,) * len(box)), sizes)
    return apply(Op.COPY, (part,), Target(mesh.devices[k]))


def from_local(
    local_tensors: Sequence[Tensor], device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None
) -> Tensor:
    """The tensor on a mesh whose parts these are, one for each device in the order of the mesh."""
    op = "from_local"
    values = [value_of(op, t) for t in local_tensors]
    mesh = device_mesh.root
    if len(values) != len(mesh.devices) or device_mesh.ndim != len(mesh.shape):
        raise ArgumentError(
            f"{op}: needs {len(mesh.devices)} tensors, one for each device of {described(mesh)}"
        )
    shape = _whole_shape(op, values, mesh, placements)
    layout = _replicated(mesh) if placements is None else layout_for(
        op, placements, shape, mesh, device_mesh.axes, _replicated(mesh)
    )  # fmt: skip
    tensors = [wrap(place(v, name)) for v, name in zip(values, mesh.devices, strict=True)]
    held = [tuple([int(hi) - int(lo) for lo, hi in b]) for b in boxes(layout, shape, mesh)]  # pyright: ignore[reportArgumentType]
    for t, sizes, name in zip(tensors, held, mesh.devices, strict=True):
        if tuple(t.shape) != sizes:
            raise ArgumentError(
                f"{op}: of a tensor of shape {shape} that is {list(placements_of(layout))}, {name} holds {sizes}, got "
                f"{tuple(t.shape)}"
            )
    for t in tensors:
        t.realize()
    return wrap(Value(meshes.joined(mesh, layout, shape, [t.value.node for t in tensors])))


def _replicated(mesh: Mesh) -> Layout:
    return (placement.Replicate(),) * len(mesh.shape)


def _whole_shape(
    op: str, values: Sequence[Value], mesh: Mesh, placements: Sequence[Placement] | None
) -> tuple[int, ...]:
    """The shape of the whole: blocks along a mesh dimension are added up along the dimension that it shards."""
    shape = list(_sizes(op, values[0]))
    for axis, p in enumerate(placements or ()):
        dim = getattr(p, "dim", None)
        if p.is_shard() and isinstance(dim, int) and -len(shape) <= dim < len(shape):
            line = [k for k in range(len(mesh.devices)) if _along(mesh, k, axis)]
            shape[dim] = sum(_sizes(op, values[k])[dim] for k in line)
    return tuple(shape)


def _along(mesh: Mesh, k: int, axis: int) -> bool:
    """True for the devices on the line along an axis from the first."""
    return all(at == 0 for a, at in enumerate(mesh.coordinates(k)) if a != axis)


def placements(input: Tensor) -> tuple[Placement, ...]:
    """The placement along each dimension of its mesh. Computes it where that is not decided yet."""
    v = input.value
    mesh_of("placements", v)
    return placements_of(current_layout("placements", v))


def device_mesh(input: Tensor) -> DeviceMesh:
    """The mesh that the tensor is on."""
    return DeviceMesh.of(mesh_of("device_mesh", input.value))
