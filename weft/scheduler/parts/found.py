"""Plans of parts by signature, and the values of nodes over several devices.

Graphs with leaves in files are computed step by step, each part as a graph of its own: in pieces where it has to be.
"""
# Tests: tests/scheduler/parts/test_plan.py, tests/scheduler/test_realize.py

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence

from weft import settings
from weft.backends import registry
from weft.backends.boxes import copy_box
from weft.backends.protocol import Device, DeviceInfo
from weft.backends.storage import Storage, moved_to, room_for
from weft.errors import NoValueError
from weft.ir.calls import expand_calls
from weft.ir.forks import forkable
from weft.ir.garbage import not_collected
from weft.ir.graph import Node
from weft.ir.index import Int, evaluate
from weft.scheduler import realize as one
from weft.scheduler.parts.cut import Compute, Cut, Exchange, cut
from weft.scheduler.parts.order import Ordered, bytes_of, ordered
from weft.scheduler.parts.plan import PartsPlan, PlannedParts
from weft.scheduler.parts.proof import prove
from weft.scheduler.parts.stretches import divided, estimated
from weft.scheduler.parts.timing import Ways
from weft.scheduler.parts.verify import verify_parts
from weft.scheduler.plan import Plan
from weft.scheduler.signature import Key, Signature, signature, snapshot

PARTS_KEPT = 256
"""Plans of parts in memory; the one used longest ago goes first. Their parts' plans are kept by `realize`, too."""

_lock = forkable(threading.RLock())
_found: dict[tuple[Key, str], PartsPlan] = {}


def compute(
    nodes: Sequence[Node], sig: Signature, bindings: Mapping[str, int] | None
) -> Mapping[Node, Storage]:
    """Compute nodes that need several devices, as `realize` does: constants are returned."""
    constants: dict[Node, Storage] = {}
    for node, storage in zip(nodes, _values(nodes, sig, bindings), strict=True):
        if node.device is None:
            constants[node] = storage
        elif node.storage is None:
            node.storage = storage
    return constants


def values_over(nodes: Sequence[Node], bindings: Mapping[str, int] | None) -> list[Storage]:
    """The values of nodes that need several devices; the nodes do not keep them."""
    return _values(nodes, signature(nodes), bindings)


def _values(nodes: Sequence[Node], sig: Signature, bindings: Mapping[str, int] | None) -> list[Storage]:
    if None in sig.storages:
        raise NoValueError(one.NO_VALUE)
    if sig.homeless:
        return _step_by_step(nodes, sig, bindings)
    plan = parts_plan(sig)
    env = {v.name: one.value(v.name, v.lo, v.hi, bindings) for v in sig.variables}
    return plan.run([s.memory for s in sig.storages if s is not None], env)


def parts_plan(sig: Signature) -> PartsPlan:
    """The plan of parts for a graph, from the cache or built now."""
    key = sig.key, one.default_device()
    plan = _found.get(key)
    if plan is None or not is_valid(plan):
        with _lock, not_collected():
            plan = _found.get(key)
            if plan is None or not is_valid(plan):
                plan = _found[key] = _built(sig)
            while len(_found) > PARTS_KEPT:
                del _found[next(iter(_found))]
    elif len(_found) > PARTS_KEPT // 2:
        with _lock:
            _found[key] = _found.pop(key, plan)  # the one used last
    return plan


def is_valid(plan: PartsPlan) -> bool:
    """True where its devices are still those of these names: a farm may have been registered anew."""
    return all(registry.open_device(n) is d for n, d in plan.devices.items())


def _built(sig: Signature) -> PartsPlan:
    found, devices, ways = _cut(sig)
    parts = PlannedParts(part_plan)
    order = ordered(parts.timed(found, devices), devices, ways)
    if settings.verify():
        verify_parts(order, {name: d.info.kind for name, d in devices.items()})
    return PartsPlan.of(order, devices, parts)


def kept_plan(sig: Signature) -> PartsPlan | None:
    """The plan of parts for a graph, if there is one."""
    plan = _found.get((sig.key, one.default_device()))
    return plan if plan is not None and is_valid(plan) else None


def steps_of(sig: Signature) -> tuple[Ordered, dict[str, Device]]:
    """The ordered steps of a graph, and its devices, for who looks at them: of its plan if there is one, else by what
    the devices are described as."""
    if (plan := kept_plan(sig)) is not None:
        return plan.order, dict(plan.devices)
    found, devices, ways = _cut(sig)
    return ordered(estimated(found, devices), devices, ways), devices


def _cut(sig: Signature) -> tuple[Cut, dict[str, Device], Ways]:
    """A graph in parts, stretches and exchanges; its devices, and the links between them."""
    blank = Signature(
        sig.key, sig.leaves, (None,) * len(sig.leaves), sig.variables, sig.copies, sig.homeless
    )  # fmt: skip
    own = snapshot(blank)
    outputs = expand_calls(own.outputs)
    found = cut(outputs, own.leaves, _info, one.default_device())
    devices = {name: registry.open_device(name) for name in _names(found)}
    ways = Ways(devices)
    found = divided(found, devices, ways)
    if settings.verify():
        prove(found, outputs, own.leaves)
    return found, devices, ways


def _names(found: Cut) -> list[str]:
    """The devices of a cut, in order."""
    used = {v for s in found.steps for v in (*s.reads, *s.results)} | set(found.outputs)
    names = [found.values[v].device for v in sorted(used)]
    return list(dict.fromkeys((*names, *(s.device for s in found.steps if isinstance(s, Compute)))))


def _info(name: str) -> DeviceInfo:
    return registry.open_device(name).info


def part_plan(sig: Signature, device: Device, dynamic: bool) -> tuple[Plan, bool]:
    """The plan of a part, and whether no other one will take over from it."""
    plan = one.plan_for(sig, device, dynamic=dynamic, at_once=True)
    return plan, one.is_settled(sig, device, dynamic)


def _step_by_step(nodes: Sequence[Node], sig: Signature, bindings: Mapping[str, int] | None) -> list[Storage]:
    """The values, each part computed as a graph of its own and waited for where it is read."""
    own = snapshot(sig)
    found = cut(expand_calls(own.outputs), own.leaves, _info, one.default_device())
    values: dict[int, Storage] = {k: s for k, s in enumerate(sig.storages) if s is not None}
    for s in found.steps:
        if isinstance(s, Exchange):
            values[s.target] = _moved(found, s, values[s.source], bindings or {})
            continue
        device = registry.open_device(s.device)
        for leaf, v in s.inputs.items():
            leaf.storage = values[v]
        todo = [n for n in s.nodes if n.storage is None]
        made = dict(
            zip(todo, one.values_of(todo, signature(todo), device, bindings) if todo else (), strict=True)
        )
        for n, v in zip(s.nodes, s.results, strict=True):
            values[v] = made[n] if n in made else moved_to(n.storage, device)
    return [values[v] for v in found.outputs]


def _moved(found: Cut, x: Exchange, source: Storage, bindings: Mapping[str, int]) -> Storage:
    """The box of a value on the device that it is copied to."""
    given = found.values[x.target]
    device = registry.open_device(given.device)
    shape = tuple([int(evaluate(n, bindings)) for n in given.shape])
    memory = room_for(device, given.dtype, shape, math.prod(shape) * given.dtype.itemsize)

    def value(n: Int) -> int:
        return int(evaluate(n, bindings))

    copy = bytes_of(found, x, value)
    source.device.synchronize()
    copy_box(device, memory, source.device, source.memory, copy)
    return Storage(device, memory, given.dtype, shape)
