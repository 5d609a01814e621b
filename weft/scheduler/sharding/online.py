"""Sums weighted by exp(x - m), m the maximum of x over the same axis: block by block of that axis, in any order.

    m = max k: x;  l = sum k: exp(x - m);  o = sum k: exp(x - m) / l * v         (a softmax, and what it weighs)

    of a block b            m_b = max of its x;  l_b = sum of its exp(x - m_b);  n_b = sum of its exp(x - m_b) * v
    of blocks a and b       m = max(m_a, m_b);   l = l_a exp(m_a - m) + l_b exp(m_b - m);   n likewise;   o = n / l

(m, l, n) is the *state* of a block: the sums' common factor exp(-m) is the only way in which m is read, so what was
summed with another reference is made good by one factor (Milakov & Gimelshein 2018, arXiv:1805.02867, as `OnlineReduce`
does within a kernel). The condition is one of factors: a product of which one factor is exp(x - m), others know neither
m nor sums, and what does not vary along the axis (1 / l, here) is taken out of the sum. Reassociates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field

from weft.ir.dtypes import LARGEST, DType, bfloat16, float16
from weft.ir.graph import Axes, Box, Node, apply, const, elements
from weft.ir.index import Int, Var, variables
from weft.ir.movement import source
from weft.ir.numerics import pinned
from weft.ir.ops import ELEMENTWISE, REDUCE, Op
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.part import Parts, attributes, same_op, shrunk
from weft.ir.regions.parts import PartsOf, Place, Taken, pulled
from weft.lazy_dataclass import dataclass
from weft.scheduler.sharding.terms import term_of, wide

MOVED = (Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.SHRINK, Op.FLIP)
"""The movement that may lie between a sum and its weights: each element is one of the input's."""


@dataclass(frozen=True, slots=True)
class Running:
    """Along an axis of the mesh: the axis `dim` of an online sum's operand is taken in blocks, one for each device,
    whose states are combined; or, `in_turns`, each device takes all of these, its own first and others as they arrive
    (Liu et al. 2023, "Ring Attention", arXiv:2310.01889)."""

    dim: int
    in_turns: bool


@dataclass(frozen=True, slots=True)
class Weighted:
    """A sum over an axis of its operand, of products with exp(x - m). `reference`: m as an element of it reads it."""

    node: Node
    axis: int
    reference: Node


@dataclass(frozen=True, slots=True)
class Online:
    """The way in which a node is made of the state of all blocks: the last of `sums`, times and over `factors`, of the
    node's shape, which read the others. `inner`: all nodes that the state is computed by, down to the maximum."""

    node: Node
    maximum: Node
    sums: tuple[Weighted, ...]
    factors: tuple[tuple[Op, Node], ...]
    inner: frozenset[Node]

    @property
    def axis(self) -> int:
        """The axis of the node's operand that is taken in blocks."""
        return self.sums[-1].axis

    @property
    def state(self) -> tuple[Node, ...]:
        """The nodes of which a block has a term each: the maximum, the sums."""
        return (self.maximum, *[s.node for s in self.sums])

    @property
    def nbytes_per_element(self) -> float:
        """The bytes of a state for each element of the node."""
        of = sum(_count(n) * wide(n.dtype).itemsize for n in self.state)
        return of / max(1, _count(self.node))

    def axis_of(self, n: Node) -> int:
        """The axis in blocks, of the operand of a node of the state, or of the node itself."""
        if n is self.maximum:
            return attributes(n, Axes).axes[0]
        return next((s.axis for s in self.sums if s.node is n), self.axis)


def online(node: Node) -> Online | None:
    """The state that a sum may be computed by; None where there is none, or its order is pinned."""
    if pinned() or node.op is not Op.SUM or node.storage is not None or not node.dtype.is_float:
        return None
    try:
        return _Search(node).found()
    except _NotOnlineError:
        return None


def taken_in_blocks(
    order: Sequence[Node], fixed: Collection[Node], mesh: str
) -> tuple[dict[Node, Online], set[Node]]:
    """The sums of a graph that may be taken in blocks, since nobody else reads what their states are made by; and the
    nodes that are then computed with them only. What is `fixed` is read from outside."""
    readers: dict[Node, set[Node]] = {}
    for n in order:
        for i in n.inputs:
            readers.setdefault(i, set()).add(n)
    kept: dict[Node, Online] = {}
    within: set[Node] = set()
    for node in order:
        of = online(node) if node.op is Op.SUM and node.device == mesh else None
        if of is None or node in within:
            continue
        inside, state = {*of.inner, of.node}, {of.maximum}
        for n in order:
            if n in of.inner and not state.isdisjoint(n.inputs):
                state.add(n)
        if all(readers[n] <= inside and n not in fixed for n in state):
            kept[node] = of
            within |= state | _scores(of, readers, fixed)
    return kept, within


