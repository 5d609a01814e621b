"""Computing nodes: find or build the plan for their graph, and run it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft import settings
from weft.backends import registry
from weft.backends.protocol import Borrower, Device, Memory
from weft.backends.storage import Storage, lent_to, moved_to
from weft.errors import ArgumentError
from weft.ir.garbage import not_collected
from weft.ir.graph import CALL, Node, Target, toposort
from weft.ir.ops import Op
from weft.scheduler import disk_cache, elements
from weft.scheduler.keeping import FREE_BYTES, nbytes
from weft.scheduler.plan import Plan
from weft.scheduler.signature import Signature, signature
from weft.scheduler.stages import stages


@dataclass(slots=True)
class _Kept:
    """A plan, and when it was last used: a number that grows."""

    plan: Plan
    used: int


PLANS_KEPT = 1024
"""Plans in memory; the least recently used goes first."""

_lock = threading.RLock()
_plans: dict[tuple[Any, ...], _Kept] = {}
_clock = itertools.count()
NO_STATE: Mapping[int, Node] = {}


def realize(
    nodes: Sequence[Node], bindings: Mapping[str, int] | None = None, held: Sequence[Node] = ()
) -> None:
    """Fill in `storage` of all nodes, and of those of `held` that are worth keeping when they are computed on the way.
    `bindings` gives the values of runtime variables by name."""
    todo = [n for n in dict.fromkeys(nodes) if n.storage is None]
    name = todo[0].device if todo else None
    if todo and all(n.device == name for n in todo):
        sig = signature(todo, held)
        if sig.kept and not _fit(sig.kept, registry.open_device(name or default_device())):
            sig = signature(todo)
        if sig.elements and len(sig.key.rows) <= elements.NODES:
            if elements.take(todo, sig.elements, realize, bindings):
                realize(todo, bindings, held)
                return
        if not sig.copies:
            run([*todo, *sig.kept], sig, registry.open_device(name or default_device()), bindings)
            return
    _in_stages(todo, bindings)


def _fit(kept: Sequence[Node], device: Device) -> bool:
    """Whether there is ample memory for what nobody asked for."""
    size = sum(map(nbytes, kept))
    return size <= FREE_BYTES or size <= registry.available_bytes(device) // 4


def _in_stages(nodes: Sequence[Node], bindings: Mapping[str, int] | None) -> None:
    """Compute what is to be copied between devices, copy it, and so on up to `nodes`."""
    for stage in stages(nodes, default_device):
        for name, group in stage.computed:
            run(group, signature(group), registry.open_device(name), bindings)
        for n in stage.copies:
            _copy(n, bindings)


def run(
    nodes: Sequence[Node], sig: Signature, device: Device, bindings: Mapping[str, int] | None = None
) -> None:
    """Compute nodes that live on one device (or nowhere yet) on that device. ArgumentError for a leaf without value."""
    for node, storage in zip(nodes, values_of(nodes, sig, device, bindings), strict=True):
        node.storage = storage


def evaluate(nodes: Sequence[Node], bindings: Mapping[str, int]) -> list[Storage]:
    """The values of nodes for these values of the runtime variables. The nodes do not keep them: equal graphs are one
    object, which has other values under other bindings. ArgumentError across devices, or for a value out of bounds."""
    todo = [n for n in dict.fromkeys(nodes) if n.storage is None]
    values: dict[Node, Storage] = {n: n.storage for n in nodes if n.storage is not None}
    if todo:
        sig = signature(todo)
        names = {n.device for n in todo if n.device is not None}
        if sig.copies or len(names) > 1:
            raise ArgumentError(
                "bind: what is computed must be on one device; realize the copies to it before"
            )
        device = registry.open_device(names.pop() if names else default_device())
        values.update(zip(todo, values_of(todo, sig, device, bindings), strict=True))
    return [values[n] for n in nodes]


def values_of(
    nodes: Sequence[Node], sig: Signature, device: Device, bindings: Mapping[str, int] | None = None
) -> list[Storage]:
    """The values of nodes on a device: in pieces where they are computed from files that are too large for it."""
    if sig.homeless and not sig.variables and any(n.op is Op.BUFFER and n.device is None for n in sig.leaves):
        from weft.scheduler import stream

        toposort(nodes)  # which expands calls: what follows reads the graph in its own ways
        if not isinstance(device, Borrower):
            nodes, sig, known = _without_rows(nodes, stream.with_rows_read(nodes, device), sig)
            if known is not None:
                left = values_of(nodes, sig, device) if nodes else []
                found = dict(zip(nodes, left, strict=True))
                return [found[n] if n.storage is None else n.storage for n in known]
        if stream.needed(nodes, sig.leaves, device):
            return stream.compute(nodes, device)
    return planned(nodes, sig, device, bindings)


def _without_rows(
    nodes: Sequence[Node], read: Sequence[Node], sig: Signature
) -> tuple[Sequence[Node], Signature, Sequence[Node] | None]:
    """What is left to compute, with its signature, and all nodes as they are after rows of files were read; None where
    none were."""
    if all(a is b for a, b in zip(nodes, read, strict=True)):
        return nodes, sig, None
    todo = [n for n in dict.fromkeys(read) if n.storage is None]
    return todo, signature(todo) if todo else sig, read


def planned(
    nodes: Sequence[Node], sig: Signature, device: Device, bindings: Mapping[str, int] | None = None
) -> list[Storage]:
    """The values of nodes on a device, by one plan."""
    plan = _plan_for(nodes, sig, device)
    if plan is None:
        sig = signature(nodes)
        plan = plan_for(nodes, sig, device)
    values = [_value(v.name, v.lo, v.hi, bindings) for v in sig.variables] if sig.variables else ()
    try:
        memories = [memory_on(n, device) if sig.homeless else n.storage.memory for n in sig.leaves]
    except AttributeError:
        raise ArgumentError(
            "a tensor was used that was made while weft.compile traced a function that failed, or that kept it to "
            "itself, or that stands for one example or step in a function that vmap or scan runs: it has no value; "
            "return it from the function"
        ) from None
    out = plan.run(memories, values)
    if sig.homeless:
        check_unchanged(sig.leaves)
    return out


def check_unchanged(leaves: Sequence[Node]) -> None:
    """FileError where somebody wrote to a leaf's file since it was opened: while it was computed from, say."""
    for n in leaves:
        if n.device is None and n.storage is not None and n.storage.device.info.kind == "disk":
            n.storage.memory.file.check()


