"""Computing nodes: find or build the plan for their graph, and run it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from weft import settings
from weft.backends import registry
from weft.backends.native_threads import undisturbed
from weft.backends.protocol import Borrower, Device, Memory
from weft.backends.storage import Storage, lent_to, moved_to
from weft.errors import ArgumentError, MemoryPlanError, NoValueError
from weft.ir import numerics
from weft.ir.calls import expand_calls
from weft.ir.forks import forkable
from weft.ir.garbage import not_collected
from weft.ir.graph import Node, toposort
from weft.ir.ops import Op
from weft.ir.placement import is_mesh
from weft.ir.places import asked, check
from weft.lazy_dataclass import dataclass
from weft.scheduler import disk_cache, elements, families, repeats, shortcuts
from weft.scheduler.keeping import FREE_BYTES, nbytes
from weft.scheduler.outline import outlined
from weft.scheduler.plan import Plan
from weft.scheduler.signature import Held, Signature, signature, snapshot
from weft.scheduler.spent import Spent
from weft.scheduler.unrolled import Unrolled

if TYPE_CHECKING:
    from weft.scheduler.basic.tiers import Final


@dataclass(slots=True)
class _Kept:
    """A plan, and when it was last used: a number that grows. `turns`: for a graph that shares the plan of its family,
    how often it may come before it gets its own, if that is on disk, and `later`, before it is built (None where that
    is not known yet); 0 for a plan of its own."""

    plan: Plan
    used: int
    turns: int = 0
    later: int | None = 0

    @property
    def steps(self) -> int:
        """The steps that are kept for this graph alone."""
        return len(self.plan.steps) if self.plan.shared is None else 0

    def lasts(self) -> bool:
        """True where the plan may be taken once more, unless it `gives_way`."""
        self.used = next(_clock)
        if not self.turns:
            return True
        if self.turns <= 1 or settings.deterministic() or families.is_slow(self.plan):
            return False
        self.turns -= 1
        return True

    def gives_way(self, at_once: bool = True) -> bool:
        """True for a basic plan whose final one is there, or has been waited for."""
        final = self.plan.final if self.turns else None
        return final is not None and (not at_once or final.due())

    def turn(self) -> Plan | None:
        """The plan, taken once more; None where another may have to take its place."""
        return self.plan if self.lasts() and not self.gives_way() else None


PLANS_KEPT = 1024
"""Plans in memory; the least recently used goes first."""

STEPS_KEPT = 1 << 17
"""Steps of all plans in memory, some 800 bytes each: a plan of a large model has thousands."""

COMES_BACK = 4
"""A graph that came so often, and shares a plan, takes one of its own that is on disk: it need not be built."""

_lock = forkable(threading.RLock())
_plans: dict[tuple[Any, ...], _Kept] = {}
_came: dict[int, int] = {}
"""Counts of runs by segments, of graphs by hash: keys are large, and a mistake costs a plan. Those that have
plans of their own came often."""
_memory = repeats.Memory()
"""Knowledge of programs whose graphs change."""
_clock = itertools.count()
_steps = [0]
"""The steps of the plans in memory, at most."""
NO_STATE: Mapping[int, Node] = {}

NO_VALUE = (
    "a tensor was used that was made while weft.compile traced a function that failed, or that kept it to itself, or "
    "that stands for one example or step in a function that vmap or scan runs: it has no value; return it from the "
    "function"
)


def realize(
    nodes: Sequence[Node],
    bindings: Mapping[str, int] | None = None,
    held: Held | None = None,
    spent: Spent | None = None,
) -> Mapping[Node, Storage]:
    """Fill in `storage` of all nodes, and of those that `held` gives and that are worth keeping when they are computed
    on the way. `bindings` gives the values of runtime variables by name. Returned are the values of constants: see
    `run`."""
    if len(nodes) == 1 and spent is None and bindings is None and nodes[0].storage is None:
        element = elements.alone(nodes[0])
        if element is not None and _taken(element):
            return NOTHING
        at = shortcuts.look(nodes[0])
        if at is not None and (held is None or not at.inner or not held(at.inner)):
            found = shortcuts.taken(at, nodes[0])
            return _realize(nodes, None, held, None, at) if found is None else found
    return _realize(nodes, bindings, held, spent)


def _taken(element: elements.Element) -> bool:
    """True where the element's node was given its value: it is in memory, or one of what a small graph computes."""
    if element.whole.storage is None and element.whole.device is not None:
        if shortcuts.look(element.whole) is None:
            return False
        realize([element.whole])
    value = elements.copied(element)
    if value is not None and element.node.storage is None:
        element.node.storage = value
    return value is not None


