"""Common subexpressions: what is computed more than once, where both can see it, becomes a Let.

    y[0] = exp(x[0] * x[0]) + x[0]            t0   = x[0]
                                              t1   = exp(t0 * t0)
                                      ->      y[0] = t1 + t0
    z[0] = exp(x[0] * x[0])                   z[0] = t1

A load is the same value only until something may have been stored to its buffer. A load that a statement's guard
protects is not made to happen outside of it, unless it is in range everywhere. Nothing is shared across the edge of
a parallel, block or thread loop: its tasks compute what they need.
"""

from __future__ import annotations

from collections.abc import Set
from operator import is_
from typing import TypeAlias

from weft.ir.expr import Expr, FromIndex, Load, ScalarCall, Temp, Test, as_index, from_index, names_of, test
from weft.ir.index import Guard, Index, Int, Opaque, map_guard, rewrite
from weft.ir.loops import Accumulate, Barrier, Block, If, Let, Loop, LoopKind, Prefetch, Program, Stmt, Store
from weft.ir.loops_names import body_of, written
from weft.ir.passes.rewrite import Fresh, with_body
from weft.ir.passes.safety import Safety
from weft.lazy_dataclass import dataclass

Key: TypeAlias = Expr | tuple[Expr, tuple[int, ...]]
"""An expression; if it reads what the program writes, with how often those buffers had been written."""

_TASKS = frozenset({LoopKind.PARALLEL, LoopKind.BLOCK, LoopKind.THREAD})


def share(p: Program) -> Program:
    """`p` with common subexpressions computed once."""
    counts = _Count(p)
    counts.block(p.body)
    if all(c.uses < 2 for c in counts.found.values()):
        return p
    return with_body(p, _Share(p, counts.found).block(p.body))


@dataclass(slots=True)
class _Entry:
    """The uses of an expression where its first occurrence can be seen; the name that it then goes by."""

    uses: int = 1
    temp: Temp | None = None


class _Walk:
    """Visits all expressions in order, keeping track of scopes and of what has been written."""

    def __init__(self, p: Program) -> None:
        self.versions: dict[str, int] = {}
        self.writes = written(p.body)
        self.safe = Safety(p)
        self.reads: dict[Expr, list[str]] = {}  # of what the program writes
        self.table: dict[Key, _Entry] = {}  # what can be seen here
        self.numbers: list[int] = []  # of the open scopes
        self.scope_count = 0

    def root(self, e: Expr, guarded: bool) -> Expr:
        """Visit an expression; `guarded` where it may be skipped."""
        raise AssertionError

    def let(self, s: Let) -> list[Stmt]:
        """Visit a Let."""
        raise AssertionError

    def before(self) -> list[Stmt]:
        """The statements to put in front of the one just visited."""
        return []

    def key(self, e: Expr) -> Key:
        reads = self.reads.get(e)
        if reads is None:
            reads = self.reads[e] = sorted(names_of(e) & self.writes)
        return (e, tuple([self.versions.get(b, 0) for b in reads])) if reads else e

    def happened(self, e: Expr) -> bool:
        """Every load in `e` that is not safe anywhere has already happened when this statement is reached."""
        return all(self.key(x) in self.table for x in self.safe.unsafe(e))

    def wrote(self, buffers: Set[str]) -> None:
        for b in buffers:
            self.versions[b] = self.versions.get(b, 0) + 1

    def block(self, body: Block) -> Block:
        outside = len(self.table)
        self.numbers.append(self.scope_count)
        self.scope_count += 1
        out: list[Stmt] = []
        for s in body:
            new = self.stmt(s)
            out += [*self.before(), *new]
        while len(self.table) > outside:
            self.table.popitem()
        self.numbers.pop()
        return body if all(map(is_, out, body)) and len(out) == len(body) else tuple(out)

    def stmt(self, s: Stmt) -> list[Stmt]:
        match s:
            case Let():
                return self.let(s)
            case Store() | Accumulate():
                guard = self.guard(s.guard)
                skipped = bool(s.guard)
                value, offset = self.root(s.value, skipped), self.index(s.offset, skipped)
                self.wrote({s.buffer})
                return [s.over(offset, value, guard)]
            case If():
                guard, first = self.guard(s.guard), self.before()
                body = self.block(s.body)
                self.wrote(body_of(s).written)
                return [*first, s.around(body) if guard is s.guard else If(guard, body)]
            case Loop():
                return self.loop(s)
            case Prefetch():
                return [Prefetch(s.buffer, self.index(s.offset, True))]
            case Barrier():
                self.wrote(self.writes)
                return [s]
            case _:
                return [s]

    def loop(self, s: Loop) -> list[Stmt]:
        extent, first = self.index(s.extent, False), self.before()
        self.wrote(body_of(s).written)
        table = self.table
        if s.kind in _TASKS:
            self.table = {}
        body = self.block(s.body)
        self.table = table
        self.wrote(body_of(s).written)
        return [*first, s.around(body) if extent is s.extent else Loop(s.var, extent, body, s.kind)]

    def index(self, i: Int, guarded: bool) -> Int:
        if isinstance(i, int) or not i.computed:
            return i

        def on_index(x: Index) -> Int | None:
            if isinstance(x, Opaque):
                value = self.root(x.value, guarded)
                return x if value is x.value else as_index(value, x.lo, x.hi)
            return None

        return rewrite(i, on_index)

    def guard(self, g: Guard) -> Guard:
        return map_guard(g, lambda i: self.index(i, False)) if g else g


