"""Cutting a graph over several devices into parts and exchanges.

    level    how many copies lie under a node: it cannot be computed before they are done
    place    the level at which it is computed: where it is first needed, and at once where it is copied away

Nodes of one device and place that are connected are one part: they fuse as they do in a graph of their own. Those that
are not connected are parts of their own, so that what one of them gives can travel while the next one runs (pipelines
of microbatches), unless they are small and wait for the same. A value that a later part of the same device reads is
stored between; movement ops and casts that make it no smaller are done again instead.

A COPY of a box of a value that is stored anyway (SHRINK, RESHAPE around it) moves just the box.
"""
# Tests: tests/scheduler/parts/test_plan.py, tests/scheduler/parts/test_verify.py

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

from weft.backends.protocol import DeviceInfo
from weft.ir import graph
from weft.ir.dtypes import DType
from weft.ir.graph import Box, Node, Shape, elements, toposort
from weft.ir.index import high
from weft.ir.ops import COMBINE, MOVEMENT, Op
from weft.ir.rewrite import over
from weft.lazy_dataclass import dataclass
from weft.scheduler.keeping import nbytes
from weft.scheduler.parts.moves import Moved

SPLIT_NS = 50_000
"""The time of a part below which it is joined with others that wait for the same: starting one, on two cores of Zen 5,
takes the host some 10 us."""

REDONE = (MOVEMENT - {Op.SHRINK}) | {Op.CAST}
"""Ops that are done again in a later part rather than stored, where their input is no larger."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor in the memory of a device: a leaf of the graph, or what a step gives. `output`: it was asked for."""

    device: str
    dtype: DType
    shape: Shape
    leaf: bool = False
    output: bool = False


@dataclass(frozen=True, slots=True)
class Compute:
    """The work of one device at one go: `nodes`, over leaves that stand for values, as values `results`; it takes about
    `ns`."""

    device: str
    nodes: tuple[Node, ...]
    inputs: Mapping[Node, int]
    results: tuple[int, ...]
    level: int
    ns: float = 0.0

    @property
    def reads(self) -> tuple[int, ...]:
        """The values that it reads."""
        return tuple(self.inputs.values())


@dataclass(frozen=True, slots=True)
class Exchange:
    """The box of a value, seen as a tensor of `shape`, that becomes a value on another device; or what a `moved` node
    moves between all devices, each of which has such values."""

    source: int
    target: int
    shape: Shape
    size: Shape
    box: Box | None
    level: int
    moved: Node | None = None

    @property
    def move(self) -> Moved | None:
        """The move between all devices; None for a copy from one to another."""
        attrs = None if self.moved is None else self.moved.attrs
        return attrs if isinstance(attrs, Moved) else None

    @property
    def reads(self) -> tuple[int, ...]:
        """The value that it reads."""
        return (self.source,)

    @property
    def results(self) -> tuple[int, ...]:
        """The value that it gives."""
        return (self.target,)


