"""Simulated devices: memory and queues of their own, a clock that runs as their description says, faults on demand.

    farm = DummyBackend([describe(k, name="farm", flops=1e12 * (k + 1)) for k in range(8)], name="farm")
    registry.register(farm)                  # weft.tensor(..., device="farm:7") from here on
    farm.device(0).faults = Faults(allocations=frozenset({2}))

Every use of memory, slots and queues is checked; what a real device would answer with garbage is a ValueError here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft._version import __version__
from weft.backends.boxes import BoxCopy, runs
from weft.backends.dummy.cost import Work, work
from weft.backends.dummy.faults import Faults
from weft.backends.dummy.interpreter import interpret
from weft.backends.dummy.pool import DummyMemory, Pool
from weft.backends.dummy.queues import DummyQueue, Host
from weft.backends.dummy.vectorized import Vectorized
from weft.backends.protocol import Code, Commands, CopyBytes, Device, DeviceInfo, Launch, Memory, Step
from weft.backends.roofline import Limits, described
from weft.errors import DeviceError
from weft.ir.dtypes import to_numpy
from weft.ir.index import evaluate
from weft.ir.loops import Program
from weft.ir.loops_text import show_program
from weft.ir.ops import ELEMENTWISE


def describe(index: int, name: str = "dummy", **changes: Any) -> DeviceInfo:
    """The description of the dummy devices that are there by default, with other fields as given. Wide vectors make
    the interpreter quick."""
    return replace(
        DeviceInfo(
            name=f"{name}:{index}",
            kind=name,
            description="interpreter in NumPy, simulated",
            cores=4,
            vector_bytes=256,
            vector_registers=32,
            l1_bytes=32 << 10,
            l2_bytes=1 << 20,
            l3_bytes=16 << 20,
            memory_bytes=1 << 30,
            local_bytes=64 << 10,
            bandwidth=40e9,
            flops=200e9,
            launch_ns=1000.0,
            native=ELEMENTWISE,
            queues=4,
        ),
        **changes,
    )


class DummyBackend:
    """Simulated devices, as many as descriptions are given. `races`: see DummyDevice."""

    def __init__(
        self, devices: Sequence[DeviceInfo] | None = None, name: str = "dummy", races: bool = False
    ) -> None:
        infos = [describe(k, name) for k in range(4)] if devices is None else list(devices)
        self.name = name
        host = Host()
        self.devices = [DummyDevice(info, races, host) for info in infos]

    def count(self) -> int:
        """The number of simulated devices."""
        return len(self.devices)

    def device(self, index: int) -> DummyDevice:
        """Device number `index`."""
        return self.devices[index]


@dataclass(frozen=True, slots=True, eq=False)
class DummyCode:
    """A program, to be interpreted."""

    program: Program
    quick: Vectorized
    amounts: dict[tuple[int, ...], Work] = field(default_factory=dict[tuple[int, ...], Work])

    @property
    def source(self) -> str:
        """The loops as text."""
        return show_program(self.program)

    def work(self, given: Mapping[str, int]) -> Work:
        """The work of a run with these runtime integers; remembered for the last ones."""
        key = tuple(given.values())
        if key not in self.amounts:
            self.amounts.clear()
            self.amounts[key] = work(self.program, given)
        return self.amounts[key]


@dataclass(slots=True)
class Clock:
    """Simulated time (that of the queue that is furthest), and what was done."""

    ns: float = 0.0
    launches: int = 0
    copied_bytes: int = 0


class DummyDevice:
    """One simulated device: launches are executed at once, and timed by bytes / bandwidth + operations / flops.

    `races`: also refuse programs whose parallel iterations touch what others write (slow). `faults` may be replaced at
    any time.
    """

    def __init__(self, info: DeviceInfo, races: bool = False, host: Host | None = None) -> None:
        self.info, self.races = info, races
        self.clock, self.faults = Clock(), Faults()
        self.pool = Pool(info.name, info.memory_bytes)
        self._host = host or Host()
        self._queues: dict[int, DummyQueue] = {}

    def allocate(self, nbytes: int) -> DummyMemory:
        """Memory filled with garbage. MemoryError where the pool is exhausted, or told to be."""
        if self.faults.allocation_fails():
            raise MemoryError(f"{self.info.name} fails an allocation of {nbytes} bytes, as it was told to")
        if nbytes > self.info.bounds.buffer_bytes:
            raise MemoryError(
                f"{self.info.name} has memories of at most {self.info.bounds.buffer_bytes} bytes"
            )
        return self.pool.allocate(nbytes)

    def free(self, memory: Memory) -> None:
        """Give the bytes back now."""
        self.pool.free(memory)

    def used_bytes(self) -> int:
        """Bytes of the memories that live."""
        return self.pool.used_bytes

    def set_memory_limit(self, nbytes: int | None) -> None:
        """Refuse what would bring the bytes in use above this; None: what the device has."""
        self.pool.limit_bytes = self.info.memory_bytes if nbytes is None else nbytes

    def write(self, memory: Memory, data: memoryview, offset: int = 0, queue: int = 0) -> None:
        """Copy bytes from the host."""
        q = self._started(queue)
        source = np.frombuffer(data.cast("B"), np.uint8)
        self.pool.view(memory, offset, source.size, q, writes=True)[:] = source
        self.spend(q, self.copy_ns(source.size))

    def read(self, memory: Memory, nbytes: int, offset: int = 0, queue: int = 0) -> memoryview:
        """A copy of the bytes, after all work of the queue."""
        q = self._started(queue)
        out = memoryview(self.pool.view(memory, offset, nbytes, q, writes=False).tobytes())
        self.spend(q, self.copy_ns(nbytes))
        q.synchronize()
        return out

    def copy_from(self, memory: Memory, origin: Device, source: Memory, nbytes: int, queue: int = 0) -> bool:
        """Straight from another simulated device, at the speed of the slower link."""
        if not isinstance(origin, DummyDevice):
            return False
        q = self._started(queue)
        if origin is not self:
            for other in origin.queues():
                q.wait(other.record())
        data = origin.pool.view(source, 0, nbytes, q, writes=False)
        self.pool.view(memory, 0, nbytes, q, writes=True)[:] = data.copy()
        self.spend(q, max(self.copy_ns(nbytes), origin.copy_ns(nbytes)))
        return True

    def copy_box(self, memory: Memory, origin: Device, source: Memory, copy: BoxCopy, queue: int = 0) -> bool:
        """Straight from another simulated device, after what the queue waits for and nothing else."""
        if not isinstance(origin, DummyDevice):
            return False
        start, end = copy.source.offset, copy.target.offset
        q = self._started(queue)
        data = origin.pool.view(source, start, copy.source_end - start, q, writes=False)
        room = self.pool.view(memory, end, copy.target_end - end, q, writes=True)
        runs(room, copy.target, copy, end)[...] = runs(data, copy.source, copy, start).copy()
        self.spend(q, max(self.copy_ns(copy.nbytes), origin.copy_ns(copy.nbytes)))
        return True

    def queue(self, number: int = 0) -> DummyQueue:
        """Queue number `number`."""
        if number not in self._queues:
            if not 0 <= number < self.info.queues:
                raise ValueError(
                    f"{self.info.name} has {self.info.queues} queues: there is no queue {number}"
                )
            self._queues[number] = DummyQueue(f"queue {number} of {self.info.name}", self._host)
        return self._queues[number]

    def queues(self) -> list[DummyQueue]:
        """The queues that were asked for."""
        return list(self._queues.values())

    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[DummyCode], bytes]:
        """The programs as they are; there is nothing to store. DeviceError for more buffers than the device binds."""
        most = self.info.bounds.parameters
        for p in programs:
            if len(p.params) > most:
                raise DeviceError(
                    f"{self.info.name} binds {most} buffers at most; {p.name} has {len(p.params)}"
                )
        return [DummyCode(p, Vectorized(p)) for p in programs], b""

    def load(self, image: bytes, names: Sequence[str]) -> Sequence[DummyCode]:
        """ValueError: dummy devices make no images."""
        raise ValueError(f"no image of {', '.join(names)} is this device's")

    def fingerprint(self) -> str:
        """The interpreter's version."""
        return f"dummy {__version__}"

    def listings(self, program: Program) -> Mapping[str, str]:
        """Nothing is made of a program but its loops."""
        return {}

    def limits(self) -> Limits:
        """The limits that the clock goes by."""
        return described(self.info)

    def link(self, codes: Sequence[Code], commands: Commands) -> DummyExecutable:
        """The commands, to be interpreted. ValueError where they name what is not there."""
        return DummyExecutable(self, [_own(c) for c in codes], commands)

    def synchronize(self) -> None:
        """The host has waited for all queues."""
        for q in self.queues():
            q.synchronize()

    def copy_ns(self, nbytes: int) -> float:
        """The time of a copy between the host and this device."""
        return self.info.launch_ns + 1e9 * nbytes / self.info.link_bandwidth * self.faults.slowdown()

    def spend(self, queue: DummyQueue, ns: float) -> None:
        """Let time pass on a queue."""
        queue.ns += ns
        self.clock.ns = max(self.clock.ns, queue.ns)

    def _started(self, queue: int) -> DummyQueue:
        q = self.queue(queue)
        q.start()
        return q


