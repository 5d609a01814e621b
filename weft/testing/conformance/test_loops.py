"""Random loop programs: nests, guards, local buffers, runtime variables; tasks; threads that meet at barriers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.ir import dtypes
from weft.ir.expr import Const, Load, Temp, call, cast, from_index
from weft.ir.index import Var, in_range
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
from weft.testing.conformance.harness import Harness
from weft.testing.loop_programs import loop_inputs, loop_programs

AT_ONCE = 4
F = dtypes.float32


def in_order(body: Block) -> Block:
    """The block with serial loops for parallel ones, whose random iterations do share elements."""
    out: list[Stmt] = []
    for s in body:
        match s:
            case Loop():
                kind = LoopKind.SERIAL if s.kind is LoopKind.PARALLEL else s.kind
                out.append(replace(s, kind=kind, body=in_order(s.body)))
            case If():
                out.append(replace(s, body=in_order(s.body)))
            case _:
                out.append(s)
    return tuple(out)


def test_random_loops(harness: Harness, examples: Callable[[int], Any]) -> None:
    """Exact arithmetic on small integers: every bit is determined."""

    @examples(12)
    @given(st.data())
    def compare(data: st.DataObject) -> None:
        programs = [data.draw(loop_programs(exact=True)) for _ in range(AT_ONCE)]
        programs = [replace(p, body=in_order(p.body)) for p in programs]
        for run in harness.compile(programs):
            arrays, variables = data.draw(loop_inputs(run.program, exact=True))
            run.check(arrays, variables)

    compare()


def var(name: str, n: int) -> Var:
    """A loop variable."""
    return Var(name, 0, n - 1)


def test_what_was_written_is_read_again(harness: Harness) -> None:
    """Unrolled iterations read elements that earlier ones, a loop, or some lanes have written since: renderers that
    keep what they have read must know. One program, so that it costs one compilation."""
    z, first = (lambda: Load(F, "z", (0,))), Load(F, "y", (0,))
    step, k, j = var("step", 3), var("k", 4), var("j", 8)
    one = Const(F, 1)

    def unrolled(v: Var, *body: Stmt) -> Loop:
        return Loop(v, v.hi + 1, body, LoopKind.UNROLL)

    by_store = unrolled(
        step,
        Store("y", step, call(Op.ADD, z(), one)),
        Store("z", 0, call(Op.MUL, Load(F, "y", (step,)), Const(F, 2))),
    )
    again = var("again", 2)
    adding = Loop(k, 4, (Store("z", 0, call(Op.ADD, z(), Load(F, "x", (k,)))),))
    by_loop = unrolled(again, Store("y", again + 3, z()), adding, Store("y", again + 5, z()))
    some = var("some", 2)
    when = If(in_range(Var("n", 0, 9), 4, None), (Store("z", 0, call(Op.ADD, z(), one)),))
    by_branch = unrolled(some, Store("y", some + 7, z()), when, Store("y", some + 9, z()))
    lanes = var("lanes", 3)
    shifted = Load(F, "w", (j + 1,), in_range(j + 1, 0, 8))
    by_lanes = unrolled(
        lanes,
        Loop(
            j,
            8,
            (Store("v", 8 * lanes + j, shifted), Store("w", j, call(Op.ADD, shifted, first))),
            LoopKind.VECTOR,
        ),
    )
    sizes = {"x": 4, "y": 11, "z": 1, "v": 24, "w": 8}
    params = tuple(Buffer(name, F, size, Scope.GLOBAL) for name, size in sizes.items())
    body = (by_store, by_loop, by_branch, by_lanes)
    (run,) = harness.compile([Program("again", params, frozenset("yzvw"), (Var("n", 0, 9),), body)])
    for n in (3, 5):
        arrays = {name: np.arange(1, size + 1, dtype=np.float32) for name, size in sizes.items()}
        run.check(arrays, {"n": n})


def test_large_buffers_and_roundings(harness: Harness) -> None:
    """Two buffers of a task that are too large for most stacks and local memories, both in use at once. And a product
    that is used twice: adding to it is no fused operation, whatever compilers make of a * b + c."""
    n = 5000
    task, i, j, k = var("task", 2), var("i", n), var("j", n), var("k", 4)
    at = (n * task + i,)
    up, down = Buffer("up", F, n, Scope.LOCAL), Buffer("down", F, n, Scope.LOCAL)
    both = call(Op.ADD, Load(F, "up", (j,)), call(Op.MUL, Load(F, "down", (n - 1 - j,)), Const(F, 2)))
    body = (
        Alloc(up),
        Alloc(down),
        Loop(i, n, (Store("up", i, Load(F, "x", at)), Store("down", n - 1 - i, Load(F, "x", at)))),
        Loop(j, n, (Store("y", n * task + j, both),)),
    )
    product = call(Op.MUL, Load(F, "a", (k,)), Load(F, "b", (k,)))
    rounded = tuple(Store(y, k, call(Op.ADD, product, Load(F, z, (k,)))) for y, z in ("pd", "sc"))
    programs = [
        Program(
            "large",
            tuple(Buffer(name, F, 2 * n, Scope.GLOBAL) for name in "xy"),
            frozenset("y"),
            (),
            (Loop(task, 2, body, LoopKind.PARALLEL),),
        ),
        Program(
            "rounded",
            tuple(Buffer(name, F, 4, Scope.GLOBAL) for name in "abcdps"),
            frozenset("ps"),
            (),
            (Loop(k, 4, rounded),),
        ),
    ]
    large, small = harness.compile(programs)
    x = np.arange(2 * n, dtype=np.float32) % 1000
    large.check({"x": x, "y": np.zeros_like(x)})
    a = np.array([1 + 2.0**-12, 3, 1 - 2.0**-12, 1 + 2.0**-23], np.float32)
    zero = np.zeros_like(a)
    small.check({"a": a, "b": a, "c": -(a * a), "d": zero, "p": zero, "s": zero + 1})


def test_guards_cover_what_lies_far_outside(harness: Harness) -> None:
    """A guard that fails, on a load, a store, an accumulation or a branch, touches nothing: the index lies far
    outside of all memory. By scalars, and by lanes of which every fourth is active, each time others; they add nothing
    to what the lanes combine."""
    far = (1 << 40) + 12_345_677 if harness.device.info.bounds.index_bits == 64 else (1 << 28) + 12_345_677
    programs: list[Program] = []
    for lanes in (1, 8):
        outer, lane = Var("o", 0, 64 // lanes - 1), Var("v", 0, lanes - 1)
        i = outer * lanes + lane if lanes > 1 else outer
        part = (lane + outer) % 4 if lanes > 1 else outer % 4
        at, guard = i + part * far, in_range(part, 0, 1)
        x, here = Load(F, "x", (at,)), Load(F, "x", (i,))
        body: Block = (
            Store("a", i, Load(F, "x", (at,), guard)),
            Store("b", at, call(Op.ADD, x, here), guard),
            Accumulate("c", 0, Op.ADD, x, guard),
            Accumulate("c", 1, Op.MAX, x, guard),
            Accumulate("c", 2, Op.MUL, Const(F, 2), guard),
            If(guard, (Let("t", x), Store("d", at, call(Op.MUL, Temp(F, "t"), here)))),
            Accumulate("c", i % 2 + 3, Op.ADD, here, guard),
        )
        if lanes > 1:
            body = (Loop(lane, lanes, body, LoopKind.VECTOR),)
        params = tuple(Buffer(name, F, 64, Scope.GLOBAL) for name in "xabcd")
        loop = Loop(outer, 64 // lanes, body)
        programs.append(Program(f"far_{lanes}", params, frozenset("abcd"), (), (loop,)))
    for run in harness.compile(programs):
        run.check({name: np.arange(64, dtype=np.float32) - 70 + k for k, name in enumerate("xabcd")})


@pytest.mark.parametrize("lanes", (8, 64, 3))
def test_lanes_in_step(harness: Harness, lanes: int) -> None:
    """A vector loop does each statement for all lanes before the next, reads before it writes, and adds up as a tree:
    the first half and the second half, until one is left. Lanes that meet in one element come in order; each has
    buffers of its own."""
    v, k = var("v", lanes), var("k", 2)
    across = lanes - 1 - v
    body = (
        Store("a", v, call(Op.ADD, Load(F, "a", (across,)), Const(F, 1))),
        Store("b", v, call(Op.MUL, Load(F, "x", (v,)), Const(F, 2))),
        Store("c", v, Load(F, "b", (across,))),
        Accumulate("s", 0, Op.ADD, Load(F, "x", (v,))),
        Accumulate("s", v // 4 + 1, Op.ADD, Load(F, "b", (v,))),
        Store("d", v // 2, Load(F, "x", (v,))),
        Alloc(Buffer("own", F, 2, Scope.REGISTER)),
        Loop(k, 2, (Store("own", k, call(Op.MUL, Load(F, "x", (v,)), cast(from_index(k + 1), F))),)),
        Store("e", v, call(Op.SUB, Load(F, "own", (0,)), Load(F, "own", (1,)))),
    )
    sizes = {
        "x": lanes,
        "a": lanes,
        "b": lanes,
        "c": lanes,
        "d": (lanes + 1) // 2,
        "e": lanes,
        "s": lanes // 4 + 2,
    }
    params = tuple(Buffer(name, F, size, Scope.GLOBAL) for name, size in sizes.items())
    (run,) = harness.compile(
        [Program("lanes", params, frozenset("abcdes"), (), (Loop(v, lanes, body, LoopKind.VECTOR),))]
    )
    x = np.ones(lanes, np.float32)
    x[0], x[lanes // 2] = 2.0**24, -(2.0**24)
    run.check({name: x if name == "x" else np.arange(n, dtype=np.float32) for name, n in sizes.items()})


def test_tasks(harness: Harness) -> None:
    """Independent iterations with a local buffer each, their number known at run time."""
    n, i, k = Var("n", 1, 3000), Var("i", 0, 2999), var("k", 4)
    tile = Buffer("tile", F, 4, Scope.LOCAL)
    body = (
        Alloc(tile),
        Loop(k, 4, (Store("tile", k, call(Op.MUL, Load(F, "x", (i * 4 + k,)), Const(F, 2))),)),
        Store("y", i, Const(F, 1)),
        Loop(var("m", 4), 4, (Accumulate("y", i, Op.ADD, Load(F, "tile", (3 - var("m", 4),))),)),
    )
    for kind in (LoopKind.PARALLEL, LoopKind.BLOCK):
        if kind is LoopKind.BLOCK and harness.device.info.task_kind is not kind:
            continue
        params = (Buffer("x", F, n * 4, Scope.GLOBAL), Buffer("y", F, n, Scope.GLOBAL))
        p = Program("tasks", params, frozenset("y"), (n,), (Loop(i, n, body, kind),))
        (run,) = harness.compile([p])
        for count in (1, 7, 3000):
            x = np.arange(4 * count, dtype=np.float32) % 13
            run.check({"x": x, "y": np.zeros(count, np.float32)}, {"n": count})


def test_threads(harness: Harness) -> None:
    """Threads of a block fill a shared tile, and then read what the others stored: a barrier has to come between."""
    if harness.device.info.task_kind is not LoopKind.BLOCK:
        return  # schedules for such devices have neither blocks nor threads
    count = min(64, harness.device.info.bounds.threads)
    b, i, j = var("b", 37), var("i", count), var("j", count)
    tile = Buffer("tile", F, count, Scope.LOCAL)
    body = (
        Alloc(tile),
        Loop(i, count, (Store("tile", i, Load(F, "x", (b * count + i,))),), LoopKind.THREAD),
        Loop(j, count, (Store("y", b * count + j, Load(F, "tile", (count - 1 - j,))),), LoopKind.THREAD),
    )
    params = tuple(Buffer(name, F, 37 * count, Scope.GLOBAL) for name in "xy")
    program = Program("threads", params, frozenset("y"), (), (Loop(b, 37, body, LoopKind.BLOCK),))
    (run,) = harness.compile([program])
    x = np.arange(37 * count, dtype=np.float32)
    run.check({"x": x, "y": np.zeros_like(x)})
