"""Plans for graphs on meshes: that of the local graph, with the parts of leaves and results on the devices.

    y = exp(x), x by rows on "mesh:0"       plan of parts: x0, x1 -> y0, y1
    run(memory of x)                        its parts -> plan of parts -> y, whose parts are y0 and y1

It is kept with the local graph: a graph that comes again is not laid out, lowered or planned, and no node is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft import settings
from weft.backends.mesh.device import MeshDevice, MeshMemory, joined
from weft.backends.protocol import Memory
from weft.backends.registry import open_device
from weft.backends.storage import Storage, moved_to
from weft.ir.graph import Node
from weft.ir.placement import Layout, is_mesh
from weft.lazy_dataclass import dataclass
from weft.scheduler import realize as one
from weft.scheduler.meshes import (
    Laid,
    Layouts,
    Shared,
    Template,
    flat,
    layouts_in,
    localized,
    mesh_of,
    template,
)
from weft.scheduler.parts.found import is_valid, part_plan, parts_plan
from weft.scheduler.parts.plan import PartsPlan
from weft.scheduler.signature import Signature, signature
from weft.scheduler.spmd.plan import AlikePlan


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

    @property
    def is_valid(self) -> bool:
        """True where its devices are still those of these names."""
        return is_valid(self.parts)

    def run(self, memories: Sequence[Memory]) -> list[Storage]:
        """The results for these memories of the graph's leaves, which lie as those that it was made for."""
        own = [memories[k] if part is None else _parts(memories[k])[part] for k, part in self.inputs]
        made = self.parts.run(own, {})
        return [
            made[o] if isinstance(o, int) else joined(o.device, o.layout, o.shape, [made[k] for k in o.parts])
            for o in self.outputs
        ]


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """The plan that all devices of a mesh run. `inputs`: the numbers of the graph's leaves that it reads; `outputs`:
    for each result its number, how it lies, and the device that it is copied to, if any."""

    plan: AlikePlan
    inputs: tuple[int, ...]
    outputs: tuple[tuple[int, Laid, str | None], ...]

    @property
    def is_valid(self) -> bool:
        """True where its devices are still those of these names."""
        names = self.plan.mesh.devices
        return all(open_device(n) is d for n, d in zip(names, self.plan.devices, strict=True))

    def run(self, memories: Sequence[Memory]) -> list[Storage]:
        """The results for these memories of the graph's leaves, which lie as those that it was made for."""
        given = [memories[k] for k in self.inputs]
        count = len(self.plan.devices)
        own = [
            [m.parts[at] if isinstance(m, MeshMemory) else m for m in given] for at in range(count)
        ]  # fmt: skip
        made = self.plan.run(own)
        found: list[Storage] = []
        for number, laid, target in self.outputs:
            whole = joined(_device(laid), laid.layout, laid.shape, [of[number] for of in made])
            found.append(whole if target is None else moved_to(whole, open_device(target)))
        return found


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


def plan_for(
    nodes: Sequence[Node], layouts: Mapping[Node, Layout]
) -> tuple[MeshPlan | SharedPlan, Signature] | None:
    """The plan for nodes on meshes, whose leaves without values will lie as `layouts` say, and their signature; None
    where leaves are in files."""
    sig = signature(nodes)
    plan = _plan(sig, layouts_in(sig, layouts))
    return None if plan is None else (plan, sig)


def _plan(sig: Signature, layouts: Layouts) -> MeshPlan | SharedPlan | None:
    """The plan of a structure whose leaves lie like that, kept or made now; None where leaves are in files."""
    if sig.homeless:
        return None
    known = template(sig, layouts, one.default_device())
    plan = known.plan
    if plan is None or not plan.is_valid:
        plan = known.plan = _made(known, sig) if known.shared is None else made_shared(known.shared)
    return plan


def made_shared(shared: Shared) -> SharedPlan:
    """The plan that all devices run."""
    asked = list(dict.fromkeys([n for n, _, _ in shared.results]))
    leaves = {n: k for k, n in enumerate(shared.leaves) if n is not None}
    device = mesh_of(shared.mesh.name)
    assert device is not None
    plan = AlikePlan.of(shared.mesh, asked, list(leaves), device.devices, part_plan, settings.verify())
    number = {n: k for k, n in enumerate(asked)}
    return SharedPlan(
        plan, tuple(leaves.values()), tuple([(number[n], laid, to) for n, laid, to in shared.results])
    )


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
