"""Recorded calls as JSON: each kind of attributes is read as it was written, and what is not kept is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from weft.ir import dtypes
from weft.ir.calls import Given, GraphCall
from weft.ir.expr import Scalar, bits
from weft.ir.graph import (
    Along,
    Attrs,
    Axes,
    Box,
    Fill,
    Leaf,
    Padding,
    ProductAxes,
    ScatterCombine,
    Target,
    Window,
)
from weft.ir.index import Var
from weft.ir.ops import Op
from weft.ir.template import GraphTemplate, Row
from weft.scheduler.outline import outline_of
from weft.scheduler.sized import Count, SizedTemplate
from weft.scheduler.template_json import UntoldError, read_call, read_sized, written_call, written_sized

F32, N = dtypes.float32, Var("size0", 4, 256)


def call(op: Op, attrs: Attrs, inputs: int = 1) -> GraphCall:
    given = tuple([((7, 5), F32)] * inputs)
    row = Row(op, tuple(range(inputs)), attrs, (7, 5), F32)
    return GraphCall(GraphTemplate(given, (row,), (inputs,)), tuple(range(inputs)))


def again(c: GraphCall | Given | None) -> Any:
    return read_call(json.loads(json.dumps(written_call(c))))


KEPT = [
    (Op.NEG, None, 1),
    (Op.PERMUTE, Axes((1, 0)), 1),
    (Op.SUM, ProductAxes((1,)), 1),
    (Op.PAD, Padding((1, 2), (3, 4), (0, 1), -math.inf), 1),
    (Op.SHRINK, Box((1, 2), (3, 4)), 1),
    (Op.SHEAR, Window(0, 1, 2, 3), 1),
    (Op.CONCAT, Along(1), 3),
    (Op.GATHER, Along(0), 2),
    (Op.SCATTER, ScatterCombine(1, Op.MAX), 3),
    (Op.SCATTER, ScatterCombine(1, None), 3),
]


@pytest.mark.parametrize(("op", "attrs", "inputs"), KEPT)
def test_attributes_are_read_as_they_were_written(op: Op, attrs: Attrs, inputs: int) -> None:
    one = call(op, attrs, inputs)
    (row,) = again(one).template.rows
    assert again(one) == one and row.attrs.__class__ is attrs.__class__
    if isinstance(attrs, Padding):
        assert row.attrs.fill_bits == attrs.fill_bits


@pytest.mark.parametrize(
    "value", [0, 1, True, False, 0.0, -0.0, 0.1, -3, 1 << 63, math.inf, -math.inf, math.nan]
)
def test_numbers_have_their_bits_and_kinds(value: Scalar) -> None:
    row = Row(Op.CONST, (), Fill(bits(value), value), (7, 5), F32)
    one = GraphCall(GraphTemplate((), (row,), (0,)), ())
    (read,) = again(one).template.rows
    assert again(one) == one
    assert read.attrs.bits == bits(value) and read.attrs.value.__class__ is value.__class__


def test_what_is_no_call_is_read_as_it_was_written() -> None:
    assert again(None) is None and again(Given(3)) == Given(3)


@pytest.mark.parametrize("attrs", [Leaf("cpu:0"), Target("cpu:1"), Box((N, 0), (1, 1))])
def test_what_is_not_kept_is_refused(attrs: Attrs) -> None:
    with pytest.raises(UntoldError):
        written_call(call(Op.COPY, attrs))


WRONG: dict[str, Any] = {
    "no such op": [[[[7, 5], "float32"]], [["NONE", [0], None, [7, 5], "float32"]], [1]],
    "no such dtype": [[[[7, 5], "float3"]], [["NEG", [0], None, [7, 5], "float32"]], [1]],
    "inputs that come later": [[[[7, 5], "float32"]], [["NEG", [1], None, [7, 5], "float32"]], [1]],
    "too many inputs": [[[[7, 5], "float32"]], [["NEG", [0, 0], None, [7, 5], "float32"]], [1]],
    "no result": [[[[7, 5], "float32"]], [["NEG", [0], None, [7, 5], "float32"]], [2]],
    "a negative size": [[[[7, 5], "float32"]], [["NEG", [0], None, [-7, 5], "float32"]], [1]],
    "attributes of no kind": [[[[7, 5], "float32"]], [["NEG", [0], ["other", 1], [7, 5], "float32"]], [1]],
    "other inputs": [[[[7, 5], "float32"]] * 2, [["ADD", [0, 1], None, [7, 5], "float32"]], [2]],
    "no rows": [[[[7, 5], "float32"]], [], [0]],
}


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_is_an_error(name: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        read_call([WRONG[name], [0]])


def test_what_is_for_all_sizes_is_read_as_it_was_written() -> None:
    rows = (
        Row(Op.SUM, (0,), Axes((0,)), (1, 64), F32),
        Row(Op.CONST, (), Fill(bits(1 / 6), 1 / 6), (1, 64), F32),
        Row(Op.MUL, (1, 2), None, (1, 64), F32),
    )
    own = outline_of(1, rows, (3,))
    sizes = tuple([3 * N + 1 if s == 64 else s for s in own.sizes])
    given = (((N, 3 * N + 1), F32),)
    one = SizedTemplate.of(rows, (3,), given, sizes, (Count(N * 1, 1, inverse=True),), [N], own.key)
    found = read_sized(json.loads(json.dumps(written_sized(one, [N]))), [N])
    for n in (9, 33):
        made, want = found.at((n,)), one.at((n,))
        assert made is not None and want is not None and made.whole == want.whole
    record = written_sized(one, [N])
    with pytest.raises(ValueError, match="sizes of other rows"):
        read_sized({**record, "sizes": record["sizes"][1:]}, [N])
