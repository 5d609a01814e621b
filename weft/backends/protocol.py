"""The protocol of backends: descriptions are dataclasses, behaviour is a handful of methods. No inheritance needed.

A backend is a package with an entry point in the group `weft.backends`; calling the entry point gives a `Backend`.
The scheduler knows devices only through this page: it reads `DeviceInfo` and never asks which backend it talks to.
`manuals/backends.md` builds one from an empty folder, and `pytest --pyargs weft.testing.conformance --device NAME`
tests it.

Errors, the same everywhere:

| raised        | when                                                                                            |
|---------------|-------------------------------------------------------------------------------------------------|
| `MemoryError` | there is no memory; nothing was changed                                                         |
| `ValueError`  | memory of another device, or freed; bytes outside of it; a queue, slot or number that is not there |
| `DTypeError`  | a program uses a dtype that `DeviceInfo.dtypes` lacks (the scheduler refuses before `compile`)  |
| `DeviceError` | the driver is missing, with what to install; or the device failed, at a run or at a later wait   |
"""
# Tests: tests/backends/dummy/test_device.py

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from weft.backends.costs import CostModel
from weft.ir.dtypes import DTYPES, DType
from weft.ir.loops import LoopKind, Program
from weft.ir.matrix import MatrixUnit
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from weft.backends.boxes import BoxCopy
    from weft.backends.roofline import Limits


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that one launch or one memory may have.

    `threads` of one block; `blocks` of one launch; `parameters` of one program (buffers bound at once);
    `buffer_bytes` of one memory; `index_bits` of index arithmetic, runtime variables included.
    """

    threads: int = 1024
    blocks: int = 2**31 - 1
    parameters: int = 1 << 16
    buffer_bytes: int = 2**63 - 1
    index_bits: int = 64


HOST_PROCESSOR = "host"
"""The name of the processor that this program runs on."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The abilities of a device, as data. The schedule rules read this and nothing else.

    Sizes are in bytes, rates per second. `cores` are the independent workers (cores, multiprocessors, compute
    units); `vector_bytes` is the width of one SIMD register (or of one lane's widest load on a GPU),
    `vector_registers` how many one thread has, `warp` how many threads run in step. `local_bytes` is what the LOCAL
    buffers of one task may take. Caches are per core but for the last level; `l1_ways` are the lines of one set of
    the first. `bandwidth`, `flops`, `link_bandwidth` (host to device) and `launch_ns` are as measured where that
    was done, else estimates. `task_kind` says how independent tasks are written: PARALLEL loops, or BLOCK loops
    over a grid with THREAD loops inside.

    `native` are the elementwise ops that the device computes, each on all dtypes that it is for: exactly those in
    `weft.ir.math.expand.NEEDED`, functions within 4 ULP; functions that are missing are expanded into others before
    `compile`. `dtypes` are those that tensors may have; others are refused by a DTypeError. Programs
    that come to `compile` hold the 8-bit floats as uint8: what converts them is written out before. `emulated` are
    those dtypes that are exact, but made of others and many times slower.
    `matrix_units` are the products that a warp has instructions for, the preferred first.
    `shuffles`: the threads of a warp can combine what they have in registers.
    `scratchpad`: LOCAL memory is nearer than the caches, and threads of a block meet cheaply; without it, schedules of
    blocks have threads that share nothing. `queues` is how many queues there are. `host_memory`: `read` gives a view,
    not a copy. `pool` names the memory that the device uses; those of one backend that name the same share it, so that
    each reads what others have made; empty: one of its own. `processor` names what computes, where devices of several
    backends use the same and take turns; empty: one of its own. `costs` are what schedules of a core are compared by.
    """

    name: str
    kind: str
    description: str
    cores: int
    vector_bytes: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    memory_bytes: int
    local_bytes: int
    bandwidth: float
    flops: float
    launch_ns: float
    task_kind: LoopKind = LoopKind.PARALLEL
    native: frozenset[Op] = field(default=frozenset(), repr=False)
    dtypes: frozenset[DType] = field(default_factory=lambda: frozenset(DTYPES.values()), repr=False)
    emulated: frozenset[DType] = field(default=frozenset(), repr=False)
    host_memory: bool = False
    warp: int = 1
    shuffles: bool = False
    scratchpad: bool = True
    queues: int = 1
    link_bandwidth: float = 16e9
    matrix_units: tuple[MatrixUnit, ...] = ()
    bounds: Bounds = field(default_factory=Bounds)
    costs: CostModel = field(default_factory=CostModel, repr=False)
    l1_ways: int = 8
    pool: str = ""
    processor: str = field(default="", repr=False)

    @property
    def memory_pool(self) -> str:
        """The name of the pool that the device's memories are in."""
        return self.pool or self.name

    def lanes(self, dtype: DType) -> int:
        """Elements of `dtype` in one SIMD register."""
        return max(1, self.vector_bytes // dtype.itemsize)


class Memory(Protocol):
    """Bytes of a device's memory pool; they return to it when the object dies, or by `Device.free`."""

    @property
    def nbytes(self) -> int: ...


class Code(Protocol):
    """A compiled program."""

    @property
    def source(self) -> str:
        """The text that the backend generated, to read: LLVM IR, OpenCL C, PTX ..."""
        ...


@dataclass(frozen=True, slots=True)
class Launch:
    """Run program number `program` on the memory in `slots` (in parameter order) with the plan's variables at
    `variables` (in the program's order)."""

    program: int
    slots: tuple[int, ...]
    variables: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyBytes:
    """Copy `nbytes` from slot `source` to slot `target` of the same device."""

    target: int
    source: int
    nbytes: int


Step: TypeAlias = Launch | CopyBytes


@dataclass(frozen=True, slots=True)
class Commands:
    """A plan for one device. Slots 0 .. externals - 1 are given at each run; slot externals + k is at `offsets[k]` of
    a workspace of `workspace_bytes` that the device provides, uninitialized, for the time of the run."""

    steps: tuple[Step, ...]
    externals: int
    offsets: tuple[int, ...]
    workspace_bytes: int
    variables: int = 0


class Event(Protocol):
    """A point in a queue's work."""

    def done(self) -> bool:
        """True where all the work before it is done."""
        ...

    def wait(self) -> None:
        """Wait, on the host, until it is done. DeviceError where the device failed."""
        ...


class Queue(Protocol):
    """Work in order: what is started on one queue runs as if one after the other. Different queues have no order but
    by events."""

    def record(self) -> Event:
        """The point after all that was started so far."""
        ...

    def wait(self, event: Event) -> None:
        """Order what is started from now on after `event`, of any queue of the backend. The host does not wait."""
        ...

    def synchronize(self) -> None:
        """Wait, on the host, for all that was started on this queue."""
        ...


class Executable(Protocol):
    """Commands bound to compiled programs. Running looks nothing up and allocates nothing.

    One that can be run with less ado may also have `direct` and `workspace`, for runs without variables on queue 0 that
    one call starts and ends: see direct.py.

    A device that can capture a plan as one thing (a CUDA graph, a command buffer) does so here: `Device.link` has
    seen all of it, and the same memories often come again.

    An external memory may be given twice, as what a step reads and as what another writes: state that is updated in
    place. Whether an error or an interrupt came before a run began, after its end or in between is told by `started`
    and `finished`. Who starts a run with one call, or undoes what it has begun, counts both at once.
    """

    @property
    def started(self) -> int:
        """The number of runs that have begun to change memory: as many as have finished, and one more while one
        runs, or where the last one failed in between."""
        ...

    @property
    def finished(self) -> int:
        """The number of runs that have had their last step started."""
        ...

    def run(self, memories: Sequence[Memory], variables: Sequence[int] = (), queue: int = 0) -> None:
        """Start the steps, in order, on the external memories. Results are there once the queue is synchronized.

        May be called from several threads at once. MemoryError, before anything is changed, without a workspace.
        """
        ...

    def run_timed(self, memories: Sequence[Memory], variables: Sequence[int] = ()) -> list[int]:
        """Run on queue 0 and wait; the nanoseconds each step took."""
        ...


@runtime_checkable
class Repeater(Protocol):
    """An executable that can run on the memories of its last run. Optional: for who has an executable alone."""

    def keep_memories(self) -> None:
        """From here on, a run leaves its memories to `run_again`: called before the first one."""
        ...

    def run_again(self, changed: Sequence[tuple[int, Memory]], variables: Sequence[int] = ()) -> None:
        """As `run` on queue 0, on the memories of the last run but for those `changed`, given by their numbers. The
        others have to live still: nobody looks. MemoryError, before anything is changed, without a workspace."""
        ...


class Device(Protocol):
    """One device with its memory pool and its queues. Queue 0 is used wherever nothing else is said."""

    @property
    def info(self) -> DeviceInfo: ...

    def allocate(self, nbytes: int) -> Memory:
        """Uninitialized memory, at least 64-byte aligned. MemoryError when there is none."""
        ...

    def free(self, memory: Memory) -> None:
        """Give the bytes back now, and not when the object dies; work that was started may still use them, views that
        `read` gave may not. ValueError when they were freed before, as from every later use."""
        ...

    def used_bytes(self) -> int:
        """Bytes of the memories that live, rounded as the pool rounds them, and of what the device keeps for runs."""
        ...

    def set_memory_limit(self, nbytes: int | None) -> None:
        """Refuse, by MemoryError, what would bring the memory in use above `nbytes`; None: what the device has."""
        ...

    def write(self, memory: Memory, data: memoryview, offset: int = 0, queue: int = 0) -> None:
        """Copy bytes from the host into `memory` from `offset` on. `data` may be changed once this returns, which may
        be before the bytes have arrived."""
        ...

    def read(self, memory: Memory, nbytes: int, offset: int = 0, queue: int = 0) -> memoryview:
        """`nbytes` bytes of `memory` from `offset` on, once all that was started on the queue is done; a view where
        the memory is the host's, which keeps it alive, else a copy."""
        ...

    def copy_from(self, memory: Memory, origin: Device, source: Memory, nbytes: int, queue: int = 0) -> bool:
        """Copy the first bytes of another device's (or this one's) memory into `memory` without the host; False,
        with nothing done, where there is no such way. The work on `origin` that made the source comes before."""
        ...

    def queue(self, number: int = 0) -> Queue:
        """Queue number `number`, made when it is first asked for. ValueError from `info.queues` on."""
        ...

    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[Code], bytes]:
        """Machine code for the programs, and an image from which `load` makes the same (empty: not storable). Each
        program is made when it is first read: a device may compile those before meanwhile."""
        ...

    def load(self, image: bytes, names: Sequence[str]) -> Sequence[Code]:
        """The code that `compile` gave with this image. ValueError when the image is not this device's."""
        ...

    def fingerprint(self) -> str:
        """The key of images: device, driver, compiler and their versions, and the backend's own version."""
        ...

    def listings(self, program: Program) -> Mapping[str, str]:
        """The forms of a program on the way to machine code, to read: "llvm", "assembly", "ptx" ..."""
        ...

    def limits(self) -> Limits:
        """The limits of the device, as it is set up now: measured where that is possible, once and kept."""
        ...

    def link(self, codes: Sequence[Code], commands: Commands) -> Executable:
        """Bind commands to code; program number k is codes[k]."""
        ...

    def synchronize(self) -> None:
        """Wait for everything that was started, on all queues."""
        ...


@runtime_checkable
class Borrower(Protocol):
    """A device whose programs can read the host's memory where it is, mapped files for instance. Optional."""

    def borrow(self, data: npt.NDArray[np.uint8]) -> Memory:
        """The bytes of `data` as memory for programs to read, which keeps them alive; never to be written."""
        ...


@runtime_checkable
class Rounder(Protocol):
    """A device whose pool counts more bytes against its limit than were asked for. Optional."""

    def rounded_bytes(self, nbytes: int) -> int:
        """The bytes that `used_bytes` grows by for a memory of so many."""
        ...

    def freed_bytes(self, nbytes: int) -> int:
        """The bytes that count against the limit no more when a memory of so many is given back."""
        ...

    def idle_bytes(self) -> int:
        """The bytes that count against the limit, though no memory that lives has them."""
        ...


@runtime_checkable
class WorkspaceKeeper(Protocol):
    """A device that keeps the workspace of plans between runs, and counts it as used. Optional."""

    def give_up_workspace(self) -> bool:
        """Free it, if no run uses it; True where that has been done."""
        ...


@runtime_checkable
class Divider(Protocol):
    """A device whose memories can be divided: an arena with tensors at fixed offsets. Optional."""

    def part(self, memory: Memory, offset: int, nbytes: int) -> Memory:
        """Bytes of a memory as one of its own, for programs to read and write, which keeps the whole alive. `offset`
        is a multiple of 64. ValueError for bytes outside of it."""
        ...


@runtime_checkable
class BoxCopier(Protocol):
    """A device that copies boxes of memories itself, `boxes.copy_box` does it through the host for others. Optional."""

    def copy_box(self, memory: Memory, origin: Device, source: Memory, copy: BoxCopy, queue: int = 0) -> bool:
        """Start the copy of a box of another device's (or this one's) memory into `memory` on a queue of this device;
        False, with nothing done, where there is no such way. Unlike `copy_from`, it comes after nothing but what the
        queue has started or waits for: who has written the source, or reads the target, is ordered by events. Until
        it is done, the source must stay as it is; it is kept alive. ValueError for a box outside of a memory."""
        ...


@runtime_checkable
class BulkLoader(Protocol):
    """A device that loads several images in less time than one after the other. Optional."""

    def load_all(self, images: Sequence[tuple[bytes, Sequence[str]]]) -> Sequence[Sequence[Code]]:
        """As `Device.load`, for images with their names. ValueError where one is not this device's."""
        ...


@runtime_checkable
class Foretold(Protocol):
    """An executable that states what its runs take, as those of simulated devices do. Optional."""

    def run_ns(self, variables: Sequence[int] = ()) -> float:
        """The nanoseconds of a run, with these values of the variables, that waits for nothing."""
        ...


@runtime_checkable
class Levelled(Protocol):
    """A device that runs code which was compiled elsewhere for a level of such devices. Optional."""

    @property
    def levels(self) -> Sequence[str]:
        """Names of the levels that it belongs to, the most able first."""
        ...


@runtime_checkable
class Alike(Protocol):
    """A device that runs the code of others like it as it is, so that many are planned for as one. Optional."""

    @property
    def device_class(self) -> Hashable:
        """Equal for devices whose code serves each other, and whose descriptions differ in nothing that schedules
        read."""
        ...


def device_class(device: Device) -> Hashable:
    """The class of a device: all that are alike, or it alone."""
    return device.device_class if isinstance(device, Alike) else device


class Backend(Protocol):
    """A kind of devices. Making one costs nothing: drivers are looked for when devices are counted."""

    @property
    def name(self) -> str: ...

    def count(self) -> int:
        """The number of devices now. DeviceError with what to install when the driver is missing."""
        ...

    def device(self, index: int) -> Device:
        """Device number `index`, the same object each time. Its `info` is cheap: what costs is made on first use."""
        ...
