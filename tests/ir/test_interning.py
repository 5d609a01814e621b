"""Equal expressions are one object; dead ones leave the table; threads agree."""

from __future__ import annotations

import copy
import gc
import math
import threading
from itertools import pairwise

from weft.ir import dtypes, interning
from weft.ir.expr import Const, FromIndex, Load, ScalarCall, Temp, as_index, call, walk
from weft.ir.expr import test as holds
from weft.ir.index import InRange, Var
from weft.ir.ops import Op

f32 = dtypes.float32


def test_equal_expressions_are_one_object() -> None:
    i = Var("i", 0, 9)
    assert Var("i", 0, 9) is i and Var("i", 0, 8) is not i
    assert i * 4 + 1 is 1 + 4 * i and (i + 3) // 2 is (3 + i) // 2 and i % 4 is i % 4
    x = Load(f32, "x", (i,))
    assert x is Load(f32, "x", (i,), ()) and x is not Load(f32, "x", (i,), (InRange(i, None, 5),))
    assert holds((InRange(i, None, 5),)) is holds((InRange(i, None, 5),))
    assert ScalarCall(f32, Op.ADD, (x, Temp(f32, "t"))) is ScalarCall(f32, Op.ADD, (x, Temp(f32, "t")))
    assert FromIndex(dtypes.int64, i) is FromIndex(dtypes.int64, i) is not FromIndex(dtypes.int32, i)
    assert copy.deepcopy(i * 4 + 1) is i * 4 + 1 and copy.deepcopy(x) is x


def test_constants_are_one_object_where_dtype_and_bits_are_equal() -> None:
    assert Const(f32, 1) is Const(f32, 1.0) is not Const(dtypes.float64, 1.0)
    assert Const(f32, 0.0) is not Const(f32, -0.0)
    assert Const(f32, math.nan) is Const(f32, math.nan)
    assert Const(dtypes.uint8, 257) is Const(dtypes.uint8, 1) is not Const(dtypes.bool_, 1)
    assert Const(f32, 0.1) is Const(f32, Const(f32, 0.1).value)


def test_a_dead_chain_leaves_the_table_in_one_sweep() -> None:
    gc.collect()
    interning._sweep()
    before = len(interning._known)
    e: Const | ScalarCall = Const(f32, 123.25)
    for _ in range(20_000):
        e = ScalarCall(f32, Op.ADD, (e, e))
    assert len(interning._known) >= before + 20_000
    del e
    interning._sweep()
    assert len(interning._known) <= before


def test_threads_get_the_same_objects() -> None:
    start = threading.Barrier(4)
    made: list[list[object]] = [[] for _ in range(4)]

    def work(k: int) -> None:
        start.wait()
        for n in range(3_000):
            v = Var(f"thread_{n}", 0, 7)
            made[k] += [v, v * 8 + n, Const(f32, n + 0.5)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(all(a is b for a, b in zip(x, y, strict=True)) for x, y in pairwise(made))


def test_walking_without_indices_finds_operands() -> None:
    x, y = Const(f32, 3.0), Load(f32, "x", (Var("i", 0, 3),))
    e = ScalarCall(f32, Op.ADD, (y, ScalarCall(f32, Op.MUL, (x, y))))
    assert [type(a) for a in walk([e], into_indices=False)] == [Load, Const, ScalarCall, ScalarCall]


def test_a_walk_finds_everything_once_operands_first() -> None:
    i = Var("i", 0, 9)
    inner = Load(dtypes.int64, "index", (i,))
    x = Load(f32, "x", (as_index(inner, 0, 9),))
    y = call(Op.MUL, x, call(Op.EXP, x))
    assert list(walk([y, x])) == [inner, x, y.operands()[1], y]
    assert list(walk([y], into_indices=False)) == [x, y.operands()[1], y]
    assert list(walk([y])) == list(walk([y]))  # also when it is remembered
