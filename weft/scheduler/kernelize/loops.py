"""Kernels of a loop: those of its body, reading rows of what is sliced and writing rows of what is stacked.

    h = tanh(p0[i] + p1[i])            p0: a row of xs, p1: the carry, a row of its history
    y0[i] = h                          becomes
    y0[step + 1, i] = tanh(p0[step, i] + p1[step, i])

The body is kernelized as any graph. Then each parameter that stands for a row becomes the whole tensor, with the step's
number, a runtime variable, as its first index. So a step copies nothing, and one program serves all steps.
"""
# Tests: tests/scheduler/test_golden.py
# Tests: tests/core/grad/test_scan.py, tests/scheduler/kernelize/test_decisions.py

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Protocol

from weft.ir import expr as ex
from weft.ir import graph
from weft.ir.expr import Expr, Load
from weft.ir.graph import Box, Node, elements, toposort
from weft.ir.index import Index, Int, Opaque, Var, high, map_guard, rewrite, variables
from weft.ir.kernel.algorithm import Algorithm, Item, ItemValue, Param, StoreTo
from weft.ir.loop_body import Body, LoopNode, Part, whole_inputs
from weft.ir.ops import Op
from weft.ir.rewrite import rebuilt
from weft.lazy_dataclass import dataclass
from weft.scheduler.kernelize.copying import copying
from weft.scheduler.kernelize.cost import MIN_BUFFERS, NO_LIMIT
from weft.scheduler.kernelize.decisions import Cut
from weft.scheduler.kernelize.groups import Group
from weft.scheduler.kernelize.spec import Carry, Home, KernelSpec, Place, ScanSpec, StepSpec

Kernelize = Callable[[Sequence[Node], int], "list[KernelSpec | ScanSpec]"]
"""kernelize_all(nodes, buffers), with no more buffers than the device allows."""


class Kernels(Protocol):
    """The kernels that a loop has: those of its body, those of its steps, which read and write rows, and those that
    start histories."""

    @property
    def counted(self) -> bool:
        """True where a step's number may be part of its kernels."""
        ...

    def kernelize(self, nodes: Sequence[Node], buffers: int) -> list[KernelSpec | ScanSpec]:
        """The kernels that compute nodes of a body."""
        ...

    def rowed(
        self, spec: KernelSpec, rows: Mapping[str, Sequence[Row]], step: Var
    ) -> tuple[KernelSpec, list[tuple[int, int]]]:
        """A kernel with parameters in rows, as `in_rows` has them."""
        ...

    def begun(self, carry: Node, history: Node, body: Body) -> KernelSpec:
        """The kernel that copies what a carry starts from into its history."""
        ...


@dataclass(frozen=True, slots=True)
class Fused:
    """The kernels of a loop for its own sizes."""

    inner: Kernelize
    counted: bool = True

    def kernelize(self, nodes: Sequence[Node], buffers: int) -> list[KernelSpec | ScanSpec]:
        return self.inner(nodes, buffers)

    def rowed(
        self, spec: KernelSpec, rows: Mapping[str, Sequence[Row]], step: Var
    ) -> tuple[KernelSpec, list[tuple[int, int]]]:
        algorithm, order = in_rows(spec.algorithm, rows, step)
        return replace(spec, algorithm=algorithm), order

    def begun(self, carry: Node, history: Node, body: Body) -> KernelSpec:
        return into_row(carry, history, body)


def loop_spec(group: Group, cuts: Mapping[int, Cut], kernelize: Kernelize) -> ScanSpec:
    """The specification of a group that is a loop."""
    results = tuple(group.stored.values())
    return scan_of(results, [f"{n!r} is stored: {cuts[id(n)].why}" for n in results], Fused(kernelize))


def scan_of(results: tuple[Node, ...], reasons: Sequence[str], kernels: Kernels) -> ScanSpec:
    """The specification of the loop that has these results, which are stored for these reasons."""
    loop = results[0].attrs
    assert isinstance(loop, LoopNode)
    places = _Places(loop.body, results[0].inputs, results, kernels)
    roots = list(dict.fromkeys(places.roots()))
    more = sum(len(places.written[n]) - 1 for n in roots)
    inner = kernels.kernelize(roots, max(NO_LIMIT - more, MIN_BUFFERS))
    steps = tuple([places.step(s) for s in inner])
    return ScanSpec(
        loop.body, places.variable, results[0].inputs, results, tuple(places.begin()), steps, places.carries,
        tuple(places.own), tuple(reasons),
    )  # fmt: skip


