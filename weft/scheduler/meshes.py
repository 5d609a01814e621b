"""Graphs on meshes become graphs on their devices, joined by copies; `mesh_plans` has the plans of these.

    x "mesh:0" (8, 4), by rows on dummy:0 and dummy:1        x0 (4, 4) on dummy:0        x1 (4, 4) on dummy:1
    y = exp(x)                                               exp(x0)                     exp(x1)

A node on a mesh stands for what each of its devices holds: a layout, and a node for each device. Which layouts, and
what is exchanged, is decided in `sharding`, once for all graphs of one structure whose leaves lie alike.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.backends import registry
from weft.backends.mesh.device import MeshDevice, MeshMemory, layout_of, parts_of, sizes_of
from weft.backends.storage import Storage
from weft.errors import ArgumentError
from weft.ir import graph
from weft.ir.calls import expand_calls
from weft.ir.forks import forkable
from weft.ir.garbage import not_collected
from weft.ir.graph import Node, Target, apply, buffer, intern, toposort
from weft.ir.numerics import pinned
from weft.ir.ops import Op
from weft.ir.placement import Free, Layout, Mesh, Partial, Placement, Replicate, boxes, is_mesh
from weft.ir.rewrite import over, rebuilt, rewritten
from weft.lazy_dataclass import dataclass
from weft.scheduler.sharding.lower import Fetch, Split, lower
from weft.scheduler.sharding.propagate import Choice, propagate
from weft.scheduler.signature import Signature, signature, snapshot

if TYPE_CHECKING:
    from weft.scheduler.mesh_plans import MeshPlan, SharedPlan
    from weft.scheduler.placing.layouts import Decision

Layouts: TypeAlias = tuple[Layout | None, ...]
"""The layout of each leaf of a graph; None for what is on no mesh."""

SHARED_FROM = 16
"""Devices from which on one graph is made for all: of fewer, a graph for each takes no time to speak of, and kernels
put together what arrives."""

LOWERED_KEPT = 128
"""Graphs on meshes whose local graphs are kept; the one met longest ago goes first."""


@dataclass(frozen=True, slots=True)
class Search:
    """Layouts are searched by what computing and exchanging takes, rather than taken one after the other by bytes.
    `limit`: the bytes that each device may take. `slower`: the times by which each is slower than described."""

    limit: int | None
    slower: tuple[float, ...] = ()


_search: ContextVar[Search | None] = ContextVar("weft.meshes", default=None)


def current_search() -> Search | None:
    """The search of graphs that are computed here; None where layouts are not searched."""
    return _search.get()


@contextmanager
def searching(search: Search) -> Generator[None]:
    """Have the layouts of graphs that are computed in the block, by this thread or task, be searched."""
    before = _search.set(search)
    try:
        yield
    finally:
        _search.reset(before)


@dataclass(frozen=True, slots=True)
class Laid:
    """A value on a mesh: how it is laid out, and the node of each device, in row-major order."""

    mesh: Mesh
    layout: Layout
    shape: tuple[int, ...]
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Local:
    """A graph on devices that are no meshes: what takes the place of its nodes, what is fetched, and which layouts were
    chosen rather than asked for. `layouts`: those of all cuts."""

    found: tuple[Laid | Node, ...]
    fetches: tuple[Fetch, ...]
    choices: Mapping[Node, Choice | Decision]
    layouts: Mapping[Node, Layout]

    @property
    def nodes(self) -> list[Node]:
        """The nodes of all devices."""
        return flat(self.found)


@dataclass(frozen=True, slots=True)
class Shared:
    """The graph of any device of a mesh, in place of one of all devices. `leaves`: of each leaf of the structure the
    node of a device's part; itself, where it is on one device; None where nobody reads it. `results`: the node of a
    device's part, and how they lie; the device that they are then copied to, if any. `moves`: what each move moves
    boxes of, and the first that needs them; `choices`: as in `Local`. `layouts`: those of all cuts."""

    mesh: Mesh
    leaves: tuple[Node | None, ...]
    results: tuple[tuple[Node, Laid, str | None], ...]
    moves: Mapping[Node, tuple[Node, Node]]
    choices: Mapping[Node, Choice] | Mapping[Node, Decision]
    layouts: Mapping[Node, Layout]


@dataclass(slots=True, eq=False)
class Template:
    """The local graph of a structure, on leaves that have no values: for each leaf of the structure one, or one for
    each device of its mesh. `shared`: the graph that all devices run, where there is one; then the local one is made
    for those who want to see it. `plan`: made when it first runs."""

    localize: Callable[[], tuple[tuple[tuple[Node, ...], ...], Local]]
    shared: Shared | None = None
    plan: MeshPlan | SharedPlan | None = None
    _made: tuple[tuple[tuple[Node, ...], ...], Local] | None = None

    @property
    def leaves(self) -> tuple[tuple[Node, ...], ...]:
        """The leaves of the local graph."""
        return self.localized()[0]

    @property
    def local(self) -> Local:
        """The local graph."""
        return self.localized()[1]

    def localized(self) -> tuple[tuple[tuple[Node, ...], ...], Local]:
        """The local graph, and its leaves; made when it is first asked for."""
        if self._made is None:
            self._made = self.localize()
        return self._made


_lock = forkable(threading.RLock())
_templates: dict[tuple[Any, ...], Template] = {}


def _forget() -> None:
    """Layouts are chosen by what devices are, and kept by their names."""
    with _lock:
        _templates.clear()


graph.watch_forgetting(_forget)


def mesh_of(name: str | None) -> MeshDevice | None:
    """The mesh of that name; None for any other device."""
    if name is None or not is_mesh(name):
        return None
    device = registry.open_device(name)
    return device if isinstance(device, MeshDevice) else None


def layouts_in(sig: Signature, given: Mapping[Node, Layout] | None = None) -> Layouts:
    """The layouts of a graph's leaves: those of their values, or `given` where there is no value yet."""
    have = given or {}
    return tuple(
        [have.get(n) if s is None else layout_of(s) for n, s in zip(sig.leaves, sig.storages, strict=True)]
    )


