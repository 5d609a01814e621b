"""Every rule of algorithms: a well-formed one passes, each broken one is refused with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from weft.ir import dtypes
from weft.ir import expr as ex
from weft.ir.errors import IRError
from weft.ir.expr import Const, Load, ScalarCall, Temp
from weft.ir.index import Opaque, Var, in_range
from weft.ir.kernel.algorithm import Algorithm, Axis, Item, ItemValue, Output, Param, Reduce, StoreTo
from weft.ir.kernel.verify import verify
from weft.ir.ops import Op

F, H, I = dtypes.float32, dtypes.float16, dtypes.int64
N = Var("n", 1, 8)


def axis(name: str, extent: int) -> Axis:
    return Axis(Var(name, 0, extent - 1), extent)


i, r, j = axis("i", 4), axis("r", 6), axis("j", 4)
X, Y = Param("x", F, (4, 6)), Param("y", F, (4,), True)
ROW = ItemValue("row", (i,), Load(F, "x", (i.var, r.var)), Reduce(Op.ADD, (r,)))
OUT = Output("out", (j,), (StoreTo("y", (j.var,), Load(F, "row", (j.var,))),))
GOOD = Algorithm("rows", (X, Y), (), (ROW, OUT))


def items(*new: Item) -> Algorithm:
    return replace(GOOD, items=new)


def stored(e: ex.Expr, **changes: object) -> Algorithm:
    return items(ROW, replace(OUT, stores=(replace(OUT.stores[0], expr=e, **changes), OUT.stores[0])))


row = Load(F, "row", (j.var,))
BAD: dict[str, Callable[[], Algorithm]] = {
    "the name x is used twice": lambda: replace(GOOD, params=(X, X, Y)),
    "the name i is used twice": lambda: items(ROW, replace(OUT, axes=(i,))),
    "i runs over 0..3, not over 5 elements": lambda: items(replace(ROW, axes=(Axis(i.var, 5),)), OUT),
    "the extent n uses unknown variables": lambda: items(ROW, replace(OUT, axes=(Axis(Var("j", 0, 7), N),))),
    "row is no parameter, nor a value computed before": lambda: items(OUT, ROW),
    "nothing reads row": lambda: items(ROW, replace(OUT, stores=(replace(OUT.stores[0], expr=Const(F, 1)),))),
    "nothing is stored to z": lambda: replace(GOOD, params=(X, Y, Param("z", F, (4,), True))),
    "x is no parameter to write": lambda: stored(row, param="x", index=(j.var, 0)),
    "y has 1 axes": lambda: stored(row, index=(j.var, 0)),
    "row has 1 axes": lambda: stored(Load(F, "row", (j.var, 0))),
    "row is float32, not int64": lambda: stored(ex.cast(Load(I, "row", (j.var,)), F)),
    "a int64 value is stored to y, which is float32": lambda: stored(Const(I, 1)),
    "the index j + 1 may leave the axis of 4 elements": lambda: stored(row, index=(j.var + 1,)),
    "the index may leave the axes of row": lambda: stored(Load(F, "row", (j.var + 1,))),
    "the index is never inside": lambda: stored(Load(F, "x", (j.var + 9, 0))),
    "y is written: it cannot be read": lambda: stored(Load(F, "y", (j.var,))),
    "q is not an axis here, nor a runtime variable": lambda: stored(Load(F, "x", (Var("q", 0, 3), 0))),
    "an index is computed as float32": lambda: stored(Load(F, "x", (Opaque(row, 0, 3), 0))),
    "names are bound in lowered loops only": lambda: stored(Temp(F, "t")),
    "add needs operands of one dtype, got float32, int64": lambda: stored(
        ScalarCall(F, Op.ADD, (row, Const(I, 1)))
    ),
    "sub cannot combine float32 in memory": lambda: stored(row, combine=Op.SUB),
    "a reduction combines over one axis or more by ADD, MUL, MAX or MIN": lambda: items(
        replace(ROW, reduce=Reduce(Op.SUB, (r,))), OUT
    ),
    "values are no narrow floats: they are computed in f32": lambda: items(
        replace(ROW, expr=ex.cast(ROW.expr, H)), OUT
    ),
    "an output carries an earlier output, with one index per axis": lambda: items(
        ROW, replace(OUT, carries=(Load(F, "row", (j.var,)),))
    ),
}


def test_a_good_one_passes() -> None:
    verify(GOOD)
    guarded = stored(row, index=(j.var + 1,), guard=in_range(j.var, 0, 3))
    verify(guarded)


@pytest.mark.parametrize("rule", BAD)
def test_a_broken_one_is_refused(rule: str) -> None:
    with pytest.raises(IRError) as error:
        verify(BAD[rule]())
    assert error.value.rule == rule
    assert "algorithm rows" in str(error.value)
