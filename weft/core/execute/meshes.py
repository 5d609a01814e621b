"""Meshes of devices: made, and asked how they hold a tensor."""
# Tests: tests/core/sharding/test_tensors.py

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import graph
from weft.ir.graph import Node, Target
from weft.ir.ops import Op
from weft.ir.placement import Free, Layout, Mesh


def make(devices: Sequence[str], shape: Sequence[int], dim_names: Sequence[str] | None) -> Mesh:
    """The mesh of these devices, in row-major order. DeviceError for a device that is not there."""
    from weft.backends.mesh import MESHES

    return MESHES.mesh(devices, shape, dim_names).mesh


def mesh_called(name: str) -> Mesh:
    """The mesh of that name."""
    from weft.backends.mesh.device import MeshDevice
    from weft.backends.registry import open_device

    device = open_device(name)
    assert isinstance(device, MeshDevice)
    return device.mesh


def layout_of(node: Node) -> Layout | None:
    """The layout of what is computed, or was asked for; None where it is not decided yet."""
    if node.storage is not None:
        from weft.backends.mesh.device import layout_of

        return layout_of(node.storage)
    if node.op is Op.COPY and isinstance(node.attrs, Target) and node.attrs.layout is not None:
        return None if any(isinstance(p, Free) for p in node.attrs.layout) else node.attrs.layout
    return None


def parts(node: Node) -> list[Node]:
    """The parts of a value that is there, of each device of its mesh, as leaves."""
    from weft.backends.mesh.device import parts_of

    held = parts_of(node.storage)
    return [graph.buffer(p.shape, p.dtype, p.device.info.name, p) for p in held]


def joined(mesh: Mesh, layout: Layout, shape: tuple[int, ...], parts: Sequence[Node]) -> Node:
    """A leaf on a mesh whose devices hold these values, which are there."""
    from weft.backends.mesh import MESHES
    from weft.backends.mesh.device import joined

    device = MESHES.device(int(mesh.name.partition(":")[2]))
    storage = joined(device, layout, shape, [p.storage for p in parts])
    return graph.buffer(shape, storage.dtype, mesh.name, storage)
