"""The state of a partition: groups (kernels to be), their coordinates and frames, and sites.

group      the nodes computed by one kernel
coordinate an index variable of the group; frames share them
frame      one item of the algorithm to be: an output's domain, or a reduction (its own axes, and those it reduces)
site       a node computed (or read) at one index over the coordinates, for some of the frames

Deciding reads these; only applying a decision (`partition.Partition.apply`) changes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum, auto
from typing import Any, TypeAlias

from weft.ir.dtypes import int64
from weft.ir.expr import Scalar, Temp
from weft.ir.graph import Node, Shape
from weft.ir.index import Guard, Index, Int, Opaque, Var, atoms, high
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

EMPTY = "empty"
"""The fill of a reduction over no elements, in place of a constant: the identity of its operation."""


class Kind(Enum):
    """The source of a site's value."""

    OPEN = auto()  # not decided yet
    LOAD = auto()  # from the node's buffer
    CONST = auto()
    RANGE = auto()
    CALL = auto()  # an elementwise op on the values of `inputs`
    PAD = auto()  # the value of inputs[0] where the guard holds, else `fill`
    FORWARD = auto()  # the value of inputs[0]
    REDUCTION = auto()  # the value of `frame`
    ONE_HOT = auto()  # inputs[1], combined with inputs[2] where inputs[0] is the index along `axis`
    SELECT = auto()  # of inputs, the first whose guard holds

    __hash__ = object.__hash__


class Site:
    """A node at an index."""

    __slots__ = (
        "axis", "fill", "frame", "frames", "group", "guards", "index", "inputs", "kind", "node", "stamp", "value",
    )  # fmt: skip

    def __init__(self, node: Node, group: Group, index: tuple[Int, ...], frames: Frames, kind: Kind) -> None:
        self.node, self.group, self.index, self.frames, self.kind = node, group, index, frames, kind
        self.inputs: list[Site] = []
        self.guards: list[Guard] = []
        self.fill: Scalar | str | None = None  # a constant other than the node's
        self.frame: Frame | None = None
        self.axis = 0
        self.stamp = -1
        self.value: Any = None

    @property
    def in_contraction(self) -> bool:
        """True where a contraction of the group needs the site, which is part of one of its operands."""
        contractions = self.group.contractions
        return bool(contractions) and not contractions.isdisjoint(self.frames)


@dataclass(frozen=True, slots=True, eq=False)
class GroupStore:
    """A write of the value of `site` to the buffer of `node`, at `index`."""

    node: Node
    index: tuple[Int, ...]
    site: Site
    guard: Guard = ()
    combine: Op | None = None


@dataclass(slots=True, eq=False)
class Frame:
    """An item of the algorithm to be. `node` is the reduction, at `site`; None for an output.

    `loop_owners`: by axis, the reduction in whose loop the frame is computed; None for an output's loop. `stores` and
    `carries` (outputs over some of this one's axes, written along with it) grow as decisions are applied.
    """

    number: int
    axes: tuple[Var, ...]
    node: Node | None = None
    reduced: tuple[Var, ...] = ()
    site: Site | None = None
    loop_owners: Mapping[Var, Frame | None] = field(default_factory=dict[Var, "Frame | None"])
    stores: list[GroupStore] = field(default_factory=list[GroupStore])
    carries: list[Frame] = field(default_factory=list["Frame"])

    @property
    def alone(self) -> Frames:
        """The set of this frame only."""
        return frozenset((self,))

    def loop_owner(self, v: Var) -> Frame | None:
        """The reduction in whose loop over `v` this frame is computed; None for an output's."""
        return self if v in self.reduced else self.loop_owners.get(v)


Frames: TypeAlias = frozenset[Frame]
"""Frames of one group, unordered: `Group.frames_of` has them in the group's order."""

NO_FRAMES: Frames = frozenset()


