"""The parameters, buffers and modules of a module by name, as torch keeps them: `_parameters`, `_buffers`, `_modules`.

Programs read and write these dicts. What is in them is an attribute of the module as well: reading `layer.weight` costs
what any attribute costs. Each write keeps both.
"""
# Tests: tests/nn/test_module_internals.py

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

from weft.core.execute import edits, tracing

if TYPE_CHECKING:
    from weft.nn.module import Module

_MISSING = object()


class Members(OrderedDict[str, Any]):
    """A dict of a module's members of one kind, whose entries are attributes of the module too."""

    def __init__(self, given: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), slot: str = "") -> None:
        self.slot = slot
        self._owners: list[ref[Module]] = []
        super().__init__()
        for name, value in dict(given).items():
            super().__setitem__(name, value)

    def belong(self, module: Module) -> None:
        """Have the entries be attributes of a module; several that were copied from one another may share a dict."""
        if not any(r() is module for r in self._owners):
            self._owners.append(ref(module))
        vars(module).update(self)

    def _attributes(self) -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = []
        for r in self._owners:
            module = r()
            if module is not None and vars(module).get(self.slot) is self:
                out.append(vars(module))
        return out

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        for attributes in self._attributes():
            attributes[name] = value
        self._note(name)

    def __delitem__(self, name: str) -> None:
        value = self[name]
        super().__delitem__(name)
        for attributes in self._attributes():
            if attributes.get(name, _MISSING) is value:
                del attributes[name]
        self._note(name)

    def _note(self, name: str) -> None:
        """Say that an entry is another one."""
        for r in self._owners:
            module = r()
            if module is not None:
                tracing.note_write(module, name)
        edits.modules.note()

    def pop(self, key: str, default: Any = _MISSING) -> Any:
        if key not in self and default is not _MISSING:
            return default
        value = self[key]
        del self[key]
        return value

    def popitem(self, last: bool = True) -> tuple[str, Any]:
        name = next(reversed(self) if last else iter(self))
        return name, self.pop(name)

    def clear(self) -> None:
        for name in list(self):
            del self[name]

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *given: Any, **named: Any) -> None:
        for name, value in dict(*given, **named).items():
            self[name] = value

    def __ior__(self, other: Any) -> Members:  # pyright: ignore[reportIncompatibleMethodOverride]  (dicts are merged)
        self.update(other)
        return self

    def copy(self) -> OrderedDict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  (of no module yet)
        """The entries as a plain dict."""
        return OrderedDict(self)

    __copy__ = copy

    def __reduce__(self) -> tuple[Any, ...]:
        return (OrderedDict, (list(self.items()),))

    def __repr__(self) -> str:
        return repr(dict(self))


KINDS = ("_parameters", "_buffers", "_modules")


def adopt(module: Module, slot: str, given: Mapping[str, Any]) -> Members:
    """Make a dict the module's members of a kind: what was one before, and is none now, is no attribute any more."""
    before = vars(module).get(slot)
    made = given if isinstance(given, Members) and given.slot == slot else Members(given, slot)
    if isinstance(before, Mapping) and before is not made:
        for name, value in cast("Mapping[str, Any]", before).items():
            if vars(module).get(name, _MISSING) is value:
                del vars(module)[name]
    vars(module)[slot] = made
    made.belong(module)
    edits.modules.note()
    return made
