"""Functions that are recorded by whoever calls them, once for each structure of their tensors.

`composite` records a function by its arguments. Where what a function reads stands elsewhere, as an optimizer's rule
reads the options of a group, its caller knows what the graph follows from: that is the key here.
"""
# Tests: tests/optim/test_steps.py

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.autograd.value import Value
from weft.core.composed.composite import calls_are_made, calls_of
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor
    from weft.ir.calls import GraphCall
    from weft.ir.graph import Node

Build: TypeAlias = "Callable[[list[Tensor]], dict[str, Tensor]]"
Recording: TypeAlias = "dict[str, GraphCall] | None"

MANY = 256
"""So many recordings are kept of one function; a caller whose key changes at each step makes new ones."""


@dataclass(slots=True, weakref_slot=True)
class Recordings:
    """Recorded graphs by key and structure; None where a function could not be recorded."""

    kept: dict[Hashable, dict[Hashable, Recording]] = field(default_factory=dict[Any, Any])

    def given(self, key: Hashable, shared: Sequence[Tensor]) -> RecordedCalls | None:
        """The recordings for a key, of calls that share their last tensors; None where no calls are made now, as within
        a trace."""
        if not calls_are_made():
            return None
        if sum(map(len, self.kept.values())) > MANY:
            self.kept.clear()
        values = [t.value for t in shared]
        nodes = [v.node for v in values]
        alike = self.kept.setdefault((key, *[(n.shape, n.dtype, n.device) for n in nodes]), {})
        return RecordedCalls(alike, values, nodes)


def take_over(op: str, tensors: Iterable[Tensor], nodes: Iterable[Node]) -> None:
    """Have each tensor stand for a result of a call, of its shape and on its device, in place."""
    for t, node in zip(tensors, nodes, strict=True):
        t.become(op, Value(node))


@dataclass(slots=True)
class RecordedCalls:
    """Recordings of one key: `call` looks up, or records, what a function builds of tensors like those given."""

    kept: dict[Hashable, Recording]
    shared: list[Value]
    nodes: list[Node]

    def call(self, key: Hashable, tensors: Sequence[Tensor], build: Build) -> dict[str, Node] | None:
        """The results of `build` for the tensors and the shared ones, without history; None where it cannot be
        recorded. `key` says what else `build` reads.
        """
        nodes = [t.value.node for t in tensors]
        whole = (key, *[(n.shape, n.dtype, n.device) for n in nodes])
        nodes += self.nodes
        if whole not in self.kept:
            self.kept[whole] = self._recorded(build, [*[t.value for t in tensors], *self.shared], nodes)
        found = self.kept[whole]
        return None if found is None else {name: c.on(nodes) for name, c in found.items()}

    def _recorded(self, build: Build, values: list[Value], nodes: list[Node]) -> Recording:
        names: list[str] = []

        def parts(tensors: list[Tensor]) -> list[Tensor]:
            made = build(tensors)
            names.extend(made)
            return list(made.values())

        calls = calls_of(parts, values) if all(n.device for n in nodes) else ""
        return None if isinstance(calls, str) else dict(zip(names, calls, strict=True))
