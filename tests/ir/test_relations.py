"""Needs and dirties against brute force; and movement ops as index functions against the reference."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from weft.ir import dtypes as d
from weft.ir import graph as g
from weft.ir.graph import Axes, Box, Node, Padding, Window
from weft.ir.index import InRange
from weft.ir.index import evaluate as index_value
from weft.ir.movement import source
from weft.ir.ops import MOVEMENT, Op
from weft.ir.relations import RELATIONS, Region, dirties, needs, whole
from weft.testing.programs import GraphProgram, ProgramStep, numpy_leaf
from weft.testing.reference import evaluate
from weft.testing.strategies import programs

QUIET = {"suppress_health_check": list(HealthCheck), "deadline": None}


def test_every_op_has_a_relation() -> None:
    assert set(RELATIONS) == set(Op)


def isolated(step: ProgramStep, inputs: list[Node]) -> tuple[Node, list[Node]]:
    """The op of `step` on leaves like `inputs` that hold distinct numbers (indices stay as they are)."""
    leaves: list[Node] = []
    for k, x in enumerate(inputs):
        array = np.asarray(evaluate([x])[0])
        if x.op is not Op.BUFFER or not x.dtype.is_int:
            array = np.asarray(np.arange(array.size).reshape(array.shape) % 5 + k).astype(array.dtype)
        leaves.append(g.buffer(array.shape, x.dtype, "cpu:0", array))
    return ProgramStep(step.op, tuple(range(len(leaves))), step.attrs, step.shape, step.dtype).apply(
        list(leaves)
    ), leaves


def inside(region: Region | None, at: tuple[int, ...]) -> bool:
    return region is not None and all(a <= i < b for i, (a, b) in zip(at, region, strict=True))


def influences(node: Node, leaf: Node, at: tuple[int, ...]) -> np.ndarray:
    """Where the node's value changes with one element of a leaf."""
    original = leaf.storage
    before = evaluate([node])[0]
    leaf.storage = original.copy()
    leaf.storage[at] = (
        original[at] ^ True if leaf.dtype is d.bool_ else original[at] + np.array(1, original.dtype)
    )
    after = evaluate([node])[0]
    leaf.storage = original
    return before.view(np.uint8 if before.dtype.itemsize == 1 else f"u{before.dtype.itemsize}") != after.view(
        np.uint8 if after.dtype.itemsize == 1 else f"u{after.dtype.itemsize}"
    )


@settings(max_examples=80, **QUIET)
@given(programs(max_steps=5), st.randoms(use_true_random=False))
def test_regions_contain_all_that_is_needed_and_reached(p: GraphProgram, random: Any) -> None:
    values = [numpy_leaf(a) for a in p.leaves]
    for step in p.steps:
        node = step.apply(values)
        values.append(node)
        if not step.inputs:
            continue
        check(*isolated(step, [values[i] for i in step.inputs]), random)


def check(node: Node, leaves: list[Node], random: Any) -> None:
    everything = whole(node)
    if everything is None or not node.inputs or any(not x.storage.size for x in leaves):
        return
    boxes = [tuple(sorted(random.sample(range(n + 1), 2)) for n in node.shape) for _ in range(3)]
    for k, x in enumerate(node.inputs):
        if x not in leaves:
            return  # the graph knew better: there is another op here
        for _ in range(4):
            at = tuple(random.randrange(n) for n in x.shape)
            changed = influences(node, x, at)
            reached = dirties(node, k, tuple((i, i + 1) for i in at))
            assert all(inside(reached, tuple(o)) for o in np.argwhere(changed))
            for box in boxes:
                part = changed[tuple(slice(a, b) for a, b in box)]
                if part.any():
                    assert inside(needs(node, tuple((a, b) for a, b in box))[k], at)


def leaf(*shape: int) -> Node:
    return numpy_leaf(np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape))