@dataclass(slots=True)
class _Places:
    """Places of the tensors of a body: `read` by those that read it, `written` by the kernel that makes it."""

    body: Body
    inputs: tuple[Node, ...]
    results: tuple[Node, ...]
    kernels: Kernels
    variable: Var = field(init=False)
    number: dict[tuple[Part, int], int] = field(init=False)
    nexts: Sequence[Node] = field(init=False)
    outs: Sequence[Node] = field(init=False)
    read: dict[Node, Place] = field(default_factory=dict["Node", "Place"])
    written: dict[Node, list[Place]] = field(default_factory=dict["Node", "list[Place]"])
    carries: dict[int, Carry] = field(default_factory=dict[int, "Carry"])
    own: dict[Node, int] = field(default_factory=dict["Node", int])
    live: list[int] = field(init=False)

    def __post_init__(self) -> None:
        b = self.body
        self.variable = Var(f"step{b.height}", 0, high(b.length) - 1)
        self.number = {}
        for k, n in enumerate(self.results):
            assert isinstance(n.attrs, LoopNode)
            self.number[n.attrs.part, n.attrs.number] = k
        self.live = _live(b, self.number)
        at = len(b.carries)
        counted = _counted(b, self.inputs[at:], self.variable) if self.kernels.counted else None
        roots = rebuilt((*b.nexts, *b.outs), counted) if counted else (*b.nexts, *b.outs)
        self.nexts, self.outs = roots[:at], roots[at:]
        for j, (p, offset) in enumerate(zip(b.slices, b.offsets, strict=True)):
            self.read[p] = Place(Home.INPUT, at + j, offset)
        for j, p in enumerate(b.fixed):
            self.read[p] = Place(Home.INPUT, at + len(b.slices) + j)
        updated = {i for n in toposort((*self.nexts, *self.outs)) for i in whole_inputs(n)}
        for i in self.live:
            places = self.written.setdefault(self.nexts[i], [])
            history = self.number.get((Part.HISTORY, i))
            final = self.number.get((Part.FINAL, i))
            if history is None or final is not None or b.carries[i] in updated:
                nbytes = high(elements(b.carries[i].shape)) * b.carries[i].dtype.itemsize
                self.carries[i] = Carry(nbytes, final)
                places.append(Place(Home.AFTER, i))
                self.read[b.carries[i]] = Place(Home.BEFORE, i)
            if history is not None:
                places.append(Place(Home.RESULT, history, b.after))
                self.read.setdefault(b.carries[i], Place(Home.RESULT, history, b.before))
        for k, n in enumerate(self.outs):
            stack = self.number.get((Part.STACK, k))
            if stack is not None:
                self.written.setdefault(n, []).append(Place(Home.RESULT, stack, 0))
        for n, places in self.written.items():
            self.read[n] = places[0]

    def roots(self) -> list[Node]:
        """Nodes that each step has to compute."""
        return list(self.written)

    def of(self, n: Node) -> list[Place]:
        """The places of a tensor that a kernel makes."""
        known = self.written.get(n)
        if known is None:
            place = Place(Home.OWN, self.own.setdefault(n, len(self.own)))
            known = self.written[n] = [place]
            self.read[n] = place
        return known

    def step(self, spec: KernelSpec | ScanSpec) -> StepSpec:
        """A kernel of the body, with its parameters in their places."""
        writes = [self.of(n) for n in spec.writes]
        reads = [self.read[n] for n in spec.reads]
        if isinstance(spec, ScanSpec):
            places = tuple(p[0] for p in writes)
            assert all(p.row is None for p in (*reads, *places)), "loops inside read and write whole tensors"
            return StepSpec(spec, tuple(reads), places, {})
        given, made = iter(reads), iter(writes)
        rows: dict[str, list[Row]] = {}
        bases: dict[int, Place] = {}
        written = 0
        for p in spec.algorithm.params:
            places = next(made) if p.written else [next(given)]
            rows[p.name] = [self._row(place) for place in places]
            if p.name in spec.inplace:
                bases[written] = self.read[spec.inplace[p.name]]
            written += p.written
        rowed, order = self.kernels.rowed(spec, rows, self.variable)
        final = tuple(writes[k][j] for k, j in order)
        return StepSpec(rowed, tuple(reads), final, bases)

    def _row(self, place: Place) -> Row:
        """The row that a place is."""
        if place.row is None:
            return Row()
        node = self.inputs[place.number] if place.home is Home.INPUT else self.results[place.number]
        return Row(self.variable + place.row, node.shape[0])

    def begin(self) -> list[StepSpec]:
        """The kernels that start histories."""
        out: list[StepSpec] = []
        for i in self.live:
            history = self.number.get((Part.HISTORY, i))
            if history is not None:
                carry = self.body.carries[i]
                spec = self.kernels.begun(carry, self.results[history], self.body)
                out.append(StepSpec(spec, (Place(Home.INPUT, i),), (Place(Home.RESULT, history),), {}))
        return out