def _scores(of: Online, readers: Mapping[Node, Collection[Node]], fixed: Collection[Node]) -> set[Node]:
    """The nodes that are as large as x, and read for it alone: they are computed block by block, with the state."""
    (x,) = of.maximum.inputs
    size, found = _count(x), set[Node]()
    inside = {*of.inner, of.node}
    stack = [x]
    while stack:
        n = stack.pop()
        if n in found or n.storage is not None or n in fixed or not set(readers[n]) <= inside | found:
            continue
        if _count(n) != size or n.op not in ELEMENTWISE | REDUCE | {*MOVED}:
            continue
        found.add(n)
        if n.op not in REDUCE:
            stack += n.inputs
    return found


def _count(n: Node) -> int:
    size = elements(n.shape)
    return size if isinstance(size, int) else size.hi


# states --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class States:
    """States of blocks, for a box of a node. `boxes`: of the maximum and of each sum."""

    of: Online
    box: IndexBox
    parts: PartsOf
    boxes: dict[Node, IndexBox] = field(default_factory=dict[Node, IndexBox])

    def __post_init__(self) -> None:
        needed: dict[Node, list[IndexBox]] = {self.of.sums[-1].node: [self.box]}
        for _, factor in self.of.factors:
            self._note(needed, (factor, self.box))
        for s in self.of.sums:
            (at,) = needed[s.node] if len(needed[s.node]) == 1 else (bx.enclosing(needed[s.node]),)
            needed[s.node] = [at]
            self._note(needed, (s.reference, at))
        self.boxes = {n: bx.enclosing(needed[n]) for n in self.of.state}

    def _note(self, needed: dict[Node, list[IndexBox]], place: Place) -> None:
        """Note the boxes of the state that a box is made of."""
        for n, box in self.parts.ends([place], lambda n, _: n in self.of.state or n.storage is not None):
            if n in self.of.state and box not in needed.setdefault(n, []):
                needed[n].append(box)

    def terms(self, block: Interval) -> Iterable[tuple[Node, Parts]]:
        """The maximum and the sums of a block, and the parts of each. What these are made of is below the maximum, or
        not computed from it."""
        for n in self.of.state:
            k, sides = self.of.axis_of(n), bx.full(n.inputs[0].shape)
            yield n, term_of(n, self.boxes[n], (*sides[:k], block, *sides[k + 1 :]), True)

    def needs(self, block: Interval, is_end: Callable[[Node], bool]) -> Iterable[Place]:
        """The boxes that a block's state is made of, of nodes at which to end."""
        first = [place for n, of in self.terms(block) for place in of.places(n)]
        ends = self.parts.ends(first, lambda n, _: n is self.of.maximum or is_end(n))
        return [place for place in ends if place[0] is not self.of.maximum]

    def made(self, block: Interval, taken: Taken) -> tuple[Node, ...]:
        """A block's state, of what is taken."""
        found: list[Node] = []
        for n, of in self.terms(block):
            top = finite(found[0]) if found else None

            def given(m: Node, box: IndexBox, top: Node | None = top) -> Node | None:
                if m is self.of.maximum and top is not None:
                    return shrunk(top, self.boxes[m], box)
                return taken(m, box)

            made: dict[Place, Node] = {}
            xs = [pulled(i, b, given, made, self.parts) for i, b in of.places(n)]
            found.append(of.make(xs))
        return tuple(found)

    def part(self, state: Sequence[Node], of: States) -> tuple[Node, ...]:
        """The state for another box, in this one, of a state for this."""
        pairs = zip(state, self.of.state, strict=True)
        return tuple([shrunk(n, self.boxes[m], of.boxes[m]) for n, m in pairs])

    def combined(self, a: Sequence[Node], b: Sequence[Node]) -> tuple[Node, ...]:
        """The state of two blocks together."""
        top = apply(Op.MAX, (a[0], b[0]))
        scales = [apply(Op.EXP, (apply(Op.SUB, (of, finite(top))),)) for of in (a[0], b[0])]
        sums: list[Node] = []
        for s, x, y in zip(self.of.sums, a[1:], b[1:], strict=True):
            scaled = [
                apply(Op.MUL, (n, self._scale(s, c, n.dtype))) for n, c in zip((x, y), scales, strict=True)
            ]
            sums.append(apply(Op.ADD, (scaled[0], scaled[1])))
        # in memory now, so that blocks need not be kept until the last one is there
        return (top, *[apply(Op.CONTIGUOUS, (n,)) for n in sums])

    def _scale(self, s: Weighted, factor: Node, dtype: DType) -> Node:
        """A factor for each maximum, as the elements of a sum read it."""
        box = self.boxes[s.node]

        def taken(n: Node, b: IndexBox) -> Node | None:
            return shrunk(factor, self.boxes[n], b) if n is self.of.maximum else None

        return apply(Op.CAST, (pulled(s.reference, box, taken, {}, self.parts),), None, None, dtype)

    def result(self, state: Sequence[Node]) -> Node:
        """The box of the node, of the state of all blocks."""
        have = dict(zip(self.of.state, state, strict=True))
        node, dtype = self.of.node, state[-1].dtype

        def taken(n: Node, box: IndexBox) -> Node | None:
            if n not in have:
                return None
            value = apply(Op.CAST, (have[n],), None, None, n.dtype)
            return shrunk(value, self.boxes[n], box)

        value = state[-1]
        for op, factor in self.of.factors:
            by = apply(Op.CAST, (pulled(factor, self.box, taken, {}, self.parts),), None, None, dtype)
            value = apply(op, (value, by))
        return apply(Op.CAST, (value,), None, None, node.dtype)


