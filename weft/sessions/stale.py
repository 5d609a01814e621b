"""Stale parts of kept values: they were reached when no result needed them, so no step computed them.

    row = session(lambda ids, t: model(ids)[:, t], ...)     after a step at t, rows beyond t of inner layers are stale
                                                            a step at t + 1 needs row t + 1 too, reaches it, computes it

A step may run where all that it needs of what is stale is computed by it. That is looked at with numbers for the
runtime variables once; from then on a step that comes again, so much further on, is proven to do for all numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

from weft.ir.graph import Node
from weft.ir.index import Int, Var, substitute
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import Interval
from weft.ir.regions.region import NOTHING, Region
from weft.ir.regions.tables import Starts
from weft.lazy_dataclass import dataclass
from weft.sessions.step import Part

Numbers: TypeAlias = tuple[int, ...]
"""The values of a step's variables."""


@dataclass(frozen=True, slots=True, eq=False)
class Leaves:
    """The regions that steps of a class leave stale: `parts` of kept nodes, by runtime variables."""

    parts: Mapping[Node, Part]
    variables: tuple[Var, ...]
    starts: Starts
    _follows: dict[Numbers, bool] = field(default_factory=dict[Numbers, bool])

    def env(self, at: Numbers) -> dict[str, int]:
        """The variables by name."""
        return self.starts.values({v.name: x for v, x in zip(self.variables, at, strict=True)})

    def follows(self, further: Numbers) -> bool:
        """True where a step is proven to do for all that one so much before it leaves stale."""
        found = self._follows.get(further)
        if found is None:
            if len(self._follows) >= FOLLOWING:
                self._follows.clear()
            steps = list(zip(self.variables, further, strict=True))
            before = {v: Var(v.name, max(v.lo, v.lo - d), min(v.hi, v.hi - d)) for v, d in steps}
            after = {v: before[v] + d for v, d in steps}
            found = all(v.lo <= v.hi for v in before.values())
            found = found and all(_lasts(p, before, after) for p in dict.fromkeys(self.parts.values()))
            self._follows[further] = found
        return found


FOLLOWING = 64
"""The distances between steps of a class of which is known whether one does for the other."""


@dataclass(frozen=True, slots=True, eq=False)
class Stale:
    """The stale regions of kept nodes: what a step of a class leaves, on some numbers, and regions by node besides."""

    regions: Mapping[Node, Region] = field(default_factory=dict[Node, Region])
    step: Leaves | None = None
    at: Numbers = ()
    recent: Leaves | None = None
    """The class of the last step, where `regions` are all that there is."""
    aside: Numbers | None = None
    """The direction in which no step of the class further on needs any of `regions`, where that is proven: -1, 0 or 1
    for each number."""

    def after(self, step: Leaves, at: Numbers) -> Stale | None:
        """The stale regions after a step; None where the step needs what is stale now and does not compute it."""
        if self.step is step:
            further = tuple([b - a for a, b in zip(self.at, at, strict=True)])
            if step.follows(further):
                if not self.regions:
                    return Stale({}, step, at)
                direction = tuple([(d > 0) - (d < 0) for d in further])
                if direction == self.aside or _are_aside(self.regions, step, at, direction):
                    return Stale(self.regions, step, at, aside=direction)
        return self._looked_at(step, at)

    def _looked_at(self, step: Leaves, at: Numbers) -> Stale | None:
        """The same, with numbers."""
        env = step.env(at)
        found: dict[Node, Region] = {}
        besides: dict[Node, Region] = {}
        met: dict[tuple[Part, Region], tuple[Region, Region] | None] = {}  # of which there are few
        before = self.known()
        for n, part in step.parts.items():
            stale = before.get(n, NOTHING)
            if part.is_whole and stale is NOTHING:
                continue
            key = part, stale
            if key not in met:
                met[key] = _after(stale, part, env)
            now = met[key]
            if now is None:
                return None
            found[n], besides[n] = now
        besides = {n: r for n, r in besides.items() if not r.is_empty}
        comes_again = step in (self.step, self.recent)  # so what it leaves says enough
        if comes_again or not besides:
            return Stale(besides, step, at)
        return Stale({n: r for n, r in found.items() if not r.is_empty}, recent=step)

    def known(self) -> Mapping[Node, Region]:
        """The stale regions by node."""
        if self.step is None:
            return self.regions
        env = self.step.env(self.at)
        left = {p: p.left.at(env) for p in dict.fromkeys(self.step.parts.values())}
        found = {n: left[p] for n, p in self.step.parts.items() if not left[p].is_empty}
        return found | {n: r | found.get(n, NOTHING) for n, r in self.regions.items()}


def _after(before: Region, part: Part, env: Mapping[str, int]) -> tuple[Region, Region] | None:
    """The region of a node that is stale after a step, and what of it is more than such steps leave anyway."""
    need, done = _at(part.needed, env), _at(part.computed, env)
    if not done.contains(before & need):
        return None
    # all that is needed is right now, even where that is more than is really needed
    after = (before | part.dirty.at(env) | done) - need
    return after, after - Region(part.left.at(env).boxes)  # all of which counts as stale


def _are_aside(regions: Mapping[Node, Region], step: Leaves, at: Numbers, direction: Numbers) -> bool:
    """True where no step of a class, from these numbers on in a direction, needs any of these regions."""
    by: dict[Var, Int] = {}
    for v, x, sign in zip(step.variables, at, direction, strict=True):
        by[v] = Var(v.name, x if sign > 0 else v.lo, x if sign < 0 else v.hi) if sign else x
    for n, region in regions.items():
        needed = _with(step.parts[n].needed, by)
        if not all(bx.are_apart(a, b) for a in region.boxes for b in needed.boxes):
            return False
    return True


def _at(region: Region, env: Mapping[str, int]) -> Region:
    """The same boxes with numbers, and no more than these: joined, they would have more than is computed, or needed."""
    boxes = [bx.at(b, env) for b in region.boxes]
    return Region(tuple([b for b in boxes if not bx.is_empty(b)]))


def _lasts(part: Part, before: Mapping[Var, Int], after: Mapping[Var, Int]) -> bool:
    """True where what a step leaves stale of a node is no more than one after it computes or leaves."""
    left, need, done = (_with(r, after) for r in (part.left, part.needed, part.computed))
    stale = _with(part.left, before)
    return done.contains(stale & need) and Region((*left.boxes, *need.boxes)).contains(stale)


def _with(region: Region, by: Mapping[Var, Int]) -> Region:
    boxes = [tuple([Interval(substitute(i.lo, by), substitute(i.hi, by)) for i in b]) for b in region.boxes]
    return Region(tuple(boxes), region.exact)
