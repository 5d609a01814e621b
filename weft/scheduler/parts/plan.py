"""Running a plan of parts: memory for all slots, then the steps as they are ordered. Nothing is looked up.

Where a step fails, nothing stands for its results, nor for those of others: all queues are waited for, and the error
names the device and the step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import TypeAlias, cast

import numpy as np

from weft.backends.boxes import copy_box
from weft.backends.protocol import Borrower, BoxCopier, Device, Event, Foretold, Memory, device_class
from weft.backends.storage import Storage, unsupported
from weft.backends.synchronous import SynchronousQueue
from weft.errors import DeviceError, MemoryPlanError
from weft.ir.dtypes import DType
from weft.ir.garbage import not_collected
from weft.ir.graph import Shape
from weft.ir.index import Int, evaluate
from weft.lazy_dataclass import dataclass
from weft.scheduler.parts.cut import Compute, Cut, Exchange
from weft.scheduler.parts.order import Ordered, Step, Way, bytes_of, copy_queue, start_of
from weft.scheduler.plan import Plan
from weft.scheduler.signature import Key, Signature, signature

MANY_STEPS = 64
"""Steps from which on a run makes enough objects for Python to look for garbage among all there are, plans included."""

PlanFor: TypeAlias = Callable[[Signature, Device, bool], tuple[Plan, bool]]
"""The plan of a part, and whether it is the last: `dynamic` says whether it may be one for all sizes."""

Times: TypeAlias = dict[str, list[float]]
"""The nanoseconds that the parts of each device took, and those that were predicted for them."""

_times: ContextVar[Times | None] = ContextVar("weft.parts.times", default=None)


@contextlib.contextmanager
def timed(times: Times) -> Generator[None]:
    """Have the plans that are run in the block, by this thread or task, wait for each of their parts, and add up their
    times in `times`."""
    before = _times.set(times)
    try:
        yield
    finally:
        _times.reset(before)


_LENT = cast("Memory", None)
"""In place of memory that is lent when its exchange comes."""


@dataclass(slots=True)
class _Part:
    """A part with its plan, which another one may take over from. `reads`: the values that are its leaves, in order."""

    step: Step
    device: Device
    sig: Signature
    reads: tuple[int, ...]
    plan: Plan
    settled: bool

    def start(self, plan: Plan, memories: Sequence[Memory], env: Mapping[str, int]) -> None:
        times = _times.get()
        own = [memories[v] for v in self.reads]
        if plan.feed is not None:
            own = [own[m] if isinstance(m, int) else m for m in plan.feed]
        work = self.step.work
        own += [memories[v] for v in work.results]
        values = (*[env[v.name] for v in self.sig.variables], *plan.constants)
        if times is None or not isinstance(work, Compute):
            plan.execute(own, values)
            return
        of = times.setdefault(self.device.info.name, [0.0, 0.0])
        of[0] += sum(plan.executable.run_timed(own, values))
        of[1] += work.ns


@dataclass(slots=True)
class _Move:
    """An exchange, with the devices at both ends. `queue`: where the source may be read once the host has waited.
    `copier`: the target, where it copies boxes itself."""

    step: Step
    device: Device
    origin: Device
    queue: int
    copier: BoxCopier | None


class EqualParts:
    """The plans of one plan's parts: one is built for equal parts of devices of one class, and bound to each device."""

    def __init__(self, find: PlanFor) -> None:
        self.find = find
        self._built: dict[Hashable, Plan] = {}
        self._bound: dict[tuple[Device, Hashable], Plan] = {}

    def plan_for(self, sig: Signature, device: Device) -> tuple[Plan, bool]:
        """The plan of a part, and whether no other one will take over from it."""
        *rows, outputs = sig.key.rows
        # of leaves the device, which is all that equal parts differ in
        kept = [(*row[:2], row[2] is None) if row[0].__class__ is DType else row for row in rows]
        key = device_class(device), Key((*kept, outputs), sig.key.pinned)
        bound = self._bound.get((device, key))
        if bound is not None:
            return bound, True
        built = self._built.get(key)
        if built is not None:
            plan = self._bound[device, key] = built.on(device)
            return plan, True
        plan, settled = self.find(sig, device, True)
        if settled and plan.shared is None:
            self._built[key] = self._bound[device, key] = plan
        return plan, settled


@dataclass(frozen=True, slots=True)
class Planned:
    """A part's plan: its signature, the values that are its leaves, in order, and whether no other plan takes over."""

    sig: Signature
    reads: tuple[int, ...]
    plan: Plan
    settled: bool

    def ns(self) -> float | None:
        """The time of a run, where the device states it."""
        executable = self.plan.executable
        if self.sig.variables or self.plan.shared is not None or not isinstance(executable, Foretold):
            return None
        return executable.run_ns(self.plan.constants)


