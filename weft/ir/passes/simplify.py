"""Folding and simplification under what is known: loop ranges, and the guards of enclosing Ifs.

    for i in 4:                                   for i in 4:
      if i < 2:                                     if i < 2:
        t    = 1.0 + 1.0                    ->        y[i] = x[i] * 2.0
        y[i] = (x[i] if i < 3 else 0) * t
      y[i] = 0.0 if i < 8                           y[i] = 0.0
    for j in 1:                                   y[9] = x[9]
      y[j + 9] = x[j + 9]

Guards lose the conditions that always hold, what can never run is removed, loops of one iteration become their
body, and a Let of something trivial is replaced by it. A load keeps a guard that only its own statement's guard
implies: so the value may still be computed before the statement's guard is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.expr import (
    Const,
    Expr,
    FromIndex,
    Load,
    ScalarCall,
    Temp,
    Test,
    call,
    from_index,
    test,
    transform,
)
from weft.ir.index import NEVER, Guard, Index, Int, Var, high
from weft.ir.loops import Accumulate, Block, If, Let, Loop, LoopKind, Program, Stmt, Store
from weft.ir.loops_names import body_of
from weft.ir.ops import Op
from weft.ir.passes.facts import Facts, reduce_guard, with_guard, with_loop
from weft.ir.passes.rewrite import index_map, map_stmt, with_body


def simplify(p: Program) -> Program:
    """`p` with everything folded that ranges, guards and constants decide."""
    return with_body(p, _Simplifier().whole(p.body))


class _Simplifier:
    def __init__(self) -> None:
        self.variables: dict[Var, Int] = {}  # of loops of one iteration
        self.temps: dict[str, Expr] = {}  # trivial Lets
        self.facts: Facts = ()
        self.memo: dict[Expr, Expr] = {}  # valid under these facts
        self.mapped: Callable[[Int], Int] = index_map(self.expr, self.variable)

    def whole(self, body: Block) -> Block:
        return tuple(self.block(body))

    def variable(self, i: Index) -> Int | None:
        return self.variables.get(i) if isinstance(i, Var) else None

    def index(self, i: Int) -> Int:
        return i if isinstance(i, int) or not (self.variables or i.computed) else self.mapped(i)

    def expr(self, e: Expr) -> Expr:
        return transform(e, self.leaf, self.variable if self.variables else None, self.memo)

    def leaf(self, e: Expr) -> Expr | None:
        match e:
            case Temp():
                return self.temps.get(e.name)
            case Load() if e.guard and self.facts:
                guard = reduce_guard(self.facts, e.guard)
                if guard == NEVER:
                    return Const(e.dtype, 0)
                return e if guard == e.guard else Load(e.dtype, e.source, e.index, guard)
            case Test() if self.facts:
                return test(reduce_guard(self.facts, e.guard))
            case ScalarCall():
                return simpler(e)
            case _:
                return None

    def under(self, facts: Facts, body: Block) -> Block:
        """The body simplified where `facts` hold too."""
        if facts == self.facts:
            return tuple(self.block(body))
        outer, memo = self.facts, self.memo
        self.facts, self.memo = facts, {}
        out = tuple(self.block(body))
        self.facts, self.memo = outer, memo
        return out

    def guard(self, g: Guard) -> Guard:
        return reduce_guard(self.facts, g) if g else g

    def block(self, body: Block) -> Iterator[Stmt]:
        for old in body:
            s = map_stmt(old, self.expr, self.index)
            match s:
                case Loop():
                    yield from self.loop(s)
                case If():
                    guard = self.guard(s.guard)
                    if guard == NEVER:
                        continue
                    inner = self.under(with_guard(self.facts, guard), s.body)
                    if guard == ():
                        yield from inner
                    elif inner:
                        yield s if guard is s.guard and inner == s.body else If(guard, inner)
                case Let():
                    if isinstance(s.value, Const | Temp | FromIndex | Test):
                        self.temps[s.name] = s.value
                    else:
                        yield s
                case Store() | Accumulate():
                    guard = self.guard(s.guard)
                    if guard != NEVER and not (isinstance(s, Accumulate) and adds_nothing(s)):
                        yield s if guard == s.guard else s.over(s.offset, s.value, guard)
                case _:
                    yield s

    def loop(self, s: Loop) -> Iterator[Stmt]:
        if high(s.extent) <= 0:
            return
        if s.extent == 1 and (s.kind is not LoopKind.THREAD or not body_of(s).barrier):
            self.variables[s.var] = 0
            yield from self.block(s.body)
            return
        var = Var(s.var.name, 0, high(s.extent) - 1)
        if var != s.var:  # the extent became narrower
            self.variables[s.var] = var
        inner = self.under(with_loop(self.facts, s), s.body)
        if inner:
            yield s if inner == s.body and var == s.var else Loop(var, s.extent, inner, s.kind)


def adds_nothing(s: Accumulate) -> bool:
    """The value leaves every element as it is (0.0 does not: it makes -0.0 positive; -0.0 does)."""
    d = s.value.dtype
    nothing = {Op.ADD: -0.0 if d.is_float else 0, Op.MUL: 1, Op.MAX: d.min, Op.MIN: d.max}
    return s.value == Const(d, nothing[s.op])


def simpler(e: ScalarCall) -> Expr | None:
    """A shorter expression of the same value, where one is known; None otherwise."""
    rule = _RULES.get(e.op)
    return None if rule is None else rule(e)


def _inner(e: Expr, op: Op) -> ScalarCall | None:
    return e if isinstance(e, ScalarCall) and e.op is op else None


def _twice(e: ScalarCall) -> Expr | None:
    """NEG(NEG x) and NOT(NOT x) are x."""
    inside = _inner(e.args[0], e.op)
    return inside.args[0] if inside is not None else None


def _cast(e: ScalarCall) -> Expr | None:
    """A cast of a cast that lost nothing is one cast; a cast index is an index."""
    x = e.args[0]
    if isinstance(x, FromIndex) and e.dtype.is_int and _holds(x.dtype, x.index):
        return from_index(x.index, e.dtype)
    inside = _inner(x, Op.CAST)
    if inside is None:
        return None
    source = inside.args[0].dtype
    if not _contains(inside.dtype, source) or (source.is_float and not e.dtype.is_float):
        return None
    return call(Op.CAST, inside.args[0], dtype=e.dtype)


def _contains(wide: DType, narrow: DType) -> bool:
    """Every value of `narrow` is one of `wide`, and casting on from it gives the same."""
    if narrow.is_float or wide.is_float:
        return (wide, narrow) in _EXACT
    lo, hi = int(narrow.min), int(narrow.max)
    return wide is not dtypes.bool_ and int(wide.min) <= lo and hi <= int(wide.max)


_EXACT = {
    (dtypes.float32, dtypes.float8_e4m3fn),
    (dtypes.float32, dtypes.float8_e5m2),
    (dtypes.float64, dtypes.float8_e4m3fn),
    (dtypes.float64, dtypes.float8_e5m2),
    (dtypes.float32, dtypes.float16),
    (dtypes.float32, dtypes.bfloat16),
    (dtypes.float64, dtypes.float16),
    (dtypes.float64, dtypes.bfloat16),
    (dtypes.float64, dtypes.float32),
}


def _holds(d: DType, i: Int) -> bool:
    lo, hi = (i, i) if isinstance(i, int) else (i.lo, i.hi)
    return int(d.min) <= lo and hi <= int(d.max)


def _zero(e: ScalarCall) -> Expr | None:
    """x * 0 and x & 0 are 0, for integers."""
    if e.dtype.is_int:
        for a in e.args:
            if isinstance(a, Const) and a.value == 0:
                return a
    return None


def _itself(e: ScalarCall) -> Expr | None:
    """x - x and x ^ x are 0, for integers."""
    return Const(e.dtype, 0) if e.dtype.is_int and e.args[0] == e.args[1] else None


def _same(e: ScalarCall) -> Expr | None:
    """max(x, x), min(x, x), x & x and x | x are x."""
    return e.args[0] if e.args[0] == e.args[1] else None


def _and(e: ScalarCall) -> Expr | None:
    return _same(e) or _zero(e)


def _where(e: ScalarCall) -> Expr | None:
    """A negated condition swaps the branches; a choice of true or false is the condition, or no choice."""
    c, a, b = e.args
    negated = _inner(c, Op.NOT)
    if negated is not None:
        return call(Op.WHERE, negated.args[0], b, a)
    if e.dtype is dtypes.bool_ and isinstance(a, Const) and isinstance(b, Const):
        return a if a == b else c if a.value else call(Op.NOT, c)
    return None


_RULES: dict[Op, Callable[[ScalarCall], Expr | None]] = {
    Op.NEG: _twice,
    Op.NOT: _twice,
    Op.CAST: _cast,
    Op.MUL: _zero,
    Op.SUB: _itself,
    Op.XOR: _itself,
    Op.MAX: _same,
    Op.MIN: _same,
    Op.AND: _and,
    Op.OR: _same,
    Op.WHERE: _where,
}
