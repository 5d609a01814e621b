"""The CPU as a device of the backend protocol."""
# Tests: tests/backends/cpu/test_ops.py, tests/backends/cpu/test_roofline.py

from __future__ import annotations

import ctypes
import hashlib
import struct
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from weft import disk_cache, pack, settings
from weft.backends import costs
from weft.backends.boxes import BoxCopy, runs
from weft.backends.costs import CostModel
from weft.backends.direct import Access, DirectRun, Route, Source, Workspace
from weft.backends.protocol import (
    HOST_PROCESSOR,
    Bounds,
    Code,
    Commands,
    Device,
    DeviceInfo,
    Launch,
    Memory,
)
from weft.backends.synchronous import SynchronousQueue, check_range, only_queue
from weft.ir.forks import forkable
from weft.ir.loops import Program
from weft.ir.ops import ELEMENTWISE, EXPANDED
from weft.lazy_dataclass import dataclass

from .allocator import SMALL_BYTES, Borrowed, MemoryBlock, Portion, size_class
from .detected import version
from .machine import Machine, host, levels, portable, usable_threads
from .objects import Loaded, load_libraries, load_objects
from .runner import NativePlan
from .runtime import Runtime, open_runtime
from .targets import DEFAULT_OPTIMIZATION, LLVMError, Optimization, Target

if TYPE_CHECKING:
    import numpy.typing as npt

    from weft.backends.roofline import Limits

# What schedules are chosen by: two FMA units of the vector width at 3 GHz, and what one channel pair of DDR4 or better
# gives. Not what `limits` measures, since programs on disk are found by the description, which must not vary.
_CLOCK = 3.0e9
_BANDWIDTH = 40.0e9
_LAUNCH_NS = 20.0

COPIED_BYTES = 4096
"""The most bytes that are written by way of a copy: to ask for the address of memory that is only read takes as long
as copying so many."""


@dataclass(frozen=True, slots=True, eq=False)
class CpuCode:
    """One kernel in this process. `packed` is the LLVM IR of the module that it came in, compressed to a tenth, for it
    is most of what a program needs of memory; empty when it was loaded."""

    address: int
    parameters: int
    packed: bytes
    loaded: Loaded

    @property
    def source(self) -> str:
        return zlib.decompress(self.packed).decode() if self.packed else ""


_address: Callable[[Any], int] = attrgetter("address")


class CpuExecutable:
    """A native plan on the device's workspace."""

    __slots__ = ("_bound", "_commands", "_device", "_native", "_on_memories")

    def __init__(self, device: CpuDevice, codes: Sequence[CpuCode], commands: Commands) -> None:
        self._device, self._commands = device, commands
        runner = device.runtime.runner
        addresses = [c.address for c in codes]
        instructions = [  # plain pairs: a loop's plan has hundreds, and another for each number of steps
            (addresses[step.program], step.slots + step.variables)
            if isinstance(step, Launch)
            else runner.copy_instruction(step.target, step.source, step.nbytes)
            for step in commands.steps
        ]
        self._bound = 0
        self._native: NativePlan = device.runtime.plan(
            instructions,
            [0] * len(commands.offsets),
            externals=commands.externals,
            variables=commands.variables,
            keep=tuple(codes),
        )

        given = [Source(Access.MEMORY, index=k) for k in range(commands.externals)]
        self._on_memories = None if commands.offsets else self._native.direct(given, len(given))
        """A run without more than memories, which need no table that others have."""

    def direct(
        self,
        sources: Sequence[Source],
        arguments: int,
        holds: bool = False,
        stamp: Callable[[], int] | None = None,
        route: Route | None = None,
    ) -> DirectRun | None:
        return self._native.direct(sources, arguments, holds, stamp, route)

    @property
    def workspace(self) -> Workspace | None:
        """The needs of a direct run beside memories; None where it has none."""
        return Workspace(self._device.lock, self._prepare) if self._commands.offsets else None

    def _prepare(self) -> None:
        commands = self._commands
        if commands.offsets:
            base = self._device.workspace(commands.workspace_bytes)
            if base != self._bound:
                self._native.set_pointers(commands.externals, [base + o for o in commands.offsets])
                self._bound = base

    @property
    def started(self) -> int:
        return self.finished

    @property
    def finished(self) -> int:
        direct = self._on_memories
        return self._native.record[4] + (0 if direct is None else direct.runs[0])

    def run(self, memories: Sequence[Any], variables: Sequence[int] = (), queue: int = 0) -> None:
        if queue:
            only_queue(queue, "cpu:0")
        direct = self._on_memories
        if direct is not None and not variables and direct.run(*memories):
            return
        try:
            if self._commands.offsets:
                with self._device.lock:
                    self._prepare()
                    self._native.run(map(_address, memories), variables)
            else:
                self._native.run(map(_address, memories), variables)
        except (AttributeError, struct.error):
            raise self._misuse(memories, variables) from None

    def keep_memories(self) -> None:
        self._on_memories = None  # runs go by the table of pointers

    def run_again(self, changed: Sequence[tuple[int, Any]], variables: Sequence[int] = ()) -> None:
        assert self._on_memories is None, "keep_memories comes before the first run"
        addresses = [(k, m.address) for k, m in changed]
        if self._commands.offsets:
            with self._device.lock:
                self._prepare()
                self._native.run_again(addresses, variables)
        else:
            self._native.run_again(addresses, variables)

    def _misuse(self, memories: Sequence[Any], variables: Sequence[int]) -> ValueError:
        """The error in the arguments of a run."""
        for k, m in enumerate(memories):
            if not hasattr(m, "address"):
                state = "freed" if isinstance(m, MemoryBlock) else "not of cpu:0"
                return ValueError(f"memory {k} of the run is {state}: {m!r}")
        c = self._commands
        return ValueError(
            f"the plan takes {c.externals} memories and {c.variables} variables, "
            f"not {len(memories)} and {len(variables)}"
        )

    def run_timed(self, memories: Sequence[Any], variables: Sequence[int] = ()) -> list[int]:
        with self._device.lock:
            self._prepare()
            return self._native.run_timed(map(_address, memories), variables)


