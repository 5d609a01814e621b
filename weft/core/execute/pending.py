"""Companions: what is computed along with what a program asks for, since it is state that it changes and holds.

    loss.backward()
    with weft.no_grad():
        w -= 0.01 * w.grad         # w stands for a graph
    print(loss.item())             # computes the loss, and w with it

Nobody asks for `w`. Left alone, its graph would hold all steps before, and each step would need a plan of its own. So
who asks for a value also computes, in the same plan, what shares work with it and

* was changed in place, or is a leaf that requires grad (`w = (w - lr * g).requires_grad_()`);
* is what a gradient will need of a kernel that computes it in passing (the sums of attention's rows);
* is a gradient that `backward()` made, unless its tensor has been updated since: the update reads it where it is made.
  A thread that asks for such gradients after updates, time and again, has them computed along, too.

Other tensors that were changed in place are computed next, in a plan for each group that shares work. Nothing is
computed along where memory is not ample, nor again where that failed: who asks for it is told.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING
from weakref import ref

from weft.autograd.value import Value
from weft.core.execute import changes, holding, run
from weft.ir.graph import Node
from weft.ir.ops import MOVEMENT, Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.keeping import FREE_BYTES, is_formula, nbytes

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


class Reason(Enum):
    """The reason why a tensor is computed along with others."""

    NOTED = "the loss of a backward pass, or a running statistic"
    CHANGED = "changed in place"
    CARRIED = "as others that a later computation needed"
    HELD = "held, where very much is not computed"
    LEAF = "a leaf that requires grad"
    STATISTICS = "what a gradient needs of a forward pass"
    GRADIENT = "a gradient of a backward pass"
    SPENT = "a gradient of a backward pass, by which its tensor was updated"

    __hash__ = object.__hash__  # as fast as an integer's, where Enum's own is a Python function


@dataclass(frozen=True, slots=True)
class Companion:
    """A value that is computed along with others, and why. A gradient has an `owner`, the tensor that it belongs to."""

    tensor: Tensor
    value: Value
    node: Node
    reason: Reason
    owner: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """Companions that share work with what is asked for, and groups of others that share work with each other."""

    together: tuple[Companion, ...] = ()
    apart: tuple[tuple[Companion, ...], ...] = ()
    updated: tuple[Tensor, ...] = ()
    """Tensors with gradients that are not computed, which are not computed themselves: they are being updated."""


MANY = 4096
"""The least number of noted tensors at which those that are dead are looked for."""


PATIENCE = 10
"""The number of times, at most, that the wait of a companion that shares no work is doubled."""


OFTEN = 2
"""The number of updates after which spent gradients are asked for before they are computed along with the next ones:
to write them takes a tenth of a small step, to compute them afterwards the backward pass again."""

FEW = 8
"""The number of changes up to which they are compared with what is asked for one by one."""


class _Pending(threading.local):
    """The tensors of this thread that may become companions. Data of the thread that computes, and no mode."""

    def __init__(self) -> None:
        self.noted: dict[tuple[int, Reason], tuple[ref[Tensor], int]] = {}
        """Tensors by id, as a weak set would compare them with `==`, and how often they had been written to. For
        gradients, the tensors that they belong to."""
        self.in_vain: dict[tuple[int, Reason], tuple[ref[Node], int]] = {}
        """The noted ones that shared no work with what was asked for: what they stood for, and how often."""
        self.put_off: list[tuple[int, int, tuple[int, Reason], tuple[ref[Tensor], int]]] = []
        """Tensors that are no longer among the noted ones for that: a heap, by the number of the computation that they
        are noted again by. So to read many values that share nothing is not to compare each with all."""
        self.many = MANY
        """The number of them at which the dead are let go of."""
        self.postponed: set[int] = set()
        """The blocks under way, by id, in which nothing is computed that is not asked for."""
        self.reads_of_spent = 0
        """The number of updates after which spent gradients were asked for."""
        self.is_read = True
        """True where those of the last update were."""
        self.refused: set[ref[Node]] = set()
        """Nodes that could not be computed along with others. Looked at by each computation: no WeakSet, which says
        in several calls that it is empty."""


mine = _Pending()

_OF_GRADS = frozenset({Reason.GRADIENT, Reason.SPENT})
NONE = Due()


def note(t: Tensor, reason: Reason) -> None:
    """The tensor, if it is alive and not computed by then, is a companion of what is asked for next."""
    noted = mine.noted
    if reason is Reason.GRADIENT:
        noted.pop((id(t), Reason.SPENT), None)  # that was the gradient before
    noted[id(t), reason] = ref(t), t.__dict__.get("_writes", 0)
    if len(noted) > mine.many:
        for key, (entry, _) in list(noted.items()):
            if entry() is None:
                noted.pop(key, None)
        mine.in_vain = {k: v for k, v in mine.in_vain.items() if v[0]() is not None}
        mine.many = max(MANY, 2 * len(noted))


def noted() -> list[Tensor]:
    """The tensors that the next computation takes along whatever it is."""
    found = [entry() for key, (entry, _) in list(mine.noted.items()) if key[1] is Reason.NOTED]
    return [t for t in found if t is not None]


def take_noted() -> list[Tensor]:
    """As `noted`; they are noted no more."""
    if not mine.noted:
        return []
    found = noted()
    for key in [key for key in mine.noted if key[1] is Reason.NOTED]:
        del mine.noted[key]
    return found


def refuse(node: Node) -> None:
    """A node that could not be computed along with others: that is not tried again."""
    mine.refused = {r for r in mine.refused if r() is not None}
    mine.refused.add(ref(node))


def is_pending(node: Node) -> bool:
    """True for a value that depends on data and is not computed yet."""
    return node.storage is None and bool(node.inputs) and node.device not in (None, run.META)


def _is_written(node: Node) -> bool:
    """True for constants that were written piece by piece: what is written next would be one step more each time."""
    return node.device is None and node.storage is None and not is_formula(node)


def is_static(node: Node) -> bool:
    """True for a shape without runtime variables."""
    return all(n.__class__ is int for n in node.shape)


def due(asked: Sequence[Node], computing: bool = True) -> Due:
    """The companions of the nodes that are asked for; unless these are computed now, nothing is put off."""
    asked = [n for n in asked if n.storage is None]
    if not asked or _nothing_but(asked):
        return NONE
    companions, updated = _candidates(asked)
    if not companions:
        return Due(updated=updated) if updated else NONE
    sharing, known = _Sharing(asked), frozenset(asked)
    spent = [c for c in companions if c.reason is Reason.SPENT]
    spent_are_read = bool(spent) and any(sharing.reaches(c.node) for c in spent)
    if spent_are_read and computing and not mine.is_read:
        mine.is_read = True
        mine.reads_of_spent += 1
    companions = [
        c for c in companions if c.node not in known and (spent_are_read or c.reason is not Reason.SPENT)
    ]
    groups = _grouped(companions, sharing)
    sharing_work = groups.pop(sharing.group(_ASKED), ())
    together = _affordable(sharing_work)
    if computing:
        _put_off(companions, sharing_work)
    changed = [g for g in groups.values() if any(c.reason is Reason.CHANGED for c in g)]
    return Due(together, tuple([g for g in map(_affordable, changed) if g]), updated)


def _put_off(companions: Sequence[Companion], sharing: Sequence[Companion]) -> None:
    """Look later at companions that do not share work with what was asked for: after two computations, four, eight. Not
    at spent gradients, which are looked at where one of them is read, and gone with the next gradient."""
    own = {c.node for c in sharing}
    for c in companions:
        if c.reason is Reason.SPENT:
            continue
        key = id(c.tensor if c.owner is None else c.owner), c.reason
        entry = None if c.node in own else mine.noted.pop(key, None)
        if entry is None:
            continue
        before = mine.in_vain.get(key)
        times = before[1] + 1 if before is not None and before[0]() is c.node else 1
        mine.in_vain[key] = ref(c.node), times
        due = holding.mine.computations + (1 << min(times, PATIENCE))
        heapq.heappush(mine.put_off, (due, next(_order), key, entry))


_order = itertools.count()
"""For entries of one time, which are not to be compared themselves."""


def note_again(everything: bool = False) -> bool:
    """Note what was put off until now, or all of it; True where something is noted."""
    put_off = mine.put_off
    while put_off and (everything or put_off[0][0] <= holding.mine.computations):
        _, _, key, entry = heapq.heappop(put_off)
        mine.noted.setdefault(key, entry)
    return bool(mine.noted)


def _nothing_but(asked: Sequence[Node]) -> bool:
    """True where all that was noted is asked for anyway, as by who adds in place and looks: seen at a glance."""
    if mine.noted or holding.mine.carried or len(changes.mine.changed) > FEW:
        return False
    for entry in changes.mine.changed:
        if entry.__class__ is list:
            return False
        t = entry[0]()
        if t is not None and t.value.node not in asked and t.value.node.storage is None:
            return False
    return True


def spend(updated: Iterable[Tensor]) -> None:
    """The gradients of tensors that were to be updated, and are now, are spent."""
    for t in updated:
        entry = None if t.value.node.storage is None else mine.noted.pop((id(t), Reason.GRADIENT), None)
        if entry is not None:
            mine.noted[id(t), Reason.SPENT] = entry
            mine.is_read = False


def finished_gradients(output: Node, owners: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of `owners` that are not computed, and others that share work with them, unless that is shared with
    `output` as well: two backward passes from one forward pass stay one graph."""
    own = [t.__dict__.get("_grad") for t in owners]
    if not any(g is not None and is_pending(g.value.node) for g in own):
        return []
    grads = _gradients()
    ids = set(map(id, owners))
    if not any(id(c.owner) in ids for c in grads):
        return []
    sharing = _Sharing((output,))
    groups = _grouped(grads, sharing)
    groups.pop(sharing.group(_ASKED), None)
    return [c.tensor for g in groups.values() if any(id(c.owner) in ids for c in g) for c in g]


