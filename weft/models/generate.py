"""Text token by token: the prompts at once, then a compiled step that serves every position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import weft
from weft import Tensor
from weft.errors import ArgumentError
from weft.models.decoder import Decoder
from weft.models.sampling import Sampling

_ROOM = 64
"""Places that a cache's size is a multiple of, so that lengths alike share a plan."""


def generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]] | Tensor,
    max_new_tokens: int = 64,
    *,
    sampling: Sampling | None = None,
    stop: Sequence[Sequence[int] | int] = (),
    seed: int | None = None,
) -> Iterator[list[int | None]]:
    """The next token of each prompt, again and again: an iterator of lists, None for sequences that have ended.

    `prompts`: ids of each sequence, of any lengths. A sequence ends after `max_new_tokens`, or with a token or run of
    tokens of `stop`, which is given too; the iterator ends when all have. `sampling`: how tokens are drawn, by default
    the likeliest. `seed`: the same draws each time; without one, `weft.manual_seed` decides. ArgumentError for prompts
    that are empty, too long for the model with what is to come, or have ids beyond its vocabulary.

    >>> for (token,) in weft.models.generate(model, [[2, 818, 5279]], 32, stop=[1]):
    ...     print(tokenizer.decode([token]), end="", flush=True)
    """
    rows = [list(map(int, row)) for row in (prompts.tolist() if isinstance(prompts, Tensor) else prompts)]
    longest = _checked(model, rows, max_new_tokens)
    ends = [[s] if isinstance(s, int) else list(s) for s in stop]
    return _tokens(model, rows, longest, max_new_tokens, sampling or Sampling(), ends, seed)


def _checked(model: Decoder, rows: list[list[int]], more: int) -> int:
    if not rows or not all(rows):
        raise ArgumentError("generate: needs at least one prompt, each of at least one token")
    if more < 1:
        raise ArgumentError(f"generate: max_new_tokens must be at least 1, got {more}")
    wrong = [x for row in rows for x in row if not 0 <= x < model.vocabulary]
    if wrong:
        raise ArgumentError(
            f"generate: the token {wrong[0]} is not in the model's vocabulary of {model.vocabulary}"
        )
    longest = max(map(len, rows))
    if longest + more > model.longest:
        raise ArgumentError(
            f"generate: {longest} tokens and {more} more are beyond the {model.longest} positions that the model knows"
        )
    return longest


@weft.no_grad()
def _tokens(
    model: Decoder,
    rows: list[list[int]],
    longest: int,
    more: int,
    sampling: Sampling,
    ends: list[list[int]],
    seed: int | None,
) -> Iterator[list[int | None]]:
    device = str(next(model.parameters()).device)
    first = [longest - len(row) for row in rows]
    cache = model.cache(len(rows), -(-(longest + more) // _ROOM) * _ROOM, first)
    seen = None
    if sampling.repetition_penalty != 1:
        seen = weft.zeros(len(rows), model.vocabulary, dtype=weft.bool, device=device)
        for k, row in enumerate(rows):
            seen[k, weft.tensor(row, device=device)] = True
        seen.realize()
    generator = weft.Generator(device)
    generator.manual_seed(int(weft.randint(0, 1 << 62, ()).item()) if seed is None else seed)

    def step(ids: Tensor) -> Tensor:
        found = sampling.next(model(ids, cache, last=True)[:, 0], seen, generator)
        if seen is not None:
            seen.scatter_(1, found, True)
        return found

    compiled = weft.compile(step)
    ids = compiled(weft.tensor([[0] * n + row for n, row in zip(first, rows, strict=True)], device=device))
    made: list[list[int]] = [[] for _ in rows]
    going = [True] * len(rows)
    for count in range(more):
        tokens = ids[:, 0].tolist()
        found: list[int | None] = [t if on else None for t, on in zip(tokens, going, strict=True)]
        for k, row in enumerate(made):
            row.append(tokens[k])
            going[k] = going[k] and not any(row[-len(e) :] == e for e in ends)
        if not any(going) or count == more - 1:
            yield found
            return
        ids = compiled(ids)  # runs while the caller does something with this one
        yield found
