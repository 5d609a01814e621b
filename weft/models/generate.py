"""Text token by token: the prompts at once, then a compiled step that serves every position."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Literal

import weft
from weft import Tensor
from weft.errors import ArgumentError
from weft.ir.garbage import not_collected
from weft.models.cache import Cache
from weft.models.decoder import Decoder
from weft.models.sampling import Sampling
from weft.models.speculation import Draft, Lookup

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
    draft: Draft | Decoder | Literal["lookup"] | None = None,
) -> Iterator[list[int | None]]:
    """The next token of each prompt, again and again: an iterator of lists, None for sequences that have ended.

    `prompts`: ids of each sequence, of any lengths. A sequence ends after `max_new_tokens`, or with a token or run of
    tokens of `stop`, which is given too; the iterator ends when all have. `sampling`: how tokens are drawn, by default
    the likeliest. `seed`: the same draws each time; without one, `weft.manual_seed` decides. `draft`: what guesses
    tokens, of which the model then checks several at once (`Draft`): the likeliest tokens stay the same, and drawn ones
    have the same distribution. ArgumentError for prompts that are empty, too long for the model with what is to come,
    or have ids beyond its vocabulary, and for a draft of another vocabulary.

    >>> for (token,) in weft.models.generate(model, [[2, 818, 5279]], 32, stop=[1]):
    ...     print(tokenizer.decode([token]), end="", flush=True)
    """
    given = [list(map(int, row)) for row in (prompts.tolist() if isinstance(prompts, Tensor) else prompts)]
    longest = checked(model, given, max_new_tokens)
    ends = [[s] if isinstance(s, int) else list(s) for s in stop]
    rows = [_Row(prompt, max_new_tokens, ends) for prompt in given]
    guess = draft if isinstance(draft, Draft) or draft is None else Draft(draft)
    if isinstance(guess, Draft) and isinstance(guess.source, Decoder):
        if guess.source.vocabulary != model.vocabulary:
            raise ArgumentError(
                f"generate: the draft has a vocabulary of {guess.source.vocabulary}, the model of {model.vocabulary}"
            )
    size = -(-(longest + max_new_tokens + (guess.count if guess else 0)) // _ROOM) * _ROOM
    return _tokens(model, rows, size, sampling or Sampling(), seed, guess)


def checked(model: Decoder, prompts: Sequence[Sequence[int]], more: int) -> int:
    """The length of the longest prompt; ArgumentError for prompts that cannot be written on."""
    if not prompts or not all(prompts):
        raise ArgumentError("generate: needs at least one prompt, each of at least one token")
    if more < 1:
        raise ArgumentError(f"generate: max_new_tokens must be at least 1, got {more}")
    wrong = [x for row in prompts for x in row if not 0 <= x < model.vocabulary]
    if wrong:
        raise ArgumentError(
            f"generate: the token {wrong[0]} is not in the model's vocabulary of {model.vocabulary}"
        )
    longest = max(map(len, prompts))
    if longest + more > model.longest:
        raise ArgumentError(
            f"generate: {longest} tokens and {more} more are beyond the {model.longest} positions that the model knows"
        )
    return longest


class _Row:
    """A sequence: its prompt, what was made, and whether it has ended."""

    def __init__(self, prompt: list[int], limit: int, ends: list[list[int]]) -> None:
        self.prompt, self.limit, self.ends = prompt, limit, ends
        self.made: list[int] = []
        self.ended = False

    def take(self, tokens: Sequence[int]) -> None:
        """Further tokens, as far as the sequence goes."""
        for token in tokens:
            if self.ended:
                return
            self.made.append(token)
            self.ended = len(self.made) == self.limit or any(self.made[-len(e) :] == e for e in self.ends)


@weft.no_grad()
def _tokens(
    model: Decoder, rows: list[_Row], size: int, sampling: Sampling, seed: int | None, draft: Draft | None
) -> Iterator[list[int | None]]:
    kind = (*_sizes(model, rows, size), sampling)
    with model.resting.used(
        kind, lambda: _Steps(_Work(model, len(rows), size, sampling)), _Steps.rest
    ) as steps:
        steps.work.begin(rows, seed)
        if draft is None:
            rounds = _one_by_one(steps, rows)
        elif isinstance(draft.source, Decoder):
            rounds = _with_model(steps, rows, draft, draft.source)
        else:
            rounds = _with_guesses(steps, rows, draft, lambda: _looked_up(steps.work, rows, draft.count))
        at = 0
        for _ in rounds:  # the device computes the next round while the caller does something with this one
            while any(at < len(row.made) for row in rows) and all(
                row.ended or at < len(row.made) for row in rows
            ):
                yield [row.made[at] if at < len(row.made) else None for row in rows]
                at += 1


def _sizes(model: Decoder, rows: list[_Row], size: int) -> tuple[Hashable, ...]:
    """All that a cache depends on, besides the model's own sizes."""
    weight = next(model.parameters())
    return len(rows), size, str(weight.device), model.cache_dtype or weight.dtype


