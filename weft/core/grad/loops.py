"""Loops on values: one LOOP for the steps, and one that runs backwards for their gradients.

    forward    c[t+1], y[t] = f(c[t], x[t])                                            w: what f uses besides
    backward   dc[t], dx[t], dw += vjp of f at (c[t], x[t])  applied to (dc[t+1], dy[t])

The function is traced once, and its gradient is a graph over the same placeholders. What that graph needs of the
forward steps is read from where these put it: carries from their history, sums from stacks that the forward loop keeps
for it; elementwise functions of those are computed again. A product's gradient by what all steps share, dw = sum over t
of a[t]' b[t], is one product over all steps after the loop, where stacking what it lacks takes less memory than dw
itself: a chain of steps that each read and write all of dw would take much longer.
"""
# Tests: tests/core/grad/test_scan.py

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cache, partial
from typing import TypeAlias

from weft import settings
from weft.autograd.batching import batched, placeholder, spread
from weft.autograd.context import (
    Context,
    context,
    default_device,
    device_of_files,
    grad_enabled,
    switched,
)
from weft.autograd.ops import reshape, sum_
from weft.autograd.reverse import gradients, tape
from weft.autograd.value import Value, apply
from weft.core.args import broadcast as bc
from weft.core.composed.composite import without_calls
from weft.core.grad.function import several_results
from weft.core.grad.named_steps import KnownStep, Step, keep, known_step
from weft.core.grad.repeated_loops import Known, Recorded, known
from weft.ir import dtypes, graph
from weft.ir.errors import IRError
from weft.ir.graph import Axes, Box, Node, Padding, elements, toposort
from weft.ir.loop_body import Body, LoopNode, Part, in_memory, normal
from weft.ir.ops import MOVEMENT, REDUCE, Op
from weft.ir.rewrite import rebuilt
from weft.lazy_dataclass import dataclass

Fn: TypeAlias = Callable[[list[Value], list[Value]], tuple[list[Value], list[Value]]]
"""(carries, a row of each sliced input) -> (the next carries, what is stacked). Called again for second derivatives."""

_KEPT = REDUCE | {Op.SCATTER, Op.LOOP}
"""The ops whose results the backward loop reads from the forward one and does not compute again."""


def loop(
    fn: Fn, init: Sequence[Value], xs: Sequence[Value], length: int, reverse: bool
) -> tuple[list[Value], list[Value]]:
    """The last carries, and the stacked results. Sizes are known, and `length` is at least 1."""
    return loop_by(Step(None, lambda carries, rows, _uses: fn(carries, rows), ()), init, xs, length, reverse)


@without_calls
def loop_by(
    step: Step, init: Sequence[Value], xs: Sequence[Value], length: int, reverse: bool
) -> tuple[list[Value], list[Value]]:
    """The same, by a step that may have a name: where it is known what follows from that, it is not traced."""
    key = step.key(init, xs, reverse)
    devices = [v.node.device for v in (*init, *xs, *step.uses)]
    there = None if key is None else known_step(key, step, devices)
    if there is not None:
        if settings.verify():
            _check(step, there, init, xs, length, reverse)
        trace = cache(partial(_traced_late, step, there, init, xs, length, reverse, context()))
        captured = [step.uses[k] for k in there.captured]
        return _Applied(
            init, xs, length, captured, there.live, there.live_outs, there.carries, step.on(there), trace
        ).run()
    trace = _traced(step.on_values, init, xs, length, reverse)
    if trace is None:
        return _laid_out(step.on_values, init, xs, length, reverse)
    results = trace.run()
    found = None if key is None else trace.found(step)
    if key is not None and found is not None:
        keep(key, found)
    return results


