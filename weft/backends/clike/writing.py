"""Stores and accumulations: group after group of the lanes of a vector loop, or as one scalar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.backends.clike.language import Place, Where
from weft.backends.clike.text import Group, Offset, TextValue
from weft.backends.clike.values import Values, opaques
from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.expr import Expr, ScalarCall, names_of
from weft.ir.index import Guard, Int
from weft.ir.loops import Accumulate, Store
from weft.ir.loops_names import names_of_guard, names_of_index
from weft.ir.ops import Op


class Writing(Values):
    """Text that changes memory."""

    def _store(self, s: Store) -> None:
        if not self._careful(s):
            for _ in self.each():
                with self._guarded(s.guard) as runs:
                    if runs:
                        (value,) = self.evaluate((s.value,), opaques(s.offset))
                        self._write(s.buffer, s.offset, value, s.stream)
            return
        ready: list[tuple[Group, dict[Expr, TextValue], TextValue]] = []
        for _ in self.each():
            if self._fold(s.guard):
                (value,) = self.evaluate((s.value,), opaques(s.offset))
                ready.append((self.now, self.memo, self._bound(s.value.dtype, value)))
        for group, memo, value in ready:
            self.now, self.memo = group, memo
            self._write(s.buffer, s.offset, value, s.stream)
        self.now = self.groups[0]

    def _accumulate(self, s: Accumulate) -> None:
        place, dtype = self.places[s.buffer], s.value.dtype
        op, parts = factors(s)
        whole = self.lane is not None and not (place.lanes or self._differs(names_of_index(s.offset)))
        if not whole and not self._careful(s):
            for _ in self.each():
                with self._guarded(s.guard) as runs:
                    if runs:
                        self._combine(op, place, s.offset, self.evaluate(parts, opaques(s.offset)))
            return
        wanted = (s.value,) if whole else parts
        ready: list[tuple[Group, dict[Expr, TextValue], list[TextValue]]] = []
        for _ in self.each():
            if self._fold(s.guard):
                values = self.evaluate(wanted, opaques(s.offset))
                bound = [self._bound(e.dtype, v) for e, v in zip(wanted, values, strict=True)]
                ready.append((self.now, self.memo, bound))
        if whole and ready:
            self._together(s.op, place, dtype, s.offset, ready)
        else:
            for group, memo, values in ready:
                self.now, self.memo = group, memo
                self._combine(op, place, s.offset, values)
        self.now = self.groups[0]

    def _fold(self, guard: Guard) -> bool:
        """The guard into the current group's mask; False where it never holds."""
        when = self.condition(guard)
        if when.never:
            return False
        mask = self._both(self.now.mask, when.mask)
        if when.shared is not None:
            mask = self._both(mask, self._as_mask(when.shared))
        self.now = replace(self.now, mask=mask)
        return True

    def _as_mask(self, condition: str) -> str:
        """A scalar condition as the current group's mask."""
        n = self.now.lanes
        text = self.language.broadcast(dtypes.bool_, n, condition) if n else condition
        return self.bind(dtypes.bool_, n, text)

    def _careful(self, s: Store | Accumulate) -> bool:
        """True where a group might read what another one has already written."""
        if len(self.groups) == 1:
            return False
        return s.buffer in names_of(s.value) | names_of_index(s.offset) | names_of_guard(s.guard)

    def _write(self, buffer: str, offset: Int, value: TextValue, stream: bool = False) -> None:
        """The group's values into its active lanes' elements, in order."""
        language, place, group = self.language, self.places[buffer], self.now
        dtype = place.buffer.dtype
        at = self.offset(place, offset)
        if not group.lanes:
            with self.where(None if self.looped else group.mask):
                self.do(language.store(place, self.index.bare(at.base), value.text))
        elif at.uniform:
            self._write_last(place, at, value)
        elif at.contiguous:
            text, base = self._wide(dtype, value), self.index.bare(at.base)
            if group.mask is None:
                near = stream and self._aligned(at.base, group.lanes)
                self.do(language.store(place, base, text, group.lanes, near))
            elif place.where is Where.PRIVATE:
                old = language.load(place, base, group.lanes)
                new = language.select(dtype, group.lanes, group.mask, text, old)
                self.do(language.store(place, base, new, group.lanes))
            else:
                name = self._bound(dtype, TextValue(text, group.lanes))
                with self.inside(language.branch(language.all_lanes(group.mask))):
                    self.do(language.store(place, base, name.text, group.lanes))
                with self.inside("else {"):
                    self.do(language.store_some(place, base, name.text, group.lanes, group.mask))
        else:
            self._write_each(place, at, self._bound(dtype, value))

    def _write_last(self, place: Place, at: Offset, value: TextValue) -> None:
        """All lanes write one element: the last active one stays."""
        language, group, base = self.language, self.now, self.index.bare(at.base)
        if group.mask is None:
            last = language.lane(value.text, group.lanes - 1) if value.lanes else value.text
            if place.buffer.dtype is dtypes.bool_ and value.lanes:
                last = language.truth(last)
            self.do(language.store(place, base, last))
        elif not value.lanes:
            with self.where(language.any_lane(group.mask)):
                self.do(language.store(place, base, value.text))
        else:
            self._write_each(place, at, self._bound(place.buffer.dtype, value))

    def _write_each(self, place: Place, at: Offset, value: TextValue) -> None:
        """Lane by lane."""
        for k in range(self.now.lanes):
            with self.where(self._active(k)):
                own = self._component(place.buffer.dtype, value, k)
                self.do(self.language.store(place, self.index.bare(self._lane_index(at, k)), own))

    def _together(
        self,
        op: Op,
        place: Place,
        dtype: DType,
        offset: Int,
        ready: Sequence[tuple[Group, dict[Expr, TextValue], list[TextValue]]],
    ) -> None:
        """All lanes combined as a tree, the first half with the second, and that into the element."""
        language = self.language
        values: list[TextValue] = []
        for group, memo, (value,) in ready:
            self.now, self.memo = group, memo
            text = self._wide(dtype, value)
            if group.mask is not None:
                neutral = self._spread_const(dtype, group.lanes, identity(op, dtype))
                text = language.select(dtype, group.lanes, group.mask, text, neutral)
            values.append(TextValue(text, group.lanes))
        while len(values) > 1 and values[0].lanes == values[-1].lanes and len(values) % 2 == 0:
            half = len(values) // 2
            values = [self._two(op, dtype, a, b) for a, b in zip(values[:half], values[half:], strict=True)]
        totals: list[TextValue] = []
        for value in values:
            while value.lanes:
                name = self._bound(dtype, value).text
                low, high = language.halves(name)
                if value.lanes == 2 and dtype is dtypes.bool_:
                    low, high = language.truth(low), language.truth(high)
                n = value.lanes // 2 if value.lanes > 2 else 0
                value = self._two(op, dtype, TextValue(low, n), TextValue(high, n))
            totals.append(value)
        while len(totals) > 1:
            totals = [self._two(op, dtype, totals[0], totals[1]), *totals[2:]]
        total = self._bound(dtype, totals[0]).text
        some = self._any_of([g for g, _, _ in ready])
        self.now, self.memo = ready[0][0], ready[0][1]
        with self.where(some):
            self._add_to(op, place, self.index.bare(self.offset(place, offset).base), total)

    def _any_of(self, groups: Sequence[Group]) -> str | None:
        """The condition that any lane of the groups is active; None: one is."""
        found: list[str] = []
        for g in groups:
            if g.mask is None:
                return None
            found.append(self.language.any_lane(g.mask) if g.lanes else g.mask)
        return f"({' || '.join(dict.fromkeys(found))})"

    def _add_to(self, op: Op, place: Place, base: str, value: str) -> None:
        old = self.language.load(place, base)
        self.do(self.language.store(place, base, self._op(op, place.buffer.dtype, 0, [value, old])))

    def _two(self, op: Op, dtype: DType, a: TextValue, b: TextValue) -> TextValue:
        return self._bound(dtype, TextValue(self._op(op, dtype, a.lanes, [a.text, b.text]), a.lanes))

    def _combine(self, op: Op, place: Place, offset: Int, values: Sequence[TextValue]) -> None:
        """place[offset] = op(values, place[offset]) in the group's active lanes."""
        language, dtype, group = self.language, place.buffer.dtype, self.now
        at = self.offset(place, offset)
        if not group.lanes:
            with self.where(group.mask):
                base = self.index.bare(at.base)
                new = self._op(op, dtype, 0, [*(v.text for v in values), language.load(place, base)])
                self.do(language.store(place, base, new))
            return
        if at.contiguous and (group.mask is None or place.where is Where.PRIVATE):
            self._combine_run(op, place, at, values)
            return
        bound = [self._bound(dtype, v) for v in values]
        if at.contiguous and group.mask is not None:
            with self.inside(language.branch(language.all_lanes(group.mask))):
                self.now = replace(group, mask=None)
                self._combine_run(op, place, at, bound)
                self.now = group
            with self.inside("else {"):
                self._combine_each(op, place, at, bound)
        else:
            self._combine_each(op, place, at, bound)

    def _combine_run(self, op: Op, place: Place, at: Offset, values: Sequence[TextValue]) -> None:
        """In neighbouring elements."""
        language, dtype, n, mask = self.language, place.buffer.dtype, self.now.lanes, self.now.mask
        base = self.index.bare(at.base)
        old = language.load(place, base, n)
        if mask is not None:
            old = self.bind(dtype, n, old)
        new = self._op(op, dtype, n, [*(self._wide(dtype, v) for v in values), old])
        if mask is not None:
            new = language.select(dtype, n, mask, new, old)
        self.do(language.store(place, base, new, n))

    def _combine_each(self, op: Op, place: Place, at: Offset, values: Sequence[TextValue]) -> None:
        """Lane by lane, in order: several may have the same element."""
        dtype = place.buffer.dtype
        for k in range(self.now.lanes):
            with self.where(self._active(k)):
                base = self.index.bare(self._lane_index(at, k))
                own = [self._component(dtype, v, k) for v in values]
                new = self._op(op, dtype, 0, [*own, self.language.load(place, base)])
                self.do(self.language.store(place, base, new))


def identity(op: Op, dtype: DType) -> bool | int | float:
    """The identity of `op`."""
    match op:
        case Op.ADD:
            return -0.0 if dtype.is_float else 0
        case Op.MUL:
            return True if dtype is dtypes.bool_ else 1
        case Op.MAX:
            return dtype.min
        case Op.MIN:
            return dtype.max
        case _:
            raise ValueError(f"cannot accumulate with {op.symbol}")


def factors(s: Store | Accumulate) -> tuple[Op, tuple[Expr, ...]]:
    """A sum of products is accumulated in one rounding, as on every device."""
    if not isinstance(s, Accumulate):
        return Op.ADD, (s.value,)
    e = s.value
    if s.op is Op.ADD and isinstance(e, ScalarCall) and e.op is Op.MUL and e.dtype.is_float:
        return Op.FMA, e.args
    return s.op, (e,)