class Group:
    """The nodes that one kernel computes; or the results of one loop, which reads its inputs whole."""

    def __init__(self, number: int, is_loop: bool = False) -> None:
        self.number = number
        self.is_loop = is_loop
        self.extents: dict[Var, Int] = {}
        self.frames: list[Frame] = []
        self.contractions: Frames = NO_FRAMES
        self.stored: dict[int, Node] = {}
        self.inplace: dict[int, Node] = {}  # id of a stored node -> the node whose buffer it starts as
        self.loads: list[Site] = []
        self.index_dependent: list[Site] = []  # sites other than loads whose value depends on an index
        self.markers: dict[Opaque, tuple[Site, Int | None]] = {}
        self.online: frozenset[int] = frozenset()  # members of an attention in one pass: see `online`
        self.ops = 0  # operations by their cost, as in `cost.MAX_KERNEL_OPS`
        self.read: set[int] = set()  # nodes that it loads
        self.pending: set[int] = set()  # nodes that it loads, or has yet to compute or load
        self.bases: set[int] = set()  # see Facts
        # products that contractions sum (False), and what is computed of their operands while staged (True)
        self.staged: dict[Node, bool] = {}

    def dissolve(self) -> None:
        """Drop frames and sites, which refer to this group."""
        for f in self.frames:
            f.site, f.stores, f.carries, f.loop_owners = None, [], [], {}
        self.frames, self.loads, self.index_dependent = [], [], []
        self.contractions, self.markers = NO_FRAMES, {}

    def coordinate(self, prefix: str, extent: Int) -> Var:
        """A new coordinate; no runtime variable is called like one."""
        var = Var(f"@{prefix}{len(self.extents)}", 0, max(high(extent) - 1, 0))
        self.extents[var] = extent
        return var

    def coordinates(self, shape: Shape) -> tuple[Int, ...]:
        """The index of the points of a new domain of this shape."""
        return tuple([0 if n == 1 else self.coordinate("i", n) for n in shape])

    def domain(self, shape: Shape) -> tuple[Frame, tuple[Int, ...]]:
        """A new output over `shape`, and the index of its points."""
        index = self.coordinates(shape)
        return self.output(tuple([v for v in index if isinstance(v, Var)])), index

    def output(self, axes: tuple[Var, ...]) -> Frame:
        """A new output over coordinates."""
        frame = Frame(len(self.frames), axes)
        self.frames.append(frame)
        return frame

    def reduction(self, site: Site, axes: tuple[Var, ...], reduced: tuple[Var, ...]) -> Frame:
        """A new reduction, the value of `site`, computed in the loops of the frames that need it."""
        reader = self.frames_of(site.frames)[0]
        owners = {v: reader.loop_owner(v) for v in axes}
        frame = Frame(len(self.frames), axes, site.node, reduced, site, owners)
        self.frames.append(frame)
        return frame

    def marker(self, at: Site, size: Int | None) -> Opaque:
        """A placeholder for the value of site `at` as an index, clamped into 0 .. size - 1 if a size is given."""
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

    def output_over(self, axes: frozenset[Var]) -> tuple[Frame | None, Frame | None]:
        """The first output whose axes include `axes`, and the first over just these."""
        wide = [f for f in self.outputs() if axes <= frozenset(f.axes)]
        return next(iter(wide), None), next((f for f in wide if axes == frozenset(f.axes)), None)

    def reductions(self) -> list[Frame]:
        """The frames that are reductions, consumers first."""
        return [f for f in self.frames if f.node is not None]

    def frames_of(self, frames: Frames) -> list[Frame]:
        """The given frames in the group's order."""
        return [*frames] if len(frames) == 1 else [f for f in self.frames if f in frames]


def markers_in(index: tuple[Int, ...], guard: Guard = ()) -> list[Opaque]:
    """The computed indices in an index tuple and a guard."""
    found: dict[Opaque, None] = {}
    ends = [x for c in guard for x in (c.value, c.lo, c.hi) if x is not None]
    for i in (*index, *ends):
        if isinstance(i, Index) and not isinstance(i, Var):
            for a in atoms(i):
                if isinstance(a, Opaque):
                    found[a] = None
    return list(found)
