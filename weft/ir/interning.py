"""Hash-consing: equal immutable objects are one object, so identity is equality, and sharing is found by everybody."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar
from weakref import ref

from weft.ir.forks import forkable

T = TypeVar("T")

_SMALLEST = 4096

entering = forkable(threading.RLock())
"""Held while an object is entered into a table of equal ones."""

_known: dict[Any, ref[Any]] = {}
"""All objects, weakly, by their class and what they were made of. Read without the lock."""

_sweep_at = _SMALLEST


class Interned(type):
    """The metaclass of classes whose equal objects are one object: a call gives the one that there is, if there is one.

    Objects are equal where the arguments of their constructor are, all positional; `key` says otherwise.
    """

    key: ClassVar[Callable[..., tuple[Any, ...]] | None] = None
    """The arguments, as a tuple that is equal for equal objects, if that takes more than comparing them."""

    def __call__(cls: type[T], *args: Any) -> T:
        itself: Any = cls
        make = itself.key
        key = (cls, args if make is None else make(*args))
        entry = _known.get(key)
        if entry is not None:
            found = entry()
            if found is not None:
                return found
        made = first(_known, key, type.__call__(cls, *args))
        if len(_known) > _sweep_at:
            with entering:
                _sweep()
        return made


def first(table: dict[Any, ref[T]], key: Any, made: T) -> T:
    """The one object with this key: `made`, unless another thread was faster."""
    entry = ref(made)  # before the lock is taken: making it may run the collector, and that, finalizers
    with entering:
        there = table.get(key)
        other = None if there is None else there()
        if other is not None:
            return other
        table[key] = entry
    return made


def _sweep() -> None:
    """Drop the entries of dead objects; the table has doubled since, so an object pays for it once or twice.

    A key keeps the parts of a dead object alive. Users stand behind their parts, so all goes in one walk from the end.
    """
    global _sweep_at
    entries = list(_known.items())
    while entries:
        key, entry = entries.pop()
        if entry() is None:
            del _known[key]
    _sweep_at = max(_SMALLEST, 2 * len(_known))
