"""Calls: ops with rules of their own, and the pass that makes the graph without them."""

from __future__ import annotations

import numpy as np
import pytest

from weft.ir import dtypes, graph
from weft.ir.calls import GraphCall, expand_calls, recorded
from weft.ir.errors import IRError
from weft.ir.graph import Node, Target, toposort
from weft.ir.graph_verify import verify_graph
from weft.ir.ops import Op
from weft.testing.reference import evaluate

F = dtypes.float32


def leaf(*shape: int) -> Node:
    return graph.buffer(shape, F, "cpu:0", None)


def moment(m: Node, g: Node) -> Node:
    return graph.apply(Op.ADD, (m, graph.apply(Op.MUL, (g, g))))


def stepped(p: Node, m: Node, g: Node) -> Node:
    return graph.apply(Op.SUB, (p, graph.apply(Op.SQRT, (moment(m, g),))))


def calls() -> list[GraphCall]:
    """An optimizer's step, and its moment, which the step contains."""
    p, m, g = leaf(4), leaf(4), leaf(4)
    found = recorded([p, m, g], [stepped(p, m, g), moment(m, g)])
    assert not isinstance(found, str)
    return found


def test_a_call_is_one_node_with_the_inputs_that_it_depends_on() -> None:
    p, m, g = leaf(4), leaf(4), leaf(4)
    step, new = (c.on([p, m, g]) for c in calls())
    assert step.op is Op.CALL and step.inputs == (p, m, g) and new.inputs == (m, g)
    assert step is calls()[0].on([p, m, g])
    verify_graph([step, new])
    with pytest.raises(IRError, match="one result of a graph on"):
        verify_graph([Node(Op.CALL, (p, m), step.attrs, (4,), F, "cpu:0")])


def test_expanding_makes_the_graph_without_calls_and_leaves_the_nodes_as_they_are() -> None:
    p, m, g = leaf(4), leaf(4), leaf(4)
    step, new = (c.on([p, m, g]) for c in calls())
    twice = graph.apply(Op.ADD, (step, step))
    plain = stepped(p, m, g)
    assert expand_calls([twice, new]) == [graph.apply(Op.ADD, (plain, plain)), moment(m, g)]
    assert twice.inputs == (step, step) and step.op is Op.CALL


def test_what_calls_have_in_common_is_one_node() -> None:
    p, m, g = leaf(4), leaf(4), leaf(4)
    found = expand_calls([c.on([p, m, g]) for c in calls()])
    assert [n.op for n in toposort(found)].count(Op.MUL) == 1 and found[1] in toposort(found[:1])


def test_a_call_whose_value_is_stored_is_a_leaf() -> None:
    p, m, g = leaf(4), leaf(4), leaf(4)
    step = calls()[0].on([p, m, g])
    step.storage = object()
    above = graph.apply(Op.NEG, (step,))
    assert expand_calls([above]) == [above]
    assert expand_calls([above], stop_at_storage=False) != [above]


def test_different_roots_stay_different_nodes_with_a_value_to_compute() -> None:
    x, flat = leaf(4, 3), leaf(12)
    found = recorded([x], [graph.apply(Op.RESHAPE, (x,), None, (12,))])
    assert not isinstance(found, str)
    (copied,) = expand_calls([found[0].on([graph.apply(Op.RESHAPE, (flat,), None, (4, 3))])])
    assert copied.op is Op.CONTIGUOUS and copied.inputs == (flat,)  # not the leaf that the call stands for
    m, g = leaf(4), leaf(4)
    call = calls()[1].on([leaf(4), m, g])
    one, other = expand_calls([call, moment(m, g)])
    assert other is moment(m, g) and one.op is Op.CONTIGUOUS and one.inputs == (other,)


def test_the_reference_knows_calls() -> None:
    values = [np.arange(4, dtype=np.float32) + k for k in range(3)]
    inputs = [leaf(4) for _ in values]
    given = dict(zip(inputs, values, strict=True))
    step = calls()[0].on(inputs)
    for a, b in zip(evaluate([step], given=given), evaluate([stepped(*inputs)], given=given), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_no_call_says_why() -> None:
    x = leaf(4)
    elsewhere = graph.apply(Op.COPY, (x,), Target("dummy:0"))
    assert recorded([x], [x]) == f"{x!r} is one of its inputs"
    assert recorded([x], [elsewhere]) == f"it contains {elsewhere!r}"
    assert "none of its inputs" in str(recorded([], [graph.apply(Op.NEG, (x,))]))
