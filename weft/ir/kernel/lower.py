"""Kernel -> lowered loops.

Each nest becomes loops; an item computed at a loop of another becomes statements at the start of that loop's body.
Guards follow from ranges: a padded loop may overshoot its axis, so a load whose index is not provably inside its
parameter gets a guard (what it yields there is never stored), a reduction contributes its identity there, and an
output stores nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from weft.ir import expr as ex
from weft.ir.dtypes import DType
from weft.ir.expr import Const, Expr, Load, ScalarCall
from weft.ir.graph import elements
from weft.ir.index import (
    Guard,
    Index,
    InRange,
    Int,
    Var,
    both,
    ceildiv,
    coefficient,
    flatten,
    floordiv,
    high,
    in_range,
    maximum,
    minimum,
    mod,
    rewrite,
    span,
    substitute,
    variables,
)
from weft.ir.kernel import hints
from weft.ir.kernel.algorithm import Axis, Item, ItemValue, Output, Param, Reduce, reads
from weft.ir.kernel.schedule import Kernel, Nest, NestLoop, fresh, loop_var
from weft.ir.loops import (
    LANE_KINDS,
    Accumulate,
    Alloc,
    Block,
    Buffer,
    If,
    Loop,
    LoopKind,
    Prefetch,
    Program,
    Scope,
    Stmt,
    Store,
)
from weft.ir.numerics import Tree, rounded_product
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass


def identity(op: Op, dtype: DType) -> Const:
    """The value that leaves every other unchanged under `op`."""
    match op:
        case Op.ADD:
            return Const(dtype, 0)
        case Op.MUL:
            return Const(dtype, 1)
        case Op.MAX:
            return Const(dtype, dtype.min)
        case Op.MIN:
            return Const(dtype, dtype.max)
        case _:
            raise ValueError(f"{op} is no reduction")


def _term(e: Expr, reduce: Reduce) -> Expr:
    """The term of a reduction; a pinned contraction's as `passes/pinned.py` finds it again."""
    if reduce.tree is not Tree.PRODUCTS or not isinstance(e, ScalarCall):
        return e
    if e.op is Op.WHERE:
        test, inside, outside = e.args
        return ex.where(test, _term(inside, reduce), outside)
    return rounded_product(*e.operands()) if e.op is Op.MUL else e


def lower(kernel: Kernel) -> Program:
    """The loops that compute `kernel` as its schedule says."""
    return _Lowering(kernel).program()


def storage_extents(nest: Nest) -> tuple[int, ...]:
    """Region sizes rounded up to whole blocks."""
    return tuple(ceildiv(n, b) * b for n, b in zip(nest.size, nest.layout.blocks, strict=True))


def storage_size(nest: Nest) -> int:
    """Elements of the buffer that holds an item's region."""
    sizes = _storage_sizes(nest)
    return prod(sizes)


