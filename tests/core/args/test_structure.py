"""Containers of tensors: what they are, and how they are made again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import weft
from weft.core.args.structure import builder, is_named_tuple


class Pair(NamedTuple):
    """Two things."""

    first: Any
    second: Any


@dataclass(frozen=True)
class Both:
    """Two things in a dataclass."""

    first: Any
    second: Any


class Fields:
    """A class with fields that is no tuple."""

    _fields = ("a",)


class Triple(tuple[Any, ...]):
    """A tuple without names."""

    __slots__ = ()


def test_named_tuples() -> None:
    assert is_named_tuple(Pair)
    assert not any(map(is_named_tuple, (tuple, list, Fields, Triple, dict)))


def test_containers_are_made_again_with_other_tensors() -> None:
    x, y, other = weft.ones(1), weft.ones(2), object()
    tree: Any = {"a": [x, (y, 3)], "b": Pair(x, None), "c": OrderedDict(k=Both(y, "text")), "d": other}
    tensors: list[Any] = []
    seen: list[Any] = []

    def number(t: Any) -> int:
        tensors.append(t)
        return len(tensors) - 1

    make = builder(tree, number, seen.append)
    new = make(list(range(len(tensors))))
    assert [t is s for t, s in zip(tensors, (x, y, x, y), strict=True)] == [True] * 4
    assert new == {"a": [0, (1, 3)], "b": Pair(2, None), "c": OrderedDict(k=Both(3, "text")), "d": other}
    assert type(new["c"]) is OrderedDict and type(new["b"]) is Pair
    assert seen == [other]  # numbers, texts and None are no containers, and nothing is said of them
    assert builder(other, number)([]) is other
