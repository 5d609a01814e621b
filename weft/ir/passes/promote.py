"""Sums that a loop adds up in shared memory run in a register."""

from __future__ import annotations

from dataclasses import replace

from weft.ir.expr import Const, Load, walk
from weft.ir.index import variables
from weft.ir.loops import (
    LANE_KINDS,
    Accumulate,
    Alloc,
    Barrier,
    Block,
    Buffer,
    If,
    Loop,
    LoopKind,
    Scope,
    Stmt,
    Store,
)
from weft.ir.loops_names import buffers_read, every, roots, written
from weft.ir.passes.rewrite import Fresh


def promoted(body: Block, fresh: Fresh) -> Block:
    """A sum that a loop adds up in one element of shared memory runs in a register, and is stored at the end.

    y[i] = 0; for k: y[i] += x[k]   ->   r[0] = 0; for k: r[0] += x[k]; y[i] = r[0]
    """
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, Loop | If):
            s = replace(s, body=promoted(s.body, fresh))
        at = _start_of(out, s)
        if at is not None and isinstance(s, Loop) and isinstance(first := out[at], Store):
            r = Buffer(fresh.name(f"{first.buffer}_sum"), first.value.dtype, 1, Scope.REGISTER)
            del out[at]
            out += [Alloc(r), Store(r.name, 0, first.value), _renamed(s, first.buffer, r.name)]
            out.append(Store(first.buffer, first.offset, Load(r.dtype, r.name, (0,)), first.guard))
        else:
            out.append(s)
    return tuple(out)


def _start_of(before: list[Stmt], s: Stmt) -> int | None:
    """The statement that sets the element to a constant, to which loop `s` then only adds."""
    if not isinstance(s, Loop):
        return None
    for at in range(len(before) - 1, -1, -1):
        first = before[at]
        if isinstance(first, Store) and isinstance(first.value, Const) and _only_adds(first, s):
            return None if first.buffer in _touched(tuple(before[at + 1 :])) else at
    return None


def _touched(body: Block) -> set[str]:
    return buffers_read(body) | written(body)


def _only_adds(first: Store, loop: Loop) -> bool:
    """The loop does nothing else with the stored buffer than to add to that element."""
    inside = list(every((loop,)))
    added = False
    bound_here = {s.var for s in inside if isinstance(s, Loop)}
    if any(v in bound_here for v in variables(first.offset)):
        return False
    if not isinstance(first.offset, int) and first.offset.computed:
        return False
    for s in inside:
        if any(isinstance(e, Load) and e.source == first.buffer for e in walk(roots(s))):
            return False
        if isinstance(s, Store) and s.buffer == first.buffer:
            return False
        if isinstance(s, Loop) and s.kind in (*LANE_KINDS, LoopKind.THREAD):
            return False
        if isinstance(s, Accumulate) and s.buffer == first.buffer:
            if s.offset != first.offset or s.guard not in ((), first.guard):
                return False
            added = True
    return added and not any(isinstance(s, Barrier) for s in inside)


def _renamed(s: Loop, old: str, new: str) -> Loop:
    body: list[Stmt] = []
    for x in s.body:
        if isinstance(x, Accumulate) and x.buffer == old:
            x = replace(x, buffer=new, offset=0, guard=())
        elif isinstance(x, If):
            x = If(x.guard, _renamed(replace(s, body=x.body), old, new).body)
        elif isinstance(x, Loop):
            x = _renamed(x, old, new)
        body.append(x)
    return replace(s, body=tuple(body))