@lru_cache(64)
def _bytes_type(bits: int) -> Any:
    """ctypes' type of so many bytes that their number has `bits` bits: to make a type for each size takes 20 us."""
    return ctypes.c_char * ((1 << bits) - 1)


class CpuDevice:
    """This machine's processor and memory."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._info = describe(runtime.machine)
        self._info = replace(self._info, costs=self.kept_costs() or self._info.costs)
        self._workspace: MemoryBlock | None = None
        self._limits: dict[int, Limits] = {}
        self.lock = forkable(threading.RLock())
        """Held by a run that uses the workspace."""

    @property
    def info(self) -> DeviceInfo:
        return self._info

    def workspace(self, nbytes: int) -> int:
        """The address of at least `nbytes` bytes that plans share, one run at a time."""
        block = self._workspace
        if block is None or block.nbytes < nbytes:
            self._workspace = block = None  # gone before there is another one
            block = self._workspace = self.runtime.allocator.allocate(nbytes)
        return block.address

    def allocate(self, nbytes: int) -> MemoryBlock:
        try:
            return self.runtime.allocator.allocate(nbytes)
        except MemoryError:
            if not self.give_up_workspace():
                raise
        return self.runtime.allocator.allocate(nbytes)

    def give_up_workspace(self) -> bool:
        """Free the workspace, if no run uses it."""
        if self._workspace is None or not self.lock.acquire(blocking=False):
            return False
        try:
            self._workspace = None
        finally:
            self.lock.release()
        return True

    def set_memory_limit(self, nbytes: int | None) -> None:
        if nbytes is not None and self.used_bytes() > nbytes:
            self.give_up_workspace()  # nobody needs it but the next run, which is to keep within the limit
        self.runtime.allocator.set_limit(nbytes)

    def free(self, memory: Memory) -> None:
        _block(memory).release()

    def rounded_bytes(self, nbytes: int) -> int:
        return size_class(nbytes)

    def freed_bytes(self, nbytes: int) -> int:
        return size_class(nbytes) if nbytes > SMALL_BYTES else 0

    def idle_bytes(self) -> int:
        return self.runtime.allocator.idle_small()

    def used_bytes(self) -> int:
        return self.runtime.allocator.use().live

    def write(self, memory: Memory, data: memoryview, offset: int = 0, queue: int = 0) -> None:
        if queue:
            only_queue(queue, self._info.name)
        block = _block(memory)
        check_range("write", data.nbytes, offset, block.nbytes)
        if block.__class__ is Borrowed:
            raise ValueError("borrowed memory is only read")
        if data.nbytes <= COPIED_BYTES:
            ctypes.memmove(block.address + offset, data.tobytes(), data.nbytes)
            return
        source = np.frombuffer(data, np.uint8)  # ctypes takes writable memory only
        ctypes.memmove(block.address + offset, source.ctypes.data, data.nbytes)

    def read(self, memory: Memory, nbytes: int, offset: int = 0, queue: int = 0) -> memoryview:
        if queue:
            only_queue(queue, self._info.name)
        block = _block(memory)
        check_range("read", nbytes, offset, block.nbytes)
        view = _bytes_type(nbytes.bit_length()).from_address(block.address + offset)
        view.block = block  # the view keeps it alive
        return memoryview(view).cast("B")[:nbytes]

    def copy_from(self, memory: Memory, origin: Device, source: Memory, nbytes: int, queue: int = 0) -> bool:
        if origin is not self:
            return False
        self.write(memory, self.read(source, nbytes), 0, queue)
        return True

    def copy_box(self, memory: Memory, origin: Device, source: Memory, copy: BoxCopy, queue: int = 0) -> bool:
        if origin is not self:
            return False
        if queue:
            only_queue(queue, self._info.name)
        target, start = _block(memory), _block(source)
        copy.check(start.nbytes, target.nbytes)
        if target.__class__ is Borrowed:
            raise ValueError("borrowed memory is only read")
        data, room = (np.frombuffer(self.read(m, m.nbytes), np.uint8) for m in (start, target))
        runs(room, copy.target, copy)[...] = runs(data, copy.source, copy)
        return True

    def part(self, memory: Memory, offset: int, nbytes: int) -> Portion:
        """Bytes of a memory as one of its own."""
        block = _block(memory)
        check_range("part", nbytes, offset, block.nbytes)
        return Portion(block.address + offset, nbytes, block)

    def borrow(self, data: npt.NDArray[np.uint8]) -> Borrowed:
        """The bytes where they are: kernels ask for no more than the elements' own alignment of what they read."""
        return Borrowed(data.ctypes.data, data.nbytes, data)

    def queue(self, number: int = 0) -> SynchronousQueue:
        return only_queue(number, self._info.name)

    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[CpuCode], bytes]:
        # Here, since a process whose plans are all on disk does not need it.
        from .compile import compile_parts

        made = compile_parts(programs, self.runtime.machine.target)
        names = [name for part, _ in made for name in part.names]
        loaded = load_objects([data for _, data in made], names, self.runtime.symbols)
        codes: list[CpuCode] = []
        for part, _ in made:
            packed = zlib.compress(part.text.encode(), 1)
            codes += [CpuCode(loaded.address(n), 0, packed, loaded) for n in part.names]
        return codes, joined([data for _, data in made])

    def load(self, image: bytes, names: Sequence[str]) -> Sequence[CpuCode]:
        (codes,) = self.load_all([(image, names)])
        return codes

    def load_all(self, images: Sequence[tuple[bytes, Sequence[str]]]) -> Sequence[Sequence[CpuCode]]:
        try:
            libraries = [(tuple(parts(image)), names) for image, names in images]
            loaded = load_libraries(libraries, self.runtime.symbols)
        except LLVMError as error:
            raise ValueError(f"not an image for this machine: {error}") from error
        return [
            [CpuCode(one.address(n), 0, b"", one) for n in names]
            for one, (_, names) in zip(loaded, images, strict=True)
        ]

    def fingerprint(self) -> str:
        target = self.runtime.machine.target
        features = hashlib.sha256(target.features.encode()).hexdigest()[:16]
        return f"{target.triple} {target.cpu} {features} llvm {version()} cores {self._info.cores}"

    @property
    def levels(self) -> tuple[str, ...]:
        return levels(self.runtime.machine.target)

    def _costs_key(self) -> str:
        return disk_cache.digest("costs 2", self.fingerprint())

    def kept_costs(self) -> CostModel | None:
        """The costs that were fitted to this machine, if they were."""
        kept = disk_cache.get("costs", self._costs_key())
        try:
            return None if kept is None else costs.from_json(kept)
        except ValueError:
            return None

    def keep_costs(self, fitted: CostModel) -> None:
        """Have devices that are opened from now on count with `fitted`."""
        disk_cache.put("costs", self._costs_key(), costs.to_json(fitted))

    def listings(self, program: Program) -> Mapping[str, str]:
        from .compile import assembly
        from .render import render_module

        target = self.runtime.machine.target
        return {"llvm": render_module([program], target), "assembly": assembly([program], target)}

    def limits(self) -> Limits:
        from weft.backends.roofline import from_json, to_json

        threads = self.runtime.pool.threads
        with self.lock:
            if threads not in self._limits:
                key = disk_cache.digest(
                    "limits 4", self.fingerprint(), str(threads), *map(str, usable_threads())
                )
                kept = disk_cache.get("limits", key)
                try:
                    self._limits[threads] = from_json(kept or b"")
                except ValueError:
                    from .roofline import measure  # only who asks needs the loops

                    self._limits[threads] = measure(self.runtime)
                    disk_cache.put("limits", key, to_json(self._limits[threads]))
            return self._limits[threads]

    def link(self, codes: Sequence[Code], commands: Commands) -> CpuExecutable:
        return CpuExecutable(self, cast("Sequence[CpuCode]", codes), commands)

    def synchronize(self) -> None:
        """Runs are finished when they return."""


