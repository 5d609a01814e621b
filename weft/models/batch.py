"""One running batch that sequences join and leave: continuous batching.

The rows of one cache belong to sequences while these last. A step takes at most one chunk of one new prompt, and
then one token of every row that has its prompt behind it, by one compiled plan for all rows and positions, or, for a
row that is alone (or few, where `warm` found that faster), by one for any row. Rows do not read each other, and the
chunks of a prompt do not depend on what else runs: neither do a sequence's tokens, but for two logits that differ by
rounding (no bit in the mode "same").
Source: Yu et al. 2022, Orca (OSDI); prompts in chunks: Agrawal et al. 2023, arXiv:2308.16369.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from enum import Enum
from itertools import count

import numpy as np

import weft
from weft import Tensor
from weft.errors import ArgumentError
from weft.lazy_dataclass import dataclass
from weft.models.decoder import Decoder
from weft.models.draw import Array, Draws, Likelihood
from weft.models.generate import checked

_LEAST_CHUNK = 16
_LEAST_SEEN = 256
"""Chunks, and the places that a step reads, come in these sizes times powers of two: each has a plan."""

_CLEARLY = 1.25
"""Rows go one after the other where that takes less by this factor: what is measured varies."""


class End(Enum):
    """The reason why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    FAILED = "failed"
    """Its logits were not finite."""


@dataclass(eq=False)
class Writing:
    """A sequence that a batch writes on: `limit` tokens at most after a prompt, or up to a token of `ends`.

    `likeliest`: how many tokens' likelihoods come with each token; None for none. `made`: its tokens so far.
    """

    prompt: Sequence[int]
    limit: int
    draws: Draws = field(default_factory=Draws)
    ends: frozenset[int] = frozenset()
    likeliest: int | None = None
    made: list[int] = field(default_factory=list[int])
    end: End | None = None


@dataclass(frozen=True)
class Made:
    """A sequence's next token, None where it failed."""

    writing: Writing
    token: int | None
    likelihood: Likelihood | None = None


