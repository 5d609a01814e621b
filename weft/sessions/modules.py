"""Modules as they were when a function was recorded: its graph is that of other parameters, children or hooks later.

model.head = nn.Linear(8, 4)       the graph reads the old weight: the function is recorded again
model.head.weight.copy_(w)         the same tensor with other values: a change like any other
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from weft.core.execute import edits
from weft.nn import hooks
from weft.nn.members import KINDS
from weft.nn.module import HOOKS, Module

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_HELD = frozenset((*HOOKS, *KINDS))
"""The attributes that are tables, which change without being set."""

State = dict[str, Any]


class Modules:
    """The modules that a function called, with all modules in them, and their attributes, members and hooks."""

    def __init__(self, called: Iterable[Any]) -> None:
        self._edit = edits.modules.latest()  # before looking: what is edited meanwhile is looked at again
        found: dict[int, Module] = {}
        left = [m for m in called if isinstance(m, Module)]
        while left:
            m = left.pop()
            if id(m) not in found:
                found[id(m)] = m
                left += [x for x in m.__dict__["_modules"].values() if x is not None]
        self._states = [(m, _state(m)) for m in found.values()]
        self._hooks = _hooks_of_all()

    def are_as_they_were(self) -> bool:
        """True where all attributes are the same objects, or equal numbers and texts. What is changed within an object
        that an attribute stands for is not seen."""
        now = edits.modules.latest()
        if now == self._edit:
            return True
        if self._hooks != _hooks_of_all() or not all(_same(_state(m), s) for m, s in self._states):
            return False
        self._edit = now
        return True


def _hooks_of_all() -> list[Any]:
    """The hooks that are called around every module."""
    return [tuple(table.items()) for table in hooks.CALLED]


def _state(m: Module) -> State:
    """The attributes of a module, and what is in its tables."""
    return {k: tuple(x.items()) if k in _HELD else x for k, x in list(m.__dict__.items())}


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    match a:
        case dict():
            other = cast("State", b)
            return a.keys() == other.keys() and all(_same(x, other[k]) for k, x in cast("State", a).items())
        case tuple():
            pairs = cast("tuple[Any, ...]", a), cast("tuple[Any, ...]", b)
            return len(pairs[0]) == len(pairs[1]) and all(map(_same, *pairs))
        case _:
            return isinstance(a, _PLAIN) and repr(a) == repr(b)  # by text: NaN is itself, and 0.0 is not -0.0
