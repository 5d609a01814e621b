"""Random numbers of calls that are refused: they are drawn again, so that a limit changes no numbers."""
# Tests: tests/scheduler/pools/test_resting.py

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.errors import MemoryPlanError


class drawn_if_run:  # noqa: N801  (reads as what it does)
    """Within, numbers are drawn for a recording's `draws`; where it ends for want of memory they were not."""

    __slots__ = ("_before",)

    def __init__(self, draws: Sequence[tuple[Any, Any, int]]) -> None:
        self._before = [(g, g.get_state(), count) for g, _, count in draws] if draws else ()

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None and issubclass(kind, MemoryPlanError):
            for generator, state, count in self._before:
                generator.give_back(state, count)
