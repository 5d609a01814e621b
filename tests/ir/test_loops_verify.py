"""Each rule of lowered loops, broken once."""

from __future__ import annotations

import pytest

from weft.ir import dtypes
from weft.ir.errors import IRError
from weft.ir.expr import Const, Expr, FromIndex, Load, ScalarCall, Temp, as_index
from weft.ir.index import Int, Var, in_range
from weft.ir.loops import (
    Accumulate,
    Alloc,
    Barrier,
    Buffer,
    Combine,
    If,
    Let,
    Loop,
    LoopKind,
    Program,
    Scope,
    Stmt,
    Store,
)
from weft.ir.loops_verify import verify
from weft.ir.ops import Op

F, H, I, B = dtypes.float32, dtypes.float16, dtypes.int32, dtypes.bool_
ONE, TRUE = Const(F, 1), Const(B, True)
N = Var("n", 1, 100)
i, j = Var("i", 0, 7), Var("j", 0, 7)
SERIAL, UNROLL, MATRIX, VECTOR, ACROSS, PARALLEL, BLOCK, THREAD = LoopKind


def loop(*body: Stmt, var: Var = i, extent: Int = 8, kind: LoopKind = SERIAL) -> Loop:
    return Loop(var, extent, body, kind)


def put(value: Expr, at: Int = 0, to: str = "y") -> Store:
    return Store(to, at, value)


def alloc(name: str, scope: Scope = Scope.REGISTER, size: Int = 8) -> Alloc:
    return Alloc(Buffer(name, F, size, scope))


def program(*body: Stmt) -> Program:
    params = tuple(
        Buffer(n, d, 8, Scope.GLOBAL) for n, d in (("x", F), ("y", F), ("h", H), ("b", B), ("k", I))
    )
    return Program("p", params, frozenset("yhbk"), (N,), body)


def two(op: Op, d: dtypes.DType, out: dtypes.DType | None = None) -> ScalarCall:
    return ScalarCall(out or d, op, (Const(d, 1), Const(d, 1)))