class Batch:
    """At most `rows` sequences of a model at once, each of at most `size` tokens with its prompt; others wait.

    `chunk`: how many tokens of a prompt go through at once, between two tokens of the other rows. Not for several
    threads.

    >>> batch = weft.models.Batch(model, rows=8)
    >>> batch.add(weft.models.Writing([2, 818, 5279], limit=32))
    >>> while batch.is_busy:
    ...     for made in batch.step():
    ...         print(made.token)
    """

    def __init__(self, model: Decoder, rows: int = 8, size: int = 1024, chunk: int = 128) -> None:
        if rows < 1 or size < 2 or chunk < 1:
            raise ArgumentError(
                f"Batch: rows={rows}, size={size} and chunk={chunk} must be at least 1, 2 and 1"
            )
        self.model, self.size = model, min(size, model.longest)
        self._device = str(next(model.parameters()).device)
        self._cache = model.cache(rows, self.size)
        self._chunks = _doubled(_LEAST_CHUNK, min(chunk, self.size))
        self._seen = _doubled(_LEAST_SEEN, self.size)
        self._waiting: deque[Writing] = deque()
        self._rows: list[_Row | None] = [None] * rows
        self._numbers = count()
        self._alone = 1  # how many rows go faster one after the other than in a step of all
        self._decode = weft.compile(self._next, dynamic=False)
        self._prefill = weft.compile(self._chunk, dynamic=False)

    @property
    def is_busy(self) -> bool:
        """True where there is something to do."""
        return bool(self._waiting) or any(self._rows)

    @property
    def rows(self) -> int:
        """The number of sequences that can run at once."""
        return len(self._rows)

    @property
    def waiting(self) -> int:
        """The number of sequences that wait for a row."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """The number of sequences that have a row."""
        return sum(row is not None for row in self._rows)

    def check(self, prompt: Sequence[int], limit: int) -> None:
        """ArgumentError for a sequence that cannot be written here."""
        longest = checked(self.model, [prompt], limit)
        if longest + limit > self.size:
            raise ArgumentError(
                f"Batch: {longest} tokens and {limit} more are beyond a row's room for {self.size}"
            )

    def add(self, writing: Writing) -> None:
        """Lets a sequence join as soon as there is a row for it."""
        self.check(writing.prompt, writing.limit)
        self._waiting.append(writing)

    def drop(self, writing: Writing) -> None:
        """Ends a sequence now; its row is free."""
        if writing in self._waiting:
            self._waiting.remove(writing)
        for k, row in enumerate(self._rows):
            if row is not None and row.writing is writing:
                self._rows[k] = None

    def warm(self) -> None:
        """Makes the plans that sequences will need, which takes a while the first time, and measures what a step of all
        rows takes beside one of a single row."""
        with weft.no_grad():
            none = self._tensor([0])
            for seen in self._seen:
                every = self._tensor([0] * self.rows), self._tensor([self.size] * self.rows), seen, None
                one = none, self._tensor([self.size]), seen, none
                ratio = _seconds(lambda x=every: self._decode(*x)) / _seconds(lambda x=one: self._decode(*x))
                self._alone = max(1, min(self.rows, int(ratio / _CLEARLY)))
                for width in self._chunks:
                    ids = weft.zeros(1, width, dtype=weft.int64, device=self._device).realize()
                    for last in (True, False) if width == self._chunks[-1] else (True,):
                        found = self._prefill(ids, none, none, none, seen, last)
                        if found is not None:
                            found.realize()

    @weft.no_grad()
    def step(self) -> list[Made]:
        """A chunk of a prompt, and a token of each sequence that is behind its own: what was made."""
        for k, row in enumerate(self._rows):
            if row is None and self._waiting:
                self._rows[k] = _Row(self._waiting.popleft(), k, next(self._numbers))
        news = [row for row in self._rows if row is not None and not row.writing.made]
        made = self._next_chunk(min(news, key=lambda row: row.since)) if news else []
        going = [row for row in self._rows if row is not None and row.writing.made]
        return made + self._next_tokens(going) if going else made

    def _next_chunk(self, row: _Row) -> list[Made]:
        prompt = row.writing.prompt
        part = prompt[row.done : row.done + self._chunks[-1]]
        width = next(w for w in self._chunks if w >= len(part))
        last = row.done + len(part) == len(prompt)
        filled = np.zeros((1, width), np.int64)
        filled[0, : len(part)] = part
        found = self._prefill(
            self._tensor(filled),
            self._tensor([row.number]),
            self._tensor([row.done]),
            self._tensor([len(part)]),
            self._places(row.done + len(part)),
            last,
        )
        row.done += len(part)
        if found is None:
            return []
        logits = found.numpy()[0]
        return [self._take(row, int(logits.argmax()), float(logits.max()), logits)]

    def _next_tokens(self, going: list[_Row]) -> list[Made]:
        seen = self._places(max(row.done for row in going) + 1)
        if len(going) > self._alone:
            return self._taken(going, self._of_all(going, seen))
        return [made for row in going for made in self._taken([row], self._of_one(row, seen))]

    def _taken(self, going: list[_Row], found: tuple[Tensor, Tensor, Tensor]) -> list[Made]:
        """The tokens of rows, from what a step of these, or of all, gave."""
        chosen, top = found[0].tolist(), found[1].tolist()
        needed = any(not r.writing.draws.is_plain or r.writing.likeliest is not None for r in going)
        values = found[2].numpy() if needed else None
        made: list[Made] = []
        for row in going:
            k = 0 if len(chosen) == 1 else row.number
            row.done += 1
            made.append(self._take(row, chosen[k], top[k], None if values is None else values[k]))
        return made

    def _of_one(self, row: _Row, seen: int) -> tuple[Tensor, Tensor, Tensor]:
        """A step of one row."""
        last, number, done = ([n] for n in (row.writing.made[-1], row.number, row.done))
        return self._decode(self._tensor(last), self._tensor(done), seen, self._tensor(number))

    def _of_all(self, going: list[_Row], seen: int) -> tuple[Tensor, Tensor, Tensor]:
        """A step of all rows."""
        ids, lengths = [0] * self.rows, [self.size] * self.rows  # those beyond the size are not kept
        for row in going:
            ids[row.number], lengths[row.number] = row.writing.made[-1], row.done
        return self._decode(self._tensor(ids), self._tensor(lengths), seen, None)

    def _tensor(self, values: Array | list[int]) -> Tensor:
        return weft.tensor(values, device=self._device)

    def _take(self, row: _Row, token: int, best: float, logits: Array | None) -> Made:
        writing = row.writing
        if not math.isfinite(best):
            return self._failed(row)
        likelihood = None
        if logits is not None:
            if not writing.draws.is_plain:
                token = writing.draws.next(logits, writing.prompt, writing.made)
            if writing.likeliest is not None:
                likelihood = Likelihood.of(logits, token, writing.likeliest)
        writing.made.append(token)
        if token in writing.ends:
            writing.end = End.STOP
        elif len(writing.made) == writing.limit:
            writing.end = End.LENGTH
        if writing.end is not None:
            self._rows[row.number] = None
        return Made(writing, token, likelihood)

    def _failed(self, row: _Row) -> Made:
        """The row is cleared, since 0 times what is not finite is not 0."""
        row.writing.end = End.FAILED
        self._rows[row.number] = None
        self._cache.clear(row.number)
        return Made(row.writing, None)

    def _places(self, tokens: int) -> int:
        return next(n for n in self._seen if n >= tokens)

    def _next(
        self, ids: Tensor, lengths: Tensor, seen: int, rows: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        part = self._cache.part(lengths, rows, seen)
        logits = self.model(ids[:, None], part, last=True)[:, 0].float()
        return logits.argmax(-1), logits.amax(-1), logits

    def _chunk(
        self, ids: Tensor, row: Tensor, length: Tensor, counts: Tensor, seen: int, last: bool
    ) -> Tensor | None:
        logits = self.model(ids, self._cache.part(length, row, seen), counts, last=True)
        return logits[:, 0].float() if last else None


@dataclass(eq=False)
class _Row:
    """A sequence, the row that it has, since which count, and how many of its tokens are in the cache."""

    writing: Writing
    number: int
    since: int
    done: int = 0


def _doubled(least: int, most: int) -> list[int]:
    """Sizes that double up to the most."""
    found = [min(least, most)]
    while found[-1] < most:
        found.append(min(2 * found[-1], most))
    return found


def _seconds(run: Callable[[], tuple[Tensor, ...]]) -> float:
    """The least time of three runs, after one that makes what is missing."""
    times: list[float] = []
    for _ in range(4):
        begin = time.perf_counter()
        for x in run():
            x.realize()
        times.append(time.perf_counter() - begin)
    return min(times[1:])
