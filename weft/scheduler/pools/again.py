"""Kernels run again: the kernels of a job as tasks, and a schedule of these as kernels of a job.

    kernels of the job       schedule                     kernels of the other job
    0: a = f(x)              run 0, 1                     a = f(x), b = g(a)
    1: b = g(a)              value a leaves               ...
    2: c = h(b, a)           run 0 again, then 2          a' = f(x), c = h(b, a')

A kernel that is run again is the same program on the same values, so it gives the same bits. What it writes are leaves
of their own, which stand for nothing but memory: equal nodes are one object, and would share theirs.
"""
# Tests: tests/scheduler/pools/test_within.py

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from weft.backends.protocol import DeviceInfo
from weft.ir import graph
from weft.ir.graph import Node
from weft.ir.index import high
from weft.lazy_dataclass import dataclass
from weft.scheduler import memory
from weft.scheduler.assembly import Assembly, Prepared
from weft.scheduler.kernelize.spec import KernelSpec, ScanSpec
from weft.scheduler.loops import nbytes
from weft.scheduler.pools.schedule import Action, Kind, Problem, Schedule, Task, Transfer

Spec = KernelSpec | ScanSpec


@dataclass(frozen=True, slots=True)
class Tasks:
    """The kernels of a job as tasks over the intermediates that the workspace holds, and over state that rests in the
    slower pool between runs. `values`: the node of each; `rests`: the leaf, by number, whose place there is that of a
    value: an old one or a new one."""

    problem: Problem
    values: tuple[Node, ...]
    rests: Mapping[int, int]


def movable(made: Prepared) -> dict[int, int]:
    """The leaves that may rest in the slower pool between runs, each with the output that takes its place: state that
    one kernel replaces as a whole."""
    assembly = Assembly(made)
    updated = {n for s in made.specs for n in s.inplace.values()}
    looped = {n for s in made.specs if isinstance(s, ScanSpec) for n in (*s.reads, *s.writes)}
    partly = set(assembly.early.values())
    return {
        i: o
        for o, i in assembly.replaces.items()
        if not {made.job.leaves[i], made.job.outputs[o]} & (updated | looped)
        and made.job.outputs[o] not in partly
    }


