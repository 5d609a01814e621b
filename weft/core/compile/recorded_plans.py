"""Plans for what was recorded: what they compute, what stays from call to call, what they may overwrite."""
# Tests: tests/core/compile/test_compile.py, tests/core/compile/test_kept.py

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from weft.autograd.context import default_device
from weft.core.compile.kept import Kept, Part
from weft.core.compile.recording import Recording
from weft.core.execute import plans
from weft.ir.graph import Node

if TYPE_CHECKING:
    from weft.backends.protocol import Device, Memory
    from weft.scheduler.invariants import Split
    from weft.scheduler.plan import Plan
    from weft.scheduler.signature import Signature


def wanted_nodes(r: Recording) -> dict[Node, None]:
    """The nodes that a call has to compute, in order."""
    placeholders = {v.node for v in r.placeholders.values()}
    return dict.fromkeys(v.node for v in r.values if v.node not in placeholders and v.node.storage is None)


def learn(r: Recording, device: Device) -> None:
    """Have the plan of a recording that is like this one but for its sizes be one for all sizes."""
    nodes = list(wanted_nodes(r))
    found = split_recorded(r, device, nodes)
    plans.learn(nodes if found is None else found.outputs, device, replaceable(r, device, nodes))


def needs_pieces(r: Recording, wanted: Iterable[Node], devices: set[str]) -> bool:
    """True where what is to be computed has to be computed in pieces, from files larger than memory."""
    files = [r.placeholders[k].node for k, s in r.specs.items() if s.device.info.kind == "disk"]
    return plans.in_pieces(list(wanted), files, next(iter(devices), default_device()))


def fixed_memory(sig: Signature | None, device: Device) -> list[Memory | None]:
    """The memory of leaves that are the same at every call; None for the others."""
    if sig is None:
        return []
    return [
        None if s is None else plans.memory_on(n, s, device)
        for n, s in zip(sig.leaves, sig.storages, strict=True)
    ]


def plan_recorded(
    r: Recording, device: Device, nodes: Sequence[Node], planned: Sequence[Node], dynamic: bool
) -> tuple[Plan | None, Signature | None]:
    """The plan for `nodes` as they are computed at each call, `planned`, and the signature of these."""
    return plans.plan(planned, device, replaceable(r, device, nodes), dynamic) if nodes else (None, None)


def replaceable(r: Recording, device: Device, nodes: Sequence[Node]) -> dict[int, Node]:
    """The nodes, by number, that may take the memory of a leaf: a rebound tensor's new value that of the old one,
    unless the new value goes elsewhere too, or the old one does."""
    uses: dict[Node, int] = {}
    new_tensors = [k for k, same in zip(r.results, r.same, strict=True) if same is None]
    grads = [g.value for g in r.set_grads if g.value is not None]
    for k in (*(b.value for b in r.rebinds), *grads, *new_tensors):
        node = r.values[k].node
        uses[node] = uses.get(node, 0) + 1
    index = {n: k for k, n in enumerate(nodes)}
    state: dict[int, Node] = {}
    for b in r.rebinds:
        new = r.values[b.value].node
        if isinstance(b.target, int) and new in index and uses[new] == 1:
            old = r.placeholders[b.target].node
            if old not in uses and r.specs[b.target].device is device:
                state[index[new]] = old
    return state


def split_recorded(r: Recording, device: Device, nodes: Sequence[Node]) -> Split | None:
    """The nodes in a part that is kept and the rest; None where nothing is kept. A call that makes gradients keeps
    nothing: a training step reads parameters that change before the next."""
    return None if r.set_grads or r.differentiated else plans.split(nodes, staying(r, device), device)


def staying(r: Recording, device: Device) -> set[Node]:
    """The placeholders of what the function reads without being given it, and does not write."""
    written = {b.target for b in r.rebinds if isinstance(b.target, int)}
    of = range(r.arguments, r.arguments + len(r.captured))
    return {
        v.node
        for k, v in r.placeholders.items()
        if k in of and k not in written and r.specs[k].device is device
    }


def kept_values(r: Recording, device: Device, nodes: Sequence[Node], dynamic: bool) -> Kept:
    """The values of nodes that depend on what stays."""
    number = {v.node: k for k, v in r.placeholders.items()}
    parts: list[Part] = []
    for n in nodes:
        plan, sig = plans.plan([n], device, {}, dynamic)
        tensors = [(i, number[leaf]) for i, leaf in enumerate(sig.leaves) if leaf in number]
        parts.append(Part(plan, sig.key, tuple(fixed_memory(sig, device)), tuple(tensors)))
    return Kept(parts)
