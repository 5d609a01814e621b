"""Modules as a traced function saw them: its graph is that of other parameters, children, hooks or attributes later.

model.head = nn.Linear(8, 4)       the graph reads the old weight: the function is recorded again
model.head.weight.copy_(w)         the same tensor with other values: a change like any other
model.name = "large"               the function did not read it: all stays

What counts is what the function read before it set it, if ever. A number that it read and set (a counter) does not
count: what is done in Python happens once. Where it left a flag or an object another than it had read, its graph is for
one call. What is in lists and other objects that attributes stand for is compared as that of names: see names.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, cast
from weakref import ref

from weft.core.execute import edits
from weft.core.execute.names import MISSING, Names, is_counter, is_plain, same
from weft.core.execute.watched import hooks_of
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ModuleClass:
    """The class of all modules, by whose attributes reads and writes are seen."""

    cls: Any
    assign: Callable[[Any, str, Any], None]
    """Its `__setattr__`."""
    tables: frozenset[str]
    """The attributes that are dicts, which change without being set."""
    around: Sequence[str]
    """The tables of what is called around a module, and what else each call depends on."""
    everywhere: Sequence[Mapping[int, Any]]
    """The tables of what is called around all modules."""
    internals: frozenset[str]
    """The names of the Python modules that look into the dict of a module to find a single attribute."""


_module_class: ModuleClass | None = None


def module_class() -> ModuleClass | None:
    """The class of modules; None before there is one."""
    return _module_class


def register(found: ModuleClass) -> None:
    """Have the attributes of modules of this class be seen from the next trace on."""
    global _module_class
    _module_class = found


@dataclass(slots=True, eq=False)
class _Seen:
    """A module in a trace: what its attributes were when they were first read, and the names set before."""

    module: Any
    cls: type
    read: dict[str, Any] = field(default_factory=dict[str, Any])
    written: set[str] = field(default_factory=set[str])
    is_called: bool = False


_NAMES = "__dict__"
"""The attribute that stands for the names of all."""


class Modules:
    """The attributes of modules that a function read while it was traced, to be compared with what they are later."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._made: dict[int, ref[Any]] = {}
        """The modules that the function makes."""
        self.names = Names(None if _module_class is None else _module_class.cls)
        self._hooks: list[Any] | None = None
        self._read: list[tuple[Any, type, list[tuple[str, Any]]]] = []
        self.looks_at_names = False
        """True where names are to be compared at each call, as nothing tells of their edits."""
        self._gradient_hooks: list[tuple[Any, tuple[int, ...]]] = []
        self.edit = -1
        """The last edit of modules when all was found as it was."""
        self._is_for_once = False
        """True where the function changed what it read, so that the next call is another one."""
        self.modes: list[tuple[Any, bool]] = []
        """The modules that were called, and whether each was training."""

    # in a trace -----------------------------------------------------------------------------------------------------

    def note_read(self, m: Any, name: str) -> None:
        """The function reads an attribute, which may not be there; `__dict__` for all."""
        seen = self.meet(m)
        if seen is None:
            return
        own = _own(m)
        for n in (name,) if name != _NAMES else (*own, name):
            if n not in seen.read and n not in seen.written:
                x = seen.read[n] = _value(own, n)
                if n != _NAMES:
                    self.names.look_into(x)

    def note_write(self, m: Any, name: str) -> None:
        """The function sets an attribute."""
        seen = self.meet(m)
        if seen is not None and name not in seen.read:
            seen.written.add(name)

    def note_call(self, m: Any) -> None:
        """The function calls a module."""
        found, seen = _module_class, self.meet(m)
        if found is None or seen is None or seen.is_called:
            return
        seen.is_called = True
        self.names.enter(m)
        for name in found.around:
            self.note_read(m, name)
        if self._hooks is None:
            self._hooks = _hooks_of_all()

    def meet(self, m: Any) -> _Seen | None:
        """The record of a module; None for one that the function makes."""
        key = id(m)
        seen = self._seen.get(key)
        if seen is None and key not in self._made:
            if not _own(m):
                made = self._made
                made[key] = ref(m, lambda _: made.pop(key, None))
                return None
            seen = self._seen[key] = _Seen(m, cast("type[Any]", type(m)))
        return seen

    def note_captured(self, tensors: Iterable[Any]) -> None:
        """The function uses these tensors without being given them, and the hooks on their gradients."""
        self._gradient_hooks = [(t, hooks_of(t)) for t in tensors if t.requires_grad]

    def end(self) -> None:
        """The function has returned."""
        for s in self._seen.values():
            own, read = _own(s.module), list[tuple[str, Any]]()
            for name, x in s.read.items():
                now = _value(own, name)
                if same(now, x):
                    read.append((name, x))
                elif not is_counter(x, now):
                    self._is_for_once = True
            if read:
                self._read.append((s.module, s.cls, read))
            self._is_for_once |= type(s.module) is not s.cls
            if s.is_called and "training" in s.read:
                self.modes.append((s.module, s.read["training"]))
        self._seen.clear()
        self._made.clear()
        self.names.end()
        self._is_for_once |= self.names.is_for_once
        self.looks_at_names = not self.names.are_none

    # later ----------------------------------------------------------------------------------------------------------

    @property
    def are_none(self) -> bool:
        """True where the function read nothing of modules, and of what names stand for."""
        return not (self._read or self._is_for_once or self._gradient_hooks or self.looks_at_names)

    def are_as_they_were(self) -> bool:
        """True where what was read is the same objects, or equal numbers and texts."""
        if self.looks_at_names and not self.names.are_as_they_were():
            return False
        now = edits.modules.latest()
        if now == self.edit:
            return True
        if self._is_for_once:
            return False
        if self._hooks is not None and self._hooks != _hooks_of_all():
            return False
        if any(hooks_of(t) != hooks for t, hooks in self._gradient_hooks):
            return False
        for m, cls, read in self._read:
            own = _own(m)
            if type(m) is not cls:
                return False
            for name, x in read:
                if own.get(name, MISSING) is not x and not same(_value(own, name), x):
                    return False
        self.edit = now
        return True

    def are_gone(self) -> bool:
        """True where something else took the place of a tensor, module or another object: it may well never return."""
        if self._is_for_once or self.names.are_gone():
            return True
        if edits.modules.latest() == self.edit:
            return False
        return any(
            not is_plain(x) and not same(_value(_own(m), name), x)
            for m, _, read in self._read
            for name, x in read
        )


def _own(m: Any) -> dict[str, Any]:
    """The dict of a module, which reading it does not count as read."""
    return object.__getattribute__(m, "__dict__")


def _value(own: dict[str, Any], name: str) -> Any:
    """An attribute in the form that is compared."""
    if name == _NAMES:
        return tuple(own)
    x = own.get(name, MISSING)
    is_table = _module_class is not None and name in _module_class.tables and x is not MISSING
    return tuple(x.items()) if is_table else x


def _hooks_of_all() -> list[Any]:
    """The hooks that are called around every module."""
    return [] if _module_class is None else [tuple(table.items()) for table in _module_class.everywhere]
