"""Nested Python containers of tensors: their structure as a hashable key, and the same structure over other tensors.

Containers are tuples, lists, dicts, named tuples and dataclass instances. Everything else is a value of its own: it is
compared by type and value if it is hashable, by identity if not.
"""
# Tests: tests/core/compile/test_compile.py

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np

from weft.core.args.handle import Handle
from weft.errors import DTypeError

Key: TypeAlias = Hashable
Build: TypeAlias = Callable[[Sequence[Any]], Any]


class Same:
    """Equal for the same object only; keeps it alive, so that no other object gets its id."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return f"{type(self.value).__name__} at {id(self.value):#x}"


def is_named_tuple(kind: Any) -> bool:
    """True for the class of a named tuple."""
    return tuple in getattr(kind, "__mro__", ()) and hasattr(kind, "_fields")


def _kind(x: Any) -> Any:
    return x.__class__


def flatten(tree: Any, tensors: list[Any], numbers: dict[int, int]) -> Key:
    """The key of `tree`; its tensors, each once, are appended to `tensors` and numbered in `numbers` by id."""
    if isinstance(tree, Handle):
        number = numbers.get(id(tree))
        if number is None:
            number = numbers[id(tree)] = len(tensors)
            tensors.append(tree)
        return (Handle, number)
    kind = _kind(tree)
    if kind is tuple or kind is list or is_named_tuple(kind):
        return (kind, *[flatten(x, tensors, numbers) for x in tree])
    if kind is dict:
        return (kind, tuple(map(_value, tree)), *[flatten(x, tensors, numbers) for x in tree.values()])
    if dataclasses.is_dataclass(kind):
        return (kind, *[flatten(getattr(tree, f.name), tensors, numbers) for f in dataclasses.fields(tree)])
    if kind is np.ndarray:
        raise DTypeError(
            "compile: an argument is a NumPy array; pass weft.tensor(array), so that new data need no new program"
        )
    return _value(tree)


def _value(x: Any) -> Key:
    if x.__class__ is float:
        return (float, x.hex())  # 0.0 is not -0.0, a NaN equals itself
    try:
        hash(x)
    except TypeError:
        return Same(x)
    return (_kind(x), x)


def builder(tree: Any, number: Callable[[Any], int], other: Callable[[Any], object] | None = None) -> Build:
    """A function that makes `tree` again with `given[number(t)]` in place of each tensor t. `other` is told of what is
    no container, and stays the same object."""
    if isinstance(tree, Handle):
        k = number(tree)
        return lambda given: given[k]
    kind = _kind(tree)
    if kind is tuple:
        parts = [builder(x, number, other) for x in tree]
        return lambda given: tuple([p(given) for p in parts])
    if kind is list:
        parts = [builder(x, number, other) for x in tree]
        return lambda given: [p(given) for p in parts]
    if is_named_tuple(kind):
        parts = [builder(x, number, other) for x in tree]
        return lambda given: kind(*[p(given) for p in parts])
    if kind is dict or kind is OrderedDict:
        items = {k: builder(x, number, other) for k, x in tree.items()}
        made: Any = kind
        return lambda given: made((k, p(given)) for k, p in items.items())
    if dataclasses.is_dataclass(kind):
        fields = {
            f.name: builder(getattr(tree, f.name), number, other) for f in dataclasses.fields(tree) if f.init
        }
        make = _kind(tree)  # a name of its own: the closure must not hold the tree and its tensors
        return lambda given: make(**{k: p(given) for k, p in fields.items()})
    if other is not None and not isinstance(tree, _SIMPLE):
        other(tree)
    return lambda _: tree


def tensors_in(tree: Any) -> list[Any]:
    """The tensors of `tree`, each once."""
    found: dict[int, Any] = {}

    def number(t: Any) -> int:
        found[id(t)] = t
        return 0

    builder(tree, number)
    return list(found.values())


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """`tree` with `change(t)` in place of each tensor t, which is changed once wherever it stands."""
    made: list[Any] = []
    numbers: dict[int, int] = {}

    def number(t: Any) -> int:
        if id(t) not in numbers:
            numbers[id(t)] = len(made)
            made.append(change(t))
        return numbers[id(t)]

    return builder(tree, number)(made)


_SIMPLE = (int, float, complex, str, bytes, type(None), type)
