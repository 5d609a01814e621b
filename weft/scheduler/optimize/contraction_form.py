"""The form of a contraction (a sum of products with reuse), and what its schedules share.

c(.., s, p) = sum k: a(.., s, k) * b(.., k, p)
"""
# Tests: tests/scheduler/optimize/test_contraction.py, tests/scheduler/optimize/test_refusals.py

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import ceil, prod

from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir.expr import Expr, Load, ScalarCall
from weft.ir.index import Int, Var, ceildiv, coefficient, flatten, high, substitute, variables
from weft.ir.kernel.algorithm import Axis, Item, ItemValue, Output, readers, reads
from weft.ir.kernel.decisions import pick
from weft.ir.kernel.lower import storage_offset
from weft.ir.kernel.schedule import Kernel, NestLoop
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.merge import Merge
from weft.ir.kernel.transforms.merge_axes import MergeAxes
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.numerics import Tree
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize import rows
from weft.scheduler.optimize.access import axes_of, lane_step
from weft.scheduler.optimize.extents import typical
from weft.scheduler.optimize.levels import PRODUCT_CHAIN
from weft.scheduler.optimize.rule import counted
from weft.scheduler.optimize.steps import merge

MAX_ASIDE = 64
"""Elements of an output that may be computed beside a contraction, as it is."""

MAX_SHORT_AXIS = 256
"""An axis shorter than this is merged with its neighbour when both are contiguous in the output."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """The value, the output that reads it, and the product's two factors."""

    value: ItemValue
    out: Output
    factors: tuple[Expr, Expr]

    def own(self, side: int) -> tuple[Axis, ...]:
        """The value's axes that only factor `side` depends on."""
        mine, other = axes_of(self.factors[side]), axes_of(self.factors[1 - side])
        return tuple(a for a in self.value.axes if a.var in mine and a.var not in other and a.extent != 1)

    def loop_of(self, k: Kernel, axis: Axis) -> str:
        """The output's loop over an axis of the value."""
        load = next(r for r in reads(self.out) if r.source == self.value.name)
        at = load.index[[a.var for a in self.value.axes].index(axis.var)]
        e = substitute(at, k.nests[self.out.name].bind)
        assert isinstance(e, Var)
        return e.name


def factors(value: ItemValue) -> tuple[Expr, Expr] | Refusal:
    """The two factors when the value is a sum of products."""
    if value.reduce is None or value.reduce.op is not Op.ADD:
        return Refusal(f"{value.name} is no sum")
    if value.reduce.tree is Tree.LANES:
        return Refusal(f"the lanes in which {value.name} is summed are pinned")
    e = value.expr
    if isinstance(e, ScalarCall) and e.op is Op.MUL:
        return e.args[0], e.args[1]
    return Refusal(f"{value.name} sums no products")


def find(k: Kernel) -> Contraction | Refusal:
    """The kernel's contraction: the only value that is a sum of products in which both factors have axes of their
    own, read by one output at that output's own axes."""
    found = [_contraction(k, item) for item in k.algorithm.items if isinstance(item, ItemValue)]
    good = [c for c in found if isinstance(c, Contraction)]
    if len(good) != 1:
        several = Refusal(f"{counted(len(good), 'sum')} of products; one can be tiled")
        return several if good else _nearest([r for r in found if isinstance(r, Refusal)])
    (c,) = good
    others = [i for i in k.algorithm.items if i is not c.value and i is not c.out and not _aside(k, i)]
    return Refusal(f"{others[0].name} is computed beside {c.value.name}") if others else c


def _nearest(refusals: list[Refusal]) -> Refusal:
    """The reason why the value most like a contraction is none: what is said of sums of products comes first."""
    return max(refusals, key=lambda r: "no sum" not in r.why and "no products" not in r.why, default=NO_VALUE)


NO_VALUE = Refusal("nothing is summed")


def _contraction(k: Kernel, item: ItemValue) -> Contraction | Refusal:
    """The contraction that a value is."""
    pair = factors(item)
    if isinstance(pair, Refusal):
        return pair
    users = readers(k.algorithm, item.name)
    if len(users) != 1 or not isinstance(users[0], Output):
        return Refusal(f"{item.name} is read by {', '.join(u.name for u in users)}, not by one output alone")
    out = users[0]
    if any(s.combine is not None for s in out.stores):
        return Refusal(f"{out.name} combines with what is there")
    c = Contraction(item, out, pair)
    loads = [r for r in reads(out) if r.source == item.name]
    if len(loads) != 1:
        return Refusal(f"{out.name} reads {item.name} {len(loads)} times")
    outs, index = [a.var for a in out.axes], loads[0].index
    named = [i for i in index if i != 0]
    plain = all(i in outs for i in named) and len(set(named)) == len(named)
    if not plain or any(a.extent != 1 and i == 0 for a, i in zip(item.axes, index, strict=True)):
        return Refusal(f"{out.name} reads {item.name} at other places than its own axes")
    if not c.own(0) or not c.own(1):
        return Refusal(f"a factor of {item.name} has no axis of its own: there is nothing to reuse")
    return c