def _realize(
    nodes: Sequence[Node],
    bindings: Mapping[str, int] | None,
    held: Held | None,
    spent: Spent | None,
    at: shortcuts.Look | None = None,
) -> Mapping[Node, Storage]:
    """As `realize`; `at`: the look at a small graph whose plan is not known yet."""
    todo = [n for n in (nodes if len(nodes) == 1 else dict.fromkeys(nodes)) if n.storage is None]
    name = todo[0].device if todo else None
    if len(todo) == 1 or (todo and all(n.device == name for n in todo)):
        sig = signature(todo, held)
        if sig.kept and not _fit(sig.kept, registry.open_device(name or default_device())):
            sig = signature(todo)
        if sig.elements and len(sig.key.rows) <= elements.NODES:
            taken = elements.take(todo, sig.elements, realize, bindings)
            if taken is not None:
                rest = realize([n for n in todo if n not in taken], bindings, held)
                return {**rest, **taken} if taken else rest
        if not sig.copies and not is_mesh(name):
            device = registry.open_device(name or default_device())
            found = _segments([*todo, *sig.kept], sig, device)
            if found is not None:
                return _by_segments(found, [*todo, *sig.kept], device)
            key = None if at is None else (device, sig.key, ())
            known = key in _plans
            done = run([*todo, *sig.kept], sig, device, bindings, spent)
            if at is not None and key is not None and (known or at.numbers):
                with _lock:
                    kept = _plans.get(key) if known else None
                    shortcuts.learn(at, sig, device, None if kept is None else partial(_turn, key, kept))
            return done
        if not is_mesh(name) and not any(is_mesh(n.device) for n in toposort(todo)):
            return _over_devices(todo, sig, bindings)
    if any(is_mesh(n.device) for n in todo) or any(is_mesh(n.device) for n in toposort(todo)):
        return _on_meshes(todo, bindings)
    return _over_devices(todo, signature(todo), bindings) if todo else NOTHING


def _segments(nodes: Sequence[Node], sig: Signature, device: Device) -> Sequence[Sequence[Node]] | None:
    """The values to compute one after the other, for a graph that has no plan, of a program whose graphs change or with
    very many nodes."""
    if len(sig.key.rows) <= repeats.MIN_NODES:
        return None
    number, most = hash(sig.key), COMES_BACK
    if len(sig.key.rows) > repeats.MANY_NODES:
        most = repeats.OWN_PLAN_AFTER
    turns = _came.get(number, 0)
    if turns >= most:
        return None
    with _lock:
        found = _cut(nodes, sig, device) if turns < most - 1 else None
        _came.pop(number, None)
        _came[number] = most if found is None else turns + 1
        if len(_came) > PLANS_KEPT:
            _came.pop(next(iter(_came)))
    return found


def _cut(nodes: Sequence[Node], sig: Signature, device: Device) -> Sequence[Sequence[Node]] | None:
    """The segments of a graph; None where it has a plan, or is better planned as a whole."""
    if sig.variables or sig.homeless or sig.key.pinned or settings.deterministic():
        return None
    if (device, sig.key, ()) in _plans or families.known(sig, device) is not None:
        return None
    order = repeats.candidates(nodes)
    if not order:
        return None
    kinds = repeats.kinds_of(order)
    changes = _memory.changes(frozenset(kinds), hash(outlined(sig).key))
    if not changes and (len(order) < repeats.MANY_NODES or disk_cache.has(sig, device)):
        return None
    return repeats.segments(nodes, order, kinds, _memory, changes)


