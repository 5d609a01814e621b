"""Pipelines: contiguous stages on groups of devices, and the order of microbatches in each.

    layers   0 1 2 | 3 4 5 6 | 7 8             stage 0   F0 F1 F2 F3 B0    B1    B2 ...
    group      0        1       2              stage 1      F0 F1 F2 B0 F3 B1 ...
                                               stage 2         F0 B0 F1 B1 ...

With m microbatches a step takes about the sum of all stages and m - 1 times the slowest (Alpa, Zheng et al. 2022). One
forward, one backward (1F1B, Narayanan et al. 2019): stage s of n keeps min(m, n - s) microbatches, not m. Stages are
cut by a dynamic program for each bound of the slowest stage; what it finds is run by the clock, and the best taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.errors import MemoryPlanError
from weft.lazy_dataclass import dataclass
from weft.scheduler.placing.links import Links

_MAX_SLOWEST = 256
"""Bounds of the slowest stage that are tried: the quantiles of all there are."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Forward and backward time of a microbatch per group of devices; bytes of weights with all that they need, of what
    one microbatch keeps for backward, and of what goes to the next layer."""

    forward_ns: tuple[float, ...]
    backward_ns: tuple[float, ...] = ()
    weight_bytes: int = 0
    kept_bytes: int = 0
    sent_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The first layer after each stage, the time of a step, the bytes of each stage, and the order of its work: pairs
    (microbatch, is it backward)."""

    ends: tuple[int, ...]
    ns: float
    nbytes: tuple[int, ...]
    order: tuple[tuple[tuple[int, bool], ...], ...]


def one_forward_one_backward(
    stages: int, microbatches: int, backward: bool = True
) -> list[list[tuple[int, bool]]]:
    """The order of each stage's work: pairs (microbatch, is it backward)."""
    found: list[list[tuple[int, bool]]] = []
    for s in range(stages):
        if not backward:
            found.append([(m, False) for m in range(microbatches)])
            continue
        ahead = min(microbatches, stages - s)
        some = [(m, False) for m in range(ahead)]
        for m in range(microbatches):
            some.append((m, True))
            if m + ahead < microbatches:
                some.append((m + ahead, False))
        found.append(some)
    return found


def run_ns(
    order: Sequence[Sequence[tuple[int, bool]]],
    forward: Sequence[float],
    backward: Sequence[float],
    sends: Sequence[float],
) -> float:
    """The time of a step: stages run in their order; sends (after each stage but the last, each way) run beside."""
    done: dict[tuple[int, int, bool], float] = {}
    free = [0.0] * len(order)
    wires: dict[tuple[int, bool], float] = {}
    at = [0] * len(order)
    last = len(order) - 1
    while any(k < len(o) for k, o in zip(at, order, strict=True)):
        moved = False
        for s, o in enumerate(order):
            while at[s] < len(o):
                m, back = o[at[s]]
                source = s + 1 if back else s - 1
                if 0 <= source <= last:
                    if (source, m, back) not in done:
                        break
                    wire = min(s, source), back
                    begin = max(done[source, m, back], wires.get(wire, 0.0))
                    ready = wires[wire] = begin + sends[min(s, source)]
                elif back:
                    ready = done[s, m, False]
                else:
                    ready = 0.0
                free[s] = max(free[s], ready) + (backward[s] if back else forward[s])
                done[s, m, back] = free[s]
                at[s] += 1
                moved = True
        if not moved:
            raise ValueError(f"the order of stages waits for itself at {at}")
    return max(free, default=0.0)


def cut(
    layers: Sequence[Layer],
    links: Links,
    microbatches: int,
    limits: Sequence[int] | None = None,
    stages: int | None = None,
    keeps_all: bool = False,
) -> Pipeline:
    """The best stages: stage s on group s, `links` between groups, `limits` the bytes of each.

    `stages`: exactly so many; None: as many of the groups as are best. `keeps_all`: all microbatches go forward first,
    which takes as long; a stage keeps what all of them need for backward, what it gets from its neighbours both ways,
    and the last one the result, put together. MemoryPlanError: nothing fits.
    """
    groups = links.count
    counts = range(1, min(groups, len(layers)) + 1) if stages is None else (stages,)
    found = [p for n in counts for p in _with_stages(layers, links, microbatches, limits, n, keeps_all)]
    if not found:
        most = max(x.weight_bytes + x.kept_bytes for x in layers)
        mean = math.ceil(sum(x.weight_bytes + x.kept_bytes for x in layers) / groups)
        raise MemoryPlanError(
            f"{len(layers)} layers in {microbatches} microbatches do not fit on {groups} groups with limits of"
            f" {', '.join(f'{n:,}' for n in limits or ())} bytes: one of them needs {max(most, mean):,} at least"
        )
    return min(found, key=lambda p: (p.ns, len(p.ends)))


