"""Random loop nests with random index arithmetic, guards and loop kinds, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, given, settings

from weft.ir import dtypes
from weft.ir.dtypes import DType, to_numpy
from weft.ir.expr import Expr, Load, as_index, call, cast, from_index, where
from weft.ir.expr import test as holds
from weft.ir.index import Guard, Int, Var, both, high, in_range, low, maximum, minimum
from weft.ir.loops import Accumulate, Block, Buffer, If, Loop, LoopKind, Program, Scope, Stmt, Store
from weft.ir.ops import Op

SIZE = 97
DTYPES = (dtypes.int32, dtypes.int64, dtypes.uint8, dtypes.int16)
KINDS = (LoopKind.SERIAL, LoopKind.UNROLL, LoopKind.VECTOR, LoopKind.PARALLEL)
EXTENTS = (1, 2, 3, 4, 7, 8, 12, 16, 21)


class Maker:
    """Draws the parts of one program."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.draw = draw
        self.vars: list[Var] = []
        self.at = Buffer("at", dtypes.int32, SIZE, Scope.GLOBAL)
        self.x: Buffer
        self.n = Var("n", 1, 20)
        self.readable = ["x"]

    def one(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def number(self, lo: int, hi: int) -> int:
        return self.draw(st.integers(lo, hi))

    def index(self, depth: int = 3) -> Int:
        """Any integer of the loop variables and the runtime variable."""
        if depth == 0 or self.number(0, 3) == 0:
            return self.one(*self.vars, *self.vars, self.n, self.number(-9, 30))
        a, b = self.index(depth - 1), self.index(depth - 1)
        match self.one("+", "-", "*", "//", "%", "min", "max", "//n", "%n", "*v"):
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * self.number(-5, 9)
            case "//":
                return a // self.number(1, 12)
            case "%":
                return a % self.number(1, 40)
            case "min":
                return minimum(a, b)
            case "max":
                return maximum(a, b)
            case "//n":
                return a // self.n
            case "%n":
                return a % (self.n + 3)
            case _:
                return a * self.one(*self.vars)

    def inside(self) -> Int:
        """An index of an element of a buffer."""
        return self.wrapped(self.index())

    def wrapped(self, i: Int) -> Int:
        """`i` moved into range."""
        if low(i) >= 0 and high(i) < SIZE:
            return i
        return self.one(i % SIZE, maximum(minimum(i, SIZE - 1), 0))

    def guard(self, count: int = 2) -> Guard:
        g: Guard = ()
        for _ in range(self.number(0, count)):
            i = self.index()
            lo, hi = self.one(None, self.index(1)), self.one(None, self.index(1))
            g = both(g, in_range(i, lo, hi))
        return g

    def load(self) -> Expr:
        dtype, source = self.x.dtype, self.one(*self.readable)
        match self.number(0, 3):
            case 0:
                i = self.index()
                return Load(dtype, source, (i,), both(self.guard(1), in_range(i, 0, SIZE)))
            case 1:
                here = Load(dtypes.int32, "at", (self.inside(),))
                return Load(dtype, source, (as_index(here, 0, SIZE - 1),), self.guard(1))
            case _:
                return Load(dtype, source, (self.inside(),), self.guard(1))

    def value(self, depth: int = 2) -> Expr:
        dtype = self.x.dtype
        if depth == 0:
            return self.load()
        match self.number(0, 4):
            case 0:
                return where(holds(self.guard()), self.value(depth - 1), self.value(depth - 1))
            case 1:
                return cast(from_index(self.index()), dtype)
            case 2:
                return call(
                    self.one(Op.ADD, Op.MUL, Op.MAX, Op.FLOORDIV),
                    self.value(depth - 1),
                    self.value(depth - 1),
                )
            case _:
                return self.load()

    def program(self) -> Program:
        dtype: DType = self.one(*DTYPES)
        self.x = Buffer("x", dtype, SIZE, Scope.GLOBAL)
        kinds = [self.one(*KINDS) for _ in range(self.number(1, 3))]
        if LoopKind.VECTOR in kinds:  # innermost, once
            kinds = [k for k in kinds if k not in (LoopKind.VECTOR, LoopKind.PARALLEL)] + [LoopKind.VECTOR]
        self.vars = [Var(f"i{k}", 0, self.one(*EXTENTS) - 1) for k in range(len(kinds))]
        extents = [v.hi + 1 for v in self.vars]
        # every iteration writes an element of its own, in an order and with gaps of its own
        order = self.draw(st.permutations(range(len(kinds))))
        size = self.number(1, 3)
        first, step = size, size
        offset: Int = 0
        for k in order:
            offset = offset + self.vars[k] * step
            step *= extents[k]
        if self.one(True, False):
            offset = step + first - offset
        out = Buffer("out", dtype, step + 2 * size + 1, Scope.GLOBAL)
        total = Buffer("total", dtype, SIZE, Scope.GLOBAL)
        body: list[Stmt] = []
        if LoopKind.PARALLEL not in kinds:
            self.readable.append("total")
            for _ in range(self.number(0, 2)):
                op = self.one(Op.ADD, Op.MUL, Op.MAX, Op.MIN)
                body.append(Accumulate("total", self.inside(), op, self.value(), self.guard()))
        body.insert(self.number(0, len(body)), Store("out", offset, self.value(), self.guard()))
        if self.one(True, False):
            body = [If(self.guard(), tuple(body))]
        nest: Block = tuple(body)
        for v, kind in zip(reversed(self.vars), reversed(kinds), strict=True):
            nest = (Loop(v, v.hi + 1, nest, kind),)
        return Program("kernel", (self.x, self.at, out, total), frozenset({"out", "total"}), (self.n,), nest)


@st.composite
def programs(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Program:
    return Maker(draw).program()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(program=programs(), n=st.integers(1, 20), seed=st.integers(0, 99))
def test_random_loops(compile_all: Callable[..., Any], program: Program, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = {
        b.name: rng.integers(0, SIZE, b.size).astype(to_numpy(b.dtype))
        for b in program.params
        if isinstance(b.size, int)
    }
    compile_all([program]).check("kernel", arrays, {"n": n})


@st.composite
def copies(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Program:
    """Dense nests that only move elements: the axes of the result in one order, those of the source in another."""
    extents = draw(st.lists(st.sampled_from((2, 5, 8, 16, 19, 33)), min_size=2, max_size=3))
    loops = [Var(f"i{k}", 0, n - 1) for k, n in enumerate(extents)]
    dtype = draw(st.sampled_from((dtypes.float32, dtypes.int8, dtypes.int64)))

    def place(order: list[int], gap: int) -> tuple[Int, int]:
        offset: Int = draw(st.integers(0, 3))
        step = draw(st.sampled_from((1, 1, 1, 2)))
        for k in order:
            offset = offset + loops[k] * step
            step = step * extents[k] + gap
        return offset, high(offset) + 1

    orders = st.permutations(range(len(loops)))
    (here, size), (there, source) = (place(draw(orders), draw(st.integers(0, 2))) for _ in range(2))
    params = (Buffer("x", dtype, source, Scope.GLOBAL), Buffer("out", dtype, size, Scope.GLOBAL))
    value = call(Op.ADD, Load(dtype, "x", (there,)), cast(from_index(loops[0]), dtype))
    nest: Block = (Store("out", here, value),)
    for k, v in reversed(list(enumerate(loops))):
        nest = (Loop(v, v.hi + 1, nest, LoopKind.VECTOR if k == len(loops) - 1 else LoopKind.SERIAL),)
    return Program("kernel", params, frozenset({"out"}), (), nest)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(program=copies())
def test_random_copies(compile_all: Callable[..., Any], program: Program) -> None:
    arrays = {
        b.name: np.arange(b.size).astype(to_numpy(b.dtype)) for b in program.params if isinstance(b.size, int)
    }
    compile_all([program]).check("kernel", arrays)
