"""Times of a graph on devices: stated, or measured, by turns, and kept on disk for the machine.

What a device is described as is a guess; two devices that compute on one processor differ in code alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial

from weft import disk_cache
from weft.backends import registry
from weft.backends.protocol import Device, Foretold, Memory
from weft.ir.graph import Node, buffer, toposort
from weft.ir.ops import Op
from weft.ir.rewrite import rebuilt
from weft.scheduler import realize as one
from weft.scheduler.keeping import nbytes
from weft.scheduler.plan import Plan
from weft.scheduler.signature import Signature, signature

TURNS = 5
"""Runs on each device, of which the shortest counts; the first one, with cold caches, does not."""


def processors(names: Sequence[str]) -> list[list[str]]:
    """The devices by the processor that they compute on."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(registry.open_device(name).info.processor or name, []).append(name)
    return list(groups.values())


def measured(nodes: Sequence[Node], names: Sequence[str]) -> dict[str, float]:
    """The nanoseconds that computing `nodes`, wherever they are, takes on each of these devices alone; inf where it
    does not fit. Nothing of the values is used: leaves are zeros."""
    jobs = {name: _on(nodes, name) for name in names}
    times = {name: _kept(sig, registry.open_device(name)) for name, sig in jobs.items()}
    rest = [name for name in names if times[name] is None]
    if rest:
        found = _timed({name: jobs[name] for name in names})  # all of them: at the same load
        for name, ns in found.items():
            times[name] = ns
            device = registry.open_device(name)
            if math.isfinite(ns) and not isinstance(_plan(jobs[name], device).executable, Foretold):
                disk_cache.put("times", _key(jobs[name], device), json.dumps({"ns": ns}).encode())
    return {name: ns for name, ns in times.items() if ns is not None}


def _on(nodes: Sequence[Node], name: str) -> Signature:
    """The graph of `nodes`, all of it on one device."""
    leaves = [n for n in toposort(nodes) if n.op is Op.BUFFER or n.storage is not None]
    there = {n: buffer(n.shape, n.dtype, name, None) for n in leaves}
    return signature(rebuilt(nodes, there))


def _plan(sig: Signature, device: Device) -> Plan:
    return one.plan_for(sig, device, dynamic=False)


def _key(sig: Signature, device: Device) -> str:
    return disk_cache.digest(
        "times 1", sig.digest(), device.info.name, device.info.description, device.fingerprint()
    )


def _kept(sig: Signature, device: Device) -> float | None:
    """The time that was measured on this machine before."""
    try:
        ns = float(json.loads(disk_cache.get("times", _key(sig, device)) or b"")["ns"])
    except (ValueError, KeyError, TypeError):
        return None
    return ns if math.isfinite(ns) and ns > 0 else None


def _timed(jobs: Mapping[str, Signature]) -> dict[str, float]:
    """The times of graphs, each on its device, measured by turns."""
    best: dict[str, float] = {}
    runs: dict[str, partial[list[int]]] = {}
    for name, sig in jobs.items():
        device = registry.open_device(name)
        plan = _plan(sig, device)
        if isinstance(plan.executable, Foretold):
            best[name] = plan.executable.run_ns(plan.constants)
            continue
        try:
            leaves = [_zeros(device, n) for n in sig.leaves]
            _, memories = plan.with_results(leaves)
            plan.start(memories)
        except MemoryError:
            best[name] = math.inf
            continue
        runs[name] = partial(plan.start_timed, memories)
    for _ in range(TURNS):
        for name, run in runs.items():
            best[name] = min(best.get(name, math.inf), float(max(1, sum(run()))))
    return best


def _zeros(device: Device, n: Node) -> Memory:
    memory = device.allocate(nbytes(n))
    device.write(memory, memoryview(bytes(nbytes(n))))
    return memory
