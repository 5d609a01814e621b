"""Graphs made anew: what is shared stays shared, what does not change is the same node."""

from __future__ import annotations

from weft.ir import dtypes, graph
from weft.ir.graph import Node
from weft.ir.ops import Op
from weft.ir.rewrite import over, rebuilt, rewritten

F = dtypes.float32


def leaf(*shape: int) -> Node:
    return graph.buffer(shape, F, "cpu:0", None)


def test_a_node_over_its_own_inputs_is_itself() -> None:
    x, y = leaf(3), leaf(3)
    node = graph.apply(Op.SUB, (x, y))
    assert over(node, node.inputs) is node
    assert over(node, (y, x)) is graph.apply(Op.SUB, (y, x))


def test_some_nodes_are_replaced_and_the_rest_is_built_on_them() -> None:
    x, y, z = leaf(3), leaf(3), leaf(3)
    product = graph.apply(Op.MUL, (x, y))
    twice = graph.apply(Op.ADD, (product, product))
    apart = graph.apply(Op.SQRT, (y,))
    new, same = rebuilt([twice, apart], {x: z})
    assert new is graph.apply(Op.ADD, (graph.apply(Op.MUL, (z, y)),) * 2)
    assert same is apart
    assert rebuilt([product], {product: z}) == [z]


def test_a_rule_sees_inputs_before_users_and_each_node_once() -> None:
    x = leaf(3)
    root = graph.apply(Op.SQRT, (graph.apply(Op.ABS, (x,)),))
    seen: list[Op] = []

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node:
        seen.append(n.op)
        return inputs[0] if n.op is Op.ABS else over(n, inputs)

    assert rewritten([root, root], rule) == [graph.apply(Op.SQRT, (x,))] * 2
    assert seen == [Op.ABS, Op.SQRT]


def test_values_that_are_stored_are_leaves_unless_asked() -> None:
    x, y = leaf(3), leaf(3)
    stored = graph.apply(Op.SQRT, (x,))
    root = graph.apply(Op.ADD, (stored, x))
    stored.storage = object()
    assert rewritten([root], over, {x: y}) == [graph.apply(Op.ADD, (stored, y))]
    through = graph.apply(Op.ADD, (graph.apply(Op.SQRT, (y,)), y))
    assert rewritten([root], over, {x: y}, stop_at_storage=False) == [through]
