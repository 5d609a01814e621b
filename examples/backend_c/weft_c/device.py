"""The device: what weft asks of it, method by method (see weft/backends/protocol.py)."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from weft.backends.clike.scalar import NATIVE
from weft.backends.interrupts import shielded
from weft.backends.protocol import (
    Bounds,
    Code,
    Commands,
    CopyBytes,
    Device,
    DeviceInfo,
    Launch,
    Memory,
    Step,
)
from weft.backends.roofline import Limits, described
from weft.backends.synchronous import SynchronousQueue, check_range, only_queue
from weft.ir.loops import Program

from . import compiler
from .memory import Block, Pool, own
from .render import module, render

NAME = "c:0"
MAGIC = b"weft-backend-c 1\n"


def describe() -> DeviceInfo:
    """What the scheduler knows of the device. Wrong numbers make it slow, never wrong."""
    return DeviceInfo(
        name=NAME,
        kind="c",
        description=f"C compiled by {compiler.compiler()}, one thread",
        cores=1,
        vector_bytes=32,
        vector_registers=16,
        l1_bytes=32 << 10,
        l2_bytes=512 << 10,
        l3_bytes=8 << 20,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        local_bytes=512 << 10,
        bandwidth=10e9,
        flops=20e9,
        launch_ns=1000.0,
        native=NATIVE,
        host_memory=True,
        bounds=Bounds(threads=1),
    )


@dataclass(frozen=True, slots=True, eq=False)
class CCode:
    """One compiled program."""

    function: Any
    scratch_bytes: int
    source: str


class CDevice:
    """The processor, by way of a C compiler."""

    def __init__(self) -> None:
        self.info = describe()
        self.pool = Pool(self.info.memory_bytes)
        self.lock = threading.Lock()
        """Held by a run: the workspace is one for all of them."""
        self._workspace: Block | None = None

    # memory

    def allocate(self, nbytes: int) -> Block:
        return self.pool.allocate(nbytes)

    def free(self, memory: Memory) -> None:
        own(memory).release()

    def used_bytes(self) -> int:
        return self.pool.used_bytes

    def set_memory_limit(self, nbytes: int | None) -> None:
        self.pool.limit_bytes = self.info.memory_bytes if nbytes is None else nbytes

    def write(self, memory: Memory, data: memoryview, offset: int = 0, queue: int = 0) -> None:
        self.queue(queue)
        check_range("write", data.nbytes, offset, own(memory).nbytes)
        own(memory).data[offset : offset + data.nbytes] = np.frombuffer(data.cast("B"), np.uint8)

    def read(self, memory: Memory, nbytes: int, offset: int = 0, queue: int = 0) -> memoryview:
        self.queue(queue)
        check_range("read", nbytes, offset, own(memory).nbytes)
        return own(memory).data[offset : offset + nbytes].data  # keeps the bytes alive

    def copy_from(self, memory: Memory, origin: Device, source: Memory, nbytes: int, queue: int = 0) -> bool:
        if origin is not self:
            return False
        self.write(memory, self.read(source, nbytes), 0, queue)
        return True

    # programs

    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[CCode], bytes]:
        functions = [render(p) for p in programs]
        library = compiler.build(module(functions))
        scratch = {p.name: f.scratch_bytes for p, f in zip(programs, functions, strict=True)}
        head = json.dumps(scratch).encode()
        image = MAGIC + struct.pack("<I", len(head)) + head + library
        texts = {p.name: f.text for p, f in zip(programs, functions, strict=True)}
        return self._load(library, scratch, texts), image

    def load(self, image: bytes, names: Sequence[str]) -> Sequence[CCode]:
        if not image.startswith(MAGIC):
            raise ValueError("not an image of this backend")
        start = len(MAGIC) + 4
        (size,) = struct.unpack_from("<I", image, len(MAGIC))
        scratch = json.loads(image[start : start + size])
        if any(n not in scratch for n in names):
            raise ValueError("the image has other programs")
        return self._load(image[start + size :], {n: scratch[n] for n in names}, {})

    def _load(self, library: bytes, scratch: Mapping[str, int], texts: Mapping[str, str]) -> list[CCode]:
        loaded = compiler.load(library)
        codes: list[CCode] = []
        for name, nbytes in scratch.items():
            function = getattr(loaded, name)
            function.argtypes, function.restype = [ctypes.c_void_p] * 3, None
            codes.append(CCode(function, nbytes, texts.get(name, "")))
        return codes

    def fingerprint(self) -> str:
        return f"{MAGIC.decode().strip()} {compiler.version()} {' '.join(compiler.FLAGS)}"

    def listings(self, program: Program) -> Mapping[str, str]:
        return {"c": module([render(program)])}

    def limits(self) -> Limits:
        return described(self.info)

    # running

    def link(self, codes: Sequence[Code], commands: Commands) -> CExecutable:
        return CExecutable(self, cast("Sequence[CCode]", codes), commands)

    def queue(self, number: int = 0) -> SynchronousQueue:
        return only_queue(number, NAME)

    def synchronize(self) -> None:
        """Runs are finished when they return."""

    def workspace(self, nbytes: int) -> int:
        """The address of at least `nbytes` bytes that runs share, one at a time."""
        if self._workspace is None or self._workspace.nbytes < nbytes:
            self._workspace = None
            self._workspace = self.allocate(nbytes)
        return self._workspace.address


class CExecutable:
    """A plan: one table of addresses, and for every launch where in it its buffers are."""

    def __init__(self, device: CDevice, codes: Sequence[CCode], commands: Commands) -> None:
        self.device, self.codes, self.commands = device, codes, commands
        self.started = self.finished = 0  # runs: see Executable
        launched = [s.program for s in commands.steps if isinstance(s, Launch)]
        self.scratch_at = -(-commands.workspace_bytes // 64) * 64
        self.nbytes = self.scratch_at + max((codes[k].scratch_bytes for k in launched), default=0)

    def run(self, memories: Sequence[Memory], variables: Sequence[int] = (), queue: int = 0) -> None:
        self.device.queue(queue)
        self._run(memories, variables)

    def run_timed(self, memories: Sequence[Memory], variables: Sequence[int] = ()) -> list[int]:
        return self._run(memories, variables)

    def _run(self, memories: Sequence[Memory], variables: Sequence[int]) -> list[int]:
        c = self.commands
        if len(memories) != c.externals or len(variables) != c.variables:
            raise ValueError(
                f"the plan takes {c.externals} memories and {c.variables} variables, "
                f"not {len(memories)} and {len(variables)}"
            )
        addresses = [own(m).address for m in memories]
        with self.device.lock:
            base = self.device.workspace(self.nbytes)
            addresses += [base + offset for offset in c.offsets]
            times: list[int] = []
            self.started = self.finished
            with shielded(memories):
                self.started = self.finished + 1
                for step in c.steps:
                    start = time.perf_counter_ns()
                    self._step(step, addresses, variables, base + self.scratch_at)
                    times.append(time.perf_counter_ns() - start)
                self.finished = self.started
        return times

    def _step(self, step: Step, addresses: Sequence[int], variables: Sequence[int], scratch: int) -> None:
        match step:
            case Launch():
                buffers = (ctypes.c_void_p * len(step.slots))(*[addresses[k] for k in step.slots])
                values = (ctypes.c_int64 * len(step.variables))(*[variables[k] for k in step.variables])
                self.codes[step.program].function(buffers, values, scratch)
            case CopyBytes(target, source, nbytes):
                ctypes.memmove(addresses[target], addresses[source], nbytes)


class CBackend:
    """The kind of devices: one, where there is a compiler."""

    name = "c"

    def __init__(self) -> None:
        self._device: CDevice | None = None

    def count(self) -> int:
        """One. DeviceError, with what to install, without a compiler."""
        compiler.compiler()
        return 1

    def device(self, index: int) -> CDevice:
        """The one device."""
        if self._device is None:
            self._device = CDevice()
        return self._device