def _traced_late(
    step: Step,
    there: KnownStep,
    init: Sequence[Value],
    xs: Sequence[Value],
    length: int,
    reverse: bool,
    modes: Context,
) -> _Trace:
    """The trace of a known step, in the modes that the loop was made in."""
    with switched(**{name: mode for name, mode in modes._asdict().items() if name not in ("trace", "watch")}):
        trace = _traced(step.on_values, init, xs, length, reverse)
        assert trace is not None
        trace.follow()
    trace.known = step.on(there)
    return trace


def _check(
    step: Step, there: KnownStep, init: Sequence[Value], xs: Sequence[Value], length: int, reverse: bool
) -> None:
    """IRError where a step is not what it was: it reads what is not part of its key."""
    trace = _traced(step.on_values, init, xs, length, reverse)
    if trace is not None:
        trace.run()
    if trace is None or trace.found(step) != there:
        raise IRError(f"{step.name} does not take the step that it took with what is like it", "loop_by")


def _traced(fn: Fn, init: Sequence[Value], xs: Sequence[Value], length: int, reverse: bool) -> _Trace | None:
    """A step on placeholders; None where the steps have to be laid out."""
    device = next((v.node.device for v in (*init, *xs) if v.node.device is not None), default_device())
    records = grad_enabled()
    carries = [_placeholder(v.shape, v, device, records and v.dtype.is_float) for v in init]
    slices = [_placeholder(v.shape[1:], v, device, records and v.needs_grad) for v in xs]
    with switched(stand_ins=True):
        nexts, outs = fn(list(carries), list(slices))
    given = {v.node for v in (*carries, *slices)}
    if not _is_plain([v.node for v in (*nexts, *outs)], given):
        return None
    return _Trace(fn, tuple(init), tuple(xs), carries, slices, nexts, outs, length, reverse)


@dataclass(slots=True)
class _Applied:
    """A step and what it is applied to. Results and gradients are built from what is recorded, if it is `known`, and
    are those of its `trace` where there is no answer."""

    init: Sequence[Value]
    xs: Sequence[Value]
    length: int
    captured: Sequence[Value]
    live: Sequence[int]
    live_outs: Sequence[int]
    carries: int
    known: Known | None
    trace: Callable[[], _Trace]

    def given(self) -> list[Node]:
        """The nodes that the loop is applied to, as it reads them."""
        return [in_memory(v.node) for v in (*self.init, *self.xs)]

    def run(self) -> tuple[list[Value], list[Value]]:
        """The results, those of them that gradients flow through with the gradient that they have together."""
        finals, stacks = self.results()
        some = [finals[i] for i in self.live] + [stacks[k] for k in self.live_outs]
        if some:
            done = several_results(some, (*self.init, *self.xs, *self.captured), self.pull_back, False)
            ends = iter([v for v in done if v is not None])
            for i in self.live:
                finals[i] = next(ends)
            for k in self.live_outs:
                stacks[k] = next(ends)
        return finals, stacks

    def results(self) -> tuple[list[Value], list[Value]]:
        """The last carries, and the stacked results, without history."""
        made = None
        if self.known is not None:
            made = self.known.results(self.given(), self.length, lambda n: self.trace().recorded(n))
        if made is None:
            return self.trace().results()
        values = [Value(n) for n in made if n is not None]
        return values[: self.carries], values[self.carries :]

    @without_calls
    def pull_back(self, grads: Sequence[Value | None]) -> tuple[Value | None, ...]:
        """The gradients of what the step is applied to, and of what it captured."""
        if grad_enabled():
            return self.trace().again(grads)
        made = None
        if self.known is not None:
            asked = [g is not None for g in grads]
            nodes = [None if g is None else in_memory(g.node) for g in grads]
            made = self.known.gradients(
                self.given(), nodes, self.length, lambda n: self.trace().recorded_gradients(asked, n)
            )
        if made is None:
            return self.trace().back(grads)
        return tuple([None if n is None else Value(n) for n in made])


def _placeholder(shape: graph.Shape, v: Value, device: str | None, needs_grad: bool) -> Value:
    return Value(graph.buffer(shape, v.dtype, device, None), needs_grad)