@dataclass(frozen=True, slots=True)
class _Slot:
    """The beginning of a slot's bytes."""

    memory: DummyMemory
    offset: int


class DummyExecutable:
    """Commands on one device. What a run that fails has written over is as it was."""

    def __init__(self, device: DummyDevice, codes: Sequence[DummyCode], commands: Commands) -> None:
        self.device, self.commands, self.codes = device, commands, list(codes)
        self.finished = 0
        for step in commands.steps:
            self._validate(step)

    def _validate(self, step: Step) -> None:
        """ValueError when a step names a program, slot or variable that is not there."""
        c = self.commands
        slots = c.externals + len(c.offsets)

        def inside(what: str, numbers: Sequence[int], count: int) -> None:
            for k in numbers:
                if not 0 <= k < count:
                    raise ValueError(f"{step} names {what} {k} of {count}")

        match step:
            case CopyBytes(target, source, _):
                inside("slot", (target, source), slots)
            case Launch():
                inside("program", (step.program,), len(self.codes))
                p = self.codes[step.program].program
                inside("slot", step.slots, slots)
                inside("variable", step.variables, c.variables)
                if len(step.slots) != len(p.params) or len(step.variables) != len(p.variables):
                    raise ValueError(
                        f"{step}: {p.name} takes {len(p.params)} memories and {len(p.variables)} variables"
                    )

    @property
    def started(self) -> int:
        """As many as finished: a run that does not finish leaves nothing."""
        return self.finished

    def run(self, memories: Sequence[Memory], variables: Sequence[int] = (), queue: int = 0) -> None:
        """Execute the steps in order."""
        self._run(memories, variables, self.device.queue(queue))

    def run_timed(self, memories: Sequence[Memory], variables: Sequence[int] = ()) -> list[int]:
        """Execute the steps in order; the simulated nanoseconds of each."""
        times = self._run(memories, variables, self.device.queue())
        self.device.synchronize()
        return times

    def _run(self, memories: Sequence[Memory], variables: Sequence[int], queue: DummyQueue) -> list[int]:
        commands, pool = self.commands, self.device.pool
        if len(memories) != commands.externals or len(variables) != commands.variables:
            raise ValueError(
                f"the plan takes {commands.externals} memories and {commands.variables} variables, "
                f"not {len(memories)} and {len(variables)}"
            )
        slots = [_Slot(pool.live(m), 0) for m in memories]
        if commands.offsets:
            workspace = self.device.allocate(commands.workspace_bytes)
            slots += [_Slot(workspace, offset) for offset in commands.offsets]
        before, finished = _written_over(memories), self.finished
        times: list[int] = []
        try:
            for step in commands.steps:
                queue.start()
                ns = self._step(step, slots, variables, queue)
                self.device.spend(queue, ns)
                times.append(round(ns))
            self.finished += 1
        except BaseException:
            if self.finished == finished:
                for m, data in before:
                    m.data[:] = data
            raise
        return times

    def _step(self, step: Step, slots: Sequence[_Slot], variables: Sequence[int], queue: DummyQueue) -> float:
        device, info, clock = self.device, self.device.info, self.device.clock
        match step:
            case CopyBytes(target, source, nbytes):
                data = _bytes(slots[source], nbytes, queue, writes=False).copy()
                _bytes(slots[target], nbytes, queue, writes=True)[:] = data
                clock.copied_bytes += nbytes
                return info.launch_ns + 2e9 * nbytes / info.bandwidth * device.faults.slowdown()
            case Launch():
                code = self.codes[step.program]
                program = code.program
                if device.faults.launch_fails():
                    raise DeviceError(f"{info.name}: the launch of {program.name} failed, as it was told to")
                given = {v.name: variables[k] for v, k in zip(program.variables, step.variables, strict=True)}
                buffers = _views(program, [slots[k] for k in step.slots], given, queue)
                if device.races:
                    interpret(program, buffers, given, races=True)
                else:
                    code.quick.run(buffers, given)
                clock.launches += 1
                done = code.work(given)
                return info.launch_ns + 1e9 * (done.nbytes / info.bandwidth + done.operations / info.flops)


