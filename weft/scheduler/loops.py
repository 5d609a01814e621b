"""Loops in a plan: the launches of a step, on the same memory in every second one.

A loop takes memory for one step only: what a step computes for itself is planned like a plan of its own, in one block
of the workspace. A carry changes places between two tensors, or stays where it is if its last reader may write over it.
"""
# Tests: tests/core/grad/test_scan.py

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field

from weft.backends.protocol import Launch, Step
from weft.ir.graph import Node, elements
from weft.ir.index import Int, high
from weft.ir.kernel.algorithm import rate_dtype
from weft.lazy_dataclass import dataclass
from weft.scheduler import memory
from weft.scheduler.copies import Copies, copy_trace
from weft.scheduler.kernelize.spec import Home, KernelSpec, Place, ScanSpec, StepSpec
from weft.scheduler.plan import KernelInfo
from weft.scheduler.plan_verify import StepAccesses, What, launch_trace
from weft.scheduler.programs import CompiledProgram
from weft.scheduler.unrolled import Item, Repeat

Slot = int
Chosen = Mapping[KernelSpec, tuple[CompiledProgram, Mapping[str, Int]]]
"""The program of each kernel, and the values of those of its variables that are constants of the plan, or follow from
the plan's variables."""


def nbytes(node: Node) -> int:
    """Bytes of a node's value, at the largest runtime sizes."""
    return high(elements(node.shape)) * node.dtype.itemsize


@dataclass(slots=True)
class LoopLayout:
    """The block of the workspace that a loop needs while it runs, and the offsets in it."""

    spec: ScanSpec
    chosen: Chosen
    inner: dict[int, LoopLayout] = field(default_factory=dict[int, "LoopLayout"])
    stays: frozenset[int] = frozenset()
    """Carries that are computed over their last value."""
    offsets: Mapping[object, int] = field(default_factory=dict[object, int])
    nbytes: int = 0

    def __post_init__(self) -> None:
        spec = self.spec
        for k, s in enumerate(spec.steps):
            if isinstance(s.spec, ScanSpec):
                self.inner[k] = LoopLayout(s.spec, self.chosen)
        self.stays = frozenset(i for i in spec.carries if self._may_stay(i))
        end = len(spec.steps)
        requests: dict[object, memory.Request] = {}
        for i, carry in spec.carries.items():
            if carry.result is None:
                requests["carry", i] = memory.Request(carry.nbytes, 0, end)
            if i not in self.stays:
                requests["other", i] = memory.Request(carry.nbytes, 0, end)
        made, read = self._uses()
        for n, node in enumerate(spec.own):
            at = Place(Home.OWN, n)
            requests[at] = memory.Request(nbytes(node), made[at], read.get(at, made[at]))
        for k, layout in self.inner.items():
            requests["inside", k] = memory.Request(layout.nbytes, k, k)
        found = memory.plan(list(requests.values()))
        self.offsets = dict(zip(requests, found.offsets, strict=True))
        self.nbytes = found.nbytes

    def holder(self, step: StepSpec) -> ScanSpec:
        """The loop that the step is one of: this one, or one inside."""
        layouts: list[LoopLayout] = [self]
        while not any(s is step for s in (*layouts[-1].spec.begin, *layouts[-1].spec.steps)):
            layouts += layouts.pop().inner.values()
        return layouts[-1].spec

    def _uses(self) -> tuple[dict[Place, int], dict[Place, int]]:
        """The step at which each place is written first, and read last."""
        made: dict[Place, int] = {}
        read: dict[Place, int] = {}
        for k, s in enumerate(self.spec.steps):
            for p in s.writes:
                made.setdefault(p, k)
            for p in (*s.reads, *s.bases.values()):
                read[p] = k
        return made, read

    def _may_stay(self, i: int) -> bool:
        """The carry's new value may be computed over the old one: nobody reads that afterwards, nor in a way that would
        see it."""
        before, after = Place(Home.BEFORE, i), Place(Home.AFTER, i)
        made, read = self._uses()
        k = made[after]
        last = read.get(before, -1)
        if last != k:
            return last < k
        s = self.spec.steps[k]
        at = s.writes.index(after)
        if isinstance(s.spec, ScanSpec):
            return False
        if at in s.bases:
            return s.bases[at] == before and before not in s.reads
        if before in s.bases.values():
            return False
        pairs = self.chosen[s.spec][0].in_place
        numbers = [j for j, p in enumerate(s.reads) if p == before]
        params = s.spec.algorithm.params
        reads = [j for j, p in enumerate(params) if not p.written]
        writes = [j for j, p in enumerate(params) if p.written]
        return all((writes[at], reads[j]) in pairs for j in numbers)


