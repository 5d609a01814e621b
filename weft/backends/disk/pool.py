"""The disk as the pool in which a tensor's storage lies: it can be read, and it computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from weft.backends.disk.file import MappedFile
from weft.backends.protocol import Code, Commands, Device, DeviceInfo, Executable, Memory
from weft.backends.roofline import Limits
from weft.backends.storage import Storage
from weft.backends.synchronous import SynchronousQueue, check_range, only_queue
from weft.errors import DeviceError, FileFormatError
from weft.ir.dtypes import DType, bool_
from weft.ir.loops import Program
from weft.lazy_dataclass import dataclass

ADVICE = (
    "'disk' is a memory pool without a device: make the tensor on a device and write it with .to('disk:PATH'); open "
    "files with weft.io.load_safetensors(PATH, device='disk')"
)


_BOOLS_AT_ONCE = 1 << 20  # bytes


@dataclass(slots=True, eq=False)
class FileRange:
    """The bytes of a file from `begin` on: the memory of a tensor on disk."""

    file: MappedFile
    begin: int
    nbytes: int
    bools: bool = False
    """The elements are bools that nobody has looked at yet."""

    def view(self) -> memoryview:
        """The bytes, mapped. FileError where the file is not what it was."""
        self.file.check()
        data = self.file.view(self.begin, self.begin + self.nbytes)
        if self.bools:
            for at in range(0, self.nbytes, _BOOLS_AT_ONCE):
                if np.frombuffer(data[at : at + _BOOLS_AT_ONCE], np.uint8).max() > 1:
                    raise FileFormatError(
                        f"{self.file.path} has bools other than 0 and 1; without device='disk' they are True"
                    )
            self.bools = False
        return data


class DiskPool:
    """The one pool of files. Memory of it is a `FileRange`; all that needs a processor is a DeviceError."""

    info = DeviceInfo(
        name="disk", kind="disk", description="files", cores=0, vector_bytes=0, vector_registers=0, l1_bytes=0,
        l2_bytes=0, l3_bytes=0, memory_bytes=0, local_bytes=0, bandwidth=2e9, flops=0.0, launch_ns=0.0,
        host_memory=True,
    )  # fmt: skip

    def read(self, memory: Memory, nbytes: int, offset: int = 0, queue: int = 0) -> memoryview:
        """A view of the mapped file, which keeps it open."""
        part = file_range(memory)
        check_range("read", nbytes, offset, part.nbytes)
        return part.view()[offset : offset + nbytes]

    def copy_from(self, memory: Memory, origin: Device, source: Memory, nbytes: int, queue: int = 0) -> bool:
        """Files are written whole: see `writing`."""
        return False

    def used_bytes(self) -> int:
        """Mapped files take no memory."""
        return 0

    def queue(self, number: int = 0) -> SynchronousQueue:
        """Nothing is ever left to wait for."""
        return only_queue(number, "disk")

    def synchronize(self) -> None:
        """Nothing is ever left to wait for."""

    def fingerprint(self) -> str:
        """No image is ever made here."""
        return "disk"

    def allocate(self, nbytes: int) -> Memory:
        _refuse()

    def free(self, memory: Memory) -> None:
        _refuse()

    def set_memory_limit(self, nbytes: int | None) -> None:
        _refuse()

    def write(self, memory: Memory, data: memoryview, offset: int = 0, queue: int = 0) -> None:
        _refuse()

    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[Code], bytes]:
        _refuse()

    def load(self, image: bytes, names: Sequence[str]) -> Sequence[Code]:
        _refuse()

    def listings(self, program: Program) -> Mapping[str, str]:
        _refuse()

    def limits(self) -> Limits:
        _refuse()

    def link(self, codes: Sequence[Code], commands: Commands) -> Executable:
        _refuse()


def _refuse() -> NoReturn:
    raise DeviceError(ADVICE)


DISK = DiskPool()


def storage(file: MappedFile, begin: int, dtype: DType, shape: tuple[int, ...]) -> Storage:
    """The elements of a tensor that begins at byte `begin` of a file."""
    out = Storage(DISK, FileRange(file, begin, 0, dtype is bool_), dtype, shape)
    file_range(out.memory).nbytes = out.nbytes
    file.view(begin, begin + out.nbytes)  # it must be there
    return out


def file_range(memory: Memory) -> FileRange:
    """Memory as a part of a file. ValueError when it is something else."""
    if not isinstance(memory, FileRange):
        raise ValueError(f"not memory of the disk: {memory!r}")
    return memory
