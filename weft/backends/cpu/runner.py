"""Plans as native data: an array of instructions over one table of pointers, run by one native call.

An instruction is a kernel and its slots. Kernels have the signature `void kernel(ptr table, ptr slots, ptr vars)`:
buffer k of a kernel is `table[slots[k]]`, and its variable j is `vars[slots[buffers + j]]`, where slots are int32
and variables int64.
"""
# Tests: tests/backends/cpu/test_runtime.py

from __future__ import annotations

import ctypes
import struct
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from weft.backends.direct import DirectRun, Route, Source
from weft.ir.forks import forkable
from weft.lazy_dataclass import dataclass

from .direct import DirectCalls
from .pool import Pool

_WORD = 8
_INT32_MASK = 0xFFFFFFFF

_DIRECT_LIMIT = 2048
"""Memories of a direct call at most: their addresses are on the stack."""

# Called without argument types: a ctypes object passed as such is the cheapest argument there is.
_RUN_PLAN = ctypes.CFUNCTYPE(None)
_RUN_TIMED = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
)


class Instruction(NamedTuple):
    """One native call: a kernel's address and its slots (buffers first, then variables)."""

    kernel: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunnerFunctions:
    """Addresses of the native runner's entries (see native.py)."""

    run_plan: int
    run_timed: int
    copy: int
    copy_variable: int

    def copy_instruction(self, target: int, source: int, nbytes: int) -> Instruction:
        """Copy `nbytes` from slot `source` to slot `target`; large copies use all threads."""
        low, high = nbytes & _INT32_MASK, nbytes >> 32
        return Instruction(self.copy, (target, source, low - (low >> 31 << 32), high))

    def copy_variable_instruction(self, target: int, source: int, variable: int) -> Instruction:
        """The same with the byte count taken from a runtime variable."""
        return Instruction(self.copy_variable, (target, source, variable))


