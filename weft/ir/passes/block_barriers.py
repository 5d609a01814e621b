"""Barriers within the body of a block: where threads may meet at an element that another one touched."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import field, replace
from typing import TypeAlias

from weft.ir.expr import Load, walk
from weft.ir.index import Int, coefficient
from weft.ir.loops import Accumulate, Barrier, Block, If, Loop, LoopKind, Stmt, Store
from weft.ir.loops_names import Names, every, roots
from weft.ir.passes.threads import most_threads
from weft.lazy_dataclass import dataclass

_Steps: TypeAlias = dict[str, set[int | None]]
"""By buffer: thread t accesses element step * t; None is any other access."""


@dataclass(slots=True)
class Pending:
    """The buffers that some thread stored to, or read, since the last barrier."""

    stored: _Steps = field(default_factory=dict[str, set[int | None]])
    read: _Steps = field(default_factory=dict[str, set[int | None]])

    def add(self, other: Pending) -> None:
        for mine, more in ((self.stored, other.stored), (self.read, other.read)):
            for name, steps in more.items():
                mine[name] = mine.get(name, set()) | steps

    def copy(self) -> Pending:
        out = Pending()
        out.add(self)
        return out

    def clear(self) -> None:
        self.stored.clear()
        self.read.clear()

    def meets(self, later: Pending) -> bool:
        """True where order matters between these accesses and later ones."""
        return any(
            _may_meet(a, b)
            for mine, other in (
                (self.stored, later.read),
                (self.stored, later.stored),
                (self.read, later.stored),
            )
            for name, a in mine.items()
            if (b := other.get(name)) is not None
        )


def _may_meet(a: set[int | None], b: set[int | None]) -> bool:
    """True where threads may meet: not where each has an element of its own, the same in all accesses."""
    both_ = a | b
    return len(both_) > 1 or None in both_


class Barriers:
    """Barriers between a block's parts: iterations of one loop over threads need none among themselves."""

    def __init__(self, shared: Set[str], own: Set[str], names: Names) -> None:
        self.shared, self.own, self.names = shared, own, names

    def block(self, body: Block, pending: Pending) -> Block:
        """The block with barriers; `pending` is what is pending before it, and then after it."""
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, Loop | If) and _has_parts(s, self.shared, self.own):
                before = pending.copy()
                inner = self.block(s.body, pending)
                pending.add(before)  # it may not run at all; a loop comes round again
                if isinstance(s, Loop):
                    inner = self.block(inner, pending)
                    pending.add(before)
                out.append(replace(s, body=inner))
                continue
            if isinstance(s, Barrier):
                pending.clear()
            touched = self.touched(s)
            if pending.meets(touched):
                out.append(Barrier())
                pending.clear()
            pending.add(touched)
            out.append(s)
        return tuple(out)

    def touched(self, s: Stmt) -> Pending:
        out = Pending()
        row = (
            s.var if isinstance(s, Loop) and s.kind is LoopKind.THREAD and most_threads(s.body) == 1 else None
        )

        def note(steps: _Steps, name: str, offset: Int) -> None:
            step = coefficient(offset, row) if row is not None else None
            own = step and row is not None and offset == row * step
            steps.setdefault(name, set()).add(step if own else None)

        for x in every((s,)):
            if isinstance(x, Store | Accumulate) and x.buffer in self.shared:
                note(out.stored, x.buffer, x.offset)
            for e in walk(roots(x)):
                if isinstance(e, Load) and e.source in self.shared:
                    note(out.read, e.source, e.index[0])
        return out


def _has_parts(s: Loop | If, shared: Set[str], own: Set[str]) -> bool:
    """True where several threads take part in the statement in turns: order may matter inside it."""
    if isinstance(s, Loop) and s.kind is LoopKind.THREAD:
        return False
    inside = list(every(s.body))
    if any(isinstance(x, Loop) and x.kind is LoopKind.THREAD for x in inside):
        return True
    stored = {x.buffer for x in inside if isinstance(x, Store | Accumulate)} & shared
    return bool(stored) and any(isinstance(x, Store | Accumulate) and x.buffer in own for x in inside)
