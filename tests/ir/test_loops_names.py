"""What is inside of a block, and that it is counted once."""

from __future__ import annotations

from weft.ir import dtypes
from weft.ir.expr import Const, Load, Temp
from weft.ir.index import InRange, Var
from weft.ir.loops import Accumulate, Alloc, Barrier, Buffer, Combine, If, Let, Loop, LoopKind, Scope, Store
from weft.ir.loops_names import bound, every, inside, written
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
