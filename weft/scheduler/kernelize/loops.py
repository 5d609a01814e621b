"""A loop's kernels: those of its body, reading rows of what is sliced and writing rows of what is stacked.

    h = tanh(p0[i] + p1[i])            p0: a row of xs, p1: the carry, a row of its history
    y0[i] = h                          becomes
    y0[step + 1, i] = tanh(p0[step, i] + p1[step, i])

The body is kernelized as any graph. Then each parameter that stands for a row becomes the whole tensor, with the step's
number, a runtime variable, as its first index. So a step copies nothing, and one program serves all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.ir import expr as ex
from weft.ir.expr import Expr, Load
from weft.ir.graph import Node, elements, toposort
from weft.ir.index import Index, Int, Opaque, Var, high, map_guard, rewrite
from weft.ir.kernel.algorithm import Algorithm, Axis, Item, Output, Param, StoreTo, Value
from weft.ir.loop_body import Body, Loop, Part, whole_inputs
from weft.scheduler.kernelize.cost import MIN_BUFFERS, NO_LIMIT
from weft.scheduler.kernelize.groups import Group
from weft.scheduler.kernelize.spec import Carry, Home, KernelSpec, LoopSpec, Place, StepSpec

Kernelize = Callable[[Sequence[Node], int], "list[KernelSpec | LoopSpec]"]
"""kernelize_all(nodes, buffers), with no more buffers than the device allows."""


def loop_spec(group: Group, why: Mapping[int, str], kernelize: Kernelize) -> LoopSpec:
    """The specification of a group that is a loop."""
    results = tuple(group.stored.values())
    loop = results[0].attrs
    assert isinstance(loop, Loop)
    homes = _Homes(loop.body, results[0].inputs, results)
    roots = list(dict.fromkeys(homes.roots()))
    twice = sum(len(homes.written[n]) - 1 for n in roots)
    inner = kernelize(roots, max(NO_LIMIT - twice, MIN_BUFFERS))
    steps = tuple([homes.step(s) for s in inner])
    reasons = tuple(f"{n!r} is stored: {why[id(n)]}" for n in results)
    return LoopSpec(
        loop.body, homes.variable, results[0].inputs, results, tuple(homes.begin()), steps, homes.carries,
        tuple(homes.own), reasons,
    )  # fmt: skip


@dataclass(slots=True)
class _Homes:
    """Where the tensors of a body are: `read` by those that read it, `written` by the kernel that makes it."""

    body: Body
    inputs: tuple[Node, ...]
    results: tuple[Node, ...]
    variable: Var = field(init=False)
    number: dict[tuple[Part, int], int] = field(init=False)
    read: dict[Node, Place] = field(default_factory=dict["Node", "Place"])
    written: dict[Node, list[Place]] = field(default_factory=dict["Node", "list[Place]"])
    carries: dict[int, Carry] = field(default_factory=dict[int, "Carry"])
    own: dict[Node, int] = field(default_factory=dict["Node", int])
    live: list[int] = field(init=False)

    def __post_init__(self) -> None:
        b = self.body
        self.variable = Var(f"step{b.height}", 0, b.length - 1)
        self.number = {}
        for k, n in enumerate(self.results):
            assert isinstance(n.attrs, Loop)
            self.number[n.attrs.part, n.attrs.number] = k
        self.live = _live(b, self.number)
        at = len(b.carries)
        for j, (p, offset) in enumerate(zip(b.slices, b.offsets, strict=True)):
            self.read[p] = Place(Home.INPUT, at + j, offset)
        for j, p in enumerate(b.fixed):
            self.read[p] = Place(Home.INPUT, at + len(b.slices) + j)
        updated = {i for n in toposort((*b.nexts, *b.outs)) for i in whole_inputs(n)}
        for i in self.live:
            places = self.written.setdefault(b.nexts[i], [])
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
        for k, n in enumerate(b.outs):
            stack = self.number.get((Part.STACK, k))
            if stack is not None:
                self.written.setdefault(n, []).append(Place(Home.RESULT, stack, 0))
        for n, places in self.written.items():
            self.read[n] = places[0]

    def roots(self) -> list[Node]:
        """What each step has to compute."""
        return list(self.written)

    def of(self, n: Node) -> list[Place]:
        """Where a tensor that a kernel makes is."""
        known = self.written.get(n)
        if known is None:
            place = Place(Home.OWN, self.own.setdefault(n, len(self.own)))
            known = self.written[n] = [place]
            self.read[n] = place
        return known

    def step(self, spec: KernelSpec | LoopSpec) -> StepSpec:
        """A kernel of the body, with its parameters in their places."""
        writes = [self.of(n) for n in spec.writes]
        reads = [self.read[n] for n in spec.reads]
        if isinstance(spec, LoopSpec):
            places = tuple(p[0] for p in writes)
            assert all(p.row is None for p in (*reads, *places)), "loops inside read and write whole tensors"
            return StepSpec(spec, tuple(reads), places, {})
        given, made = iter(reads), iter(writes)
        rows: dict[str, list[tuple[Int, int | None]]] = {}
        bases: dict[int, Place] = {}
        written = 0
        for p in spec.algorithm.params:
            places = next(made) if p.written else [next(given)]
            rows[p.name] = [self._row(place) for place in places]
            if p.name in spec.inplace:
                bases[written] = self.read[spec.inplace[p.name]]
            written += p.written
        algorithm, order = placed(spec.algorithm, rows, self.variable)
        final = tuple(writes[k][j] for k, j in order)
        return StepSpec(replace(spec, algorithm=algorithm), tuple(reads), final, bases)

    def _row(self, place: Place) -> tuple[Int, int | None]:
        """The row as an index, and how many there are; (0, None) for a tensor that is no row of another."""
        if place.row is None:
            return 0, None
        node = self.inputs[place.number] if place.home is Home.INPUT else self.results[place.number]
        count = node.shape[0]
        assert isinstance(count, int)
        return self.variable + place.row, count

    def begin(self) -> list[StepSpec]:
        """What histories start with."""
        out: list[StepSpec] = []
        for i in self.live:
            history = self.number.get((Part.HISTORY, i))
            if history is not None:
                carry = self.body.carries[i]
                spec = _into_row(carry, self.results[history], self.body)
                out.append(StepSpec(spec, (Place(Home.INPUT, i),), (Place(Home.RESULT, history),), {}))
        return out


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


def placed(
    a: Algorithm, rows: Mapping[str, Sequence[tuple[Int, int | None]]], variable: Var
) -> tuple[Algorithm, list[tuple[int, int]]]:
    """The algorithm with parameters that are rows of larger ones: for each parameter the row and how many there are, or
    None for one that stays. A written one may have several; then it is written to each of them, the first in its own
    place. Also which (written parameter, row) the written parameters are now, in order."""
    if all(count is None and len(r) == 1 for r in rows.values() for _, count in r):
        return a, [(k, 0) for k in range(sum(p.written for p in a.params))]

    def index(name: str, at: tuple[Int, ...]) -> tuple[Int, ...]:
        row, count = rows[name][0]
        return at if count is None else (row, *at)

    def leaf(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or e.source not in rows:
            return None
        at = index(e.source, e.index)
        return None if at == e.index else Load(e.dtype, e.source, at, e.guard)

    memo: dict[Expr, Expr] = {}
    taken = {p.name for p in a.params} | {i.name for i in a.items} | {v.name for v in a.variables}
    params: list[Param] = []
    more: list[Param] = []
    others: dict[str, list[tuple[str, Int, int | None]]] = {}
    order: list[tuple[int, int]] = []
    extra: list[tuple[int, int]] = []
    for p in a.params:
        count = rows[p.name][0][1]
        params.append(p if count is None else replace(p, shape=(count, *p.shape), fill=None))
        if not p.written:
            continue
        order.append((len(order), 0))
        for j, (row, n) in enumerate(rows[p.name][1:], 1):
            name = f"{p.name}r{j}"
            while name in taken:
                name += "_"
            taken.add(name)
            others.setdefault(p.name, []).append((name, row, n))
            more.append(replace(p, name=name, shape=p.shape if n is None else (n, *p.shape)))
            extra.append((order[-1][0], j))

    def computed(i: Index) -> Int | None:
        if not isinstance(i, Opaque):
            return None
        value = ex.transform(i.value, leaf, memo=memo)
        return i if value is i.value else ex.as_index(value, i.lo, i.hi)

    def inside(i: Int) -> Int:
        return i if isinstance(i, int) or not i.computed else rewrite(i, computed)

    def store(s: StoreTo) -> list[StoreTo]:
        value = ex.transform(s.expr, leaf, memo=memo)
        plain, guard = tuple(map(inside, s.index)), map_guard(s.guard, inside)
        out = [replace(s, index=index(s.param, plain), expr=value, guard=guard)]
        for name, row, count in others.get(s.param, ()):
            at = plain if count is None else (row, *plain)
            out.append(replace(s, param=name, index=at, expr=value, guard=guard))
        return out

    def item(i: Item) -> Item:
        if isinstance(i, Value):
            return replace(i, expr=ex.transform(i.expr, leaf, memo=memo))
        return replace(i, stores=tuple([new for s in i.stores for new in store(s)]))

    made = replace(
        a,
        params=(*params, *more),
        variables=(*a.variables, variable) if variable not in a.variables else a.variables,
        items=tuple([item(i) for i in a.items]),
    )
    return made, order + extra


def _into_row(carry: Node, history: Node, body: Body) -> KernelSpec:
    """The kernel that copies what a carry starts from into its history."""
    size = elements(carry.shape)
    axis = Axis(Var("i", 0, max(high(size) - 1, 0)), size)
    source, target = (
        Param("p0", carry.dtype, (size,)),
        Param("y0", carry.dtype, (body.length + 1, size), True),
    )
    out = Output(
        "out", (axis,), (StoreTo("y0", (body.first, axis.var), Load(carry.dtype, "p0", (axis.var,))),)
    )
    nbytes = 2 * size * carry.dtype.itemsize
    return KernelSpec(
        Algorithm("load", (source, target), (), (out,)),
        (carry,),
        (history,),
        {},
        ("a loop starts from it",),
        0,
        nbytes,
    )
