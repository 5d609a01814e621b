"""Values that tensors stand for and that are not computed yet, by node: a computation asks which of its nodes are among
them, so that what it costs does not grow with all that waits.

    a, b = x * 2, (x * 2).exp()     waiting: x * 2, and its exponential
    b.sum().item()                  among the nodes of the sum: both; what of them is computed waits no more

A value that waited while something else was computed, and whose tensors are gone when it is computed itself, was
carried from one computation to the next by what was made of it. Values of its kind are computed at once from there on.
"""
# Tests: tests/core/execute/test_holding.py, tests/core/execute/test_pending.py

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias
from weakref import ref

from weft.core.args.handle import RECENT, recent_tensors
from weft.core.execute import run
from weft.ir.graph import Node
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.backends.storage import Storage
    from weft.core.tensor.tensor import Tensor
    from weft.ir.dtypes import DType
    from weft.ir.graph import Attrs, Shape

Kind: TypeAlias = "tuple[Op, Attrs, Shape, DType, str | None]"
"""All that a node is, but for its inputs."""

KINDS_KEPT = 256
"""The kinds of values that are known to be carried from one computation to the next; then all are forgotten."""

LATEST = 64
"""Values of such kinds that are looked at, at most: state is among the latest, and what waits for long is results."""

FEW = 1024
"""The least number of values at which those that nobody wants any more are looked for."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A node, the tensors that stood for it, and the number of the computation before which the first of them did."""

    node: ref[Node]
    tensors: list[ref[Tensor]]
    since: int


class _Holding(threading.local):
    """The values of this thread that wait, by the id of their node. Data of the thread that computes, and no mode."""

    def __init__(self) -> None:
        self.waiting: dict[int, _Waiting] = {}
        self.many = FEW
        """The number of them at which the dead are let go of."""
        self.computations = 0
        self.carried: set[Kind] = set()
        """The kinds of values that a later computation needed."""
        self.like_carried: dict[int, _Waiting] = {}
        """The values that wait and are of these kinds."""


mine = _Holding()


def kind(n: Node) -> Kind:
    """All that a node is, but for its inputs."""
    return n.op, n.attrs, n.shape, n.dtype, n.device


def take_in(asked: Collection[int]) -> None:
    """Have the values wait that tensors made since the last computation stand for, but for the tensors that are asked
    for, given by identity. Another computation begins."""
    mine.computations += 1
    noted = list(recent_tensors.tensors)
    recent_tensors.tensors.clear()
    waiting, carried = mine.waiting, mine.carried
    for entry in noted:
        t: Tensor | None = entry()
        if t is None or id(t) in asked:
            continue
        node = t.value.node
        if node.storage is not None or not node.inputs:
            continue
        there = waiting.get(id(node))
        if there is not None and there.node() is node:
            there.tensors.append(entry)
            continue
        waiting[id(node)] = there = _Waiting(ref(node), [entry], mine.computations)
        if carried and kind(node) in carried:
            mine.like_carried[id(node)] = there
    if len(waiting) > mine.many:
        _let_go()


def _let_go() -> None:
    """Forget the dead, what is there, and the oldest beyond RECENT."""
    living = {k: w for k, w in mine.waiting.items() if (n := w.node()) is not None and n.storage is None}
    mine.waiting = dict(itertools.islice(living.items(), max(0, len(living) - RECENT), None))
    mine.like_carried = {k: w for k, w in mine.like_carried.items() if mine.waiting.get(k) is w}
    mine.many = max(FEW, 2 * len(mine.waiting))


class Among:
    """A question: which of a graph's nodes wait? `met`: those of all graphs that it was asked of.

    Gradients of tensors that are being `updated` wait on where they are near: the update reads them where they are
    made, and who asks for them later has them for no more than storing them takes.
    """

    __slots__ = ("_updated", "met")

    def __init__(self, updated: Iterable[Tensor] = ()) -> None:
        self.met: dict[Node, None] = {}
        self._updated = updated

    def __call__(self, nodes: Mapping[Node, object]) -> list[Node]:
        waiting = mine.waiting
        if len(waiting) < len(nodes):
            found = [n for w in waiting.values() if (n := w.node()) is not None and n in nodes]
        else:
            found = [n for n in nodes if (w := waiting.get(id(n))) is not None and w.node() is n]
        if found and self._updated:
            grads = {g.value.node for t in self._updated if (g := t.__dict__.get("_grad")) is not None}
            found = [n for n in found if n not in grads or count([n], most=NEAR) > NEAR]
        self.met.update(dict.fromkeys(found))
        return found


NEAR = 8
"""The nodes, at most, that are to be computed for a value that is near: some numbers times what is in memory."""


def count(roots: Iterable[Node], known: Iterable[Node] = (), most: int = sys.maxsize) -> int:
    """The number of nodes to compute for these, where those `known` are there; any number above `most` where there are
    more."""
    seen = set(known)
    before, stack = len(seen), [n for n in roots if n not in seen]
    while stack and len(seen) - before <= most:
        n = stack.pop()
        if n.storage is None and n.inputs and n not in seen:
            seen.add(n)
            stack += n.inputs
    return len(seen) - before


def settle(nodes: Iterable[Node], constants: Mapping[Node, Storage]) -> None:
    """Have the tensors that stand for these nodes stand for their values, as far as they were computed: these wait no
    more. `constants`: see `run.realize`."""
    for n in nodes:
        w = mine.waiting.get(id(n))
        if w is None or w.node() is not n or (n.storage is None and n not in constants):
            continue
        del mine.waiting[id(n)]
        mine.like_carried.pop(id(n), None)
        holders = _holders(w, n)
        for t in holders:
            run.realize_value(t.value, constants)
        if not holders and w.since < mine.computations and n.storage is not None:
            carry(kind(n))


def carry(kind_of: Kind) -> None:
    """Have values of a kind computed along from here on."""
    if kind_of in mine.carried:
        return
    if len(mine.carried) >= KINDS_KEPT:
        mine.carried.clear()
        mine.like_carried.clear()
    mine.carried.add(kind_of)
    for k, w in mine.waiting.items():
        n = w.node()
        if n is not None and kind(n) == kind_of:
            mine.like_carried[k] = w


def _holders(w: _Waiting, node: Node) -> list[Tensor]:
    """The tensors that stand for the node still."""
    return [t for entry in w.tensors if (t := entry()) is not None and t.value.node is node]


def like_carried() -> Iterator[Tensor]:
    """A tensor for each value that waits and is of a kind that was carried before, of the latest ones."""
    for k, w in list(itertools.islice(reversed(mine.like_carried.items()), LATEST)):
        n = w.node()
        holders = [] if n is None else _holders(w, n)
        if holders:
            yield holders[0]
        elif n is None:
            del mine.like_carried[k]


def held() -> Iterator[Tensor]:
    """The tensors whose values wait, and those that were made since the last computation: these may be gone at the
    next, and do not wait yet."""
    for w in list(mine.waiting.values()):
        n = w.node()
        if n is not None:
            yield from _holders(w, n)
    for entry in list(recent_tensors.tensors):
        t = entry()
        if t is not None:
            yield t


def references() -> Iterator[ref[Tensor]]:
    """All references to tensors that are kept here."""
    yield from recent_tensors.tensors
    for w in mine.waiting.values():
        yield from w.tensors