def memory_on(leaf: Node, device: Device) -> Memory:
    """The leaf's value in memory that `device` can read: a constant may have been computed on another one, and a
    tensor on disk is at home on none."""
    stored: Storage = leaf.storage
    if stored.device is device or leaf.device is not None:
        return stored.memory
    return lent_to(stored, device) or moved_to(stored, device).memory


def plan_for(
    nodes: Sequence[Node], sig: Signature, device: Device, state: Mapping[int, Node] = NO_STATE
) -> Plan:
    """The plan for the graph under `nodes`, from the cache or built now. `state[k]` is the leaf whose memory output k
    replaces if it can. In the graph are no calls."""
    plan = _plan_for(nodes, sig, device, state)
    assert plan is not None
    return plan


def _plan_for(
    nodes: Sequence[Node], sig: Signature, device: Device, state: Mapping[int, Node] = NO_STATE
) -> Plan | None:
    """As `plan_for`; None where calls, expanded, are made of values that are there already, and no leaves so far."""
    replaces: tuple[tuple[int, int], ...] = ()
    if state:
        leaf = {n: i for i, n in enumerate(sig.leaves)}
        replaces = tuple([(k, leaf[old]) for k, old in state.items() if old in leaf])
    key = (device, sig.key, replaces)
    kept = _plans.get(key)
    if kept is not None:
        kept.used = next(_clock)
        return kept.plan
    with _lock:
        kept = _plans.get(key)
        if kept is None:
            with not_collected():
                plan = _from_disk_or_built(nodes, device, sig, dict(replaces))
            if plan is None:
                return None
            kept = _plans[key] = _Kept(plan, next(_clock))
            if len(_plans) > PLANS_KEPT:
                del _plans[min(_plans, key=lambda k: _plans[k].used)]
        return kept.plan


def _from_disk_or_built(
    nodes: Sequence[Node], device: Device, sig: Signature, replaces: Mapping[int, int]
) -> Plan | None:
    name = disk_cache.key_of(sig, replaces, device)
    plan = None if name is None else disk_cache.load(name, device, nodes, sig.variables)
    if plan is None:
        # Here, since a process that finds its plans on disk needs no compiler.
        from weft.scheduler.build import Job, build

        if any(row[0] is CALL for row in sig.key.rows):
            there = {n for n in toposort(nodes) if n.storage is not None or n.op is Op.BUFFER}
            if not there <= set(sig.leaves):
                return None
        plan, where = build(Job(tuple(nodes), sig.leaves, sig.variables, replaces), device)
        if name is not None and where is not None:
            disk_cache.store(name, plan, where)
    return plan


def default_device() -> str:
    """Where nodes without a device are computed."""
    return registry.canonical(settings.device())


def _copy(node: Node, bindings: Mapping[str, int] | None) -> None:
    """Move a value from one device's memory to another's, through the host. What needs no device is computed there."""
    (source,) = node.inputs
    assert isinstance(node.attrs, Target)
    target = registry.open_device(node.attrs.device)
    if source.device is None and source.storage is None:
        run([source], signature([source]), target, bindings)
        node.storage, source.storage = source.storage, None
    else:
        stored: Storage = source.storage
        node.storage = moved_to(stored, target)


def _value(name: str, lo: int, hi: int, bindings: Mapping[str, int] | None) -> int:
    if bindings is None or name not in bindings:
        raise ArgumentError(
            f"the runtime variable {name} has no value; give it with weft.bind(tensor, {name}=...), {lo} to {hi}"
        )
    value = bindings[name]
    if not lo <= value <= hi:
        raise ArgumentError(f"the runtime variable {name} must be between {lo} and {hi}, not {value}")
    return value