BROKEN: dict[str, tuple[list[Stmt], str]] = {
    "store to a parameter that is only read": ([put(ONE, to="x")], "x is not among the program's writes"),
    "store to nothing": ([put(ONE, to="nothing")], "nothing is not a buffer in scope"),
    "store of another dtype": ([put(Const(I, 1))], "int32 value is stored to y, which is float32"),
    "load of another dtype": ([put(Load(I, "x", (0,)), to="k")], "x is float32, not int32"),
    "load with two indices": ([put(Load(F, "x", (0, 1)))], "one flat offset"),
    "offset out of range": ([put(ONE, 8)], "offset in 8..8 leaves y, which has 8 elements"),
    "offset below zero": ([loop(put(ONE, i - 1))], "offset in -1..6 leaves y"),
    "load out of range": ([loop(put(Load(F, "x", (i * 2,)), i))], "offset in 0..14 leaves x"),
    "unbound temporary": ([put(Temp(F, "t"))], "t is not bound here"),
    "temporary used outside its block": ([loop(Let("t", ONE)), put(Temp(F, "t"))], "t is not bound here"),
    "temporary of another dtype": ([Let("t", ONE), put(Temp(I, "t"), to="k")], "t is float32, not int32"),
    "unbound variable": ([put(ONE, i)], "i is not an index variable in scope"),
    "variable of another range": (
        [loop(put(ONE, Var("i", 0, 3)))],
        "i is used with range 0..3 but has range 0..7",
    ),
    "name bound twice": ([Let("t", ONE), Let("t", ONE)], "t is bound twice"),
    "name bound in two blocks": ([loop(), loop()], "i is bound twice"),
    "loop variable named as a parameter": ([loop(var=Var("x", 0, 7))], "x is bound twice"),
    "range and extent differ": ([loop(extent=4)], "variable i runs over 0..7, not over 0..3"),
    "vector of unknown extent": (
        [loop(var=Var("i", 0, 99), extent=N, kind=VECTOR)],
        "extent of a vector loop must be constant",
    ),
    "unroll of unknown extent": (
        [loop(var=Var("i", 0, 99), extent=N, kind=UNROLL)],
        "extent of a unroll loop must be constant",
    ),
    "parallel inside vector": (
        [loop(loop(var=j, kind=PARALLEL), kind=VECTOR)],
        "parallel loop may not stand inside a vector loop",
    ),
    "vector inside vector": (
        [loop(loop(var=j, kind=VECTOR), kind=VECTOR)],
        "vector loop may not stand inside a vector loop",
    ),
    "block inside thread": (
        [loop(loop(var=j, kind=BLOCK), kind=THREAD)],
        "block loop may not stand inside a thread loop",
    ),
    "lanes of different extent": (
        [loop(loop(var=Var("j", 0, 6), extent=i), kind=VECTOR)],
        "differs between lanes",
    ),
    "allocation of unknown size": ([alloc("a", size=N)], "size of an allocation must be a constant"),
    "global inside parallel": (
        [loop(alloc("a", Scope.GLOBAL), kind=PARALLEL)],
        "GLOBAL buffer is shared by all tasks",
    ),
    "local inside thread": (
        [loop(alloc("a", Scope.LOCAL), kind=THREAD)],
        "allocate it outside thread and vector loops",
    ),
    "register shared by threads": (
        [alloc("a"), loop(put(ONE, 0, "a"), kind=THREAD)],
        "register buffer a is used across a thread loop",
    ),
    "local shared by tasks": (
        [alloc("a", Scope.LOCAL), loop(put(ONE, 0, "a"), kind=PARALLEL)],
        "local buffer a is used across a parallel loop",
    ),
    "buffer used after its block": ([loop(alloc("a")), put(ONE, 0, "a")], "a is not a buffer in scope"),
    "combined in memory": (
        [Alloc(Buffer("s", F, 8, Scope.LOCAL)), loop(Combine("s", 0, Op.ADD, 8), kind=LoopKind.THREAD)],
        "s is not in registers of each thread",
    ),
    "combined by an odd number": (
        [loop(Alloc(Buffer("s", F, 8, Scope.REGISTER)), Combine("s", 0, Op.ADD, 3), kind=LoopKind.THREAD)],
        "are not groups of 3, a power of two",
    ),
    "combined at different places": (
        [loop(Alloc(Buffer("s", F, 8, Scope.REGISTER)), Combine("s", i, Op.ADD, 8), kind=LoopKind.THREAD)],
        "threads combine elements at different offsets",
    ),
    "combined without threads": (
        [Alloc(Buffer("s", F, 8, Scope.REGISTER)), Combine("s", 0, Op.ADD, 8)],
        "what threads combine must stand inside a thread loop",
    ),
    "barrier without threads": ([Barrier()], "must stand inside a thread loop"),
    "barrier that some threads miss": (
        [loop(If(in_range(i, 0, 4), (Barrier(),)), kind=THREAD)],
        "some threads of the block may not come",
    ),
    "accumulate by subtraction": ([Accumulate("y", 0, Op.SUB, ONE)], "sub cannot accumulate"),
    "accumulate in 16 bits": ([Accumulate("h", 0, Op.ADD, Const(H, 1))], "add cannot accumulate in float16"),
    "sum of bools": ([Accumulate("b", 0, Op.ADD, TRUE)], "add cannot accumulate in bool"),
    "16-bit arithmetic": ([put(two(Op.ADD, H), to="h")], "narrow floats are only loaded, stored and cast"),
    "division of integers": ([put(two(Op.DIV, I), to="k")], "div needs a float dtype, got int32"),
    "floor division of floats": ([put(two(Op.FLOORDIV, F))], "floordiv needs an integer dtype"),
    "shift of floats": ([put(two(Op.SHL, F))], "shl needs an integer dtype"),
    "bits of floats": ([put(two(Op.AND, F))], "and needs a bool or integer dtype"),
    "sum of two bools": ([put(two(Op.ADD, B), to="b")], "add is not defined on bool"),
    "comparison that is no bool": ([put(two(Op.LT, F, F))], "lt of float32, float32 gives bool, not float32"),
    "operands of two dtypes": (
        [put(ScalarCall(F, Op.ADD, (ONE, Const(I, 1))))],
        "add needs operands of one dtype, got float32, int32",
    ),
    "too few operands": ([put(ScalarCall(F, Op.MAX, (ONE,)))], "max takes 2 operands, not 1"),
    "choice by a number": (
        [put(ScalarCall(F, Op.WHERE, (ONE, ONE, ONE)))],
        "the condition is float32, not bool",
    ),
    "bitcast to another width": (
        [put(ScalarCall(F, Op.BITCAST, (Const(H, 1),)))],
        "float16 and float32 differ in width",
    ),
    "threefry of floats": ([put(ScalarCall(F, Op.THREEFRY, (ONE, ONE, ONE)))], "threefry needs uint32"),
    "fma of integers": ([put(ScalarCall(I, Op.FMA, (Const(I, 1),) * 3), to="k")], "fma needs a float dtype"),
    "reduction as an expression": ([put(ScalarCall(F, Op.SUM, (ONE,)))], "sum is not elementwise"),
    "index as a float": ([loop(put(FromIndex(F, i)))], "an index has an integer dtype, not float32"),
    "index computed as a float": (
        [put(ONE, as_index(Load(F, "x", (0,)), 0, 3))],
        "an index is computed as float32",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rules_are_named(name: str) -> None:
    body, rule = BROKEN[name]
    with pytest.raises(IRError) as error:
        verify(program(*body))
    assert rule in str(error.value)
    assert "loops of p" in str(error.value)


def test_parameters_are_checked() -> None:
    with pytest.raises(IRError, match="writes names no parameter: z"):
        verify(Program("p", (), frozenset("z"), (), ()))
    with pytest.raises(IRError, match="parameter a is not GLOBAL"):
        verify(Program("p", (Buffer("a", F, 1, Scope.LOCAL),), frozenset(), (), ()))


def test_what_a_guard_protects_may_be_out_of_range() -> None:
    guard = in_range(i, 1, None)
    load = Load(F, "x", (i - 1,), guard)
    verify(program(loop(put(load, i), Store("y", i - 1, load, guard), If(guard, (put(ONE, i - 1),)))))


def test_an_error_shows_the_statement() -> None:
    with pytest.raises(IRError, match=r"in: y\[i\] = x\[2\*i\]"):
        verify(program(loop(put(Load(F, "x", (i * 2,)), i))))