class _Work:
    """A cache, and the functions that fill it."""

    def __init__(self, model: Decoder, batch: int, size: int, sampling: Sampling) -> None:
        self.model, self.sampling, self.size = model, sampling, size
        self.device = str(next(model.parameters()).device)
        self.cache = model.cache(batch, size)
        self.seen: Tensor | None = None
        if sampling.repetition_penalty != 1:
            self.seen = weft.zeros(batch, model.vocabulary, dtype=weft.bool, device=self.device).realize()
        self.generator = weft.Generator(self.device)

    def begin(self, rows: list[_Row], seed: int | None) -> None:
        """Begin with sequences of which the prompts are known, in a cache without tokens."""
        self.cache.realize()
        if self.seen is not None:
            self.seen.zero_()
            for k, row in enumerate(rows):
                self.seen[k, weft.tensor(row.prompt, device=self.device)] = True
            self.seen.realize()
        self.generator.manual_seed(int(weft.randint(0, 1 << 62, ()).item()) if seed is None else seed)

    def prompts(self, rows: list[_Row]) -> tuple[Tensor, Tensor | None]:
        """The prompts, filled up to the longest of them, and how long they are if not all of them are so long: new
        tensors, since a function is recorded for what else refers to its arguments."""
        longest = max(len(row.prompt) for row in rows)
        filled = [row.prompt + [0] * (longest - len(row.prompt)) for row in rows]
        counts = [len(row.prompt) for row in rows]
        return (
            weft.tensor(filled, device=self.device),
            None if min(counts) == longest else weft.tensor(counts, device=self.device),
        )

    def first(self, ids: Tensor, counts: Tensor | None) -> Tensor:
        """The first token of each sequence, (b,)."""
        return self._chosen(self.model(ids, self.cache, counts, first=True, last=True)[:, 0])

    def step(self, ids: Tensor) -> Tensor:
        """The token after each of `ids`, (b,)."""
        return self._chosen(self.model(ids[:, None], self.cache, last=True)[:, 0])

    def check(self, ids: Tensor, guesses: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The tokens after `ids`, (b,), and after each of the guesses, (b, k): (b, k + 1); how many guesses were right,
        (b,); and the first token that was not guessed, (b,)."""
        count = guesses.shape[1]
        assert isinstance(count, int)
        logits = self.model(weft.cat([ids[:, None], guesses], 1), self.cache)
        found = self._all_chosen(logits, guesses)
        right = (found[:, :-1] == guesses).long().cumprod(1).sum(1)
        self.cache.advance(right - count)
        if self.seen is not None:
            for k in range(count + 1):
                token = found[:, k : k + 1]
                self.seen.scatter_(1, token, self.seen.gather(1, token) | (right >= k)[:, None])
        return found, right, found.gather(1, right[:, None])[:, 0]

    def _chosen(self, logits: Tensor) -> Tensor:
        found = self.sampling.next(logits, self.seen, self.generator)
        if self.seen is not None:
            self.seen.scatter_(1, found, True)
        return found[:, 0]

    def _all_chosen(self, logits: Tensor, guesses: Tensor) -> Tensor:
        """Each token is drawn as if the guesses before it were right: then it is one that would have come."""
        batch, count, _ = logits.shape
        assert isinstance(count, int)
        if self.seen is None:
            return self.sampling.next(logits.flatten(0, 1), None, self.generator).reshape(batch, count)
        seen, found = self.seen, list[Tensor]()
        for k in range(count):
            found.append(self.sampling.next(logits[:, k], seen, self.generator))
            if k < count - 1:
                seen = seen.scatter(1, guesses[:, k : k + 1], True)
        return weft.cat(found, 1)


class _Steps:
    """The compiled functions that fill a cache: that for prompts is kept for those of the last length."""

    def __init__(self, work: _Work) -> None:
        self.work = work
        self.step, self.check = weft.compile(work.step), weft.compile(work.check)
        self._first = _Prompts(work.first)

    def start(self, rows: list[_Row]) -> Tensor:
        """The first token of each sequence, (b,)."""
        with not_collected():  # nodes of all layers, none of them garbage
            return self._first(*self.work.prompts(rows))

    def rest(self) -> None:
        """Let go of keys and values."""
        self.work.cache.drop()


class _Prompts:
    """A function of prompts, compiled for those of one length at a time: they are seldom as long as others."""

    def __init__(self, fn: Callable[[Tensor, Tensor | None], Any]) -> None:
        self._fn = weft.compile(fn)
        self._last: object = None

    def __call__(self, ids: Tensor, counts: Tensor | None) -> Any:
        kind = tuple(ids.shape), counts is None
        if self._last not in (None, kind):
            self._fn.forget()
        self._last = kind
        return self._fn(ids, counts)


def _one_by_one(steps: _Steps, rows: list[_Row]) -> Iterator[None]:
    ids, step = steps.start(rows), steps.step
    ended = _took(rows, [[token] for token in ids.tolist()])
    yield  # before the step is recorded, which takes longer than a token
    while not ended:
        ids = step(ids)
        yield
        ended = _took(rows, [[token] for token in ids.tolist()])
    yield


def _with_guesses(
    steps: _Steps, rows: list[_Row], draft: Draft, guesser: Callable[[], _Guesser]
) -> Iterator[None]:
    """Rounds of guessing, and of checking all guesses in one step."""
    ids, step, check = steps.start(rows), steps.step, steps.check
    ended = _took(rows, [[token] for token in ids.tolist()])
    yield  # before anything else is recorded, which takes longer than a token
    guesses_of = guesser()
    while not ended:
        going = [not row.ended for row in rows]
        guesses, proposed = guesses_of(ids)
        if guesses is None:
            ids = step(ids)
            yield
            ended = _took(rows, [[token] for token in ids.tolist()])
            draft.count_up(sum(going), 0, 0)
            continue
        found, right, ids = check(ids, guesses)
        yield
        many = right.tolist()
        tokens = [t[: n + 1] for t, n in zip(found.tolist(), many, strict=True)]
        fair = [min(n, p) for n, p in zip(many, proposed, strict=True)]
        draft.count_up(
            sum(going),
            sum(p for p, on in zip(proposed, going, strict=True) if on),
            sum(n for n, on in zip(fair, going, strict=True) if on),
        )
        ended = _took(rows, tokens)
    yield


_Guesser = Callable[[Tensor], tuple[Tensor | None, list[int]]]
"""The guesses after tokens (b,), (b, k) or None, and how many of them each sequence has."""


def _looked_up(work: _Work, rows: list[_Row], count: int) -> _Guesser:
    lookups = [Lookup(row.prompt) for row in rows]

    def guesses(ids: Tensor) -> tuple[Tensor | None, list[int]]:
        for row, lookup in zip(rows, lookups, strict=True):
            lookup.extend(row.made)
        found = [[] if row.ended else x.next(count) for row, x in zip(rows, lookups, strict=True)]
        if not any(found):
            return None, []
        filled = [f + [0] * (count - len(f)) for f in found]
        return weft.tensor(filled, device=work.device), [len(f) for f in found]

    return guesses


def _with_model(steps: _Steps, rows: list[_Row], draft: Draft, model: Decoder) -> Iterator[None]:
    """Rounds with guesses of a small model, the likeliest tokens, in a cache of its own as long as the other."""
    size = steps.work.size
    kind = "guesses", *_sizes(model, rows, size)
    with model.resting.used(kind, lambda: _Guesses(model, len(rows), size), _Guesses.rest) as guesses:
        yield from _with_guesses(steps, rows, draft, lambda: guesses.of(steps.work, rows, draft.count))


class _Guesses:
    """A cache of a small model, and the compiled functions that fill it and guess."""

    def __init__(self, model: Decoder, batch: int, size: int) -> None:
        cache: Cache = model.cache(batch, size)

        def first(ids: Tensor, counts: Tensor | None) -> None:
            model(ids, cache, counts, first=True, last=True)

        def follow(length: Tensor) -> None:
            cache.length.copy_(length)

        def one(ids: Tensor) -> Tensor:
            return model(ids[:, None], cache, last=True)[:, 0].argmax(-1)

        self.cache, self._first = cache, _Prompts(first)
        self._one, self._follow = weft.compile(one), weft.compile(follow)

    def of(self, work: _Work, rows: list[_Row], count: int) -> _Guesser:
        """The function that guesses so many tokens behind those of `work`."""
        self.cache.realize()
        self._first(*work.prompts(rows))

        def guesses(ids: Tensor) -> tuple[Tensor, list[int]]:
            self._follow(work.cache.length)
            found = [ids]
            for _ in range(count):
                found.append(self._one(found[-1]))
            self._one(found[-1])  # for the keys of the last guess
            return weft.stack(found[1:], 1), [count] * len(rows)

        return guesses

    def rest(self) -> None:
        """Let go of keys and values."""
        self.cache.drop()


def _took(rows: list[_Row], tokens: Sequence[Sequence[int]]) -> bool:
    """Gives the rows their tokens; whether all have ended."""
    for row, more in zip(rows, tokens, strict=True):
        row.take(more)
    return all(row.ended for row in rows)
