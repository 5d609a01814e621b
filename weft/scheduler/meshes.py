"""Graphs on meshes become graphs on their devices, joined by copies; these are computed as any others are.

    x "mesh:0" (8, 4), by rows on dummy:0 and dummy:1        x0 (4, 4) on dummy:0        x1 (4, 4) on dummy:1
    y = exp(x)                                               exp(x0)                     exp(x1)

A node on a mesh stands for what each of its devices holds: a layout, and a node for each device.
"""
# Tests: tests/scheduler/test_meshes.py

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from weft.backends import registry
from weft.backends.mesh.device import MeshDevice, joined, layout_of, parts_of
from weft.backends.storage import Storage
from weft.errors import ArgumentError
from weft.ir.calls import expand_calls
from weft.ir.graph import Node, Target, buffer, toposort
from weft.ir.ops import Op
from weft.ir.placement import Layout, Mesh, is_mesh
from weft.ir.rewrite import rebuilt
from weft.scheduler import gathered
from weft.scheduler.gathered import Laid
from weft.scheduler.stages import stages

Realize: TypeAlias = Callable[[Sequence[Node], Mapping[str, int] | None], Mapping[Node, Storage]]


def mesh_of(name: str | None) -> MeshDevice | None:
    """The mesh of that name; None for any other device."""
    if name is None or not is_mesh(name):
        return None
    device = registry.open_device(name)
    return device if isinstance(device, MeshDevice) else None


def touches(order: Sequence[Node]) -> bool:
    """True where one of the nodes is on a mesh."""
    return any(is_mesh(n.device) for n in order)


def localized(nodes: Sequence[Node], home: Callable[[], str]) -> list[Laid | Node]:
    """The nodes that take the place of each, on devices that are no meshes. `home` is the device of what is on none.

    Where a value is copied between a mesh and another device the graph is cut: it is a leaf of what reads it.
    """
    laid: dict[Node, Laid] = {}
    """Of nodes, and of the leaves that stand for copies to a mesh."""
    new: dict[Node, Node] = {}
    """What stands for the copies, in graphs that read them."""
    for stage in stages(nodes, home):
        for name, group in stage.computed:
            own, mesh = rebuilt(group, new), mesh_of(name)
            if mesh is None:
                new.update(zip(group, own, strict=True))
            else:
                laid.update(zip(group, _lowered(own, mesh, laid), strict=True))
        for copy in stage.copies:
            (source,) = copy.inputs
            mesh = mesh_of(copy.device)
            name = copy.device if mesh is None else mesh.mesh.devices[0]
            assert name is not None
            if mesh_of(source.device) is not None:
                there = gathered.whole(laid.get(source) or _leaf(source), name)
            else:
                there = gathered.copied(rebuilt([source], new)[0], name)
            if mesh is None:
                new[copy] = there
            else:
                new[copy] = buffer(copy.shape, copy.dtype, copy.device, None)
                laid[new[copy]] = laid[copy] = gathered.spread(
                    there, mesh.mesh, _wish(copy) or mesh.replicated
                )
    return [laid.get(n) or (new.get(n, n) if mesh_of(n.device) is None else _leaf(n)) for n in nodes]


def _leaf(node: Node) -> Laid:
    """What each device holds of a value on a mesh that is there."""
    device = mesh_of(node.device)
    assert device is not None
    shape = sizes(node)
    storage: Storage | None = node.storage
    if storage is None:  # nobody has a value for it: who computes it says so
        parts = tuple([buffer(shape, node.dtype, name, None) for name in device.mesh.devices])
        return Laid(device.mesh, device.replicated, shape, parts)
    held = parts_of(storage)
    layout = layout_of(storage)
    assert layout is not None
    parts = tuple([buffer(p.shape, p.dtype, p.device.info.name, p) for p in held])
    return Laid(device.mesh, layout, shape, parts)


def sizes(node: Node) -> tuple[int, ...]:
    """The shape of a node. ArgumentError where it is known at run time only."""
    found = tuple([n for n in node.shape if isinstance(n, int)])
    if len(found) < len(node.shape):
        raise ArgumentError(f"a tensor of shape {node.shape} on {node.device}: sizes on a mesh must be known")
    return found


def _lowered(nodes: Sequence[Node], device: MeshDevice, given: Mapping[Node, Laid]) -> list[Laid]:
    """The nodes, which are on one mesh, on its devices. `given` are leaves that are laid out already."""
    roots = expand_calls(nodes)
    leaves = {n: given.get(n) or _leaf(n) for n in toposort(roots) if _is_leaf(n)}
    return gathered.lower(roots, device.mesh, leaves)


def _is_leaf(n: Node) -> bool:
    return n.device is not None and (n.op is Op.BUFFER or n.storage is not None)


def _wish(node: Node) -> Layout | None:
    """The layout that a node asks for."""
    return node.attrs.layout if node.op is Op.COPY and isinstance(node.attrs, Target) else None


def compute(
    nodes: Sequence[Node], home: Callable[[], str], realize: Realize, bindings: Mapping[str, int] | None
) -> list[Storage]:
    """The values of nodes, some of them on meshes or made of what is there. `realize` computes on single devices."""
    found = localized(nodes, home)
    constants = realize([n for f in found for n in (f.nodes if isinstance(f, Laid) else (f,))], bindings)

    def value(n: Node) -> Storage:
        storage: Storage | None = n.storage
        return constants[n] if storage is None else storage

    return [
        joined(_device(f.mesh), f.layout, f.shape, [value(n) for n in f.nodes])
        if isinstance(f, Laid)
        else value(f)
        for f in found
    ]


def _device(mesh: Mesh) -> MeshDevice:
    device = mesh_of(mesh.name)
    assert device is not None
    return device