def template(sig: Signature, layouts: Layouts, home: str) -> Template:
    """The local graph of a structure whose leaves lie like that, from the cache or made now. `home` is the device of
    what is on none."""
    if sig.variables:
        names = ", ".join(v.name for v in sig.variables)
        raise ArgumentError(f"sizes on a mesh must be known, and {names} is a runtime variable")
    key = (sig.key, layouts, home, _search.get())
    with _lock:
        known = _templates.pop(key, None)
        if known is None:
            with not_collected():
                known = _template(sig, layouts)
            while len(_templates) >= LOWERED_KEPT:
                del _templates[next(iter(_templates))]
        _templates[key] = known
    return known


def localized(nodes: Sequence[Node], home: Callable[[], str]) -> Local:
    """The nodes that take the place of each, on devices that are no meshes. `home` is the device of what is on none."""
    sig = signature(nodes)
    known = template(sig, layouts_in(sig), home())
    new: dict[Node, Node] = {}
    for places, leaf, storage in zip(known.leaves, sig.leaves, sig.storages, strict=True):
        own = parts_of(storage) if storage is not None and is_mesh(leaf.device) else [storage] * len(places)
        for n, s in zip(places, own, strict=True):
            new[n] = buffer(n.shape, n.dtype, n.device, s)
    made = dict(zip(known.local.nodes, rebuilt(known.local.nodes, new), strict=True))
    own = known.local
    return Local(tuple(_changed(own.found, made)), own.fetches, own.choices, own.layouts)


def anew(nodes: Sequence[Node], given: Mapping[Node, Layout]) -> Template:
    """The local graph of nodes, made for who looks at it: of the same lines of the program as they are, where these are
    noted. `given`: layouts of leaves on a mesh that have no value."""
    sig = signature(nodes)
    blank = {n: buffer(n.shape, n.dtype, n.device, None) for n in sig.leaves}
    roots = expand_calls(rebuilt(nodes, blank))
    return _over(roots, list(blank.values()), layouts_in(sig, given))


def _template(sig: Signature, layouts: Layouts) -> Template:
    own = snapshot(sig)
    return _over(expand_calls(own.outputs), own.leaves, layouts)


def _over(roots: Sequence[Node], own: Sequence[Node], layouts: Layouts) -> Template:
    """The local graph of `roots` over leaves without values."""

    def localize() -> tuple[tuple[tuple[Node, ...], ...], Local]:
        with _laid(own, layouts) as shards:
            leaves = tuple([shards.get(leaf, (leaf,)) for leaf in own])
            return leaves, _localized(roots, shards)

    with _laid(own, layouts):
        found = Template(localize, _shared(roots, own))
    if found.shared is None:
        found.localized()  # now, while nothing is collected
    return found


