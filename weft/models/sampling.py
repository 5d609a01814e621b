"""The choice of the next token from logits."""

from __future__ import annotations

import math

import weft
from weft import Tensor
from weft.errors import ArgumentError
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Sampling:
    """A way to draw the next token; by default the likeliest one is taken.

    `temperature`: logits are divided by it; 0 takes the likeliest. `top_k`: only the k likeliest (0: all). `top_p`:
    the fewest that together have this probability (Holtzman et al. 2020, arXiv:1904.09751). `min_p`: those with at
    least this share of the likeliest's (Nguyen et al. 2024, arXiv:2407.01082). `repetition_penalty`: the logits of
    tokens that were there before are divided by it where they are positive, else multiplied (Keskar et al. 2019,
    arXiv:1909.05858). All in this order, but for the penalty, which comes first. Of equal logits at a border all stay.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        ok = {
            "temperature": self.temperature >= 0 and math.isfinite(self.temperature),
            "top_k": self.top_k >= 0,
            "top_p": 0 < self.top_p <= 1,
            "min_p": 0 <= self.min_p <= 1,
            "repetition_penalty": self.repetition_penalty > 0 and math.isfinite(self.repetition_penalty),
        }
        for name, fine in ok.items():
            if not fine:
                raise ArgumentError(f"Sampling: {name}={getattr(self, name)!r} is out of its range")

    @property
    def is_greedy(self) -> bool:
        """True where nothing is drawn."""
        return self.temperature == 0

    def logits(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        """The logits that tokens are drawn by: x, (b, v), with those that cannot come at -infinity. `seen`, (b, v):
        tokens that were there before."""
        if seen is not None and self.repetition_penalty != 1:
            p = self.repetition_penalty
            x = weft.where(seen, weft.where(x > 0, x / p, x * p), x)
        if self.is_greedy:
            return x
        x = x / self.temperature
        size = x.shape[-1]
        if self.top_k and not (isinstance(size, int) and size <= self.top_k):
            x = _least(x, weft.topk(x, self.top_k, -1).values[:, -1:])
        if self.top_p < 1:
            falling = weft.sort(x, -1, descending=True).values
            share = falling.softmax(-1)
            before = share.cumsum(-1) - share
            x = _least(x, weft.where(before < self.top_p, falling, math.inf).amin(-1, keepdim=True))
        if self.min_p > 0:
            x = _least(x, x.amax(-1, keepdim=True) + math.log(self.min_p))
        return x

    def next(self, x: Tensor, seen: Tensor | None = None, generator: weft.Generator | None = None) -> Tensor:
        """The next token of each sequence: logits (b, v) -> (b, 1)."""
        x = self.logits(x.float(), seen)
        if not self.is_greedy:
            # the largest of logits with Gumbel noise is a draw by their softmax
            x = x - (-weft.rand(x.shape, generator=generator, device=x.device).log()).log()
        return x.argmax(-1, keepdim=True)


def _least(x: Tensor, least: Tensor) -> Tensor:
    return weft.where(x < least, -math.inf, x)