@dataclass(slots=True)
class Run:
    """One loop laid into a plan: `slot` gives the number of a node of the graph around it, `take` that of a place in
    the loop's block of the workspace, where its own begins at `block`, `number` that of a constant among the plan's
    variables, `program` that of a program."""

    layout: LoopLayout
    block: int
    slot: Callable[[Node], Slot]
    take: Callable[[int], Slot]
    number: Callable[[Int], int]
    program: Mapping[CompiledProgram, int]
    variables: Mapping[str, int]
    copies: Copies
    info: dict[StepSpec, KernelInfo] = field(default_factory=dict[StepSpec, KernelInfo])
    copied: dict[int, tuple[Node, KernelInfo]] = field(default_factory=dict["int", "tuple[Node, KernelInfo]"])
    """The node that was copied, by the identity of the copy's facts."""

    def steps(self) -> Iterator[Item]:
        """The launches and copies before the first step, and the steps."""
        spec, mark = self.layout.spec, -self.layout.spec.body.height
        for s in spec.begin:
            yield from self._launch(s, self.variables, self._placed(first=True, even=True))
        cases = [(first, even) for first in (False, True) for even in (False, True)]
        patterns = tuple([tuple(self._step(first, even, mark)) for first, even in cases])
        yield Repeat(spec.body.length, spec.body.reverse, mark, patterns)

    def _step(self, first: bool, even: bool, t: int) -> Iterator[Item]:
        """A step with number `t` for its variable: the first one, or an even number of steps before the last one."""
        spec = self.layout.spec
        places = self._placed(first, even)
        variables = {**self.variables, spec.variable.name: t}
        for k, s in enumerate(spec.steps):
            if isinstance(s.spec, ScanSpec):
                yield from self._loop(k, s, s.spec, variables, places)
            else:
                yield from self._launch(s, variables, places)

    def infos(self) -> Iterator[KernelInfo]:
        """The facts of all launches and copies, once `steps` has told these."""
        yield from self.info.values()
        for _, info in self.copied.values():
            yield info

    def trace(self, step: Step, info: KernelInfo) -> StepAccesses:
        """The accesses of a step to the memory, to be verified."""
        if id(info) in self.copied:
            return copy_trace(step, self.copied[id(info)][0])
        assert isinstance(step, Launch)
        made = next(s for s, i in self.info.items() if i is info)
        spec = made.spec
        assert isinstance(spec, KernelSpec)
        params = spec.algorithm.params
        reads = [j for j, p in enumerate(params) if not p.written]
        writes = [j for j, p in enumerate(params) if p.written]
        shared = set(self.layout.chosen[spec][0].in_place)
        for j, p in zip(reads, made.reads, strict=True):  # rows of one tensor, of which one is written
            shared |= {
                (w, j)
                for w, q in zip(writes, made.writes, strict=True)
                if step.slots[w] == step.slots[j] and p.row != q.row
            }
        own = id(self.layout.holder(made))
        whats: list[What | None] = [None] * len(params)
        for j, p in zip((*reads, *writes), (*made.reads, *made.writes), strict=True):
            if p.home is Home.OWN:
                whats[j] = What(own, p.number)
            elif p.home in (Home.BEFORE, Home.AFTER):
                whats[j] = What(own, None)
        updated = [writes[k] for k in made.bases]
        return launch_trace(spec.algorithm, step.slots, updated, frozenset(shared), whats)

    def _own(self, key: object) -> Slot:
        return self.take(self.block + self.layout.offsets[key])

    def _placed(self, first: bool, even: bool) -> Callable[[Place], Slot]:
        """The memory of a place in such a step."""
        spec = self.layout.spec

        def carry(i: int, even: bool) -> Slot:
            """The slot of carry i after a step that is an even number of steps before the last one, or is not."""
            result = spec.carries[i].result
            if i in self.layout.stays or even:
                return self._own(("carry", i)) if result is None else self.slot(spec.results[result])
            return self._own(("other", i))

        def place(p: Place) -> Slot:
            match p.home:
                case Home.INPUT:
                    return self.slot(spec.inputs[p.number])
                case Home.RESULT:
                    return self.slot(spec.results[p.number])
                case Home.BEFORE:
                    return self.slot(spec.inputs[p.number]) if first else carry(p.number, not even)
                case Home.AFTER:
                    return carry(p.number, even)
                case Home.OWN:
                    return self._own(p)

        return place

    def _launch(
        self, s: StepSpec, variables: Mapping[str, int], place: Callable[[Place], Slot]
    ) -> Iterator[tuple[Step, KernelInfo]]:
        spec = s.spec
        assert isinstance(spec, KernelSpec)
        for at, base in s.bases.items():
            target, source = place(s.writes[at]), place(base)
            if target != source:
                node = spec.writes[at]
                made, info = self.copies.step(
                    target, source, node, self.layout.chosen, self.program, variables
                )
                self.copied[id(info)] = node, info
                yield made, info
        kernel, constants = self.layout.chosen[spec]
        known = {**variables, **{name: self.number(x) for name, x in constants.items()}}
        used = tuple([known[v] for v in kernel.variables])
        reads, writes = iter(s.reads), iter(s.writes)
        slots = [place(next(writes) if p.written else next(reads)) for p in spec.algorithm.params]
        info = self.info.get(s)
        if info is None:
            moved, flops = high(spec.bytes), high(spec.flops)
            info = self.info[s] = KernelInfo(
                spec.algorithm.name, moved, flops, spec.why, spec.written, rate_dtype(spec.algorithm)
            )
        yield Launch(self.program[kernel], tuple(slots), used), info

    def _loop(
        self,
        k: int,
        s: StepSpec,
        inner: ScanSpec,
        variables: Mapping[str, int],
        place: Callable[[Place], Slot],
    ) -> Iterator[Item]:
        slots = dict(zip((*inner.reads, *inner.writes), map(place, (*s.reads, *s.writes)), strict=True))
        run = Run(
            self.layout.inner[k], self.block + self.layout.offsets["inside", k], slots.__getitem__, self.take,
            self.number, self.program, variables, self.copies, self.info, self.copied,
        )  # fmt: skip
        yield from run.steps()
