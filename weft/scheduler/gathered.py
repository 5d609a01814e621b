"""Values on a mesh put together on one device, and cut again for each."""
# Tests: tests/scheduler/test_meshes.py

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.backends.mesh.device import distinct, sizes_of
from weft.ir.graph import Axes, Box, Node, Target, apply, const, toposort
from weft.ir.ops import ELEMENTWISE, Op
from weft.ir.placement import Layout, Mesh, Replicate, Shard, boxes
from weft.ir.rewrite import over


@dataclass(frozen=True, slots=True)
class Laid:
    """A value on a mesh: how it is laid out, and the node of each device, in row-major order."""

    mesh: Mesh
    layout: Layout
    shape: tuple[int, ...]
    nodes: tuple[Node, ...]


def copied(node: Node, device: str) -> Node:
    """The value in the memory of a device that is no mesh."""
    return apply(Op.COPY, (node,), Target(device))


def whole(laid: Laid, device: str) -> Node:
    """All of a value on a mesh, on one device: each box from one that holds it, from this one where that does."""
    shape = laid.shape
    held = boxes(laid.layout, shape, laid.mesh)
    order = sorted(range(len(held)), key=lambda k: laid.mesh.devices[k] != device)
    found = distinct([held[k] for k in order])
    if len(found) == 1:
        (k,) = found
        if sizes_of(found[k]) == shape:
            return copied(laid.nodes[order[k]], device)
    out = const(0, laid.nodes[0].dtype, shape)
    for k, box in found.items():
        part = copied(laid.nodes[order[k]], device)
        out = apply(Op.UPDATE, (out, part), Box(tuple([i.lo for i in box]), (1,) * len(shape)))
    return out if found else copied(out, device)


def spread(node: Node, mesh: Mesh, layout: Layout) -> Laid:
    """A value that is whole on one device, laid out on a mesh."""
    shape = tuple([n for n in node.shape if isinstance(n, int)])
    parts: list[Node] = []
    for name, box in zip(mesh.devices, boxes(layout, shape, mesh), strict=True):
        part = node
        if sizes_of(box) != shape:
            start, step = tuple([i.lo for i in box]), (1,) * len(shape)
            part = apply(Op.SHRINK, (node,), Box(start, step), sizes_of(box))
        parts.append(copied(part, name))
    return Laid(mesh, layout, shape, tuple(parts))


def lower(nodes: Sequence[Node], mesh: Mesh, leaves: Mapping[Node, Laid]) -> list[Laid]:
    """Nodes of a mesh on its devices: put together on the first, computed there, and cut to their layouts."""
    first = mesh.devices[0]
    made: dict[Node, Node] = {}
    layouts: dict[Node, Layout] = {}
    for n in toposort(nodes):
        if n in leaves:
            made[n], layouts[n] = whole(leaves[n], first), leaves[n].layout
            continue
        inputs = () if n.storage is not None else tuple([made[i] for i in n.inputs])
        made[n] = n if not inputs else inputs[0] if n.op is Op.COPY else over(n, inputs)
        layouts[n] = _layout(n, layouts, mesh) if inputs else (Replicate(),) * len(mesh.shape)
    return [spread(made[n], mesh, layouts[n]) for n in nodes]


def _layout(n: Node, layouts: Mapping[Node, Layout], mesh: Mesh) -> Layout:
    """The layout asked for, or that of an operand of the same shape."""
    if isinstance(n.attrs, Target) and n.attrs.layout is not None:
        return n.attrs.layout
    if n.op in ELEMENTWISE or n.op in (Op.CONTIGUOUS, Op.UPDATE, Op.SCATTER):
        for i in n.inputs:
            if any(isinstance(p, Shard) for p in layouts[i]):
                return layouts[i]
    if n.op is Op.PERMUTE and isinstance(n.attrs, Axes):
        place = {axis: k for k, axis in enumerate(n.attrs.axes)}
        found = layouts[n.inputs[0]]
        return tuple([Shard(place[p.dim], p.bounds) if isinstance(p, Shard) else p for p in found])
    return (Replicate(),) * len(mesh.shape)
