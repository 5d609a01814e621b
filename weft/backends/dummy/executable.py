"""Programs and plans of simulated devices: checked when they are linked, interpreted and timed when they run."""
# Tests: tests/backends/dummy/test_device.py, tests/backends/dummy/test_simulator.py, tests/backends/dummy/test_farm.py

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.backends.dummy.cost import Work, work
from weft.backends.dummy.interpreter import interpret
from weft.backends.dummy.pool import DummyMemory
from weft.backends.dummy.queues import DummyEvent, DummyQueue
from weft.backends.dummy.vectorized import Vectorized
from weft.backends.protocol import Commands, CopyBytes, DeviceInfo, Launch, Memory, Step
from weft.errors import DeviceError
from weft.ir.dtypes import to_numpy
from weft.ir.index import evaluate
from weft.ir.loops import Program
from weft.ir.loops_text import show_program
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.backends.dummy.device import DummyDevice


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of a run with certain runtime integers: bytes of each parameter, whether it is written, the work."""

    nbytes: tuple[int, ...]
    writes: tuple[bool, ...]
    work: Work


@dataclass(frozen=True, slots=True, eq=False)
class DummyCode:
    """A program, to be interpreted."""

    program: Program
    _needs: dict[tuple[int, ...], Needs] = field(default_factory=dict[tuple[int, ...], Needs])
    _quick: list[Vectorized] = field(default_factory=list[Vectorized])

    @property
    def source(self) -> str:
        """The loops as text."""
        return show_program(self.program)

    @property
    def quick(self) -> Vectorized:
        """The program's quick form, made when it first runs."""
        if not self._quick:
            self._quick.append(Vectorized(self.program))
        return self._quick[0]

    def given(self, values: tuple[int, ...]) -> dict[str, int]:
        """The runtime integers by name."""
        return {v.name: x for v, x in zip(self.program.variables, values, strict=True)}

    def needs(self, values: tuple[int, ...]) -> Needs:
        """The needs of a run with these runtime integers; remembered for the last ones."""
        found = self._needs.get(values)
        if found is None:
            self._needs.clear()
            p, given = self.program, self.given(values)
            sizes = tuple([int(evaluate(b.size, given)) * b.dtype.itemsize for b in p.params])
            found = Needs(sizes, tuple([b.name in p.writes for b in p.params]), work(p, given))
            self._needs[values] = found
        return found


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
        self._written = sorted({k for step in commands.steps for k in self._writes(step)})

    def _writes(self, step: Step) -> list[int]:
        """The external memories that a step writes, by number."""
        if not isinstance(step, Launch):
            slots = [step.target]
        else:
            p = self.codes[step.program].program
            slots = [k for k, b in zip(step.slots, p.params, strict=True) if b.name in p.writes]
        return [k for k in slots if k < self.commands.externals]

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

    def run_ns(self, variables: Sequence[int] = ()) -> float:
        """The simulated nanoseconds of a run that waits for nothing."""
        info, total = self.device.info, 0.0
        for step in self.commands.steps:
            if isinstance(step, Launch):
                values = tuple([variables[k] for k in step.variables])
                total += info.launch_ns + _busy_ns(self.codes[step.program].needs(values), info)
            else:
                total += info.launch_ns + 2e9 * step.nbytes / info.bandwidth
        return total

    def run(self, memories: Sequence[Memory], variables: Sequence[int] = (), queue: int = 0) -> None:
        """Execute the steps in order."""
        self._run(memories, variables, self.device.queue(queue))

    def run_timed(self, memories: Sequence[Memory], variables: Sequence[int] = ()) -> list[int]:
        """Execute the steps in order; the simulated nanoseconds that each takes where nothing is in its way."""
        times = self._run(memories, variables, self.device.queue())
        self.device.synchronize()
        return times

    def _run(self, memories: Sequence[Memory], variables: Sequence[int], queue: DummyQueue) -> list[int]:
        device, commands, pool = self.device, self.commands, self.device.pool
        if len(memories) != commands.externals or len(variables) != commands.variables:
            raise ValueError(
                f"the plan takes {commands.externals} memories and {commands.variables} variables, "
                f"not {len(memories)} and {len(variables)}"
            )
        slots = [_Slot(pool.live(m), 0) for m in memories]
        if commands.offsets:
            workspace = device.allocate(commands.workspace_bytes)
            slots += [_Slot(workspace, offset) for offset in commands.offsets]
        device.host.issue("run")
        before, finished = self._bytes_before(memories), self.finished
        times: list[int] = []
        try:
            for step in commands.steps:
                match step:
                    case Launch():
                        times.append(self._launch(step, slots, variables, queue))
                    case CopyBytes():
                        times.append(self._copy(step, slots, queue))
            self.finished += 1
        except BaseException:
            if self.finished == finished:
                for m, data in before:
                    m.data[:] = data
            raise
        return times

    def _bytes_before(self, memories: Sequence[Memory]) -> list[tuple[DummyMemory, np.ndarray[Any, Any]]]:
        """The memories that a run writes, and their bytes, for one that fails."""
        found = {id(memories[k]): memories[k] for k in self._written} if not self.device.timing_only else {}
        return [(m, m.data.copy()) for m in found.values() if isinstance(m, DummyMemory)]

    def _launch(
        self, step: Launch, slots: Sequence[_Slot], variables: Sequence[int], queue: DummyQueue
    ) -> int:
        device, info = self.device, self.device.info
        code = self.codes[step.program]
        program = code.program
        failure = device.faults.launch()
        if failure is not None:
            raise DeviceError(f"{info.name}: the launch of {program.name} {failure}")
        values = tuple([variables[k] for k in step.variables])
        needs, done = code.needs(values), queue.start()
        buffers = _views(program, [slots[k] for k in step.slots], needs, done)
        if not device.timing_only:
            if device.races:
                interpret(program, buffers, code.given(values), races=True)
            else:
                code.quick.run(buffers, code.given(values))
        device.clock.launches += 1
        busy = _busy_ns(needs, info) * device.faults.times_slower()
        queue.submit(done, program.name, info.launch_ns, busy, device.compute)
        return round(info.launch_ns + busy)

    def _copy(self, step: CopyBytes, slots: Sequence[_Slot], queue: DummyQueue) -> int:
        device, info = self.device, self.device.info
        slower, done = device.copying("a copy within it"), queue.start()
        source, target = slots[step.source], slots[step.target]
        pool = device.pool
        data = pool.view(source.memory, source.offset, step.nbytes, done, writes=False).copy()
        pool.view(target.memory, target.offset, step.nbytes, done, writes=True)[:] = data
        device.clock.copied_bytes += step.nbytes
        busy = 2e9 * step.nbytes / info.bandwidth * slower
        queue.submit(done, "copy", info.launch_ns, busy, device.compute)
        return round(info.launch_ns + busy)


def _busy_ns(needs: Needs, info: DeviceInfo) -> float:
    """The time for which a launch occupies the device."""
    return 1e9 * (needs.work.nbytes / info.bandwidth + needs.work.operations / info.flops)


def _views(
    program: Program, slots: Sequence[_Slot], needs: Needs, done: DummyEvent
) -> Mapping[str, np.ndarray[Any, Any]]:
    """The parameters as typed arrays over the bytes of their memories; of a pool without bytes, none."""
    out: dict[str, np.ndarray[Any, Any]] = {}
    for b, slot, nbytes, writes in zip(program.params, slots, needs.nbytes, needs.writes, strict=True):
        pool = slot.memory.pool
        view = pool.view(slot.memory, slot.offset, nbytes, done, writes)
        if not pool.empty:
            out[b.name] = view.view(to_numpy(b.dtype))
    return out