_HEAD = struct.Struct("<8sI")
_MAGIC = b"weft cpu"


def joined(objects: Sequence[bytes]) -> bytes:
    """An image: object files, and before them how many there are and how long each is."""
    sizes = struct.pack(f"<{len(objects)}Q", *map(len, objects))
    return b"".join((_HEAD.pack(_MAGIC, len(objects)), sizes, *objects))


def parts(image: bytes) -> list[bytes]:
    """The object files of an image. ValueError where it is none."""
    try:
        magic, count = _HEAD.unpack_from(image)
        sizes = struct.unpack_from(f"<{count}Q", image, _HEAD.size)
    except struct.error as error:
        raise ValueError(f"not an image of this backend: {error}") from error
    at = _HEAD.size + 8 * count
    if magic != _MAGIC or at + sum(sizes) != len(image):
        raise ValueError("not an image of this backend")
    found: list[bytes] = []
    for size in sizes:
        found.append(image[at : at + size])
        at += size
    return found


def _block(memory: Memory) -> MemoryBlock:
    """`memory` as this device's. ValueError when it is another's, or freed."""
    if not isinstance(memory, MemoryBlock):
        raise ValueError(f"not memory of cpu:0: {memory!r}")
    if not hasattr(memory, "address"):
        raise ValueError(f"memory of cpu:0 is used after it was freed: {memory!r}")
    return memory


