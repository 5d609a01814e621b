"""torch's version, as programs compare it."""

from __future__ import annotations

import re
from functools import total_ordering
from typing import Any


@total_ordering
class TorchVersion(str):
    """A text that compares with other texts, tuples and version objects by its numbers: "2.13.0" > "2.4"."""

    @staticmethod
    def _numbers(version: Any) -> tuple[int, ...]:
        if isinstance(version, tuple | list):
            version = ".".join(map(str, version))  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
        found = re.match(r"\d+(\.\d+)*", str(version))
        numbers = [int(n) for n in found.group().split(".")] if found else []
        while numbers and not numbers[-1]:
            numbers.pop()
        return tuple(numbers)

    def __eq__(self, other: object) -> bool:
        return self._numbers(self) == self._numbers(other)

    def __lt__(self, other: Any) -> bool:
        return self._numbers(self) < self._numbers(other)

    def __le__(self, other: Any) -> bool:
        return self._numbers(self) <= self._numbers(other)

    def __gt__(self, other: Any) -> bool:
        return self._numbers(self) > self._numbers(other)

    def __ge__(self, other: Any) -> bool:
        return self._numbers(self) >= self._numbers(other)

    __hash__ = str.__hash__


TORCH_VERSION = TorchVersion("2.13.0")
"""The release of torch whose names and meaning weft follows."""
