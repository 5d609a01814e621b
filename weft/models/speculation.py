"""Guesses of the tokens to come, of which a model checks several in one step.

A step over k + 1 tokens reads the weights once, as one over a single token does. Each token is chosen from the model's
own logits, as if the guesses before it were right, and those up to the first wrong guess are taken: they are what the
model alone would have chosen. Source: Leviathan et al. 2023, arXiv:2211.17192, with guesses that are not drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from weft.errors import ArgumentError
from weft.models.decoder import Decoder


class Draft:
    """A source of guesses for `generate`: a small model of the same vocabulary, or "lookup", what followed the last
    tokens where they came before. `count`: how many at once.

    Counted as it is used: `steps` of the model for a sequence, and the tokens `proposed` and `accepted` in them; a step
    gives 1 + accepted / steps tokens.

    >>> draft = weft.models.Draft("lookup", 6)
    >>> tokens = list(weft.models.generate(model, [ids], 64, draft=draft))
    >>> draft.accepted / draft.proposed
    """

    def __init__(self, source: Decoder | Literal["lookup"], count: int = 4) -> None:
        if not (isinstance(source, Decoder) or source == "lookup"):  # pyright: ignore[reportUnnecessaryComparison]
            raise ArgumentError(f"Draft: needs a model or 'lookup', got {source!r}")
        if count < 1:
            raise ArgumentError(f"Draft: count must be at least 1, got {count}")
        self.source, self.count = source, count
        self.steps = self.proposed = self.accepted = 0

    def count_up(self, steps: int, proposed: int, accepted: int) -> None:
        """Adds to the counts."""
        self.steps += steps
        self.proposed += proposed
        self.accepted += accepted

    def __repr__(self) -> str:
        source = self.source if isinstance(self.source, str) else type(self.source).__name__
        return f"Draft({source}, {self.count}): {self.accepted} of {self.proposed} accepted in {self.steps} steps"


class Lookup:
    """Guesses by what followed the last tokens of a sequence where they came before, the longest run first.

    Source: prompt lookup decoding, github.com/apoorvumang/prompt-lookup-decoding, 2023.
    """

    longest = 3
    """Tokens of the runs that are looked up, at most."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens = list(prompt)
        self._fixed = len(prompt)
        self._ends: dict[tuple[int, ...], int] = {}
        self._known = 0
        self._learn()

    def extend(self, made: Sequence[int]) -> None:
        """The tokens after the prompt, all of them."""
        self._tokens += made[len(self._tokens) - self._fixed :]
        self._learn()

    def next(self, count: int) -> list[int]:
        """At most `count` tokens that may come now; none where nothing was found."""
        for n in range(min(self.longest, len(self._tokens) - 1), 0, -1):
            end = self._ends.get(tuple(self._tokens[-n:]))
            if end is not None:
                return self._tokens[end : end + count]
        return []

    def _learn(self) -> None:
        """Notes where each run that a token follows ended last."""
        for end in range(max(self._known, 1), len(self._tokens)):
            for n in range(1, min(self.longest, end) + 1):
                self._ends[tuple(self._tokens[end - n : end])] = end
        self._known = len(self._tokens)