@contextmanager
def _laid(leaves: Sequence[Node], layouts: Layouts) -> Generator[dict[Node, tuple[Node, ...]]]:
    """Have the leaves lie like that in the block: what they hold does not matter, but for how it lies. Of those on a
    mesh, the nodes of their parts."""
    shards: dict[Node, tuple[Node, ...]] = {}
    for leaf, layout in zip(leaves, layouts, strict=True):
        mesh = mesh_of(leaf.device)
        if mesh is not None:
            shape, laid = sizes(leaf), layout or mesh.replicated
            leaf.storage = Storage(mesh, MeshMemory((), laid, shape, leaf.dtype.itemsize), leaf.dtype, shape)
            held = zip(mesh.mesh.devices, boxes(laid, shape, mesh.mesh), strict=True)
            shards[leaf] = tuple([buffer(sizes_of(box), leaf.dtype, name, None) for name, box in held])
    try:
        yield shards
    finally:
        for leaf in leaves:
            leaf.storage = None  # what the structure is kept for are other values


def _shared(roots: Sequence[Node], leaves: Sequence[Node]) -> Shared | None:
    """The graph that all devices of a mesh run; None where there are few, or they are not alike, or hold blocks that
    are not."""
    from weft.scheduler.spmd.lower import UnlikeError, lower_alike
    from weft.scheduler.spmd.plan import can_share

    names = {n.device for n in toposort(roots) if is_mesh(n.device)}
    device = mesh_of(next(iter(names))) if len(names) == 1 else None
    if device is None or len(device.devices) < SHARED_FROM or not can_share(device.devices):
        return None
    mesh = device.mesh
    own = {n: laid for n in leaves if n.device == mesh.name and (laid := layout_of(n.storage))}
    decided = _decided(roots, mesh, own)
    placed = _placed(decided, mesh, own)
    wanted = [n.inputs[0] if n.op is Op.COPY and n.device != mesh.name else n for n in decided]
    if any(
        isinstance(p, Partial)
        for n, d in zip(wanted, decided, strict=True)
        if n is not d
        for p in placed.layouts[n]
    ):
        return None
    try:
        found = lower_alike(wanted, mesh, placed.layouts, placed.splits)
    except UnlikeError:
        return None
    results = [
        (found.locals[n], Laid(mesh, placed.layouts[n], sizes(n), ()), None if n is d else d.device)
        for n, d in zip(wanted, decided, strict=True)
    ]
    return Shared(
        mesh, tuple([found.leaves.get(n) for n in leaves]), tuple(results), found.moves, placed.choices,
        placed.layouts,
    )  # fmt: skip


def _localized(roots: Sequence[Node], shards: Mapping[Node, tuple[Node, ...]]) -> Local:
    """The local graph of `roots`, of one mesh after the other: for each, the others are devices like any."""
    found: list[Laid | Node] = list(_by_way_of_devices(roots))
    fetches: list[Fetch] = []
    choices: dict[Node, Choice | Decision] = {}
    layouts: dict[Node, Layout] = {}
    names = dict.fromkeys(n.device for n in toposort(flat(found)) if is_mesh(n.device))
    for name in names:
        device = mesh_of(name)
        assert device is not None
        mesh, wanted = device.mesh, list(dict.fromkeys(flat(found)))
        own = {
            n: laid
            for n in toposort(wanted)
            if n in shards and n.device == name and (laid := layout_of(n.storage))
        }
        decided = _decided(wanted, mesh, own)
        placed = _placed(decided, mesh, own)
        lowered = lower(decided, mesh, placed.layouts, {n: shards[n] for n in own}, placed.splits)
        fetches += lowered.fetches
        choices.update(placed.choices)
        layouts.update(placed.layouts)
        made: dict[Node, Laid | Node] = {}
        for n, d in zip(wanted, decided, strict=True):
            if d in lowered.locals and n.device == name:
                made[n] = Laid(mesh, placed.layouts[d], sizes(n), lowered.locals[d])
            else:
                made[n] = lowered.others[d]
        found = list(_changed(found, made))
    return Local(tuple(found), tuple(fetches), choices, layouts)