def storage_offset(nest: Nest, index: tuple[Int, ...]) -> Int:
    """The offset of the item's element `index` in its buffer."""
    local = [i - o for i, o in zip(index, nest.origin, strict=True)]
    order, blocks, sizes = nest.layout.order, nest.layout.blocks, storage_extents(nest)
    outer = [(floordiv(local[a], blocks[a]), sizes[a] // blocks[a]) for a in order]
    inner = [(mod(local[a], blocks[a]), blocks[a]) for a in order if blocks[a] > 1]
    return flatten([i for i, _ in (*outer, *inner)], _storage_sizes(nest))


def _storage_sizes(nest: Nest) -> list[int]:
    """The extents of the storage, outermost first, the innermost with its padding."""
    order, blocks, sizes = nest.layout.order, nest.layout.blocks, storage_extents(nest)
    out = [*(sizes[a] // blocks[a] for a in order), *(blocks[a] for a in order if blocks[a] > 1)]
    return [*out[:-1], out[-1] + nest.layout.pad] if out else out


@dataclass(frozen=True, slots=True)
class _Sum:
    """The elements `at` of a buffer, over the loops, that an item's terms are added to."""

    item: ItemValue
    buffer: Buffer
    at: Int
    loops: list[NestLoop]

    def value(self) -> Expr:
        """The sum so far."""
        return Load(self.item.dtype, self.buffer.name, (self.at,))


class _Lowering:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.algorithm = kernel.algorithm
        self.params: dict[str, Param] = {p.name: p for p in self.algorithm.params}
        self.children: dict[tuple[str, str] | None, list[Item]] = {}
        for item in self.algorithm.items:
            at = kernel.nests[item.name].at
            self.children.setdefault((at.item, at.loop) if at else None, []).append(item)
        self.extents: dict[Var, Int] = {
            spec.var: spec.extent for nest in kernel.nests.values() for spec in nest.loops
        }
        self.memo: dict[str, dict[Expr, Expr]] = {}
        self.names = kernel.names()
        self.partials: dict[
            tuple[str, int], list[Stmt]
        ] = {}  # for an item, to be allocated inside so many loops
        self.targets: dict[str, tuple[str, Int]] = {}  # where sums are added to now, if that is a partial sum

    def program(self) -> Program:
        body: list[Stmt] = []
        for item in self.children.get(None, []):
            body.extend(self.placed(item))
        params = tuple(
            Buffer(p.name, p.dtype, elements(p.shape), Scope.GLOBAL) for p in self.algorithm.params
        )
        writes = frozenset(p.name for p in self.algorithm.params if p.written)
        return Program(self.algorithm.name, params, writes, self.algorithm.variables, shared(tuple(body)))

    # one item --------------------------------------------------------------------------------------------------------

    def placed(self, item: Item) -> list[Stmt]:
        """The item's buffer and nest, as they stand where it is computed."""
        nest = self.kernel.nests[item.name]
        if nest.online is not None:  # its leader's loop computes it
            return []
        out: list[Stmt] = []
        if isinstance(item, ItemValue):
            out.append(self.alloc(item))
            for other in self.followers(item.name):
                its = self.kernel.nests[other.name]
                out.extend([self.alloc(other), *self.init(other, its, its.loops)])
        out.extend(self.level(item, nest, 0))
        return out

    def alloc(self, item: ItemValue) -> Alloc:
        nest = self.kernel.nests[item.name]
        return Alloc(Buffer(item.name, item.dtype, storage_size(nest), nest.scope))

    def level(self, item: Item, nest: Nest, depth: int) -> list[Stmt]:
        """The statements inside the first `depth` loops of the item's nest: accumulators set, what is computed here,
        the rest of the nest."""
        out: list[Stmt] = []
        first_reduce = next((k for k, spec in enumerate(nest.loops) if spec.reduce), len(nest.loops))
        if isinstance(item, ItemValue) and item.reduce and nest.online is None and depth == first_reduce:
            out.extend(self.init(item, nest, nest.loops[depth:]))
        if depth:
            out.extend(self.hints_for_output(item, nest, nest.loops[depth - 1].var.name))
            for child in self.children_at(item, nest, depth):
                out.extend(self.placed(child))
        inner = self.inner(item, nest, depth)
        return [*out, *self.partials.pop((item.name, depth), []), *inner]

    def children_at(self, item: Item, nest: Nest, depth: int) -> list[Item]:
        """The items computed in the body of the nest's loop number `depth - 1`."""
        return self.children.get((item.name, nest.loops[depth - 1].var.name), [])

    def inner(self, item: Item, nest: Nest, depth: int) -> list[Stmt]:
        """The nest's loops from `depth` on, and in them its own work."""
        if depth == len(nest.loops):
            return self.leaf(item, nest)
        spec = nest.loops[depth]
        if isinstance(item, ItemValue) and spec.levels and spec.kind is LoopKind.SERIAL:
            return [self.in_levels(item, nest, depth)]
        return [self.loop(item, nest, depth)]

    def loop(self, item: Item, nest: Nest, depth: int) -> Loop:
        """The nest's loop number `depth`, and all in it."""
        spec = nest.loops[depth]
        if isinstance(item, ItemValue) and self.followers(item.name, spec.var.name):
            body = self.online_body(item, nest, depth + 1)
        else:
            body = self.level(item, nest, depth + 1)
        return Loop(spec.var, spec.extent, tuple(body), spec.kind)

    def target(self, item: ItemValue, nest: Nest) -> tuple[str, Int]:
        """The buffer and the element of it to which the item's terms are added here."""
        return self.targets.get(item.name) or (item.name, self.offset_of(item, nest))

    def init(self, item: ItemValue, nest: Nest, loops: tuple[NestLoop, ...]) -> list[Stmt]:
        """Set the item's accumulators, over the non-reducing loops among `loops`, to the identity."""
        assert item.reduce is not None
        start: Stmt = Store(item.name, self.offset_of(item, nest), identity(item.reduce.op, item.dtype))
        return [self.rename(wrap(start, [s for s in loops if not s.reduce]), "init")]

    def leaf(self, item: Item, nest: Nest) -> list[Stmt]:
        match item:
            case ItemValue(reduce=None):
                at = self.offset_of(item, nest)
                return [*self.hints(item, nest), Store(item.name, at, self.scalar(item, nest, item.expr))]
            case ItemValue():
                assert item.reduce is not None
                value = _term(self.scalar(item, nest, item.expr), item.reduce)
                guard = self.inside(nest, item.reduce.axes)
                if guard:
                    value = ex.where(ex.test(guard), value, identity(item.reduce.op, item.dtype))
                return [*self.hints(item, nest), Accumulate(*self.target(item, nest), item.reduce.op, value)]
            case Output():
                return [
                    *self.hints(item, nest),
                    *(self.store(item, nest, k) for k in range(len(item.stores))),
                ]

    def hints(self, item: Item, nest: Nest) -> list[Stmt]:
        """Hints for what a later iteration of a loop, as `nest.prefetch` says, will read of parameters, and write to
        them through the caches."""
        wish = nest.prefetch
        var = None if wish is None else next((v for v in self.extents if v.name == wish.loop), None)
        if wish is None or var is None or wish.output:
            return []
        out: dict[Stmt, None] = {}
        for param, here in self.places(item, nest, wish.params):
            there = (
                hints.of_run(self.kernel, item, nest, var, param, here)
                if wish.shared
                else hints.later(here, var, wish.steps)
            )
            out |= dict.fromkeys(Prefetch(param.name, at) for at in there)
        return list(out)

    def hints_for_output(self, item: Item, nest: Nest, loop: str) -> list[Stmt]:
        """Hints, in some iterations of the item's loop, for what the output that `nest.prefetch` names will read and
        write."""
        wish = nest.prefetch
        if wish is None or not wish.output or wish.loop != loop:
            return []
        output, out = self.algorithm.item(wish.output), dict[Stmt, None]()
        for param, here in self.places(output, self.kernel.nests[wish.output], wish.params):
            there = hints.of_output(self.kernel, wish, item.name, param, here)
            out |= dict.fromkeys(Prefetch(param.name, at) for at in there)
        var = nest.loops[nest.depth(loop)].var
        due = in_range(mod(var, wish.steps), None, 1)
        return [If(due, tuple(out))] if out and due else list(out)

    def places(self, item: Item, nest: Nest, names: tuple[str, ...]) -> Iterator[tuple[Param, Int]]:
        """The offsets at which the item reads parameters of these names, or of any, and writes to them through the
        caches."""
        for name, index in hints.accesses(item, nest):
            param = self.params.get(name)
            if param is not None and name in (names or self.params):
                yield param, flatten([self.index(item, nest, i) for i in index], param.shape)

    def store(self, item: Output, nest: Nest, k: int) -> Stmt:
        s = item.stores[k]
        param = self.params[s.param]
        index = tuple(self.index(item, nest, i) for i in s.index)
        guard = self.inside(nest, item.axes)
        for c in s.guard:
            lo = None if c.lo is None else self.index(item, nest, c.lo)
            hi = None if c.hi is None else self.index(item, nest, c.hi)
            guard = both(guard, in_range(self.index(item, nest, c.value), lo, hi))
        value, offset = self.scalar(item, nest, s.expr), flatten(index, param.shape)
        if s.combine is not None:
            return Accumulate(s.param, offset, s.combine, value, guard)
        return Store(s.param, offset, value, guard, nest.stream)

    # sums in levels --------------------------------------------------------------------------------------------------

    def in_levels(self, item: ItemValue, nest: Nest, depth: int) -> Loop:
        """The loop number `depth` with a partial sum for so many of its iterations, for so many of those again, as its
        `levels` say: of the item, or of the online sums that run beside it."""
        spec, kept = nest.loops[depth], dict(self.targets)
        online = self.followers(item.name, spec.var.name)
        # what belongs to a block of threads is allocated outside of their loops, and of lanes'
        start = next((d for d, s in enumerate(nest.loops[:depth]) if s.kind in _TOGETHER), depth + 1)
        pure = [s for s in nest.loops[depth + 1 :] if not s.reduce]
        lanes = [s for s in nest.loops[start:depth] if s.reduce and s.kind in LANE_KINDS]
        layout = [*lanes, *(s for s in nest.loops[start:] if not s.reduce)]
        sums = [self.sum_of(x, in_lanes(pure_loops(self.kernel.nests[x.name]))) for x in online]
        chain = [sums or [self.sum_of(item, pure)]]
        for _ in spec.levels:
            chain.append([self.part_of(s, None if online else layout) for s in chain[-1]])
        allocs: list[Stmt] = [Alloc(p.buffer) for parts in chain[1:] for p in parts]
        self.partials.setdefault((item.name, min(start, depth)), []).extend(allocs)
        self.targets |= {s.item.name: (s.buffer.name, s.at) for s in chain[-1]}
        loop = self.loop(item, nest, depth)
        self.targets = kept
        for count, parts, wholes in zip(spec.levels, chain[:0:-1], chain[-2::-1], strict=True):
            pieces = self.pieces(loop, count)
            begin = [self.begun(p) for p in parts]
            if online:
                before, end = self.since(item, nest, depth, parts, wholes)
                begin += before
            else:
                end = [self.added(p, w) for p, w in zip(parts, wholes, strict=True)]
            loop = replace(pieces, body=(*begin, *pieces.body, *end))
        return loop

    def sum_of(self, item: ItemValue, loops: list[NestLoop]) -> _Sum:
        """The place to which the item's terms are added so far, inside `loops`."""
        nest = self.kernel.nests[item.name]
        name, at = self.target(item, nest)
        buffer = Buffer(name, item.dtype, storage_size(nest), nest.scope)
        return _Sum(item, buffer, at, loops)

    def part_of(self, s: _Sum, layout: list[NestLoop] | None) -> _Sum:
        """A partial sum for each iteration of loops, in row-major order, or, without any, laid out as the whole."""
        size, at = s.buffer.size, s.at
        if layout is not None:
            sizes = [high(x.extent) for x in layout]
            size, at = prod(sizes), flatten([x.var for x in layout], sizes)
        name = fresh(self.names, f"{s.item.name}_part")
        return replace(s, buffer=replace(s.buffer, name=name, size=size), at=at)

    def pieces(self, loop: Loop, count: int) -> Loop:
        """The loop in pieces of `count` iterations."""
        n = loop.extent
        steps = ceildiv(n, count)
        outer = loop_var(fresh(self.names, f"{loop.var.name}_o"), steps)
        length = count if floordiv(n, count) * count == n else minimum(n - outer * count, count)
        inner = loop_var(fresh(self.names, f"{loop.var.name}_i"), length)
        body = tuple(substitute_stmt(s, {loop.var: outer * count + inner}) for s in loop.body)
        return Loop(outer, steps, (Loop(inner, length, body, loop.kind),), loop.kind)

    def begun(self, p: _Sum) -> Stmt:
        """A partial sum of nothing yet."""
        return self.over(p.loops, Store(p.buffer.name, p.at, Const(p.item.dtype, 0)))

    def added(self, p: _Sum, whole: _Sum) -> Stmt:
        """A partial sum added to the whole."""
        return self.over(p.loops, Accumulate(whole.buffer.name, whole.at, Op.ADD, p.value()))

    def since(
        self, leader: ItemValue, nest: Nest, depth: int, parts: list[_Sum], wholes: list[_Sum]
    ) -> tuple[list[Stmt], list[Stmt]]:
        """Before a piece, what is needed to tell how far the leader moves in it; after it, the wholes rescaled by that,
        and the partial sums added."""
        old, scale = (fresh(self.names, f"{leader.name}_{n}") for n in ("before", "since"))
        at, size = self.offset_of(leader, nest), storage_size(nest)
        rows = in_lanes([s for s in nest.loops[depth + 1 :] if not s.reduce])
        begin: list[Stmt] = [Alloc(Buffer(n, leader.dtype, size, nest.scope)) for n in (old, scale)]
        begin.append(self.over(rows, Store(old, at, Load(leader.dtype, leader.name, (at,)))))
        end: list[Stmt] = [self.over(rows, Store(scale, at, self.scale(leader, old, at)))]
        for p, w in zip(parts, wholes, strict=True):
            rescaled = ex.call(Op.MUL, w.value(), self.factor(p.item, leader, nest, scale))
            end.append(self.over(p.loops, Store(w.buffer.name, w.at, ex.call(Op.ADD, rescaled, p.value()))))
        return begin, end

    def over(self, loops: list[NestLoop], stmt: Stmt) -> Stmt:
        """`stmt` inside copies of the loops, under fresh names."""
        own = [replace(s, var=Var(fresh(self.names, s.var.name), s.var.lo, s.var.hi)) for s in loops]
        mapping: dict[Var, Int] = {s.var: o.var for s, o in zip(loops, own, strict=True)}
        return wrap(substitute_stmt(stmt, mapping), own)

    # online reductions -----------------------------------------------------------------------------------------------

    def followers(self, leader: str, loop: str | None = None) -> list[ItemValue]:
        """The reductions that run beside `leader` (in its loop `loop`), in order."""
        out: list[ItemValue] = []
        for item in self.algorithm.items:
            online = self.kernel.nests[item.name].online
            if isinstance(item, ItemValue) and online is not None and online.leader == leader:
                if loop is None or online.loop == loop:
                    out.append(item)
        return out

    def online_body(self, leader: ItemValue, nest: Nest, depth: int) -> list[Stmt]:
        """One step of the shared loop: what the leader needs; the leader, its old value kept; then, in order, what
        reads its new value, and the followers, each rescaled before it is added to."""
        members = {f.name: f for f in self.followers(leader.name, nest.loops[depth - 1].var.name)}
        children = self.children_at(leader, nest, depth)
        later = self.downstream(leader.name, children)
        old, scale = f"{leader.name}_old", f"{leader.name}_scale"
        at, size = self.offset_of(leader, nest), storage_size(nest)
        rows = [s for s in nest.loops[depth:] if not s.reduce]

        def over_rows(stmt: Stmt, suffix: str) -> Stmt:
            return self.rename(wrap(stmt, in_lanes(rows)), suffix)

        body: list[Stmt] = [s for c in children if c.name not in later for s in self.placed(c)]
        body += [Alloc(Buffer(n, leader.dtype, size, nest.scope)) for n in (old, scale)]
        body.append(over_rows(Store(old, at, Load(leader.dtype, leader.name, (at,))), "old"))
        body += self.inner(leader, nest, depth)
        body.append(over_rows(Store(scale, at, self.scale(leader, old, at)), "scale"))
        for item in self.algorithm.items:
            if item.name in members:
                body += self.rescale_and_add(members[item.name], leader, nest, scale)
            elif item.name in later:
                body += self.placed(item)
        return body

    def downstream(self, leader: str, children: list[Item]) -> set[str]:
        """The items of `children` that read the leader's running value, directly or through others."""
        names, out = {c.name for c in children}, set[str]()
        for item in self.algorithm.items:
            if item.name in names and any(r.source == leader or r.source in out for r in reads(item)):
                out.add(item.name)
        return out

    def scale(self, leader: ItemValue, old: str, at: Int) -> Expr:
        """exp(old - new), and 1 where both are equal (they may be -inf)."""
        was, now = Load(leader.dtype, old, (at,)), Load(leader.dtype, leader.name, (at,))
        moved = ex.call(Op.EXP, ex.call(Op.SUB, was, now))
        return ex.where(ex.call(Op.EQ, was, now), Const(leader.dtype, 1), moved)

    def rescale_and_add(
        self, item: ItemValue, leader: ItemValue, leader_nest: Nest, scale: str
    ) -> list[Stmt]:
        """The follower's accumulators times the scale of their row, then its part of this step added."""
        nest = self.kernel.nests[item.name]
        name, at = self.target(item, nest)
        factor = self.factor(item, leader, leader_nest, scale)
        rescaled = ex.call(Op.MUL, Load(item.dtype, name, (at,)), factor)
        pure = pure_loops(nest)
        added = self.level(item, nest, 0)
        if len(pure) == len(nest.loops):  # one addition to each element: both in one step
            at_once = [_rescaling(s, name, factor) for s in added]
            if None not in at_once:
                return [s for s in at_once if s is not None]
        return [self.rename(wrap(Store(name, at, rescaled), in_lanes(pure)), "rescale"), *added]

    def factor(self, item: ItemValue, leader: ItemValue, leader_nest: Nest, scale: str) -> Expr:
        """The element of `scale` for the row of an online sum: its first axes."""
        bind = self.kernel.nests[item.name].bind
        rows = tuple(substitute(a.var, bind) for a in item.axes[: len(leader.axes)])
        return Load(leader.dtype, scale, (storage_offset(leader_nest, rows),))

    # expressions -----------------------------------------------------------------------------------------------------

    def rename(self, stmt: Stmt, suffix: str) -> Stmt:
        """A copy of a loop nest under fresh loop variables, so that names stay unique."""
        if not isinstance(stmt, Loop):
            return stmt
        var = Var(f"{stmt.var.name}_{suffix}", stmt.var.lo, stmt.var.hi)
        inner = tuple(self.rename(substitute_stmt(s, {stmt.var: var}), suffix) for s in stmt.body)
        return Loop(var, stmt.extent, inner, stmt.kind)

    def offset_of(self, item: ItemValue, nest: Nest) -> Int:
        return storage_offset(nest, tuple(substitute(a.var, nest.bind) for a in item.axes))

    def inside(self, nest: Nest, axes: tuple[Axis, ...]) -> Guard:
        """The condition that the loops have not overshot `axes`."""
        guard: Guard = ()
        for a in axes:
            guard = both(guard, self.bounded(substitute(a.var, nest.bind), a.extent))
        return guard

    def bounded(self, value: Int, extent: Int) -> Guard:
        """0 <= value < extent, less what ranges and loop extents prove."""
        if isinstance(value, Var) and self.extents.get(value) == extent:
            return ()
        return in_range(value, 0, extent)

    def index(self, item: Item, nest: Nest, i: Int) -> Int:
        def leaf(x: Index) -> Int | None:
            if isinstance(x, Var):
                return nest.bind.get(x)
            value = getattr(x, "value", None)
            if isinstance(value, Expr):
                lowered = self.scalar(item, nest, value)
                return x if lowered is value else ex.as_index(lowered, x.lo, x.hi)
            return None

        return rewrite(i, leaf)

    def scalar(self, item: Item, nest: Nest, e: Expr) -> Expr:
        """An expression of the item over loop variables, with flat and guarded loads."""
        memo = self.memo.setdefault(item.name, {})
        return ex.transform(
            e, self.flat_load, lambda x: nest.bind.get(x) if isinstance(x, Var) else None, memo
        )

    def flat_load(self, e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        param = self.params.get(e.source)
        guard = e.guard
        if param is None:
            nest = self.kernel.nests[e.source]
            for i, first, size, n in zip(
                e.index, nest.origin, nest.size, self.filled(e.source, nest), strict=True
            ):
                # a reader's padded loop may overshoot the region, or what of it is computed
                guard = both(guard, in_range(i - first, 0, size))
                if not isinstance(n, int) and maximum(self.end(i - first), n) != n:
                    guard = both(guard, in_range(i - first, None, n))
            return Load(e.dtype, e.source, (storage_offset(nest, e.index),), guard)
        for i, n in zip(e.index, param.shape, strict=True):
            guard = both(guard, self.bounded(i, n))
        return Load(e.dtype, e.source, (flatten(e.index, param.shape),), guard)

    def filled(self, name: str, nest: Nest) -> tuple[Int, ...]:
        """The extents of a value's region, as far as runtime sizes let it be computed."""
        sizes = set(self.algorithm.variables)
        ends = [
            self.end(substitute(a.var, nest.bind) - first)
            for a, first in zip(self.algorithm.item(name).axes, nest.origin, strict=True)
        ]
        return tuple(n if variables(n) & sizes else high(n) for n in ends)

    def end(self, i: Int) -> Int:
        """An upper bound of `i` + 1, in terms of the extents of the loops that are only known at run time."""
        for v in variables(i):
            extent, step = self.extents.get(v, 0), coefficient(i, v)
            if not isinstance(extent, int) and step and step > 0:
                i = i + (extent - 1 - v) * step
        inner = variables(i) - set(self.algorithm.variables)
        reach = span(i, {v for v in inner if isinstance(self.extents.get(v), int)})
        if reach is not None:
            return reach[0] + reach[1]
        for v in inner:  # extents that follow from an outer loop's variable
            extent, step = self.extents.get(v, 0), coefficient(i, v)
            if isinstance(extent, int) and step and step > 0:
                i = i + (extent - 1 - v) * step
        return i + 1


LANES = 256
"""The most that one vector loop has."""

_TASKS = (LoopKind.PARALLEL, LoopKind.BLOCK)

_TOGETHER = (*LANE_KINDS, LoopKind.THREAD)


def _rescaling(stmt: Stmt, name: str, factor: Expr) -> Stmt | None:
    """`stmt` with x[i] += v, x the buffer `name`, as x[i] = x[i] * factor + v; None where that has a condition."""
    match stmt:
        case Accumulate(buffer=buffer) if buffer == name:
            old = Load(stmt.value.dtype, name, (stmt.offset,))
            total = ex.call(Op.ADD, ex.call(Op.MUL, old, factor), stmt.value)
            return None if stmt.guard else Store(name, stmt.offset, total)
        case Loop():
            body = [_rescaling(s, name, factor) for s in stmt.body]
            whole = tuple([s for s in body if s is not None])
            return replace(stmt, body=whole) if len(whole) == len(body) else None
        case If():
            return None
        case _:
            return stmt


def shared(body: Block) -> Block:
    """Buffers that are used in parallel loops which they were allocated outside of become GLOBAL."""
    born: dict[str, int] = {}
    crossing: set[str] = set()

    def visit(block: Block, tasks: int) -> None:
        for s in block:
            match s:
                case Alloc():
                    born[s.buffer.name] = tasks
                case Loop():
                    visit(s.body, tasks + (s.kind in _TASKS))
                case If():
                    visit(s.body, tasks)
                case Store() | Accumulate():
                    roots = [s.value, *ex.opaque_values(s.offset), *([ex.test(s.guard)] if s.guard else [])]
                    used = {e.source for e in ex.walk(roots) if isinstance(e, Load)} | {s.buffer}
                    crossing.update(n for n in used if born.get(n, tasks) < tasks)
                case _:
                    pass

    def moved(block: Block) -> Block:
        return tuple(
            Alloc(replace(s.buffer, scope=Scope.GLOBAL))
            if isinstance(s, Alloc) and s.buffer.name in crossing
            else replace(s, body=moved(s.body))
            if isinstance(s, Loop | If)
            else s
            for s in block
        )

    visit(body, 0)
    return moved(body) if crossing else body


def pure_loops(nest: Nest) -> list[NestLoop]:
    """The loops of a nest that do not reduce."""
    return [s for s in nest.loops if not s.reduce]


def in_lanes(loops: list[NestLoop]) -> list[NestLoop]:
    """Loops whose iterations have nothing to do with each other, the innermost as vector lanes where it can be."""
    if not loops or any(s.kind in LANE_KINDS for s in loops):
        return loops
    last = loops[-1]
    if last.kind is not LoopKind.SERIAL or not isinstance(last.extent, int) or not 1 < last.extent <= LANES:
        return loops
    return [*loops[:-1], replace(last, kind=LoopKind.VECTOR)]


def wrap(stmt: Stmt, loops: list[NestLoop]) -> Stmt:
    """`stmt` inside `loops`, outermost first."""
    for spec in reversed(loops):
        stmt = Loop(spec.var, spec.extent, (stmt,), spec.kind)
    return stmt


def substitute_stmt(stmt: Stmt, mapping: Mapping[Var, Int]) -> Stmt:
    """`stmt` with index variables replaced everywhere."""

    def on_index(x: Index) -> Int | None:
        return mapping.get(x) if isinstance(x, Var) else None

    memo: dict[Expr, Expr] = {}

    def on_expr(e: Expr) -> Expr:
        return ex.transform(e, lambda _: None, on_index, memo)

    def on_int(i: Int) -> Int:
        return rewrite(i, on_index)

    def on_bound(i: Int | None) -> Int | None:
        return None if i is None else on_int(i)

    def on_guard(g: Guard) -> Guard:
        return tuple(InRange(on_int(c.value), on_bound(c.lo), on_bound(c.hi)) for c in g)

    match stmt:
        case Loop():
            extent = on_int(stmt.extent)
            if extent != stmt.extent:
                var = loop_var(stmt.var.name, extent)
                mapping, stmt = {**mapping, stmt.var: var}, replace(stmt, var=var, extent=extent)
            return replace(stmt, body=tuple(substitute_stmt(s, mapping) for s in stmt.body))
        case If():
            body = tuple(substitute_stmt(s, mapping) for s in stmt.body)
            return replace(stmt, guard=on_guard(stmt.guard), body=body)
        case Store():
            return replace(
                stmt, offset=on_int(stmt.offset), value=on_expr(stmt.value), guard=on_guard(stmt.guard)
            )
        case Accumulate():
            return replace(
                stmt, offset=on_int(stmt.offset), value=on_expr(stmt.value), guard=on_guard(stmt.guard)
            )
        case Prefetch():
            return Prefetch(stmt.buffer, on_int(stmt.offset))
        case _:
            return stmt