class _Count(_Walk):
    def __init__(self, p: Program) -> None:
        super().__init__(p)
        self.found: dict[tuple[int, Key], _Entry] = {}  # by the number of the scope

    def root(self, e: Expr, guarded: bool) -> Expr:
        stack, skipped = [e], set[Expr]()
        while stack:
            x = stack.pop()
            if isinstance(x, ScalarCall | Load):
                key = self.key(x)
                entry = self.table.get(key)
                if entry is not None:
                    entry.uses += 1
                    continue
                if not guarded or self.happened(x):
                    self.add(key)
                elif x in skipped:
                    continue
                else:
                    skipped.add(x)
            stack.extend(x.parts)
        return e

    def add(self, key: Key) -> None:
        entry = _Entry()
        self.table[key] = entry
        self.found[self.numbers[-1], key] = entry

    def let(self, s: Let) -> list[Stmt]:
        self.root(s.value, False)
        return [s]


class _Share(_Walk):
    def __init__(self, p: Program, found: dict[tuple[int, Key], _Entry]) -> None:
        super().__init__(p)
        self.found = found
        self.fresh = Fresh(p)
        self.lets: list[Stmt] = []
        self.alias: dict[str, Temp] = {}

    def before(self) -> list[Stmt]:
        out, self.lets = self.lets, []
        return out

    def let(self, s: Let) -> list[Stmt]:
        entry = self.table.get(self.key(s.value))
        if entry is not None and entry.temp is not None:
            self.alias[s.name] = entry.temp
            return []
        value = self.root(s.value, False, Temp(s.value.dtype, s.name))
        return [] if isinstance(value, Temp) and value.name == s.name else [Let(s.name, value)]

    def root(self, e: Expr, guarded: bool, name: Temp | None = None) -> Expr:
        """`e` with what is shared replaced by its name; `name` is what `e` itself is called, if anything."""
        done: dict[Expr, Expr] = {}
        stack: list[tuple[Expr, Key | None, bool]] = [(e, None, False)]
        while stack:
            x, key, ready = stack.pop()
            if x in done:
                continue
            if not ready:
                key = self.key(x) if isinstance(x, ScalarCall | Load) else None
                known = self.table.get(key) if key is not None else None
                if known is not None and known.temp is not None:
                    done[x] = known.temp
                    continue
                parts = x.parts
                if parts:
                    stack.append((x, key, True))
                    stack += [(b, None, False) for b in parts if b not in done]
                    continue
            new = self.rebuilt(x, done)
            entry = None
            if key is not None and (not guarded or self.happened(x)):
                entry = self.found.get((self.numbers[-1], key))
            if key is None or entry is None or (entry.uses < 2 and not (x is e and name)):
                done[x] = new
                continue
            entry.temp = name if x is e and name else Temp(x.dtype, self.fresh.name("t"))
            self.table[key] = entry
            self.lets.append(Let(entry.temp.name, new))
            done[x] = entry.temp
        return done[e]

    def rebuilt(self, x: Expr, done: dict[Expr, Expr]) -> Expr:
        if isinstance(x, ScalarCall):
            args = tuple([done[a] for a in x.args])
            for a, b in zip(args, x.args, strict=True):
                if a is not b:
                    return ScalarCall(x.dtype, x.op, args)
            return x

        def on_index(i: Index) -> Int | None:
            if isinstance(i, Opaque):
                value = done[i.value]
                return i if value is i.value else as_index(value, i.lo, i.hi)
            return None

        def on_int(i: Int) -> Int:
            return i if isinstance(i, int) or not i.computed else rewrite(i, on_index)

        match x:
            case Temp():
                return self.alias.get(x.name, x)
            case Load():
                at, g = tuple(on_int(i) for i in x.index), map_guard(x.guard, on_int)
                same = g is x.guard and all(a is b for a, b in zip(at, x.index, strict=True))
                return x if same else Load(x.dtype, x.source, at, g)
            case FromIndex():
                i = on_int(x.index)
                return x if i is x.index else from_index(i, x.dtype)
            case Test():
                g = map_guard(x.guard, on_int)
                return x if g is x.guard else test(g)
            case _:
                return x
