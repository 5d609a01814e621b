"""A kernel: an algorithm and, per item, a nest that says in which loops it is computed, where, and where it lives.

Transforms (`weft.ir.kernel.transforms`) rewrite nests; `weft.ir.kernel.lower` turns a kernel into loops. The initial
schedule computes every item by itself, one loop per axis, whole, in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.ir.index import Int, Var, coefficient, high, substitute, variables
from weft.ir.kernel.algorithm import Algorithm, Item, ItemValue, Output
from weft.ir.kernel.decisions import NONE, Decisions
from weft.ir.loops import LoopKind, Scope
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.ir.kernel.transforms.base import Transform


@dataclass(frozen=True, slots=True)
class NestLoop:
    """One loop of a nest; `reduce` when iterations combine into one result. Variables are unique in the kernel.

    `levels`: so many iterations have a partial sum of their own, so many of those again one, and so on (`PartialSums`).
    """

    var: Var
    extent: Int
    kind: LoopKind = LoopKind.SERIAL
    reduce: bool = False
    levels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class At:
    """Inside the body of the loop called `loop` of the item `item`, before what that body does itself."""

    item: str
    loop: str


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a region: `blocks[a]` elements of axis a form a block (1: none); storage goes row-major over the
    axes in `order` (block numbers), then over the positions inside blocks, in the same order. `pad` unused elements
    follow each row of the innermost, which spreads columns over the banks of a memory."""

    order: tuple[int, ...]
    blocks: tuple[int, ...]
    pad: int = 0

    @staticmethod
    def row_major(rank: int) -> Layout:
        return Layout(tuple(range(rank)), (1,) * rank)


@dataclass(frozen=True, slots=True)
class Online:
    """This reduction runs beside `leader`'s, in the leader's loop `loop` (where it is `At`).

    When the leader's running maximum moves from m to m', what was accumulated so far is multiplied by exp(m - m').
    """

    leader: str
    loop: str


@dataclass(frozen=True, slots=True)
class PrefetchSpec:
    """A prefetch of what the iteration of `loop` that comes `steps` later will read of `params` (all, if empty).

    With `shared`, whose parameter that iteration reads as one run, the iterations within the loop share it out evenly:
    each asks for its part of the run, in order. With `output`, every so many `steps` of `loop`, and of those around
    it up to the output's own, share out the lines that the output reads and writes once the item is there.
    """

    loop: str
    steps: int = 1
    params: tuple[str, ...] = ()
    shared: bool = False
    output: str = ""


@dataclass(frozen=True, slots=True)
class Nest:
    """The loop nest of an item: where and how it is computed.

    `bind` gives each axis in terms of loop variables (own ones, and those of enclosing nests). The region computed per
    visit starts at `origin` and has at most `size` elements per axis; it is kept in a buffer of `scope`. `stream`: an
    output is stored past the caches. `prefetch`: what is asked for here before it is read.
    """

    loops: tuple[NestLoop, ...]
    bind: Mapping[Var, Int]
    at: At | None
    origin: tuple[Int, ...]
    size: tuple[int, ...]
    layout: Layout
    scope: Scope = Scope.LOCAL
    online: Online | None = None
    stream: bool = False
    prefetch: PrefetchSpec | None = None

    def loop(self, name: str) -> NestLoop | None:
        """The loop over the variable called `name`, if it is one of this nest's."""
        for spec in self.loops:
            if spec.var.name == name:
                return spec
        return None

    def depth(self, name: str) -> int:
        """The position of the loop called `name`, outermost 0; KeyError when it is not here."""
        for k, spec in enumerate(self.loops):
            if spec.var.name == name:
                return k
        raise KeyError(name)

    def runs(self, name: str, axis: Var) -> bool:
        """True where the loop over the variable called `name` takes one step along the item's axis at a time."""
        spec = self.loop(name)
        return spec is not None and coefficient(self.bind[axis], spec.var) == 1

    def rebind(self, mapping: Mapping[Var, Int]) -> Nest:
        """Loop variables replaced in bindings, origins and extents; the same nest where they are not used."""
        held = (*self.bind.values(), *self.origin, *[s.extent for s in self.loops])
        if all(variables(x).isdisjoint(mapping) for x in held if not isinstance(x, int)):
            return self
        return replace(
            self,
            bind={a: substitute(e, mapping) for a, e in self.bind.items()},
            origin=tuple([substitute(o, mapping) for o in self.origin]),
            loops=tuple([replace(s, extent=substitute(s.extent, mapping)) for s in self.loops]),
        )


