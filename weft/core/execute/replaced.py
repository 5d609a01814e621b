"""Old values of leaves that a loop replaces at each step, and that something which is not computed still reads.

    guesses.append(net(x).argmax(1))     not computed before somebody asks, and so reads the weights of this step
    optimizer.step()                     the weights have new memory; the old are kept for the guess

Now and then a look is taken at the leaves of a step long ago. If some are still there, what waits is computed, and
values of its kinds are computed along with the steps that follow.
"""
# Tests: tests/optim/test_old_weights.py

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import ref

from weft.core.execute import holding, pending, run, tracing
from weft.core.execute.realization import compute_apart

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor
    from weft.ir.graph import Node


class Replaced:
    """The leaves that one loop replaces, asked at each step before that whether those of long ago are still there."""

    __slots__ = ("_sample", "_steps")

    def __init__(self) -> None:
        self._steps = 0  # until the next look
        self._sample: list[ref[Node]] = []

    def are_kept(self, tensors: Sequence[Tensor]) -> bool:
        """True where something keeps what was replaced some PINNED_BYTES ago: then another sample is taken."""
        self._steps -= 1
        if self._steps > 0 or tracing.current() is not None:
            return False
        nodes = [t.value.node for t in tensors]
        now = set(nodes)
        before = [n for r in self._sample if (n := r()) is not None]
        nbytes = sum([n.storage.nbytes for n in nodes if n.storage is not None])
        self._sample = [ref(n) for n in nodes]
        self._steps = run.PINNED_BYTES // nbytes + 1 if nbytes else 1
        return not now.issuperset(before)


def let_go() -> None:
    """Compute what waits, and values of its kinds along from here on."""
    waiting = pending.everything()
    compute_apart(waiting)
    for c in waiting:
        if c.node.storage is not None:
            holding.carry(holding.kind(c.node))
