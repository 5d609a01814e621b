"""Keys and values of the tokens that were computed before, and where new ones stand.

All is state on the device, the number of tokens of each sequence too: one compiled step serves every position.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import field
from typing import Any, TypeVar

import weft
from weft import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.lazy_dataclass import dataclass

R = TypeVar("R")


@dataclass(frozen=True)
class Positions:
    """The positions `at` of tokens in their sequences, (b or 1, t), among `count` places of keys that they may see.

    `whole`: the tokens are all that there are of each sequence, in order. `places`: where in a cache their keys go,
    (b * t,), of all of its rows in one; beyond the last for tokens that are none.
    """

    at: Tensor
    count: int
    whole: bool = False
    places: Tensor | None = None
    shared: dict[Any, Any] = field(default_factory=dict[Any, Any], compare=False, repr=False)
    """Values that layers compute of the positions alone, by what they are."""

    def once(self, what: Any, make: Callable[[], R]) -> R:
        """`make()`, of the first layer that asks: it is the same in all of them."""
        if what not in self.shared:
            self.shared[what] = make()
        return self.shared[what]

    @classmethod
    def of(cls, ids: Tensor) -> Positions:
        """Positions of whole sequences (b, t)."""
        count = tokens(ids)
        return cls(weft.arange(count, device=ids.device)[None], count, True)

    def mask(self, window: int | None = None) -> Tensor | None:
        """True where a token sees a place: (b or 1, 1, t, count). None: each sees those up to its own."""
        if window is not None and window >= self.count:
            window = None
        if self.whole and window is None:
            return None
        behind = self.at[:, :, None] - weft.arange(self.count, device=self.at.device)
        seen = behind >= 0
        if window is not None:
            seen = seen & (behind < window)
        return seen[:, None]


def tokens(ids: Tensor) -> int:
    """The number of tokens of each sequence, (b, t); ShapeError where it is not known."""
    shape = tuple(ids.shape)
    if len(shape) != 2 or not isinstance(shape[1], int) or not shape[1]:
        raise ShapeError(f"ids: needs shape (batch, tokens), of a known number of tokens, got {shape}")
    return shape[1]


class Cache:
    """Room for the keys and values of `size` tokens of `batch` sequences in each layer.

    `heads`, `features`: of the keys of each layer. `dtype`: of what is kept; keys and values are rounded to it, and
    widened where they are read. `length`, (batch,): how many tokens of each sequence are there; with fewer, those
    behind are forgotten.

    >>> cache = model.cache(batch=1, size=256)
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
    ) -> None:
        def empty() -> Tensor:
            return weft.zeros(heads, batch * size, features, dtype=dtype, device=device).realize()

        self.batch, self.size = batch, size
        self.keys = [empty() for _ in range(layers)]
        self.values = [empty() for _ in range(layers)]
        self.length = weft.zeros(batch, dtype=weft.int64, device=device).realize()
        self.rows: Tensor | None = None
        self.seen = size

    def part(self, length: Tensor, rows: Tensor | None = None, seen: int | None = None) -> Cache:
        """The same memory as the cache of some `rows`, (b,), or of all, that have `length` tokens, (b,), and see the
        first `seen` places."""
        part = copy(self)
        part.length, part.rows, part.seen = length + 0, rows, seen or self.size
        return part

    def drop(self) -> None:
        """Forget all tokens, and let go of the memory, until `realize`."""
        for x in (*self.keys, *self.values, self.length):
            x.data = weft.zeros(x.shape, dtype=x.dtype, device=x.device)

    def realize(self) -> None:
        """Have memory for keys and values."""
        for x in (*self.keys, *self.values, self.length):
            x.realize()

    def clear(self, row: int) -> None:
        """Sets the keys and values of a row to 0."""
        for x in (*self.keys, *self.values):
            x[:, row * self.size : (row + 1) * self.size] = 0
            x.realize()

    def positions(self, ids: Tensor, counts: Tensor | None = None, first: bool = False) -> Positions:
        """Positions of further tokens (b, t), of which each sequence has `counts`, (b,). `first`: none were before."""
        count = tokens(ids)
        if count > self.size:
            raise ArgumentError(f"Cache: {count} tokens do not fit into room for {self.size}")
        steps = weft.arange(count, device=ids.device)[None]
        at = steps if first else self.length[:, None] + steps
        rows = weft.arange(self.batch, device=ids.device) if self.rows is None else self.rows
        there = at < self.size if counts is None else (at < self.size) & (steps < counts[:, None])
        places = weft.where(there, rows[:, None] * self.size + at, self.batch * self.size)
        return Positions(at, count if first else self.seen, first, places.flatten())

    def add(self, layer: int, key: Tensor, value: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        """Keys and values that new tokens see, (b, h, count, e), when theirs, (b, h, t, e), are at their places."""
        new, kept = (key, value), (self.keys[layer], self.values[layer])
        assert positions.places is not None
        for x, y in zip(new, kept, strict=True):
            source = x.transpose(0, 1).flatten(1, 2)
            y.scatter_(1, positions.places[None, :, None].expand(source.shape), source.to(y.dtype))
        if positions.whole:
            return new
        return self._seen(kept[0]).to(key.dtype), self._seen(kept[1]).to(value.dtype)

    def _seen(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], self.batch, self.size, x.shape[2])[:, :, : self.seen]
        return (x if self.rows is None else x.index_select(1, self.rows)).transpose(0, 1)

    def advance(self, count: int | Tensor) -> None:
        """Let the next tokens come behind these, `count` of each sequence, or of all, (b,)."""
        self.length.add_(count)