def _aside(k: Kernel, item: Item) -> bool:
    """A small output that depends on parameters only (a step counter beside a weight): it needs no schedule."""
    small = prod(high(a.extent) for a in item.axes) <= MAX_ASIDE
    return isinstance(item, Output) and small and all(k.algorithm.param(r.source) for r in reads(item))


def found(k: Kernel) -> Contraction:
    """The contraction of a kernel that has been rewritten, which has one still."""
    c = find(k)
    assert isinstance(c, Contraction), c.why
    return c


def merge_short_axes(k: Kernel, c: Contraction) -> tuple[Kernel, Contraction]:
    """Adjacent axes of one factor that are contiguous in the output become one, while the inner is short."""
    again = True
    while again:
        again = False
        for side in (0, 1):
            own = c.own(side)
            for a, b in pairwise(own):
                if high(b.extent) >= MAX_SHORT_AXIS or not _contiguous_pair(k, c, a, b):
                    continue
                step = MergeAxes(c.value.name, a.var.name, b.var.name)
                if step.check(k) is None:
                    k = run(k, step)
                    c, again = found(k), True
                    break
            if again:
                break
    return k, c


def output_steps(k: Kernel, c: Contraction, axis: Axis) -> list[int | None]:
    """The step of each store's offset per step of the value's axis."""
    var = result_index(c, axis)
    out: list[int | None] = []
    for s in c.out.stores:
        p = k.algorithm.param(s.param)
        assert p is not None
        out.append(coefficient(flatten(s.index, p.shape), var) if isinstance(var, Var) else None)
    return out


def result_index(c: Contraction, axis: Axis) -> Int:
    """The index at which the output reads the value, along one of its axes."""
    load = next(r for r in reads(c.out) if r.source == c.value.name)
    return load.index[[a.var for a in c.value.axes].index(axis.var)]


def _contiguous_pair(k: Kernel, c: Contraction, a: Axis, b: Axis) -> bool:
    inner, outer = output_steps(k, c, b), output_steps(k, c, a)
    return all(i == 1 and o == b.extent for i, o in zip(inner, outer, strict=True))


def in_steps(
    k: Kernel, value: str, excess: Callable[[Mapping[Var, int]], int] = lambda of: 0
) -> tuple[Kernel, str]:
    """The sum in steps, so that few additions stand in sequence; the name of a step's sum. `excess`: by how much a step
    of such extents of the summed axes is too large for something else; shorter ones are taken where that is less.

    The inner summed axes belong to a step as a whole, as many as there is room for; the next one is cut into
    equal pieces; those outside of it count steps."""
    item = k.algorithm.item(value)
    assert isinstance(item, ItemValue) and item.reduce is not None
    axes = list(item.reduce.axes)
    inner, of = 1, {a.var: 1 for a in axes}
    while inner * high(axes[-1].extent) <= PRODUCT_CHAIN // 2:
        wider = of | {axes[-1].var: high(axes[-1].extent)}
        if excess(wider) > excess(of):
            break
        inner, of = inner * high(axes.pop().extent), wider
    cut = axes.pop()
    pieces = _pieces(high(cut.extent), inner)
    pieces.sort(key=lambda n: excess(of | {cut.var: n}))
    k, factor = pick(k, "contraction.chain", pieces)
    if factor == 1 and inner > 1:
        factor = 0  # one step per element
    name = f"{value}_chain"
    whole = tuple(a.var.name for a in axes)
    return run(k, SplitReduce(value, cut.var.name, factor, name, whole=whole)), name


