"""A plan's steps, followed in order: each reads what it is meant to, and nothing else lies there by then.

launch f on slots 0, 3      writes slot 3, at bytes 0 to 256 of the workspace
launch g on slots 1, 4      writes slot 4, at bytes 0 to 512: what was in slot 3 is gone
launch h on slots 3, 2      refused: it reads slot 3
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from weft.backends.protocol import Commands, CopyBytes, Launch
from weft.ir.errors import IRError
from weft.ir.graph import Node, elements
from weft.ir.index import high
from weft.ir.kernel.algorithm import Algorithm
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class What:
    """A tensor: a node of the graph `of`, or a place of the loop `of` (all its carries are one: they take turns). What
    is of one graph may be the same as what is of another."""

    of: int
    name: object


@dataclass(frozen=True, slots=True)
class Access:
    """The access of a step to one slot: its first `nbytes` bytes are read, written, or both. `what` is there
    before (read) or after (written), None where that is not known."""

    slot: int
    nbytes: int
    written: bool
    updated: bool = False
    what: What | None = None


@dataclass(frozen=True, slots=True)
class StepAccesses:
    """The accesses of one step, and the (written, read) pairs of them that may be the same memory."""

    accesses: tuple[Access, ...]
    shared: frozenset[tuple[int, int]] = frozenset()


def launch_trace(
    algorithm: Algorithm,
    slots: Sequence[int],
    updated: Collection[int],
    shared: frozenset[tuple[int, int]],
    whats: Sequence[What | None],
) -> StepAccesses:
    """The trace of a launch; `updated` are the numbers of parameters that start as something."""
    accesses: list[Access] = []
    for k, (p, slot) in enumerate(zip(algorithm.params, slots, strict=True)):
        nbytes = high(elements(p.shape)) * p.dtype.itemsize
        accesses.append(Access(slot, nbytes, p.written, k in updated, whats[k]))
    return StepAccesses(tuple(accesses), shared)


@dataclass(frozen=True, slots=True)
class _Held:
    """The contents of some bytes of a memory: the slot that they were written as."""

    end: int
    slot: int
    what: What | None


def verify_plan(
    commands: Commands, traces: Sequence[StepAccesses], leaves: Sequence[Node], replaces: Mapping[int, int]
) -> None:
    """IRError for a step that reads what is not there (any more), writes what it has yet to read, or leaves
    the workspace. `replaces`: the slots of outputs -> those of the leaves whose memory they take."""
    held: dict[int, dict[int, _Held]] = {}  # memory -> where something begins -> what it is
    for k, node in enumerate(leaves):
        held[k] = {0: _Held(high(elements(node.shape)) * node.dtype.itemsize, k, What(0, node))}

    def where(slot: int) -> tuple[int, int]:
        """The memory (-1: the workspace) and the offset there."""
        if slot < commands.externals:
            return replaces.get(slot, slot), 0
        return -1, commands.offsets[slot - commands.externals]

    for n, (step, trace) in enumerate(zip(commands.steps, traces, strict=True)):
        _slots_agree(n, step, trace)
        places = [where(a.slot) for a in trace.accesses]
        for k, a in enumerate(trace.accesses):
            memory, at = places[k]
            if memory < 0 and not (at >= 0 and at + a.nbytes <= commands.workspace_bytes):
                raise IRError(f"step {n} uses slot {a.slot}, which ends outside of the workspace", "plan")
            found = held.get(memory, {}).get(at)
            if a.nbytes and (not a.written or a.updated):
                same = (
                    found is not None and found.end >= at + a.nbytes and (a.updated or found.slot == a.slot)
                )
                if found is None or not same or (not a.written and _others(a.what, found.what)):
                    raise IRError(f"step {n} reads slot {a.slot}, where its value is not (any more)", "plan")
            if not a.written:
                continue
            for j, b in enumerate(trace.accesses):
                other, start = places[j]
                apart = memory != other or at + a.nbytes <= start or start + b.nbytes <= at
                if j != k and not apart and (k, j) not in trace.shared:
                    raise IRError(
                        f"step {n} writes slot {a.slot} over slot {b.slot} of the same step", "plan"
                    )
        for a, (memory, at) in zip(trace.accesses, places, strict=True):
            if a.written and a.nbytes:
                _written(held.setdefault(memory, {}), at, _Held(at + a.nbytes, a.slot, a.what))


def _others(a: What | None, b: What | None) -> bool:
    """Known not to be the same."""
    return a is not None and b is not None and a.of == b.of and a.name != b.name


def _slots_agree(n: int, step: Launch | CopyBytes, trace: StepAccesses) -> None:
    slots = step.slots if isinstance(step, Launch) else (step.target, step.source)
    if tuple([a.slot for a in trace.accesses]) != slots:
        raise IRError(f"step {n} is on the slots {slots}, not on those of its tensors", "plan")


def _written(memory: dict[int, _Held], at: int, new: _Held) -> None:
    """Put the new in its place; what lies in its way is gone."""
    over = [start for start, old in memory.items() if start < new.end and at < old.end]
    old = memory.get(at)
    for start in over:
        del memory[start]
    # a slot of fewer bytes at the same place: the rest of what was written as this slot is still there, unless that is
    # known to be another tensor, as one of a loop inside, whose memory is taken by what comes after it
    same = old is not None and old.slot == new.slot and (None in (old.what, new.what) or old.what == new.what)
    end = old.end if old is not None and same else new.end
    memory[at] = _Held(max(end, new.end), new.slot, new.what)
