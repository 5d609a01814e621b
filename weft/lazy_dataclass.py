"""A decorator for dataclasses whose methods are made when they are first called.

The standard decorator compiles up to six methods for each class, 0.4 ms a class; this one takes a thirteenth of that. A
process that runs one kernel meets some 300 classes, and makes objects of a third of them. `dataclass` here has the
standard one do all but the methods (fields, slots, `__match_args__`) and makes each method at its first call. Fields of
frozen classes with slots are set through their descriptors: an object of three takes two thirds of the time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import MISSING, FrozenInstanceError, fields
from functools import lru_cache
from reprlib import recursive_repr
from types import CodeType, FunctionType, MemberDescriptorType
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")
Method = Callable[..., Any]


@overload
def dataclass(cls: type[T], /) -> type[T]: ...


@overload
def dataclass(
    *,
    repr: bool = True,
    eq: bool = True,
    frozen: bool = False,
    kw_only: bool = False,
    slots: bool = False,
    weakref_slot: bool = False,
) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(
    cls: type[Any] | None = None,
    /,
    *,
    repr: bool = True,
    eq: bool = True,
    frozen: bool = False,
    kw_only: bool = False,
    slots: bool = False,
    weakref_slot: bool = False,
) -> Any:
    """A dataclass as `dataclasses.dataclass` makes it, its methods made at their first call.

    `order`, `unsafe_hash`, `init=False` and `InitVar` are not there. A dataclass that inherits from one of these is
    made with this decorator too: the standard one does not see that the parent is frozen.

    >>> @dataclass(frozen=True, slots=True)
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(1)
    Point(x=1, y=0)
    """

    def make(cls: type[Any]) -> type[Any]:
        plain = dataclasses.dataclass(
            init=False, repr=False, eq=False, kw_only=kw_only, slots=slots, weakref_slot=weakref_slot
        )(cls)
        _add_methods(plain, repr, eq, frozen, slots)
        return plain

    return make if cls is None else make(cls)


def _add_methods(cls: Any, repr: bool, eq: bool, frozen: bool, slots: bool) -> None:
    """Give the class the methods that it does not define itself."""
    own = cls.__dict__
    # A class that defines __eq__ has None for its hash unless it defines that as well.
    hashes = own.get("__hash__") is not None
    if "__init__" not in own:
        _add_late(cls, "__init__", lambda: _init(cls, frozen))
    if repr and "__repr__" not in own:
        cls.__repr__ = _repr
    if eq:
        if "__eq__" not in own:
            _add_late(cls, "__eq__", lambda: _eq(cls))
        if not hashes:
            if frozen:
                _add_late(cls, "__hash__", lambda: _hash(cls))
            else:
                cls.__hash__ = None
    if frozen:
        _freeze(cls)
        if slots and "__getstate__" not in own:
            cls.__getstate__ = _getstate
        if slots and "__setstate__" not in own:
            cls.__setstate__ = _setstate


def _add_late(cls: type[Any], name: str, make: Callable[[], Method]) -> None:
    """Have the method made when it is first called, and take its place."""

    def late(self: object, *args: object, **kwargs: object) -> object:
        method = make()
        method.__qualname__ = f"{cls.__qualname__}.{name}"
        method.__module__ = cls.__module__
        setattr(cls, name, method)
        return method(self, *args, **kwargs)

    setattr(cls, name, late)


@lru_cache(maxsize=256)
def _code(text: str) -> CodeType:
    """The code of the function with this text."""
    return next(c for c in compile(text, "<string>", "exec").co_consts if isinstance(c, CodeType))


def _define(text: str, called: Sequence[str], names: dict[str, object]) -> FunctionType:
    """The function of a text in which the fields are f0, f1 and so on, with the names that they are called by.

    Classes of as many fields have one text, which is compiled once.
    """
    code = _code(text)
    own = {f"f{i}": name for i, name in enumerate(called)}
    variables = tuple([own.get(n, n) for n in code.co_varnames])
    others = tuple([own.get(n, n) for n in code.co_names])
    return FunctionType(code.replace(co_varnames=variables, co_names=others), names)


def _init(cls: type[Any], frozen: bool) -> Method:
    """`__init__`, which sets the fields in order and calls `__post_init__` where there is one."""
    names: dict[str, object] = {"_missing": MISSING, "_set": object.__setattr__}
    positional: list[str] = []
    keywords: list[str] = []
    defaults: list[object] = []
    keyword_defaults: dict[str, object] = {}
    body: list[str] = []
    all_fields = fields(cls)
    for i, f in enumerate(all_fields):
        value = f"f{i}" if f.init else None
        if f.default_factory is not MISSING:
            names[f"_make{i}"] = f.default_factory
            value = f"_make{i}() if {value} is _missing else {value}" if value else f"_make{i}()"
        elif f.default is not MISSING and not value:
            names[f"_default{i}"], value = f.default, f"_default{i}"
        if f.init:
            (keywords if f.kw_only else positional).append(f"f{i}")
            if f.default is not MISSING or f.default_factory is not MISSING:
                if f.kw_only:
                    keyword_defaults[f.name] = f.default
                else:
                    defaults.append(f.default)  # MISSING where it is made
            elif defaults and not f.kw_only:
                raise TypeError(f"non-default argument {f.name!r} follows default argument")
        if value:
            body.append(_setting(cls, i, f.name, value, frozen, names))
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(["self", *positional, *(["*", *keywords] if keywords else [])])
    text = f"def __init__({parameters}):\n  " + "\n  ".join(body or ["pass"])
    made = _define(text, [f.name for f in all_fields], names)
    made.__defaults__, made.__kwdefaults__ = tuple(defaults), keyword_defaults
    return made


def _setting(
    cls: type[Any], number: int, name: str, value: str, frozen: bool, names: dict[str, object]
) -> str:
    """The line that sets a field."""
    if not frozen:
        return f"self.f{number} = {value}"
    slot = getattr(cls, name, None)
    if isinstance(slot, MemberDescriptorType):
        names[f"_set{number}"] = slot.__set__
        return f"_set{number}(self, {value})"
    names[f"_name{number}"] = name
    return f"_set(self, _name{number}, {value})"


def _values(of: str, names: list[str]) -> str:
    """The tuple of fields of an object."""
    return "(" + "".join(f"{of}.f{i}, " for i in range(len(names))) + ")"


def _eq(cls: type[Any]) -> Method:
    """`__eq__`: objects of one class with equal fields."""
    names = [f.name for f in fields(cls) if f.compare]
    same = f"{_values('self', names)} == {_values('other', names)}"
    text = (
        f"def __eq__(self, other):\n  return {same} if other.__class__ is self.__class__ else NotImplemented"
    )
    return _define(text, names, {})


def _hash(cls: type[Any]) -> Method:
    """`__hash__`: that of the tuple of fields."""
    names = [f.name for f in fields(cls) if (f.compare if f.hash is None else f.hash)]
    text = f"def __hash__(self):\n  return hash({_values('self', names)})"
    return _define(text, names, {})


@recursive_repr()
def _repr(self: Any) -> str:
    """Text of the class and its fields."""
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _freeze(cls: Any) -> None:
    """Refuse to set or delete fields."""

    def set_attribute(self: object, name: str, value: object) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete_attribute(self: object, name: str) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    cls.__setattr__ = set_attribute
    cls.__delattr__ = delete_attribute


def _getstate(self: Any) -> list[object]:
    """Values of the fields, for pickle: a frozen object cannot be filled by setting attributes."""
    return [getattr(self, f.name) for f in fields(self)]


def _setstate(self: Any, state: list[object]) -> None:
    """Fill an object that pickle made."""
    for f, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)
