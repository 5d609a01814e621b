"""Barriers between the LOCAL stores and loads of different threads of a block.

    alloc tile: f32[64] local                     alloc tile: f32[64] local
    for k in 8:                                   for k in 8:
      thread t in 64:                               thread t in 64:
        tile[t]  = x[64*k + t]            ->          barrier
        acc[0]  += tile[63 - t]                       tile[t]  = x[64*k + t]
                                                      barrier
                                                      acc[0]  += tile[63 - t]

One goes before a statement that reads what was stored since the last barrier, or stores what was read or stored.
What the previous iteration of a loop left behind counts too. A statement that only some threads reach takes the
barrier before it.
"""

from __future__ import annotations

from dataclasses import field, replace

from weft.ir.expr import Load, walk
from weft.ir.loops import (
    LANE_KINDS,
    Accumulate,
    Alloc,
    Barrier,
    Block,
    If,
    Loop,
    LoopKind,
    Program,
    Scope,
    Stmt,
    Store,
)
from weft.ir.loops_names import every, names_of_stmt, roots
from weft.ir.passes.rewrite import with_body
from weft.lazy_dataclass import dataclass


def place_barriers(p: Program) -> Program:
    """`p` with the barriers that its LOCAL buffers need."""
    shared = {s.buffer.name for s in every(p.body) if isinstance(s, Alloc) and s.buffer.scope is Scope.LOCAL}
    threads = [s for s in every(p.body) if isinstance(s, Loop) and s.kind is LoopKind.THREAD]
    if not shared or not threads:
        return p
    worker = _Placer(shared, frozenset(s.var.name for s in threads))
    return with_body(p, worker.block(p.body, _Pending(), False))


@dataclass(slots=True)
class _Pending:
    """The LOCAL buffers touched since the last barrier."""

    stored: set[str] = field(default_factory=set[str])
    read: set[str] = field(default_factory=set[str])

    def add(self, other: _Pending) -> None:
        self.stored |= other.stored
        self.read |= other.read

    def clear(self) -> None:
        self.stored.clear()
        self.read.clear()

    def conflicts(self, later: _Pending) -> bool:
        return bool(self.stored & (later.read | later.stored) or self.read & later.stored)


class _Placer:
    def __init__(self, shared: set[str], threads: frozenset[str]) -> None:
        self.shared, self.threads = shared, threads

    def block(self, body: Block, pending: _Pending, inside: bool) -> Block:
        """The block with barriers; `pending` is what is pending before it, and then after it."""
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, Barrier):
                pending.clear()
            elif isinstance(s, Loop | If) and (not inside or self.uniform(s)):
                s = self.nested(s, pending, inside)
            else:
                touched = self.touched(s)
                if inside and pending.conflicts(touched):
                    out.append(Barrier())
                    pending.clear()
                pending.add(touched)
            out.append(s)
        return tuple(out)

    def nested(self, s: Loop | If, pending: _Pending, inside: bool) -> Loop | If:
        inside = inside or (isinstance(s, Loop) and s.kind is LoopKind.THREAD)
        before = _Pending(set(pending.stored), set(pending.read))
        body = self.block(s.body, pending, inside)
        if isinstance(s, Loop) and s.kind is not LoopKind.THREAD:
            pending.add(before)  # a second time round, after what the first left behind
            body = self.block(s.body, pending, inside)
        pending.add(before)  # it may not run at all
        return replace(s, body=body)

    def uniform(self, s: Loop | If) -> bool:
        """All threads go through it alike."""
        if isinstance(s, Loop) and s.kind is LoopKind.THREAD:
            return True
        lanes = isinstance(s, Loop) and s.kind in LANE_KINDS
        return not lanes and self.same(s)

    def same(self, s: Loop | If) -> bool:
        used = names_of_stmt(s)
        return used.isdisjoint(self.threads) and not any(True for _ in roots(s))

    def touched(self, s: Stmt) -> _Pending:
        out = _Pending()
        for x in every((s,)):
            if isinstance(x, Store | Accumulate) and x.buffer in self.shared:
                out.stored.add(x.buffer)
            out.read |= {e.source for e in walk(roots(x)) if isinstance(e, Load) and e.source in self.shared}
        return out