def finite(top: Node) -> Node:
    """A maximum to subtract: where all is -inf, weights are 0, and not NaN."""
    lowest = -LARGEST[top.dtype] if top.dtype in LARGEST else _LOWEST[top.dtype]
    return apply(Op.MAX, (top, const(lowest, top.dtype, top.shape)))


_LOWEST: dict[DType, float] = {float16: -65504.0, bfloat16: -3.3895313892515355e38}


# what a sum is made of --------------------------------------------------------------------------------------------


class _NotOnlineError(Exception):
    """A sum has no such form."""


_Path = tuple[Node, ...]
"""Nodes from an operand down, of which those that move elements do so to all that is below."""


@dataclass(slots=True)
class _Product:
    """The factors of an operand. `weight`: exp(x - m), with the path down to it; `outside`: those that do not vary
    along the axis, with theirs; `inside`: the nodes on paths."""

    weight: tuple[Node, _Path] | None = None
    outside: list[tuple[Op, Node, _Path]] = field(default_factory=list[tuple[Op, Node, _Path]])
    others: list[Node] = field(default_factory=list[Node])
    inside: set[Node] = field(default_factory=set[Node])


@dataclass(slots=True)
class _Search:
    node: Node
    sums: list[Weighted] = field(default_factory=list[Weighted])
    maximum: Node | None = None
    inner: set[Node] = field(default_factory=set[Node])

    def found(self) -> Online:
        factors = self._summed(self.node)
        assert self.maximum is not None
        return Online(self.node, self.maximum, tuple(self.sums), factors, frozenset(self.inner - {self.node}))

    def _summed(self, node: Node) -> tuple[tuple[Op, Node], ...]:
        """Take a sum among those of the state, after those that its factors read; what it is multiplied with then."""
        if node.op is not Op.SUM or not isinstance(node.attrs, Axes) or len(node.attrs.axes) != 1:
            raise _NotOnlineError
        (axis,), (operand,) = node.attrs.axes, node.inputs
        at = tuple([Var(f"@{k}", 0, max(0, _high(n) - 1)) for k, n in enumerate(operand.shape)])
        if _high(operand.shape[axis]) < 2:
            raise _NotOnlineError
        product = _Product()
        self._walk(operand, at, at[axis], (), product, Op.MUL)
        if product.weight is None:
            raise _NotOnlineError
        weight, path = product.weight
        shifted = weight.inputs[0]
        reference = lifted(shifted.inputs[1], path, node, axis)
        for n in product.others:
            self._refuse_dependent(n)
        factors = [(op, lifted(n, way, node, axis)) for op, n, way in product.outside]
        self.inner |= product.inside | {weight, shifted}
        for _, n, _ in product.outside:
            self._states_below(n)
        is_last = node is self.node
        if factors and not is_last:
            raise _NotOnlineError  # a sum of sums over sums: of one level only
        summand = _without(operand, {n for _, n, _ in product.outside}, product.inside)
        self.sums.append(Weighted(apply(Op.SUM, (summand,), node.attrs), axis, reference))
        return tuple(factors)

    def _walk(self, n: Node, index: tuple[Int, ...], along: Int, path: _Path, into: _Product, op: Op) -> None:
        assert isinstance(along, Var)
        if _is_constant(n, index, along):
            into.outside.append((op, n, path))
            return
        if op is not Op.MUL:
            raise _NotOnlineError  # over something that varies
        if n.storage is None and n.op in MOVED:
            into.inside.add(n)
            self._walk(n.inputs[0], source(n, index).index, along, (*path, n), into, op)
        elif n.storage is None and n.op is Op.CAST and n.inputs[0].dtype.is_float:
            into.inside.add(n)
            self._walk(n.inputs[0], index, along, path, into, op)
        elif n.storage is None and n.op in (Op.MUL, Op.DIV):
            into.inside.add(n)
            self._walk(n.inputs[0], index, along, path, into, Op.MUL)
            self._walk(n.inputs[1], index, along, path, into, n.op)
        elif (m := _maximum(n)) is not None and self.maximum in (None, m) and into.weight is None:
            assert isinstance(m.attrs, Axes)
            (axis,) = m.attrs.axes
            if index[axis] != along or any(
                along in variables(i) for k, i in enumerate(index) if k != axis
            ):  # the maximum is over another axis
                into.others.append(n)
                return
            self.maximum = m
            into.weight = n, path
            self.inner |= {m, *_between(n.inputs[0].inputs[1], m)}
        else:
            into.others.append(n)

    def _states_below(self, n: Node) -> None:
        """Take the sums that a factor reads into the state."""
        stack, seen = [n], set[Node]()
        while stack:
            n = stack.pop()
            if n in seen or n.storage is not None or n is self.maximum:
                continue
            seen.add(n)
            if n.op is Op.SUM and n not in {s.node for s in self.sums} and self._depends(n):
                if self._summed(n):
                    raise _NotOnlineError
            elif n.op is Op.SUM and self._depends(n):
                pass
            elif n.op in ELEMENTWISE or n.op in MOVED:
                stack += n.inputs
            elif self._depends(n):
                raise _NotOnlineError
            if self._depends(n):
                self.inner.add(n)

    def _depends(self, n: Node) -> bool:
        """True where a node is computed from the maximum."""
        stack, seen = [n], set[Node]()
        while stack:
            n = stack.pop()
            if n is self.maximum:
                return True
            if n not in seen and n.storage is None:
                seen.add(n)
                stack += n.inputs
        return False

    def _refuse_dependent(self, n: Node) -> None:
        if self._depends(n):
            raise _NotOnlineError


