"""The choice of one sequence's next token on the host, by draws of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.errors import ArgumentError
from weft.lazy_dataclass import dataclass
from weft.models.sampling import Sampling

Array = np.ndarray[Any, Any]


class Draws:
    """The tokens of one sequence, drawn by `sampling` with the seed's own random numbers.

    `frequency`, `presence`: subtracted from the logit of a token for each time it was made, and once if it was. `bias`:
    added to the logits of tokens. ArgumentError for numbers that are not finite.
    """

    def __init__(
        self,
        sampling: Sampling | None = None,
        seed: int = 0,
        *,
        frequency: float = 0.0,
        presence: float = 0.0,
        bias: Mapping[int, float] | None = None,
    ) -> None:
        self.sampling = sampling or Sampling()
        self.frequency, self.presence, self.bias = frequency, presence, dict(bias or {})
        if not all(math.isfinite(x) for x in (frequency, presence, *self.bias.values())):
            raise ArgumentError("Draws: frequency, presence and bias must be finite")
        self._random = np.random.Generator(np.random.Philox(seed))

    @property
    def is_plain(self) -> bool:
        """True where the token is the one with the largest logit."""
        other = self.frequency or self.presence or self.bias or self.sampling.repetition_penalty != 1
        return self.sampling.is_greedy and not other

    def next(self, logits: Array, prompt: Sequence[int], made: Sequence[int]) -> int:
        """The next token, by the logits (v,) behind a prompt and what was made."""
        x = self.logits(logits, prompt, made)
        if self.sampling.is_greedy:
            return int(np.argmax(x))
        share = np.cumsum(np.exp(np.subtract(x, np.max(x)), dtype=np.float64))
        return int(np.count_nonzero(share <= self._random.random() * share[-1]))

    def logits(self, logits: Array, prompt: Sequence[int], made: Sequence[int]) -> Array:
        """The logits that a token is drawn by, as `Sampling.logits` has them, with those that cannot come at
        -infinity."""
        how = self.sampling
        x = logits.astype(np.float32)
        for token, more in self.bias.items():
            x[token] += more
        if how.repetition_penalty != 1:
            seen = np.unique([*prompt, *made])
            x[seen] = np.where(
                x[seen] > 0, x[seen] / how.repetition_penalty, x[seen] * how.repetition_penalty
            )
        if made and (self.frequency or self.presence):
            tokens, counts = np.unique(made, return_counts=True)
            x[tokens] -= (self.frequency * counts + self.presence).astype(np.float32)
        if how.is_greedy:
            return x
        x /= np.float32(how.temperature)
        if 0 < how.top_k < len(x):
            x[x < np.partition(x, -how.top_k)[-how.top_k]] = -np.inf
        if how.top_p < 1:
            falling = np.sort(x)[::-1]
            share = np.exp(falling - falling[0])
            share /= share.sum()
            x[x < falling[np.cumsum(share) - share < how.top_p].min()] = -np.inf
        if how.min_p > 0:
            x[x < x.max() + np.float32(math.log(how.min_p))] = -np.inf
        return x


@dataclass(frozen=True)
class Likelihood:
    """The logarithm of a token's probability, and the likeliest tokens with theirs."""

    chosen: float
    top: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, logits: Array, token: int, count: int) -> Likelihood:
        """By the logits (v,), with the `count` likeliest."""
        x = logits.astype(np.float64)
        x -= x.max()
        x -= math.log(np.exp(x).sum())
        count = min(count, len(x))
        top = np.argpartition(x, -count)[-count:] if count else np.empty(0, int)
        top = top[np.argsort(-x[top], kind="stable")]
        return cls(float(x[token]), tuple((int(k), float(x[k])) for k in top))
