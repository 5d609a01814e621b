"""Lines of the program: at which of them nodes were made, noted while somebody wants to know.

    lines = Lines()
    with lines.noted():
        y = x @ w                      lines.of(node of y)      "train.py:12"
        made = rewritten([y], rule)    lines.of(made[0])        "train.py:12", as it takes the place of y

Nodes themselves know nothing of lines, and while nobody asks none is looked at: making one costs what it did. A
gradient is of the line whose result it is the gradient of.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from sys import intern
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from weft.errors import user_call
from weft.ir import graph
from weft.ir.graph import Node

P = ParamSpec("P")
R = TypeVar("R")


class Lines:
    """The lines at which nodes were made: file:line of the innermost frame outside of weft."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Node, str] = WeakKeyDictionary()

    def of(self, node: Node) -> str | None:
        """The line at which a node was made; None for one that was made while nobody noted it."""
        return self._of.get(node)

    @contextmanager
    def noted(self) -> Generator[None]:
        """Have all nodes that this thread or task makes in the block be noted."""
        before = _noting.set(self)
        graph.show_nodes(_note)
        try:
            yield
        finally:
            graph.hide_nodes(_note)
            _noting.reset(before)

    def following(self, old: Node, make: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The result of `make`; the nodes that it makes are of the line of `old`."""
        before = _followed.set(old)
        try:
            return make(*args, **kwargs)
        finally:
            _followed.reset(before)

    def note(self, node: Node) -> None:
        """Note a new node: it is of the line of what it takes the place of, else of that which runs."""
        old = _followed.get()
        line = intern(user_call().location) if old is None else self._of.get(old)
        if line is not None:
            self._of[node] = line


_noting: ContextVar[Lines | None] = ContextVar("weft.lines", default=None)
_followed: ContextVar[Node | None] = ContextVar("weft.followed", default=None)
"""The node whose place is taken by those that are made."""


def noting() -> Lines | None:
    """The lines that this thread or task notes; None where nobody asks."""
    return _noting.get()


def _note(node: Node) -> None:
    if (lines := _noting.get()) is not None:
        lines.note(node)
