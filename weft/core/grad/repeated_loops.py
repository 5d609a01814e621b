"""Loops that repeat: built from what was recorded of one whose steps are alike, whatever their number.

    scan(f, c, x of 21 rows)    first     traced, differentiated, its bodies made
    scan(f, c, x of 34 rows)    second    the same, and recorded: the results as a graph over init, xs and what f uses
    others                              traced, and built: what f does has to be known, what follows from it is

The key is all that follows is made of: the ops and attributes of a step, over numbers for what it is given; what the
tape has of it; modes. How the graphs depend on the number of steps is learned as that of composed functions on sizes
(see core/composed/sized.py). Where forms are verified, what is built is compared with what is recorded, each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import field
from typing import Any, TypeAlias

from weft import settings
from weft.autograd.context import context, device_of_files, main
from weft.autograd.repeated import UntoldError, comes_again, told
from weft.autograd.value import HOOKS, Value
from weft.core.composed.learned import Calls, Sizes, alike
from weft.core.composed.sized import SizedCalls
from weft.ir.calls import Given, GraphCall
from weft.ir.errors import IRError
from weft.ir.forks import forkable
from weft.ir.graph import Node, toposort
from weft.ir.loop_body import MOVES, rows_of
from weft.ir.numerics import pinned
from weft.ir.ops import MOVEMENT, Op
from weft.ir.template import GraphTemplate
from weft.lazy_dataclass import dataclass

KEPT, SEEN = 64, 512
"""Recordings, and hashes of steps that came once; the one met longest ago goes first."""

LENGTHS_KEPT = 32
"""Recordings by the number of steps, of each kind: of those that are not learned. The oldest goes first."""

Recorded: TypeAlias = "tuple[Sequence[Node], Sequence[Node | None]]"
"""The nodes that a loop is given, and what it makes of them."""

Record: TypeAlias = Callable[[int], Recorded]
"""Makes a loop for a number of steps."""


@dataclass(slots=True)
class _Graphs:
    """Graphs that differ in the number of steps."""

    sized: SizedCalls = field(default_factory=SizedCalls)
    by_sizes: dict[Sizes, Calls] = field(default_factory=dict[Sizes, Calls])

    def on(self, given: Sequence[Node], length: int, record: Record) -> list[Node | None] | None:
        """The results on what is given; None where they cannot be recorded."""
        found = _sizes(given)
        if found is None:
            return None
        sizes = (length, *found)

        def at(other: Sizes) -> Calls | None:
            return _calls(*record(other[0]))

        calls = self.by_sizes.get(sizes)
        if calls is None:
            calls = self.sized.at(sizes, at)
            if calls is None:
                calls = at(sizes)
                if calls is None:
                    return None
                self.sized.add(sizes, calls)
            elif settings.verify() and not alike(calls, at(sizes) or ()):
                raise IRError("a loop is not what is recorded for its number of steps", "repeated_loops")
            with _keeping:
                self.by_sizes[sizes] = calls
                if len(self.by_sizes) > LENGTHS_KEPT:
                    del self.by_sizes[next(iter(self.by_sizes))]
        call, *places = calls
        assert isinstance(call, GraphCall)
        made = call.template.build([given[k] for k in call.uses], device_of_files)
        return [made[p.number] if isinstance(p, Given) else None for p in places]


def _calls(given: Sequence[Node], results: Sequence[Node | None]) -> Calls | None:
    """One graph of what is made, and the number of each result among its own; None where it reads something else, or
    makes nothing."""
    template = GraphTemplate.of(given, [r for r in results if r is not None])
    if isinstance(template, str) or not template.rows:
        return None
    numbers = iter(range(len(results)))
    places = [None if r is None else Given(next(numbers)) for r in results]
    return (GraphCall(template, tuple(range(len(given)))), *places)


@dataclass(slots=True)
class Recording:
    """The results of loops with one step, and their gradients, by which of the results have one."""

    results: _Graphs = field(default_factory=_Graphs)
    gradients: dict[tuple[bool, ...], _Graphs] = field(default_factory=dict[tuple[bool, ...], _Graphs])

    @property
    def changed(self) -> bool:
        """True where there is more than what was read."""
        return any(g.sized.changed for g in (self.results, *self.gradients.values()))

    def written(self) -> dict[str, Any]:
        """All of it as `recordings` keep it."""
        gradients = [(asked, g.sized.written()) for asked, g in self.gradients.items()]
        for g in (self.results, *self.gradients.values()):
            g.sized.changed = False
        return {"results": self.results.sized.written(), "gradients": gradients}

    @staticmethod
    def read(record: Any, results: int, gradients: int) -> Recording:
        """All that was written, of loops with so many results and gradients."""
        pulled = {
            tuple(map(bool, asked)): _Graphs(SizedCalls.read(g, 1 + gradients))
            for asked, g in record["gradients"]
        }
        return Recording(_Graphs(SizedCalls.read(record["results"], 1 + results)), pulled)


@dataclass(frozen=True, slots=True)
class Known:
    """The recording of a loop, and what its step uses of what is outside."""

    recording: Recording
    outside: tuple[Node, ...]

    def results(self, given: Sequence[Node], length: int, record: Record) -> list[Node | None] | None:
        """The results for init and xs; None where they have to be made."""
        return self.recording.results.on([*given, *self.outside], length, record)

    def gradients(
        self, given: Sequence[Node], grads: Sequence[Node | None], length: int, record: Record
    ) -> list[Node | None] | None:
        """The gradients for init, xs, and the gradients of some results; None where they have to be made."""
        own = [*given, *self.outside, *(g for g in grads if g is not None)]
        asked = tuple([g is not None for g in grads])
        graphs = self.recording.gradients.get(asked)
        if graphs is None:
            graphs = self.recording.gradients.setdefault(asked, _Graphs())
        return graphs.on(own, length, record)


_known: dict[tuple[Hashable, ...], Recording] = {}
_seen: dict[int, None] = {}
_keeping = forkable(threading.RLock())


def known(
    carries: Sequence[Value],
    slices: Sequence[Value],
    nexts: Sequence[Value],
    outs: Sequence[Value],
    order: Sequence[Value],
    facts: Hashable,
) -> Known | None:
    """The recording of loops with such a step, and what this one uses of what is outside; None where nothing is, or
    can be. `order`: the values of the step on the tape. `facts`: what else the loop follows from, but for the number of
    steps."""
    now = context()
    if now.trace is not None or now.lifted is not None:
        return None
    step = _Step()
    try:
        step.describe(carries, slices, nexts, outs, order)
    except UntoldError:
        return None
    key = (now, main.dtype, main.device, pinned(), facts, len(carries), len(slices), *step.rows)
    found = _known.get(key)
    if found is None:
        number = hash(key)
        with _keeping:
            if not comes_again(number, _seen, SEEN):
                return None
            found = _known.setdefault(key, Recording())
            if len(_known) > KEPT:
                del _known[next(iter(_known))]
    return Known(found, tuple(step.outside))


def _sizes(given: Sequence[Node]) -> Sizes | None:
    """The sizes of what a loop is given; None where it would be made of other nodes than these."""
    sizes: list[int] = []
    for n in given:
        if rows_of(n)[0] is not n:
            return None
        for s in n.shape:
            if not isinstance(s, int) or s == 0:
                return None
            sizes.append(s)
    return tuple(sizes)


_SHAPED = frozenset({Op.CONST, Op.RANGE})
"""Ops without inputs that follow from their attributes."""


@dataclass(slots=True)
class _Step:
    """The description of a step, being made. A value stands for its place, counted down from -1, a node for its
    number."""

    rows: list[Hashable] = field(default_factory=list[Hashable])
    numbers: dict[Node, int] = field(default_factory=dict[Node, int])
    places: dict[Value, int] = field(default_factory=dict[Value, int])
    varying: set[Node] = field(default_factory=set[Node])
    outside: list[Node] = field(default_factory=list[Node])
    """The nodes that are numbered, but not described but for their shapes."""

    def describe(
        self,
        carries: Sequence[Value],
        slices: Sequence[Value],
        nexts: Sequence[Value],
        outs: Sequence[Value],
        order: Sequence[Value],
    ) -> None:
        """Describe all of it. UntoldError where that is not possible."""
        for v in (*carries, *slices):
            self._given(v.node)
            self.varying.add(v.node)
            self._place(v, v.needs_grad)
        used = [v.node for v in _with_inputs(order)]
        for n in toposort([*(v.node for v in (*nexts, *outs)), *used]):
            if any(i in self.varying for i in n.inputs):
                self.varying.add(n)
                self._row(n)
        for v in order:
            if v not in self.places:
                self._on_tape(v)
        for v in (*nexts, *outs):
            if v.needs_grad and v not in self.places:
                self._from_outside(v)
            self.rows.append((self._number(v.node), self.places.get(v)))

    def _given(self, n: Node) -> None:
        self.numbers[n] = len(self.numbers)
        self.rows.append((n.shape, n.dtype, n.device))

    def _row(self, n: Node) -> None:
        """A row for a node, after those of its inputs."""
        row = (n.op, n.attrs, n.shape, n.dtype, *[self._number(i) for i in n.inputs])
        self.numbers[n] = len(self.numbers)
        self.rows.append(row)

    def _number(self, n: Node) -> int:
        """The number of a node that varies, or of one that is moved or given from outside."""
        path: list[Node] = []
        while n not in self.numbers:
            path.append(n)
            if n.op not in MOVES or n.storage is not None:
                break
            n = n.inputs[0]
        for n in reversed(path):
            if n.storage is None and (n.op in MOVES or n.op in _SHAPED):
                self._row(n)
            elif n.op in MOVES or n.op in _SHAPED or (n.op is Op.BUFFER and n.device is None):
                raise UntoldError  # rules may look at what it was made by; or it is in a file
            else:
                self.outside.append(n)
                self._given(n)
        return self.numbers[path[0] if path else n]

    def _place(self, v: Value, what: Hashable) -> None:
        self.places[v] = ~len(self.places)
        self.rows.append(what)

    def _on_tape(self, v: Value) -> None:
        """A row for a value of the tape, after those of its inputs: of those from outside up to where a gradient is
        taken."""
        if v in HOOKS:
            raise UntoldError
        row: list[Hashable] = [v.op, told(v.rule), v.attrs, self._number(v.node)]
        for x in v.inputs:
            if x.needs_grad and x not in self.places:
                self._from_outside(x)
            row.append(self.places[x] if x.needs_grad else self._number(x.node))
        self._place(v, tuple(row))

    def _from_outside(self, v: Value) -> None:
        path = list(_moved(v))
        if path[-1] not in self.places:
            self._place(path[-1], ("from outside", self._number(path[-1].node)))
        for x in path[-2::-1]:
            if x not in self.places:
                self._on_tape(x)


def _moved(v: Value) -> Iterator[Value]:
    """A value from outside, and what it is a movement of."""
    yield v
    while v.op in MOVEMENT and v.inputs:
        v = v.inputs[0]
        yield v


def _with_inputs(order: Sequence[Value]) -> Iterator[Value]:
    for v in order:
        yield v
        yield from v.inputs