def gradients_beside(state: Node) -> list[Tensor]:
    """The gradients that are not computed and share work with what some state stands for."""
    if not any(reason is Reason.GRADIENT for _, reason in mine.noted):
        return []
    sharing = _Sharing((state,))
    groups = _grouped(_gradients(), sharing)
    return [c.tensor for c in groups.get(sharing.group(_ASKED), ())]


def _gradients() -> list[Companion]:
    """The gradients of backward passes that are not computed."""
    found, _ = _candidates(())
    return [c for c in found if c.reason is Reason.GRADIENT]


def companion(t: Tensor, reason: Reason) -> Companion:
    """The companion that a tensor is for what it stands for now."""
    value = t.value
    return Companion(t, value, value.node, reason)


def everything() -> list[Companion]:
    """All that this thread's tensors stand for and that is not computed, less spent gradients and movements of what
    is in memory."""
    found, _ = _candidates(())
    known = {c.node for c in found}
    for t in holding.held():
        c = companion(t, Reason.HELD)
        if c.node not in known and is_pending(c.node) and is_static(c.node):
            known.add(c.node)
            found.append(c)
    return [c for c in found if c.reason is not Reason.SPENT and is_work(c.node)]


def is_work(node: Node) -> bool:
    """True unless the node only moves elements that are in memory."""
    while node.op in MOVEMENT and node.storage is None:
        (node,) = node.inputs
    return node.storage is None


