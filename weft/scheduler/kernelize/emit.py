"""Algorithm of a group. Names follow from the group's own structure, so that equal kernels have equal text."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from weft import settings
from weft.ir import dtypes
from weft.ir import expr as ex
from weft.ir.errors import IRError
from weft.ir.expr import Const, Expr, Load
from weft.ir.forks import forkable
from weft.ir.graph import Axes, Node, ProductAxes, Shape, elements
from weft.ir.index import (
    NEVER,
    Guard,
    Index,
    Int,
    Var,
    high,
    in_range,
    map_guard,
    substitute,
    unflatten,
    variables,
)
from weft.ir.index import atoms as atoms_of
from weft.ir.kernel.algorithm import (
    Algorithm,
    Axis,
    Item,
    ItemValue,
    KnownFill,
    Output,
    Param,
    Reduce,
    StoreTo,
    reads,
)
from weft.ir.numerics import MIN_ROW, Tree, pinned
from weft.ir.ops import COMBINE, MOVEMENT, REDUCE, Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.kernelize.axes import runs
from weft.scheduler.kernelize.bijection import divided
from weft.scheduler.kernelize.count import operations
from weft.scheduler.kernelize.decisions import Cut, Logged
from weft.scheduler.kernelize.evaluate import Evaluator, narrow
from weft.scheduler.kernelize.facts import is_leaf
from weft.scheduler.kernelize.groups import Frame, Group, GroupStore, Kind
from weft.scheduler.kernelize.masks import Masks, places
from weft.scheduler.kernelize.spec import KernelSpec
from weft.scheduler.kernelize.structure import Key, structure

_OWN, _SUMMED = "ijklmn", "rstu"
_stamps = count()


class _Params:
    """Parameters in order of first use. Adjacent axes that a reshaped or merged coordinate runs over become one."""

    def __init__(self, group: Group, merged: Mapping[Var, Int], reserved: frozenset[str]) -> None:
        self.reserved = reserved
        self.reads: dict[int, tuple[Node, str]] = {}
        self.writes: dict[int, tuple[Node, str]] = {}
        self.linked: dict[int, set[int]] = {}  # id of a node -> its axes that are one with the next
        for s in group.loads:
            self.link(s.node, s.index, merged)
        for f in group.outputs():
            for store in f.stores:
                self.link(store.node, store.index, merged)

    def link(self, node: Node, index: tuple[Int, ...], merged: Mapping[Var, Int]) -> None:
        """Record the axes that must become one with the next: those that parts of one coordinate index."""
        last: dict[Var, int] = {}
        for k, i in enumerate(index):
            for v in divided(substitute(i, merged)):
                if v in last:
                    self.linked.setdefault(id(node), set()).update(range(last[v], k))
                last[v] = k

    def shape(self, node: Node) -> Shape:
        """The parameter's shape: the node's, linked axes joined."""
        linked = self.linked.get(id(node), ())
        out: list[Int] = []
        for k, n in enumerate(node.shape):
            if k and k - 1 in linked:
                out[-1] = out[-1] * n
            else:
                out.append(n)
        return tuple(out)

    def index(self, node: Node, index: tuple[Int, ...]) -> tuple[Int, ...]:
        """An index of the node as one of the parameter."""
        linked = self.linked.get(id(node), ())
        if not linked:
            return index
        out: list[Int] = []
        for k, (i, n) in enumerate(zip(index, node.shape, strict=True)):
            if k and k - 1 in linked:
                out[-1] = out[-1] * n + i
            else:
                out.append(i)
        return tuple(out)

    def load(self, node: Node, index: tuple[Int, ...]) -> Load | Const:
        """The element; 0 for one that is never inside, which a choice does not come to either."""
        at = self.index(node, index)
        if any(in_range(i, 0, n) == NEVER for i, n in zip(at, self.shape(node), strict=True)):
            return Const(node.dtype, ex.normalize(node.dtype, 0))
        known = self.reads.get(id(node))
        if known is None:
            known = self.reads[id(node)] = (node, _free(f"p{len(self.reads)}", self.reserved))
        return Load(node.dtype, known[1], at)

    def masked(self, node: Node, masks: Masks) -> KnownFill | None:
        """The masked-out elements of a parameter."""
        return masks.masked.get(id(node)) if id(node) not in self.linked else None

    def written(self, node: Node) -> str:
        known = self.writes.get(id(node))
        if known is None:
            known = self.writes[id(node)] = (node, _free(f"y{len(self.writes)}", self.reserved))
        return known[1]


class _Emitter:
    """Makes the algorithm of a group, adjacent axes merged where memory allows it."""

    def __init__(self, group: Group, masks: Masks, far: frozenset[int]) -> None:
        self.group, self.masks, self.far = group, masks, far
        self.merged: dict[Var, Int] = {}  # coordinate -> expression over merged coordinates
        self.extents: dict[Var, Int] = dict(group.extents)
        self.first: dict[Var, Var] = {}  # first coordinate of a run -> the merged one
        self.gone: set[Var] = set()
        for run in runs(group):
            sizes = tuple(group.extents[v] for v in run)
            extent = elements(sizes)
            whole = Var(f"{run[0].name}_{run[-1].name}", 0, max(high(extent) - 1, 0))
            self.merged.update(zip(run, unflatten(whole, sizes), strict=True))
            self.extents[whole] = extent
            self.first[run[0]] = whole
            self.gone.update(run[1:])
        self.runtime = _runtime_variables(group, masks)
        self.reserved = frozenset(v.name for v in self.runtime)
        self.params = _Params(group, self.merged, self.reserved)
        self.values: dict[int, tuple[str, list[Var]]] = {}

    def axes(self, coordinates: tuple[Var, ...]) -> list[Var]:
        """Coordinates with runs replaced by the merged one."""
        return [self.first.get(v, v) for v in coordinates if v not in self.gone]

    def frame(self, frame: Frame, number: int) -> tuple[Evaluator, tuple[Axis, ...], tuple[Axis, ...]]:
        """An evaluator for the frame, its axes, and those it reduces."""
        suffix = str(number) if number else ""
        rename: dict[Var, Int] = {}
        own = self.named(frame.axes, _OWN, "i", suffix, rename)
        summed = self.named(frame.reduced, _SUMMED, "r", suffix, rename)
        for v in (*frame.axes, *frame.reduced):
            if v in self.merged:
                whole = next(iter(variables(self.merged[v])))
                new = rename[whole]
                rename[v] = substitute(self.merged[v], {whole: new})
        e = Evaluator(next(_stamps), rename, self.group.markers, self.params.load, self.values)
        return e, own, summed

    def named(
        self, coordinates: tuple[Var, ...], letters: str, prefix: str, suffix: str, rename: dict[Var, Int]
    ) -> tuple[Axis, ...]:
        out: list[Axis] = []
        for k, v in enumerate(self.axes(coordinates)):
            stem = letters[k] if k < len(letters) else f"{prefix}{k}_"
            var = Var(_free(f"{stem}{suffix}", self.reserved), v.lo, v.hi)
            rename[v] = var
            out.append(Axis(var, self.extents[v]))
        return tuple(out)

    def value(self, frame: Frame, number: int) -> ItemValue:
        """The item of a reduction."""
        assert frame.node is not None
        e, own, summed = self.frame(frame, number)
        node = frame.node
        body = e.run(frame.stores[0].site)
        op = COMBINE[node.op]
        name = _SHORT[node.op]
        taken = {n for n, _ in self.values.values()}
        name = next(n for k in count() if (n := _free(f"{name}{k or ''}", self.reserved)) not in taken)
        self.values[frame.number] = (name, self.axes(frame.axes))
        return ItemValue(
            name, own, narrow(body, dtypes.accumulator(node.dtype)), Reduce(op, summed, tree_of(node))
        )

    def output(self, frame: Frame, number: int, name: str, names: Mapping[int, str]) -> Output:
        e, own, _ = self.frame(frame, number)
        stores = tuple(self.store(e, s) for s in frame.stores)
        carries = tuple(
            Load(c.stores[0].node.dtype, names[c.number], tuple(e.index(v) for v in self.axes(c.axes)))
            for c in frame.carries
        )
        return Output(name, own, stores, carries)

    def store(self, e: Evaluator, s: GroupStore) -> StoreTo:
        value = e.run(s.site)
        for marked in (*s.index, *(c.value for c in s.guard)):
            for a in atoms_of(marked):
                if a in self.group.markers:
                    e.run(self.group.markers[a][0])  # pyright: ignore[reportArgumentType]
        at = tuple(e.index(i) for i in s.index)
        index = self.params.index(s.node, at)
        if self.group.contractions and value.dtype.is_float:
            value = self.where_needed(s.node, at, value)
        return StoreTo(
            self.params.written(s.node), index, narrow(value, s.node.dtype), e.guard(s.guard), s.combine
        )

    def where_needed(self, node: Node, at: tuple[Int, ...], value: Expr) -> Expr:
        """The value that a contraction stores, where somebody uses it and no mask makes it 0; else 0, so that schedules
        compute none of it."""
        here = {v: i for v, i in zip(places(node), at, strict=True) if isinstance(v, Var)}
        fill = self.masks.masked.get(id(node))
        zero = fill.outside if fill is not None and fill.value == 0 else ()  # -inf is in the expression
        for guard in dict.fromkeys((self.masks.demanded.get(id(node), ()), zero)):
            if guard:
                holds = ex.test(map_guard(guard, lambda i: substitute(i, here)))
                value = ex.where(holds, value, ex.const(value.dtype, 0))
        return value

    def algorithm(self, name: str) -> Algorithm:
        """All items, reductions before the outputs that read them."""
        group = self.group
        numbers = count(1)
        items: list[Item] = [self.value(f, next(numbers)) for f in reversed(group.reductions())]
        outputs = group.outputs()
        carried = [f for f in outputs if any(f in o.carries for o in outputs)]
        ordered = [*carried, *(f for f in outputs if f not in carried)]
        numbered = reversed(ordered) if carried else ordered
        names = {f.number: _free(f"out{k or ''}", self.reserved) for k, f in enumerate(numbered)}
        main = ordered[0] if not carried else ordered[-1]
        for f in ordered:
            items.append(self.output(f, 0 if f is main else next(numbers), names[f.number], names))
        items, used = _read(items)
        p = self.params
        p.reads = {k: (n, name) for k, (n, name) in p.reads.items() if name in used}
        params = [
            Param(name, n.dtype, p.shape(n), fill=p.masked(n, self.masks), far=id(n) in self.far)
            for n, name in p.reads.values()
        ]
        params += [Param(name, n.dtype, p.shape(n), True) for n, name in p.writes.values()]
        return Algorithm(name, tuple(params), self.runtime, tuple(items), pinned())


def _read(items: Sequence[Item]) -> tuple[list[Item], set[str]]:
    """The items that outputs are computed from, and the names of all that these read: of a condition that never holds
    nothing is left, nor of what it would have let through."""
    used: set[str] = set()
    kept: list[Item] = []
    for item in reversed(items):
        if isinstance(item, Output) or item.name in used:
            kept.append(item)
            used |= {r.source for r in reads(item)}
    return kept[::-1], used


def tree_of(node: Node) -> Tree:
    """The order in which the terms of a reduction are combined: any, but in the mode "same"; see `ir/numerics.py`."""
    assert isinstance(node.attrs, Axes)
    if not pinned() or node.op not in (Op.SUM, Op.PROD) or not node.inputs[0].dtype.is_float:
        return Tree.FREE
    if isinstance(node.attrs, ProductAxes):
        return Tree.PRODUCTS
    shape, last = node.inputs[0].shape, node.attrs.axes[-1]
    return Tree.LANES if last == len(shape) - 1 and high(shape[last]) >= MIN_ROW else Tree.CHAIN


def _runtime_variables(group: Group, masks: Masks) -> tuple[Var, ...]:
    """The runtime variables that sizes, offsets, guards and masks depend on, by name."""
    used: list[Int] = [*group.extents.values(), *(s for _, s in group.markers.values() if s is not None)]
    own: set[Int] = set(group.extents)
    guards: list[Guard] = []
    for s in (*group.loads, *group.index_dependent):
        used += s.index
        guards += s.guards
        if s.kind is Kind.LOAD:
            used += s.node.shape
            if (fill := masks.masked.get(id(s.node))) is not None:
                guards.append(fill.outside)
                own.update(places(s.node))
    for f in group.outputs():
        for store in f.stores:
            used += (*store.index, *store.node.shape)
            guards += (store.guard, masks.demanded.get(id(store.node), ()))
            own.update(places(store.node))
    used += [x for g in guards for c in g for x in (c.value, c.lo, c.hi) if x is not None]
    found = {v for i in used if isinstance(i, Index) for v in variables(i)}
    return tuple(sorted(found - own, key=lambda v: v.name))


def _free(name: str, reserved: frozenset[str]) -> str:
    """`name`, changed if a runtime variable is called so."""
    while name in reserved:
        name += "_"
    return name


_SHORT: dict[Op, str] = {Op.SUM: "sum", Op.PROD: "prod", Op.REDUCE_MAX: "max", Op.REDUCE_MIN: "min"}


def _name(group: Group) -> str:
    """A few words on what the kernel does: "product" for a contraction, reductions, then what is stored."""
    words: list[str] = []
    for f in reversed(group.reductions()):
        assert f.node is not None
        words.append("product" if f in group.contractions else _SHORT[f.node.op])
    for f in group.outputs():
        for s in f.stores:
            node = s.node
            while node.op in MOVEMENT and not is_leaf(node):
                node = node.inputs[0]
            if node.op not in REDUCE:
                words.append("load" if node.op is Op.BUFFER or is_leaf(node) else node.op.symbol)
    words = list(dict.fromkeys(words))
    return "_".join(words[:5]) or "kernel"


@dataclass(frozen=True, slots=True)
class _Emitted:
    """The kernel of all groups of one structure. `reads` and `writes`: the numbers of the tensors that its parameters
    stand for."""

    algorithm: Algorithm
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    flops: Int
    traffic: Int


EMITTED_KEPT = 1024
"""Kernels in memory, for groups of the same structure; the one met longest ago goes first."""

_lock = forkable(threading.Lock())
_known: OrderedDict[Key, _Emitted] = OrderedDict()


def emit(
    group: Group, cuts: Mapping[int, Cut], masks: Masks, far: frozenset[int], log: Iterable[Logged] = ()
) -> KernelSpec:
    """The specification of a group's kernel, with the logged decisions about its nodes."""
    name = _name(group)
    key, tensors = structure(group, masks, far)
    if pinned():
        key = (*key, *[tree_of(f.node) for f in group.reductions() if f.node is not None], "pinned")
    made = _kept((name, *key))
    if made is None:
        made = _emitted(group, masks, far, name, tensors)
        with _lock:
            _known[name, *key] = made
            if len(_known) > EMITTED_KEPT:
                _known.popitem(last=False)
    elif settings.verify() and made != _emitted(group, masks, far, name, tensors):
        raise IRError(f"a kernel of the same structure is another one: {name}", "kernelize")
    read = tuple([tensors[k] for k in made.reads])
    writes = tuple([tensors[k] for k in made.writes])
    names = [p.name for p in made.algorithm.params]
    reasons: list[str] = []
    for n, called in zip(writes, names[len(read) :], strict=True):
        reasons.append(f"{called} {n!r} is stored: {cuts[id(n)].why}")
    for n, called in zip(read, names, strict=False):
        if id(n) in cuts and not is_leaf(n):
            reasons.append(f"{called} {n!r} is loaded: {cuts[id(n)].why}")
    inplace = {
        called: group.inplace[id(n)]
        for n, called in zip(writes, names[len(read) :], strict=True)
        if id(n) in group.inplace
    }
    return KernelSpec(
        made.algorithm, read, writes, inplace, tuple(reasons), made.flops, made.traffic, tuple(log)
    )


