"""The algorithm of a copy: of the elements of one tensor to consecutive places of another."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.dtypes import DType
from weft.ir.expr import Load
from weft.ir.index import Int, Var, high, variables
from weft.ir.kernel.algorithm import Algorithm, Axis, Output, Param, StoreTo


def copying(name: str, dtype: DType, size: Int, into: Param, first: Sequence[Int] = ()) -> Algorithm:
    """The algorithm that copies `size` elements to the places `first`, 0 .. size - 1 of a parameter."""
    axis = Axis(Var("i", 0, max(high(size) - 1, 0)), size)
    source = Param("p0", dtype, (size,))
    load = Load(dtype, "p0", (axis.var,))
    out = Output("out", (axis,), (StoreTo(into.name, (*first, axis.var), load),))
    used = set[Var]().union(*[variables(n) for n in (size, *into.shape, *first)])
    return Algorithm(name, (source, into), tuple(sorted(used, key=lambda v: v.name)), (out,))