def _by_segments(
    segments: Sequence[Sequence[Node]], nodes: Sequence[Node], device: Device
) -> Mapping[Node, Storage]:
    """Compute nodes on a device by the segments of their graph, one after the other. Nodes hold the values of all that
    was asked for, or, where a segment fails, of nothing: what lies between segments is stored beside them."""
    values: dict[Node, Storage] = {}
    between: dict[Node, Storage] = {}
    for segment in segments:
        for n, s in zip(segment, planned(signature(segment, values=between), device), strict=True):
            values[n] = s
            if n.device is not None:
                between[n] = s
    return _stored(nodes, [values[n] for n in nodes])


def _on_meshes(nodes: Sequence[Node], bindings: Mapping[str, int] | None) -> Mapping[Node, Storage]:
    """Compute nodes, some of which are on meshes or made of what is, on the devices of the meshes."""
    # Here, since most graphs are on no mesh.
    from weft.scheduler import mesh_plans

    constants: dict[Node, Storage] = {}
    for node, storage in zip(nodes, mesh_plans.compute(nodes, bindings), strict=True):
        if node.device is None:
            constants[node] = storage
        elif node.storage is None:
            node.storage = storage
    return constants


def _fit(kept: Sequence[Node], device: Device) -> bool:
    """True where there is ample memory for what nobody asked for."""
    size = sum(map(nbytes, kept))
    return size <= FREE_BYTES or size <= registry.available_bytes(device) // 4


def _over_devices(
    nodes: Sequence[Node], sig: Signature, bindings: Mapping[str, int] | None
) -> Mapping[Node, Storage]:
    """Compute nodes that live on several devices, or are copied, or on one and, being constants, on none."""
    names = {n.device or default_device() for n in nodes}
    if len(names) == 1 and not sig.copies:
        return run(nodes, sig, registry.open_device(names.pop()), bindings)
    # Here, since most graphs need one device.
    from weft.scheduler import parts

    return parts.compute(nodes, sig, bindings)


def run(
    nodes: Sequence[Node],
    sig: Signature,
    device: Device,
    bindings: Mapping[str, int] | None = None,
    spent: Spent | None = None,
) -> Mapping[Node, Storage]:
    """Compute nodes that live on one device (or nowhere yet) on that device. ArgumentError for a leaf without value.

    The values are stored in the nodes, where no other thread was faster: who has read a storage may go on using it.
    Constants (what is made of no leaf) are shared by the whole process and at home on no device, so their values are
    not stored but returned, for whoever asked.
    """
    if spent is not None and not sig.homeless and not sig.variables and spent.fits(nodes):
        return _stored(nodes, planned(sig, device, bindings, (spent, nodes)))
    return _stored(nodes, values_of(nodes, sig, device, bindings), sig.homeless)


def _stored(
    nodes: Sequence[Node], values: Sequence[Storage], homeless: bool = False
) -> Mapping[Node, Storage]:
    """Store the values in their nodes, but those of constants, which are returned."""
    constants = NOTHING
    for node, storage in zip(nodes, values, strict=True):
        if node.device is None and not homeless:
            constants = {**constants, node: storage}
        elif node.storage is None:
            node.storage = storage
    return constants


NOTHING: Mapping[Node, Storage] = {}