class PlannedParts:
    """The plans of one graph's parts."""

    def __init__(self, find: PlanFor) -> None:
        self.equal = EqualParts(find)
        self._planned: dict[int, Planned] = {}

    def planned(self, part: Compute, device: Device) -> Planned:
        """The plan of a part; parts are told apart by their first result."""
        first = part.results[0]
        if first not in self._planned:
            sig = signature(part.nodes)
            reads = tuple([part.inputs[n] for n in sig.leaves])
            self._planned[first] = Planned(sig, reads, *self.equal.plan_for(sig, device))
        return self._planned[first]

    def timed(self, cut: Cut, devices: Mapping[str, Device]) -> Cut:
        """The cut with the times that devices state."""
        steps: list[Compute | Exchange] = []
        for s in cut.steps:
            ns = self.planned(s, devices[s.device]).ns() if isinstance(s, Compute) else None
            steps.append(s if ns is None or isinstance(s, Exchange) else replace(s, ns=ns))
        return replace(cut, steps=tuple(steps))


@dataclass(slots=True)
class PartsPlan:
    """A plan of parts for one structure of graphs. Several threads may run it at once."""

    order: Ordered
    devices: Mapping[str, Device]
    steps: list[_Part | _Move]
    variables: tuple[str, ...]
    plan_for: PlanFor

    @classmethod
    def of(cls, order: Ordered, devices: Mapping[str, Device], parts: PlannedParts) -> PartsPlan:
        """The plan, with those of all parts."""
        steps: list[_Part | _Move] = []
        names: set[str] = set()
        values = order.cut.values
        for s in order.steps:
            device = devices[s.lane.device]
            if isinstance(s.work, Exchange):
                origin = devices[values[s.work.source].device]
                if values[s.work.target].dtype not in device.info.dtypes:
                    raise unsupported(device.info, values[s.work.target].dtype)
                copier = device if isinstance(device, BoxCopier) else None
                steps.append(_Move(s, device, origin, copy_queue(origin), copier))
                continue
            p = parts.planned(s.work, device)
            names.update(v.name for v in p.sig.variables)
            steps.append(_Part(s, device, p.sig, p.reads, p.plan, p.settled))
        return cls(order, devices, steps, tuple(sorted(names)), parts.equal.find)

    @property
    def starts_only(self) -> bool:
        """True where a run starts its steps and waits for none."""
        waits = any(s.step.host_waits for s in self.steps) or any(name is None for name, _ in self.order.ends)
        return not waits and not any(isinstance(d.queue(0), SynchronousQueue) for d in self.devices.values())

    def run(self, inputs: Sequence[Memory], env: Mapping[str, int]) -> list[Storage]:
        """The results for these memories of the leaves, and values of runtime variables."""
        with (
            not_collected()
            if len(self.steps) >= MANY_STEPS and self.starts_only
            else contextlib.nullcontext()
        ):
            return self._run(inputs, env)

    def _run(self, inputs: Sequence[Memory], env: Mapping[str, int]) -> list[Storage]:
        order = self.order
        memories = self._memories(inputs, env)
        events: dict[int, Event] = {}
        number = 0
        try:
            for k, name in enumerate(order.devices):
                if name in order.starts:
                    events[start_of(k)] = self.devices[name].queue(0).record()
            for number, step in enumerate(self.steps):
                s = step.step
                for n in s.host_waits:
                    events[n].wait()
                queue = step.device.queue(s.lane.queue) if s.waits or s.records else None
                if queue is not None:
                    for n in s.waits:
                        queue.wait(events[n])
                if isinstance(step, _Part):
                    self._compute(step, memories, env)
                else:
                    self._move(step, memories, env)
                if queue is not None and s.records:
                    events[number] = queue.record()
            for name, n in order.ends:
                if name is None:
                    events[n].wait()
                else:
                    self.devices[name].queue(0).wait(events[n])
        except BaseException as error:
            self._wait_for_all()
            if isinstance(error, DeviceError):
                raise DeviceError(f"{self.describe(number)}: {error.message}") from error
            raise
        return [self._storage(v, memories, env) for v in order.cut.outputs]

    def peak(self, device: str) -> int:
        """The bytes of a device's memory that a run takes beside its leaves, where they are known: those of the values,
        and of the largest workspace."""
        own = [s.plan for s in self.steps if isinstance(s, _Part) and s.device.info.name == device]
        return self.order.peak(device) + max([p.commands.workspace_bytes for p in own], default=0)

    def describe(self, number: int) -> str:
        """A step in words, for errors and explanations."""
        step = self.steps[number]
        lane, work = step.step.lane, step.step.work
        what = f"step {number + 1} of {len(self.steps)} on {lane.device}"
        if isinstance(work, Compute):
            kernels = ", ".join(dict.fromkeys(k.name for k in cast("_Part", step).plan.steps))
            return f"{what} ({kernels})"
        return f"{what} (a copy from {self.order.cut.values[work.source].device})"

    def _memories(self, inputs: Sequence[Memory], env: Mapping[str, int]) -> list[Memory]:
        """The memory of each value. What is lent has the source's until it is."""
        order, cut = self.order, self.order.cut
        rooms: list[Memory | None] = [None] * len(order.slots)
        memories: list[Memory] = list(inputs)
        for v in range(len(inputs), len(cut.values)):
            slot = order.slot[v]
            if slot is None:
                memories.append(_LENT)
                continue
            room = rooms[slot]
            if room is None:
                nbytes, name = order.slots[slot].nbytes, order.slots[slot].device
                if nbytes is None:
                    nbytes = _nbytes(cut.values[v].shape, env) * cut.values[v].dtype.itemsize
                try:
                    room = rooms[slot] = self.devices[name].allocate(nbytes)
                except MemoryError as error:
                    raise MemoryPlanError(self._refusal(name, error)) from error
            memories.append(room)
        return memories

    def _refusal(self, name: str, error: MemoryError) -> str:
        values = self.order.cut.values
        own = sorted([s.nbytes or 0 for s in self.order.slots if s.device == name], reverse=True)[:3]
        outputs = sum(1 for v in values if v.device == name and v.output)
        rows = ", ".join(f"{n:,}" for n in own)
        return (
            f"computing this takes {self.order.peak(name):,} bytes on {name}, for {outputs} results and what lies "
            f"between its parts: {error}. Largest: {rows} bytes. Use smaller batches, or more devices, or raise the "
            "limit"
        )

    def _compute(self, part: _Part, memories: Sequence[Memory], env: Mapping[str, int]) -> None:
        plan = part.plan
        if not part.settled:
            plan, settled = self.plan_for(part.sig, part.device, True)
            part.plan, part.settled = plan, settled
        try:
            try:
                part.start(plan, memories, env)
            except MemoryError:
                if plan.shared is None:
                    raise
                part.plan, part.settled = plan, _ = self.plan_for(part.sig, part.device, False)
                part.start(plan, memories, env)  # which needs no room for larger sizes
        except MemoryError as error:
            refused = MemoryPlanError(self._refusal(part.device.info.name, error))
            refused.__cause__ = error
            self._within(part, memories, env, refused)

    def _within(
        self, part: _Part, memories: Sequence[Memory], env: Mapping[str, int], refused: MemoryPlanError
    ) -> None:
        """Run a part whose plan was `refused` by one for the memory that is left. Its results have theirs already."""
        # Here, since most plans fit, and those found on disk need no compiler.
        from weft.scheduler.pools.within import NO_STATE, Fitted, attempted

        def start(found: Fitted) -> None:
            try:
                part.start(found.plan, memories, env)
            except MemoryError as error:
                raise MemoryPlanError(self._refusal(part.device.info.name, error)) from error

        attempted(part.sig, part.device, (), refused, start, lambda: (part.plan.result_bytes(), NO_STATE))

    def _move(self, move: _Move, memories: list[Memory], env: Mapping[str, int]) -> None:
        s, device, origin = move.step, move.device, move.origin
        x = s.work
        assert isinstance(x, Exchange)
        copy = s.copy or bytes_of(self.order.cut, x, partial(_value, env=env))
        source = memories[x.source]
        if s.way is Way.LENT:
            data = origin.read(source, copy.run_bytes, copy.source.offset, move.queue)
            assert isinstance(device, Borrower)
            memories[x.target] = device.borrow(np.frombuffer(data, np.uint8))
            return
        if not copy.nbytes:
            return
        target, queue = memories[x.target], s.lane.queue
        if s.way is Way.COPIED and move.copier is not None:
            if move.copier.copy_box(target, origin, source, copy, queue):
                return
            origin.synchronize()  # it was thought to know a way
        copy_box(device, target, origin, source, copy, queue, move.queue)

    def _wait_for_all(self) -> None:
        """Wait for what was started: it uses memory that is about to go."""
        for device in self.devices.values():
            with contextlib.suppress(DeviceError):
                device.synchronize()

    def _storage(self, v: int, memories: Sequence[Memory], env: Mapping[str, int]) -> Storage:
        value = self.order.cut.values[v]
        shape = tuple([_value(n, env) for n in value.shape])
        return Storage(self.devices[value.device], memories[v], value.dtype, shape)


def _value(n: Int, env: Mapping[str, int]) -> int:
    return n if isinstance(n, int) else int(evaluate(n, env))


def _nbytes(shape: Shape, env: Mapping[str, int]) -> int:
    n = 1
    for s in shape:
        n *= _value(s, env)
    return n