@dataclass(frozen=True, slots=True)
class Cut:
    """A graph as steps, inputs before users, over values: the leaves come first, in their order."""

    values: tuple[Value, ...]
    steps: tuple[Compute | Exchange, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """The value that a COPY copies: all of a node, or a box of it."""

    node: Node
    shape: Shape
    size: Shape
    box: Box | None


def cut(outputs: Sequence[Node], leaves: Sequence[Node], info: Callable[[str], DeviceInfo], home: str) -> Cut:
    """The graph under `outputs`, without calls, in parts and exchanges. `home` is the device of what is on none."""
    return _Cutter(outputs, leaves, info, home).cut()


@dataclass(slots=True)
class _Component:
    """Connected nodes of one device and place."""

    device: str
    place: int
    nodes: list[Node] = field(default_factory=list[Node])
    roots: list[Node] = field(default_factory=list[Node])


class _Cutter:
    """The state of one cut; the methods run in the order in which they stand."""

    def __init__(
        self, outputs: Sequence[Node], leaves: Sequence[Node], info: Callable[[str], DeviceInfo], home: str
    ) -> None:
        self.outputs, self.leaves, self.info, self.home = outputs, leaves, info, home
        self.order = toposort(outputs)
        self.asked = set(outputs)
        stored = set(leaves)
        self.copies = {
            n for n in self.order if n.op is Op.COPY and n not in stored and n.inputs[0].device is not None
        }
        # what needs no device is computed by whoever needs it, again and again: constants
        self.computed = {
            n
            for n in self.order
            if n.inputs and n not in stored and n not in self.copies and n.device is not None
        }
        self.constants = [n for n in dict.fromkeys(outputs) if n.device is None and n not in stored]
        self.level: dict[Node, int] = {}
        self.source: dict[Node, _Source] = {}
        self.place: dict[Node, int] = {}
        self.roots: set[Node] = set()
        self.views: set[Node] = set()

    def cut(self) -> Cut:
        self._levels()
        self._sources()
        self._places()
        self._stored()
        return self._steps(self._merged(self._components()))

    def _levels(self) -> None:
        level = self.level
        for n in self.order:
            if n in self.copies or n in self.computed:
                level[n] = max([level.get(i, 0) for i in n.inputs], default=0) + (n in self.copies)

    def _sources(self) -> None:
        """The value that each copy reads."""
        users: dict[Node, int] = {}
        for n in self.order:
            for i in n.inputs:
                users[i] = users.get(i, 0) + 1
        for c in self.copies:
            self.source[c] = self._source(c, users)

    def _source(self, copy: Node, users: Mapping[Node, int]) -> _Source:
        (whole,) = copy.inputs
        if isinstance(copy.attrs, Moved):
            return _Source(whole, whole.shape, copy.shape, None)
        n = self._under_reshapes(whole)
        shrunk = n if n.op is Op.SHRINK and n in self.computed else None
        if shrunk is not None and isinstance(shrunk.attrs, Box):
            seen = shrunk.inputs[0]
            base = self._under_reshapes(seen)
            # else the kernel that makes the value makes just the box
            if base not in self.computed or users[base] > 1 or base in self.asked:
                return _Source(base, seen.shape, shrunk.shape, shrunk.attrs)
        return _Source(n, n.shape, n.shape, None)

    def _under_reshapes(self, n: Node) -> Node:
        """The node whose elements, in row-major order, are those of `n`."""
        while n.op is Op.RESHAPE and n in self.computed and n.inputs[0].device is not None:
            n = n.inputs[0]
        return n

    def _places(self) -> None:
        place, level = self.place, self.level
        needed: set[Node] = set(self.asked)

        def need(n: Node, at: int) -> None:
            needed.add(n)
            if n in self.computed:
                place[n] = min(place.get(n, at), at)

        for n in self.outputs:
            need(n, level.get(n, 0))
        for n in reversed(self.order):
            if n not in needed:
                continue
            if n in self.copies:
                base = self.source[n].node
                need(base, level.get(base, 0))
            elif n in self.computed:
                for i in n.inputs:
                    need(i, place[n])
        self.copies &= needed

    def _stored(self) -> None:
        """The computed nodes whose values are stored."""
        roots = self.roots
        roots.update(n for n in self.outputs if n in self.computed)
        roots.update(s.node for c in self.copies if (s := self.source[c]).node in self.computed)
        for n in self.order:
            for i in n.inputs if n in self.place else ():
                if i in self.place and self.place[i] != self.place[n]:
                    kept = self._kept(i)
                    if kept in self.computed:
                        roots.add(kept)

    def _kept(self, n: Node) -> Node:
        """The node to store so that a later part can read `n`."""
        while n in self.computed and n not in self.roots and n.op in REDONE:
            (i,) = n.inputs
            if i.device is None or nbytes(i) > nbytes(n):
                break
            n = i
        return n

    def _components(self) -> list[_Component]:
        """The parts as they are connected, in order. What merely moves a leaf's elements, or those of a copy, connects
        nothing: whoever reads it does it again."""
        leader: dict[Node, Node] = {}
        for n in self.order:
            if n in self.place and n.op in REDONE and n not in self.roots:
                below = n.inputs[0]
                if below in self.views or (below not in self.computed and below.device is not None):
                    self.views.add(n)

        def find(n: Node) -> Node:
            while leader[n] is not n:
                leader[n] = leader[leader[n]]
                n = leader[n]
            return n

        loops: dict[object, Node] = {}
        for n in self.order:
            if n not in self.place or n in self.views:
                continue
            leader[n] = n
            if n.op is Op.LOOP:  # which has several results
                other = loops.setdefault((n.attrs, n.inputs, self.place[n]), n)
                leader[find(other)] = n
            for i in n.inputs:
                if (
                    i in leader and self.place[i] == self.place[n]
                ):  # its device is this one's: only copies change it
                    leader[find(i)] = n
        found: dict[Node, _Component] = {}
        for n in self.order:
            if n in leader:
                first = find(n)
                part = found.get(first)
                if part is None:
                    part = found[first] = _Component(n.device or self.home, self.place[n])
                part.nodes.append(n)
                if n in self.roots:
                    part.roots.append(n)
        parts = sorted([p for p in found.values() if p.roots], key=lambda p: p.place)
        if self.constants:
            parts.append(_Component(self.home, 0, [], self.constants))
        return parts

    def _merged(self, parts: Iterable[_Component]) -> list[_Component]:
        """The parts, small ones of a device and place joined with others that wait for the same parts."""
        number: dict[Node, int] = {}
        out: list[_Component] = []
        open_: dict[tuple[str, int, frozenset[int]], tuple[int, float]] = {}
        for p in parts:
            waits: set[int] = set()
            for n in p.nodes:
                for i in map(self._through, n.inputs):
                    if i in self.copies:
                        waits.add(number.get(self._origin(i), -1))
                    elif i in self.computed and self.place[i] != p.place:
                        kept = self._kept(i)
                        waits.add(number.get(self._origin(kept) if kept in self.copies else kept, -1))
            key = p.device, p.place, frozenset(waits)
            k, ns = open_.get(key, (-1, 0.0))
            if k < 0 or ns >= SPLIT_NS:
                k, ns = len(out), 0.0
                out.append(_Component(p.device, p.place))
            out[k].nodes += p.nodes
            out[k].roots += p.roots
            open_[key] = k, ns + self._ns(p)
            number.update(dict.fromkeys(p.roots, k))
        return out

    def _through(self, n: Node) -> Node:
        """The leaf or copy whose elements a view moves."""
        while n in self.views:
            n = n.inputs[0]
        return n

    def _origin(self, copy: Node) -> Node:
        """The node that is no copy which a copy, or a copy of one, copies."""
        while copy in self.copies:
            copy = self.source[copy].node
        return copy

    def _ns(self, p: _Component) -> float:
        """The time of a part, roughly."""
        info = self.info(p.device)
        work = moved = 0
        for n in p.nodes:
            if n.op not in MOVEMENT:
                counted = n.inputs[0] if n.op in COMBINE else n
                work += high(elements(counted.shape))
        for n in p.roots:
            moved += nbytes(n)
        return 1e9 * (work / info.flops + moved / info.bandwidth)

    def _steps(self, parts: Sequence[_Component]) -> Cut:
        """The values, numbered, and the steps, inputs first."""
        values = [Value(n.device or self.home, n.dtype, n.shape, leaf=True) for n in self.leaves]
        number = {n: k for k, n in enumerate(self.leaves)}
        made = sorted([n for n in self.order if n in self.copies], key=self.level.__getitem__)
        for n in (*made, *(n for p in parts for n in p.roots)):
            number[n] = len(values)
            values.append(Value(n.device or self.home, n.dtype, n.shape, output=n in self.asked))
        steps: list[Compute | Exchange] = []
        for p in parts:
            nodes, inputs = self._graph(p, number)
            steps.append(
                Compute(p.device, nodes, inputs, tuple([number[n] for n in p.roots]), p.place, self._ns(p))
            )
        for c in made:
            s = self.source[c]
            moved = c if isinstance(c.attrs, Moved) else None
            steps.append(Exchange(number[s.node], number[c], s.shape, s.size, s.box, self.level[c], moved))
        # an exchange of level k reads what parts of level k - 1, or exchanges of it, give; parts of level k read it
        steps.sort(key=lambda s: (s.level, isinstance(s, Compute)))
        return Cut(tuple(values), tuple(steps), tuple([number[n] for n in self.outputs]))

    def _graph(
        self, part: _Component, number: Mapping[Node, int]
    ) -> tuple[tuple[Node, ...], dict[Node, int]]:
        """The roots of a part over leaves that stand for values of other parts."""
        own = {*part.roots, *self.constants}
        made: dict[Node, Node] = {}
        inputs: dict[Node, int] = {}
        stack: list[tuple[Node, bool]] = [(n, False) for n in reversed(part.roots)]
        while stack:
            n, ready = stack.pop()
            if n in made:
                continue
            if ready:
                made[n] = remade(n, tuple([made[i] for i in n.inputs]))
            elif n in number and n not in own:
                made[n] = graph.buffer(n.shape, n.dtype, n.device or None, None)
                inputs[made[n]] = number[n]
            elif not n.inputs:
                made[n] = n
            else:
                stack.append((n, True))
                stack += [(i, False) for i in reversed(n.inputs)]
        return tuple([made[n] for n in part.roots]), inputs


def remade(n: Node, inputs: tuple[Node, ...]) -> Node:
    """A node of a part over other inputs: a copy is what it copies, which is there by then."""
    if n.op is Op.LOOP and inputs != n.inputs:  # which carries no constants
        inputs = tuple([_stored(i) if i.op in (Op.CONST, Op.RANGE) else i for i in inputs])
    return inputs[0] if n.op is Op.COPY else over(n, inputs)


def _stored(constant: Node) -> Node:
    """A constant in memory of its own."""
    return graph.intern(Op.CONTIGUOUS, (constant,), None, constant.shape, constant.dtype, None)
