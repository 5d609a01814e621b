"""Compiled steps between two uses: the next call of `generate` with the same sizes records nothing.

They rest on the model that they compute with, and go with it; the memory of their keys and values goes at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from typing import Any, TypeVar

from weft.core.execute import edits

S = TypeVar("S")

KEPT = 2
"""Sets of steps that rest on a model at most; the one used longest ago goes first."""


class Resting:
    """The steps that rest on a model, each for a kind of use. A copy of it, or what is read from a file, has none."""

    def __init__(self) -> None:
        self._kept: list[tuple[Hashable, Any]] = []
        self._edit = -1

    def __reduce__(self) -> tuple[type[Resting], tuple[()]]:
        return Resting, ()

    def __len__(self) -> int:
        return len(self._kept)

    @contextmanager
    def used(
        self, kind: Hashable, make: Callable[[], S], rest: Callable[[S], object]
    ) -> Generator[S, None, None]:
        """Steps of that kind, which nobody else uses meanwhile: those that rest, unless a module was edited since, or
        new ones. They rest again behind the block, unless an error leaves it: `rest` lets go of what they need not
        keep."""
        steps = self._taken(kind)
        steps = make() if steps is None else steps
        try:
            yield steps
        except GeneratorExit:
            if not sys.is_finalizing():
                self._put(kind, steps, rest)
            raise
        self._put(kind, steps, rest)

    def _taken(self, kind: Hashable) -> Any:
        if self._edit != edits.modules.latest():  # they may refer to weights that are the model's no longer
            self._kept = []
        found = next((x for x in self._kept if x[0] == kind), None)
        if found is None:
            return None
        try:
            self._kept.remove(found)
        except ValueError:  # another thread has it
            return None
        return found[1]

    def _put(self, kind: Hashable, steps: S, rest: Callable[[S], object]) -> None:
        rest(steps)
        now = edits.modules.latest()
        others = [x for x in self._kept if x[0] != kind] if self._edit == now else []
        self._kept, self._edit = [*others, (kind, steps)][-KEPT:], now
