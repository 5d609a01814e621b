"""The work of a program: the count behind the simulated devices' clocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np

from weft.ir.expr import Load, ScalarCall, walk
from weft.ir.index import Guard, Int, evaluate, variables
from weft.ir.loops import Accumulate, Block, If, Loop, Program, Stmt, Store
from weft.ir.loops_names import roots
from weft.lazy_dataclass import dataclass

Counts: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

MAX_CASES = 1 << 14
"""Iterations of loops that are told apart; beyond, guards count as if they held."""


@dataclass(frozen=True, slots=True)
class Work:
    """Operations on elements, loads among them, and bytes of the parameters, each counted once: of a parameter that is
    accessed less often than it has elements, no more than that."""

    operations: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Cases:
    """The iterations in which a block runs: how often for each choice of the variables on which guards and extents
    depend, and the values of these; a number is the same in all."""

    times: Counts
    env: Mapping[str, int | Counts]

    def of(self, x: Int) -> int | Counts | None:
        """The values of an index; None where it depends on what is not told apart."""
        if isinstance(x, int):
            return x
        known = not x.computed and all(v.name in self.env for v in variables(x))
        return evaluate(x, self.env) if known else None

    def at(self, chosen: Counts) -> _Cases:
        """The cases of these numbers."""
        env = {name: x if isinstance(x, int) else x[chosen] for name, x in self.env.items()}
        return _Cases(self.times[chosen], env)


def work(p: Program, given: Mapping[str, int]) -> Work:
    """The work of `p` with these runtime integers: of a block with a guard as often as it holds. What a guard or an
    extent takes from memory is not known: the one counts as true, the other with its maximum."""
    accesses: dict[str, float] = {}
    operations = _block(p.body, _Cases(np.ones(1, np.int64), given), frozenset(_asked(p.body)), accesses)
    nbytes = sum(
        int(min(evaluate(b.size, given), accesses.get(b.name, 0.0))) * b.dtype.itemsize for b in p.params
    )
    return Work(operations, nbytes)


def _asked(body: Block) -> Iterator[str]:
    """The names on which guards and extents depend."""
    for s in body:
        match s:
            case Loop():
                yield from [v.name for v in variables(s.extent)]
                yield from _asked(s.body)
            case If():
                yield from [v.name for c in s.guard for x in (c.value, c.lo, c.hi) for v in variables(x or 0)]
                yield from _asked(s.body)
            case _:
                pass


def _block(body: Block, cases: _Cases, asked: frozenset[str], accesses: dict[str, float]) -> float:
    """The operations of a block; how often it accesses each buffer is added to `accesses`."""
    times, total = float(cases.times.sum()), 0.0
    for s in body:
        total += times * _own(s)
        for name in _accessed(s):
            accesses[name] = accesses.get(name, 0.0) + times
        match s:
            case Loop():
                total += _block(s.body, _iterated(s, cases, asked), asked, accesses)
            case If():
                total += _block(s.body, _guarded(s.guard, cases), asked, accesses)
            case _:
                pass
    return total


def _iterated(s: Loop, cases: _Cases, asked: frozenset[str]) -> _Cases:
    """The cases of a loop's body: one for each iteration, if something depends on its variable."""
    extent = cases.of(s.extent)
    counts = np.maximum(
        s.extent if isinstance(s.extent, int) else s.extent.hi if extent is None else extent, 0
    )
    counts = np.broadcast_to(counts, cases.times.shape).astype(np.int64)
    if s.var.name not in asked or int(counts.sum()) > MAX_CASES:
        return _Cases(cases.times * counts, cases.env)
    chosen = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    inside = cases.at(chosen)
    return _Cases(inside.times, {**inside.env, s.var.name: np.arange(len(chosen)) - first[chosen]})


def _guarded(guard: Guard, cases: _Cases) -> _Cases:
    """The cases in which a guard holds."""
    holds = np.ones(len(cases.times), np.bool_)
    for c in guard:
        value = cases.of(c.value)
        lo, hi = (None if x is None else cases.of(x) for x in (c.lo, c.hi))
        if value is not None and lo is not None:
            holds &= np.less_equal(lo, value)
        if value is not None and hi is not None:
            holds &= np.less(value, hi)
    return cases.at(np.flatnonzero(holds))


def _own(s: Stmt) -> int:
    """Operations of one statement, its body not included."""
    return sum(isinstance(e, ScalarCall | Load) for e in walk(roots(s))) + isinstance(s, Accumulate)


def _accessed(s: Stmt) -> Iterator[str]:
    """The buffers that one statement accesses, its body not included, once for each access."""
    yield from [e.source for e in walk(roots(s)) if isinstance(e, Load)]
    if isinstance(s, Store | Accumulate):
        yield s.buffer
