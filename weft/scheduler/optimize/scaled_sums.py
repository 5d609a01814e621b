"""Sums of integer sums, each with a scale: products of bytes, whose blocks have a float in front.

    y(t, g, l) = sum b: scale[g, b, l] * f32(sum r, k: i32(x[t, b, r, k]) * i32(q[g, b, r, l, k]))

    per task g, tile of rows t:
      acc(t, l) = 0                                       registers
      for b:
        dot(t, l) = sum r, k: x[..] * q[..]               registers; four bytes k of each lane l at once
        acc(t, l) += scale[..] * f32(dot(t, l))

The bytes of four neighbours k of each lane l lie side by side: what is read is a whole vector of them, and what all
lanes share is one word. A block of weights is unpacked once for all rows of a tile.
"""

from __future__ import annotations

from weft.backends.protocol import DeviceInfo
from weft.ir import dtypes
from weft.ir import expr as ex
from weft.ir.expr import Expr, Load
from weft.ir.index import Var, ceildiv, coefficient, flatten, high, substitute
from weft.ir.kernel.algorithm import Axis, Item, ItemValue, Output, Param, readers, reads
from weft.ir.kernel.decisions import pick
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.dot_bytes import DotBytes
from weft.ir.kernel.transforms.hint import PrefetchNext
from weft.ir.kernel.transforms.mark import Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.loops import Scope
from weft.ir.matrix import TERMS, bytes_of
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize import parallel
from weft.scheduler.optimize.access import axes_of
from weft.scheduler.optimize.rule import Choice, Rule
from weft.scheduler.optimize.steps import extent, split

MAX_TILE = 12
"""Rows of results in registers, at most: more of them hide no more latency."""

MAX_UNROLLED = 16
"""Steps of a block, of four bytes each, that are written out."""

AHEAD_BYTES = 4096
"""From what is read to what is asked for."""


@dataclass(frozen=True, slots=True)
class Chain:
    """An integer sum, the sum that scales it, and of the integer sum's axes the four terms and the lanes."""

    inner: ItemValue
    outer: ItemValue
    terms: Axis
    lane: Axis
    rows: tuple[Axis, ...]
    """The axes that only the operand without lanes has."""


@dataclass(frozen=True, slots=True)
class ScaledSums:
    """The chains that an output reads, and its loops: of rows, of what is around, of lanes."""

    kernel: Kernel
    chains: tuple[Chain, ...]
    out: Output
    rows: tuple[str, ...]
    around: tuple[str, ...]
    lane: str


@dataclass(frozen=True)
class RowTile(Choice):
    """So many rows of results at a time."""

    decision = "scaled_sums.rows"

    kernel: Kernel
    rows: int

    def __str__(self) -> str:
        return f"{self.rows} rows at a time, four bytes of each lane at once"


def recognise(k: Kernel, info: DeviceInfo) -> ScaledSums | Refusal:
    """A kernel of one output around sums of integer sums of products of bytes."""
    out = k.algorithm.items[-1]
    if not isinstance(out, Output) or any(s.combine is not None for s in out.stores):
        return Refusal("the last item is no output that just stores")
    chains: list[Chain] = []
    for item in k.algorithm.items[:-1]:
        if isinstance(item, ItemValue) and item.dtype is dtypes.int32 and bytes_of(item.expr) is not None:
            chain = _chain(k, item, out)
            if isinstance(chain, Refusal):
                return chain
            chains.append(chain)
    if not chains:
        return Refusal("nothing sums products of bytes in int32")
    mine = {x.name for c in chains for x in (c.inner, c.outer)}
    others = [i.name for i in k.algorithm.items[:-1] if i.name not in mine]
    if others:
        return Refusal(f"{others[0]} is computed beside {chains[0].inner.name}")
    loops = [_loops(k, c, out) for c in chains]
    lane, rows = loops[0]
    if any(x != loops[0] for x in loops) or lane is None:
        return Refusal(f"{out.name} reads its sums at other places than its own axes")
    around = tuple(s.var.name for s in k.nests[out.name].loops if s.var.name not in (lane, *rows))
    if not around and not rows:
        return Refusal(f"{out.name} has no loop but that of its lanes")
    return ScaledSums(k, tuple(chains), out, rows, around, lane)