def evaluate(nodes: Sequence[Node], bindings: Mapping[str, int]) -> list[Storage]:
    """The values of nodes for these values of the runtime variables. The nodes do not keep them: equal graphs are one
    object, which has other values under other bindings. ArgumentError for a value out of bounds, IndexError for one
    that leads out of a tensor."""
    values: dict[Node, Storage] = {n: s for n in nodes if (s := n.storage) is not None}
    todo = [n for n in dict.fromkeys(nodes) if n not in values]
    if todo:
        sig = signature(todo)
        if sig.variables:
            check({v.name: value(v.name, v.lo, v.hi, bindings) for v in sig.variables}, asked(todo))
        names = {n.device for n in todo if n.device is not None}
        if sig.copies or len(names) > 1:
            from weft.scheduler import parts

            values.update(zip(todo, parts.values_over(todo, bindings), strict=True))
            return [values[n] for n in nodes]
        device = registry.open_device(names.pop() if names else default_device())
        values.update(zip(todo, values_of(todo, sig, device, bindings), strict=True))
    return [values[n] for n in nodes]


def values_of(
    nodes: Sequence[Node], sig: Signature, device: Device, bindings: Mapping[str, int] | None = None
) -> list[Storage]:
    """The values of nodes on a device: in pieces where they are computed from files that are too large for it."""
    if sig.homeless and not sig.variables and any(n.op is Op.BUFFER and n.device is None for n in sig.leaves):
        from weft.scheduler import stream

        own = snapshot(sig)
        nodes = expand_calls(own.outputs)
        sig = Signature(
            sig.key, own.leaves, sig.storages, sig.variables, sig.copies, sig.homeless, sig.elements
        )  # fmt: skip
        if not isinstance(device, Borrower):
            nodes, sig, known = _without_rows(nodes, stream.with_rows_read(nodes, device), sig)
            if known is not None:
                left = values_of(nodes, sig, device) if nodes else []
                found = dict(zip(nodes, left, strict=True))
                return [found[n] if n.storage is None else n.storage for n in known]
        if stream.needed(nodes, sig.leaves, device):
            return stream.compute(nodes, device)
    return planned(sig, device, bindings)


def _without_rows(
    nodes: Sequence[Node], read: Sequence[Node], sig: Signature
) -> tuple[Sequence[Node], Signature, Sequence[Node] | None]:
    """The nodes left to compute, their signature, and all nodes as they are after rows of files were read; None
    where none were."""
    if all(a is b for a, b in zip(nodes, read, strict=True)):
        return nodes, sig, None
    todo = [n for n in dict.fromkeys(read) if n.storage is None]
    return todo, signature(todo) if todo else sig, read


def planned(
    sig: Signature,
    device: Device,
    bindings: Mapping[str, int] | None = None,
    spent: tuple[Spent, Sequence[Node]] | None = None,
) -> list[Storage]:
    """The values of a signature's outputs on a device, by one plan; `spent`, for these nodes, it may write over."""
    try:
        if sig.homeless:
            memories = [memory_on(n, s, device) for n, s in zip(sig.leaves, sig.storages, strict=True)]
        else:
            memories: list[Memory] = [s.memory for s in sig.storages]  # pyright: ignore[reportOptionalMemberAccess]
    except AttributeError:
        if None not in sig.storages:
            raise
        raise NoValueError(NO_VALUE) from None
    plan = plan_for(sig, device, at_once=True)
    values = [value(v.name, v.lo, v.hi, bindings) for v in sig.variables] if sig.variables else ()
    try:
        over = {} if spent is None or plan.shared is not None else spent[0].places(plan.outputs, sig.leaves)
        out = _run_over(plan, sig, memories, over, *spent) if spent and over else plan.run(memories, values)
    except MemoryPlanError as refused:
        out = _run_within(sig, device, plan, memories, refused)
    if sig.homeless:
        check_unchanged(sig.leaves)
    return out