def _written_over(memories: Sequence[Memory]) -> list[tuple[DummyMemory, np.ndarray[Any, Any]]]:
    """The memories that are given more than once, which are updated in place, and their bytes."""
    seen: set[int] = set()
    twice: list[DummyMemory] = []
    for m in memories:
        if id(m) in seen and isinstance(m, DummyMemory):
            twice.append(m)
        seen.add(id(m))
    return [(m, m.data.copy()) for m in twice]


def _bytes(slot: _Slot, nbytes: int, queue: DummyQueue, writes: bool) -> np.ndarray[Any, Any]:
    return slot.memory.pool.view(slot.memory, slot.offset, nbytes, queue, writes)


def _views(
    program: Program, slots: Sequence[_Slot], variables: Mapping[str, int], queue: DummyQueue
) -> dict[str, np.ndarray[Any, Any]]:
    """The parameters as typed arrays over the bytes of their memories."""
    out: dict[str, np.ndarray[Any, Any]] = {}
    for b, slot in zip(program.params, slots, strict=True):
        nbytes = int(evaluate(b.size, variables)) * b.dtype.itemsize
        out[b.name] = _bytes(slot, nbytes, queue, b.name in program.writes).view(to_numpy(b.dtype))
    return out


def _own(code: Code) -> DummyCode:
    if not isinstance(code, DummyCode):
        raise ValueError(f"{type(code).__name__} is not code of a dummy device")
    return code
