"""Graphs that follow from the shape and dtype of one operand: built once, then copied onto other operands.

A function such as a sort is composed of hundreds of primitives. What it builds depends on its operand's shape, not on
what the operand is, so the second call repeats the first one's nodes instead of its Python: a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache

from weft.autograd.context import device_of_files
from weft.autograd.value import Value
from weft.ir import graph
from weft.ir.dtypes import DType
from weft.ir.graph import Shape
from weft.ir.template import GraphTemplate

_KEPT = 64
"""Templates that are kept."""


def templated(build: Callable[..., Value], x: Value, *arguments: Hashable) -> Value:
    """build(x, *arguments), which must be a function of x's shape and dtype, and differentiate nothing."""
    (root,) = _template(build, x.shape, x.dtype, arguments).build([x.node], device_of_files)
    return Value(root)


@lru_cache(_KEPT)
def _template(
    build: Callable[..., Value], shape: Shape, dtype: DType, arguments: tuple[Hashable, ...]
) -> GraphTemplate:
    """The template of what `build` makes of an operand."""
    operand = graph.buffer(shape, dtype, "template", None)
    template = GraphTemplate.of([operand], [build(Value(operand), *arguments).node])
    assert isinstance(template, GraphTemplate), template
    return template
