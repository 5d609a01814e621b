"""Parts divided into stretches: runs of kernels, so that exchanges go on beside the rest of a part.

    part      dw2 = ..; g1 = ..; dw1 = ..            a gradient travels when all of them are there
    divided   dw2 = .. | g1 = ..; dw1 = ..           dw2 travels while g1 and dw1 are computed

A part ends where the next one has to wait for a copy; within it, kernels may read what has arrived at different times,
and what they give may be copied away. The part is kernelized once; a stretch ends after a kernel whose result is copied
away, and before one that reads what none before it did wait for, so nothing is undone that the kernelizer has fused.
Kernels that wait for what arrives later come later. What a stretch gives to others is a value like any.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from weft.backends.protocol import Device, DeviceInfo
from weft.ir import graph
from weft.ir.dtypes import DType
from weft.ir.graph import Node, toposort
from weft.ir.index import high
from weft.ir.rewrite import rewritten
from weft.lazy_dataclass import dataclass
from weft.scheduler.kernelize.kernels import kernelize_expanded
from weft.scheduler.kernelize.spec import ScanSpec
from weft.scheduler.parts.cut import SPLIT_NS, Compute, Cut, Exchange, Value, remade
from weft.scheduler.parts.timing import Ways
from weft.scheduler.signature import signature

MOST_STRETCHES = 64
"""Stretches of a part: each costs the host a start, and planning time."""


@dataclass(frozen=True, slots=True)
class _Wait:
    """The number of an exchange, its own time, and that with all that comes before it (of what arrives), or after (of
    what is sent)."""

    number: int
    copy_ns: float
    ns: float


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel of a part: the places in the part's order of the nodes that it writes and reads, and its work."""

    writes: tuple[int, ...]
    reads: tuple[int, ...]
    flops: int
    nbytes: int

    def ns(self, info: DeviceInfo) -> float:
        """Its time, roughly."""
        return info.launch_ns + 1e9 * max(self.flops / info.flops, self.nbytes / info.bandwidth)


def divided(cut: Cut, devices: Mapping[str, Device], ways: Ways) -> Cut:
    """The cut with stretches in place of parts beside which exchanges can go on."""
    return _Divider(cut, devices, ways).divided()


def estimated(cut: Cut, devices: Mapping[str, Device]) -> Cut:
    """The cut with the times that the kernels of its parts take by what devices are described as: for who does not
    build them."""
    kernels, steps = _Kernels(), list[Compute | Exchange]()
    for s in cut.steps:
        if isinstance(s, Compute):
            info = devices[s.device].info
            some = kernels.of(s, info.bounds.parameters)
            s = s if some is None else replace(s, ns=sum(k.ns(info) for k in some))
        steps.append(s)
    return replace(cut, steps=tuple(steps))


class _Kernels:
    """The kernels of parts, of equal ones once."""

    def __init__(self) -> None:
        self.known: dict[Hashable, list[_Kernel] | None] = {}

    def of(self, step: Compute, buffers: int) -> list[_Kernel] | None:
        """The kernels of a part; None where they write what the part does not know."""
        *rows, outputs = signature(step.nodes).key.rows
        kept = [(*row[:2], row[2] is None) if row[0].__class__ is DType else row for row in rows]
        key = (*kept, outputs), buffers
        if key not in self.known:
            place = {n: k for k, n in enumerate(toposort(step.nodes))}
            found: list[_Kernel] | None = []
            for s in kernelize_expanded(step.nodes, buffers):
                reads = tuple(dict.fromkeys((*s.reads, *s.inplace.values())))
                if not all(n in place for n in (*reads, *s.writes)):
                    found = None
                    break
                writes, read = (tuple([place[n] for n in nodes]) for nodes in (s.writes, reads))
                each = list(s.kernels()) if isinstance(s, ScanSpec) else [s]
                times = high(s.body.length) if isinstance(s, ScanSpec) else 1
                work = (times * sum(high(k.flops) for k in each), times * sum(high(k.bytes) for k in each))
                found.append(_Kernel(writes, read, *work))
            self.known[key] = found
        return self.known[key]