def _kept(key: Key) -> _Emitted | None:
    """The kernel of a structure met before."""
    with _lock:
        found = _known.get(key)
        if found is not None:
            _known.move_to_end(key)
        return found


def _emitted(group: Group, masks: Masks, far: frozenset[int], name: str, tensors: Sequence[Node]) -> _Emitted:
    """The kernel of a group, made anew."""
    e = _Emitter(group, masks, far)
    algorithm = e.algorithm(name)
    read = tuple([n for n, _ in e.params.reads.values()])
    number = {id(n): k for k, n in enumerate(tensors)}
    return _Emitted(
        algorithm,
        tuple([number[id(n)] for n in read]),
        tuple([number[id(n)] for n, _ in e.params.writes.values()]),
        operations(algorithm),
        _traffic(group, read),
    )


def _traffic(group: Group, reads: tuple[Node, ...]) -> Int:
    """Bytes that must move: each tensor once; of a gathered or sliced one no more than is read."""
    points_read: dict[int, Int] = {}
    for s in group.loads:
        used = {v for i in s.index for v in variables(i)}
        if any(a in group.markers for i in s.index for a in atoms_of(i)):
            used |= {v for f in group.frames_of(s.frames) for v in (*f.axes, *f.reduced)}
        points = elements(tuple(group.extents[v] for v in used if v in group.extents))
        points_read[id(s.node)] = points_read.get(id(s.node), 0) + points
    total: Int = 0
    for n in reads:
        whole, some = elements(n.shape), points_read[id(n)]
        total = total + (some if high(some) < high(whole) else whole) * n.dtype.itemsize
    for f in group.outputs():
        for s in f.stores:
            total = total + elements(tuple(group.extents[v] for v in f.axes)) * s.node.dtype.itemsize
    return total
