"""An OpenCL device of the backend protocol.

Work goes through command queues, each in order. A plan's launches are kernels of its own whose arguments stay set from
run to run and change where the memories do.
"""

from __future__ import annotations

import ctypes
import json
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any, cast

from weft._version import __version__
from weft.backends.boxes import BoxCopy
from weft.backends.clike.parts import split
from weft.backends.launches import Entry, parse
from weft.backends.launches import describe as describe_entries
from weft.backends.protocol import Code, Commands, Device, DeviceInfo, Memory
from weft.backends.roofline import Limits, described
from weft.backends.synchronous import check_range
from weft.errors import DeviceError
from weft.ir.loops import Program
from weft.lazy_dataclass import dataclass

from .copies import enqueue, host_bytes
from .describe import RESERVED, describe
from .driver import failed, is_cpu, keeps_text, pyopencl
from .executable import OpenCLExecutable
from .language import OpenCL
from .memory import MemoryBlock, Pool
from .queues import OpenCLQueue
from .render import kernel_names, render_module

_MAGIC = b"weft-opencl-2\n"
OPTIONS = ("-cl-std=CL1.2", "-w")
"""Options of every build. `-w`: a compiler's warnings are about text that no user wrote, and PoCL prints them to
stderr."""
CORRECT = "-cl-fp32-correctly-rounded-divide-sqrt"


@dataclass(frozen=True, slots=True, eq=False)
class OpenCLCode:
    """One program in this process: its entry, the driver's program, its kernels' names there, and the text."""

    entry: Entry
    program: Any
    kernels: tuple[str, ...]
    text: str

    @property
    def source(self) -> str:
        return self.text


