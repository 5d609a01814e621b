"""Text, DOT and verifier of the graph."""

from __future__ import annotations

import pytest

from weft.ir import dtypes, graph
from weft.ir.errors import IRError
from weft.ir.graph import Axes, Box, Node, Padding, ScatterCombine
from weft.ir.graph_dot import graph_dot
from weft.ir.graph_text import show_graph
from weft.ir.graph_verify import verify_graph
from weft.ir.ops import Op


def example() -> list[Node]:
    x = graph.buffer((4, 3), dtypes.float32, "cpu:0", None)
    y = graph.apply(Op.ADD, (x, graph.const(1, dtypes.float32, (4, 3))))
    total = graph.apply(Op.SUM, (y,), Axes((1,)))
    part = graph.apply(Op.SHRINK, (y,), Box((1, 0), (2, 1)), (2, 3))
    return [total, graph.apply(Op.PAD, (part,), Padding((0, 1), (0, 0), (0, 0), 0.5))]


def test_text() -> None:
    assert show_graph(example()) == (
        "%0 buffer cpu:0 f32[4, 3]\n"
        "%1 const 1.0 f32[4, 3]\n"
        "%2 add %0 %1 f32[4, 3]\n"
        "%3 sum %2 (axes=(1,)) f32[4]\n"
        "%4 shrink %2 (start=(1, 0), step=(2, 1)) f32[2, 3]\n"
        "%5 pad %4 (low=(0, 1), high=(0, 0), interior=(0, 0), fill=0.5) f32[2, 4]\n"
        "return %3, %5"
    )


def test_text_of_a_scatter_names_the_combination() -> None:
    x = graph.buffer((4,), dtypes.float32, "cpu:0", None)
    at = graph.buffer((2,), dtypes.int64, "cpu:0", None)
    src = graph.buffer((2,), dtypes.float32, "cpu:0", None)
    text = show_graph([graph.apply(Op.SCATTER, (x, at, src), ScatterCombine(0, Op.ADD))])
    assert "scatter %0 %1 %2 (axis=0, op=add) f32[4]" in text


def test_computed_nodes_are_leaves() -> None:
    total, _ = example()
    total.inputs[0].storage = object()
    assert show_graph([total]).splitlines()[0] == "%0 stored f32[4, 3] cpu:0"
    total.inputs[0].storage = None


def test_dot() -> None:
    dot = graph_dot(example())
    assert dot.startswith("digraph") and "peripheries=2" in dot and "n0 -> n2;" in dot and "shape=box" in dot


def test_well_formed_graphs_pass() -> None:
    verify_graph(example())


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (lambda x: Node(Op.ADD, (x, x), None, (4, 2), x.dtype, "cpu:0"), r"its rule gives float32\[4, 3\]"),
        (lambda x: Node(Op.ADD, (x, x), None, x.shape, dtypes.int64, "cpu:0"), "its rule gives float32"),
        (
            lambda x: Node(Op.NEG, (x,), None, x.shape, x.dtype, "cpu:1"),
            "it is on cpu:1, its inputs on cpu:0",
        ),
        (lambda x: Node(Op.FMA, (x, x, x), None, x.shape, x.dtype, "cpu:0"), "belongs to kernels"),
        (lambda x: Node(Op.CONST, (), None, (), x.dtype, None), "no well-formed leaf"),
    ],
)
def test_broken_graphs_are_refused(node, why: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(IRError, match=why):
        verify_graph([node(graph.buffer((4, 3), dtypes.float32, "cpu:0", None))])


def test_equal_nodes_must_be_one() -> None:
    x = graph.buffer((4,), dtypes.float32, "cpu:0", None)
    a = graph.apply(Op.NEG, (x,))
    b = Node(Op.NEG, (x,), None, (4,), dtypes.float32, "cpu:0")
    with pytest.raises(IRError, match="another node with the same fields"):
        verify_graph([a, b])