def _run_over(
    plan: Plan,
    sig: Signature,
    memories: list[Memory],
    over: Mapping[int, int],
    spent: Spent,
    nodes: Sequence[Node],
) -> list[Storage]:
    """As `Plan.run`, with outputs computed over leaves. It has happened or not, wherever it is interrupted."""
    given = plan.external(memories, places={k: memories[i] for k, i in over.items()})
    values = [plan.storage(k, m) for k, m in enumerate(given[len(given) - len(plan.outputs) :])]
    leaves, executable = [sig.leaves[i] for i in over.values()], plan.executable
    with undisturbed() as alone, plan.updating:
        if not alone:
            return plan.run(memories)
        before = executable.finished
        try:
            plan.start(given)
            spent.commit(nodes, values, leaves)
        except BaseException:
            if executable.finished != before:
                spent.commit(nodes, values, leaves)
            elif executable.started != before:  # nobody is to read what is there
                spent.commit((), (), leaves)
            raise
    return values


def _run_within(
    sig: Signature, device: Device, plan: Plan, memories: list[Memory], refused: MemoryPlanError
) -> list[Storage]:
    """The values of a graph whose plan was refused for want of memory."""
    if basic_plan(sig, device) is plan:
        try:
            return plan_for(sig, device).run(memories)  # which keeps less between its kernels
        except MemoryPlanError as again:
            refused = again
    if plan.shared is not None:
        try:
            return plan_for(sig, device, dynamic=False).run(memories)  # which needs no room for larger sizes
        except MemoryPlanError as again:
            refused = again
    # Here, since most plans fit, and those found on disk need no compiler.
    from weft.scheduler.pools import within

    return within.run(sig, device, memories, refused)


def check_unchanged(leaves: Sequence[Node]) -> None:
    """FileError where somebody wrote to a leaf's file since it was opened: while it was computed from, say."""
    for n in leaves:
        if n.device is None and n.storage is not None and n.storage.device.info.kind == "disk":
            n.storage.memory.file.check()


def memory_on(leaf: Node, stored: Storage | None, device: Device) -> Memory:
    """The leaf's value in memory that `device` can read: a tensor on disk is at home on none."""
    if stored is None or stored.device is device or leaf.device is not None:
        return stored.memory  # pyright: ignore[reportOptionalMemberAccess]  # who calls says why there is none
    return lent_to(stored, device) or moved_to(stored, device).memory


def plan_for(
    sig: Signature,
    device: Device,
    state: Mapping[int, Node] = NO_STATE,
    dynamic: bool = True,
    stays: bool = False,
    at_once: bool = False,
) -> Plan:
    """The plan for a graph, from the cache or built now. `state[k]` is the leaf whose memory output k replaces if it
    can. `dynamic`: it may be one for graphs of all sizes; see families.py. `stays`: it will be run often, so that one
    of its own that is on disk is better. `at_once`: it may be a basic one, until the final one is there; see
    basic/tiers.py."""
    replaces = replaced(sig, state)
    key = (device, sig.key, replaces) if dynamic else (device, sig.key, replaces, "fixed")
    kept = _plans.get(key)
    gives_way = False
    if kept is not None:
        lasts = kept.lasts()
        gives_way = lasts and kept.gives_way(at_once)
        if lasts and not gives_way:
            return kept.plan
    due = kept is not None
    with _lock:
        kept = _plans.get(key)
        if kept is None or (due and kept.turns):
            alike = sig.key.pinned or settings.deterministic()  # then each graph has a plan of its own
            shares = dynamic and not sig.variables and not sig.homeless and not alike
            plan, lasting = None, True
            if kept is None and shares and not stays:
                plan, lasting = families.known_plan(sig, device, replaces) or (None, True)
            if plan is None:
                with not_collected():
                    if kept is not None and kept.plan.final is not None and kept.plan.shared is None:
                        plan = kept.plan.final.plan
                        assert not isinstance(plan, Unrolled)  # of one size
                    elif kept is not None and kept.plan.final is not None and gives_way:
                        make_final = partial(_built_here, device, kept.plan.final)
                        plan = families.settled(sig, device, replaces, kept.plan.final, make_final)
                    elif shares and (stays if kept is None else _later(kept)):
                        stored = _from_disk(device, sig, dict(replaces))
                        plan = None if stored is None else stored.plan({})
                        if plan is None and kept is not None:
                            kept.turns, kept.later = _later(kept), 0
                            return kept.plan
                    if kept is None and shares and plan is None:
                        soonest = at_once and settings.tiers()
                        make, left = (_soonest, _left) if soonest else (_with_nothing_after, None)
                        plan = families.plan_for(sig, device, replaces, make, left, _met)
                        if plan is None and soonest:
                            made, final = make(device, sig, {})
                            plan = replace(made.plan({}), final=final)
                    if plan is None:
                        plan = _from_disk_or_built(device, sig, dict(replaces)).plan({})
            after = None if plan.shared is None else plan.final
            if after is not None and (not at_once or after.due()):
                make_final = partial(_built_here, device, after)
                plan = families.settled(sig, device, replaces, after, make_final) or plan
            if not lasting:
                return plan
            if plan.shared is not None:
                kept = _Kept(plan, next(_clock), COMES_BACK, None)
            elif plan.final is not None:
                kept = _Kept(plan, next(_clock), families.NEVER)
            else:
                kept = _Kept(plan, next(_clock))
            _plans[key] = kept
            _steps[0] += kept.steps
            if len(_plans) > PLANS_KEPT or _steps[0] > STEPS_KEPT:
                _forget_oldest()
        return kept.plan


