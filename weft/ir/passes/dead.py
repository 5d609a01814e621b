"""Dead code: stores that nobody reads, Lets and allocations that nobody uses, loops and Ifs that do nothing.

alloc a: f32[4]
t = x[0] * 2.0
for i in 4:
  a[i] = x[i]                   ->
y[0] = 1.0
y[0] = 2.0                            y[0] = 2.0
"""

from __future__ import annotations

from dataclasses import replace

from weft.ir.expr import Load, walk
from weft.ir.index import Int
from weft.ir.loops import Accumulate, Alloc, Barrier, Block, If, Let, Loop, Program, Stmt, Store
from weft.ir.loops_names import Names, every, roots
from weft.ir.passes.rewrite import with_body


def remove_dead(p: Program) -> Program:
    """`p` without what cannot be seen in its outputs."""
    while True:
        allocated = {s.buffer.name for s in every(p.body) if isinstance(s, Alloc)}
        live = {e.source for e in walk(r for s in every(p.body) for r in roots(s)) if isinstance(e, Load)}
        dead = allocated - live
        names = Names()
        body = _overwritten(_block(p.body, dead, set(), names), names)
        if body == p.body:
            return p
        stores = sum(isinstance(s, Store | Accumulate | Let) for s in every(p.body))
        p = with_body(p, body)
        if stores == sum(isinstance(s, Store | Accumulate | Let) for s in every(body)):
            return p  # only allocations, loops and Ifs went: nothing more can die of it


def _block(body: Block, dead: set[str], used: set[str], names: Names) -> Block:
    """The block backwards: `used` collects the names that later statements need."""
    out: list[Stmt] = []
    for s in reversed(body):
        match s:
            case Store() | Accumulate() if s.buffer in dead:
                continue
            case Let() if s.name not in used:
                continue
            case Alloc() if s.buffer.name in dead:
                continue
            case Loop() | If():
                inner = _block(s.body, dead, used, names)
                if not any(not isinstance(x, Alloc | Barrier) for x in inner):
                    if not any(isinstance(x, Barrier) for x in inner):
                        continue
                s = s if inner == s.body else replace(s, body=inner)
            case _:
                pass
        used |= names.of_stmt(s)
        out.append(s)
    return tuple(reversed(out))


def _overwritten(body: Block, names: Names) -> Block:
    """Without the stores that a later store in the same block covers before anything may read them."""
    out: list[Stmt] = []
    pending: dict[tuple[str, Int], None] = {}  # elements that will be written before they are read
    for s in reversed(body):
        if isinstance(s, Store) and (s.buffer, s.offset) in pending:
            continue
        if isinstance(s, Loop | If):
            inner = _overwritten(s.body, names)
            s = s if inner == s.body else replace(s, body=inner)
        inside = list(every((s,)))
        changed = {x.buffer for x in inside if isinstance(x, Store | Accumulate)}
        if isinstance(s, Store) and not s.guard:
            reads = names.of(s.value) | names.of_index(s.offset)
        else:
            reads = frozenset[str]().union(*(names.of_stmt(x) for x in inside))
        if any(isinstance(x, Barrier) for x in inside):
            pending = {}
        pending = {k: None for k in pending if k[0] not in reads and changed.isdisjoint(names.of_index(k[1]))}
        if isinstance(s, Store) and not s.guard and s.buffer not in reads:
            pending[s.buffer, s.offset] = None
        out.append(s)
    return tuple(reversed(out))
