"""Texts in a row, each with its length in front, as GGUF files have them: vocabularies hold a quarter of a million.

    length (8 bytes)  text  length  text ...

Their ends are found a window at a time: a short text has a byte that is not zero and seven zeros in front. Each length
has to say where the next one is; where that does not hold, or a text is long, they are followed one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, TypeAlias

import numpy as np

Places: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""Whole numbers: places in bytes, or sizes."""

HEADER = 8
_LENGTH = Struct("<Q")
_WINDOW_BYTES = 1 << 17
"""A window, in which ends are looked for at once: some thousand texts."""
_FEW = 256
"""Fewer texts of a window than this are not worth looking for: so many are followed next, and twice as many then."""
_TEXTS_CHECKED_AT_ONCE = 1 << 14


class Texts:
    """Texts by number; each is made when it is asked for. UnicodeDecodeError for one that is no UTF-8."""

    __slots__ = ("data", "ends")

    def __init__(self, data: bytes | memoryview, ends: Places) -> None:
        self.data, self.ends = data, ends.astype(np.uint32) if len(data) < 1 << 32 else ends

    def raw(self, k: int) -> bytes:
        """The bytes of text `k`, which has to be there."""
        return bytes(self.data[(int(self.ends[k - 1]) if k else 0) + HEADER : int(self.ends[k])])

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, k: int) -> str:
        return self.raw(k).decode()

    def __iter__(self) -> Iterator[str]:
        data, begin = self.data, HEADER
        for end in self.ends.tolist():
            yield str(data[begin:end], "utf-8")
            begin = end + HEADER

    def starts(self) -> Places:
        """The places in `data` where texts begin."""
        found = np.full(len(self.ends), HEADER, np.int64)
        found[1:] += self.ends[:-1]
        return found

    def check(self) -> None:
        """UnicodeDecodeError unless all are UTF-8, whole texts of it each."""
        for first in range(0, len(self.ends), _TEXTS_CHECKED_AT_ONCE):
            ends = self.ends[first : first + _TEXTS_CHECKED_AT_ONCE]
            begin = int(self.ends[first - 1]) if first else 0
            part = np.frombuffer(self.data[begin : int(ends[-1])], np.uint8).copy()
            heads = np.zeros(len(ends), np.int64)
            heads[1:] = ends[:-1] - ends.dtype.type(begin)
            for k in range(HEADER):  # zeros, which no character goes on in
                part[heads + k] = 0
            str(part.data, "utf-8")


def ends_of(data: memoryview, count: int) -> Places | None:
    """The ends of `count` texts, of a row that begins with `data`; None where one would go beyond it."""
    found: list[Places] = []
    at, left, next_few = 0, count, _FEW
    while left:
        ends = _found(data[at : at + _WINDOW_BYTES])[:left] + at if left >= _FEW else np.zeros(0, np.int64)
        if len(ends) < _FEW:
            begin = int(ends[-1]) if len(ends) else at
            more = _followed(data, begin, min(left - len(ends), next_few))
            if more is None:
                return None
            ends, next_few = np.concatenate([ends, more]), 2 * next_few
        else:
            next_few = _FEW
        found.append(ends)
        at, left = int(ends[-1]), left - len(ends)
        if at > len(data):
            return None
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _found(window: memoryview) -> Places:
    """The ends of the first texts in a row, as many of them as are short, one behind the other."""
    values = np.frombuffer(window, np.uint8)
    if len(values) < HEADER:
        return np.zeros(0, np.int64)
    zero = values == 0
    two = zero[:-1] & zero[1:]
    four = two[:-2] & two[2:]
    seven = four[:-3] & four[3:]
    (starts,) = np.nonzero(seven[1:] & ~zero[: len(seven) - 1])
    ends = starts + HEADER + values[starts]
    if not len(starts) or starts[0]:
        return np.zeros(0, np.int64)
    (wrong,) = np.nonzero(starts[1:] != ends[:-1])
    return ends[: wrong[0] + 1 if len(wrong) else len(ends)]


def _followed(data: memoryview, at: int, count: int) -> Places | None:
    """The ends of so many texts from `at` on, each read where the one before it ends."""
    size, length_at, ends = len(data), _LENGTH.unpack_from, list[int]()
    for _ in range(count):
        begin = at + HEADER
        if begin > size or (at := begin + length_at(data, at)[0]) > size:
            return None
        ends.append(at)
    return np.array(ends, np.int64)
