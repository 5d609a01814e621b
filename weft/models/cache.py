"""Keys and values of the tokens that were computed before, and where new ones stand.

All is state on the device, the number of tokens too: one compiled step serves every position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import weft
from weft import Tensor
from weft.errors import ArgumentError, ShapeError


@dataclass(frozen=True)
class Positions:
    """The places of tokens: `at`, (b or 1, t), in their sequences; `slots`, (t,), among the `count` places of keys.

    `first`, (b, 1): the place of each sequence's first token, where sequences begin at different places. `whole`: the
    tokens are all that there are, in order.
    """

    at: Tensor
    slots: Tensor
    count: int
    first: Tensor | None = None
    whole: bool = False

    @classmethod
    def of(cls, ids: Tensor, first: Tensor | None = None) -> Positions:
        """Positions of whole sequences (b, t)."""
        count = tokens(ids)
        slots = weft.arange(count, device=ids.device)
        return cls(_from(slots, first), slots, count, first, True)

    def mask(self, window: int | None = None) -> Tensor | None:
        """True where a token sees a place: (b or 1, 1, t, count). None: each sees those up to its own."""
        if window is not None and window >= self.count:
            window = None
        if self.whole and self.first is None and window is None:
            return None
        places = weft.arange(self.count, device=self.slots.device)
        behind = self.slots[:, None] - places
        seen = behind >= 0
        if window is not None:
            seen = seen & (behind < window)
        seen = seen[None, None]
        # a place before its sequence sees itself, so that nothing sees nothing
        return seen if self.first is None else seen & ((places >= self.first[:, None, None]) | (behind == 0))


def tokens(ids: Tensor) -> int:
    """The number of tokens of each sequence, (b, t); ShapeError where it is not known."""
    shape = tuple(ids.shape)
    if len(shape) != 2 or not isinstance(shape[1], int) or not shape[1]:
        raise ShapeError(f"ids: needs shape (batch, tokens), of a known number of tokens, got {shape}")
    return shape[1]


def _from(slots: Tensor, first: Tensor | None) -> Tensor:
    return slots[None] if first is None else (slots - first).clamp(min=0)


class Cache:
    """Room for the keys and values of `size` tokens of `batch` sequences in each layer.

    `heads`, `features`: of the keys of each layer. `first`: how many places before each sequence are padding.

    >>> cache = weft.models.Cache.of(model, batch=1, size=256)
    >>> logits = model(prompt, cache=cache)
    >>> logits = model(next_ids, cache=cache)      # sees the prompt
    """

    def __init__(
        self,
        layers: int,
        batch: int,
        heads: int,
        size: int,
        features: int,
        *,
        dtype: weft.DType = weft.float32,
        device: str | None = None,
        first: Sequence[int] | None = None,
    ) -> None:
        def empty() -> Tensor:
            return weft.zeros(batch, heads, size, features, dtype=dtype, device=device).realize()

        self.size = size
        self.keys = [empty() for _ in range(layers)]
        self.values = [empty() for _ in range(layers)]
        self.length = weft.zeros((), dtype=weft.int64, device=device).realize()
        self.first: Tensor | None = None
        if first is not None and any(first):
            self.first = weft.tensor(list(first), device=device)[:, None].realize()

    def positions(self, ids: Tensor) -> Positions:
        """Positions of further tokens (b, t)."""
        count = tokens(ids)
        if count > self.size:
            raise ArgumentError(f"Cache: {count} tokens do not fit into room for {self.size}")
        slots = self.length + weft.arange(count, device=ids.device)
        return Positions(_from(slots, self.first), slots, self.size, self.first)

    def add(self, layer: int, key: Tensor, value: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer with those of new tokens, (b, h, t, e), at their slots."""
        self.keys[layer].index_copy_(2, slots, key)
        self.values[layer].index_copy_(2, slots, value)
        return self.keys[layer], self.values[layer]

    def advance(self, count: int) -> None:
        """Let the next tokens come behind these."""
        self.length.add_(count)
