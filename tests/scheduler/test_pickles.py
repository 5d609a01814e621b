"""Recorded calls as bytes: each kind of attributes is read as it was written, and what is not kept is refused."""

from __future__ import annotations

import math
import pickle
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
    apply,
    buffer,
)
from weft.ir.index import Var
from weft.ir.loop_body import Body, LoopNode, Part, normal
from weft.ir.ops import Op
from weft.ir.template import GraphTemplate, Row
from weft.scheduler.outline import outline_of
from weft.scheduler.pickles import means_the_same_elsewhere, pickled
from weft.scheduler.sized import Count, SizedTemplate

F32, N = dtypes.float32, Var("size0", 4, 256)


def call(op: Op, attrs: Attrs, inputs: int = 1) -> GraphCall:
    given = tuple([((7, 5), F32)] * inputs)
    row = Row(op, tuple(range(inputs)), attrs, (7, 5), F32)
    return GraphCall(GraphTemplate(given, (row,), (inputs,)), tuple(range(inputs)))


def again(c: GraphCall | Given | None) -> Any:
    return pickle.loads(pickled(c))


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
    assert means_the_same_elsewhere(one.template)
    assert (
        again(one) == one and again(one).template is one.template and row.attrs.__class__ is attrs.__class__
    )
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


@pytest.mark.parametrize(
    "attrs", [Leaf("cpu:0"), Target("cpu:1"), Box((N, 0), (1, 1)), Padding((1, N), (0, 0), (0, 0), 0.0)]
)
def test_what_means_something_here_alone_is_told_apart(attrs: Attrs) -> None:
    assert not means_the_same_elsewhere(call(Op.COPY, attrs).template)


def test_a_size_that_is_known_when_it_runs_means_something_here_alone() -> None:
    row = Row(Op.NEG, (0,), None, (N, 5), F32)
    assert not means_the_same_elsewhere(GraphTemplate((((7, 5), F32),), (row,), (1,)))


def test_a_body_is_read_node_by_node() -> None:
    """Also with the copies that it has of what it is given."""

    def body(length: int) -> Body:
        c, d, x, w = (buffer(shape, F32, "cpu:0", None) for shape in ((4, 5), (4, 5), (4, 5), (5,)))
        spread = apply(Op.EXPAND, (apply(Op.RESHAPE, (w,), shape=(1, 5)),), shape=(4, 5))
        y = apply(Op.MUL, (c, spread))
        rows = buffer((length, 4, 5), F32, "cpu:0", None)
        return normal([c, d], [x], [d, y], [x, y], [c, d, rows], length, True)[0]

    for one in (body(7), body(9)):
        read = pickle.loads(pickled(one))
        assert read == one and read.key == one.key and repr(read) == repr(one)
        for own, other in zip((*one.nexts, *one.outs), (*read.nexts, *read.outs), strict=True):
            assert (own.op, own.shape, own.device) == (other.op, other.shape, other.device)
        assert Op.CONTIGUOUS in {n.op for n in read.outs}
        call_ = LoopNode(read, Part.STACK, 0)
        assert means_the_same_elsewhere(call(Op.LOOP, call_).template)
    assert not means_the_same_elsewhere(call(Op.LOOP, LoopNode(body(7).of_length(N), Part.STACK, 0)).template)


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
    found = pickle.loads(pickled(one))
    assert found.key == own.key and found.key.digest() == own.key.digest()
    for n in (9, 33):
        made, want = found.at((n,)), one.at((n,))
        assert made is not None and want is not None
        assert made.outline == want.outline and made.root == want.root and made.whole == want.whole