def choose(form: ScaledSums, info: DeviceInfo) -> RowTile:
    """As many rows as there are registers for their sums, in tiles of about the same size."""
    vectors = ceildiv(high(form.chains[0].lane.extent), info.lanes(dtypes.int32))
    room = (info.vector_registers - 4 * vectors) // ((1 + len(form.chains)) * vectors)
    most = max(1, min(MAX_TILE, room))
    loops = {s.var.name: s for s in form.kernel.nests[form.out.name].loops}
    count = high(loops[form.rows[-1]].extent) if form.rows else 1
    best = ceildiv(count, ceildiv(count, most))
    options = list(dict.fromkeys([best, *(max(1, best // n) for n in (2, 4))]))
    k, rows = pick(form.kernel, "scaled_sums.rows", options)
    return RowTile(k, rows)


def apply(form: ScaledSums, choice: RowTile, info: DeviceInfo) -> Kernel:
    """Tasks of what is around, tiles of rows inside them, blocks inside these, and lanes of four bytes innermost."""
    k, out = choice.kernel, form.out.name
    big = parallel.pays(k, info)
    *others, at = (*form.rows[:-1], *form.around, *form.rows[-1:])
    tile = ()
    if form.rows:
        k = run(k, Pad(at, choice.rows))
        k, at, inner = split(k, at, choice.rows, f"{at}_o", f"{at}_i")
        tile = (inner,)
    k = run(k, Permute(out, (*others, at, *tile, form.lane)))
    k = run(k, *(Unroll(n) for n in tile), Vectorize(form.lane))
    for c in form.chains:
        k = _scheduled(run(k, ComputeAt(c.outer.name, out, at, Scope.REGISTER)), c)
    k = _prefetched(k, form)
    tasks = others if form.rows else [*others, at]
    return parallel.spread(k, out, list(tasks), info) if big else k


RULE = Rule("scaled_sums", recognise, choose, apply)


def _chain(k: Kernel, inner: ItemValue, out: Output) -> Chain | Refusal:
    """The integer sum with the sum that reads it, and its axes."""
    if inner.reduce is None or inner.reduce.op is not Op.ADD:
        return Refusal(f"{inner.name} is no sum")
    users = readers(k.algorithm, inner.name)
    outer = users[0]
    if (
        len(users) != 1
        or not isinstance(outer, ItemValue)
        or outer.reduce is None
        or outer.reduce.op is not Op.ADD
    ):
        return Refusal(f"{inner.name} is not read by one other sum alone")
    if [i.name for i in readers(k.algorithm, outer.name)] != [out.name]:
        return Refusal(f"{outer.name} is not read by {out.name} alone")
    operands = bytes_of(inner.expr)
    assert operands is not None
    for terms in inner.reduce.axes:
        if terms.extent == TERMS and all(_steps(k, e, terms.var) == {1} for e in operands):
            for lane in inner.axes:
                steps = [_steps(k, e, lane.var) for e in operands]
                if isinstance(lane.extent, int) and lane.extent > 1 and {0} in steps and {TERMS} in steps:
                    one, other = operands if steps[0] == {0} else operands[::-1]
                    mine, theirs = axes_of(one), axes_of(other)
                    rows = tuple(a for a in inner.axes if a.var in mine - theirs and a.extent != 1)
                    return Chain(inner, outer, terms, lane, rows)
    return Refusal(f"the operands of {inner.name} do not lie in lanes of {TERMS} bytes")


def _steps(k: Kernel, e: Expr, axis: Var) -> set[int | None]:
    """The steps along an axis of all that an operand reads."""
    steps: set[int | None] = set()
    for load in ex.walk([e]):
        if isinstance(load, Load):
            p = k.algorithm.param(load.source)
            steps.add(coefficient(flatten(load.index, p.shape), axis) if p is not None else None)
    return steps


def _loops(k: Kernel, c: Chain, out: Output) -> tuple[str | None, tuple[str, ...]]:
    """The output's loops over the lanes and over the rows of a chain."""
    rows = tuple(n for n in (_loop(k, c, out, a.var) for a in c.rows) if n is not None)
    lane = _loop(k, c, out, c.lane.var)
    return (lane, rows) if len(rows) == len(c.rows) else (None, ())


def _loop(k: Kernel, c: Chain, out: Output, axis: Var) -> str | None:
    """The output's loop over an axis of the integer sum, where it is one."""
    found: object = axis
    before: Item = c.inner
    for user in (c.outer, out):
        assert isinstance(before, ItemValue)
        places = {r.index for r in reads(user) if r.source == before.name}
        if len(places) != 1:
            return None
        (index,) = places
        found = next((i for a, i in zip(before.axes, index, strict=True) if a.var == found), None)
        before = user
    at = substitute(found, k.nests[out.name].bind) if isinstance(found, Var) else None
    return at.name if isinstance(at, Var) and at.hi == axis.hi else None


def _scheduled(k: Kernel, c: Chain) -> Kernel:
    """Blocks outside, then the tile, lanes innermost; and inside a block steps, tile, four terms, lanes."""
    outer, inner = c.outer.name, c.inner.name
    lane = _loop_of(k, c, c.outer)
    steps = [s.var.name for s in k.nests[outer].loops if s.reduce]
    tile = [s.var.name for s in k.nests[outer].loops if not s.reduce and s.var.name != lane]
    k = run(k, Permute(outer, (*steps, *tile, lane)), *(Unroll(n) for n in tile), Vectorize(lane))
    k = run(k, ComputeAt(inner, outer, steps[-1], Scope.REGISTER))
    parts = steps[1:]
    loops = k.nests[inner].loops
    lane = _loop_of(k, c, c.inner)
    terms = next(s.var.name for s in loops if k.nests[inner].bind[c.terms.var] == s.var)
    tile = [s.var.name for s in loops if not s.reduce and s.var.name != lane]
    steps = [s.var.name for s in loops if s.reduce and s.var.name != terms]
    k = run(k, Permute(inner, (*steps, *tile, terms, lane)), *(Unroll(n) for n in tile), Vectorize(lane))
    k = run(k, DotBytes(terms))
    written = 1
    for s in (*reversed(steps), *reversed(parts)):
        written *= extent(k, s)
        if written <= MAX_UNROLLED:
            k = attempt(k, Unroll(s))
    return k


def _prefetched(k: Kernel, form: ScaledSums) -> Kernel:
    """Blocks of weights asked for some way ahead, in the order in which they lie."""
    for c in form.chains:
        inner = c.inner.name
        around = [s for s in k.nests[c.outer.name].loops if s.reduce]
        steps = {p.name: _bytes(k, c, p, around[0].var) for p in k.algorithm.params if _reads_lanes(k, c, p)}
        k, far = pick(k, "scaled_sums.ahead", (AHEAD_BYTES, 0, 2048, 8192))
        if far and all(steps.values()):
            count = ceildiv(far, max(steps.values()))
            k = attempt(k, PrefetchNext(inner, around[0].var.name, count, tuple(steps)))
    return k


def _reads_lanes(k: Kernel, c: Chain, p: Param) -> bool:
    """The parameter has a byte of every lane."""
    return any(
        r.source == p.name and coefficient(flatten(r.index, p.shape), c.lane.var) == TERMS
        for r in reads(c.inner)
    )


def _bytes(k: Kernel, c: Chain, p: Param, block: Var) -> int:
    """The bytes from a block to the next."""
    nest = k.nests[c.inner.name]
    for r in reads(c.inner):
        if r.source == p.name:
            at = flatten(tuple(substitute(i, nest.bind) for i in r.index), p.shape)
            return abs(coefficient(at, block) or 0) * p.dtype.itemsize
    return 0


def _loop_of(k: Kernel, c: Chain, item: ItemValue) -> str:
    """The loop of a sum over its lanes."""
    var = c.lane.var
    if item is c.outer:
        load = next(r for r in reads(item) if r.source == c.inner.name)
        at = load.index[[a.var for a in c.inner.axes].index(var)]
        assert isinstance(at, Var)
        var = at
    bound = k.nests[item.name].bind[var]
    names = {s.var for s in k.nests[item.name].loops}
    (found,) = (v for v in ([bound] if isinstance(bound, Var) else []) if v in names)
    return found.name
