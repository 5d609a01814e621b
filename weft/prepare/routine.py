"""A routine: a small program whose results are computed one by one, to have their basic programs compiled."""
# Tests: tests/test_prepare.py

from __future__ import annotations

from collections.abc import Callable, Iterator

import weft
from weft import Tensor
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Routine:
    """A program; what it yields is computed."""

    name: str
    results: Callable[[], Iterator[Tensor]]

    def run(self) -> None:
        """Compute each result, one after another."""
        for result in self.results():
            result.realize()


def leaf(*shape: int) -> Tensor:
    """Random numbers in memory."""
    return weft.rand(*shape).realize()
