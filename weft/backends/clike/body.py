"""Statements of lowered loops -> source text. What differs between languages is in `Language`, between targets in
`Hooks`.

Where the language has vectors, a vector loop's lanes are cut into groups of its vectors' lengths, and every statement
is written for one group after another. Where it has none, every statement becomes a loop over the lanes:

    vector j in 4:                      for (long j = 0; j < 4; j++) t0[j] = x[j] * 2.0f;
      t0 = x[j] * 2.0           ->      for (long j = 0; j < 4; j++) y[3 - j] = t0[j];
      y[3 - j] = t0

`text` has lines and names, `values` what computes, `writing` and `lane_loops` what changes memory.
"""
# Tests: tests/backends/clike/test_body.py, tests/backends/opencl/test_device.py

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace
from typing import Protocol

from weft.backends.clike.lane_loops import LaneLoops
from weft.backends.clike.language import Language, Place, Where
from weft.backends.clike.text import Group, TextValue
from weft.backends.clike.values import opaques
from weft.ir import dtypes
from weft.ir.expr import names_of
from weft.ir.index import Guard
from weft.ir.loops import (
    Accumulate,
    Alloc,
    Barrier,
    Block,
    Combine,
    If,
    Let,
    Loop,
    LoopKind,
    Prefetch,
    Stmt,
    Store,
)
from weft.ir.loops_names import every, names_of_guard, written

MAX_COPIES = 512
"""Statements that an unrolled nest may be written out to; larger ones stay loops."""


class Hooks(Protocol):
    """The parts that a target adds."""

    def spread(self, body: Body, loop: Loop) -> None:
        """A PARALLEL, BLOCK or THREAD loop."""
        ...

    def barrier(self, body: Body) -> None:
        """All threads of a block meet, and see each other's stores."""
        ...