@dataclass(frozen=True, slots=True)
class _Placed:
    """Layouts and splits of all cuts, and why they are so."""

    layouts: Mapping[Node, Layout]
    splits: Mapping[Node, Split]
    choices: Mapping[Node, Choice] | Mapping[Node, Decision]


def _placed(nodes: Sequence[Node], mesh: Mesh, leaves: Mapping[Node, Layout]) -> _Placed:
    """The layouts of all cuts under `nodes`, as leaves lie: taken one after the other, or searched."""
    search = _search.get()
    if search is None:
        found = propagate(nodes, mesh, leaves)
        return _Placed(found.layouts, found.splits, found.choices)
    from weft.scheduler.placing.kept import chosen
    from weft.scheduler.placing.layouts import described

    slower = search.slower if len(search.slower) == len(mesh.devices) else ()
    rates, between = described([registry.open_device(name) for name in mesh.devices], slower)
    found = chosen(nodes, mesh, rates, between, leaves, search.limit, (), not pinned())
    return _Placed(found.layouts, found.splits, {d.node: d for d in found.decisions if d.others})


def _by_way_of_devices(roots: Sequence[Node]) -> list[Node]:
    """The roots, where what goes from one mesh to another goes by way of the first device of that."""

    def over_device(n: Node, inputs: tuple[Node, ...]) -> Node:
        target = n.attrs
        if n.op is Op.COPY and isinstance(target, Target) and is_mesh(n.device) and is_mesh(inputs[0].device):
            mesh = mesh_of(n.device)
            if mesh is not None and inputs[0].device != n.device:
                inputs = (apply(Op.COPY, inputs, Target(mesh.mesh.devices[0])),)
        return over(n, inputs)

    return rewritten(roots, over_device)


def _decided(roots: Sequence[Node], mesh: Mesh, leaves: Mapping[Node, Layout]) -> list[Node]:
    """The roots, with wishes that leave axes of the mesh free as they are without them on these."""
    free = [n for n in toposort(roots) if n.device == mesh.name and n.storage is None and _is_free(n)]
    if not free:
        return list(roots)
    wishes = set(free)

    def without(n: Node, inputs: tuple[Node, ...]) -> Node:
        return inputs[0] if n in wishes else over(n, inputs)

    made = rewritten([*roots, *(n.inputs[0] for n in free)], without)
    below = made[len(roots) :]
    on_mesh = [n for n in dict.fromkeys(below) if n.device == mesh.name]
    found = propagate([*dict.fromkeys([*made[: len(roots)], *on_mesh])], mesh, leaves).layouts
    whole: Layout = (Replicate(),) * len(mesh.shape)
    layouts = {n: found.get(b, whole) for n, b in zip(free, below, strict=True)}

    def with_layout(n: Node, inputs: tuple[Node, ...]) -> Node:
        if n not in wishes or not isinstance(n.attrs, Target) or n.attrs.layout is None:
            return over(n, inputs)
        layout = tuple([_settled(p, have) for p, have in zip(n.attrs.layout, layouts[n], strict=True)])
        return intern(Op.COPY, inputs, Target(mesh.name, layout), n.shape, n.dtype, mesh.name)

    return rewritten(roots, with_layout)


def _is_free(n: Node) -> bool:
    wished = n.attrs.layout if isinstance(n.attrs, Target) else None
    return wished is not None and any(isinstance(p, Free) for p in wished)


def _settled(wished: Placement, have: Placement) -> Placement:
    if not isinstance(wished, Free):
        return wished
    return Replicate() if isinstance(have, Partial) else have


def sizes(node: Node) -> tuple[int, ...]:
    """The shape of a node, which has no runtime variables."""
    return tuple([n for n in node.shape if isinstance(n, int)])


def flat(found: Iterable[Laid | Node]) -> list[Node]:
    """The nodes of all devices, in order."""
    return [n for f in found for n in (f.nodes if isinstance(f, Laid) else (f,))]


def _changed(found: Iterable[Laid | Node], new: Mapping[Node, Any]) -> Iterable[Laid | Node]:
    """The same with other nodes."""
    for f in found:
        yield (
            Laid(f.mesh, f.layout, f.shape, tuple([new[n] for n in f.nodes]))
            if isinstance(f, Laid)
            else new[f]
        )
