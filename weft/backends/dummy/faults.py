"""Faults of a simulated device, for when it is told to fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from random import Random

from weft.lazy_dataclass import dataclass


@dataclass(slots=True)
class Faults:
    """The steps of a device that fail. Numbers count from when the faults are set on it: 0 is the next.

    `allocations`, `launches` and `copies` fail by their number, `slow_copies` are so many times slower than usual. The
    others count steps, which are launches and copies together:

    - `chance`: each fails with this probability; which ones, `seed` decides;
    - `lasting_from`: all fail from this one on, but memory can still be read;
    - `lost_at`: from this one on the device does not answer at all, and its memory is gone.

    All launches take `slower` times as long as usual, give or take a part of up to `noise`, which `seed` decides.

    >>> faults = Faults(launches=frozenset({1}))  # the launch after the next
    """

    allocations: frozenset[int] = frozenset()
    launches: frozenset[int] = frozenset()
    slow_copies: Mapping[int, float] = field(default_factory=dict[int, float])
    copies: frozenset[int] = frozenset()
    chance: float = 0.0
    seed: int = 0
    lasting_from: int | None = None
    lost_at: int | None = None
    slower: float = 1.0
    noise: float = 0.0
    steps: int = field(default=0, init=False)
    _seen: dict[str, int] = field(default_factory=dict[str, int], init=False)
    _random: Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    def allocation_fails(self) -> bool:
        """Count an allocation: whether it is to fail."""
        return self._next("allocation") in self.allocations

    def launch(self) -> str | None:
        """Count a launch: how it fails, if it does."""
        return self._step(self._next("launch") in self.launches)

    def times_slower(self) -> float:
        """The times by which the next launch is slower than usual."""
        return self.slower * (1 + self.noise * self._random.uniform(-1, 1)) if self.noise else self.slower

    def copy(self, reads: bool = False) -> tuple[str | None, float]:
        """Count a copy: how it fails, if it does, and how many times slower than usual it is. `reads`: to the host."""
        number = self._next("copy")
        return self._step(number in self.copies, reads), self.slow_copies.get(number, 1.0)

    @property
    def lost(self) -> bool:
        """True once the step at which the device is lost has been tried."""
        return self.lost_at is not None and self.steps > self.lost_at

    def _step(self, fails: bool, reads: bool = False) -> str | None:
        number = self.steps
        self.steps += 1
        unlucky = self.chance > 0 and self._random.random() < self.chance
        if self.lost_at is not None and number >= self.lost_at:
            return f"failed at step {number}: the device was lost at step {self.lost_at}"
        if fails or unlucky:
            return f"failed, as it was told to, at step {number}"
        if self.lasting_from is not None and number >= self.lasting_from and not reads:
            return f"failed at step {number}, as all do from step {self.lasting_from} on"
        return None

    def _next(self, kind: str) -> int:
        number = self._seen.get(kind, 0)
        self._seen[kind] = number + 1
        return number