def describe(machine: Machine) -> DeviceInfo:
    """The machine as the scheduler sees it."""
    flops = machine.cores * 2 * 2 * (machine.vector_bytes / 4) * _CLOCK
    return DeviceInfo(
        name="cpu:0",
        kind="cpu",
        description=(
            f"{machine.target.cpu}, {machine.cores} cores, {machine.vector_bytes * 8}-bit vectors, "
            f"{machine.memory_bytes / 2**30:.1f} GiB"
        ),
        cores=machine.cores,
        vector_bytes=machine.vector_bytes,
        vector_registers=machine.vector_registers,
        l1_bytes=machine.l1d_bytes,
        l1_ways=machine.l1d_ways,
        l2_bytes=machine.l2_bytes,
        l3_bytes=machine.l3_bytes,
        memory_bytes=machine.memory_bytes,
        local_bytes=machine.l2_bytes,
        bandwidth=_BANDWIDTH,
        flops=flops,
        launch_ns=_LAUNCH_NS,
        native=ELEMENTWISE - EXPANDED,
        host_memory=True,
        link_bandwidth=_BANDWIDTH,
        bounds=Bounds(threads=1),
        processor=HOST_PROCESSOR,
    )


def cached_ir(text: str, target: Target, optimization: Optimization = DEFAULT_OPTIMIZATION) -> bytes:
    """`compile_ir`, answered from disk, or by what came with weft, where it can be."""
    key = disk_cache.digest(text, repr(target), repr(optimization), version())
    found = disk_cache.get("native", key)
    if found is None:
        packed = (pack.get("native", packed_native(text, level)) for level in levels(target))
        found = next(filter(None, packed), None)
    if found is None:
        from .llvm import compile_ir

        found = compile_ir(text, target, optimization)
        disk_cache.put("native", key, found)
    return found


def packed_native(text: str, level: str) -> str:
    """The name in a pack of a native text's object file for a level."""
    return disk_cache.digest("packed", text, level)


class CpuBackend:
    """The one CPU of this machine."""

    name = "cpu"

    def __init__(self) -> None:
        self._device: CpuDevice | None = None

    def count(self) -> int:
        return 1

    def device(self, index: int) -> CpuDevice:
        if self._device is None:
            level = settings.cpu_level()
            machine = portable(host(), level) if level else host()
            self._device = CpuDevice(open_runtime(cached_ir, settings.num_threads(), machine))
        return self._device
