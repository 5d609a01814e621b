"""The structure of a graph, leaves renumbered: what plans are cached by."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.ir.dtypes import DType
from weft.ir.graph import Node, toposort
from weft.ir.index import Var, variables
from weft.ir.ops import Op


@dataclass(frozen=True, slots=True)
class Signature:
    """`key` is equal for graphs that one plan serves; `leaves` are this graph's stored inputs, in the key's order."""

    key: tuple[Any, ...]
    leaves: tuple[Node, ...]
    order: tuple[Node, ...]
    variables: tuple[Var, ...]

    def digest(self) -> str:
        """The key as a hash that is the same in every process."""
        heads: dict[Any, bytes] = {}
        h = hashlib.sha256()
        for row in self.key[:-1]:
            is_leaf = row[0].__class__ is DType
            head, inputs = (row, ()) if is_leaf else (row[:4], row[4:])
            text = heads.get(head)
            if text is None:
                text = heads[head] = repr(head if is_leaf else (row[0].name, *row[1:4])).encode()
            h.update(text)
            h.update(repr(inputs).encode())
        h.update(repr(self.key[-1]).encode())
        return h.hexdigest()


def signature(outputs: Sequence[Node]) -> Signature:
    """The signature of the graph under `outputs`; nodes with storage (and BUFFERs) are leaves, but not as outputs' roots."""
    order = toposort(outputs)
    numbers: dict[int, int] = {}
    leaves: list[Node] = []
    rows: list[Any] = []
    used: set[Var] = set()
    for k, node in enumerate(order):
        numbers[id(node)] = k
        if node.storage is not None or node.op is Op.BUFFER:
            leaves.append(node)
            rows.append((node.dtype, node.shape, node.device))
        else:
            rows.append((node.op, node.attrs, node.dtype, node.shape, *[numbers[id(i)] for i in node.inputs]))
        for s in node.shape:
            if s.__class__ is not int:
                used |= variables(s)
        if used and node.attrs is not None:
            used |= _attr_variables(node.attrs)
    rows.append(tuple([numbers[id(o)] for o in outputs]))
    return Signature(tuple(rows), tuple(leaves), tuple(order), tuple(sorted(used, key=lambda v: v.name)))


def _attr_variables(attrs: Any) -> set[Var]:
    out: set[Var] = set()
    for name in ("start", "low", "high"):
        for i in getattr(attrs, name, ()):
            out |= variables(i)
    return out