class OpenCLDevice:
    """One device with its memory and queues. With `on_cpu` False a processor is used as any other device is: blocks of
    threads, LOCAL memory, memory that the driver keeps."""

    def __init__(self, handle: Any, index: int, on_cpu: bool | None = None) -> None:
        self.handle = handle
        self._on_cpu = is_cpu(handle) if on_cpu is None else on_cpu
        self._info = describe(handle, index, self._on_cpu)
        self._queues: dict[int, OpenCLQueue] = {}
        self._context: Any = None
        self._pool: Pool | None = None
        self._workspace: MemoryBlock | None = None
        self.lock = threading.RLock()
        """Held while work is put on a queue."""
        self.workspace_queue = 0
        """The queue whose run had the workspace last."""

    @property
    def info(self) -> DeviceInfo:
        return self._info

    @property
    def context(self) -> Any:
        """The driver's context, made on first use."""
        with self.lock:
            if self._context is None:
                try:
                    self._context = pyopencl().Context([self.handle])
                except pyopencl().Error as error:
                    raise failed(f"open {self._info.name}", error) from error
            return self._context

    @property
    def pool(self) -> Pool:
        """The memory pool, made on first use."""
        with self.lock:
            if self._pool is None:
                info = self._info
                self._pool = Pool(self.context, self._on_cpu, info.memory_bytes, info.bounds.buffer_bytes)
            return self._pool

    # memory

    def allocate(self, nbytes: int) -> MemoryBlock:
        if len(self._queues) > 1:
            self._order()
        try:
            return self.pool.allocate(nbytes)
        except MemoryError:
            with self.lock:
                if self._workspace is None:
                    raise
                self.synchronize()
                self._workspace = None
        return self.pool.allocate(nbytes)

    def _order(self) -> None:
        """Have all queues come after what each has started: a block that died may be in use on another queue than its
        next user's. The host waits for nothing."""
        with self.lock:
            queues = [q for q in self._queues.values() if q.busy]
            news = [q for q in queues if q.has_news()]
            events = [(q, q.record()) for q in news]
            for q in self._queues.values():
                for other, event in events:
                    if other is not q:
                        q.wait(event, news=False)

    def free(self, memory: Memory) -> None:
        self.block(memory).free()

    def used_bytes(self) -> int:
        return self.pool.used_bytes()

    def set_memory_limit(self, nbytes: int | None) -> None:
        self.pool.set_limit(nbytes)

    def workspace(self, nbytes: int) -> MemoryBlock:
        """Memory of at least `nbytes` bytes that plans share, one run at a time."""
        block = self._workspace
        if block is None or block.nbytes < nbytes:
            if block is not None:
                self.synchronize()
            self._workspace = block = None  # gone before there is another one
            block = self._workspace = self.pool.allocate(nbytes)
        return block

    def block(self, memory: Memory) -> MemoryBlock:
        """`memory` as this device's. ValueError when it is another's, or freed."""
        if not isinstance(memory, MemoryBlock):
            raise ValueError(f"not memory of {self._info.name}: {memory!r}")
        if not hasattr(memory, "buffer"):
            raise ValueError(f"memory of {self._info.name} is used after it was freed: {memory!r}")
        return memory

    def write(self, memory: Memory, data: memoryview, offset: int = 0, queue: int = 0) -> None:
        block, on = self.block(memory), self.queue(queue)
        check_range("write", data.nbytes, offset, block.nbytes)
        if not data.nbytes:
            return
        if block.host is not None:
            self.synchronize()
            source = (
                (ctypes.c_char * data.nbytes).from_buffer_copy(data)
                if data.readonly
                else (ctypes.c_char * data.nbytes).from_buffer(data)
            )
            ctypes.memmove(block.host.address + offset, source, data.nbytes)
            return
        with self.lock:
            pyopencl().enqueue_copy(
                on.handle, block.buffer, data.cast("B"), dst_offset=offset, is_blocking=True
            )

    def read(self, memory: Memory, nbytes: int, offset: int = 0, queue: int = 0) -> memoryview:
        block, on = self.block(memory), self.queue(queue)
        check_range("read", nbytes, offset, block.nbytes)
        on.synchronize()
        if block.host is not None:
            view: Any = (ctypes.c_char * nbytes).from_address(block.host.address + offset)
            view.block = block  # the view keeps it alive
            return memoryview(view).cast("B")
        out = bytearray(nbytes)
        if nbytes:
            pyopencl().enqueue_copy(on.handle, out, block.buffer, src_offset=offset, is_blocking=True)
        return memoryview(out)

    def copy_from(self, memory: Memory, origin: Device, source: Memory, nbytes: int, queue: int = 0) -> bool:
        if origin is not self:
            return False
        target, start, on = self.block(memory), self.block(source), self.queue(queue)
        check_range("copy", nbytes, 0, min(target.nbytes, start.nbytes))
        for number, other in list(self._queues.items()):
            if number != queue and other.busy:
                on.wait(other.record())
        if nbytes and start is not target:
            with self.lock:
                pyopencl().enqueue_copy(on.handle, target.buffer, start.buffer, byte_count=nbytes)
                on.started()
        return True

    def copy_box(self, memory: Memory, origin: Device, source: Memory, copy: BoxCopy, queue: int = 0) -> bool:
        target, on = self.block(memory), self.queue(queue)
        on_host = None if origin is self else host_bytes(origin, source)
        if origin is not self and on_host is None:
            return False
        copy.check(source.nbytes, target.nbytes)
        start = self.block(source).buffer if on_host is None else on_host
        with self.lock:
            try:
                events = enqueue(on.handle, target.buffer, start, copy)
                on.handle.flush()
            except pyopencl().Error as error:
                raise failed("copy a box", error) from error
            finally:
                on.started()
        on.keep(events[-1], (*events, target, source))
        return True

    # queues

    def queue(self, number: int = 0) -> OpenCLQueue:
        found = self._queues.get(number)
        if found is None:
            if not 0 <= number < self._info.queues:
                raise ValueError(
                    f"{self._info.name} has {self._info.queues} queues, from 0: there is no queue {number}"
                )
            with self.lock:
                if number not in self._queues:
                    made = OpenCLQueue(self.context)
                    for other in self._queues.values():  # as `allocate` orders those that there are
                        if other.busy:
                            made.wait(other.record(), news=False)
                    self._queues[number] = made
                found = self._queues[number]
        return found

    def synchronize(self) -> None:
        for queue in list(self._queues.values()):
            queue.synchronize()

    # programs

    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[OpenCLCode], bytes]:
        text, entries, names = self._text(programs)
        cl = pyopencl()
        try:
            program = cl.Program(self.context, text)
            built = program.build(self._options(), cache_dir=False)
            if keeps_text(self.handle):
                body = text.encode()
            else:
                (body,) = built.get_info(cl.program_info.BINARIES)
        except cl.Error as error:
            raise DeviceError(
                f"OpenCL could not compile {', '.join(p.name for p in programs)}: {error}"
            ) from error
        known = describe_entries(entries)
        head = b"" if known is None else json.dumps([known, names, len(body)]).encode()
        image = b"" if known is None else _MAGIC + struct.pack("<I", len(head)) + head + body
        return _codes(entries, names, built, text), image

    def _text(self, programs: Sequence[Program]) -> tuple[str, list[Entry], dict[str, str]]:
        info = self._info
        most = info.bounds.parameters + RESERVED // 2
        grids, entries = split(programs, info.local_bytes, info.bounds.threads, most)
        return render_module(grids, OpenCL(on_cpu=self._on_cpu)), entries, kernel_names(grids)

    def _options(self) -> list[str]:
        config = pyopencl().device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        return [*OPTIONS, CORRECT] if self.handle.single_fp_config & config else list(OPTIONS)

    def load(self, image: bytes, names: Sequence[str]) -> Sequence[OpenCLCode]:
        if not image.startswith(_MAGIC):
            raise ValueError("not an image of this backend")
        cl, start = pyopencl(), len(_MAGIC) + 4
        try:
            (size,) = struct.unpack_from("<I", image, len(_MAGIC))
            known, kernels, length = json.loads(image[start : start + size])
            entries = {e.name: e for e in parse(known)}
            wanted = [entries[n] for n in names]
            body = image[start + size :]
            if len(body) != length:
                raise ValueError(f"it has {len(body)} of {length} bytes")
            if keeps_text(self.handle):
                text = body.decode()
                built = cl.Program(self.context, text).build(self._options(), cache_dir=False)
            else:
                text = ""
                built = cl.Program(self.context, [self.handle], [body]).build(cache_dir=False)
            return _codes(wanted, kernels, built, text)
        except (struct.error, TypeError, KeyError, UnicodeDecodeError) as error:
            raise ValueError(f"not an image of these programs: {error}") from error
        except cl.Error as error:
            raise ValueError(f"not an image of this device: {error}") from error

    def fingerprint(self) -> str:
        d = self.handle
        return f"opencl {__version__} {d.platform.name} {d.platform.version} {d.name} {d.driver_version}"

    def listings(self, program: Program) -> Mapping[str, str]:
        return {"opencl": self._text([program])[0]}

    def limits(self) -> Limits:
        return described(self._info)

    def link(self, codes: Sequence[Code], commands: Commands) -> OpenCLExecutable:
        return OpenCLExecutable(self, cast("Sequence[OpenCLCode]", codes), commands)


def _codes(entries: Sequence[Entry], names: Mapping[str, str], built: Any, text: str) -> list[OpenCLCode]:
    return [OpenCLCode(e, built, tuple(names[p.name] for p in e.parts), text) for e in entries]