def _later(kept: _Kept) -> int:
    """The number of times that a graph may come, beyond COMES_BACK, before a plan of its own is built."""
    if kept.later is None:
        kept.later = max(families.turns(kept.plan) - COMES_BACK, 0)
    return kept.later


def is_settled(sig: Signature, device: Device, dynamic: bool) -> bool:
    """True where the plan that `plan_for` has for a graph is the one that it will have."""
    kept = _plans.get((device, sig.key, ()) if dynamic else (device, sig.key, (), "fixed"))
    return kept is not None and not kept.turns


def learn(sig: Signature, device: Device, state: Mapping[int, Node]) -> None:
    """Have the next graph that is like this one but for its sizes get a plan for all sizes. Nothing is computed."""
    if sig.variables or sig.homeless or sig.key.pinned:
        return
    with _lock:
        families.teach(sig, device, replaced(sig, state))


def replaced(sig: Signature, state: Mapping[int, Node]) -> tuple[tuple[int, int], ...]:
    """The outputs that take a leaf's memory, each with the number of the leaf."""
    if not state:
        return ()
    leaf = {n: i for i, n in enumerate(sig.leaves)}
    return tuple([(k, leaf[old]) for k, old in state.items() if old in leaf])


def shared_plan(sig: Signature, device: Device) -> Plan | None:
    """The plan for all sizes that computing the graph would take; None where it has, or would get, one of its own."""
    kept = _plans.get((device, sig.key, ()))
    if kept is not None:
        return kept.plan if kept.plan.shared is not None else None
    with _lock:
        return None if sig.key.pinned else families.known(sig, device)


def basic_plan(sig: Signature, device: Device) -> Plan | None:
    """The basic plan on which the graph runs until its final one is there; None where it has none, or no more."""
    kept = _plans.get((device, sig.key, ()))
    return kept.plan if kept is not None and kept.plan.final is not None else None


def _turn(key: tuple[Any, ...], kept: _Kept) -> Plan | None:
    """A plan, for one more run, if it is kept still; None where another may have to take its place."""
    return kept.turn() if _plans.get(key) is kept else None


def forget_sizes() -> None:
    """Forget what was learned of sizes and numbers: the next graphs are the first of their families."""
    with _lock:
        families.forget()
        shortcuts.forget()


def _met(key: tuple[Any, ...]) -> Plan | None:
    """The plan of a graph met before, if it is still there."""
    kept = _plans.get(key)
    return None if kept is None else kept.plan


