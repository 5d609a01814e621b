"""Dead code: stores that nobody reads, Lets and allocations that nobody uses, loops and Ifs that do nothing.

alloc a: f32[4]
t = x[0] * 2.0
for i in 4:
  a[i] = x[i]                   ->
y[0] = 1.0
y[0] = 2.0                            y[0] = 2.0
"""

from __future__ import annotations

from operator import is_

from weft.ir.index import Int
from weft.ir.loops import Accumulate, Alloc, Barrier, Block, If, Let, Loop, Program, Stmt, Store
from weft.ir.loops_names import every, names_of_index, names_of_stmt, read_names
from weft.ir.passes.rewrite import with_body


def remove_dead(p: Program) -> Program:
    """`p` without what cannot be seen in its outputs."""
    body = _live(p.body, _needed(p))
    stores = [(s.buffer, s.offset) for s in every(body) if isinstance(s, Store)]
    if len(set(stores)) < len(stores):
        body = _overwritten(body)
    return with_body(p, body)


def _needed(p: Program) -> set[str]:
    """The temporaries and buffers that the outputs depend on."""
    makers: dict[str, list[Stmt]] = {}
    allocated: set[str] = set()
    visible: list[Stmt] = []  # what is done for its own sake
    for s in every(p.body):
        match s:
            case Let():
                makers.setdefault(s.name, []).append(s)
            case Alloc():
                allocated.add(s.buffer.name)
            case Store() | Accumulate() if s.buffer in allocated:
                makers.setdefault(s.buffer, []).append(s)
            case _:
                visible.append(s)
    needed: set[str] = set()
    stack = visible
    while stack:
        for name in read_names(stack.pop()) - needed:
            needed.add(name)
            stack += makers.get(name, ())
    return needed | {b.name for b in p.params}


def _live(body: Block, needed: set[str]) -> Block:
    out: list[Stmt] = []
    for s in body:
        match s:
            case Store() | Accumulate() if s.buffer not in needed:
                continue
            case Let() if s.name not in needed:
                continue
            case Alloc() if s.buffer.name not in needed:
                continue
            case Loop() | If():
                inner = _live(s.body, needed)
                if all(isinstance(x, Alloc) for x in inner):
                    continue
                out.append(s.around(inner))
            case _:
                out.append(s)
    return body if len(out) == len(body) and all(map(is_, out, body)) else tuple(out)


def _overwritten(body: Block) -> Block:
    """Without the stores that a later store in the same block covers before anything may read them."""
    out: list[Stmt] = []
    pending: dict[tuple[str, Int], None] = {}  # elements that will be written before they are read
    for s in reversed(body):
        if isinstance(s, Store) and (s.buffer, s.offset) in pending:
            continue
        if isinstance(s, Loop | If):
            inner = _overwritten(s.body)
            s = s if inner == s.body else s.around(inner)
        inside = list(every((s,)))
        changed = {x.buffer for x in inside if isinstance(x, Store | Accumulate)}
        if isinstance(s, Store) and not s.guard:
            reads = read_names(s)
        else:
            reads = frozenset[str]().union(*(names_of_stmt(x) for x in inside))
        if any(isinstance(x, Barrier) for x in inside):
            pending = {}
        pending = {k: None for k in pending if k[0] not in reads and changed.isdisjoint(names_of_index(k[1]))}
        if isinstance(s, Store) and not s.guard and s.buffer not in reads:
            pending[s.buffer, s.offset] = None
        out.append(s)
    return tuple(reversed(out))
