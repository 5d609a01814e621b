"""Pairs of neighbours joined, again and again, as byte pair encoding does: of all pairs the one that comes first.

    l o w e r     ->  lo w e r  ->  low e r  ->  low er        with the pairs (l, o), (lo, w), (e, r), in this order

Source: Sennrich et al. 2016, arXiv:1508.07909.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any, TypeAlias

Found: TypeAlias = tuple[Any, int]
"""The turn at which a pair is joined, as something that can be compared, and the token that it makes."""

PAIRS_KEPT = 1 << 16
"""Pairs that are remembered, some 150 bytes each; then all are forgotten."""
WORDS_KEPT = 1 << 13
"""Words that are remembered."""
_LONGEST_WORD = 32


class Joiner:
    """Joins ids by a function that tells of two in a row what they make."""

    def __init__(self, pair: Callable[[int, int], Found | None]) -> None:
        self._pair = pair
        self._pairs: dict[tuple[int, int], Found | None] = {}
        self._words: dict[tuple[int, ...], list[int]] = {}

    def joined(self, ids: tuple[int, ...]) -> list[int]:
        """The ids that are left when no pair makes a token any more."""
        known = self._words.get(ids)
        if known is not None:
            return known
        found = self._joined(list(ids)) if len(ids) > 1 else list(ids)
        if len(ids) <= _LONGEST_WORD:
            if len(self._words) >= WORDS_KEPT:
                self._words.clear()
            self._words[ids] = found
        return found

    def _joined(self, ids: list[int]) -> list[int]:
        after, before = [*range(1, len(ids)), -1], list(range(-1, len(ids) - 1))
        found = [self._known(*pair) for pair in pairwise(ids)]
        waiting = [(pair[0], at, pair[1]) for at, pair in enumerate(found) if pair is not None]
        heapify(waiting)
        while waiting:
            _, at, made = heappop(waiting)
            right = after[at]
            if ids[at] < 0 or right < 0:
                continue
            now = self._known(ids[at], ids[right])
            if now is None or now[1] != made:  # one of them was joined with another
                continue
            ids[at], ids[right] = made, -1
            end = after[at] = after[right]
            if end >= 0:
                before[end] = at
            for left, one in ((before[at], at), (at, end)):
                pair = self._known(ids[left], ids[one]) if left >= 0 and one >= 0 else None
                if pair is not None:
                    heappush(waiting, (pair[0], left, pair[1]))
        return [i for i in ids if i >= 0]

    def _known(self, left: int, right: int) -> Found | None:
        pairs, pair = self._pairs, (left, right)
        if pair in pairs:
            return pairs[pair]
        if len(pairs) >= PAIRS_KEPT:
            pairs.clear()
        found = pairs[pair] = self._pair(left, right)
        return found
