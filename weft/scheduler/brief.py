"""The sizes of a graph like the one before, without those inside its calls: enough to find its plan.

    x: (9, 64)    softmax of 9 rows of 64    loss          brief    9 64    9        9
    x: (21, 64)   softmax of 21 rows of 64   loss                   21 64   21       21

An outline lists every size inside a call, thousands in a training step. A call that was made for its sizes (see
sized.py) follows from a few numbers: where the one before was made by the same maker, these say the same. So the
pattern of a plan for all sizes is rewritten for them, once, and is held against a list of some hundred. Where anything
else differs, or the rewritten pattern would ask less, there is no brief, and the outline is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from weft.ir.compiled_index import picker
from weft.ir.dtypes import DType
from weft.ir.expr import Scalar
from weft.ir.graph import Axes
from weft.ir.index import Index, Int
from weft.ir.template import LateTemplate
from weft.lazy_dataclass import dataclass
from weft.scheduler.outline import OutlineKey, Walk, inside, part_of, pattern_of, walk_before
from weft.scheduler.sized import SizedTemplate
from weft.scheduler.varying import Pattern

AGAIN = 2
"""Graphs that were like the one before, before a brief is made of one: what comes twice pays for nothing."""

PATTERNS = 16
"""Patterns of a family that are kept as briefs have them: more than it has plans and recipes."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The places of a brief's numbers: those of the same size among the outline's; and outline's sizes that calls of
    these makers always have."""

    places: tuple[tuple[int, ...], ...]
    fixed: tuple[tuple[int, int], ...]
    starts: tuple[int, ...]
    """The places where the numbers of each row begin."""
    takes: tuple[Callable[[Sequence[int]], tuple[int, ...]] | None, ...]
    """A function for each row that takes out those of a call's values that are sizes of the outline; None for all."""

    def brief_pattern(self, pattern: Pattern) -> Pattern | None:
        """The pattern of a brief that says the same as this one of an outline; None where there is none."""
        if any(pattern.sizes[p] != n for p, n in self.fixed):
            return None
        sizes: list[Int] = []
        number: dict[int, int] = {}
        for k, places in enumerate(self.places):
            said = {pattern.sizes[p] for p in places}
            if len(said) > 1:
                return None
            sizes += said
            number.update(dict.fromkeys(places, k))
        read = [number.get(p) for p in pattern.places]
        if None in read:
            return None
        return Pattern.of(pattern.variables, tuple(sizes), tuple([k for k in read if k is not None]))


@dataclass(slots=True, eq=False)
class Brief:
    """The sizes and numbers of the latest of some graphs."""

    layout: Layout
    key: OutlineKey
    """The key of their outline."""
    rows: Sequence[Any]
    sizes: tuple[int, ...]
    numbers: tuple[Scalar, ...]
    patterns: list[tuple[Pattern, Pattern | None]] = field(
        default_factory=list["tuple[Pattern, Pattern | None]"]
    )
    """Patterns of outlines, and the same of briefs."""

    def of(self, pattern: Pattern) -> Pattern | None:
        """The pattern of a brief that says the same as this one of an outline; None where there is none."""
        for known, own in self.patterns:
            if known is pattern:
                return own
        own = self.layout.brief_pattern(pattern)
        self.patterns = [*self.patterns[1 - PATTERNS :], (pattern, own)]
        return own


def brief_like_before(rows: Sequence[Any]) -> Brief | None:
    """The brief of a graph; None where it is not like the one before in all but sizes and numbers. By one thread at a
    time."""
    walk = walk_before(rows)
    if walk is None or walk.again < AGAIN:
        return None
    brief: Brief | None = walk.brief
    if brief is None:
        if walk.rows is rows:
            return None
        brief = walk.brief = _first(walk)
    if brief.rows is not rows and not _is_next(brief, walk, rows):
        walk.brief, walk.again = None, 0
        return None
    return brief


