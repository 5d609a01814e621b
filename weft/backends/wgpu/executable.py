"""A plan as dispatches with their bind groups."""

from __future__ import annotations

import struct
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.backends.clike.parts import offsets
from weft.backends.protocol import Commands, CopyBytes, Launch, Memory
from weft.errors import DeviceError
from weft.ir.index import Int, evaluate
from weft.lazy_dataclass import dataclass

from .driver import wgpu
from .render import WIDE

if TYPE_CHECKING:
    from .device import WgpuCode, WgpuDevice

ALIGNMENT = 256
"""The alignment of a binding's offset, on every device."""

GROUPS_KEPT = 8
"""Runs on different memory whose bind groups are kept; the least recently used goes first."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One dispatch: its pipeline, how many blocks, the cells that its buffers are in, where its numbers begin in the
    uniform, and its variables as (name, the plan's number)."""

    pipeline: Any
    blocks: Int
    cells: tuple[int, ...]
    numbers: int
    names: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class _Range:
    """A part of a buffer."""

    buffer: Any
    offset: int
    nbytes: int


class WgpuExecutable:
    """Commands whose buffers are cells of one table: externals, slots of the workspace, scratch buffers."""

    def __init__(self, device: WgpuDevice, codes: Sequence[WgpuCode], commands: Commands) -> None:
        self._device, self._commands = device, commands
        self.finished = 0
        count = commands.externals + len(commands.offsets)
        for s in commands.steps:
            slots = s.slots if isinstance(s, Launch) else (s.target, s.source)
            if any(not 0 <= k < count for k in slots) or (
                isinstance(s, Launch) and not 0 <= s.program < len(codes)
            ):
                raise ValueError(f"a plan of {count} slots and {len(codes)} programs has no {s!r}")
        layouts: dict[tuple[int, ...], tuple[tuple[int, ...], int]] = {}
        for s in commands.steps:
            if isinstance(s, Launch):
                own = codes[s.program].entry.scratch
                layouts.setdefault(own, offsets(own, ALIGNMENT))
        self._scratch_at = -(-commands.workspace_bytes // ALIGNMENT) * ALIGNMENT
        self._bytes = self._scratch_at + max((end for _, end in layouts.values()), default=0)
        self._regions = list(commands.offsets)
        self._cells: dict[tuple[int, ...], int] = {}
        for own, (starts, _) in layouts.items():
            self._cells[own] = commands.externals + len(self._regions)
            self._regions += [self._scratch_at + s for s in starts]
        self._numbers = 0
        self._steps: list[list[_Call] | CopyBytes] = []
        for s in commands.steps:
            self._steps.append(s if isinstance(s, CopyBytes) else self._calls(s, codes[s.program]))
        usage = wgpu().BufferUsage
        self._uniform = device.handle.create_buffer(
            size=max(ALIGNMENT, self._numbers), usage=usage.UNIFORM | usage.COPY_DST
        )
        self._written: tuple[int, ...] | None = None
        self._groups: OrderedDict[tuple[int, ...], tuple[list[_Range], list[list[Any]]]] = OrderedDict()

    def _calls(self, step: Launch, code: WgpuCode) -> list[_Call]:
        entry = code.entry
        if len(step.slots) != entry.parameters or len(step.variables) != len(entry.variables):
            raise ValueError(f"{entry.name} has {entry.parameters} parameters, not {len(step.slots)}")
        names = tuple(zip(entry.variables, step.variables, strict=True))
        out: list[_Call] = []
        for part, pipeline in zip(entry.parts, code.pipelines, strict=True):
            cells = tuple(
                step.slots[a] if a < entry.parameters else self._cells[entry.scratch] + a - entry.parameters
                for a in part.args
            )
            out.append(_Call(pipeline, part.blocks, cells, self._numbers, names))
            self._numbers += -(-4 * (len(names) + 2) // ALIGNMENT) * ALIGNMENT
        return out

    def _prepare(
        self, memories: Sequence[Memory], variables: Sequence[int]
    ) -> tuple[list[_Range], list[list[Any]]]:
        """The table and the bind groups of a run on these memories."""
        c, device = self._commands, self._device
        if len(memories) != c.externals or len(variables) != c.variables:
            raise ValueError(
                f"the plan takes {c.externals} memories and {c.variables} variables, "
                f"not {len(memories)} and {len(variables)}"
            )
        blocks = [device.block(m) for m in memories]
        workspace = device.workspace(self._bytes) if self._bytes else None
        key = (id(workspace and workspace.buffer), *(id(b.buffer) for b in blocks))
        found = self._groups.get(key)
        if found is not None:
            self._groups.move_to_end(key)
            return found
        table = [_Range(b.buffer, 0, b.buffer.size) for b in blocks]
        if workspace is not None:
            table += [_Range(workspace.buffer, at, workspace.buffer.size - at) for at in self._regions]
        groups = [[] if isinstance(s, CopyBytes) else [self._group(x, table) for x in s] for s in self._steps]
        self._groups[key] = table, groups
        if len(self._groups) > GROUPS_KEPT:
            self._groups.popitem(last=False)
        return table, groups

    def _group(self, call: _Call, table: Sequence[_Range]) -> Any:
        most = self._device.info.bounds.buffer_bytes
        ranges = [table[k] for k in call.cells]
        ranges.append(_Range(self._uniform, call.numbers, -(-(len(call.names) + 2) // 4) * 16))
        entries = [
            {"binding": k, "resource": {"buffer": r.buffer, "offset": r.offset, "size": min(r.nbytes, most)}}
            for k, r in enumerate(ranges)
        ]
        return self._device.handle.create_bind_group(
            layout=call.pipeline.get_bind_group_layout(0), entries=entries
        )

    def _counts(self, variables: Sequence[int]) -> list[list[int]]:
        """Count each dispatch's blocks, and write the uniform as it has to be."""
        counts: list[list[int]] = []
        words = bytearray(max(ALIGNMENT, self._numbers))
        for s in self._steps:
            own: list[int] = []
            for call in () if isinstance(s, CopyBytes) else s:
                values = [variables[k] for _, k in call.names]
                blocks = call.blocks
                if not isinstance(blocks, int):
                    blocks = int(evaluate(blocks, dict(zip((n for n, _ in call.names), values, strict=True))))
                if blocks > self._device.info.bounds.blocks:
                    raise DeviceError(f"{self._device.info.name} has no launches of {blocks:,} blocks")
                struct.pack_into(f"<{len(values) + 2}i", words, call.numbers, *values, max(blocks, 0), 0)
                own.append(max(blocks, 0))
            counts.append(own)
        if self._written != tuple(variables):
            self._device.handle.queue.write_buffer(self._uniform, 0, words)
            self._written = tuple(variables)
        return counts

    def run(self, memories: Sequence[Memory], variables: Sequence[int] = (), queue: int = 0) -> None:
        self._device.queue(queue)
        with self._device.lock:
            table, groups = self._prepare(memories, variables)
            self._submit(range(len(self._steps)), table, groups, self._counts(variables))
            self.finished += 1

    @property
    def started(self) -> int:
        """As many as finished: all of a run is submitted at once."""
        return self.finished

    def _submit(
        self, steps: Sequence[int], table: list[_Range], groups: list[list[Any]], counts: list[list[int]]
    ) -> None:
        errors = wgpu().GPUError
        encoder = self._device.handle.create_command_encoder()
        compute: Any = None
        try:
            for k in steps:
                s = self._steps[k]
                if isinstance(s, CopyBytes):
                    if compute is not None:
                        compute.end()
                        compute = None
                    self._copy(encoder, table, s)
                    continue
                for call, group, blocks in zip(s, groups[k], counts[k], strict=True):
                    if not blocks:
                        continue
                    if compute is None:
                        compute = encoder.begin_compute_pass()
                    compute.set_pipeline(call.pipeline)
                    compute.set_bind_group(0, group)
                    compute.dispatch_workgroups(min(blocks, WIDE), -(-blocks // WIDE))
            if compute is not None:
                compute.end()
            self._device.handle.queue.submit([encoder.finish()])
        except errors as error:
            raise DeviceError(f"{self._device.info.name} could not start a run: {error}") from error

    def _copy(self, encoder: Any, table: list[_Range], s: CopyBytes) -> None:
        if s.nbytes and s.source != s.target:
            # whole words: every memory is a multiple of them, and what is behind the tensor is nobody's
            source, target = table[s.source], table[s.target]
            nbytes = -(-s.nbytes // 4) * 4
            if source.buffer is not target.buffer:
                encoder.copy_buffer_to_buffer(
                    source.buffer, source.offset, target.buffer, target.offset, nbytes
                )
                return
            between = self._device.allocate(nbytes)  # WebGPU copies nothing within one buffer
            encoder.copy_buffer_to_buffer(source.buffer, source.offset, between.buffer, 0, nbytes)
            encoder.copy_buffer_to_buffer(between.buffer, 0, target.buffer, target.offset, nbytes)

    def run_timed(self, memories: Sequence[Memory], variables: Sequence[int] = ()) -> list[int]:
        device = self._device
        times: list[int] = []
        with device.lock:
            table, groups = self._prepare(memories, variables)
            counts = self._counts(variables)
            device.synchronize()
            for k in range(len(self._steps)):
                start = time.perf_counter_ns()
                self._submit([k], table, groups, counts)
                device.synchronize()
                times.append(time.perf_counter_ns() - start)
            self.finished += 1
        return times
