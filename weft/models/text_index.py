"""Numbers of texts by their bytes: 8 bytes a text, where a dict of strings takes 150, and a microsecond to find one.

Texts are ordered by the rest of their first bytes, as one number, by a prime; what is found there is compared.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, TypeAlias, cast

import numpy as np

from weft.io.texts import Places, Texts

Rests: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

_PRIME = (1 << 31) - 19
_LONGEST = 64
"""Bytes that the rest is of."""
_AT_ONCE = 1 << 11
"""Texts that are looked at together: what is computed of them stays in a cache."""
_POWERS = np.array([pow(256, k, _PRIME) for k in range(_LONGEST)], np.int64)


class TextIndex:
    """The numbers of texts in a row of them."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        starts = texts.starts()
        rests = rests_of(np.frombuffer(texts.data, np.uint8), starts, texts.ends - starts)
        self._order = np.argsort(rests).astype(np.int32)
        self._rests = rests[self._order]
        self._known = memoryview(cast("Any", self._rests))

    def find(self, text: bytes) -> int:
        """The number of a text, the last one where it is there several times; -1 where it is not there."""
        rest, known, found = int.from_bytes(text[:_LONGEST], "big") % _PRIME, self._known, -1
        at = bisect_left(known, rest)
        while at < len(known) and known[at] == rest:
            k = int(self._order[at])
            if k > found and self._texts.raw(k) == text:
                found = k
            at += 1
        return found

    def may_have(self, rests: Rests) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """For each rest, false where no text has it."""
        if not len(self._rests):
            return np.zeros(len(rests), bool)
        order = np.argsort(rests)  # what is looked for in order is looked for in few places at a time
        wanted, found = rests[order], np.empty(len(rests), bool)
        at = np.searchsorted(self._rests, wanted)
        found[order] = self._rests[np.minimum(at, len(self._rests) - 1)] == wanted
        return found

    def is_unique(self) -> bool:
        """True if no text is there twice."""
        (same,) = np.nonzero(self._rests[1:] == self._rests[:-1])
        numbers: set[int] = {k for at in same.tolist() for k in self._order[at : at + 2].tolist()}
        return len({self._texts.raw(k) for k in numbers}) == len(numbers)


def rests_of(data: Bytes, starts: Places, sizes: Places) -> Rests:
    """The rest of each part of `data`, by which it is found."""
    found = np.zeros(len(starts), np.uint32)
    for first in range(0, len(starts), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        found[some] = _some_rests(data, starts[some], np.minimum(sizes[some], _LONGEST))
    return found


def _some_rests(data: Bytes, starts: Places, sizes: Places) -> Rests:
    """The rests of parts that are no longer than is looked at: byte k of n counts 256 ** (n - 1 - k)."""
    found = np.zeros(len(starts), np.int64)
    (some,) = np.nonzero(sizes)
    if len(some):
        ends = np.cumsum(sizes[some])
        order: Places = np.arange(int(ends[-1]))
        behind: Places = np.repeat(ends, sizes[some]) - order - 1  # bytes behind each
        places: Places = order + np.repeat(starts[some] + sizes[some] - ends, sizes[some])
        terms = data[places] * _POWERS[behind]
        found[some] = np.add.reduceat(terms, ends - sizes[some]) % _PRIME
    return found.astype(np.uint32)
