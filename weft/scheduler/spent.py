"""Leaves that nobody needs once some nodes are computed: these may be computed into their memory."""
# Tests: tests/optim/test_memory_of_steps.py

from __future__ import annotations

from collections.abc import Sequence, Set

from weft.backends.storage import Storage
from weft.ir.graph import Node
from weft.lazy_dataclass import dataclass
from weft.scheduler.plan import OutputSpec


@dataclass(slots=True, eq=False)
class Spent:
    """`leaves` whose memory nobody else can see, and that `by` alone are computed from. Where one plan computes all of
    these, it may write over the leaves. `is_done`: it has, and the leaves have no values any more."""

    leaves: Set[Node]
    by: Sequence[Node]
    is_done: bool = False

    def fits(self, nodes: Sequence[Node]) -> bool:
        """True where computing `nodes` at once leaves nothing that is computed from the leaves."""
        made = set(nodes)
        return all(n in made or n.storage is not None for n in self.by)

    def places(self, outputs: Sequence[OutputSpec], leaves: Sequence[Node]) -> dict[int, int]:
        """The outputs of a plan that are computed over leaves, and the numbers of these: each is given to one."""
        found: dict[int, int] = {}
        left = {i for i, n in enumerate(leaves) if n in self.leaves}
        for k, o in enumerate(outputs):
            i = next((i for i in o.over if i in left), None)
            if i is not None and o.replaces is None:
                left.remove(i)
                found[k] = i
        return found

    def commit(self, nodes: Sequence[Node], values: Sequence[Storage], over: Sequence[Node]) -> None:
        """Have nodes their values, and leaves that were written over none. May be done again, where it did not end."""
        self.is_done = True
        for node, storage in zip(nodes, values, strict=True):
            if node.storage is None:
                node.storage = storage
        for leaf in over:
            leaf.storage = None