def have_values(nodes: Iterable[Node]) -> bool:
    """True where all can be computed: none is made of what only stands for a value."""
    sharing = _Sharing(())
    numbers = [sharing.add(n) for n in nodes]
    return not any(map(sharing.lacks_a_value, numbers))


def shared(companions: Sequence[Companion]) -> list[list[Companion]]:
    """Companions that can be computed and take little memory, in groups that share work."""
    groups = _grouped(companions, _Sharing(())).values()
    return [little for g in groups if (little := [c for c in g if run.is_little(c.node)])]


def _grouped(companions: Sequence[Companion], sharing: _Sharing) -> dict[int, list[Companion]]:
    """Companions that can be computed by the group of graphs that they share work with."""
    numbers = [sharing.add(c.node) for c in companions]
    groups: dict[int, list[Companion]] = {}
    for c, number in zip(companions, numbers, strict=True):
        if not sharing.lacks_a_value(number):
            groups.setdefault(sharing.group(number), []).append(c)
    return groups


class postponed:  # noqa: N801  (reads as what it does)
    """Within the block nothing is computed that is not asked for, however much is pending: it ends soon. A block whose
    end an interrupt prevents ends when it is forgotten."""

    __slots__ = ()

    def __enter__(self) -> None:
        mine.postponed.add(id(self))

    def __exit__(self, *error: object) -> None:
        mine.postponed.discard(id(self))

    __del__ = __exit__


