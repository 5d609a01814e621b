"""Programs with what a device lacks are refused by its name, before they are compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.backends.registry import open_device
from weft.errors import DeviceError, DTypeError
from weft.ir.dtypes import float32, float64
from weft.ir.expr import Expr, Load, call, cast
from weft.ir.index import Var
from weft.ir.loops import Alloc, Buffer, Loop, LoopKind, Program, Scope, Store
from weft.ir.ops import Op
from weft.scheduler.supported import check_supported

I = Var("i", 0, 3)
X, Y = Buffer("x", float32, 4, Scope.GLOBAL), Buffer("y", float32, 4, Scope.GLOBAL)
DEVICE = open_device("cpu:0").info
NARROW = replace(DEVICE, dtypes=DEVICE.dtypes - {float64})
PLAIN = replace(DEVICE, native=DEVICE.native - {Op.SQRT, Op.FMA})


def program(value: Expr, *allocs: Alloc) -> Program:
    loop = Loop(I, 4, (*allocs, Store("y", I, value)), LoopKind.SERIAL)
    return Program("p", (X, Y), frozenset({"y"}), (), (loop,))


ELEMENT = Load(float32, "x", (I,))


def test_what_a_device_has_passes() -> None:
    for info in (DEVICE, NARROW, PLAIN):
        check_supported(program(call(Op.ADD, ELEMENT, ELEMENT)), info)
    check_supported(program(call(Op.SQRT, ELEMENT)), NARROW)


def test_a_dtype_of_a_buffer_or_of_a_value_is_refused() -> None:
    inner = Alloc(Buffer("t", float64, 4, Scope.LOCAL))
    wide = cast(call(Op.ADD, cast(ELEMENT, float64), cast(ELEMENT, float64)), float32)
    for p in (program(ELEMENT, inner), program(wide)):
        check_supported(p, DEVICE)
        with pytest.raises(DTypeError, match="float64"):
            check_supported(p, NARROW)


def test_an_op_that_is_neither_there_nor_expanded_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"no sqrt of float32.*such as cpu"):
        check_supported(program(call(Op.SQRT, ELEMENT)), PLAIN)
