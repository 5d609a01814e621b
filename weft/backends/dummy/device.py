"""Simulated devices: memory of their own, and a clock that advances as their description says."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft._version import __version__
from weft.backends.dummy.cost import work
from weft.backends.dummy.interpreter import interpret
from weft.backends.limits import Limits, described
from weft.backends.protocol import Commands, CopyBytes, DeviceInfo, Launch, Memory, Step
from weft.ir.dtypes import to_numpy
from weft.ir.index import evaluate
from weft.ir.loops import Program
from weft.ir.loops_text import show_program
from weft.ir.ops import ELEMENTWISE

_GARBAGE = 0xFF
"""What uninitialized memory holds: NaN in floats, -1 in integers; a result that depends on it shows."""


def describe(index: int) -> DeviceInfo:
    """The description of the dummy devices that are there by default. Wide vectors make the interpreter quick."""
    return DeviceInfo(
        name=f"dummy:{index}",
        kind="dummy",
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
    )


class DummyBackend:
    """Simulated devices, as many as descriptions are given."""

    name = "dummy"

    def __init__(self, devices: Sequence[DeviceInfo] | None = None) -> None:
        infos = [describe(k) for k in range(4)] if devices is None else list(devices)
        self.devices = [DummyDevice(info) for info in infos]

    def count(self) -> int:
        """How many devices are simulated."""
        return len(self.devices)

    def device(self, index: int) -> DummyDevice:
        """Device number `index`."""
        return self.devices[index]


class DummyMemory:
    """Bytes of one simulated pool."""

    __slots__ = ("__weakref__", "data", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.data = np.full(nbytes, _GARBAGE, np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class DummyCode:
    """A program, to be interpreted."""

    program: Program

    @property
    def source(self) -> str:
        """The loops as text."""
        return show_program(self.program)


@dataclass(slots=True)
class Clock:
    """Simulated time, and what it went by on."""

    ns: float = 0.0
    launches: int = 0
    copied_bytes: int = 0
    used_bytes: int = 0
    peak_bytes: int = 0


class DummyDevice:
    """One simulated device: launches are executed at once, and timed by bytes / bandwidth + operations / flops.

    `races`: also refuse programs whose parallel iterations touch what others write (slow).
    """

    def __init__(self, info: DeviceInfo, races: bool = False) -> None:
        self.info, self.races = info, races
        self.clock = Clock()
        self.limit_bytes = info.memory_bytes

    def allocate(self, nbytes: int) -> DummyMemory:
        """Memory filled with garbage. MemoryError where the pool is exhausted."""
        clock = self.clock
        if clock.used_bytes + nbytes > self.limit_bytes:
            free = max(0, self.limit_bytes - clock.used_bytes)
            raise MemoryError(f"{self.info.name} has {free} bytes free of {self.limit_bytes}, not {nbytes}")
        memory = DummyMemory(nbytes)
        clock.used_bytes += nbytes
        clock.peak_bytes = max(clock.peak_bytes, clock.used_bytes)
        weakref.finalize(memory, _freed, clock, nbytes)
        return memory

    def set_memory_limit(self, nbytes: int | None) -> None:
        """Refuse what would bring the bytes in use above this; None: what the device has."""
        self.limit_bytes = self.info.memory_bytes if nbytes is None else nbytes

    def write(self, memory: Memory, data: memoryview) -> None:
        """Copy bytes from the host."""
        source = np.frombuffer(data.cast("B"), np.uint8)
        _bytes(memory)[: source.size] = source

    def read(self, memory: Memory, nbytes: int) -> memoryview:
        """A copy of the first bytes."""
        return memoryview(_bytes(memory)[:nbytes].tobytes())

    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[DummyCode], bytes]:
        """The programs as they are; there is nothing to store."""
        return [DummyCode(p) for p in programs], b""

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
        """What the clock goes by."""
        return described(self.info)

    def link(self, codes: Sequence[DummyCode], commands: Commands) -> DummyExecutable:
        """The commands, to be interpreted."""
        return DummyExecutable(self, codes, commands)

    def synchronize(self) -> None:
        """Runs are finished when they return."""


class DummyExecutable:
    """Commands on one device."""

    def __init__(self, device: DummyDevice, codes: Sequence[DummyCode], commands: Commands) -> None:
        self.device, self.commands = device, commands
        self.programs = [c.program for c in codes]

    def run(self, memories: Sequence[Memory], variables: Sequence[int] = ()) -> None:
        """Execute the steps in order."""
        self.run_timed(memories, variables)

    def run_timed(self, memories: Sequence[Memory], variables: Sequence[int] = ()) -> list[int]:
        """Execute the steps in order; the simulated nanoseconds of each."""
        commands, clock = self.commands, self.device.clock
        workspace = _bytes(self.device.allocate(commands.workspace_bytes))
        slots = [_bytes(m) for m in memories[: commands.externals]]
        slots += [workspace[offset:] for offset in commands.offsets]
        times: list[int] = []
        for step in commands.steps:
            ns = self._step(step, slots, variables)
            clock.ns += ns
            times.append(round(ns))
        return times

    def _step(self, step: Step, slots: Sequence[np.ndarray[Any, Any]], variables: Sequence[int]) -> float:
        info = self.device.info
        match step:
            case CopyBytes(target, source, nbytes):
                slots[target][:nbytes] = slots[source][:nbytes].copy()
                self.device.clock.copied_bytes += nbytes
                return info.launch_ns + 2e9 * nbytes / info.bandwidth
            case Launch():
                program = self.programs[step.program]
                given = {v.name: variables[k] for v, k in zip(program.variables, step.variables, strict=True)}
                buffers = _views(program, [slots[k] for k in step.slots], given)
                interpret(program, buffers, given, races=self.device.races)
                self.device.clock.launches += 1
                done = work(program, given)
                return info.launch_ns + 1e9 * (done.nbytes / info.bandwidth + done.operations / info.flops)


def _views(
    program: Program, memories: Sequence[np.ndarray[Any, Any]], variables: Mapping[str, int]
) -> dict[str, np.ndarray[Any, Any]]:
    """The parameters as typed arrays over the bytes of their memories."""
    out: dict[str, np.ndarray[Any, Any]] = {}
    for b, data in zip(program.params, memories, strict=True):
        nbytes = int(evaluate(b.size, variables)) * b.dtype.itemsize
        out[b.name] = data[:nbytes].view(to_numpy(b.dtype))
    return out


def _bytes(memory: Memory) -> np.ndarray[Any, Any]:
    if not isinstance(memory, DummyMemory):
        raise TypeError(f"{type(memory).__name__} is not memory of a dummy device")
    return memory.data


def _freed(clock: Clock, nbytes: int) -> None:
    clock.used_bytes -= nbytes