def _forget_oldest() -> None:
    """Forget the plans that were used longest ago, but for the last one, where the others do not keep to the bounds:
    an eighth more than has to go, so that not every new plan looks at all."""
    steps = _steps[0] = sum([k.steps for k in _plans.values()])
    if len(_plans) <= PLANS_KEPT and steps <= STEPS_KEPT:
        return
    plans, room = PLANS_KEPT - PLANS_KEPT // 8, STEPS_KEPT - STEPS_KEPT // 8
    for key, kept in sorted(_plans.items(), key=lambda item: item[1].used)[:-1]:
        if len(_plans) <= plans and steps <= room:
            break
        steps -= kept.steps
        del _plans[key]
    _steps[0] = steps


def _soonest(device: Device, sig: Signature, replaces: Mapping[int, int]) -> tuple[Unrolled, Final | None]:
    """A graph's plan as it is soonest to be had: from disk, or a basic one and what takes over from it, or built."""
    stored, name = _from_disk(device, sig, replaces), disk_cache.key_of(sig, replaces, device)
    if stored is not None:
        return stored, None
    if name is None or replaces:
        return build_and_keep(device, sig, replaces, name), None
    # Here, since a process that finds its plans on disk needs no compiler.
    from weft.scheduler.basic import tiers

    first = tiers.first(sig, device, name)
    if isinstance(first, tuple):
        return first
    plan = build_and_keep(device, sig, {}, name)
    if first is not None:
        tiers.prepare(first)  # not before: it would take turns with this process
    return plan, None


def _left(wanted: families.Wanted, device: Device) -> tuple[Unrolled, Final | None] | None:
    """The basic plan of a graph that an earlier process left, and what takes over from it."""
    from weft.scheduler.basic import tiers

    return tiers.left(wanted, device)


def _with_nothing_after(
    device: Device, sig: Signature, replaces: Mapping[int, int]
) -> tuple[Unrolled, Final | None]:
    """As `_from_disk_or_built`: such a plan is final."""
    return _from_disk_or_built(device, sig, replaces), None


def _built_here(device: Device, final: Final) -> Plan | Unrolled:
    """The final plan, where nobody built it beside."""
    return build_and_keep(device, final.task().signature(), {}, final.name).settled()


def _from_disk_or_built(device: Device, sig: Signature, replaces: Mapping[int, int]) -> Unrolled:
    """A plan, made from a graph of its own: see `snapshot`."""
    plan = _from_disk(device, sig, replaces)
    return (
        build_and_keep(device, sig, replaces, disk_cache.key_of(sig, replaces, device))
        if plan is None
        else plan
    )


def build_and_keep(
    device: Device, sig: Signature, replaces: Mapping[int, int], name: str | None, at_once: int | None = None
) -> Unrolled:
    """A plan, built now, and kept on disk by that name (None: it is not). `at_once`: see `programs.compiled`."""
    # Here, since a process that finds its plans on disk needs no compiler.
    from weft.scheduler.assembly import Job
    from weft.scheduler.build import build

    own = snapshot(sig)
    with numerics.switched(sig.key.pinned):
        plan, where = build(Job(own.outputs, own.leaves, sig.variables, replaces, at_once), device)
    if name is not None and where is not None:
        disk_cache.store(name, plan, where)
    return plan


def _from_disk(device: Device, sig: Signature, replaces: Mapping[int, int]) -> Unrolled | None:
    """The plan of a graph, if it is on disk."""
    name = disk_cache.key_of(sig, replaces, device)
    return None if name is None else disk_cache.load(name, device, sig.results(), sig.variables)


def default_device() -> str:
    """The device on which nodes without a device are computed."""
    return registry.canonical(settings.device())


def value(name: str, lo: int, hi: int, bindings: Mapping[str, int] | None) -> int:
    """The value of a runtime variable. ArgumentError where it has none, or one out of bounds."""
    if bindings is None or name not in bindings:
        raise ArgumentError(
            f"the runtime variable {name} has no value; give it with weft.bind(tensor, {name}=...), {lo} to {hi}"
        )
    value = bindings[name]
    if not lo <= value <= hi:
        raise ArgumentError(f"the runtime variable {name} must be between {lo} and {hi}, not {value}")
    return value