def _counted(b: Body, inputs: Sequence[Node], step: Var) -> dict[Node, Node]:
    """Placeholders of slices and of what is fixed that follow from the numbers of the steps alone, of this loop and of
    those around it, as these rows: indices, which masks are made of and nobody has to load."""
    if not isinstance(b.length, int):
        return {}
    known: dict[Node, Node] = {}
    for p, offset, whole in zip(
        (*b.slices, *b.fixed), (*b.offsets, *(None for _ in b.fixed)), inputs, strict=True
    ):
        source = whole.inputs[0] if whole.op is Op.CONTIGUOUS else whole
        if any(n.op not in _INDICES or n.storage is not None for n in toposort([source])):
            continue
        if p.dtype.is_float or elements(p.shape) == 0:
            continue
        if offset is None:
            known[p] = source
            continue
        box = Box((step + offset, *(0 for _ in p.shape)), (1,) * (len(p.shape) + 1))
        row = graph.apply(Op.SHRINK, (source,), box, shape=(1, *p.shape))
        known[p] = graph.apply(Op.RESHAPE, (row,), shape=p.shape)
    return known


_INDICES = frozenset(
    {Op.RANGE, Op.CONST, Op.RESHAPE, Op.EXPAND, Op.SHRINK, Op.ADD, Op.MUL, Op.SUB, Op.NEG, Op.CAST}
)
"""Ops of integers that are indices: as cheap as the load of what they give."""


