"""What a partition is made of: groups (kernels to be), their coordinates and frames, and sites.

group      the nodes computed by one kernel
coordinate an index variable of the group; frames share them
frame      one item of the algorithm to be: an output's domain, or a reduction (its own axes, and those it reduces)
site       a node computed (or read) at one index over the coordinates, for some of the frames
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from weft.ir.dtypes import int64
from weft.ir.expr import Scalar, Temp
from weft.ir.graph import Node, Shape
from weft.ir.index import Guard, Index, Int, Opaque, Var, atoms, high
from weft.ir.ops import Op

EMPTY = "empty"
"""In place of a constant's value: what a reduction of nothing gives."""


class Kind(Enum):
    """How a site gets its value."""

    OPEN = auto()  # not decided yet
    LOAD = auto()  # from the node's buffer
    CONST = auto()
    RANGE = auto()
    CALL = auto()  # an elementwise op on the values of `inputs`
    MOVE = auto()  # the value of inputs[0] where the guard holds, else `fill`
    SAME = auto()  # the value of inputs[0]
    VALUE = auto()  # a reduction: the value of `frame`
    ONE = auto()  # inputs[1] combined with inputs[2] where inputs[0], an integer, is the index along `axis`
    PICK = auto()  # of inputs, the first whose guard holds

    __hash__ = object.__hash__


class Site:
    """A node at an index."""

    __slots__ = (
        "axis", "fill", "frame", "frames", "group", "guards", "index", "inputs", "kind", "node", "stamp", "value",
    )  # fmt: skip

    def __init__(self, node: Node, group: Group, index: tuple[Int, ...], frames: int, kind: Kind) -> None:
        self.node, self.group, self.index, self.frames, self.kind = node, group, index, frames, kind
        self.inputs: list[Site] = []
        self.guards: list[Guard] = []
        self.fill: Scalar | str | None = None  # a constant other than the node's
        self.frame: Frame | None = None
        self.axis = 0
        self.stamp = -1
        self.value: Any = None


@dataclass(slots=True, eq=False)
class Store:
    """Node `node` is written at `index` with the value of `site`."""

    node: Node
    index: tuple[Int, ...]
    site: Site
    guard: Guard = ()
    combine: Op | None = None


@dataclass(slots=True, eq=False)
class Frame:
    """An item of the algorithm to be. `node` is the reduction; None for an output."""

    number: int
    axes: tuple[Var, ...]
    node: Node | None = None
    reduced: tuple[Var, ...] = ()
    site: Site | None = None
    stores: list[Store] = field(default_factory=list[Store])
    carries: list[Frame] = field(default_factory=list["Frame"])
    homes: dict[Var, Frame | None] = field(default_factory=dict[Var, "Frame | None"])

    @property
    def bit(self) -> int:
        return 1 << self.number

    def home(self, v: Var) -> Frame | None:
        """The reduction in whose loop over `v` this frame is computed; None for an output's."""
        return self if v in self.reduced else self.homes.get(v)

    def settle(self, readers: list[Frame]) -> None:
        """Note the loops in which this frame is computed: those of its readers."""
        for v in self.axes:
            self.homes[v] = readers[0].home(v)


