"""The places that hints for caches name: of a later iteration, a share of a run, a share of what an output needs."""
# Tests: tests/ir/kernel/transforms/test_hint.py

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from weft.ir.index import (
    Index,
    Int,
    Var,
    ceildiv,
    coefficient,
    floordiv,
    high,
    minimum,
    mod,
    substitute,
)
from weft.ir.kernel.algorithm import Item, Output, Param, reads
from weft.ir.kernel.schedule import Kernel, Nest, NestLoop, PrefetchSpec
from weft.ir.loops import LANE_KINDS, LINE, LoopKind

MAX_HINTS = 8
"""Hints of one iteration for a parameter; of a longer part, some lines are asked for."""


def accesses(item: Item, nest: Nest) -> list[tuple[str, tuple[Int, ...]]]:
    """The names and indices that the item reads at, and those at which it writes through the caches."""
    found = [(r.source, r.index) for r in reads(item)]
    if isinstance(item, Output) and not nest.stream:
        found += [(s.param, s.index) for s in item.stores]
    return found


def later(here: Int, loop: Var, steps: int) -> Iterator[Int]:
    """The place that is `here` now, `steps` iterations of `loop` later; none where that is the same or read first."""
    there = substitute(here, {loop: loop + steps})
    if there != here and not (isinstance(there, Index) and there.computed):
        yield there


def of_run(k: Kernel, item: Item, nest: Nest, loop: Var, param: Param, here: Int) -> Iterator[Int]:
    """This iteration's part of the run that the next iteration of `loop` reads of a parameter, by lines: none where it
    reads no run."""
    around = [*k.enclosing(item.name), *nest.loops]
    within = around[[s.var for s in around].index(loop) + 1 :]
    turns = _turns(within)
    run = coefficient(here, loop) or 0
    if run <= 0:
        return
    count = prod(high(s.extent) for s in turns)
    together = 1 << max(0, (count - 1) // run).bit_length()  # the innermost loop's, which ask for the same
    at: Int = 0
    for s in turns[:-1]:
        at = at * high(s.extent) + s.var
    if turns:
        last = turns[-1]
        at = at * ceildiv(high(last.extent), together) + floordiv(last.var, together)
    share = ceildiv(run * together, count)
    start = substitute(here, {loop: loop + 1} | {s.var: 0 for s in within}) + at * share
    step = max(1, LINE // param.dtype.itemsize, ceildiv(share, MAX_HINTS))
    for n in range(0, share, step):
        yield start + n


def apart(k: Kernel, item: str, loop: str, output: str) -> tuple[list[NestLoop], list[NestLoop]]:
    """The loops around the item, down to `loop`, that are not the output's, without lanes and what is written out; and
    the output's that are not the item's."""
    around = [*k.enclosing(item), *k.nests[item].loops]
    own, shared = k.nests[output].loops, {s.var for s in around}
    within = [s for s in around[: [s.var.name for s in around].index(loop) + 1] if s not in own]
    return _turns(within), [s for s in own if s.var not in shared]


def lines_of(param: Param, here: Int, inner: Sequence[NestLoop]) -> tuple[NestLoop, int, int] | None:
    """The loop along which the loops `inner` read or write a parameter as runs, its lines, and those of all runs; None
    where there are no runs, or the loops come to the same place again."""
    run = next((s for s in inner if coefficient(here, s.var) == 1), None)
    if run is None or not all(coefficient(here, s.var) for s in inner):
        return None
    lines = ceildiv(high(run.extent), LINE // param.dtype.itemsize)
    return run, lines, lines * prod(high(s.extent) for s in inner if s is not run)


def of_output(k: Kernel, wish: PrefetchSpec, item: str, param: Param, here: Int) -> Iterator[Int]:
    """This iteration's share of the lines that the output reads or writes of a parameter once the item is there, of
    each its last element: its first may be on the line before, which came along with the tile before."""
    turns, inner = apart(k, item, wish.loop, wish.output)
    found = lines_of(param, here, inner)
    if found is None:
        return
    run, lines, total = found
    count, turn = 1, 0
    for s in turns:
        each = wish.steps if s is turns[-1] else 1
        times = ceildiv(high(s.extent), each)
        count, turn = count * times, turn * times + floordiv(s.var, each)
    share, line = ceildiv(total, count), LINE // param.dtype.itemsize
    for n in range(0, share, ceildiv(share, MAX_HINTS)):
        number = floordiv(turn * total, count) if share == 1 else minimum(turn * share + n, total - 1)
        at = {run.var: minimum(mod(number, lines) * line + line - 1, high(run.extent) - 1)}
        left = floordiv(number, lines)
        for s in reversed([s for s in inner if s is not run]):
            at[s.var], left = mod(left, high(s.extent)), floordiv(left, high(s.extent))
        yield substitute(here, at)


def _turns(loops: Sequence[NestLoop]) -> list[NestLoop]:
    """The loops whose iterations follow one another."""
    return [s for s in loops if s.kind not in LANE_KINDS and s.kind is not LoopKind.UNROLL]