def _with_stages(
    layers: Sequence[Layer],
    links: Links,
    microbatches: int,
    limits: Sequence[int] | None,
    count: int,
    keeps_all: bool,
) -> list[Pipeline]:
    """The pipelines of exactly `count` stages with least total time, for bounds of the slowest stage."""
    n = len(layers)
    held = [microbatches if keeps_all else min(microbatches, count - s) for s in range(count)]
    ahead = np.array([[x.forward_ns[s] for s in range(count)] for x in layers])
    back = np.array([[x.backward_ns[s] if x.backward_ns else 0.0 for s in range(count)] for x in layers])
    total = np.concatenate([np.zeros((1, count)), np.cumsum(ahead + back, axis=0)])
    weights = np.array([0, *itertools.accumulate(x.weight_bytes for x in layers)])
    kept = np.array([0, *itertools.accumulate(x.kept_bytes for x in layers)])
    sent = (
        np.array([0, *(x.sent_bytes for x in layers)])
        if keeps_all and back.any()
        else np.zeros(n + 1, np.int64)
    )

    def bytes_of(s: int, first: int) -> np.ndarray[Any, Any]:
        """The bytes of a stage from layer `first` to before each later one."""
        ends = slice(first + 1, None)
        passed = sent[first] + sent[ends] * (2 if s == count - 1 else 1)
        return weights[ends] - weights[first] + (kept[ends] - kept[first] + passed) * held[s]

    slowest = np.unique((total[None] - total[:, None])[np.triu_indices(n + 1, 1)])
    if len(slowest) > _MAX_SLOWEST:
        slowest = np.quantile(slowest, np.linspace(0, 1, _MAX_SLOWEST), method="higher")
    after = np.full((len(slowest), n + 1), np.inf)  # per bound: the least time from each layer to the end
    after[:, n] = 0.0
    ends = np.zeros((count, len(slowest), n + 1), np.int64)
    for s in reversed(range(count)):
        sends = np.array([_send_ns(links, layers, s, count, e) for e in range(n + 1)])
        earlier = np.full_like(after, np.inf)
        for first in range(n):
            span = total[first + 1 :, s] - total[first, s]
            fits = np.ones(len(span), bool) if limits is None else bytes_of(s, first) <= limits[s]
            allowed = fits[None] & (span[None] <= slowest[:, None])
            times = np.where(allowed, span + sends[first + 1 :] + after[:, first + 1 :], np.inf)
            best = times.argmin(axis=1)
            earlier[:, first] = times[np.arange(len(slowest)), best]
            ends[s, :, first] = best + first + 1
        after = earlier
    cuts: dict[tuple[int, ...], None] = {}
    for k in np.flatnonzero(np.isfinite(after[:, 0])):
        first, some = 0, list[int]()
        for s in range(count):
            first = int(ends[s, k, first])
            some.append(first)
        cuts[tuple(some)] = None
    order = one_forward_one_backward(count, microbatches, any(x.backward_ns for x in layers))
    found: list[Pipeline] = []
    for some in cuts:
        spans = list(enumerate(zip((0, *some), some, strict=False)))
        sends = [_send_ns(links, layers, s, count, e) for s, (_, e) in spans]
        forward = [float(ahead[i:j, s].sum()) for s, (i, j) in spans]
        backward = [float(back[i:j, s].sum()) for s, (i, j) in spans]
        nbytes = [int(bytes_of(s, i)[j - i - 1]) for s, (i, j) in spans]
        ns = run_ns(order, forward, backward, sends)
        found.append(Pipeline(some, ns, tuple(nbytes), tuple(tuple(o) for o in order)))
    return found


def _send_ns(links: Links, layers: Sequence[Layer], stage: int, count: int, end: int) -> float:
    """The time from a stage, which ends before layer `end`, to the next one."""
    if stage + 1 >= count or not end:
        return 0.0
    return links.send_ns(stage, stage + 1, layers[end - 1].sent_bytes)
