"""Templates: graphs by number, equal ones one object, built as nodes are made."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weft.ir import dtypes, graph
from weft.ir.graph import Axes, Box, Node
from weft.ir.ops import Op
from weft.ir.template import GraphTemplate, Row

F = dtypes.float32


def leaf(*shape: int) -> Node:
    return graph.buffer(shape, F, "cpu:0", None)


def centred(x: Node) -> list[Node]:
    """x less its sums, and its sums."""
    total = graph.apply(Op.SUM, (x,), Axes((1,)))
    wide = graph.apply(Op.EXPAND, (graph.apply(Op.RESHAPE, (total,), None, (4, 1)),), None, (4, 3))
    return [graph.apply(Op.SUB, (x, wide)), total]


def template_of(inputs: list[Node], results: list[Node]) -> GraphTemplate:
    found = GraphTemplate.of(inputs, results)
    assert isinstance(found, GraphTemplate)
    return found


def test_rows_name_their_inputs_by_number() -> None:
    x = leaf(4, 3)
    found = template_of([x], centred(x))
    assert found.placeholders == (((4, 3), F),)
    assert [(r.op, r.inputs) for r in found.rows] == [
        (Op.SUM, (0,)), (Op.RESHAPE, (1,)), (Op.EXPAND, (2,)), (Op.SUB, (0, 3)),
    ]  # fmt: skip
    assert found.results == (4, 1)


def test_equal_templates_are_one_object_and_others_have_another_digest() -> None:
    x, y = leaf(4, 3), leaf(4, 3)
    first, again = (template_of([n], centred(n)) for n in (x, y))
    assert first is again
    other = template_of([x], centred(x)[:1])
    assert other is not first and other.digest != first.digest and repr(other) != repr(first)


def test_what_is_built_is_what_apply_makes() -> None:
    x, y = leaf(4, 3), leaf(4, 3)
    assert template_of([x], centred(x)).build([y]) == centred(y)
    constant = graph.const(2, F, (4, 3))
    assert template_of([x], centred(x)).build([constant]) == centred(constant)


def moved(x: Node) -> list[Node]:
    """What rules simplify on some inputs: reshapes, conversions, folded arithmetic, elements of a range."""
    flat = graph.apply(Op.RESHAPE, (x,), None, (12,))
    first = graph.apply(Op.SHRINK, (flat,), Box((1,), (1,)), (1,))
    turned = graph.apply(Op.PERMUTE, (graph.apply(Op.NEG, (x,)),), Axes((1, 0)))
    total = graph.apply(Op.SUM, (graph.apply(Op.CAST, (x,), dtype=dtypes.float64),), Axes((0, 1)))
    return [flat, first, turned, total]


INPUTS: dict[str, Callable[[], Node]] = {
    "leaf": lambda: leaf(4, 3),
    "constant": lambda: graph.const(3, F, (4, 3)),
    "range": lambda: graph.apply(Op.RESHAPE, (graph.arange(12, F),), None, (4, 3)),
    "reshape": lambda: graph.apply(Op.RESHAPE, (leaf(12),), None, (4, 3)),
    "reshape of a value": lambda: graph.apply(Op.RESHAPE, (graph.apply(Op.EXP, (leaf(12),)),), None, (4, 3)),
    "permute": lambda: graph.apply(Op.PERMUTE, (leaf(3, 4),), Axes((1, 0))),
    "expand": lambda: graph.apply(Op.EXPAND, (leaf(1, 3),), None, (4, 3)),
    "flip": lambda: graph.apply(Op.FLIP, (leaf(4, 3),), Axes((0,))),
    "function": lambda: graph.apply(Op.EXP, (leaf(4, 3),)),
    "sum": lambda: graph.apply(Op.SUM, (leaf(4, 3, 2),), Axes((2,))),
}


@pytest.mark.parametrize("of", [centred, moved])
@pytest.mark.parametrize("name", INPUTS)
def test_rules_see_what_a_template_is_built_on(name: str, of: Callable[[Node], list[Node]]) -> None:
    x, y = leaf(4, 3), INPUTS[name]()
    assert template_of([x], of(x)).build([y]) == of(y)


def test_what_is_built_on_two_devices_is_where_its_inputs_are() -> None:
    x, y = leaf(4, 3), leaf(4, 3)
    far = graph.buffer((4, 3), F, "dummy:0", None)

    def both(a: Node, b: Node) -> list[Node]:
        return [graph.apply(Op.ADD, (graph.apply(Op.NEG, (a,)), graph.const(1, F, (4, 3)))), *centred(b)]

    built = template_of([x, y], both(x, y)).build([x, far])
    assert [n.device for n in built] == ["cpu:0", "dummy:0", "dummy:0"]


def test_inputs_may_be_computed_and_what_they_are_made_of_is_left_out() -> None:
    x = leaf(4, 3)
    middle = graph.apply(Op.NEG, (x,))
    found = template_of([middle], [graph.apply(Op.EXP, (middle,))])
    assert found.rows == (Row(Op.EXP, (0,), None, (4, 3), F),)


@pytest.mark.parametrize("stored", [False, True])
def test_what_reads_other_values_is_no_template_and_the_reason_names_them(stored: bool) -> None:
    x, y = leaf(4, 3), leaf(4, 3)
    if stored:
        y = graph.apply(Op.NEG, (x,))
        y.storage = object()
    why = GraphTemplate.of([x], [graph.apply(Op.ADD, (x, y))])
    assert why == f"it reads {y!r}, which is none of its inputs"