class Group:
    """The nodes that one kernel computes; or the results of one loop, which reads its inputs whole."""

    def __init__(self, number: int, is_loop: bool = False) -> None:
        self.number = number
        self.is_loop = is_loop
        self.extents: dict[Var, Int] = {}
        self.frames: list[Frame] = []
        self.consumers: dict[Group, None] = {}
        self.producers: dict[Group, None] = {}
        self.level = 0  # above that of all consumers
        self.stored: dict[int, Node] = {}
        self.inplace: dict[int, Node] = {}  # id of a stored node -> the node whose buffer it starts as
        self.loads: list[Site] = []
        self.others: list[Site] = []  # sites other than loads whose value depends on an index
        self.markers: dict[Opaque, tuple[Site, Int | None]] = {}
        self.contraction = 0  # bits of the frames that are contractions
        self.online: frozenset[int] = frozenset()
        self.ops = 0
        self.read: set[int] = set()
        self.needs: set[int] = (
            set()
        )  # what it reads, or may yet have to read: nodes that are not computed here so far
        self.bases: set[int] = set()  # see Facts
        # contractions' products (False), and what is computed of their operands (True)
        self.staged: dict[Node, bool] = {}

    def dissolve(self) -> None:
        """Forget frames, sites and other groups: those refer to this one."""
        for f in self.frames:
            f.site, f.stores, f.carries, f.homes = None, [], [], {}
        self.frames, self.loads, self.others = [], [], []
        self.consumers, self.producers, self.markers = {}, {}, {}

    def coordinate(self, prefix: str, extent: Int) -> Var:
        """A new coordinate; no runtime variable is called like one."""
        var = Var(f"@{prefix}{len(self.extents)}", 0, max(high(extent) - 1, 0))
        self.extents[var] = extent
        return var

    def domain(self, shape: Shape) -> tuple[Frame, tuple[Int, ...]]:
        """A new output over `shape`, and the index of its points."""
        index: tuple[Int, ...] = tuple(0 if n == 1 else self.coordinate("i", n) for n in shape)
        return self.output(tuple(v for v in index if isinstance(v, Var))), index

    def output(self, axes: tuple[Var, ...]) -> Frame:
        """A new output over coordinates."""
        frame = Frame(len(self.frames), axes)
        self.frames.append(frame)
        return frame

    def marker(self, at: Site, size: Int | None) -> Opaque:
        """Stands for the value of site `at` as an index, clamped into 0 .. size - 1 if given, until it is computed."""
        for known, (site, limit) in self.markers.items():
            if site is at and limit == size:
                return known
        lo, hi = (0, high(size) - 1) if size is not None else (-(1 << 63), (1 << 63) - 1)
        mark = Opaque(Temp(int64, f"index{len(self.markers)}"), lo, hi)
        self.markers[mark] = (at, size)
        return mark

    def outputs(self) -> list[Frame]:
        """The frames that are outputs."""
        return [f for f in self.frames if f.node is None]

    def reductions(self) -> list[Frame]:
        """The frames that are reductions, consumers first."""
        return [f for f in self.frames if f.node is not None]

    def frames_of(self, bits: int) -> list[Frame]:
        """The frames whose bits are set."""
        return [f for f in self.frames if bits >> f.number & 1]

    def feed(self, users: Iterable[Group]) -> None:
        """Others consume what this group stores."""
        lowest = 0
        for g in users:
            self.consumers[g] = None
            g.producers[self] = None
            lowest = max(lowest, g.level + 1)
        stack: list[tuple[Group, int]] = [(self, lowest)]
        while stack:
            g, level = stack.pop()
            if g.level < level:
                g.level = level
                stack.extend((p, level + 1) for p in g.producers)

    def reaches(self, other: Group, budget: int = 4096) -> bool:
        """Whether `other` consumes, directly or not, what this group stores (True too when that is hard to tell).

        Searched from `other` backwards, where few producers are known yet, and up to this group's level only: the
        producers of a group that is as high are higher.
        """
        top = self.level
        if other is not self and other.level >= top:
            return False
        seen: set[int] = {other.number}
        stack: list[Group] = [other]
        while stack:
            g = stack.pop()
            if g is self:
                return True
            budget -= 1
            if budget < 0:
                return True
            for p in g.producers:
                if p.level <= top and p.number not in seen:
                    seen.add(p.number)
                    stack.append(p)
        return False


def markers_in(index: tuple[Int, ...], guard: Guard = ()) -> list[Opaque]:
    """The opaque indices in an index tuple and a guard."""
    found: dict[Opaque, None] = {}
    ends = [x for c in guard for x in (c.value, c.lo, c.hi) if x is not None]
    for i in (*index, *ends):
        if isinstance(i, Index) and not isinstance(i, Var):
            for a in atoms(i):
                if isinstance(a, Opaque):
                    found[a] = None
    return list(found)
