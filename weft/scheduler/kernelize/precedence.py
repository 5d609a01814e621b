"""Precedence of groups: an acyclic relation that grows as groups read what others store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weft.scheduler.kernelize.groups import Group

SEARCH_LIMIT = 4096
"""Groups visited at most by one search for a path; beyond it a path is presumed."""


class Precedence:
    """Producers and consumers of each group. A group's level is above the levels of all its consumers."""

    def __init__(self) -> None:
        self._consumers: dict[Group, dict[Group, None]] = {}
        self._producers: dict[Group, dict[Group, None]] = {}
        self._level: dict[Group, int] = {}

    def consumers(self, group: Group) -> Mapping[Group, None]:
        """The groups that read what `group` stores."""
        return self._consumers.get(group, {})

    def add(self, producer: Group, consumers: Iterable[Group]) -> None:
        """Record that `consumers` read what `producer` stores."""
        below = self._consumers.setdefault(producer, {})
        lowest = 0
        for g in consumers:
            below[g] = None
            self._producers.setdefault(g, {})[producer] = None
            lowest = max(lowest, self._level.get(g, 0) + 1)
        stack: list[tuple[Group, int]] = [(producer, lowest)]
        while stack:
            g, level = stack.pop()
            if self._level.get(g, 0) < level:
                self._level[g] = level
                stack.extend((p, level + 1) for p in self._producers.get(g, ()))

    def reaches(self, producer: Group, consumer: Group, limit: int = SEARCH_LIMIT) -> bool:
        """True where `consumer` reads, directly or not, what `producer` stores, and where that is hard to tell.

        Searched from the consumer backwards, where few producers are known yet, and up to the producer's level only:
        the producers of a group that is as high are higher.
        """
        top = self._level.get(producer, 0)
        if consumer is not producer and self._level.get(consumer, 0) >= top:
            return False
        seen = {consumer}
        stack = [consumer]
        while stack:
            g = stack.pop()
            if g is producer:
                return True
            limit -= 1
            if limit < 0:
                return True
            for p in self._producers.get(g, ()):
                if self._level.get(p, 0) <= top and p not in seen:
                    seen.add(p)
                    stack.append(p)
        return False
