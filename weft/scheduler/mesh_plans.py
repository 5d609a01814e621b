"""Plans for graphs on meshes: that of the local graph, with the parts of leaves and results on the devices.

    y = exp(x), x by rows on "mesh:0"       plan of parts: x0, x1 -> y0, y1
    run(memory of x)                        its parts -> plan of parts -> y, whose parts are y0 and y1

It is kept with the local graph: a graph that comes again is not laid out, lowered or planned, and no node is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.backends.mesh.device import MeshDevice, MeshMemory, joined
from weft.backends.protocol import Memory
from weft.backends.storage import Storage
from weft.ir.graph import Node
from weft.ir.placement import Layout, is_mesh
from weft.scheduler import realize as one
from weft.scheduler.meshes import Laid, Layouts, Template, flat, layouts_in, localized, mesh_of, template
from weft.scheduler.parts.found import is_valid, parts_plan
from weft.scheduler.parts.plan import PartsPlan
from weft.scheduler.signature import Signature, signature


@dataclass(frozen=True, slots=True)
class _Whole:
    """A result on a mesh: how it lies there, and which results of the plan of parts are its parts."""

    device: MeshDevice
    layout: Layout
    shape: tuple[int, ...]
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MeshPlan:
    """A plan of parts for a graph on meshes. `inputs`: for each of its leaves the number of the graph's leaf, and of
    the part that it is, None where that is on no mesh."""

    parts: PartsPlan
    inputs: tuple[tuple[int, int | None], ...]
    outputs: tuple[_Whole | int, ...]

    def run(self, memories: Sequence[Memory]) -> list[Storage]:
        """The results for these memories of the graph's leaves, which lie as those that it was made for."""
        own = [memories[k] if part is None else _parts(memories[k])[part] for k, part in self.inputs]
        made = self.parts.run(own, {})
        return [
            made[o] if isinstance(o, int) else joined(o.device, o.layout, o.shape, [made[k] for k in o.parts])
            for o in self.outputs
        ]


def compute(nodes: Sequence[Node], bindings: Mapping[str, int] | None) -> list[Storage]:
    """The values of nodes, some of them on meshes or made of what is."""
    sig = signature(nodes)
    plan = None if None in sig.storages else _plan(sig, layouts_in(sig))
    if plan is not None:
        return plan.run([s.memory for s in sig.storages if s is not None])
    found = localized(nodes, one.default_device).found
    constants = one.realize(flat(found), bindings)

    def value(n: Node) -> Storage:
        storage: Storage | None = n.storage
        return constants[n] if storage is None else storage

    return [
        joined(_device(f), f.layout, f.shape, [value(n) for n in f.nodes])
        if isinstance(f, Laid)
        else value(f)
        for f in found
    ]


def plan_for(nodes: Sequence[Node], layouts: Mapping[Node, Layout]) -> tuple[MeshPlan, Signature] | None:
    """The plan for nodes on meshes, whose leaves without values will lie as `layouts` say, and their signature; None
    where leaves are in files."""
    sig = signature(nodes)
    plan = _plan(sig, layouts_in(sig, layouts))
    return None if plan is None else (plan, sig)


def _plan(sig: Signature, layouts: Layouts) -> MeshPlan | None:
    """The plan of a structure whose leaves lie like that, kept or made now; None where leaves are in files."""
    if sig.homeless:
        return None
    known = template(sig, layouts, one.default_device())
    plan = known.plan
    if plan is None or not is_valid(plan.parts):
        plan = known.plan = _made(known, sig)
    return plan


def _made(known: Template, whole: Signature) -> MeshPlan:
    asked = list(dict.fromkeys(known.local.nodes))
    sig = signature(asked)
    where = {
        n: (k, part if is_mesh(leaf.device) else None)
        for k, (leaf, places) in enumerate(zip(whole.leaves, known.leaves, strict=True))
        for part, n in enumerate(places)
    }
    number = {n: k for k, n in enumerate(asked)}
    outputs = [
        _Whole(_device(f), f.layout, f.shape, tuple([number[n] for n in f.nodes]))
        if isinstance(f, Laid)
        else number[f]
        for f in known.local.found
    ]
    return MeshPlan(parts_plan(sig), tuple([where[n] for n in sig.leaves]), tuple(outputs))


def _parts(memory: Memory) -> tuple[Memory, ...]:
    assert isinstance(memory, MeshMemory)
    return memory.parts


def _device(laid: Laid) -> MeshDevice:
    device = mesh_of(laid.mesh.name)
    assert device is not None
    return device
