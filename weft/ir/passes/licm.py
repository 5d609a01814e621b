"""Loop-invariant code motion: what does not change from one iteration to the next is computed before the loop.

    for i in 8:                                   t0 = x[0]
      y[i] = z[i] * exp(x[0])             ->      t1 = exp(t0)
                                                  for i in 8:
                                                    y[i] = z[i] * t1

Works from the innermost loops outward, and never out of parallel, block and thread loops: tasks compute what they
need. A load moves only where it would surely have happened (the loop runs, and no guard is around it), or where it
is in range everywhere; out of a loop of runtime size, which seldom does not run, also where it is in range of a buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_

from weft.ir.expr import Expr, Load, ScalarCall, Temp, names_of, transform
from weft.ir.index import Int, low, map_guard, variables
from weft.ir.loops import Accumulate, Block, If, Let, Loop, LoopKind, Program, Stmt, Store
from weft.ir.loops_names import inside, written
from weft.ir.passes.rewrite import Fresh, index_map, map_stmt, with_body
from weft.ir.passes.safety import Safety

_TASKS = frozenset({LoopKind.PARALLEL, LoopKind.BLOCK, LoopKind.THREAD})


def hoist(p: Program) -> Program:
    """`p` with loop invariants moved out of their loops."""
    return with_body(p, _Hoist(p).block(p.body))


class _Hoist:
    def __init__(self, p: Program) -> None:
        self.safe, self.fresh = Safety(p), Fresh(p)
        self.writes = written(p.body)
        self.sizes = set(p.variables)

    def block(self, body: Block) -> Block:
        out: list[Stmt] = []
        for s in body:
            match s:
                case Loop():
                    out += self.loop(s)
                case If():
                    out.append(s.around(self.block(s.body)))
                case _:
                    out.append(s)
        return body if all(map(is_, out, body)) and len(out) == len(body) else tuple(out)

    def loop(self, s: Loop) -> list[Stmt]:
        """The loop, after what moves out of it."""
        body = self.block(s.body)
        if s.kind in _TASKS:
            return [s.around(body)]
        within = inside(body)
        changes = {*within.written, *within.bound, s.var.name}
        if within.barrier:
            changes |= self.writes
        sure = low(s.extent) >= 1
        moved = _Moved(self.safe, self.fresh, changes, not sure and bool(variables(s.extent) & self.sizes))
        body = moved.block(body, sure)
        return [*moved.lets, s.around(body)]


class _Moved:
    """The expressions that move out of one loop, in whose body the names `changes` change; `usual`: it may be left out
    for a few sizes only."""

    def __init__(self, safe: Safety, fresh: Fresh, changes: set[str], usual: bool) -> None:
        self.safe, self.fresh, self.changes, self.usual = safe, fresh, changes, usual
        self.lets: list[Let] = []
        self.memo: dict[Expr, Expr] = {}

    def block(self, body: Block, sure: bool) -> Block:
        """The body without its invariants; `sure` where it is executed if the loop is reached."""
        always, maybe = self.mapping(True), self.mapping(False)
        out: list[Stmt] = []
        for s in body:
            match s:
                case Let() if self.may_move(s.value, sure):
                    self.memo[s.value] = Temp(s.value.dtype, s.name)
                    self.changes.discard(s.name)
                    self.lets.append(s)
                case If():
                    guard = map_guard(s.guard, (always if sure else maybe)[1])
                    inner = self.block(s.body, False)
                    out.append(s.around(inner) if guard is s.guard else If(guard, inner))
                case Store() | Accumulate() if s.guard:
                    out.append(map_stmt(s, *maybe))
                case _:
                    out.append(map_stmt(s, *(always if sure else maybe)))
        return body if all(map(is_, out, body)) and len(out) == len(body) else tuple(out)

    def mapping(self, sure: bool) -> tuple[Callable[[Expr], Expr], Callable[[Int], Int]]:
        def expr(e: Expr) -> Expr:
            return self.without(e, sure)

        return expr, index_map(expr)

    def may_move(self, e: Expr, sure: bool) -> bool:
        if not self.changes.isdisjoint(names_of(e)):
            return False
        return sure or self.safe(e) or (self.usual and self.safe.where_allocated(e))

    def without(self, e: Expr, sure: bool) -> Expr:
        """`e` with its largest invariant parts replaced by names that are bound before the loop."""
        stack, seen, found = [e], set[Expr](), False
        while stack:
            x = stack.pop()
            if x in seen:
                continue
            seen.add(x)
            if isinstance(x, ScalarCall | Load):
                if isinstance(self.memo.get(x), Temp):
                    found = True
                    continue
                if self.may_move(x, sure):
                    name = self.fresh.name("t")
                    self.lets.append(Let(name, x))
                    self.memo[x] = Temp(x.dtype, name)
                    found = True
                    continue
            stack.extend(x.parts)
        return transform(e, _unchanged, None, self.memo) if found else e


def _unchanged(_: Expr) -> None:
    return None
