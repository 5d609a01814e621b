"""Hypothesis strategies for random lowered loop programs that are well formed and read nothing uninitialized."""
# Tests: tests/ir/passes/test_meaning.py

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from weft.ir import dtypes
from weft.ir.dtypes import DType, to_numpy
from weft.ir.expr import Const, Expr, FromIndex, Load, ScalarCall, Temp, as_index, call, cast, test
from weft.ir.index import NEVER, Guard, Index, Int, Var, high, in_range, mod
from weft.ir.loops import (
    Accumulate,
    Alloc,
    Block,
    Buffer,
    If,
    Let,
    Loop,
    LoopKind,
    Prefetch,
    Program,
    Scope,
    Stmt,
    Store,
)
from weft.ir.ops import BINARY, COMPARE, TRANSCENDENTAL, Op
from weft.lazy_dataclass import dataclass

_F, _I = dtypes.float32, dtypes.int32
_DTYPES = tuple(dtypes.DTYPES.values())
_LARGEST = 12

PLAIN = {
    d: tuple(
        op for op in Op if op in BINARY - COMPARE - TRANSCENDENTAL | {Op.POW} and d.kind in op.info.kinds
    )
    for d in (_F, _I)
}
"""Binary operations on a dtype that give results of it; of those that are approximated POW, with exact exponents."""
EXACT = {_F: (Op.ADD, Op.SUB, Op.MUL, Op.MAX, Op.MIN), _I: PLAIN[_I]}
"""Operations that are exact on small integers in f32."""


@dataclass
class _Scope:
    """The names that a statement may use."""

    variables: list[Index]
    buffers: list[Buffer]  # readable
    targets: list[Buffer]  # writable
    temps: list[Temp] = field(default_factory=list[Temp])
    inside: frozenset[LoopKind] = frozenset()

    def inner(self, *variables: Index, kind: LoopKind | None = None) -> _Scope:
        kinds = self.inside if kind is None else self.inside | {kind}
        return _Scope([*self.variables, *variables], [*self.buffers], [*self.targets], [*self.temps], kinds)