def _candidates(asked: Sequence[Node]) -> tuple[list[Companion], tuple[Tensor, ...]]:
    """Companions that the nodes may have, each node once, and spent gradients among the nodes; and tensors that are
    being updated by gradients. Gradients come first, as they may be changed in place."""
    found: list[Companion] = []
    updated: list[Tensor] = []
    wanted = set(asked)
    known = set(asked)
    if mine.refused:
        known.update([n for r in mine.refused if (n := r()) is not None])
    note_again(everything=not asked)
    noted = mine.noted
    for key, (entry, writes) in list(noted.items()) if noted else ():
        t, reason = entry(), key[1]
        owner = t if reason in _OF_GRADS else None
        stands = t if owner is None else owner.__dict__.get("_grad")
        node = None if stands is None else stands.value.node
        if stands is None or node is None or not is_pending(node):
            noted.pop(key, None)
            mine.in_vain.pop(key, None)
        elif (
            owner is not None
            and owner.value.node.storage is None
            and owner.__dict__.get("_writes", 0) != writes
            and mine.reads_of_spent < OFTEN
        ):
            updated.append(owner)
            known.add(node)
        elif (node not in known or (reason is Reason.SPENT and node in wanted)) and is_static(node):
            known.add(node)
            found.append(Companion(stands, stands.value, node, reason, owner))
    for entry in list(changes.mine.changed):
        for ref_to, _, look in entry if entry.__class__ is list else (entry,):
            t = None if look is changes.GRAD else ref_to()
            if t is not None:
                node = t.value.node
                if node not in known and (is_pending(node) or _is_written(node)) and is_static(node):
                    known.add(node)
                    found.append(Companion(t, t.value, node, Reason.CHANGED))
    if holding.mine.carried:
        for t in holding.like_carried():
            node = t.value.node
            if node not in known and is_pending(node) and is_static(node):
                known.add(node)
                found.append(Companion(t, t.value, node, Reason.CARRIED))
    return found, tuple(updated)


def _affordable(group: Sequence[Companion]) -> tuple[Companion, ...]:
    """The group, or else the state in it, where memory is ample for all of that; else nothing."""
    if _fit([c.node for c in group]):
        return tuple(group)
    state = [c for c in group if c.reason not in _OF_GRADS]
    return tuple(state) if _fit([c.node for c in state]) else ()


def _fit(nodes: Sequence[Node]) -> bool:
    return sum(map(nbytes, nodes)) <= FREE_BYTES or run.fit_together(nodes)


_ASKED = 0
_BUFFER = Op.BUFFER


class _Sharing:
    """Graphs, numbered in the order in which they are added, in groups that share work. What only moves elements, or
    depends on no data, is no work, but for constants that are added themselves: what these were written by is. Each
    node of work is walked once."""

    def __init__(self, asked: Sequence[Node]) -> None:
        self._parent: list[int] = []
        self._number: dict[Node, int] = {}
        """The graph that a node was first met in; for what is no work, last."""
        self._without_value: set[int] = set()
        self._walk(asked)

    def add(self, node: Node) -> int:
        """The number of the graph under a node."""
        return self._walk((node,)) if node.device is not None else self._walk_constants(node)

    def group(self, number: int) -> int:
        """The group of a graph: the number of one of its graphs."""
        while self._parent[number] != number:
            number = self._parent[number]
        return number

    def reaches(self, node: Node) -> bool:
        """True for a node that some graph holds."""
        return node in self._number

    def lacks_a_value(self, number: int) -> bool:
        """True where a leaf of a graph, or of one that shares work with it, stands for a value that is yet to come: a
        function that is traced or batched was left by an error."""
        return bool(self._without_value) and self.group(number) in {
            self.group(k) for k in self._without_value
        }

    def _walk_constants(self, node: Node) -> int:
        """As `_walk`, for a constant, which shares what it was written by with other constants alone."""
        own, number = len(self._parent), self._number
        self._parent.append(own)
        stack = [node]
        while stack:
            n = stack.pop()
            if n.storage is not None or not n.inputs:
                continue
            before = number.get(n)
            if before is None:
                number[n] = own
                stack += n.inputs
            elif before != own:
                self._parent[self.group(before)] = self.group(own)
        return own

    def _walk(self, roots: Sequence[Node]) -> int:
        own, number = len(self._parent), self._number
        self._parent.append(own)
        stack = list(roots)
        while stack:
            n = stack.pop()
            if n.storage is not None or n.device is None:
                continue
            before = number.get(n)
            if before is not None:
                if before == own:
                    continue
                if n.op not in MOVEMENT:
                    self._parent[self.group(before)] = self.group(own)
                    continue
            number[n] = own
            inputs = n.inputs
            if inputs:
                stack += inputs
            elif n.op is _BUFFER:
                self._without_value.add(own)
        return own
