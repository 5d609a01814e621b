"""Hand-written loops, each for one way of rendering, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from weft.backends.llvm import turn
from weft.ir import dtypes
from weft.ir.dtypes import DType, to_numpy
from weft.ir.expr import (
    Expr,
    Load,
    ScalarCall,
    Temp,
    as_index,
    call,
    cast,
    const,
    from_index,
    transform,
    where,
)
from weft.ir.expr import test as holds
from weft.ir.index import Int, Var, bounds, high, in_range, maximum, minimum, rewrite_guard, substitute
from weft.ir.loops import (
    Accumulate,
    Alloc,
    Block,
    Buffer,
    If,
    Let,
    Loop,
    LoopKind,
    Program,
    Scope,
    Stmt,
    Store,
)
from weft.ir.ops import Op

F32, F64, I32, I64, BOOL = dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64, dtypes.bool_
SERIAL, UNROLL, VECTOR, PARALLEL = LoopKind.SERIAL, LoopKind.UNROLL, LoopKind.VECTOR, LoopKind.PARALLEL
Build = Callable[..., Any]


def param(name: str, dtype: DType, size: Int) -> Buffer:
    return Buffer(name, dtype, size, Scope.GLOBAL)


def register(name: str, dtype: DType, size: int) -> Buffer:
    return Buffer(name, dtype, size, Scope.REGISTER)


def local(name: str, dtype: DType, size: int) -> Buffer:
    return Buffer(name, dtype, size, Scope.LOCAL)


def var(name: str, extent: int) -> Var:
    return Var(name, 0, extent - 1)


def loop(v: Var, *body: Stmt, kind: LoopKind = SERIAL, extent: Int | None = None) -> Loop:
    return Loop(v, v.hi + 1 if extent is None else extent, body, kind)


def load(b: Buffer, at: Int, guard: Any = ()) -> Load:
    return Load(b.dtype, b.name, (at,), guard)


def floats(n: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(n).standard_normal(n).astype(dtype)


def own_names(body: Block, count: Iterator[int], mapping: dict[Var, Var]) -> Block:
    """`body` with a name of its own for each loop variable."""

    def index(i: Int) -> Int:
        return substitute(i, mapping)

    def expr(e: Expr) -> Expr:
        return transform(e, lambda _: None, lambda i: mapping.get(i) if isinstance(i, Var) else None)

    def offset(i: Int) -> Int:
        e = expr(from_index(i)) if not isinstance(i, int) else const(I64, i)
        return as_index(e, *bounds(i))

    def guard(g: Any) -> Any:
        return rewrite_guard(g, index)

    out: list[Stmt] = []
    for s in body:
        match s:
            case Loop():
                v = Var(f"{s.var.name}_{next(count)}", 0, max(0, high(s.extent) - 1))
                inner = {**mapping, s.var: v}
                out.append(Loop(v, index(s.extent), own_names(s.body, count, inner), s.kind))
            case If():
                out.append(If(guard(s.guard), own_names(s.body, count, mapping)))
            case Store():
                out.append(replace(s, offset=offset(s.offset), value=expr(s.value), guard=guard(s.guard)))
            case Accumulate():
                out.append(replace(s, offset=offset(s.offset), value=expr(s.value), guard=guard(s.guard)))
            case Let():
                out.append(Let(s.name, expr(s.value)))
            case _:
                out.append(s)
    return tuple(out)


def check(
    build: Build,
    params: list[Buffer],
    writes: str,
    body: Block,
    *,
    rtol: float = 0,
    variables: dict[Var, int] | None = None,
    **arrays: Any,
) -> None:
    named = own_names(body, count(), {})
    p = Program("kernel", tuple(params), frozenset(writes.split()), tuple(variables or ()), named)
    build([p]).check("kernel", arrays, {v.name: k for v, k in (variables or {}).items()}, rtol)


@pytest.mark.parametrize("n", [1, 15, 16, 1000, 1008])
@pytest.mark.parametrize("kind", [SERIAL, PARALLEL])
def test_elementwise_with_vector_loop_and_masked_tail(compile_all: Build, n: int, kind: LoopKind) -> None:
    size = Var("n", 1, 1 << 40)
    x, out = param("x", F32, size), param("out", F32, size)
    i, v = Var("i", 0, 1 << 36), var("v", 16)

    def body(at: Int, guard: Any) -> Loop:
        y = call(Op.MAX, call(Op.MUL, load(x, at, guard), const(F32, 1.5)), const(F32, 0.0))
        return loop(v, Store("out", at, y, guard, stream=True), kind=VECTOR)

    tail = size // 16 * 16 + v
    main = Loop(i, size // 16, (body(i * 16 + v, ()),), kind)
    check(
        compile_all,
        [x, out],
        "out",
        (main, body(tail, in_range(tail, None, size))),
        variables={size: n},
        x=floats(n),
        out=np.zeros(n, np.float32),
    )


def test_a_guarded_statement_reads_nothing_where_it_fails(compile_all: Build) -> None:
    # the offset is far outside of any memory for the lanes beyond the end
    n, far = 20, 1 << 40
    x, out = param("x", F32, n), param("out", F32, 32)
    v = var("v", 32)
    jump = as_index(where(holds(in_range(v, None, n)), from_index(v), const(I64, far)), 0, far)
    statement = Store("out", v, load(x, jump), in_range(v, None, n))
    check(compile_all, [x, out], "out", (loop(v, statement, kind=VECTOR),), x=floats(n), out=floats(32))


@pytest.mark.parametrize("op", [Op.ADD, Op.MUL, Op.MAX, Op.MIN])
@pytest.mark.parametrize("dtype", [F32, F64, I32, dtypes.uint8, I64])
def test_reduction_with_four_vector_accumulators(compile_all: Build, op: Op, dtype: DType) -> None:
    n = 4 * 16 * 9
    x, out = param("x", dtype, n), param("out", dtype, 1)
    acc, total = register("acc", dtype, 64), register("total", dtype, 1)
    i, u, v = var("i", 9), var("u", 4), var("v", 16)
    at = u * 16 + v
    body = (
        Alloc(acc),
        loop(u, loop(v, Store("acc", at, load(x, at)), kind=VECTOR), kind=UNROLL),
        loop(i, loop(u, loop(v, Accumulate("acc", at, op, load(x, i * 64 + at)), kind=VECTOR), kind=UNROLL)),
        Alloc(total),
        Store("total", 0, load(x, 0)),
        loop(u, loop(v, Accumulate("total", 0, op, load(acc, at)), kind=VECTOR), kind=UNROLL),
        Store("out", 0, load(total, 0)),
    )
    values = (1 + 0.01 * floats(n)) if dtype.is_float else np.arange(n) % 7 - 3
    t = to_numpy(dtype)
    check(compile_all, [x, out], "out", body, rtol=1e-6, x=values.astype(t), out=np.zeros(1, t))


@pytest.mark.parametrize("lanes", [3, 5, 7, 12, 16])
def test_lanes_are_combined_in_the_same_order_as_in_the_interpreter(compile_all: Build, lanes: int) -> None:
    x, out = param("x", F32, lanes), param("out", F32, 1)
    v = var("v", lanes)
    body = (Store("out", 0, const(F32, 0.0)), loop(v, Accumulate("out", 0, Op.ADD, load(x, v)), kind=VECTOR))
    check(compile_all, [x, out], "out", body, x=floats(lanes), out=np.zeros(1, np.float32))


def test_matmul_with_packed_panels_and_a_tile_in_registers(compile_all: Build) -> None:
    m, n, k, tile_m, tile_n, lanes = 12, 130, 40, 6, 64, 16
    columns = -(-n // tile_n)
    a, b, c = param("a", F32, m * k), param("b", F32, k * n), param("c", F32, m * n)
    panel_a, panel_b = local("panel_a", F32, 200 * k * tile_m), param("panel_b", F32, columns * k * tile_n)
    acc = register("acc", F32, tile_m * tile_n)
    it, jt, kk = var("it", m // tile_m), var("jt", columns), var("kk", k)
    i, j, v = var("i", tile_m), var("j", tile_n // lanes), var("v", lanes)
    column = jt * tile_n + j * lanes + v
    at = i * tile_n + j * lanes + v
    inside = in_range(column, None, n)

    def tile(*body: Stmt) -> Loop:
        return loop(i, loop(j, loop(v, *body, kind=VECTOR), kind=UNROLL), kind=UNROLL)

    pack_b = Store("panel_b", (jt * k + kk) * tile_n + j * lanes + v, load(b, kk * n + column, inside))
    fma = call(
        Op.FMA,
        load(panel_a, kk * tile_m + i),
        load(panel_b, (jt * k + kk) * tile_n + j * lanes + v),
        load(acc, at),
    )
    body = (
        loop(jt, loop(kk, loop(j, loop(v, pack_b, kind=VECTOR), kind=UNROLL)), kind=PARALLEL),
        loop(
            it,
            Alloc(panel_a),
            loop(
                kk,
                loop(i, Store("panel_a", kk * tile_m + i, load(a, (it * tile_m + i) * k + kk)), kind=UNROLL),
            ),
            loop(
                jt,
                Alloc(acc),
                tile(Store("acc", at, const(F32, 0.0))),
                loop(kk, tile(Store("acc", at, fma))),
                tile(Store("c", (it * tile_m + i) * n + column, load(acc, at), inside)),
            ),
            kind=PARALLEL,
        ),
    )
    check(
        compile_all,
        [a, b, panel_b, c],
        "panel_b c",
        body,
        a=floats(m * k),
        b=floats(k * n),
        panel_b=np.zeros(columns * k * tile_n, np.float32),
        c=np.zeros(m * n, np.float32),
    )


@pytest.mark.parametrize("dtype", [F32, F64, I32, dtypes.int8, BOOL, dtypes.float16])
@pytest.mark.parametrize("stride", [1, -1, 2, -2, 3, 4, -4, 5, 0])
def test_strided_reads_and_writes(compile_all: Build, dtype: DType, stride: int) -> None:
    lanes, n = 16, 100
    v = var("v", lanes)
    start = 3 if stride >= 0 else 3 - stride * (lanes - 1)
    at = start + v * stride
    x, y, z = param("x", dtype, n), param("y", dtype, n), param("z", dtype, n)
    body = (
        loop(v, Store("y", v, load(x, at)), kind=VECTOR),
        loop(v, Store("z", at, load(x, v)), kind=VECTOR),
        loop(v, Store("y", v + 16, load(x, at, in_range(v, 2, 13))), kind=VECTOR),
        loop(v, Store("z", at, load(x, v + 20), in_range(v, 2, 13)), kind=VECTOR),
    )
    t = to_numpy(dtype)
    values = (floats(n) > 0 if dtype is BOOL else floats(n) * 50).astype(t)
    check(compile_all, [x, y, z], "y z", body, x=values, y=np.zeros(n, t), z=np.zeros(n, t))


@pytest.mark.parametrize("index", [I32, I64, dtypes.uint8])
def test_gather_and_scatter(compile_all: Build, index: DType) -> None:
    n, lanes = 48, 16
    x, at, y, z = param("x", F32, n), param("at", index, n), param("y", F32, n), param("z", F32, n)
    i, v, s = var("i", n // lanes), var("v", lanes), var("s", n)
    here = i * lanes + v
    k = as_index(load(at, here), 0, n - 1)
    even = in_range(here % 3, 1, None)
    body = (
        loop(i, loop(v, Store("y", here, load(x, k)), kind=VECTOR)),
        loop(i, loop(v, Store("z", k, load(x, here)), kind=VECTOR)),
        loop(i, loop(v, Accumulate("z", k, Op.ADD, load(x, here)), kind=VECTOR)),
        loop(i, loop(v, Accumulate("z", k, Op.ADD, load(y, here), even), kind=VECTOR)),
        loop(s, Accumulate("y", as_index(load(at, s), 0, n - 1), Op.MAX, load(x, 0))),
    )
    where_to = np.random.default_rng(0).integers(0, n, n).astype(to_numpy(index))
    check(
        compile_all,
        [x, at, y, z],
        "y z",
        body,
        x=floats(n),
        at=where_to,
        y=floats(n + 1)[:n],
        z=np.zeros(n, np.float32),
    )


@pytest.mark.parametrize("dtype", [F32, F64, dtypes.int8, BOOL])
@pytest.mark.parametrize(("rows", "lanes"), [(16, 16), (8, 16), (20, 32), (4, 12), (3, 8)])
def test_a_tile_is_transposed_in_registers(compile_all: Build, dtype: DType, rows: int, lanes: int) -> None:
    t, n = to_numpy(dtype), rows * lanes * 6
    x, y, z = param("x", dtype, n), param("y", dtype, n), param("z", dtype, n)
    i, u, v = var("i", 3), var("u", rows), var("v", lanes)
    there, here = i * rows + v * 3 * rows + u, i * rows * lanes + u * lanes + v

    def tile(*body: Stmt) -> Loop:
        return loop(i, loop(u, loop(v, *body, kind=VECTOR), kind=UNROLL))

    body = (
        tile(Store("y", here, load(x, there))),
        tile(Store("z", there, load(y, here)), Store("y", here, load(z, there + 1))),
    )
    values = (floats(n) > 0 if dtype is BOOL else floats(n) * 50).astype(t)
    check(compile_all, [x, y, z], "y z", body, x=values, y=np.zeros(n, t), z=np.zeros(n, t))


@pytest.mark.parametrize("dtype", [F32, F64, dtypes.uint8])
@pytest.mark.parametrize("rows", [16, 40])
@pytest.mark.parametrize("apart", ["load", "store"])
def test_copies_that_turn_their_data(compile_all: Build, dtype: DType, rows: int, apart: str) -> None:
    lanes, runs, t = 32, 3, to_numpy(dtype)
    n = rows * lanes * runs
    x, y = param("x", dtype, n), param("y", dtype, n)
    j, o, v = var("j", rows), var("o", runs), var("v", lanes)
    straight, turned = j * lanes * runs + o * lanes + v, (o * lanes + v) * rows + j
    there, here = (turned, straight) if apart == "load" else (straight, turned)
    value = call(Op.ADD, load(x, there), const(dtype, 1))
    body = (loop(j, loop(o, loop(v, Store("y", here, value), kind=VECTOR))),)
    check(compile_all, [x, y], "y", body, x=np.arange(n).astype(t), y=np.zeros(n, t))


@pytest.mark.parametrize("apart", ["load", "store"])
def test_copies_of_a_runtime_size_that_turn_their_data(compile_all: Build, apart: str) -> None:
    """Whole tiles, what is left of them, and nothing where the size is less than that."""
    lanes, runs, most = 32, 3, 60
    n, size = Var("n", 0, most), most * lanes * runs
    x, y = param("x", F32, size), param("y", F32, size)
    left = n - 8
    j, o, v = Var("j", 0, most - 9), var("o", runs), var("v", lanes)
    straight, turned = j * lanes * runs + o * lanes + v, (o * lanes + v) * most + j
    there, here = (turned, straight) if apart == "load" else (straight, turned)
    body = (loop(o, Loop(j, left, (loop(v, Store("y", here, load(x, there)), kind=VECTOR),))),)
    p = Program("turned", (x, y), frozenset("y"), (n,), body)
    made = compile_all([p])
    tiles = turn.turned(body[0])
    assert tiles is not None and len(tiles) == 2
    for rows in (0, 3, 8, 9, 23, 24, 25, 40, 60):
        arrays = {"x": np.arange(size, dtype=np.float32), "y": np.zeros(size, np.float32)}
        made.check("turned", arrays, {"n": rows})


def test_copies_whose_elements_meet_are_not_turned() -> None:
    """The last one stays, so their order counts: rows of up to 60 are stored 40 apart."""
    n = Var("n", 0, 60)
    j, v = Var("j", 0, 59), var("v", 32)
    for apart, found in ((40, False), (60, True)):
        copy = loop(v, Store("y", v * apart + j, load(param("x", F32, 4000), j * 32 + v)), kind=VECTOR)
        assert (turn.turned(Loop(j, n, (copy,))) is not None) is found


def test_index_arithmetic_in_lanes_and_outside(compile_all: Build) -> None:
    n, lanes = 240, 8
    stride = Var("stride", 1, 9)
    x, out = param("x", F32, 2000), param("out", F32, n * 8)
    i, v = var("i", n // lanes), var("v", lanes)
    p = i * lanes + v
    indices: list[Int] = [
        p // 7 * 3 + p % 7,
        (p - 100) // 7 + 20,
        (p - 100) % 7,
        v // 3 * 5 + v % 3,
        minimum(p, 50) + maximum(v, 3),
        p * stride // 2,
        (p - 20) // stride + 30,
        (p - 20) % stride * stride,
    ]
    body = tuple(
        loop(i, loop(v, Store("out", p + k * n, load(x, at)), kind=VECTOR)) for k, at in enumerate(indices)
    )
    scalar = tuple(
        loop(i, loop(v, Accumulate("out", p + k * n, Op.MUL, load(x, at)))) for k, at in enumerate(indices)
    )
    check(
        compile_all,
        [x, out],
        "out",
        body + scalar,
        variables={stride: 3},
        x=floats(2000),
        out=np.zeros(n * 8, np.float32),
    )


def test_unrolled_guards_and_divisions_become_constants(compile_all: Build) -> None:
    x, out = param("x", F32, 100), param("out", F32, 100)
    i, u = var("i", 10), var("u", 10)
    p = i * 10 + u
    shifted = in_range(u, 1, 9)
    body = (loop(i, loop(u, Store("out", p, load(x, p - 1 + p // 50 % 2, shifted)), kind=UNROLL)),)
    check(compile_all, [x, out], "out", body, x=floats(100), out=np.ones(100, np.float32))


def test_branches_that_lanes_disagree_on(compile_all: Build) -> None:
    n, lanes = 70, 16
    x, s, out = param("x", F32, n), param("s", F32, 3), param("out", F32, 80)
    i, v, t = var("i", 5), var("v", lanes), var("t", 3)
    p = i * lanes + v
    inner = If(
        in_range(v, 4, None),
        (
            Let("y", call(Op.MUL, load(x, p), load(s, 1))),
            loop(t, Accumulate("out", p, Op.ADD, call(Op.ADD, Temp(F32, "y"), load(s, t)))),
            If(in_range(i, 2, 4), (Store("out", p, load(s, 0), in_range(p % 5, None, 2)),)),
        ),
    )
    body = (loop(i, loop(v, If(in_range(p, None, n), (inner,)), kind=VECTOR)),)
    check(compile_all, [x, s, out], "out", body, x=floats(n), s=floats(3), out=floats(80))


def test_a_buffer_allocated_inside_a_vector_loop_is_one_per_lane(compile_all: Build) -> None:
    lanes, n = 8, 5
    x, out = param("x", F32, lanes * n), param("out", F32, lanes)
    best = register("best", F32, n)
    v, k = var("v", lanes), var("k", n)
    body = (
        loop(
            v,
            Alloc(best),
            loop(k, Store("best", k, load(x, v * n + k))),
            loop(k, Accumulate("best", 0, Op.MAX, load(best, k))),
            Store("out", v, load(best, 0), in_range(v, 1, None)),
            kind=VECTOR,
        ),
    )
    check(compile_all, [x, out], "out", body, x=floats(lanes * n), out=np.zeros(lanes, np.float32))


def test_parallel_loops_see_what_is_around_them(compile_all: Build) -> None:
    n = Var("n", 1, 1000)
    x, out, flags = param("x", F32, 64), param("out", F32, 64), param("flags", BOOL, 4)
    mine = local("mine", F32, 8192)
    o, i, j = var("o", 2), var("i", 8), var("j", 4)
    body = (
        Let("scale", load(x, 3)),
        Let("two", const(F32, 2.0)),
        Let("yes", call(Op.LT, load(x, 0), load(x, 1))),
        loop(j, Store("flags", j, call(Op.LT, load(x, j), const(F32, 0.0)))),
        loop(
            o,
            loop(
                i,
                Alloc(mine),
                Store("mine", o * 8000 + i, load(x, o)),
                loop(
                    j,
                    Store(
                        "out",
                        o * 32 + i * 4 + j,
                        where(
                            call(Op.OR, Temp(BOOL, "yes"), load(flags, j)),
                            call(
                                Op.ADD,
                                call(Op.MUL, Temp(F32, "scale"), Temp(F32, "two")),
                                load(mine, o * 8000 + i),
                            ),
                            cast(from_index(i * n + o), F32),
                        ),
                    ),
                ),
                kind=PARALLEL,
            ),
        ),
    )
    check(
        compile_all,
        [x, flags, out],
        "flags out",
        body,
        variables={n: 17},
        x=floats(64),
        flags=np.zeros(4, bool),
        out=np.zeros(64, np.float32),
    )


@pytest.mark.parametrize("n", [0, 1, 5])
def test_loops_of_runtime_extent_may_be_empty(compile_all: Build, n: int) -> None:
    size = Var("n", 0, 100)
    out = param("out", I64, 200)
    i, j = Var("i", 0, 99), Var("j", 0, 99)
    body = (
        Loop(i, size, (Loop(j, maximum(i - 1, 0), (Accumulate("out", j, Op.ADD, from_index(i)),)),)),
        Loop(i, size, (Store("out", i + 100, from_index(size - i)),), PARALLEL),
    )
    check(compile_all, [out], "out", body, variables={size: n}, out=np.arange(200))


@pytest.mark.parametrize("small", [dtypes.float16, dtypes.bfloat16])
def test_sixteen_bit_floats_are_stored_and_computed_in_f32(compile_all: Build, small: DType) -> None:
    n = 40
    x, out = param("x", small, n), param("out", small, n)
    v = var("v", 20)

    def double(at: Int) -> Expr:
        return cast(call(Op.MUL, cast(load(x, at), F32), const(F32, 1.1)), small)

    body = (loop(v, Store("out", v, double(v)), kind=VECTOR), loop(v, Store("out", v + 20, double(v + 20))))
    t = to_numpy(small)
    check(compile_all, [x, out], "out", body, x=floats(n).astype(t), out=np.zeros(n, t))


def test_a_deep_expression_renders_without_recursion(compile_all: Build) -> None:
    x, out = param("x", F32, 16), param("out", F32, 16)
    v = var("v", 16)
    y: Expr = load(x, v)
    for k in range(5000):
        y = ScalarCall(F32, Op.ADD, (y, const(F32, k)))
    check(
        compile_all,
        [x, out],
        "out",
        (loop(v, Store("out", v, y), kind=VECTOR),),
        x=floats(16),
        out=np.zeros(16, np.float32),
    )


@pytest.mark.parametrize("kind", [SERIAL, VECTOR])
def test_a_product_that_is_accumulated_is_rounded_once(compile_all: Build, kind: LoopKind) -> None:
    x, y, out = param("x", F32, 16), param("y", F32, 16), param("out", F32, 16)
    v = var("v", 16)
    statement = Accumulate("out", v, Op.ADD, call(Op.MUL, load(x, v), load(y, v)))
    p = Program("kernel", (x, y, out), frozenset({"out"}), (), (loop(v, statement, kind=kind),))
    a, b, c = floats(16), floats(17)[:16], floats(18)[:16]
    got = compile_all([p]).run("kernel", {"x": a, "y": b, "out": c})["out"]
    np.testing.assert_array_equal(got, (a.astype(np.float64) * b + c).astype(np.float32))


def test_in_place_update(compile_all: Build) -> None:
    x = param("x", F32, 100)
    i, v = var("i", 6), var("v", 16)
    p = i * 16 + v
    body = (loop(i, loop(v, Store("x", p, call(Op.MUL, load(x, p), const(F32, 3.0))), kind=VECTOR)),)
    check(compile_all, [x], "x", body, x=floats(100))


@pytest.mark.parametrize("kind", [SERIAL, VECTOR])
def test_what_is_derived_from_shared_values_is_known_where_they_are(
    compile_all: Build, kind: LoopKind
) -> None:
    a, b, c = (Var(f"A{k}", 1, 100) for k in range(3))
    out = param("out", I64, 256)
    k, v = var("k", 4), var("v", 4)
    # products of sizes that are first made inside of a loop, since a third factor, later by name, changes there
    values: list[Int] = [
        a * b * k, a * b * c, (a * b - c) // (k + 2) + a, a * b // c * b, minimum(a * b, k) * c,
        minimum(a * b, c) * b, a * b % c * a, (a - b * c) % (k + 1), (a - b * c) % c, a * b * v, a * b * c * v,
    ]  # fmt: skip
    stores = [Store("out", k * 64 + v * 16 + n, from_index(x)) for n, x in enumerate(values)]
    check(
        compile_all, [out], "out", (loop(k, loop(v, *stores, kind=kind)),),
        variables={a: 5, b: 7, c: 3}, out=np.zeros(256, np.int64),
    )  # fmt: skip