class Body(LaneLoops):
    """Renders blocks into `lines`."""

    def __init__(self, language: Language, hooks: Hooks, taken: Iterable[str] = (), depth: int = 1) -> None:
        super().__init__(language, taken, depth)
        self.hooks = hooks

    def block(self, stmts: Block) -> None:
        """All statements in order."""
        for s in stmts:
            self.statement(s)

    def statement(self, s: Stmt) -> None:
        """One statement. TypeError for an unknown one."""
        match s:
            case Loop():
                self.loop(s)
            case Alloc():
                self.alloc(s)
            case Let():
                self._let(s)
            case Store() | Accumulate():
                if self.looped:
                    self._in_lanes(s)
                elif isinstance(s, Store):
                    self._store(s)
                else:
                    self._accumulate(s)
                self._forget({s.buffer})
            case If():
                self._if(s)
            case Prefetch():
                self._prefetch(s)
            case Barrier():
                self.hooks.barrier(self)
                self._forget(None)
            case Combine():
                self.among_threads(s)
                self._forget({s.buffer})
            case _:
                raise TypeError(f"not a statement: {type(s).__name__}")

    def among_threads(self, s: Combine) -> None:
        """A combination by threads in registers. For targets that ask for it (`launches` with a `warp`)."""
        raise ValueError(f"no way to combine {s.buffer} of {s.group} threads was given")

    def _forget(self, buffers: Set[str] | None) -> None:
        """Forget what was read of these buffers; None: of all that other threads can write to."""
        if self.read:
            self.read = {k: v for k, v in self.read.items() if buffers is not None and k[0] not in buffers}

    def _forget_written(self, body: Block) -> None:
        """Before a loop over `body`: what its iterations change is not what was read before it."""
        if self.read:
            inside = list(every(body))
            self._forget(None if any(isinstance(s, Barrier) for s in inside) else written(body))

    # loops

    def loop(self, loop: Loop) -> None:
        """A loop of any kind."""
        if loop.kind is LoopKind.ACROSS:  # where these are threads', they are Combine
            loop = replace(loop, kind=LoopKind.VECTOR)
        match loop.kind:
            case LoopKind.VECTOR if loop.extent != 1 and self.language.widths:
                self._vector(loop)
            case LoopKind.VECTOR if loop.extent != 1:
                self._lane_loop(loop)
            case LoopKind.VECTOR:
                self.unroll(loop)
            case LoopKind.UNROLL if copies((loop,)) <= MAX_COPIES:
                self.unroll(loop)
            case LoopKind.SERIAL if loop.extent == 1:
                self.unroll(loop)
            case LoopKind.SERIAL | LoopKind.UNROLL | LoopKind.MATRIX:
                self._begin((loop.extent,))
                self._forget_written(loop.body)
                last = self.index.bare(self.at(loop.extent))
                with self.inside(self.language.loop(self.define(loop.var.name), "0", last)):
                    self.block(loop.body)
            case _:
                self.hooks.spread(self, loop)

    def unroll(self, loop: Loop) -> None:
        """Iterations written out, the variable a constant in each."""
        assert isinstance(loop.extent, int), "loops of unknown extent are not unrolled"
        for k in range(loop.extent):
            self.constants[loop.var] = k
            self.names[loop.var.name] = str(k)
            self.block(loop.body)
        self.constants.pop(loop.var, None)

    def _vector(self, loop: Loop) -> None:
        assert isinstance(loop.extent, int), "vector loops have a constant extent"
        outer, self.lane = (self.groups, self.now), loop.var
        self.lanes, self.groups, self.varying = loop.extent, [], {loop.var.name}
        start = 0
        for width in (*self.language.widths, 1):
            while loop.extent - start >= width:
                self.groups.append(Group(start, width if width > 1 else 0))
                start += width
        self.names.pop(loop.var.name, None)
        if self.groups:
            self.now = self.groups[0]
            self.block(loop.body)
        (self.groups, self.now), self.lane, self.lanes, self.varying = outer, None, 0, set()

    def _lane_loop(self, loop: Loop) -> None:
        assert isinstance(loop.extent, int), "vector loops have a constant extent"
        self.lane, self.lanes = loop.var, loop.extent
        self.define(loop.var.name)
        self.varying = {loop.var.name}
        if loop.extent:
            self.block(loop.body)
        self.lane, self.lanes, self.varying = None, 0, set()

    # other statements

    def alloc(self, s: Alloc) -> None:
        """A buffer of this thread's own."""
        b = s.buffer
        assert isinstance(b.size, int), "allocations have a constant size"
        place = Place(self.fresh.fresh(b.name), b, Where.PRIVATE, self.lanes)
        self.places[b.name] = place
        self.do(self.language.array(place, max(1, b.size * max(1, self.lanes))))
        if self.lane is not None:
            self.varying.add(b.name)

    def _let(self, s: Let) -> None:
        masked = any(g.mask is not None for g in self.groups)
        if self.lane is None or not (masked or self._differs(names_of(s.value))):
            next(self.each())
            self.temps[s.name] = {None: self._named(s, *self.evaluate((s.value,)))}
            return
        self.varying.add(s.name)
        if self.looped:
            array = self._lane_array(s.value.dtype, s.name)
            with self._over_lanes():
                (value,) = self.evaluate((s.value,))
                self._put(array, value.text)
            self.temps[s.name] = {None: TextValue(self._get(array))}
            return
        values: dict[int | None, TextValue] = {}
        for group in self.each():
            values[group.start] = self._named(s, *self.evaluate((s.value,)))
        self.temps[s.name] = values

    def _named(self, s: Let, value: TextValue) -> TextValue:
        name = self.fresh.fresh(s.name)
        self.do(self.language.constant(s.value.dtype, value.lanes, name, value.text))
        return TextValue(name, value.lanes)

    def _prefetch(self, s: Prefetch) -> None:
        if self.looped:
            return
        for _ in self.each():
            self.evaluate((), opaques(s.offset))
            at = self._steps(s.offset)
            if at.steps is not None:
                line = self.language.prefetch(self.places[s.buffer], self.index.bare(at.base))
                if line:
                    self.do(line)

    def _if(self, s: If) -> None:
        outer, now = self.groups, self.now
        if self.looped and not self._same_in_lanes(s.guard):
            active = self._lane_array(dtypes.bool_, "active")
            with self.inside(self.language.loop(self.names[self.the_lane.name], "0", str(self.lanes))):
                self._put(active, self.language.literal(dtypes.bool_, False))
                self.memo = {}
                with self.where(self.now.mask), self._guarded(s.guard) as runs:
                    if runs:
                        self._put(active, self.language.literal(dtypes.bool_, True))
            self.groups = [replace(self.groups[0], mask=self._get(active))]
            self.now = self.groups[0]
            self.block(s.body)
            self.groups, self.now = outer, now
            return
        inside: list[Group] = []
        shared: str | None = None
        varies = self.lane is not None and self._differs(names_of_guard(s.guard))
        for _ in self.each():
            if varies:
                if self._fold(s.guard):
                    inside.append(self.now)
                continue
            when = self.condition(s.guard)
            if when.never:
                return
            shared = when.shared
            inside = list(outer)
            break
        if not inside:
            return
        self.groups, self.now = inside, inside[0]
        with self.where(self._any_of(inside) if varies else shared):
            self.block(s.body)
        self.groups, self.now = outer, now

    def _same_in_lanes(self, guard: Guard) -> bool:
        return self.now.mask is None and not self._differs(names_of_guard(guard))


def copies(block: Block) -> int:
    """The number of statements of a block, its unrolled loops written out."""
    total = 0
    for s in block:
        inside = copies(s.body) if isinstance(s, Loop | If) else 1
        times = s.extent if isinstance(s, Loop) and s.kind is LoopKind.UNROLL else 1
        total += inside * (times if isinstance(times, int) else 1)
    return total
