"""Changes in place that are not computed yet: a computation that fails takes no tensor's value with it.

In-place syntax, `backward()` and an optimizer's step make handles stand for graphs. Where such a graph cannot be
computed (memory, a device), its handle could never be read again, and neither could anything made of it. So the value
that a handle had before is kept until the new one is there, and when a computation fails:

1. What it was computed *from* is computed by itself, if that is possible: `x[0] = 5` stays when `f(x)` fails.
2. Other changes that share work with it are withdrawn, all of them: the tensors are as before the step. Those are the
   gradients that `backward()` added, the statistics of a batch norm, the parameters. Where a user's own code changed a
   tensor in place, that is computed if it can be: then it has happened, as in torch. In a training step (`w -= lr *
   w.grad`) this is done with all that it shares work with, so that it has happened wholly or not at all.

A change that shares no work with what failed is left alone. An interrupt withdraws nothing: what is not computed yet
is computed when it is asked for. What a function of weft changes together (an optimizer's step) it changes wholly or
not at all: see `restored_on_error`.
"""
# Tests: tests/core/execute/test_changes.py, tests/optim/test_steps.py

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from weakref import ref

from weft.autograd.context import context, restore
from weft.autograd.value import Value
from weft.core.args import handle
from weft.core.execute import edits, tracing, watched
from weft.errors import ArgumentError
from weft.ir.calls import expand_calls
from weft.ir.graph import Node, toposort
from weft.ir.ops import MOVEMENT, Op
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor
    from weft.scheduler.spent import Spent

CHANGES_KEPT = 16384
"""Changes that are not computed yet and can be withdrawn: as many as `handle.RECENT` tensors are looked at. The oldest
go first; with them goes only that a failed computation can be undone."""

ATTEMPTS = 16
"""Changes, or sets of them, that a failed computation tries to save: each may take as long as it did itself."""

LONG = 256
"""Changes of one tensor in place of which none is computed: then it is. A count that nobody reads would grow always."""

MANY = 2048
"""The number of changes after which such tensors are looked for where nothing is computed at all."""

GRAD = object()
"""Stands for the look of a tensor where its `.grad` was changed."""

Change: TypeAlias = "tuple[ref[Any], Any, Any]"
"""The tensor, the Value it stood for and its look; or the tensor, its `.grad` before (a Tensor) and GRAD."""


class _Changes(threading.local):
    """The changes that this thread made: data of the thread that computes, and no mode."""

    def __init__(self) -> None:
        self.changed: deque[Any] = deque(maxlen=CHANGES_KEPT)
        """Changes (`Change`) in their order, and lists of those that belong together in a training step: gradients
        are, too."""
        self.left = 0
        """The number not computed when something was last: they are looked at again when there are others."""
        self.ahead = LONG
        """The number of changes at which tensors that have changed often are looked for."""


mine = _Changes()


_number = itertools.count(1)


def record(t: Any, value: Value) -> None:
    """`t` is about to stand for `value`."""
    handle.check_change(t, value)
    node = value.node
    if node.storage is None and node.inputs and (context().trace is None or tracing.current() is None):
        changed = mine.changed
        if len(changed) >= MANY and not next(_number) % MANY:
            catch_up()
        changed.append((ref(t), t.value, t.look))


def record_grad(t: Any, grad: Any) -> None:
    """`t.grad`, which is a tensor, is about to be another."""
    node = grad.value.node
    if node.storage is None and node.inputs and tracing.current() is None:
        mine.changed.append([(ref(t), t.__dict__["_grad"], GRAD)])


def settle() -> None:
    """Something has been computed: let go of what was before it."""
    let_go()
    if mine.left >= mine.ahead:
        catch_up()
    elif mine.ahead > LONG and mine.left < LONG:
        mine.ahead = LONG


def let_go() -> None:
    """Let go of what was before changes that are computed, and of gradients before those that are gone."""
    changed = mine.changed
    for _ in range(len(changed)):
        entry = changed.popleft()
        if entry.__class__ is list:
            if any(map(_is_pending, entry)):
                changed.append(entry)
        else:
            t = entry[0]()
            if t is not None:
                node: Node = t.value.node
                if node.storage is None and node.inputs:
                    changed.append(entry)
    mine.left = len(changed)


def catch_up() -> None:
    """Compute what has been changed in place often, and not been computed."""
    mine.ahead = 2 * len(mine.changed)
    times: dict[int, int] = {}
    tensors: list[Any] = []
    for entry in list(mine.changed):
        if entry.__class__ is tuple and (t := entry[0]()) is not None:
            times[id(t)] = times.get(id(t), 0) + 1
            if times[id(t)] == LONG:
                tensors.append(t)
    if tensors and _computed([t.value.node for t in tensors]):
        let_go()


