"""Numbers as operands: within a step that is run again and again, and multiplies by other numbers each time.

A Python number is a constant of the graph, so another number needs another program. Within `lifting`, numbers that are
combined with float tensors are read from memory instead: the graph, its plan and its programs stay the same.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import field

import numpy as np

from weft.autograd.context import switched
from weft.core.args.handle import Number
from weft.core.execute import run, tracing
from weft.ir.dtypes import DType, convert_array
from weft.ir.graph import Node
from weft.lazy_dataclass import dataclass

KEPT = 1024
"""The count of numbers that stay in memory from step to step."""

PLAIN = frozenset({0.0, 1.0, -1.0, 2.0, 0.5})
"""Numbers that rules simplify by; they stay constants."""


@dataclass(slots=True, eq=False)
class Lifted:
    """The numbers of one repeated computation that are in memory, by value, dtype and device."""

    kept: dict[tuple[Number, DType, str], Node] = field(
        default_factory=dict["tuple[Number, DType, str]", Node]
    )

    def node(self, x: Number, dtype: DType, device: str) -> Node | None:
        """A leaf without dimensions that holds the number; None for one that stays a constant."""
        if x in PLAIN or x != x or not dtype.is_float or isinstance(x, bool):
            return None
        key = (x, dtype, device)
        found = self.kept.get(key)
        if found is None:
            if len(self.kept) >= KEPT:
                self.kept.clear()
            with np.errstate(all="ignore"):
                array = convert_array(np.asarray(x, np.float64), dtype)
            found = self.kept[key] = run.from_numpy(array, device)
        return found


def lifting(numbers: Lifted) -> AbstractContextManager[object]:
    """Have numbers read from memory within the block; not in a trace, which would keep them. Composed functions are run
    there, since a call would hold its numbers."""
    return switched(inline=True, lifted=numbers.node if tracing.current() is None else None)