def tasks(made: Prepared, resting: Mapping[int, int], transfer: Callable[[int], Transfer]) -> Tasks:
    """The tasks of a job, where the leaves `resting` rest in the slower pool, each of which an output replaces."""
    assembly, job = Assembly(made), made.job
    old = {job.leaves[i]: i for i in resting}
    new = {job.outputs[o]: i for i, o in resting.items()}
    values = (*assembly.owner, *old, *new)
    number = {n: v for v, n in enumerate(values)}
    rests = {number[n]: i for n, i in (*old.items(), *new.items())}
    until = _ends_of_leaves(assembly)
    found: list[Task] = []
    last = [len(made.specs)] * len(values)
    for k, spec in enumerate(made.specs):
        touched = dict.fromkeys((*spec.reads, *spec.inplace.values()))
        reads = tuple([number[n] for n in touched if n in number])
        writes = tuple([number[n] for n in spec.writes if n in number])
        scratch = 0 if isinstance(spec, KernelSpec) else assembly.loops[k].nbytes
        found.append(
            Task(
                reads, writes, _ns(spec, made.device.info),
                isinstance(spec, KernelSpec) and new.keys().isdisjoint(spec.writes), scratch,
                tuple(_over(assembly, k, spec, number)),
            )
        )  # fmt: skip
        end = min([until[n] for n in touched if n in until], default=len(made.specs))
        for v in writes:
            last[v] = end
    sizes = tuple([-(-nbytes(n) // memory.ALIGNMENT) * memory.ALIGNMENT for n in values])
    transfers = tuple([transfer(nbytes(n)) if v in rests else None for v, n in enumerate(values)])
    begin, end = frozenset([number[n] for n in old]), frozenset([number[n] for n in new])
    problem = Problem(tuple(found), sizes, tuple(last), transfers if rests else (), begin, end)
    return Tasks(problem, values, rests)


def _ends_of_leaves(assembly: Assembly) -> dict[Node, int]:
    """The kernel that overwrites each leaf, or step on the way to a result, which is updated in place: it can be read
    before that kernel, not after."""
    job = assembly.job
    found = {job.leaves[i]: assembly.made[job.outputs[o]] for o, i in assembly.replaces.items()}
    for n, output in assembly.early.items():  # intermediates that are made in the leaf's memory already
        i = assembly.replaces.get(assembly.output[output])
        if i is not None:
            found[job.leaves[i]] = min(found[job.leaves[i]], assembly.made[n])
    for k, spec in enumerate(assembly.specs):
        found.update(dict.fromkeys([n for n in spec.inplace.values() if n in assembly.early], k))
    return found


def _over(assembly: Assembly, k: int, spec: Spec, number: dict[Node, int]) -> list[tuple[int, int]]:
    """The pairs of a value that a kernel makes and one that it may make it over."""
    if isinstance(spec, ScanSpec):
        return []
    return [
        (number[new], number[old])
        for new in spec.writes
        if new in number
        for old in (*spec.inplace.values(), *spec.reads)
        if old in number
        and nbytes(old) == nbytes(new)
        and old.dtype is new.dtype
        and assembly.shares(k, new, old)
    ]


def _ns(spec: Spec, info: DeviceInfo) -> float:
    """About the time of a kernel, by the rates of the device; of a loop, with all its steps."""
    if isinstance(spec, ScanSpec):
        steps = high(spec.body.length)
        return sum(_ns(s.spec, info) for s in spec.begin) + steps * sum(_ns(s.spec, info) for s in spec.steps)
    return info.launch_ns + 1e9 * max(high(spec.bytes) / info.bandwidth, high(spec.flops) / info.flops)


def repeated(made: Prepared, found: Tasks, schedule: Schedule) -> Prepared:
    """The job whose kernels run as a schedule without copies says."""
    return replace_specs(made, *instances(made, found, schedule.actions))


def replace_specs(made: Prepared, specs: Sequence[Spec], origins: Sequence[Spec]) -> Prepared:
    """The job with these kernels, each with the program of the one that it is."""
    chosen = dict(made.chosen)
    for spec, origin in zip(specs, origins, strict=True):
        if isinstance(spec, KernelSpec) and isinstance(origin, KernelSpec):
            chosen[spec] = made.chosen[origin]
    return replace(made, specs=tuple(specs), chosen=chosen)


def instances(made: Prepared, found: Tasks, actions: Sequence[Action]) -> tuple[list[Spec], list[Spec]]:
    """The kernels in the order of the actions, and which kernel of the job each is."""
    now: dict[Node, Node] = {}
    ran: set[int] = set()
    specs: list[Spec] = []
    origins: list[Spec] = []
    there: set[int] = set()
    for a in actions:
        if a.kind is Kind.LEAVE:
            there.discard(a.number)
        if a.kind is not Kind.RUN:
            continue
        spec = made.specs[a.number]
        specs.append(again(spec, now, frozenset(found.values[v] for v in there), a.number in ran))
        origins.append(spec)
        ran.add(a.number)
        there.update(found.problem.tasks[a.number].writes)
    return specs, origins


def again(spec: Spec, now: dict[Node, Node], there: frozenset[Node], repeats: bool) -> Spec:
    """A kernel on the values as they are `now`, which are told of what it makes: in memory of its own where it
    `repeats`; what is `there` stays what it is."""
    reads = tuple([now.get(n, n) for n in spec.reads])
    if not repeats:
        if reads == spec.reads and not any(n in now for n in spec.inplace.values()):
            return spec
        return _over_others(spec, reads, spec.writes, now, spec.why)
    writes: list[Node] = []
    for n in spec.writes:
        fresh = graph.buffer(n.shape, n.dtype, n.device, None)
        writes.append(fresh)
    made = _over_others(spec, reads, tuple(writes), now, (*spec.why, AGAIN))
    for n, fresh in zip(spec.writes, writes, strict=True):
        if n not in there:
            now[n] = fresh
    return made


AGAIN = "computed again: its result left memory in between"


def _over_others(
    spec: Spec, reads: tuple[Node, ...], writes: tuple[Node, ...], now: dict[Node, Node], why: tuple[str, ...]
) -> Spec:
    if isinstance(spec, ScanSpec):
        return replace(spec, inputs=tuple([now.get(n, n) for n in spec.inputs]))
    inplace = {p: now.get(n, n) for p, n in spec.inplace.items()}
    return replace(spec, reads=reads, writes=writes, inplace=inplace, why=why)