def _pieces(extent: int, inner: int) -> list[int]:
    """The numbers of an axis' elements, of `inner` products each, that may make a step: about half of a chain's
    products, and a divisor of the extent if one is near; then shorter ones."""
    wish = PRODUCT_CHAIN // 2 / inner
    near = [f for f in range(max(ceil(wish / 2), 1), min(int(wish * 2), extent) + 1) if extent % f == 0]
    best = ceildiv(extent, ceildiv(extent, max(int(wish), 1)))
    if near:
        best = min(near, key=lambda f: abs(f - wish))
    return list(dict.fromkeys([best, *(max(best // n, 1) for n in (2, 4))]))


def merge_even(k: Kernel, name: str, lanes: int = 1) -> Kernel:
    """Adjacent loops of an item that step evenly through all that it reads and writes become one, where that many
    `lanes` divide it."""
    again = True
    while again:
        again = False
        for a, b in pairwise(k.nests[name].loops):
            if a.reduce is not b.reduce or not _even(k, name, a, b) or Merge(a.var.name, b.var.name).check(k):
                continue
            merged = high(a.extent) * high(b.extent)
            if lanes == 1 or (isinstance(a.extent, int) and (merged % lanes == 0 or high(b.extent) % lanes)):
                k, _ = merge(k, a.var.name, b.var.name)
                again = True
                break
    return k


def _even(k: Kernel, name: str, a: NestLoop, b: NestLoop) -> bool:
    """One step of loop `a` is as far as all of loop `b`, in everything that the item reads and where it is kept."""
    if not isinstance(b.extent, int):
        return False
    item, nest = k.algorithm.item(name), k.nests[name]
    places: list[Int] = []
    for load in reads(item):
        if load.guard:
            return False
        index = tuple(substitute(i, nest.bind) for i in load.index)
        p = k.algorithm.param(load.source)
        places.append(flatten(index, p.shape) if p else storage_offset(k.nests[load.source], index))
    if isinstance(item, ItemValue):
        places.append(storage_offset(nest, tuple(substitute(x.var, nest.bind) for x in item.axes)))
    steps = [(coefficient(x, a.var), coefficient(x, b.var)) for x in places]
    return all(i is not None and o is not None and o == i * b.extent for o, i in steps)


def fill(k: Kernel, name: str, info: DeviceInfo) -> Kernel:
    """The loops that fill a staged tile: lanes along what is contiguous in memory. Where that is not the tile's own
    innermost axis (a transposition), blocks of lanes go outside, so that the lines written stay in the first cache."""
    item = k.algorithm.item(name)
    assert isinstance(item, ItemValue)
    width = info.lanes(item.dtype)
    k = merge_even(k, name, width)
    nest = k.nests[name]
    if not nest.loops:
        return k
    inner = nest.loops[-1].var.name
    best, score = inner, -1e9
    for spec in nest.loops:
        extent = typical(spec.extent)
        if extent < 2:
            continue
        mine = _score(k, item, spec.var, width) + (0.1 if spec.var.name == inner else 0)
        if extent % width and extent < width:
            mine -= 0.5  # lanes that are not full
        if mine > score:
            best, score = spec.var.name, mine
    # what guards depend on goes outside, so that they are tested once for all that they do not depend on
    loads = [e for e in ex.walk([item.expr]) if isinstance(e, Load)]
    guards = [substitute(c.value, nest.bind) for e in loads for c in e.guard]
    tested = {v.name for g in guards for v in variables(g)}
    loops = [x.var.name for x in nest.loops if x.var.name != best]
    k = run(k, Permute(name, (*sorted(loops, key=lambda n: n not in tested), best)))
    spec = k.nests[name].loop(best)
    assert spec is not None
    k = rows.lanes(k, best, _vectors(k, item, spec, width, 6 if best == inner else 1))
    order = [x.var.name for x in k.nests[name].loops]
    if best != inner and len(order) > 2:
        k = attempt(k, Permute(name, (order[-2], *order[:-2], order[-1])))
    return k


def _vectors(k: Kernel, item: ItemValue, loop: NestLoop, width: int, most: int) -> int:
    """Lanes at a time: as many whole vectors as divide the extent, else up to four with which the last are the fullest,
    or, for fewer, all; one at run time. Not more than are read in order, as one is: those of one block, where a scale
    or a byte is for a block."""
    if not isinstance(loop.extent, int):
        return width
    offsets = _offsets(k, item)
    blocks = [
        x for x in offsets if coefficient(x, loop.var) is None and lane_step(x, loop.var, width) is not None
    ]
    counts = [
        n for n in range(most, 0, -1) if all(lane_step(x, loop.var, n * width) is not None for x in blocks)
    ] or [1]
    whole = next((n for n in counts if loop.extent % (n * width) == 0), None)
    if whole is not None:
        return whole * width
    extent = loop.extent
    fullest = min([n for n in counts if n <= 4], key=lambda n: ceildiv(extent, n * width) * n)
    return min(extent, fullest * width)


def _offsets(k: Kernel, item: ItemValue) -> list[Int]:
    """The places of parameters that an item reads, in its loops."""
    bind = k.nests[item.name].bind
    return [
        flatten(tuple(substitute(i, bind) for i in load.index), p.shape)
        for load in reads(item)
        if (p := k.algorithm.param(load.source)) is not None
    ]


def _score(k: Kernel, item: ItemValue, loop: Var, width: int) -> float:
    """The score of lanes along a loop for what the item reads."""
    steps = [lane_step(x, loop, width) for x in _offsets(k, item)]
    return sum(1.0 if step == 1 else 0.25 if step == 0 else -1.0 for step in steps)