def _is_constant(n: Node, index: tuple[Int, ...], along: Var) -> bool:
    """True where an element does not vary along an axis."""
    stack, seen = [(n, index)], set[tuple[Node, tuple[Int, ...]]]()
    while stack:
        place = stack.pop()
        n, index = place
        if place in seen or n.op is Op.CONST or not any(along in variables(i) for i in index):
            continue
        seen.add(place)
        if n.storage is not None or not (n.op in ELEMENTWISE or n.op in MOVED):
            return False
        stack += [(i, source(n, index).index if n.op in MOVED else index) for i in n.inputs]
    return True


def _maximum(n: Node) -> Node | None:
    """m of exp(x - m), where that is the maximum of x over one axis."""
    if n.op is not Op.EXP or n.storage is not None or n.inputs[0].op is not Op.SUB:
        return None
    x, top = n.inputs[0].inputs
    while top.op in MOVED and top.storage is None:
        (top,) = top.inputs
    is_max = top.op is Op.REDUCE_MAX and top.storage is None and top.inputs[0] is x
    is_max = is_max and (top.dtype in LARGEST or top.dtype in _LOWEST)
    return top if is_max and isinstance(top.attrs, Axes) and len(top.attrs.axes) == 1 else None


def _between(n: Node, below: Node) -> Iterable[Node]:
    while n is not below:
        yield n
        (n,) = n.inputs


def lifted(n: Node, path: Sequence[Node], node: Node, axis: int) -> Node:
    """A factor of a sum's operand that does not vary along the axis, as the sum's elements read it: moved as the path
    moves what is below, and the first along the axis."""
    for m in reversed(path):
        n = same_op(m, (n,), m.shape)
    sizes = tuple([1 if k == axis else s for k, s in enumerate(n.shape)])
    zeros = (0,) * len(sizes)
    first = apply(Op.SHRINK, (n,), Box(zeros, (1,) * len(sizes)), sizes)
    return apply(Op.RESHAPE, (first,), None, node.shape)


def _without(n: Node, outside: Collection[Node], inside: Collection[Node]) -> Node:
    """An operand without the factors that are taken out of its sum."""
    if n not in inside:
        return n
    if n.op in (Op.MUL, Op.DIV):
        a, b = n.inputs
        if b in outside:
            return _without(a, outside, inside)
        if a in outside:
            return _without(b, outside, inside)
        return apply(n.op, (_without(a, outside, inside), _without(b, outside, inside)))
    return same_op(n, [_without(i, outside, inside) for i in n.inputs], n.shape)


def _high(n: Int) -> int:
    return n if isinstance(n, int) else n.hi
