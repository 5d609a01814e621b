"""Faults of a simulated device, for when it is told to fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Faults:
    """The allocations and launches that fail, and the copies that are so many times slower than usual.

    Numbers count from when the faults are set on a device: 0 is the next.

    >>> faults = Faults(launches=frozenset({1}))  # the launch after the next
    """

    allocations: frozenset[int] = frozenset()
    launches: frozenset[int] = frozenset()
    slow_copies: Mapping[int, float] = field(default_factory=dict[int, float])
    _seen: dict[str, int] = field(default_factory=dict[str, int], init=False)

    def allocation_fails(self) -> bool:
        """Count an allocation: whether it is to fail."""
        return self._next("allocation") in self.allocations

    def launch_fails(self) -> bool:
        """Count a launch: whether it is to fail."""
        return self._next("launch") in self.launches

    def slowdown(self) -> float:
        """Count a copy: how many times slower than usual it is."""
        return self.slow_copies.get(self._next("copy"), 1.0)

    def _next(self, kind: str) -> int:
        number = self._seen.get(kind, 0)
        self._seen[kind] = number + 1
        return number