def _is_plain(roots: Sequence[Node], given: set[Node]) -> bool:
    """All sizes and offsets are known, something is in every tensor that a step makes, and nothing that it makes of
    what it is `given` goes to another device."""
    own = set(given)
    for n in toposort(roots):
        if not own.isdisjoint(n.inputs):
            own.add(n)
            if n.op is Op.COPY:
                return False
        where: tuple[object, ...] = ()
        if isinstance(n.attrs, Box):
            where = n.attrs.start
        elif isinstance(n.attrs, Padding):
            where = (*n.attrs.low, *n.attrs.high)
        if not all(isinstance(s, int) for s in (*n.shape, *where)):
            return False
    return all(elements(r.shape) != 0 for r in roots)


def _laid_out(
    fn: Fn, init: Sequence[Value], xs: Sequence[Value], length: int, reverse: bool
) -> tuple[list[Value], list[Value]]:
    """The steps one by one, where sizes are only known when they run, nothing is to be computed, or a step computes on
    several devices."""
    carry = list(init)
    rows: list[list[Value]] = []
    for t in reversed(range(length)) if reverse else range(length):
        carry, outs = fn(carry, [row(x, t) for x in xs])
        rows.append(outs)
    if reverse:
        rows.reverse()
    stacked = [
        apply(Op.CONCAT, tuple(reshape(v, (1, *v.shape)) for v in column), graph.Along(0))
        for column in zip(*rows, strict=True)
    ]
    return carry, stacked


def row(x: Value, t: int) -> Value:
    """x[t]"""
    return reshape(_rows(x, t, 1), x.shape[1:])


def _rows(x: Value, first: int, count: int) -> Value:
    """x[first : first + count]"""
    rest = x.shape[1:]
    box = Box((first, *(0 for _ in rest)), (1,) * len(x.shape))
    return apply(Op.SHRINK, (x,), box, (count, *rest))


@dataclass(slots=True)
class _Reached:
    """Parts of a forward step that a gradient needs: carries before it, carries after it, results, sums."""

    before: set[int] = field(default_factory=set[int])
    after: set[int] = field(default_factory=set[int])
    outs: set[int] = field(default_factory=set[int])
    kept: dict[Node, None] = field(default_factory=dict["Node", None])


