"""What is inside of a block, and that it is counted once."""

from __future__ import annotations

from weft.ir import dtypes
from weft.ir.expr import Const, Load, Temp
from weft.ir.index import InRange, Opaque, Var
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
    Prefetch,
    Scope,
    Store,
)
from weft.ir.loops_names import (
    bound,
    buffers_read,
    every,
    guard_indices,
    inside,
    names_of_guard,
    names_of_index,
    names_of_stmt,
    read_names,
    roots,
    stmt_indices,
    written,
)
from weft.ir.ops import Op

F = dtypes.float32
I, J = Var("i", 0, 3), Var("j", 0, 7)
INNER = Loop(
    J,
    8,
    (
        Let("t", Load(F, "x", (J,))),
        Store("y", J, Temp(F, "t")),
        If((InRange(J, 2, None),), (Accumulate("s", 0, Op.ADD, Temp(F, "t")), Barrier())),
    ),
    LoopKind.THREAD,
)
BODY = (
    Alloc(Buffer("s", F, 1, Scope.REGISTER)),
    Loop(I, 4, (INNER, Combine("c", 0, Op.ADD, 4))),
    Store("z", 0, Const(F, 1)),
)


def test_what_is_inside_of_a_block_is_found_at_any_depth() -> None:
    found = inside(BODY)
    assert found.written == written(BODY) == {"y", "s", "c", "z"}
    assert found.bound == bound(BODY) == {"s", "i", "j", "t"}
    assert found.barrier
    assert found.count == len(list(every(BODY))) == 10


def test_a_loop_around_another_body_forgets_what_was_inside() -> None:
    loop = Loop(I, 4, (INNER,))
    assert inside((loop,)).barrier
    assert loop.inside == inside((INNER,))  # remembered
    other = loop.around((Store("w", I, Const(F, 1)),))
    assert written((other,)) == {"w"}
    assert not inside((other,)).barrier
    assert loop.around(loop.body) is loop
    when = If((InRange(I, 1, None),), (Store("w", I, Const(F, 1)),))
    assert written((when,)) == {"w"}
    assert written((when.around((Barrier(),)),)) == set()


def test_what_is_remembered_is_no_part_of_a_loop() -> None:
    fresh, asked = Loop(I, 4, (INNER,)), Loop(I, 4, (INNER,))
    inside((asked,))
    assert fresh == asked
    assert hash(fresh) == hash(asked)
    assert repr(fresh) == repr(asked)


def test_every_statement_comes_in_the_order_of_the_text() -> None:
    names = [type(s).__name__ for s in every(BODY)]
    assert names == [
        "Alloc",
        "Loop",
        "Loop",
        "Let",
        "Store",
        "If",
        "Accumulate",
        "Barrier",
        "Combine",
        "Store",
    ]


K, N = Var("k", 0, 3), Var("n", 1, 9)
AT = Opaque(Load(dtypes.int32, "table", (K,)), 0, 8)
"""An index that is read from a buffer."""


def test_names_that_a_statement_reads_and_writes() -> None:
    guard = (InRange(J, N, None),)
    store = Store("y", I + AT, Load(F, "x", (J,)), guard)
    assert guard_indices(guard) == [J, N]
    assert stmt_indices(store) == [I + AT, J, N]
    assert names_of_index(I + AT) == {"i", "table", "k"}
    assert names_of_guard(guard) == {"j", "n"}
    assert names_of_guard(()) == frozenset()
    assert read_names(store) == {"i", "table", "k", "j", "n", "x"}
    assert names_of_stmt(store) == read_names(store) | {"y"}
    assert names_of_stmt(Let("t", Temp(F, "u"))) == {"u"}
    assert read_names(Prefetch("x", I)) == {"x", "i"}
    assert names_of_stmt(Combine("c", I, Op.ADD, 4)) == {"c", "i"}
    assert read_names(Loop(I, N, ())) == {"n"}
    assert names_of_stmt(Barrier()) == frozenset()


def test_what_indices_read_is_among_the_roots() -> None:
    value = Load(F, "x", (J,))
    found = roots(Store("y", I + AT, value, (InRange(J, 0, AT),)))
    assert found == [AT.value, AT.value, value]
    assert roots(Loop(I, 4, ())) == []


def test_buffers_read_are_found_at_any_depth() -> None:
    gather = Store("y", AT, Temp(F, "t"))
    assert buffers_read((*BODY, Loop(K, 4, (gather,)))) == {"x", "s", "table"}
