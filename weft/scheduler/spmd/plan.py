"""Running a plan that all devices of a mesh share: each step on one device after the other, with its coordinates.

Plans of parts are built once, and once for equal ones; bound to a device, and what a move copies to it derived, when it
first runs there. Where a step fails, nothing stands for its results: all queues are waited for, and the error names the
device and the step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from weft.backends.boxes import BoxCopy, copy_box
from weft.backends.protocol import Alike, BoxCopier, Device, Event, Memory, device_class
from weft.backends.registry import open_device
from weft.backends.storage import Storage
from weft.backends.synchronous import SynchronousQueue
from weft.errors import DeviceError, MemoryPlanError
from weft.ir.garbage import not_collected
from weft.ir.graph import Node
from weft.ir.index import high
from weft.ir.placement import Mesh
from weft.lazy_dataclass import dataclass
from weft.scheduler.growing import foretold
from weft.scheduler.parts.cut import Compute, Exchange, cut
from weft.scheduler.parts.moves import Moved, Pieces, bindings, group
from weft.scheduler.parts.order import copy_queue
from weft.scheduler.parts.plan import MANY_STEPS, EqualParts, PlanFor
from weft.scheduler.parts.proof import prove
from weft.scheduler.plan import Plan
from weft.scheduler.signature import Signature, signature
from weft.scheduler.spmd.order import START, AlikeOrder, AlikeStep, Wait, ordered_alike

Copies: TypeAlias = list[tuple[int, BoxCopy]]
"""The copies of a device: from which, and which bytes."""


def can_share(devices: Sequence[Device]) -> bool:
    """True where one plan serves all devices: code of one serves the others, and they copy boxes themselves."""
    first = devices[0]
    if not isinstance(first, Alike) or isinstance(first.queue(0), SynchronousQueue):
        return False
    return all(isinstance(d, BoxCopier) and device_class(d) == device_class(first) for d in devices)


@dataclass(slots=True)
class _Part:
    """A part: the values that are its leaves, in order, and its plan on each device that ran it."""

    work: Compute
    sig: Signature
    reads: tuple[int, ...]


@dataclass(slots=True)
class AlikePlan:
    """A plan for graphs of one structure on a mesh whose devices are alike. Several threads may run it at once."""

    mesh: Mesh
    order: AlikeOrder
    devices: list[Device]
    parts: list[_Part | None]
    equal: EqualParts
    moves_on: int
    pieces: dict[Moved, Pieces] = field(default_factory=dict[Moved, Pieces])
    copies: dict[tuple[int, int], Copies] = field(default_factory=dict[tuple[int, int], "Copies"])
    env: list[dict[str, int]] = field(default_factory=list[dict[str, int]])

    @classmethod
    def of(
        cls,
        mesh: Mesh,
        outputs: Sequence[Node],
        leaves: Sequence[Node],
        devices: list[Device],
        plan_for: PlanFor,
        verify: bool,
    ) -> AlikePlan:
        """The plan for the graph of any device, with the plans of its parts built or found."""
        home = mesh.devices[0]
        found = cut(outputs, leaves, lambda _: devices[0].info, home)
        if verify:
            prove(found, outputs, leaves)
        moves_on = copy_queue(devices[0])
        order = ordered_alike(found, moves_on)
        equal = EqualParts(plan_for)
        parts: list[_Part | None] = []
        for s in order.steps:
            if isinstance(s.work, Exchange):
                parts.append(None)
                continue
            sig = signature(s.work.nodes)
            part = _Part(s.work, sig, tuple([s.work.inputs[n] for n in sig.leaves]))
            equal.plan_for(sig, devices[0])
            parts.append(part)
        places = [bindings(mesh.shape, k) for k in range(len(devices))]
        return cls(mesh, order, devices, parts, equal, moves_on, env=places)

    @property
    def peak(self) -> int:
        """The bytes of each device's memory that a run takes beside its leaves: the values, and the largest
        workspace."""
        plans = [self.equal.plan_for(p.sig, self.devices[0])[0] for p in self.parts if p is not None]
        return self.order.peak + max([p.commands.workspace_bytes for p in plans], default=0)

    def part_ns(self, number: int) -> float:
        """The time of a step that computes: as the first device states it, else about."""
        part = self.parts[number]
        assert part is not None
        plan, device = self.equal.plan_for(part.sig, self.devices[0])[0], self.devices[0]
        told = foretold(plan.executable)
        if told is not None:
            values = [self.env[0][v.name] for v in part.sig.variables]
            return told.run_ns((*values, *plan.constants))
        return part.work.ns + device.info.launch_ns * len(plan.steps)

    def run(self, inputs: Sequence[Sequence[Memory]]) -> list[list[Storage]]:
        """The results on each device, for the memories of the leaves on each."""
        many = (
            len(self.order.steps) * len(self.devices) >= MANY_STEPS
        )  # which are started, and none waited for
        with not_collected() if many else contextlib.nullcontext():
            return self._run(inputs)

    def _run(self, inputs: Sequence[Sequence[Memory]]) -> list[list[Storage]]:
        order = self.order
        for s in order.steps:
            if isinstance(s.work, Exchange) and s.work.move is not None and s.work.move.origin is not None:
                open_device(s.work.move.origin).synchronize()
        memories = [self._memories(k, inputs[k]) for k in range(len(self.devices))]
        events: dict[int, list[Event]] = {}
        number = at = 0
        try:
            if order.starts:
                events[START] = [d.queue(0).record() for d in self.devices]
            for number, s in enumerate(order.steps):
                for at, device in enumerate(self.devices):
                    self._wait(device, s.queue, at, s.waits, events)
                    self._step(number, s, at, memories)
                if s.records:
                    events[number] = [d.queue(s.queue).record() for d in self.devices]
            for at, device in enumerate(self.devices):
                self._wait(device, 0, at, order.ends, events)
        except BaseException as error:
            self._wait_for_all()
            if isinstance(error, DeviceError):
                raise DeviceError(f"{self.describe(number, at)}: {error.message}") from error
            raise
        values = order.cut.values
        return [
            [
                Storage(d, own[v], values[v].dtype, tuple([high(n) for n in values[v].shape]))
                for v in order.cut.outputs
            ]
            for d, own in zip(self.devices, memories, strict=True)
        ]

    def describe(self, number: int, at: int) -> str:
        """A step in words, for errors."""
        work = self.order.steps[number].work
        what = f"step {number + 1} of {len(self.order.steps)} on {self.mesh.devices[at]}"
        if isinstance(work, Exchange):
            assert work.move is not None
            return f"{what} ({work.move.pattern})"
        part = self.parts[number]
        assert part is not None
        plan, _ = self.equal.plan_for(part.sig, self.devices[at])
        return f"{what} ({', '.join(dict.fromkeys(k.name for k in plan.steps))})"

    def copies_of(self, number: int, at: int) -> Copies:
        """The copies of device number `at` in a step that is a move."""
        key = number, at
        if key not in self.copies:
            work = self.order.steps[number].work
            assert isinstance(work, Exchange) and work.move is not None
            if work.move not in self.pieces:
                self.pieces[work.move] = Pieces(work.move)
            item = self.order.cut.values[work.source].dtype.itemsize
            self.copies[key] = [(p.source, p.copy(item)) for p in self.pieces[work.move].of(at)]
        return self.copies[key]

    def _wait(
        self, device: Device, queue: int, at: int, waits: Sequence[Wait], events: Mapping[int, list[Event]]
    ) -> None:
        for w in waits:
            for k in group(self.mesh.shape, tuple(w.axes), at) if w.axes else (at,):
                device.queue(queue).wait(events[w.step][k])

    def _step(self, number: int, s: AlikeStep, at: int, memories: Sequence[Sequence[Memory]]) -> None:
        part = self.parts[number]
        if part is not None:
            self._compute(part, at, memories[at])
            return
        x, device = s.work, self.devices[at]
        assert isinstance(x, Exchange) and isinstance(device, BoxCopier)
        for k, copy in self.copies_of(number, at):
            if not copy.nbytes:
                continue
            origin = (
                self.devices[k] if x.move is None or x.move.origin is None else open_device(x.move.origin)
            )
            source, target = memories[k][x.source], memories[at][x.target]
            if not device.copy_box(target, origin, source, copy, s.queue):
                origin.synchronize()  # it was thought to know a way
                copy_box(device, target, origin, source, copy, s.queue)

    def _compute(self, part: _Part, at: int, memories: Sequence[Memory]) -> None:
        """Run a part on a device; by a plan for the memory that is left, where there is not enough for its own."""
        device = self.devices[at]
        plan, _ = self.equal.plan_for(part.sig, device)
        try:
            self._start(part, plan, at, memories)
        except MemoryError as error:
            refused = MemoryPlanError(self._refusal(at, error))
            refused.__cause__ = error
            self._within(part, plan, at, memories, refused)

    def _start(self, part: _Part, plan: Plan, at: int, memories: Sequence[Memory]) -> None:
        own = [memories[v] for v in part.reads]
        if plan.feed is not None:
            own = [own[m] if isinstance(m, int) else m for m in plan.feed]
        own += [memories[v] for v in part.work.results]
        values = [self.env[at][v.name] for v in part.sig.variables]
        plan.executable.run(own, (*values, *plan.constants))

    def _within(
        self, part: _Part, plan: Plan, at: int, memories: Sequence[Memory], refused: MemoryPlanError
    ) -> None:
        # Here, since most plans fit, and those found on disk need no compiler.
        from weft.scheduler.pools.within import NO_STATE, Fitted, attempted

        def start(found: Fitted) -> None:
            try:
                self._start(part, found.plan, at, memories)
            except MemoryError as error:
                raise MemoryPlanError(self._refusal(at, error)) from error

        attempted(part.sig, self.devices[at], (), refused, start, lambda: (plan.result_bytes(), NO_STATE))

    def _memories(self, at: int, inputs: Sequence[Memory]) -> list[Memory]:
        """The memory of each value on a device."""
        order, device = self.order, self.devices[at]
        try:
            rooms = [device.allocate(n) for n in order.slots]
        except MemoryError as error:
            raise MemoryPlanError(self._refusal(at, error)) from error
        slots = order.slot[len(inputs) :]
        return [*inputs, *[rooms[slot] for slot in slots if slot is not None]]

    def _refusal(self, at: int, error: MemoryError) -> str:
        order = self.order
        rows = ", ".join(f"{n:,}" for n in sorted(order.slots, reverse=True)[:3])
        return (
            f"computing this takes {order.peak:,} bytes on {self.mesh.devices[at]}, for {len(set(order.cut.outputs))} "
            f"results and what lies between its parts: {error}. Largest: {rows} bytes. Use smaller batches, or more "
            "devices, or raise the limit"
        )

    def _wait_for_all(self) -> None:
        """Wait for what was started: it uses memory that is about to go."""
        for device in self.devices:
            with contextlib.suppress(DeviceError):
                device.synchronize()