def _is_pending(change: Any) -> bool:
    t = change[0]()
    if t is None:
        return False
    if change[2] is GRAD:
        t = t.__dict__.get("_grad")
        if t is None:
            return False
    node: Node = t.value.node
    return node.storage is None and bool(node.inputs)


# ------------------------------------------------------------------------------------- wholly or not at all


class restored_on_error:  # noqa: N801  (reads as what it does)
    """Whatever ends the block early, Ctrl-C as well, the tensors stand for what they did, and have the `.grad` that
    they had; the modes are what they were.

    `together`: what the block changes belongs together, so that what is withdrawn later is withdrawn wholly. Nothing is
    once `spent` is done: what they stood for was written over, by what they stand for now. No
    generator: one that is not resumed, because its `__exit__` is interrupted, would restore when it is collected.
    """

    __slots__ = ("_before", "_modes", "_spent", "_together")

    def __init__(
        self,
        tensors: Iterable[Tensor],
        grads: Sequence[Tensor] = (),
        together: bool = False,
        spent: Spent | None = None,
    ) -> None:
        self._modes, self._together, self._spent = context(), together, spent
        self._before: list[tuple[Any, Any, Any]] = []
        if tracing.current() is None:  # a trace that fails leaves nothing behind
            self._before = [(t, t.value, t.look) for t in tensors]
            if grads:
                self._before += [(t, t.__dict__.get("_grad"), GRAD) for t in grads]

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            if self._spent is None or not self._spent.is_done:
                for t, before, look in self._before:
                    _undo(t, before, look)
            restore(self._modes)
        elif self._together and self._before:
            mine.changed.append([(ref(t), before, look) for t, before, look in self._before])


def _undo(t: Any, before: Any, look: Any) -> None:
    if look is GRAD:
        t.__dict__["_grad"] = before
        return
    now: Value = t.value
    if now is before:
        return
    _look_again(t, look)
    if now.is_leaf and before.is_leaf and now.needs_grad is not before.needs_grad:
        before = Value(before.node, now.needs_grad)
    edits.stand_for(t, before)
    handle.made(t)
    if before.needs_grad and before.is_leaf and watched.watcher(before) is None:
        watched.watch(t)


def _look_again(t: Any, before: Any) -> None:
    """`t` looks at elements as before. Where nobody shared them then, and somebody does now, they stay shared."""
    now = t.look
    if before is not None or now is None:
        edits.share(t, before)
    elif now.steps:  # its shape was changed in place, or it took another's elements
        edits.share(t, type(now)(now.shared, ()) if now.shared.members[0]() is t else None)


# ------------------------------------------------------------------------------------- a computation failed


@dataclass(slots=True)
class _Chain:
    """The values that a tensor, or its `.grad`, stood for since it was last computed, and stands for now."""

    tensor: Any
    is_grad: bool
    now: Node
    changes: list[tuple[Change, list[Change] | None]]
    """The changes in order, each with what belongs together with it."""

    @property
    def is_state(self) -> bool:
        """True where weft changed it as part of a training step."""
        return self.is_grad or any(group is not None for _, group in self.changes)

    def nodes(self) -> list[Node]:
        """The nodes that it stands for, and stood for before, the latest first."""
        before = [_node(c) for c, _ in reversed(self.changes)]
        return [self.now, *(n for n in before if n is not None)]


def _node(change: Change) -> Node | None:
    _, before, look = change
    if look is GRAD:
        return None if before is None else before.value.node
    return before.node


def failed(asked: Sequence[Node], error: BaseException) -> None:
    """Computing the nodes `asked` ended with `error`. Tensors whose changes cannot be computed stand for what they did
    before; a note on the error says how many."""
    if isinstance(error, ArgumentError) or not isinstance(error, Exception):
        return
    chains = _chains()
    if not chains:
        return
    save_what_was_before(asked, chains)
    work = _work(asked)
    hit = [c for c in chains if _shares(c.now, work)]
    lost: list[_Chain] = []
    tried = 0
    for part in _parts(hit):
        step = any(c.is_state for c in part.chains)
        for together in [part.chains] if step else [[c] for c in part.chains]:
            own = [c.now for c in together if not c.is_state]
            tries = bool(own) and tried < ATTEMPTS and set(asked).isdisjoint(toposort(own))
            tried += tries
            if not tries or not _computed([c.now for c in together]):
                lost += together
    count = _withdraw(lost, chains, work)
    if count:
        error.add_note(
            f"{count} tensors or gradients that were changed in place, in steps that share work with this computation, "
            "are as they were before"
        )