EXACT = [
    g.apply(Op.PERMUTE, (leaf(2, 3, 4),), Axes((2, 0, 1))),
    g.apply(Op.EXPAND, (leaf(2, 1, 4),), None, (2, 3, 4)),
    g.apply(Op.FLIP, (leaf(3, 4),), Axes((1,))),
    g.apply(Op.SHRINK, (leaf(6, 7),), Box((1, 2), (2, 1)), (2, 4)),
    g.apply(Op.PAD, (leaf(3, 4),), Padding((1, 0), (2, 1), (0, 0))),
    g.apply(Op.RESHAPE, (leaf(4, 6),), None, (24,)),
    g.apply(Op.RESHAPE, (leaf(2, 3, 4),), None, (2, 12)),
    g.apply(Op.RESHAPE, (leaf(4, 1, 6),), None, (4, 6, 1)),
    g.apply(Op.SUM, (leaf(2, 3, 4),), Axes((0, 2))),
    g.apply(Op.CONCAT, (leaf(2, 3), leaf(4, 3)), g.Along(0)),
    g.apply(Op.UPDATE, (leaf(6, 7), leaf(2, 3)), Box((1, 2), (2, 1))),
]


@pytest.mark.parametrize("node", EXACT, ids=[n.op.symbol for n in EXACT])
def test_whole_elements_are_followed_exactly(node: Node) -> None:
    """For single elements of plain movement ops, dirties is the bounding box of what truly changes."""
    for k, x in enumerate(node.inputs):
        for at in np.ndindex(*x.shape):
            changed = np.argwhere(influences(node, x, at))
            reached = dirties(node, k, tuple((i, i + 1) for i in at))
            if len(changed):
                assert reached == tuple(
                    (int(a), int(b) + 1) for a, b in zip(changed.min(0), changed.max(0), strict=True)
                )


def test_examples() -> None:
    x = leaf(4, 6)
    flat = g.apply(Op.RESHAPE, (x,), None, (24,))
    assert needs(flat, ((6, 18),)) == (((1, 3), (0, 6)),)
    assert dirties(flat, 0, ((1, 3), (0, 6))) == ((6, 18),)
    padded = g.apply(Op.PAD, (x,), Padding((2, 0), (2, 0), (0, 0)))
    assert needs(padded, ((0, 2), (0, 6))) == (None,)
    assert needs(padded, ((0, 4), (1, 3))) == (((0, 2), (1, 3)),)
    windows = g.apply(
        Op.SHEAR, (g.apply(Op.EXPAND, (leaf(10, 1),), None, (10, 3)),), Window(0, 1, 1, 1), (8, 3)
    )
    assert dirties(windows, 0, ((4, 5), (0, 3))) == ((2, 5), (0, 3))
    assert needs(windows, ((2, 4), (0, 3))) == (((2, 6), (0, 3)),)
    replaced = g.apply(Op.UPDATE, (x, leaf(2, 6)), Box((1, 0), (1, 1)))
    assert needs(replaced, ((1, 2), (0, 6))) == (None, ((0, 1), (0, 6)))
    assert needs(replaced, ((0, 1), (0, 6))) == (((0, 1), (0, 6)), None)


@settings(max_examples=80, **QUIET)
@given(programs(max_steps=5))
def test_index_functions_move_data_as_the_reference_does(p: GraphProgram) -> None:
    """`movement.source`, element by element, against the reference."""
    values = [numpy_leaf(a) for a in p.leaves]
    moved = 0
    for step in p.steps:
        values.append(step.apply(values))
        if step.op not in MOVEMENT or values[-1].op is not step.op:
            continue
        node = values[-1]
        x = np.arange(1, 1 + int(np.prod(node.inputs[0].shape)), dtype=np.int64).reshape(node.inputs[0].shape)
        attrs = Padding(*_padding(node)) if isinstance(node.attrs, Padding) else node.attrs
        same = g.apply(node.op, (numpy_leaf(x),), attrs, node.shape)
        if same.op is not node.op:
            continue
        want = evaluate([same])[0]
        for at in itertools.islice(np.ndindex(*want.shape), 0, None, max(1, want.size // 50)):
            s = source(same, at)
            holds = all(_holds(c) for c in s.guard)
            got = x[tuple(index_value(i, {}) for i in s.index)] if holds else s.fill
            assert got == want[at]
        moved += 1
    assume(moved)


def _padding(node: Node) -> tuple[Any, ...]:
    assert isinstance(node.attrs, Padding)
    return node.attrs.low, node.attrs.high, node.attrs.interior, -7


def _holds(c: InRange) -> bool:
    value = index_value(c.value, {})
    return (c.lo is None or value >= index_value(c.lo, {})) and (
        c.hi is None or value < index_value(c.hi, {})
    )
