"""Products by groups of four warps, from shared memory: `wgmma`, its descriptors, and the proxy that it reads through.

PTX ISA, "Asynchronous warpgroup level matrix instructions": matrix fragments of D, canonical layouts, and the matrix
descriptor. A product is done when it is waited for, and not a moment earlier; until then its registers hold NaN.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .text import Instruction, PtxError

if TYPE_CHECKING:
    from .machine import Machine

Array = NDArray[Any]
Step = Callable[["Machine", Any], None]

LANES = 128
THREAD = np.arange(LANES)
WIDTHS = {1: 128, 2: 64, 3: 32}
"""Bytes of a row of the pattern, by the mode in the descriptor; 0 has none."""


def decode(i: Instruction) -> Step | None:
    """What the instruction does, if it is one of these."""
    op = i.op
    match op[:2]:
        case ("wgmma", "fence"):
            return lambda m, idx: m.groups.ready(idx)
        case ("wgmma", "mma_async"):
            return _product(i)
        case ("wgmma", "commit_group"):
            return lambda m, idx: m.groups.commit(idx)
        case ("wgmma", "wait_group"):
            return lambda m, idx: m.groups.wait(idx, int(i.operands[0]))
        case ("fence", "proxy") if op[2] == "async":
            return lambda m, idx: m.groups.publish(idx)
        case _:
            return None


def places(descriptor: int, rows: int, across: bool) -> Array:
    """The byte in shared memory of element (row, term) of an operand of 16-bit elements and 16 terms; `across`: rows
    are contiguous, not terms."""
    start, leading, stride = (((descriptor >> at) & 0x3FFF) << 4 for at in (0, 16, 32))
    mode = descriptor >> 62 & 3
    if descriptor >> 49 & 7:
        raise PtxError("a pattern that does not start where it repeats")
    r, k = np.arange(rows)[:, None], np.arange(16)[None, :]
    if mode == 0:
        if across:
            return start + r % 8 * 2 + r // 8 * stride + k % 8 * 16 + k // 8 * leading
        return start + r % 8 * 16 + r // 8 * stride + k // 8 * leading + k % 8 * 2
    width = WIDTHS[mode]
    if across:
        at = start + r % (width // 2) * 2 + r // (width // 2) * leading + k % 8 * width + k // 8 * stride
    else:
        if leading != 16:
            raise PtxError("the leading offset of rows in a pattern is 1 (times 16 bytes)")
        at = start + r % 8 * width + r // 8 * stride + k * 2
    return at ^ (at >> 3 & (width // 16 - 1) << 4)


@dataclass
class _Pending:
    """Products that add to the same registers of one group, in order: (descriptors, transpositions)."""

    lanes: Array
    registers: tuple[str, ...]
    kind: str
    held: Array
    group: int | None = None
    after: _Pending | None = None
    """An earlier product with the same registers that is on its way: its sums are what this one adds to."""
    steps: list[tuple[int, int, bool, bool]] = field(default_factory=list[tuple[int, int, bool, bool]])


class Groups:
    """What groups of warps have on its way."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.fenced = np.zeros(m.n, np.bool_)
        self.committed = np.zeros(m.n, "i8")
        self.pending: list[_Pending] = []
        self.writer: Array | None = None

    def watch(self) -> Array:
        """By byte of shared memory, 1 + the thread whose store other proxies do not see yet."""
        if self.writer is None:
            self.writer = np.zeros(len(self.m.shared), "i4")
        return self.writer

    def wrote(self, flat: Array, nbytes: int, lanes: Array) -> None:
        """Threads stored, by ordinary means."""
        self.watch()[flat[:, None] + np.arange(nbytes)] = lanes[:, None] + 1

    def publish(self, idx: Any) -> None:
        seen = np.zeros(self.m.n + 1, np.bool_)
        seen[self.m.numbers(idx) + 1] = True
        writer = self.watch()
        writer[seen[writer]] = 0

    def rows(self, idx: Any) -> Array:
        lanes = self.m.numbers(idx)
        whole = len(lanes) % LANES == 0 and not (self.m.thread[lanes[::LANES]] % LANES).any()
        if not whole or (np.diff(lanes.reshape(-1, LANES)) != 1).any():
            raise PtxError("only a part of a group of warps takes part")
        return lanes.reshape(-1, LANES)

    def ready(self, idx: Any) -> None:
        self.rows(idx)
        self.fenced[idx] = True

    def start(
        self, registers: tuple[str, ...], kind: str, a: Array, b: Array, across: tuple[bool, bool], idx: Any
    ) -> None:
        m = self.m
        lanes = self.rows(idx)
        if not self.fenced[idx].all():
            raise PtxError("a product whose registers are not fenced")
        if m.profile is not None:
            m.profile.product(64, 2 * len(registers), len(lanes))
        for n, row in enumerate(lanes):
            da, db = (np.broadcast_to(x, lanes.size)[n * LANES : (n + 1) * LANES] for x in (a, b))
            if (da != da[0]).any() or (db != db[0]).any():
                raise PtxError("the threads of a group have different descriptors")
            mine = [p for p in self.pending if p.lanes[0] == row[0]]
            found = next((p for p in mine if p.registers == registers and p.group is None), None)
            if found is None:
                others = [p for p in mine if set(p.registers) & set(registers)]
                if any(p.registers != registers for p in others):
                    raise PtxError("registers of a product that is on its way")
                held = np.stack([m.get(r, "f32", row).copy() for r in registers], 1)
                found = _Pending(row, registers, kind, held, after=others[-1] if others else None)
                self.pending.append(found)
                for r in registers:
                    m.put(r, row, np.full(LANES, np.nan, "f4"))
            found.steps.append((int(da[0]), int(db[0]), *across))

    def commit(self, idx: Any) -> None:
        for row in self.rows(idx):
            for p in self.pending:
                if p.lanes[0] == row[0] and p.group is None:
                    p.group = int(self.committed[row[0]])
            self.committed[row] += 1

    def wait(self, idx: Any, left: int) -> None:
        for row in self.rows(idx):
            done = [p for p in self.pending if p.lanes[0] == row[0] and p.group is not None]
            for p in [p for p in done if p.group is not None and p.group < self.committed[row[0]] - left]:
                self.finish(p)
                self.pending.remove(p)
            self.fenced[row] = False

    def finish(self, p: _Pending) -> None:
        m = self.m
        warp, lane = THREAD // 32, THREAD % 32
        n = len(p.registers) * 2
        e = np.arange(len(p.registers))
        rows = (warp * 16 + lane // 4)[:, None] + 8 * (e // 2 % 2)
        columns = 8 * (e // 4) + (lane % 4 * 2)[:, None] + e % 2
        total = np.zeros((64, n))
        total[rows, columns] = p.held
        for da, db, ta, tb in p.steps:
            left, right = self.read(p, da, 64, ta), self.read(p, db, n, tb)
            with np.errstate(all="ignore"):
                total = (total + left @ right.T).astype("f4").astype("f8")
        result = total[rows, columns].astype("f4")
        for q in self.pending:
            if q.after is p:
                q.held, q.after = result, None
                return
        for k, r in enumerate(p.registers):
            m.put(r, p.lanes, np.ascontiguousarray(result[:, k]))

    def read(self, p: _Pending, descriptor: int, rows: int, across: bool) -> Array:
        from .warps import numbers

        m = self.m
        at = places(descriptor, rows, across)
        if int(at.max()) + 2 > m.shared_bytes:
            raise PtxError(f"access of shared memory at byte {int(at.max())} of {m.shared_bytes}")
        flat = at + m.block[p.lanes[0]] * m.shared_bytes
        if self.watch()[flat].any():
            raise PtxError("a product reads what a thread stored and did not fence for other proxies")
        if m.races is not None:
            first = np.full(flat.size, m.thread[p.lanes[0]], "i4")
            m.races.check(flat.ravel(), 2, first, np.full(flat.size, m.epoch[p.lanes[0]]), False)
        bits = m.shared[flat[..., None] + np.arange(2)].reshape(rows, 32)
        return numbers(np.ascontiguousarray(bits).view("u4"), p.kind).reshape(rows, 16)


def _product(i: Instruction) -> Step:
    op, a = i.op, i.operands
    size = re.fullmatch(r"m64n(\d+)k16", op[4])
    kind = op[6]
    if (
        op[2:4] != ("sync", "aligned")
        or size is None
        or op[5] != "f32"
        or kind not in ("bf16", "f16")
        or op[7] != kind
    ):
        raise PtxError(f"unknown product {i.text}")
    registers = tuple(x.strip() for x in a[0][1:-1].split(","))
    if len(registers) * 2 != int(size.group(1)) or int(size.group(1)) % 8 or a[3:6] != ("1", "1", "1"):
        raise PtxError(f"unknown product {i.text}")
    across = a[6] == "1", a[7] == "1"

    def multiply(m: Machine, idx: Any) -> None:
        m.groups.start(registers, kind, m.get(a[1], "u64", idx), m.get(a[2], "u64", idx), across, idx)

    return multiply