@dataclass(slots=True)
class _Trace:
    """A step, and what it is applied to."""

    fn: Fn
    init: tuple[Value, ...]
    xs: tuple[Value, ...]
    carries: list[Value]
    slices: list[Value]
    nexts: list[Value]
    outs: list[Value]
    length: int
    reverse: bool
    captured: list[Value] = field(default_factory=list[Value])
    live: list[int] = field(default_factory=list[int])  # carries that a gradient flows through
    live_outs: list[int] = field(default_factory=list[int])
    body: Body = field(init=False)
    inputs: tuple[Node, ...] = ()
    kept: dict[Node, int] = field(default_factory=dict["Node", int])  # sums that are stacked, too
    histories: frozenset[int] = frozenset()
    step: tuple[dict[int, Value], dict[int, Value], dict[Value, Value]] | None = None
    """Placeholders for the gradients of carries and results, and the gradients of a step that follow from these; None
    until the results are made."""
    known: Known | None = None

    # --- forward

    def make(self, more: Sequence[Node] = ()) -> None:
        """The body, with `more` results beside those of the function."""
        self.kept = {n: len(self.outs) + k for k, n in enumerate(more)}
        self.body, self.inputs = normal(
            [v.node for v in self.carries], [v.node for v in self.slices], [v.node for v in self.nexts],
            [*(v.node for v in self.outs), *more], [v.node for v in (*self.init, *self.xs)],
            self.length, self.reverse,
        )  # fmt: skip

    def result(self, part: Part, k: int) -> Value:
        """A result, without history."""
        return Value(graph.apply(Op.LOOP, self.inputs, LoopNode(self.body, part, k), home=device_of_files))

    def carry_rows(self, i: int, first: int) -> Value:
        """A row for each step of carry i's history, from `first` on."""
        return _rows(self.result(Part.HISTORY, i), first, self.length)

    def final(self, i: int) -> Value:
        """Carry i after the last step."""
        if i in self.histories:
            return row(self.result(Part.HISTORY, i), 0 if self.reverse else self.length)
        return self.result(Part.FINAL, i)

    def stack(self, k: int) -> Value:
        """Result k of all steps."""
        for i in self.histories:
            if k < len(self.outs) and self.nexts[i].node is self.outs[k].node:
                return self.carry_rows(i, self.body.after)
        return self.result(Part.STACK, k)

    def run(self) -> tuple[list[Value], list[Value]]:
        """The results, with their gradient if the tape records."""
        order = self.follow() if grad_enabled() else ()
        flags = tuple([v.needs_grad for v in (*self.init, *self.xs)])
        facts = self.reverse, flags, tuple(self.live), tuple(self.live_outs)
        self.known = known(self.carries, self.slices, self.nexts, self.outs, order, facts)
        return _Applied(
            self.init, self.xs, self.length, self.captured, self.live, self.live_outs, len(self.nexts), self.known,
            lambda: self,
        ).run()  # fmt: skip

    def results(self) -> tuple[list[Value], list[Value]]:
        """The results, without history; with what their gradient needs of the steps."""
        if self.live or self.live_outs:
            after, out = {i: self.like(i) for i in self.live}, {k: self.like_out(k) for k in self.live_outs}
            found = self.pulled(after, out)
            self.step = after, out, found
            reached = self.reached([v.node for v in found.values()], True)
            self.make(list(reached.kept))
            shown = {v.node for v in self.outs}
            hidden = {i for i in reached.after if self.nexts[i].node not in shown}
            self.histories = frozenset(reached.before | hidden)
        else:
            self.make()
        finals = [self.final(i) for i in range(len(self.nexts))]
        return finals, [self.stack(k) for k in range(len(self.outs))]

    # --- as recorded

    def found(self, step: Step) -> KnownStep | None:
        """The things that follow from the step; None where that cannot be told from its name."""
        known = self.known
        counts = len(self.nexts), len(self.slices), len(self.outs)
        return known and step.found(known, self.captured, self.live, self.live_outs, counts)

    def given(self) -> list[Node]:
        """The nodes that the loop is applied to, as it reads them."""
        return [in_memory(v.node) for v in (*self.init, *self.xs)]

    def of_length(self, length: int) -> _Trace:
        """The loop with another number of steps, on placeholders."""
        init = tuple([
            _placeholder(v.shape, v, one.node.device, v.needs_grad)
            for v, one in zip(self.init, self.carries, strict=True)
        ])  # fmt: skip
        xs = tuple([
            _placeholder((length, *one.shape), v, one.node.device, v.needs_grad)
            for v, one in zip(self.xs, self.slices, strict=True)
        ])  # fmt: skip
        made = _Trace(
            self.fn, init, xs, self.carries, self.slices, self.nexts, self.outs, length, self.reverse
        )  # fmt: skip
        made.captured, made.live, made.live_outs, made.known = (
            self.captured, self.live, self.live_outs, self.known,
        )  # fmt: skip
        return made

    def recorded(self, length: int) -> Recorded:
        """The results for a number of steps."""
        there = self.of_length(length)
        finals, stacks = there.results()
        return [*there.given(), *there.outside()], [v.node for v in (*finals, *stacks)]

    def recorded_gradients(self, asked: Sequence[bool], length: int) -> Recorded:
        """The gradients for a number of steps, where some results have one."""
        there = self.of_length(length)
        finals, stacks = there.results()
        ends = [finals[i] for i in self.live] + [stacks[k] for k in self.live_outs]
        grads = [
            _placeholder(v.shape, v, v.node.device, False) if a else None
            for v, a in zip(ends, asked, strict=True)
        ]
        made = [None if v is None else v.node for v in there.back(grads)]
        return [*there.given(), *there.outside(), *(g.node for g in grads if g is not None)], made

    def outside(self) -> tuple[Node, ...]:
        """The nodes from outside that steps use."""
        assert self.known is not None
        return self.known.outside

    def follow(self) -> list[Value]:
        """Find what the step uses from outside, and through which carries and results gradients flow. Returned are the
        values of the step on the tape."""
        number = {v: 1 << i for i, v in enumerate(self.carries)}
        alive = 1 << len(self.carries)
        number.update(dict.fromkeys(self.slices, alive))
        inside: dict[Value, int] = {}
        captured: dict[Value, None] = {}

        order = tape([v for v in (*self.nexts, *self.outs) if v.needs_grad])
        own = {v.node for v in (*self.carries, *self.slices)}
        varying = _varying([v.node for v in order], own)

        def of(v: Value) -> int:
            """The carries that gradients reach through it, and whether they reach anything else, as bits."""
            return inside.get(v, 0)

        def outside(v: Value) -> None:
            while v.op in MOVEMENT and v.inputs:
                v = v.inputs[0]
            captured[v] = None

        for v in order:
            bits = number.get(v, 0)
            # the node alone does not say: the parent of several results is a constant
            if bits or v.node in varying or any(x in inside for x in v.inputs):
                for x in v.inputs:
                    bits |= of(x)
                    if x.needs_grad and x not in inside:
                        outside(x)
                        bits |= alive
                inside[v] = bits
        for v in (*self.nexts, *self.outs):
            if v.needs_grad and v not in inside:
                outside(v)
                inside[v] = alive
        bits = alive
        for i, v in enumerate(self.init):
            bits |= v.needs_grad << i

        def is_live(v: Value) -> bool:
            return v.needs_grad and bool(of(v) & bits)

        changed = True
        while changed:
            changed = False
            for i, v in enumerate(self.nexts):
                if not bits >> i & 1 and is_live(v):
                    bits, changed = bits | 1 << i, True
        self.captured = list(captured)
        self.live = [i for i in range(len(self.nexts)) if bits >> i & 1 and self.nexts[i].dtype.is_float]
        self.live_outs = [k for k, v in enumerate(self.outs) if is_live(v)]
        return [v for v in order if v in inside]

    # --- backward

    def like(self, i: int) -> Value:
        """A placeholder for the gradient of carry i."""
        v = self.carries[i]
        return Value(graph.buffer(v.shape, v.dtype, v.node.device, None))

    def like_out(self, k: int) -> Value:
        """A placeholder for the gradient of a step's result k."""
        v = self.outs[k]
        return Value(graph.buffer(v.shape, v.dtype, v.node.device, None))

    def wanted(self) -> list[Value]:
        """The values with respect to which one step's gradients are computed."""
        return [
            *(self.carries[i] for i in self.live),
            *(v for v in self.slices if v.needs_grad),
            *self.captured,
        ]

    def pulled(self, after: Mapping[int, Value], out: Mapping[int, Value]) -> dict[Value, Value]:
        """The gradients of one step, from those of the carries after it and of its results."""
        ends = [self.nexts[i] for i in after] + [self.outs[k] for k in out]
        with switched(stand_ins=True):
            return gradients(ends, [*after.values(), *out.values()], self.wanted(), False, False)

    def reached(self, roots: Sequence[Node], more: bool) -> _Reached:
        """Parts of a forward step that the graph under `roots` needs; unless `more`, no sums but stacked ones."""
        before = {v.node: i for i, v in enumerate(self.carries)}
        after = {v.node: i for i, v in enumerate(self.nexts)}
        outs = {v.node: k for k, v in enumerate(self.outs)}
        forward = _varying([*after, *outs], {*before, *(v.node for v in self.slices)})
        found = _Reached()
        seen: set[Node] = set()
        stack = list(reversed(roots))
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            seen.add(n)
            if n in before:
                found.before.add(before[n])
            elif n in outs and n in forward:
                found.outs.add(outs[n])
            elif n in after and n in forward:
                found.after.add(after[n])
            elif n in forward and n.op in _KEPT and (more or n in self.kept):
                found.kept[n] = None
            elif n.storage is None:
                stack.extend(reversed(n.inputs))
        return found

    def by_number(
        self, grads: Sequence[Value | None]
    ) -> tuple[dict[int, Value | None], dict[int, Value | None]]:
        """Gradients by the numbers of the carries, and of the results."""
        count = len(self.live)
        return dict(zip(self.live, grads[:count], strict=True)), dict(
            zip(self.live_outs, grads[count:], strict=True)
        )

    def back(self, grads: Sequence[Value | None]) -> tuple[Value | None, ...]:
        """The gradients, made."""
        if self.step is None:  # the results were not
            self.results()
        finals, stacks = self.by_number(grads)
        return _Back(self, finals, {k: g for k, g in stacks.items() if g is not None}).run()

    def again(self, grads: Sequence[Value | None]) -> tuple[Value | None, ...]:
        """The same, to be differentiated itself: the steps are made again, on their carries."""
        finals, stacks = self.by_number(grads)
        fn, live, count = self.fn, self.live, len(self.carries)

        def steps(carry: list[Value], x: list[Value]) -> tuple[list[Value], list[Value]]:
            return fn(carry, x)[0], list(carry)

        _, before = loop(steps, self.init, self.xs, self.length, self.reverse)
        given = {k: g for k, g in stacks.items() if g is not None}
        own = [j for j, v in enumerate(self.slices) if v.needs_grad]

        def back(carry: list[Value], x: list[Value]) -> tuple[list[Value], list[Value]]:
            old, rows, out = x[:count], x[count : count + len(self.xs)], x[count + len(self.xs) :]
            nexts, outs = fn(list(old), list(rows))
            # what it uses from outside may have been made anew: equal values, in the same order
            step = _Trace(fn, self.init, self.xs, old, rows, nexts, outs, self.length, self.reverse)
            step.follow()
            ends = [nexts[i] for i in live] + [outs[k] for k in given]
            asked = [*(old[i] for i in live), *(rows[j] for j in own), *step.captured]
            found = gradients(ends, [*carry[: len(live)], *out], asked, True, False)
            sums = [
                apply(Op.ADD, (acc, bc.cast(found[w], acc.dtype))) if w in found else acc
                for acc, w in zip(carry[len(live) :], step.captured, strict=True)
            ]
            return (
                [*(found.get(v) or _zeros(v) for v in asked[: len(live)]), *sums],
                [found.get(rows[j]) or _zeros(rows[j]) for j in own],
            )

        start = [g if g is not None else _zeros(self.carries[i]) for i, g in finals.items()]
        totals = [Value(graph.const(0, dtypes.accumulator(w.dtype), w.shape)) for w in self.captured]
        ends, dxs = loop(
            back, [*start, *totals], [*before, *self.xs, *given.values()], self.length, not self.reverse
        )
        dx = dict(zip(own, dxs, strict=True))
        dc = dict(zip(live, ends, strict=False))
        dw = [bc.cast(g, w.dtype) for g, w in zip(ends[len(live) :], self.captured, strict=True)]
        return (*(dc.get(i) for i in range(count)), *(dx.get(j) for j in range(len(self.xs))), *dw)