def save_what_was_before(asked: Sequence[Node], chains: Sequence[_Chain]) -> None:
    """Compute the latest values of tensors among what `asked` was to be computed from."""
    below = set(toposort(asked)).difference(asked)
    first = [next((n for n in c.nodes() if n in below), None) for c in chains if not c.is_grad]
    nodes = [n for n in first if n is not None and n.storage is None and n.inputs]
    if nodes:
        _computed(nodes)


def _computed(nodes: list[Node]) -> bool:
    """Compute the nodes; True where they could be. What goes wrong is no news: something did before."""
    from weft.scheduler.realize import realize

    try:
        realize(nodes)
    except (RuntimeError, MemoryError, OSError, ValueError):
        return False
    return True


def _chains() -> list[_Chain]:
    """The chains of what is not computed yet: changed in place, or a gradient that backward() made."""
    found: dict[tuple[int, bool], _Chain] = {}
    for entry in list(mine.changed):
        group: list[Change] | None = cast("list[Change]", entry) if isinstance(entry, list) else None
        for change in [cast("Change", entry)] if group is None else group:
            t = change[0]()
            if t is None:
                continue
            chain = _chain_of(found, t, change[2] is GRAD)
            if chain is not None:
                chain.changes.append((change, group))
    for t in watched.living():
        _chain_of(found, t, True)
    return list(found.values())


def _chain_of(found: dict[tuple[int, bool], _Chain], t: Any, is_grad: bool) -> _Chain | None:
    key = (id(t), is_grad)
    chain = found.get(key)
    if chain is None:
        stands = t.__dict__.get("_grad") if is_grad else t
        if stands is None:
            return None
        chain = found[key] = _Chain(t, is_grad, stands.value.node, [])
    return chain


def _work(nodes: Sequence[Node]) -> set[Node]:
    """The nodes to compute for these: neither movements nor what is made of constants alone."""
    nodes = [*nodes, *expand_calls(nodes)]
    of_data: set[Node] = set()
    work = {n for n in nodes if n.storage is None and n.inputs}
    for n in toposort(nodes):
        if n.storage is not None or n.op is Op.BUFFER:
            of_data.add(n)
        elif not of_data.isdisjoint(n.inputs):
            of_data.add(n)
            if n.op not in MOVEMENT:
                work.add(n)
    return work


def _shares(node: Node, work: set[Node]) -> bool:
    return node.storage is None and any(n in work for n in toposort([node, *expand_calls([node])]))


@dataclass(slots=True)
class _Part:
    """Changes that share work among themselves."""

    chains: list[_Chain]
    work: set[Node]


def _parts(chains: Sequence[_Chain]) -> list[_Part]:
    parts: list[_Part] = []
    for c in chains:
        merged = _Part([c], _work([c.now]))
        rest: list[_Part] = []
        for p in parts:
            if p.work.isdisjoint(merged.work):
                rest.append(p)
            else:
                merged = _Part(p.chains + merged.chains, p.work | merged.work)
        parts = [*rest, merged]
    return parts


def _withdraw(lost: list[_Chain], chains: Sequence[_Chain], work: set[Node]) -> int:
    """Have the tensors stand for the latest value before that shares no work with what failed, or that can be computed
    all the same; how many do."""
    by_key = {(id(c.tensor), c.is_grad): c for c in chains}
    undone: dict[tuple[int, bool], int] = {}  # the first change of each that is undone
    for c in lost:
        first = _last_good(c, work)
        if first is not None:
            _take_back(by_key, undone, c, first)
    for key, first in undone.items():
        c = by_key[key]
        _, before, look = (None, None, GRAD) if first < 0 else c.changes[first][0]
        _undo(c.tensor, before, look)
    return len(undone)


def _last_good(chain: _Chain, work: set[Node]) -> int | None:
    """The number of the first change to be undone; -1 for a gradient that there is to be none of; None if no value of
    the tensor can be had."""
    tried = 0
    for k in reversed(range(len(chain.changes))):
        node = _node(chain.changes[k][0])
        if node is None or not _shares(node, work):
            return k
        if not chain.is_state and tried < ATTEMPTS:
            tried += 1
            if _computed([node]):
                return k
    return -1 if chain.is_grad else None


def _take_back(
    by_key: dict[tuple[int, bool], _Chain], undone: dict[tuple[int, bool], int], chain: _Chain, first: int
) -> None:
    """Note that the changes of a chain from number `first` on are undone, with all that belongs together with them."""
    todo = [(chain, first)]
    while todo:
        c, k = todo.pop()
        key = (id(c.tensor), c.is_grad)
        if key in undone and undone[key] <= k:
            continue
        undone[key] = k
        for _, group in c.changes[max(k, 0) :]:
            for member in group or ():
                other = by_key.get((id(member[0]()), member[2] is GRAD))
                if other is not None and other is not c:
                    at = next(i for i, (m, _) in enumerate(other.changes) if m is member)
                    todo.append((other, at))
