"""The kinds of names that the room adds to torch's modules, and how each is made.

A table (`Names`) says for one of torch's modules which of its names are of which kind. Nothing is made before a program
asks for the name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ContextDecorator
from dataclasses import field, fields
from enum import Enum
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import Any, NoReturn, Self

from weft.as_torch.record import record
from weft.errors import WeftError
from weft.lazy_dataclass import dataclass


class NotOffered(WeftError, NotImplementedError):  # noqa: N818  (it says what it is)
    """A function of torch that weft has under torch's name only, so that programs that never call it run."""


def refuse(name: str, instead: str = "") -> NoReturn:
    """Raise NotOffered for torch's full name, with what to do."""
    record.refused[name] += 1
    raise NotOffered(
        f"{name}: weft has the name, for programs that never call it; {instead or 'leave it out'}"
    )


def refused(name: str, instead: str) -> Callable[..., NoReturn]:
    """A function that raises."""

    def call(*args: Any, **kwargs: Any) -> NoReturn:
        refuse(name, instead)

    return _titled(call, name)


def unchanged(name: str, instead: str) -> Callable[..., Any]:
    """A decorator that gives back what it gets, with or without arguments of its own; also a function of one thing."""

    def call(*args: Any, **kwargs: Any) -> Any:
        record.unused[name] += 1
        given = (
            args[0]
            if args
            else next((kwargs[k] for k in ("fn", "func", "obj", "model") if k in kwargs), None)
        )
        if given is None or isinstance(given, str | bool):
            return lambda decorated: decorated  # pyright: ignore[reportUnknownLambdaType,reportUnknownVariableType]
        return given

    return _titled(call, name)


def nothing(name: str, instead: str) -> Callable[..., None]:
    """A function that does nothing."""

    def call(*args: Any, **kwargs: Any) -> None:
        record.unused[name] += 1

    return _titled(call, name)


class _Context(ContextDecorator):
    """A context manager, and a decorator, that does nothing. What is asked of it does nothing, too."""

    name = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        record.unused[self.name] += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def context(name: str, instead: str) -> type[_Context]:
    """A class of contexts that do nothing."""
    module, _, last = name.rpartition(".")
    return type(
        last, (_Context,), {"__module__": module, "name": name, "__doc__": "A context that does nothing."}
    )


class _Named(type):
    """Classes that only have a name: what is asked of one and is not there is missed."""

    def __getattr__(cls, name: str) -> NoReturn:
        if not name.startswith("__"):
            record.missing[f"{cls.__module__}.{cls.__qualname__}.{name}"] += 1
        raise AttributeError(f"type object '{cls.__module__}.{cls.__qualname__}' has no attribute {name!r}")


def named_class(name: str, instead: str, bases: tuple[type, ...] = ()) -> type:
    """A class to subclass, to annotate with and to ask `isinstance` about; making one raises."""
    module, _, last = name.rpartition(".")

    def init(self: object, *args: Any, **kwargs: Any) -> None:
        refuse(name, instead)

    def item(cls: type, key: object) -> type:
        return cls

    members: dict[str, Any] = {
        "__module__": module, "__init__": init, "__class_getitem__": classmethod(item),
        "__doc__": "A name for programs that never make one.",
    }  # fmt: skip
    return _Named(last, bases, members)


class _Record:
    """A value that a program makes for a function that weft refuses: it keeps what it is made with."""

    _fields: tuple[str, ...] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        vars(self).update(dict.fromkeys(self._fields))
        for name, value in zip(self._fields, args, strict=False):
            setattr(self, name, value)
        vars(self).update(kwargs)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), tuple(map(repr, vars(self).items()))))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"

    def _is_of(self, which: str, dim: int | None) -> bool:
        return type(self).__name__ == which and dim in (None, getattr(self, "dim", None))

    def is_shard(self, dim: int | None = None) -> bool:
        """True for a placement that is a Shard."""
        return self._is_of("Shard", dim)

    def is_replicate(self) -> bool:
        """True for a placement that is a Replicate."""
        return self._is_of("Replicate", None)

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """True for a placement that is a Partial."""
        return self._is_of("Partial", None)


def _record(name: str, fields: tuple[str, ...]) -> type[_Record]:
    """A class of values for arguments of what is refused: configurations, placements."""
    module, _, last = name.rpartition(".")
    return type(
        last, (_Record,), {"__module__": module, "_fields": fields, "__doc__": "A value to be passed on."}
    )


def answer(value: object) -> Callable[[str, str], Callable[..., Any]]:
    """The kind of functions that always give `value`."""

    def make(name: str, instead: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return value

        return _titled(call, name)

    return make


def _titled(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    module, _, last = name.rpartition(".")
    call.__module__, call.__name__, call.__qualname__ = module, last, last
    return call


KINDS: Mapping[str, Callable[[str, str], Any]] = {
    "refused": refused,
    "unchanged": unchanged,
    "nothing": nothing,
    "context": context,
    "classes": named_class,
    "true": answer(True),
    "false": answer(False),
    "none": answer(None),
    "zero": answer(0),
    "one": answer(1),
}


def _no_values() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Names:
    """One of torch's modules: the modules of weft behind it, and what the room adds, by kind.

    Texts hold names with spaces between. What weft has goes before what the room adds.
    """

    weft: str = ""
    """Modules of weft, searched in this order."""
    also: str = ""
    """Other modules of torch's, searched after these."""
    refused: str = ""
    unchanged: str = ""
    nothing: str = ""
    context: str = ""
    classes: str = ""
    true: str = ""
    false: str = ""
    none: str = ""
    zero: str = ""
    one: str = ""
    enums: Mapping[str, str] = field(default_factory=_no_values)
    """Name of an enumeration -> its members."""
    records: Mapping[str, str] = field(default_factory=_no_values)
    """Name of a class that keeps what it is made with -> the names of its arguments, in order."""
    values: Mapping[str, Any] = field(default_factory=_no_values)
    at: Mapping[str, str] = field(default_factory=_no_values)
    """Name -> "module:attribute"."""
    first: Mapping[str, str] = field(default_factory=_no_values)
    """As `at`, for what goes before what weft has under the name."""
    instead: str = ""
    """The advice that a refusal gives: what to do instead."""

    def kinds(self) -> Mapping[str, str]:
        """Name -> its kind, of those that functions and classes are made for."""
        return _kinds(self)

    def make(self, path: str, name: str) -> Any:
        """The object of that name in the module `path`; KeyError where the table does not have it."""
        if name in self.values:
            return self.values[name]
        if name in self.at or name in self.first:
            module, _, attribute = {**self.at, **self.first}[name].partition(":")
            return attrgetter(attribute)(import_module(module)) if attribute else import_module(module)
        if name in self.records:
            return _record(f"{path}.{name}", tuple(self.records[name].split()))
        if name in self.enums:
            return Enum(name, self.enums[name], module=path)
        return KINDS[self.kinds()[name]](f"{path}.{name}", self.instead)

    def listed(self) -> set[str]:
        """All names of the table."""
        return {*self.kinds(), *self.values, *self.at, *self.first, *self.enums, *self.records}


@cache
def _kinds_of(texts: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    return {name: kind for kind, text in texts for name in text.split()}


def _kinds(names: Names) -> Mapping[str, str]:
    return _kinds_of(tuple((f.name, getattr(names, f.name)) for f in fields(names) if f.name in KINDS))