def _is_next(brief: Brief, walk: Walk, rows: Sequence[Any]) -> bool:
    """Have a brief be that of rows; False where it cannot be."""
    layout = brief.layout
    sizes, numbers = list(brief.sizes), list(brief.numbers)
    starts, takes = layout.starts, layout.takes
    last = len(starts)
    for at, (row, old) in enumerate(zip(rows, brief.rows, strict=True)):
        if row == old:
            continue
        if at == last:
            return False
        attrs = row[1]
        if attrs.__class__ is LateTemplate:
            if old[1].__class__ is not LateTemplate or attrs.maker is not old[1].maker or row[4:] != old[4:]:
                return False
            own: tuple[int, ...] = attrs.values
            take = takes[at]
            if take is not None:
                own = take(own)
            if attrs.maker.counts:
                given = inside(attrs).numbers
                first = walk.starts[at][1]
                numbers[first : first + len(given)] = given
        elif row[0].__class__ is DType:
            if row[0] is not old[0] or row[2] != old[2] or not _alike(row[1], old[1]):
                return False
            own = row[1]
        elif attrs is old[1] or (attrs.__class__ is Axes and attrs == old[1]):
            if (
                row[0] is not old[0]
                or row[2] is not old[2]
                or row[4:] != old[4:]
                or not _alike(row[3], old[3])
            ):
                return False
            own = row[3]
        else:
            part, own, given = part_of(row)
            if part != walk.parts[at] or old[1].__class__ is LateTemplate:
                return False
            first = walk.starts[at][1]
            numbers[first : first + len(given)] = given
        start = starts[at]
        sizes[start : start + len(own)] = own
    brief.rows, brief.sizes, brief.numbers = rows, tuple(sizes), tuple(numbers)
    return True


def _alike(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """True for shapes with the same sizes that are part of the structure."""
    if len(shape) == len(other) and min(*shape, 2, 2) > 1 and min(*other, 2, 2) > 1:
        return True
    return pattern_of(shape) == pattern_of(other)


@dataclass(frozen=True, slots=True)
class _Made:
    """The sizes of a call that a maker made, by their places in it: those of each number that is used, and those that
    are always the same."""

    used: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]
    fixed: tuple[tuple[int, int], ...]
    take: Callable[[Sequence[int]], tuple[int, ...]] | None

    @staticmethod
    def by(maker: SizedTemplate) -> _Made:
        """The sizes of calls that this maker makes."""
        at: dict[Int, list[int]] = {}
        fixed: list[tuple[int, int]] = []
        for k, s in enumerate((*maker.shape, *maker.sizes)):
            if isinstance(s, Index):
                at.setdefault(s, []).append(k)
            else:
                fixed.append((k, s))
        used = tuple([k for k, e in enumerate(maker.expressions) if e in at])
        places = tuple([tuple(at[maker.expressions[k]]) for k in used])
        return _Made(used, places, tuple(fixed), picker(used) if len(used) < len(maker.expressions) else None)


def _first(walk: Walk) -> Brief:
    """The brief of the latest graph whose outline is known."""
    places: list[tuple[int, ...]] = []
    fixed: list[tuple[int, int]] = []
    starts: list[int] = []
    takes: list[Callable[[Sequence[int]], tuple[int, ...]] | None] = []
    sizes: list[int] = []
    makers: dict[SizedTemplate, _Made] = {}
    ends = [first for first, _ in walk.starts[1:]] + [len(walk.found.sizes)]
    for row, (first, _), end in zip(walk.rows, walk.starts, ends, strict=False):
        starts.append(len(places))
        take = None
        template = row[1]
        if isinstance(template, LateTemplate) and isinstance(template.maker, SizedTemplate):
            made = makers.get(template.maker)
            if made is None:
                made = makers[template.maker] = _Made.by(template.maker)
            take = made.take
            places += [tuple([first + k for k in own]) for own in made.places]
            fixed += [(first + k, s) for k, s in made.fixed]
            sizes += [template.values[k] for k in made.used]
        else:
            places += [(k,) for k in range(first, end)]
            sizes += walk.found.sizes[first:end]
        takes.append(take)
    layout = Layout(tuple(places), tuple(fixed), tuple(starts), tuple(takes))
    return Brief(layout, walk.found.key, walk.rows, tuple(sizes), walk.found.numbers)