class _Maker:
    def __init__(self, draw: Any, exact: bool) -> None:
        self.draw, self.exact = draw, exact
        self.count = 0
        self.left = draw(st.integers(3, 14))  # statements still to make

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def pick(self, options: list[Any] | tuple[Any, ...]) -> Any:
        return options[self.draw(st.integers(0, len(options) - 1))]

    def chance(self, percent: int) -> bool:
        return self.draw(st.integers(0, 99)) < percent

    # indices

    def index(self, scope: _Scope) -> Int:
        """A random expression of the variables in scope, not in any particular range."""
        out: Int = self.draw(st.integers(-3, 5))
        for _ in range(self.draw(st.integers(0, 2))):
            if scope.variables:
                out = out + self.pick(scope.variables) * self.pick((1, 1, 2, -1, 4))
        match self.draw(st.integers(0, 9)):
            case 0:
                out = out // self.pick((2, 3, 4))
            case 1:
                out = out % self.pick((2, 3, 4))
            case _:
                pass
        return out

    def gathered(self, scope: _Scope, depth: int) -> Int:
        """An index computed from an i32 value."""
        n = Const(_I, 4)
        return as_index(call(Op.MOD, self.expr(scope, _I, depth), n), 0, 3)

    def place(self, scope: _Scope, b: Buffer, depth: int = 0) -> tuple[Int, Guard]:
        """An offset into `b` and the guard under which it is in range."""
        assert isinstance(b.size, int)
        i = self.gathered(scope, depth - 1) if depth > 0 and self.chance(10) else self.index(scope)
        if self.chance(40):
            return mod(i, b.size), ()
        return i, in_range(i, 0, b.size)

    def condition(self, scope: _Scope) -> Guard:
        i = self.index(scope)
        lo = self.draw(st.integers(-2, 3))
        g = in_range(i, lo if self.chance(50) else None, lo + self.draw(st.integers(1, 6)))
        return () if g == NEVER and self.chance(80) else g

    # values

    def constant(self, d: DType) -> Expr:
        if d is _I:
            return Const(d, self.pick((0, 1, 2, 3, 4, 8, -1, -5, 7, 2**31 - 1)))
        return Const(
            d, self.pick((0.0, 1.0, 2.0, -1.0, 3.0) if self.exact else (0.0, -0.0, 1.0, 2.0, -0.5, 3.7, 4.0))
        )

    def leaf(self, scope: _Scope, d: DType, depth: int) -> Expr:
        temps = [t for t in scope.temps if t.dtype is d]
        buffers = [b for b in scope.buffers if b.dtype is d]
        if temps and self.chance(35):
            return self.pick(temps)
        if buffers and self.chance(75):
            b = self.pick(buffers)
            offset, guard = self.place(scope, b, depth)
            return Load(d, b.name, (offset,), guard)
        if d is _I and self.chance(50):
            i = self.index(scope)
            return Const(d, i) if isinstance(i, int) else FromIndex(d, i)
        return self.constant(d)

    def boolean(self, scope: _Scope, depth: int) -> Expr:
        if self.chance(30):
            return test(self.condition(scope))
        d = self.pick((_F, _I))
        args = self.expr(scope, d, depth - 1), self.expr(scope, d, depth - 1)
        return call(self.pick((Op.LT, Op.LE, Op.EQ, Op.NE)), *args)

    def expr(self, scope: _Scope, d: DType, depth: int) -> Expr:
        if depth <= 0 or self.chance(25):
            return self.leaf(scope, d, depth)
        match self.draw(st.integers(0, 11)):
            case 0:
                branches = self.expr(scope, d, depth - 1), self.expr(scope, d, depth - 1)
                return call(Op.WHERE, self.boolean(scope, depth - 1), *branches)
            case 1:
                return call(self.pick((Op.NEG, Op.ABS)), self.expr(scope, d, depth - 1))
            case 2 if not self.exact:
                x = self.expr(scope, self.pick((_F, _I)), depth - 1)
                for _ in range(self.draw(st.integers(0, 2))):
                    x = cast(x, self.pick(_DTYPES))
                return cast(x, d)
            case 3:
                x = self.expr(scope, d, depth - 1)
                return ScalarCall(d, self.pick((Op.ADD, Op.MUL)), (x, x))
            case 4 if d is _I:
                return call(Op.NOT, self.expr(scope, d, depth - 1))
            case _:
                op = self.pick((EXACT if self.exact else PLAIN)[d])
                a = self.expr(scope, d, depth - 1)
                wanted_constant = op in (Op.DIV, Op.POW, Op.FLOORDIV, Op.MOD, Op.SHL, Op.SHR) and self.chance(
                    60
                )
                b = self.constant(d) if wanted_constant else self.expr(scope, d, depth - 1)
                if d is _F and op is Op.POW:
                    b = Const(d, self.pick((0.0, 1.0, 2.0, -1.0)))
                return call(op, a, b)

    # statements

    def write(self, scope: _Scope) -> Stmt:
        b = self.pick(scope.targets)
        offset, guard = self.place(scope, b, 1)
        if self.chance(20):
            guard = (*guard, *(c for c in self.condition(scope) if c not in guard))
        value = self.expr(scope, b.dtype, 1 if self.exact else self.draw(st.integers(1, 3)))
        if self.chance(30):
            op = self.pick((Op.ADD, Op.MAX, Op.MIN) if self.exact else (Op.ADD, Op.MUL, Op.MAX, Op.MIN))
            return Accumulate(b.name, offset, op, value, guard)
        return Store(b.name, offset, value, guard, stream=self.chance(20))

    def prefetch(self, scope: _Scope) -> Stmt:
        return Prefetch(self.pick(scope.buffers).name, self.index(scope))

    def alloc(self, scope: _Scope) -> list[Stmt]:
        scopes = [Scope.REGISTER]
        if LoopKind.VECTOR not in scope.inside:
            scopes += [Scope.LOCAL] if LoopKind.PARALLEL in scope.inside else [Scope.LOCAL, Scope.GLOBAL]
        b = Buffer(self.name("a"), self.pick((_F, _I)), self.draw(st.integers(1, 6)), self.pick(scopes))
        assert isinstance(b.size, int)
        v = Var(self.name("i"), 0, b.size - 1)
        value = self.expr(scope.inner(v), b.dtype, 1)
        fill = Loop(v, b.size, (Store(b.name, v, value),), self.pick((LoopKind.SERIAL, LoopKind.UNROLL)))
        scope.buffers.append(b)
        scope.targets.append(b)
        return [Alloc(b), fill]

    def loop(self, scope: _Scope, depth: int, runtime: list[Var]) -> Loop:
        vector = LoopKind.VECTOR in scope.inside
        kinds = [LoopKind.SERIAL, LoopKind.SERIAL, LoopKind.UNROLL]
        if not vector:
            kinds += [LoopKind.VECTOR, LoopKind.PARALLEL]
        kind = self.pick(kinds)
        extent: Int = self.draw(st.integers(1, _LARGEST))
        if kind in (LoopKind.SERIAL, LoopKind.PARALLEL) and runtime and self.chance(30):
            extent = self.pick((runtime[0], runtime[0] // 2 + 1, runtime[0] - 1))
        v = Var(self.name("i"), 0, high(extent) - 1)
        inner = scope.inner(v, kind=kind)
        if kind is LoopKind.PARALLEL:
            params = [b for b in scope.buffers if b.scope is Scope.GLOBAL]
            inner.buffers, inner.targets = params, [b for b in scope.targets if b in params]
        return Loop(v, extent, self.block(inner, depth - 1, runtime), kind)

    def block(self, scope: _Scope, depth: int, runtime: list[Var]) -> Block:
        out: list[Stmt] = []
        for _ in range(self.draw(st.integers(1, 4))):
            self.left -= 1
            if self.left < 0 and out:
                break
            kind = self.draw(st.integers(0, 9))
            if kind <= 2 and depth > 0:
                out.append(self.loop(scope, depth, runtime))
            elif kind == 3 and depth > 0:
                guard = self.condition(scope)
                for _ in range(1 + self.chance(25)):  # neighbours under one guard
                    out.append(If(guard, self.block(scope.inner(), depth - 1, runtime)))
            elif kind == 4:
                out += self.alloc(scope)
            elif kind in (5, 6):
                d = self.pick((_F, _I))
                t = Temp(d, self.name("t"))
                out.append(Let(t.name, self.expr(scope, d, 1 if self.exact else 2)))
                scope.temps.append(t)
            else:
                out += [self.prefetch(scope)] if self.chance(10) else []
                out.append(self.write(scope))
        return tuple(out)


@st.composite
def loop_programs(draw: Any, exact: bool = False) -> Program:
    """A program over x, y: f32 and p: i32, writing z: f32 and q: i32, with one runtime variable n in 1..9.

    `exact` keeps to operations that round nothing on small integers.
    """
    sizes = [draw(st.integers(4, 20)) for _ in range(5)]
    dts = (_F, _F, _I, _F, _I)
    params = tuple(Buffer(n, d, s, Scope.GLOBAL) for n, d, s in zip("xypzq", dts, sizes, strict=True))
    n = Var("n", 1, 9)
    maker = _Maker(draw, exact)
    body = maker.block(_Scope([n], list(params), list(params[3:])), 3, [n])
    return Program("random", params, frozenset({"z", "q"}), (n,), body)


@st.composite
def loop_inputs(draw: Any, program: Program, exact: bool = False) -> tuple[dict[str, Any], dict[str, int]]:
    """Arrays for the parameters of such a program, by name, and values of its variables."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    arrays: dict[str, Any] = {}
    for b in program.params:
        assert isinstance(b.size, int)
        if exact:
            a = rng.integers(-3, 4, b.size)
        elif b.dtype.is_float:
            special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 1e-40, 3e38])
            a = np.where(rng.random(b.size) < 0.15, rng.choice(special, b.size), rng.normal(size=b.size) * 4)
        else:
            a = np.where(
                rng.random(b.size) < 0.2, rng.integers(-(2**31), 2**31, b.size), rng.integers(-9, 9, b.size)
            )
        arrays[b.name] = a.astype(to_numpy(b.dtype))
    return arrays, {v.name: draw(st.integers(v.lo, v.hi)) for v in program.variables}
