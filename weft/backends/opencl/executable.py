"""A plan as kernels with their arguments set."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.backends.clike.parts import offsets
from weft.backends.interrupts import shielded
from weft.backends.protocol import Commands, CopyBytes, Launch, Memory
from weft.ir.index import Int, evaluate
from weft.lazy_dataclass import dataclass

from .driver import failed, pyopencl
from .memory import MemoryBlock

if TYPE_CHECKING:
    from .device import OpenCLCode, OpenCLDevice

SCRATCH_ALIGNMENT = 256


@dataclass(slots=True)
class _Call:
    """One launch: its kernel, how many blocks of how many threads, the cells that its buffers are in and what was last
    set there, and its variables as (name, the plan's number)."""

    kernel: Any
    blocks: Int
    threads: int
    cells: tuple[int, ...]
    names: tuple[tuple[str, int], ...]
    bound: list[Any] = field(default_factory=list[Any])
    values: tuple[int, ...] = ()


class OpenCLExecutable:
    """Commands whose buffers are cells of one table: externals, slots of the workspace, scratch buffers."""

    def __init__(self, device: OpenCLDevice, codes: Sequence[OpenCLCode], commands: Commands) -> None:
        self._device, self._commands = device, commands
        count = commands.externals + len(commands.offsets)
        for s in commands.steps:
            slots = s.slots if isinstance(s, Launch) else (s.target, s.source)
            if any(not 0 <= k < count for k in slots) or (
                isinstance(s, Launch) and not 0 <= s.program < len(codes)
            ):
                raise ValueError(f"a plan of {count} slots and {len(codes)} programs has no {s!r}")
        sizes = [codes[s.program].entry.scratch for s in commands.steps if isinstance(s, Launch)]
        layouts = {own: offsets(own, SCRATCH_ALIGNMENT) for own in dict.fromkeys(sizes)}
        self._scratch_at = -(-commands.workspace_bytes // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
        self._bytes = self._scratch_at + max((end for _, end in layouts.values()), default=0)
        self._regions: list[int] = list(commands.offsets)
        self._cells: dict[tuple[int, ...], int] = {}
        for own, (starts, _) in layouts.items():
            self._cells[own] = commands.externals + len(self._regions)
            self._regions += [self._scratch_at + s for s in starts]
        self._table: list[Any] = [None] * (commands.externals + len(self._regions))
        self._workspace: MemoryBlock | None = None
        self._steps: list[tuple[list[_Call], CopyBytes | None]] = []
        for s in commands.steps:
            if isinstance(s, CopyBytes):
                self._steps.append(([], s))
            else:
                self._steps.append((self._calls(s, codes[s.program]), None))
        self._lock = threading.Lock()
        self.started = self.finished = 0

    def _calls(self, step: Launch, code: OpenCLCode) -> list[_Call]:
        cl, entry = pyopencl(), code.entry
        if len(step.slots) != entry.parameters or len(step.variables) != len(entry.variables):
            raise ValueError(f"{entry.name} has {entry.parameters} parameters, not {len(step.slots)}")
        out: list[_Call] = []
        for part, name in zip(entry.parts, code.kernels, strict=True):
            cells = tuple(
                step.slots[a] if a < entry.parameters else self._cells[entry.scratch] + a - entry.parameters
                for a in part.args
            )
            names = tuple(zip(entry.variables, step.variables, strict=True))
            out.append(_Call(cl.Kernel(code.program, name), part.blocks, part.threads, cells, names))
            out[-1].bound = [None] * len(cells)
        return out

    def _prepare(self, memories: Sequence[Memory], variables: Sequence[int]) -> None:
        """Fill in the table."""
        c, device = self._commands, self._device
        if len(memories) != c.externals or len(variables) != c.variables:
            raise ValueError(
                f"the plan takes {c.externals} memories and {c.variables} variables, "
                f"not {len(memories)} and {len(variables)}"
            )
        blocks = [device.block(m) for m in memories]
        if self._bytes:
            workspace = device.workspace(self._bytes)
            if workspace is not self._workspace:
                self._workspace = workspace
                for k, at in enumerate(self._regions):
                    self._table[c.externals + k] = _region(workspace, at, self._end(k) - at)
        for k, b in enumerate(blocks):
            self._table[k] = b.buffer

    def _end(self, region: int) -> int:
        """The end of what a region of the workspace may reach."""
        return self._bytes if region >= len(self._commands.offsets) else max(self._scratch_at, 1)

    def _issue(self, queue: Any, call: _Call, variables: Sequence[int]) -> Any:
        cl, kernel, bound = pyopencl(), call.kernel, call.bound
        for k, cell in enumerate(call.cells):
            buffer = self._table[cell]
            if bound[k] is not buffer:
                kernel.set_arg(k, buffer)
                bound[k] = buffer
        values = tuple(variables[n] for _, n in call.names)
        if values != call.values or not call.names:
            for k, value in enumerate(values):
                kernel.set_arg(len(call.cells) + k, np.int64(value))
            call.values = values
        blocks = call.blocks
        if not isinstance(blocks, int):
            blocks = int(evaluate(blocks, {name: variables[n] for name, n in call.names}))
        if blocks <= 0:
            return None
        return cl.enqueue_nd_range_kernel(queue, kernel, (blocks * call.threads,), (call.threads,))

    def _copy(self, queue: Any, step: CopyBytes) -> Any:
        if not step.nbytes:
            return None
        source, target = self._table[step.source], self._table[step.target]
        return pyopencl().enqueue_copy(queue, target, source, byte_count=step.nbytes)

    def run(self, memories: Sequence[Memory], variables: Sequence[int] = (), queue: int = 0) -> None:
        on, cl = self._device.queue(queue), pyopencl()
        with self._device.lock:
            self.started = self.finished
            self._prepare(memories, variables)
            self._take_workspace(queue)
            try:
                with shielded(memories):
                    self.started = self.finished + 1
                    for calls, copy in self._steps:
                        for call in calls:
                            self._issue(on.handle, call, variables)
                        if copy is not None:
                            self._copy(on.handle, copy)
                    self.finished = self.started
                on.handle.flush()
            except cl.MemoryError as error:
                raise MemoryError(str(error)) from error
            except cl.Error as error:
                raise failed("start a run", error) from error
            finally:
                on.started()

    def _take_workspace(self, queue: int) -> None:
        """Runs on different queues take turns with the workspace."""
        device = self._device
        if self._bytes:
            last = device.workspace_queue
            if last != queue:
                device.queue(queue).wait(device.queue(last).record())
                device.workspace_queue = queue

    def run_timed(self, memories: Sequence[Memory], variables: Sequence[int] = ()) -> list[int]:
        device = self._device
        on = device.queue(0)
        with device.lock:
            device.synchronize()
            self._prepare(memories, variables)
            self._take_workspace(0)
            events: list[list[Any]] = []
            self.started = self.finished + 1
            for calls, copy in self._steps:
                started = [self._issue(on.handle, call, variables) for call in calls]
                if copy is not None:
                    started.append(self._copy(on.handle, copy))
                events.append([e for e in started if e is not None])
            self.finished = self.started
            on.started()
            on.synchronize()
        return [sum(e.profile.end - e.profile.start for e in own) for own in events]


def _region(workspace: MemoryBlock, at: int, nbytes: int) -> Any:
    """The part of the workspace from `at` on, as a buffer."""
    return workspace.buffer.get_sub_region(at, max(1, nbytes))
