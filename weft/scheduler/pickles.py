"""Bytes of graphs and kernels, for other processes of this weft: what there is one object of is one there, too."""

from __future__ import annotations

import io
import pickle
from typing import Any

from weft.ir.calls import GraphCall
from weft.ir.graph import (
    Along,
    Attrs,
    Axes,
    Box,
    Fill,
    Padding,
    ProductAxes,
    ScatterCombine,
    Window,
)
from weft.ir.ops import Op
from weft.ir.template import GraphTemplate

PROTOCOL = 5
"""The protocol of the oldest Python that weft runs on: a pack is made by one, and read by others."""

NOT_PICKLED = (
    pickle.UnpicklingError, EOFError, ImportError, AttributeError, LookupError, TypeError, ValueError,
    OverflowError,
)  # fmt: skip
"""Errors of reading other bytes."""

_TOLD = frozenset({
    None.__class__, Along, Axes, Box, Fill, Padding, ProductAxes, ScatterCombine, Window,
})  # fmt: skip


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
        return NotImplemented


def means_the_same_elsewhere(template: GraphTemplate) -> bool:
    """True for a graph with the same meaning in any process: not one of loops, calls and copies, or with sizes that are
    known when it runs."""
    return all(
        r.attrs.__class__ in _TOLD and _known(r.shape) and _known(_sizes(r.attrs)) for r in template.rows
    )


def _known(sizes: tuple[Any, ...]) -> bool:
    return all(n.__class__ is int for n in sizes)


def _sizes(attrs: Attrs) -> tuple[Any, ...]:
    """The sizes in attributes that may be known only when it runs."""
    match attrs:
        case Box(start=start):
            return start
        case Padding(low=low, high=high):
            return (*low, *high)
        case _:
            return ()