@dataclass(frozen=True, slots=True, eq=False)
class _Total:
    """A plan for the sum of a node over all steps: the node is a rearrangement of `inside`, which is a sum of
    what can be computed from `cuts`, or of `terms`."""

    node: Node
    inside: Node
    cuts: tuple[Node, ...]
    terms: tuple[_Total, ...] = ()


@dataclass(slots=True)
class _Back:
    """The loop that runs backwards, being made."""

    trace: _Trace
    finals: Mapping[int, Value | None]
    stacks: Mapping[int, Value]
    rows: dict[Node, Value] = field(default_factory=dict["Node", Value])
    """The nodes that steps read, each with the tensor that it is a row of."""
    outs: dict[Node, None] = field(default_factory=dict["Node", None])
    varying: set[Node] = field(default_factory=set["Node"])

    def run(self) -> tuple[Value | None, ...]:
        """Make it, and what is left to be done after it."""
        t = self.trace
        assert t.step is not None
        after, out, found = t.step
        if len(out) > len(self.stacks):  # nobody asked for the gradients of some results
            out = {k: out[k] for k in self.stacks}
            found = t.pulled(after, out)
        self.sources([v.node for v in found.values()])
        self.rows.update({out[k].node: g for k, g in self.stacks.items()})
        self.varying = _varying(
            [v.node for v in found.values()], {*self.rows, *(v.node for v in after.values())}
        )
        dx = {j: self.cut(found[v].node, False) for j, v in enumerate(t.slices) if v in found}
        large = sorted((w for w in t.captured if w in found), key=lambda w: -_nbytes(w.node))
        dw = {w: plan for w in large if (plan := self.hoisted(found[w].node)) is not None}
        summed = [w for w in large if w not in dw]
        accumulators = [
            Value(graph.buffer(w.shape, dtypes.accumulator(w.dtype), w.node.device, None)) for w in summed
        ]
        nexts = [
            (found[t.carries[i]] if t.carries[i] in found else _zeros(t.carries[i])).node for i in t.live
        ]
        nexts += [
            graph.apply(Op.ADD, (a.node, bc.cast(found[w], a.dtype).node))
            for a, w in zip(accumulators, summed, strict=True)
        ]
        start = [g if g is not None else _zeros(t.carries[i]) for i, g in self.finals.items()]
        start += [_zeros(a) for a in accumulators]
        carries = [*after.values(), *accumulators]
        # forward values that are read from rows become placeholders
        new = {n: graph.buffer(n.shape, n.dtype, n.device, None) for n in self.rows if n.op is not Op.BUFFER}
        roots = rebuilt([*nexts, *self.outs], new)
        used = set(toposort(roots))
        rows = {p: v for n, v in self.rows.items() if (p := new.get(n, n)) in used}
        body, inputs = normal(
            [v.node for v in carries], list(rows), roots[: len(nexts)], roots[len(nexts) :],
            [v.node for v in (*start, *rows.values())], t.length, not t.reverse,
        )  # fmt: skip
        stacked = {
            n: Value(graph.apply(Op.LOOP, inputs, LoopNode(body, Part.STACK, k), home=device_of_files))
            for k, n in enumerate(self.outs)
        }
        self.rows.update({n: v for n, v in stacked.items() if n not in self.rows})
        ends = [
            Value(graph.apply(Op.LOOP, inputs, LoopNode(body, Part.FINAL, k), home=device_of_files))
            for k in range(len(carries))
        ]
        dc = dict(zip(t.live, ends, strict=False))
        totals = {w: bc.cast(v, w.dtype) for w, v in zip(summed, ends[len(t.live) :], strict=True)}
        totals.update({w: self.total(plan) for w, plan in dw.items()})
        return (
            *(dc.get(i) if v.needs_grad else None for i, v in enumerate(t.init)),
            *(self.stacked(found[v].node) if j in dx else None for j, v in enumerate(t.slices)),
            *(totals.get(w) for w in t.captured),
        )

    def sources(self, roots: Sequence[Node]) -> None:
        """Set where the steps find what they need of the forward loop."""
        t = self.trace
        reached = t.reached(roots, False)
        self.rows = {t.slices[j].node: x for j, x in enumerate(t.xs)}
        self.rows.update({t.carries[i].node: t.carry_rows(i, t.body.before) for i in sorted(reached.before)})
        self.rows.update({t.nexts[i].node: t.carry_rows(i, t.body.after) for i in sorted(reached.after)})
        self.rows.update({t.outs[k].node: t.stack(k) for k in sorted(reached.outs)})
        self.rows.update({n: t.stack(t.kept[n]) for n in reached.kept})

    def cut(self, n: Node, free: bool) -> int:
        """Have what `n` is a rearrangement of stacked by the steps (unless `free`: not yet); the bytes that takes."""
        core = self.core(n)
        if core in self.rows or core in self.outs or core not in self.varying:
            return 0
        if not free:
            self.outs[core] = None
        return _nbytes(core)

    def core(self, n: Node) -> Node:
        """The node that `n` is a rearrangement or repetition of."""
        while n not in self.rows and n not in self.outs and n.op in _REARRANGED:
            n = n.inputs[0]
        return n

    def hoisted(self, g: Node) -> _Total | None:
        """A plan for the sum of `g` over all steps after the loop. None where it takes less memory to add it
        up step by step."""
        s = self.inside(g)
        if s.op is Op.ADD and s not in self.rows:
            terms = [self.hoisted(i) for i in s.inputs]
            known = [t for t in terms if t is not None]
            return _Total(g, s, (), tuple(known)) if len(known) == len(terms) else None
        if s.op is not Op.SUM or s in self.rows:
            return None
        (x,) = s.inputs
        parts = x.inputs if x.op is Op.MUL and x not in self.rows else (x,)
        if sum(self.cut(p, True) for p in parts) > _nbytes(g):
            return None
        for p in parts:
            self.cut(p, False)
        return _Total(g, s, tuple([self.core(p) for p in parts]))

    def inside(self, g: Node) -> Node:
        """The node that `g` is a rearrangement of."""
        while g.op in _LINEAR and g not in self.rows:
            g = g.inputs[0]
        return g

    def stacked(self, n: Node) -> Value:
        """A node's value in all steps."""
        return self.over(n, [self.core(n)])

    def over(self, n: Node, cuts: Sequence[Node]) -> Value:
        """A node's value in all steps, computed from those of `cuts`."""
        t = self.trace
        marks = {c: placeholder(c.shape, c.dtype, c.device, False) for c in cuts if c in self.rows}
        (again,) = rebuilt([n], {c: v.node for c, v in marks.items()})
        ((value, has),) = batched([Value(again)], {v: self.rows[c] for c, v in marks.items()}, t.length)
        return value if has else spread(value, t.length)

    def total(self, plan: _Total) -> Value:
        """The sum of a node's values over all steps."""
        s = plan.inside
        if s.op is Op.SUM:
            assert isinstance(s.attrs, Axes)
            whole = sum_(self.over(s.inputs[0], plan.cuts), (0, *(a + 1 for a in s.attrs.axes)))
        else:
            one, other = map(self.total, plan.terms)
            whole = apply(Op.ADD, (one, other))
        (again,) = rebuilt([plan.node], {s: whole.node})
        return Value(again)


_REARRANGED = frozenset({Op.RESHAPE, Op.PERMUTE, Op.EXPAND})
_LINEAR = _REARRANGED | {Op.SHRINK, Op.FLIP}


def _nbytes(n: Node) -> int:
    size = elements(n.shape)
    assert isinstance(size, int)
    return size * n.dtype.itemsize


def _zeros(v: Value) -> Value:
    return Value(graph.const(0, v.dtype, v.shape))


def _varying(roots: Sequence[Node], given: set[Node]) -> set[Node]:
    """The nodes under `roots` that depend on `given`."""
    found: set[Node] = set()
    for n in toposort(roots):
        if n in given or any(i in found for i in n.inputs):
            found.add(n)
    return found
