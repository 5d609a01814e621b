"""Meshes of devices: made, and asked how they hold a tensor."""
# Tests: tests/core/sharding/test_tensors.py

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from weft.ir import graph
from weft.ir.graph import Node, Target
from weft.ir.ops import Op
from weft.ir.placement import Free, Layout, Mesh, Replicate

if TYPE_CHECKING:
    from weft.scheduler.meshes import Search
    from weft.scheduler.parts.plan import Times
    from weft.scheduler.placing.layouts import Chosen
    from weft.scheduler.placing.load import Load


MARGIN = 1.1
"""The times by which another device has to be faster than the one where everything is: times vary as much."""


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


def layouts_for(
    nodes: Sequence[Node],
    leaves: Sequence[Node],
    updates: Sequence[tuple[Node, Node]],
    mesh: Mesh,
    limit: int | None,
    reassociates: bool,
    slower: Sequence[float] = (),
) -> tuple[list[Layout], Chosen]:
    """For each of `leaves`, on whatever device, the layout on a mesh with which `nodes` are computed soonest; and all
    that was chosen. `updates`: (result, leaf that it replaces). `limit`: bytes of each device. `slower`: the times by
    which each device is slower than described."""
    from weft.backends.registry import open_device
    from weft.ir.calls import expand_calls
    from weft.ir.rewrite import rebuilt
    from weft.scheduler.placing.kept import chosen
    from weft.scheduler.placing.layouts import described

    of = [*nodes, *(new for new, _ in updates)]
    # what else there is, numbers that are drawn and constants of the program, is on the mesh as well
    others = [n for n in graph.toposort(of) if n.op is Op.BUFFER]
    on_mesh = {n: graph.buffer(n.shape, n.dtype, mesh.name, None) for n in dict.fromkeys([*leaves, *others])}
    made = expand_calls(rebuilt(of, on_mesh))
    roots, results = made[: len(nodes)], made[len(nodes) :]
    pairs = [(new, on_mesh[old]) for new, (_, old) in zip(results, updates, strict=True)]
    asked = [n for n in dict.fromkeys([*roots, *results]) if n.device == mesh.name]
    rates, between = described([open_device(name) for name in mesh.devices], slower)
    order = set(graph.toposort(asked))
    pairs = [(new, old) for new, old in pairs if new is not old and {new, old} <= order]
    found = chosen(asked, mesh, rates, between, None, limit, pairs, reassociates)
    whole: Layout = (Replicate(),) * len(mesh.shape)
    return [found.layouts.get(on_mesh[n], whole) for n in leaves], found


def worth_using(
    nodes: Sequence[Node], moved: Sequence[Node], names: Sequence[str], home: str
) -> tuple[list[str], dict[str, float]]:
    """The devices that are worth using: of those that compute on one processor, and so take turns, the one that
    computes `nodes` soonest by itself; all others. With them, the measured nanoseconds.

    `moved` are what comes from `home` in each call, or goes there: another device has to be faster by `MARGIN`.
    """
    from weft.backends.links import links
    from weft.backends.registry import open_device
    from weft.ir.calls import expand_calls
    from weft.scheduler.keeping import nbytes
    from weft.scheduler.placing.trials import measured, processors

    chosen: list[str] = []
    times: dict[str, float] = {}
    for group in processors(names):
        if len(group) > 1:
            found = measured(expand_calls(nodes), group)
            for name in group:
                if name != home:
                    link = links(open_device(home), open_device(name))
                    found[name] = MARGIN * (found[name] + 1e9 * sum(link.seconds(nbytes(n)) for n in moved))
            times.update(found)
            group = [min(group, key=lambda name: (found[name], name != home))]
        chosen += group
    return [name for name in names if name in chosen], times


def searched(limit: int | None, slower: tuple[float, ...] = ()) -> AbstractContextManager[object]:
    """Within the block, layouts of graphs on meshes are searched, with this limit of bytes for each device, and the
    times by which each is slower than described."""
    from weft.scheduler.meshes import Search, searching

    return searching(Search(limit, slower))


def current_search() -> Search | None:
    """The search of graphs that are computed here; None where layouts are not searched."""
    from weft.scheduler.meshes import current_search

    return current_search()


def load_of(mesh: Mesh) -> Load:
    """The load of the devices of a mesh, of which nothing is observed yet."""
    from weft.backends.registry import open_device
    from weft.scheduler.placing.load import Load

    return Load(tuple([open_device(name).info.flops for name in mesh.devices]))


def timed(times: Times) -> AbstractContextManager[object]:
    """Within the block, plans over devices wait for each of their parts: for each device the times, and what was
    predicted, are added up in `times`."""
    from weft.scheduler.parts.plan import timed

    return timed(times)


def count(kind: str) -> int:
    """The number of devices of a kind. DeviceError where there is no such backend, or no driver."""
    from weft.backends.registry import open_backend

    return open_backend(kind).count()
