"""What a backend is: descriptions are dataclasses, behaviour is a handful of methods. No inheritance needed.

A backend is a package with an entry point in the group `weft.backends`; calling the entry point gives a `Backend`.
The scheduler knows devices only through this page: it reads `DeviceInfo` and never asks which backend it talks to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from weft.ir.dtypes import DTYPES, DType
from weft.ir.loops import LoopKind, Program
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.backends.limits import Limits


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a device can do, as data. The schedule rules read this and nothing else.

    Sizes are in bytes, rates per second. `vector_bytes` is the width of one SIMD register (or of one lane's widest
    load on a GPU) and `vector_registers` how many there are; `cores` the independent workers (cores, multiprocessors).
    Caches are per core but for the last level.
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
    host_memory: bool = False

    def lanes(self, dtype: DType) -> int:
        """Elements of `dtype` in one SIMD register."""
        return max(1, self.vector_bytes // dtype.itemsize)


class Memory(Protocol):
    """Bytes of a device's memory pool; they return to it when the object dies."""

    @property
    def nbytes(self) -> int: ...


class Code(Protocol):
    """A compiled program."""

    @property
    def source(self) -> str:
        """What the backend generated, to read: LLVM IR, OpenCL C, PTX ..."""
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


class Executable(Protocol):
    """Commands bound to compiled programs. Running looks nothing up and allocates nothing."""

    def run(self, memories: Sequence[Memory], variables: Sequence[int] = ()) -> None:
        """Start the steps, in order, on the external memories. Results are there after `Device.synchronize`.

        May be called from several threads at once. MemoryError, before anything is changed, without a workspace.
        """
        ...

    def run_timed(self, memories: Sequence[Memory], variables: Sequence[int] = ()) -> list[int]:
        """Run and wait; the nanoseconds each step took."""
        ...


class Device(Protocol):
    """One device with its memory pool."""

    @property
    def info(self) -> DeviceInfo: ...

    def allocate(self, nbytes: int) -> Memory:
        """Uninitialized memory, at least 64-byte aligned. MemoryError when there is none."""
        ...

    def set_memory_limit(self, nbytes: int | None) -> None:
        """Refuse, by MemoryError, what would bring the memory in use above `nbytes`; None: what the device has."""
        ...

    def write(self, memory: Memory, data: memoryview) -> None:
        """Copy bytes from the host into the start of `memory`."""
        ...

    def read(self, memory: Memory, nbytes: int) -> memoryview:
        """The first bytes of `memory` once all that was started is done; a view where the memory is the host's, which
        keeps it alive, else a copy."""
        ...

    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[Code], bytes]:
        """Machine code for the programs, and an image from which `load` makes the same (empty: not storable)."""
        ...

    def load(self, image: bytes, names: Sequence[str]) -> Sequence[Code]:
        """The code that `compile` gave with this image. ValueError when the image is not this device's."""
        ...

    def fingerprint(self) -> str:
        """What images depend on: device, driver, compiler and their versions."""
        ...

    def listings(self, program: Program) -> Mapping[str, str]:
        """What the backend makes of a program on the way to machine code, to read: "llvm", "assembly", "ptx" ..."""
        ...

    def limits(self) -> Limits:
        """What the device does at best, as it is set up now: measured where that is possible, once and kept."""
        ...

    def link(self, codes: Sequence[Code], commands: Commands) -> Executable:
        """Bind commands to code; program number k is codes[k]."""
        ...

    def synchronize(self) -> None:
        """Wait for everything that was started."""
        ...


class Backend(Protocol):
    """A kind of devices."""

    @property
    def name(self) -> str: ...

    def count(self) -> int:
        """How many devices there are now. DeviceError with what to install when the driver is missing."""
        ...

    def device(self, index: int) -> Device:
        """Device number `index`, opened on first use."""
        ...
