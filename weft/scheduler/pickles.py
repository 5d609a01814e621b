"""Bytes of graphs and kernels, for other processes of this weft: what there is one object of is one there, too."""

from __future__ import annotations

import io
import pickle
from typing import Any, TypeAlias

from weft.ir.calls import GraphCall
from weft.ir.dtypes import DType
from weft.ir.graph import (
    Along,
    Attrs,
    Axes,
    Box,
    Fill,
    Padding,
    ProductAxes,
    ScatterCombine,
    Shape,
    Window,
    buffer,
    intern,
    toposort,
)
from weft.ir.index import Int
from weft.ir.loop_body import Body, LoopNode
from weft.ir.ops import Op
from weft.ir.template import GraphTemplate

PROTOCOL = 5
"""The protocol of the oldest Python that weft runs on: a pack is made by one, and read by others."""

NOT_PICKLED = (
    pickle.UnpicklingError, EOFError, ImportError, AttributeError, LookupError, TypeError, ValueError,
    OverflowError,
)  # fmt: skip
"""Errors of reading other bytes."""

_TOLD = frozenset({None.__class__, Along, Axes, Fill, ProductAxes, ScatterCombine, Window})
"""Attributes that say the same in any process."""


def pickled(value: Any) -> bytes:
    """The value as bytes that `pickle.loads` reads: ops by their names, templates and calls by what makes them."""
    out = io.BytesIO()
    _Pickler(out, PROTOCOL).dump(value)
    return out.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Op):
            return getattr, (Op, obj.name)
        if isinstance(obj, GraphTemplate):
            return GraphTemplate, (obj.placeholders, obj.rows, obj.results)
        if obj.__class__ is GraphCall:
            return GraphCall, (obj.template, obj.uses)
        if obj.__class__ is Body:
            return _body, _body_rows(obj)
        return NotImplemented


_Given: TypeAlias = "tuple[tuple[Shape, DType, str | None], ...]"
"""The shapes, dtypes and devices of placeholders."""

_Made: TypeAlias = "tuple[tuple[Op, tuple[int, ...], Attrs, Shape, DType, str | None], ...]"
"""Nodes, with numbers for inputs."""

_Parts: TypeAlias = tuple[tuple[int, ...], ...]
"""The numbers of the nodes of each part of a body."""

_Rest: TypeAlias = tuple[tuple[int, ...], Int, bool]
"""The offsets, length and direction."""


def _body_rows(body: Body) -> tuple[_Given, _Made, _Parts, _Rest]:
    """The nodes of a body as they are, with copies that it has of what it is given."""
    given = (*body.carries, *body.slices, *body.fixed)
    made = [n for n in toposort((*body.nexts, *body.outs)) if n not in given]
    number = {n: k for k, n in enumerate((*given, *made))}
    parts = (body.carries, body.slices, body.fixed, body.nexts, body.outs)
    return (
        tuple([(n.shape, n.dtype, n.device) for n in given]),
        tuple(
            [(n.op, tuple([number[i] for i in n.inputs]), n.attrs, n.shape, n.dtype, n.device) for n in made]
        ),
        tuple([tuple([number[n] for n in part]) for part in parts]),
        (body.offsets, body.length, body.reverse),
    )


def _body(given: _Given, made: _Made, parts: _Parts, rest: _Rest) -> Body:
    """The body that was written."""
    nodes = [buffer(shape, dtype, device, None) for shape, dtype, device in given]
    for op, inputs, attrs, shape, dtype, device in made:
        nodes.append(intern(op, tuple([nodes[k] for k in inputs]), attrs, shape, dtype, device))
    carries, slices, fixed, nexts, outs = [tuple([nodes[k] for k in part]) for part in parts]
    offsets, length, reverse = rest
    return Body(carries, slices, offsets, fixed, nexts, outs, length, reverse)


def means_the_same_elsewhere(template: GraphTemplate) -> bool:
    """True for a graph with the same meaning in any process: not one of calls and copies, or with sizes that are known
    when it runs."""
    return all(_is_told(r.attrs) and _known(r.shape) for r in template.rows)


def _is_told(attrs: Attrs) -> bool:
    match attrs:
        case LoopNode(body=body):
            return isinstance(body.length, int) and means_the_same_elsewhere(body.template)
        case Box(start=start):
            return _known(start)
        case Padding(low=low, high=high):
            return _known(low) and _known(high)
        case _:
            return attrs.__class__ in _TOLD


def _known(sizes: tuple[Any, ...]) -> bool:
    return all(n.__class__ is int for n in sizes)