class _Divider:
    def __init__(self, cut: Cut, devices: Mapping[str, Device], ways: Ways) -> None:
        self.cut, self.devices = cut, devices
        self.values = list(cut.values)
        self.sent: dict[int, _Wait] = {}
        self.arrives: dict[int, _Wait] = {}
        self.kernels = _Kernels()
        giver = {v: k for k, s in enumerate(cut.steps) for v in s.results}
        times = [s.ns if isinstance(s, Compute) else ways.ns(cut, s) for s in cut.steps]
        before, after = [0.0] * len(times), [0.0] * len(times)
        for k, s in enumerate(cut.steps):
            before[k] = times[k] + max([before[giver[v]] for v in s.reads if v in giver], default=0.0)
        for k in reversed(range(len(times))):
            for g in (giver[v] for v in cut.steps[k].reads if v in giver):
                after[g] = max(after[g], times[k] + after[k])
        for k, s in enumerate(cut.steps):
            if isinstance(s, Exchange):
                other = self.sent.get(s.source, _Wait(0, 0.0, 0.0))
                self.sent[s.source] = _Wait(k, other.copy_ns + times[k], max(other.ns, times[k] + after[k]))
                self.arrives[s.target] = _Wait(k, times[k], before[k])

    def divided(self) -> Cut:
        steps: list[Compute | Exchange] = []
        for s in self.cut.steps:
            steps += [s] if isinstance(s, Exchange) else self._stretches(s)
        return replace(self.cut, values=tuple(self.values), steps=tuple(steps))

    def _stretches(self, step: Compute) -> list[Compute]:
        """A part as it is, or in stretches."""
        waits = [w for v in step.reads if (w := self.arrives.get(v))]
        waits += [w for v in step.results if (w := self.sent.get(v))]
        if sum([max(w.copy_ns, min(w.ns, step.ns)) for w in waits]) < SPLIT_NS:
            return [step]
        info = self.devices[step.device].info
        kernels = self.kernels.of(step, info.bounds.parameters)
        if kernels is None or len(kernels) < 2:
            return [step]
        order = toposort(step.nodes)
        place = {n: k for k, n in enumerate(order)}
        arrives = {place[n]: self.arrives[v] for n, v in step.inputs.items() if v in self.arrives}
        sent: dict[int, _Wait] = {}
        for n, v in zip(step.nodes, step.results, strict=True):
            if v in self.sent:
                sent[place[n]] = self.sent[v]
        times = [k.ns(info) for k in kernels]
        runs = _runs(kernels, times, _by_arrival(kernels, arrives), arrives, sent)
        written = {p for k in kernels for p in k.writes}
        if len(runs) < 2 or not all(place[n] in written for n in step.nodes):
            return [step]
        return self._made(step, order, kernels, runs)

    def _made(
        self, step: Compute, order: Sequence[Node], kernels: Sequence[_Kernel], runs: Sequence[Sequence[int]]
    ) -> list[Compute]:
        """The stretches as steps, over values."""
        number: dict[Node, int] = dict(zip(step.nodes, step.results, strict=True))
        by = {p: r for r, run in enumerate(runs) for k in run for p in kernels[k].writes}
        across = {p for r, run in enumerate(runs) for k in run for p in kernels[k].reads if by.get(p, r) != r}
        there: dict[Node, Node] = {}  # what earlier stretches give -> the leaf that stands for it
        inputs, info = dict(step.inputs), self.devices[step.device].info
        made: list[Compute] = []
        for run in runs:
            written = [p for k in run for p in kernels[k].writes]
            gives = [order[p] for p in written if p in across or order[p] in number]
            nodes = rewritten(gives, remade, there, stop_at_storage=False)
            for n in gives:
                if n not in number:
                    number[n] = len(self.values)
                    self.values.append(Value(step.device, n.dtype, n.shape))
            own = {n: inputs[n] for n in toposort(nodes) if n in inputs}
            results = tuple([number[n] for n in gives])
            ns = sum([kernels[k].ns(info) for k in run])
            made.append(Compute(step.device, tuple(nodes), own, results, step.level, ns))
            for n in gives:
                there[n] = graph.buffer(n.shape, n.dtype, n.device, None)
                inputs[there[n]] = number[n]
        return made


def _by_arrival(kernels: Sequence[_Kernel], arrives: Mapping[int, _Wait]) -> list[int]:
    """An order of the kernels: theirs, but that those which wait for what arrives later come later."""
    made = {p: k for k, kernel in enumerate(kernels) for p in kernel.writes}
    late = [-1] * len(kernels)
    left = [0] * len(kernels)
    users: list[list[int]] = [[] for _ in kernels]
    for k, kernel in enumerate(kernels):  # in an order in which they can run
        before = {made[p] for p in kernel.reads if p in made and made[p] != k}
        left[k] = len(before)
        for b in before:
            users[b].append(k)
        late[k] = max(
            [arrives[p].number for p in kernel.reads if p in arrives] + [late[b] for b in before], default=-1
        )
    ready = [(late[k], k) for k, n in enumerate(left) if not n]
    heapify(ready)
    order: list[int] = []
    while ready:
        k = heappop(ready)[1]
        order.append(k)
        for u in users[k]:
            left[u] -= 1
            if not left[u]:
                heappush(ready, (late[u], u))
    return order


def _runs(
    kernels: Sequence[_Kernel],
    times: Sequence[float],
    order: Sequence[int],
    arrives: Mapping[int, _Wait],
    sent: Mapping[int, _Wait],
) -> list[list[int]]:
    """The kernels of each stretch. One ends where that hides `SPLIT_NS`: of an exchange its own time, since links are
    busy with several, or what is computed before it arrives, or after it is sent, as long as others would wait."""
    total, done = sum(times), 0.0
    gains: list[float] = []
    arrived: set[int] = set()
    leaving: list[_Wait] = []
    for k in order:
        late = {p: arrives[p] for p in kernels[k].reads if p in arrives and p not in arrived}
        arrived.update(late)
        gain = sum([max(w.copy_ns, min(w.ns, done)) for w in late.values()])
        gains.append(gain + sum([max(w.copy_ns, min(w.ns, total - done)) for w in leaving]))
        leaving = [sent[p] for p in kernels[k].writes if p in sent]
        done += times[k]
    least = max(SPLIT_NS, sum(gains) / MOST_STRETCHES)
    runs: list[list[int]] = [[order[0]]]
    gained = 0.0
    for k, gain in zip(order[1:], gains[1:], strict=True):
        gained += gain
        if gain and gained >= least:
            runs.append([])
            gained = 0.0
        runs[-1].append(k)
    return runs