class NativePlan:
    """A runnable sequence of instructions.

    The table's first `externals` pointers change with every run; `pointers` are the rest, fixed (arena base plus
    offset, constants). Slot s of an instruction is therefore external s for s < externals, else
    `pointers[s - externals]`. The plan does not keep the memory or the code alive: its owner does, or passes them as
    `keep`. Runs of one plan from several threads take turns.
    """

    _pack_address = struct.Struct("=Q").pack_into
    __slots__ = (
        "_direct",
        "_instructions",
        "_keep",
        "_lock",
        "_memory",
        "_pack",
        "_pack_variables",
        "_pool",
        "_record_address",
        "_run",
        "_run_timed",
        "_slots",
        "_tail",
        "count",
        "externals",
        "record",
        "variables",
    )

    def __init__(
        self,
        functions: RunnerFunctions,
        pool: Pool,
        instructions: Sequence[tuple[int, tuple[int, ...]]],
        pointers: Sequence[int] = (),
        *,
        externals: int = 0,
        variables: int = 0,
        direct: DirectCalls | None = None,
        keep: object = None,
    ) -> None:
        """Slots are taken as they are: the kernels' meaning of them is the code generator's business."""
        self.count = len(instructions)
        self.variables = variables
        self._pool = pool
        self._keep = keep
        self._lock = forkable(threading.Lock())
        # Variables stand just before the table, so that one pack_into writes all that changes.
        self._memory = ctypes.create_string_buffer(max(1, variables + externals + len(pointers)) * _WORD)
        base = ctypes.addressof(self._memory)
        struct.pack_into(f"={len(pointers)}Q", self._memory, (variables + externals) * _WORD, *pointers)
        self._pack = struct.Struct(f"={variables}q{externals}Q").pack_into
        self._pack_variables = struct.Struct(f"={variables}q").pack_into
        kernels, slots = zip(*instructions, strict=True) if instructions else ((), ())
        self._slots = _packed("i", list(chain.from_iterable(slots)))
        self._instructions = self._encoded(kernels, slots)
        record = (base + variables * _WORD, self._instructions.buffer_info()[0], self.count, base, 0)
        self.record = array("Q", record)
        """The arguments of the native call; the last is how often it was made."""
        self._record_address = ctypes.c_void_p(self.record.buffer_info()[0])
        self._run = _RUN_PLAN(functions.run_plan)
        self._run_timed = _RUN_TIMED(functions.run_timed)
        self._direct = direct
        self._tail = (base + (variables + externals) * _WORD, len(pointers))
        self.externals = externals

    def direct(
        self,
        sources: Sequence[Source],
        arguments: int,
        holds: bool = False,
        stamp: Callable[[], int] | None = None,
        route: Route | None = None,
    ) -> DirectRun | None:
        """The run as a function of so many arguments, one source for each external memory; see direct.py. None where
        it takes variables, or too many memories. Runs with fixed pointers are not to be made two at a time."""
        table = self.externals + self._tail[1]
        if self._direct is None or self.variables or table > _DIRECT_LIMIT:
            return None
        if len(sources) != self.externals:
            raise ValueError(f"the plan takes {self.externals} memories, not {len(sources)}")
        instructions = self._instructions.buffer_info()[0], self.count
        keep = (self._keep, self._slots, self._instructions, self._memory)
        return self._direct.function(instructions, sources, arguments, self._tail, holds, stamp, route, keep)

    def _encoded(self, kernels: Sequence[int], slots: Sequence[Sequence[int]]) -> array[int]:
        """The kernels' addresses, each before that of its slots."""
        size, first = self._slots.itemsize, self._slots.buffer_info()[0]
        words = [0] * (2 * len(kernels))
        words[::2] = kernels
        words[1::2] = list(accumulate([size * len(s) for s in slots], initial=first))[:-1]
        return _packed("Q", words)

    def run(self, externals: Iterable[int] = (), variables: Sequence[int] = ()) -> None:
        """Run all instructions with these external pointers and runtime variables. Raises struct.error where
        their number is not the plan's."""
        if self._pool.forked:
            self._pool.revive()
        with self._lock:
            self._pack(self._memory, 0, *variables, *externals)
            self._run(self._record_address)

    def run_again(self, changed: Iterable[tuple[int, int]], variables: Sequence[int] = ()) -> None:
        """Run all instructions with the external pointers of the last run, but for those `changed`, by number. Raises
        struct.error where the number of variables is not the plan's, or there is no such pointer."""
        if self._pool.forked:
            self._pool.revive()
        with self._lock:
            for k, address in changed:
                self._pack_address(self._memory, (self.variables + k) * _WORD, address)
            self._pack_variables(self._memory, 0, *variables)
            self._run(self._record_address)

    def run_timed(self, externals: Iterable[int] = (), variables: Sequence[int] = ()) -> list[int]:
        """Run, and return the nanoseconds that each instruction took."""
        nanoseconds = array("q", bytes(_WORD * self.count))
        if self._pool.forked:
            self._pool.revive()
        with self._lock:
            self._pack(self._memory, 0, *variables, *externals)
            self._run_timed(*self.record[:4], nanoseconds.buffer_info()[0])
            self.record[4] += 1
        return nanoseconds.tolist()

    def set_pointers(self, first: int, addresses: Sequence[int]) -> None:
        """Replace fixed pointers from table slot `first` on, e.g. after moving the arena."""
        if first < 0 or (first + len(addresses)) * _WORD > len(self._memory) - self.variables * _WORD:
            raise ValueError(f"slots {first}..{first + len(addresses)} are not all in the table")
        with self._lock:
            struct.pack_into(
                f"={len(addresses)}Q", self._memory, (self.variables + first) * _WORD, *addresses
            )


def _packed(kind: str, values: Sequence[int]) -> array[int]:
    """The values as an array, in a third of the time that its constructor takes. struct.error where one does not
    fit."""
    made: array[int] = array(kind)
    made.frombytes(struct.pack(f"={len(values)}{kind}", *values))
    return made
