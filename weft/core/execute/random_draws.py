"""Draws of random numbers by thread: counted, written down, and given once more to a function that is run again."""
# Tests: tests/autograd/test_checkpoint_numbers.py

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.errors import ArgumentError
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.core.functions.random import Generator
    from weft.ir.graph import Node

WORD = 1 << 32


@dataclass(slots=True, eq=False)
class Draws:
    """Random numbers that a trace draws from one generator: the placeholder of its state, and how many so far."""

    generator: Generator
    placeholder: Node
    count: int = 0
    left_at: tuple[int, int] = (0, 0)
    """The seed, and the place from which the numbers were drawn when the trace was left."""


@dataclass(frozen=True, slots=True)
class Span:
    """Numbers that were drawn: of the stream of a seed, or of a generator's state in a trace; the first, how many."""

    stream: int | Draws
    start: int
    count: int

    def words(self) -> tuple[int, int, int]:
        """Key and first counter of the numbers. A counter has 32 bits: each 2**32 numbers change the key."""
        seed, start = self.stream, self.start
        if isinstance(seed, Draws):
            seed, start = seed.left_at[0], seed.left_at[1] + start
        epoch, offset = divmod(start, WORD)
        return seed % WORD, (seed // WORD + 0x9E3779B9 * epoch) % WORD, offset


class _Draws(threading.local):
    """A thread's draws, from whatever generator: how many, where they are written down, and what is given again."""

    count = 0
    written: written | None = None
    again: again | None = None


_draws = _Draws()


def draws() -> int:
    """The number of draws that this thread has made so far: what a function draws is what comes to this meanwhile."""
    return _draws.count


def count_draw() -> None:
    """One more draw of this thread."""
    _draws.count += 1


def given_again(count: int, trace: object = None) -> Span | None:
    """The next `count` numbers of the function that this thread runs again; None where it runs none, or traces one that
    is called by it and draws when it runs."""
    now = _draws.again
    return None if now is None or (trace is not None and now.trace is not trace) else now.take(count)


def write_down(span: Span, trace: object = None) -> None:
    """Note what this thread has drawn, if somebody wants to give it again."""
    now = _draws.written
    if now is not None and (trace is None or now.trace is trace):
        now.spans.append(span)


class written:  # noqa: N801  (reads as what it does)
    """Within, what this thread draws is written down, in the list that this gives. `trace` is that in which it does."""

    __slots__ = ("_outer", "spans", "trace")

    def __init__(self, trace: object) -> None:
        self.trace = trace
        self.spans: list[Span] = []

    def __enter__(self) -> list[Span]:
        self._outer, _draws.written = _draws.written, self
        return self.spans

    def __exit__(self, *_: object) -> None:
        _draws.written = self._outer
        if self._outer is not None:
            self._outer.spans.extend(self.spans)


class again:  # noqa: N801  (reads as what it does)
    """Within, this thread draws the numbers of `spans`, from whatever generator; no generator moves. `trace` is that in
    which it does. ArgumentError where it draws others than those."""

    __slots__ = ("_at", "_before", "_spans", "trace")

    def __init__(self, spans: Sequence[Span], trace: object) -> None:
        self._spans, self._at, self.trace = spans, 0, trace

    def __enter__(self) -> None:
        self._before = _draws.again, _draws.written
        _draws.again, _draws.written = self, None

    def __exit__(self, *_: object) -> None:
        _draws.again, _draws.written = self._before

    def take(self, count: int) -> Span:
        """The next `count` numbers: of one span, or of several that follow each other in a stream."""
        first, n = self._at, 0
        while n < count and self._at < len(self._spans):
            span = self._spans[self._at]
            if n and (span.stream, span.start) != (self._spans[first].stream, self._spans[first].start + n):
                break
            n, self._at = n + span.count, self._at + 1
        if n != count or self._at == first:
            raise ArgumentError(
                f"the function of a checkpoint draws {count} random numbers where it drew {n or 'none'} when it was "
                "first run; have it draw the same each time, or pass preserve_rng_state=False"
            )
        return Span(self._spans[first].stream, self._spans[first].start, count)