def _live(b: Body, wanted: Mapping[tuple[Part, int], int]) -> list[int]:
    """The carries on which a wanted result depends."""
    number = {p: i for i, p in enumerate(b.carries)}
    stack = [b.outs[k] for part, k in wanted if part is Part.STACK]
    live = {k for part, k in wanted if part is not Part.STACK}
    stack += [b.nexts[i] for i in live]
    while stack:
        found = {number[n] for n in toposort(stack) if n in number} - live
        live |= found
        stack = [b.nexts[i] for i in found]
    return sorted(live)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a larger tensor: its index and the number of rows. All of a tensor where `count` is None."""

    at: Int = 0
    count: Int | None = None

    def index(self, index: tuple[Int, ...]) -> tuple[Int, ...]:
        """An index into the row as one into the whole tensor."""
        return index if self.count is None else (self.at, *index)

    def param(self, p: Param) -> Param:
        """A parameter that is the row as one that is the whole tensor."""
        return p if self.count is None else replace(p, shape=(self.count, *p.shape))


def in_rows(
    a: Algorithm, rows: Mapping[str, Sequence[Row]], variable: Var
) -> tuple[Algorithm, list[tuple[int, int]]]:
    """The algorithm with parameters that are `rows` of larger tensors, where `variable` is the number of the step.

    A written one may have several rows; then it is written to each of them, the first in its own place. Also which
    (written parameter, row) the written parameters are now, in order.
    """
    if all(len(r) == 1 and r[0].count is None for r in rows.values()):
        return a, [(k, 0) for k in range(sum(p.written for p in a.params))]
    r = _RowRewriter(a, rows)
    used = {variable}.union(
        *[variables(row.count) for r in rows.values() for row in r if row.count is not None]
    )
    more = sorted(used.difference(a.variables), key=lambda v: v.name)
    written = [p.name for p in a.params if p.written]
    order = [(k, 0) for k in range(len(written))]
    order += [(k, j) for k, name in enumerate(written) for j in range(1, len(rows[name]))]
    items = tuple([r.item(i) for i in a.items])
    return replace(a, params=r.params(), variables=(*a.variables, *more), items=items), order


class _RowRewriter:
    """Rewrites an algorithm for parameters that become rows of larger tensors."""

    def __init__(self, a: Algorithm, rows: Mapping[str, Sequence[Row]]) -> None:
        self.algorithm, self.rows = a, rows
        self.memo: dict[Expr, Expr] = {}
        taken = {p.name for p in a.params} | {i.name for i in a.items} | {v.name for v in a.variables}
        # by written parameter: its rows after the first, under parameter names of their own
        self.copies: dict[str, list[tuple[str, Row]]] = {}
        for p in a.params:
            for j, row in enumerate(rows[p.name][1:], 1):
                name = f"{p.name}r{j}"
                while name in taken:
                    name += "_"
                taken.add(name)
                self.copies.setdefault(p.name, []).append((name, row))

    def params(self) -> tuple[Param, ...]:
        """The parameters; those of further rows come last."""
        first = [self._first(p) for p in self.algorithm.params]
        copies = [
            row.param(replace(p, name=name))
            for p in self.algorithm.params
            for name, row in self.copies.get(p.name, ())
        ]
        return (*first, *copies)

    def _first(self, p: Param) -> Param:
        """A parameter as its first row; masks say nothing of whole tensors."""
        row = self.rows[p.name][0]
        return p if row.count is None else replace(row.param(p), fill=None)

    def item(self, i: Item) -> Item:
        """An item that loads from rows, and stores to them."""
        if isinstance(i, ItemValue):
            return replace(i, expr=self.expr(i.expr))
        return replace(i, stores=tuple([new for s in i.stores for new in self.stores(s)]))

    def stores(self, s: StoreTo) -> list[StoreTo]:
        """A store to each row of its parameter."""
        value = self.expr(s.expr)
        at, guard = tuple(map(self.index, s.index)), map_guard(s.guard, self.index)
        rows = [(s.param, self.rows[s.param][0]), *self.copies.get(s.param, ())]
        return [replace(s, param=name, index=row.index(at), expr=value, guard=guard) for name, row in rows]

    def expr(self, e: Expr) -> Expr:
        """An expression over rows."""
        return ex.transform(e, self._load, memo=self.memo)

    def _load(self, e: Expr) -> Expr | None:
        """A load of a parameter, from its row; None for other expressions."""
        if not isinstance(e, Load) or e.source not in self.rows:
            return None
        at = self.rows[e.source][0].index(e.index)
        return None if at == e.index else Load(e.dtype, e.source, at, e.guard)

    def index(self, i: Int) -> Int:
        """An index whose computed parts load from rows."""
        return i if isinstance(i, int) or not i.computed else rewrite(i, self._computed)

    def _computed(self, i: Index) -> Int | None:
        """A computed index, loading from rows; None for other indices."""
        if not isinstance(i, Opaque):
            return None
        value = self.expr(i.value)
        return i if value is i.value else ex.as_index(value, i.lo, i.hi)


def into_row(carry: Node, history: Node, body: Body) -> KernelSpec:
    """The kernel that copies what a carry starts from into its history."""
    size = elements(carry.shape)
    target = Param("y0", carry.dtype, (body.length + 1, size), True)
    nbytes = 2 * size * carry.dtype.itemsize
    return KernelSpec(
        copying("load", carry.dtype, size, target, (body.first,)),
        (carry,),
        (history,),
        {},
        ("a loop starts from it",),
        0,
        nbytes,
    )
