"""Bytes of graphs and kernels, for other processes of this weft: what there is one object of is one there, too."""
# Tests: tests/scheduler/test_tiers.py, tests/scheduler/test_form_kernels.py

from __future__ import annotations

import io
import pickle
from typing import Any

from weft.ir.ops import Op
from weft.ir.template import GraphTemplate

PROTOCOL = 5
"""The protocol of the oldest Python that weft runs on: a pack is made by one, and read by others."""


def pickled(value: Any) -> bytes:
    """The value as bytes that `pickle.loads` reads: ops by their names, templates by what makes them."""
    out = io.BytesIO()
    _Pickler(out, PROTOCOL).dump(value)
    return out.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Op):
            return getattr, (Op, obj.name)
        if isinstance(obj, GraphTemplate):
            return GraphTemplate, (obj.placeholders, obj.rows, obj.results)
        return NotImplemented