@dataclass(frozen=True, slots=True)
class Kernel:
    """An algorithm with its schedule; `history` lists the transforms that made it, `decisions` what was decided on the
    way, and what is to be."""

    algorithm: Algorithm
    nests: Mapping[str, Nest]
    history: tuple[Transform, ...] = ()
    decisions: Decisions = NONE

    @property
    def name(self) -> str:
        return self.algorithm.name

    def with_nest(self, name: str, nest: Nest) -> Kernel:
        """The kernel with one nest replaced."""
        return replace(self, nests={**self.nests, name: nest})

    def owner(self, loop: str) -> str | None:
        """The item whose nest has the loop called `loop`."""
        for name, nest in self.nests.items():
            if nest.loop(loop) is not None:
                return name
        return None

    def rebind(self, mapping: Mapping[Var, Int]) -> Kernel:
        """Loop variables replaced in all bindings, origins and extents (the loops of those variables are the caller's
        business)."""
        nests = {name: nest.rebind(mapping) for name, nest in self.nests.items()}
        return replace(self, nests=nests)

    def names(self) -> set[str]:
        """Every name in use: items, parameters, axes, loops."""
        used = {p.name for p in self.algorithm.params} | {v.name for v in self.algorithm.variables}
        for item in self.algorithm.items:
            used.add(item.name)
            used.update(a.var.name for a in item.all_axes)
        for nest in self.nests.values():
            used.update(spec.var.name for spec in nest.loops)
        return used

    def path(self, name: str) -> list[tuple[str, int]]:
        """The items around item `name`, from itself outward: (enclosing item, number of its loops around `name`)."""
        out: list[tuple[str, int]] = []
        at = self.nests[name].at
        while at is not None:
            nest = self.nests[at.item]
            out.append((at.item, nest.depth(at.loop) + 1))
            at = nest.at
        return out

    def enclosing(self, name: str) -> list[NestLoop]:
        """The loops around the nest of item `name`, outermost first."""
        out: list[NestLoop] = []
        for item, count in self.path(name):
            out = [*self.nests[item].loops[:count], *out]
        return out


def fresh(used: set[str], wish: str) -> str:
    """`wish`, or `wish` with a number, not in `used`; added to it."""
    name, k = wish, 1
    while name in used:
        k += 1
        name = f"{wish}{k}"
    used.add(name)
    return name


def loop_var(name: str, extent: Int) -> Var:
    """The variable of a loop over `extent` iterations."""
    return Var(name, 0, max(high(extent) - 1, 0))


def initial(algorithm: Algorithm) -> Kernel:
    """The kernel that computes each item on its own, whole, in order."""
    used = {p.name for p in algorithm.params} | {i.name for i in algorithm.items}
    used |= {v.name for v in algorithm.variables}
    nests = {item.name: initial_nest(item, used) for item in algorithm.items}
    return Kernel(algorithm, nests)


def initial_nest(item: Item, used: set[str]) -> Nest:
    """One loop per axis, reductions innermost, at the top of the kernel."""
    loops: list[NestLoop] = []
    bind: dict[Var, Int] = {}
    reduced = item.reduce.axes if isinstance(item, ItemValue) and item.reduce else ()
    for axis in item.all_axes:
        if axis.extent == 1:
            bind[axis.var] = 0
            continue
        var = loop_var(fresh(used, axis.var.name), axis.extent)
        loops.append(NestLoop(var, axis.extent, reduce=axis in reduced))
        bind[axis.var] = var
    rank = 0 if isinstance(item, Output) else len(item.axes)
    return Nest(
        tuple(loops),
        bind,
        None,
        (0,) * rank,
        tuple(high(a.extent) for a in item.axes[:rank]),
        Layout.row_major(rank),
    )
