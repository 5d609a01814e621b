"""The search for the best choice: a bound, then a dynamic program over frontiers that drops what the bound rules out.

1. Prices of bytes (a Lagrange multiplier per pool): by bisection, so that the choice of least time and price just fits.
2. Tables are tightened (`bounds.py`): what each entry is above zero is what it costs at least more than the bound.
3. Blocks are introduced in an order of small frontiers. A label is a choice for the frontier, the decided blocks with
   undecided neighbours, with its cost and bytes; of labels with one frontier only those stay that no other one beats.
   Labels whose cost is more than the best known choice is above the bound are dropped: none of them is the best.

Where no more labels are alive than `beam`, the choice is the best there is. Otherwise the cheapest stay, and the cost
of the cheapest that was cut goes into the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field

import numpy as np

from weft.errors import ArgumentError, MemoryPlanError
from weft.lazy_dataclass import dataclass
from weft.scheduler.placing.bounds import collect, decode, tighten
from weft.scheduler.placing.problem import Array, Choice, Counts, Problem, Tables, big_number

BEAM = 4096
"""Labels alive at once: a step over all their options stays below 10 ms."""

_ROUNDS = 60
_ROUNDS_PER_PRICE = 4
_BISECTIONS = 16
_POLISH_PASSES = 20

_ROUNDING = 1e-9
"""The error of sums of floats, as a part of the largest that are added."""


def solve(p: Problem, beam: int = BEAM) -> Choice:
    """The best choice that fits the limits, or the best that was found, with its certificate.

    MemoryPlanError: nothing fits; it says what the least limit would be. ArgumentError: all is impossible.
    """
    refuse_impossible(p)
    if not p.blocks:
        return Choice((), 0.0, 0.0, (0,) * len(p.limits))
    order = elimination_order(Tables.of(p, 1.0))
    known = _Known(p)
    big = big_number(p)
    tables = Tables.of(p, big)
    price = _price_bytes(p, tables, order, known)
    tighten(tables, order, _ROUNDS)
    known.try_choice(decode(tables, order))
    bound = _frontiers(p, tables, order, price, known, beam)
    best = known.options
    if best is not None and known.ns >= big / 2:
        raise ArgumentError("no choice of options is possible: each has a block or an exchange that is not")
    if best is None:
        raise MemoryPlanError(
            _least_limits(p, "no choice was found that fits the limits of all pools at once")
        )
    return Choice(tuple(best), known.ns, min(bound, known.ns), p.nbytes(best))


def refuse_impossible(p: Problem) -> None:
    """Raise a MemoryPlanError where a pool is too small for the least bytes that its blocks can have."""
    for pool, limit in enumerate(p.limits):
        if sum(int(b.nbytes[:, pool].min()) for b in p.blocks) > limit:
            raise MemoryPlanError(_least_limits(p, f"pool {pool} is too small"))


def _least_limits(p: Problem, problem: str) -> str:
    least = [sum(int(b.nbytes[:, k].min()) for b in p.blocks) for k in range(len(p.limits))]
    rows = [
        f"pool {k}: limit {limit:,} bytes, at least {n:,} are needed"
        for k, (limit, n) in enumerate(zip(p.limits, least, strict=True))
    ]
    return "\n  ".join([problem, *rows])


@dataclass(slots=True)
class _Known:
    """The best choice that fits, so far."""

    p: Problem
    options: list[int] | None = None
    ns: float = math.inf
    tables: Tables = field(init=False)

    def __post_init__(self) -> None:
        self.tables = Tables.of(self.p, big_number(self.p))

    def try_choice(self, options: Sequence[int]) -> None:
        """Keep a choice, polished: block after block takes its best option that fits, until none changes."""
        options = list(options)
        room = np.array(self.p.limits, np.int64) - np.array(self.p.nbytes(options), np.int64)
        for _ in range(_POLISH_PASSES):
            changed = False
            for i, b in enumerate(self.p.blocks):
                k = options[i]
                need = b.nbytes - b.nbytes[k]
                overflow = np.maximum(need - room, 0).sum(axis=1)
                total = np.where(overflow == overflow.min(), self.tables.given(i, options), math.inf)
                best = int(np.argmin(total))
                if total[best] < total[k]:
                    options[i], changed = best, True
                    room = room - need[best]
            if not changed:
                break
        if (room >= 0).all() and (ns := self.tables.ns(options)) < self.ns:
            self.options, self.ns = options, ns


def elimination_order(tables: Tables) -> list[int]:
    """An order of blocks in which few decided ones have undecided neighbours, greedily."""
    undecided = [set(n) for n in tables.around]
    left = set(range(len(undecided)))
    order: list[int] = []
    near: set[int] = set()
    while left:
        some = near or left

        def growth(i: int) -> tuple[int, int, int]:
            done = sum(1 for j in tables.around[i] if j not in left and undecided[j] == {i})
            return (1 if undecided[i] else 0) - done, len(undecided[i]), i

        i = min(some, key=growth)
        order.append(i)
        left.discard(i)
        near.discard(i)
        near |= undecided[i]
        for j in tables.around[i]:
            undecided[j].discard(i)
    return order


def _price_bytes(p: Problem, tables: Tables, order: Sequence[int], known: _Known) -> Array:
    """The price of a byte in each pool; the tables get it added."""
    price = np.zeros(len(p.limits))
    if not p.limits:
        return price
    limits = np.array(p.limits, np.int64)

    def reprice(pool: int, to: float) -> int:
        """The room in a pool when its bytes have this price."""
        for i, b in enumerate(p.blocks):
            tables.alone[i] += (to - price[pool]) * b.nbytes[:, pool]
        price[pool] = to
        tighten(tables, order, _ROUNDS_PER_PRICE)
        options = decode(tables, order)
        known.try_choice(options)
        return int(limits[pool] - p.nbytes(options)[pool])

    known.try_choice([int(np.argmin(b.nbytes.sum(axis=1))) for b in p.blocks])
    scale = big_number(p)
    for _ in range(1 if len(p.limits) == 1 else 3):
        for pool in range(len(p.limits)):
            if reprice(pool, float(price[pool])) >= 0 and price[pool] == 0:
                continue
            low, high = 0.0, max(float(price[pool]), scale / max(1, p.limits[pool]) / 64)
            while reprice(pool, high) < 0 and high < scale * 1e3:
                low, high = high, high * 4
            for _ in range(_BISECTIONS):
                middle = (low + high) / 2
                low, high = (low, middle) if reprice(pool, middle) >= 0 else (middle, high)
            reprice(pool, high)
    return price


@dataclass(slots=True)
class _Labels:
    """Choices for the frontier: a row of options per label, its cost, its bytes, and where it came from."""

    frontier: list[int]
    options: Counts
    cost: Array
    nbytes: Counts


def _frontiers(
    p: Problem, tables: Tables, order: Sequence[int], price: Array, known: _Known, beam: int
) -> float:
    """The dynamic program; `known` gets what it finds. Returns the bound."""
    limits = np.array(p.limits, np.int64)
    place = {i: k for k, i in enumerate(order)}
    for i in order:
        collect(tables, i, [j for j in tables.around[i] if place[j] > place[i]])
    base = tables.bound() - float(price @ limits)
    slack = _ROUNDING * (abs(tables.constant) + abs(known.ns) + 1.0)
    allowed = known.ns - base + slack
    least_left = _least_left([p.blocks[i].nbytes for i in order], len(p.limits))
    labels = _Labels([], np.zeros((1, 0), np.int64), np.zeros(1), np.zeros((1, len(limits)), np.int64))
    trace: list[tuple[Counts, Counts]] = []
    cut = math.inf
    for step, i in enumerate(order):
        labels, parent, taken = _introduce(labels, tables, i, p.blocks[i].nbytes)
        alive = (labels.cost <= allowed) & (labels.nbytes + least_left[step + 1] <= limits).all(axis=1)
        keep = np.flatnonzero(alive)
        ends = [j for j in labels.frontier if all(place[n] <= step for n in tables.around[j])]
        columns = [c for c, j in enumerate(labels.frontier) if j not in ends]
        labels = _Labels(
            [labels.frontier[c] for c in columns],
            labels.options[keep][:, columns],
            labels.cost[keep],
            labels.nbytes[keep],
        )
        best = _undominated(labels, price)
        if len(best) > beam:
            best = best[np.argsort(labels.cost[best], kind="stable")]
            cut = min(cut, float(labels.cost[best[beam]]))
            best = best[:beam]
        labels = _Labels(labels.frontier, labels.options[best], labels.cost[best], labels.nbytes[best])
        trace.append((parent[keep][best], taken[keep][best]))
        if not len(best):
            return min(known.ns, base + cut) - slack
    for k in np.argsort(labels.cost - labels.nbytes @ price, kind="stable")[:4]:
        known.try_choice(_follow(trace, order, int(k)))
    return min(known.ns, base + cut) - (slack if cut < math.inf else 0.0)


def _introduce(labels: _Labels, tables: Tables, i: int, nbytes: Counts) -> tuple[_Labels, Counts, Counts]:
    """Each label with each option of block i; the label and the option that each one has."""
    count = len(tables.alone[i])
    more = np.broadcast_to(tables.alone[i], (len(labels.cost), count)).copy()
    for column, j in enumerate(labels.frontier):
        if j in tables.around[i]:
            table = tables.pair(j, i)
            more += (table - table.min())[labels.options[:, column]]
    parent = np.repeat(np.arange(len(labels.cost)), count)
    taken = np.tile(np.arange(count), len(labels.cost))
    grown = _Labels(
        [*labels.frontier, i],
        np.column_stack([labels.options[parent], taken]),
        (labels.cost[:, None] + more).ravel(),
        labels.nbytes[parent] + nbytes[taken],
    )
    return grown, parent, taken


def _undominated(labels: _Labels, price: Array) -> Counts:
    """The labels that no other one with the same frontier beats in time and in the bytes of every pool."""
    if not len(labels.cost):
        return np.zeros(0, np.int64)
    time = labels.cost - labels.nbytes @ price
    order = np.lexsort((*labels.nbytes.T, time, *labels.options.T))
    options = labels.options[order]
    first = np.ones(len(order), bool)
    first[1:] = (options[1:] != options[:-1]).any(axis=1)
    pools = labels.nbytes.shape[1]
    if not pools:
        return order[first]
    group = np.cumsum(first) - 1
    nbytes = labels.nbytes[order]
    if pools > 1:  # only what the fastest of its frontier beats
        fastest = nbytes[np.flatnonzero(first)[group]]
        return order[first | (nbytes < fastest).any(axis=1)]
    lowered = nbytes[:, 0] - group * (int(nbytes.max()) + 1)  # of a later group, less than of any earlier one
    least = np.minimum.accumulate(lowered)
    return order[first | np.concatenate([[True], lowered[1:] < least[:-1]])]


def _least_left(sizes: Sequence[Counts], pools: int) -> Counts:
    """The least bytes of the blocks from each step on."""
    least = np.array([n.min(axis=0) for n in sizes], np.int64).reshape(len(sizes), pools)
    return np.concatenate([np.cumsum(least[::-1], axis=0)[::-1], np.zeros((1, pools), np.int64)])


def _follow(trace: Sequence[tuple[Counts, Counts]], order: Sequence[int], label: int) -> list[int]:
    options = [0] * len(order)
    for i, (parent, taken) in zip(reversed(order), reversed(trace), strict=True):
        options[i] = int(taken[label])
        label = int(parent[label])
    return options
