"""Histories that a backward pass went through: they are given up when a leaf that they hang on is written over.

    loss.backward()     may be done again: nothing has changed
    optimizer.step()    what `loss` was computed from is let go; loss.backward() is a GradError from here on

A history holds the leaves that it was computed from, and so the old values of all parameters, as long as its end is
held: by a list of losses, or by a loop whose last loss is there while the next is computed. torch lets go of what it
saved at the first pass, unless `retain_graph` is set; here that is done when it begins to cost memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from weakref import ref

from weft.autograd.value import Value
from weft.errors import GradError
from weft.ir.graph import in_memory


class _Passed(threading.local):
    """The ends of a thread's histories that were gone through and are alive, by identity, with the leaves of each."""

    def __init__(self) -> None:
        self.ends: dict[int, tuple[ref[Value], frozenset[Value]]] = {}


_mine = _Passed()


def note(end: Value, reached: Iterable[Value]) -> None:
    """A backward pass went from `end` to the values `reached`, and is not to be made again after a leaf among these was
    written over."""
    leaves = frozenset([v for v in reached if v.is_leaf])  # others may hold `end`
    if end.is_leaf or not leaves:
        return
    ends, number = _mine.ends, id(end)
    ends[number] = ref(end, lambda _: ends.pop(number, None)), leaves


def any_is_held() -> bool:
    """True where a history might be given up."""
    return bool(_mine.ends)


def written_over(leaves: Iterable[Value]) -> None:
    """Give up the histories that hang on one of `leaves`, which are about to be written over."""
    ends = _mine.ends
    written = set(leaves)
    for number, (end, its) in list(ends.items()):
        if not its.isdisjoint(written):
            ends.pop(number, None)
            v = end()
            if v is not None:
                _give_up(v)


def has_history(v: Value) -> bool:
    """True where a backward pass may go on from `v`. A history of which each way leads to one that was given up, as
    that of a sum of losses, is given up as well; of a long one that is not looked for."""
    if v.op is None and v.rule is None:
        return False
    stack, seen = [v], 0
    while stack:
        x = stack.pop()
        if x.rule is given_up:
            continue
        ways = [y for y in x.inputs if y.needs_grad]
        seen += 1
        if not ways or seen > LOOKED_AT:
            return True
        stack += ways
    if v.rule is not given_up:
        _give_up(v)
    return False


LOOKED_AT = 16
"""Values of a history that are looked at for one that was not given up."""


def _give_up(end: Value) -> None:
    """Take the history of a value, and those of the values in it: whoever holds one of these keeps its elements."""
    stack = [end]
    while stack:
        v = stack.pop()
        stack += [x for x in v.inputs if x.needs_grad and not x.is_leaf]
        v.rule, v.op, v.attrs, v.inputs = given_up, None, None, ()
        storage = v.node.storage
        if storage is not None:
            v.node = in_memory(v.node, storage)


def given_up(*_: object) -> tuple[Value | None, ...]:
    """The rule of a value without its history."""
    raise GradError(
        "backward: this was gone through by an earlier backward pass, and a leaf that it was computed from has been "
        "written over since, as an optimizer's step does, so that its history is gone; compute it anew, or pass "
        "retain_graph=True to the earlier pass"
    )
