"""Graphs that follow from the shape and dtype of one operand: built once, then copied onto other operands.

A function such as a sort is composed of hundreds of primitives. What it builds depends on its operand's shape, not on
what the operand is, so the second call repeats the first one's nodes instead of its Python: a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache

from weft.autograd.context import device_of_files
from weft.autograd.value import Value
from weft.ir import graph
from weft.ir.dtypes import DType
from weft.ir.graph import Attrs, Node, Shape
from weft.ir.ops import Op

_KEPT = 64
"""Templates that are remembered."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A node to be; inputs by number, the operand being number 0."""

    op: Op
    inputs: tuple[int, ...]
    attrs: Attrs
    shape: Shape
    dtype: DType
    placed: bool
    """On the operand's device, not at home anywhere."""


def templated(build: Callable[..., Value], x: Value, *arguments: Hashable) -> Value:
    """build(x, *arguments), which must be a function of x's shape and dtype, and differentiate nothing."""
    nodes: list[Node] = [x.node]
    device = x.node.device
    if device is None and graph.in_files(nodes):
        device = device_of_files()
    for s in _template(build, x.shape, x.dtype, arguments):
        inputs = tuple([nodes[k] for k in s.inputs])
        nodes.append(graph.intern(s.op, inputs, s.attrs, s.shape, s.dtype, device if s.placed else None))
    return Value(nodes[-1])


@lru_cache(_KEPT)
def _template(
    build: Callable[..., Value], shape: Shape, dtype: DType, arguments: tuple[Hashable, ...]
) -> tuple[_Step, ...]:
    """The nodes that `build` makes of an operand, inputs before users."""
    operand = graph.buffer(shape, dtype, "template", None)
    root = build(Value(operand), *arguments).node
    numbers = {id(operand): 0}
    steps: list[_Step] = []
    for node in graph.toposort([root]):
        if node is not operand:
            inputs = tuple([numbers[id(i)] for i in node.inputs])
            steps.append(_Step(node.op, inputs, node.attrs, node.shape, node.dtype, node.device is not None))
            numbers[id(node)] = len(steps)
    return tuple(steps)
