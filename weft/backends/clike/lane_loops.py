"""Stores and accumulations of vector loops in languages without vectors: loops over the lanes."""
# Tests: tests/backends/opencl/test_blocks.py

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from weft.backends.clike.language import Place, Where
from weft.backends.clike.text import TextValue
from weft.backends.clike.values import opaques
from weft.backends.clike.writing import Writing, factors, identity
from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.expr import names_of
from weft.ir.loops import Accumulate, Buffer, Scope, Store
from weft.ir.loops_names import names_of_guard, names_of_index


class LaneLoops(Writing):
    """Loops over lanes: arrays keep what is between the lanes of one statement and those of the next."""

    @contextmanager
    def _over_lanes(self) -> Generator[None]:
        """In a loop over lanes: the loop, and what is under the mask."""
        assert self.lane is not None
        with self.inside(self.language.loop(self.names[self.lane.name], "0", str(self.lanes))):
            self.memo = {}
            with self.where(self.now.mask):
                yield

    def _lane_array(self, dtype: DType, name: str) -> Place:
        """An array with one element per lane."""
        array = Place(self.fresh.fresh(name), private(name, dtype, self.lanes), Where.PRIVATE)
        self.do(self.language.array(array, self.lanes))
        return array

    def _put(self, array: Place, value: str) -> None:
        """Set this lane's element."""
        self.do(self.language.store(array, self.names[self.the_lane.name], value))

    def _get(self, array: Place) -> str:
        """This lane's element."""
        return self.language.load(array, self.names[self.the_lane.name])

    def _in_lanes(self, s: Store | Accumulate) -> None:
        """A store or accumulation as loops over the lanes."""
        place, dtype = self.places[s.buffer], s.value.dtype
        reads = names_of(s.value) | names_of_index(s.offset) | names_of_guard(s.guard)
        same = not (place.lanes or self._differs(names_of_index(s.offset)))
        if isinstance(s, Accumulate) and same and self.lanes > 1:
            self._lane_tree(s, place)
            return
        if s.buffer not in reads:
            with self._over_lanes(), self._guarded(s.guard) as runs:
                if runs:
                    self._one(s, self.evaluate(factors(s)[1], opaques(s.offset)))
            return
        kept = self._lane_array(dtype, "kept")
        places = self._lane_array(self.index_dtype, "at")
        active = self._lane_array(dtypes.bool_, "active")
        language = self.language
        with self.inside(language.loop(self.names[self.the_lane.name], "0", str(self.lanes))):
            self._put(active, language.literal(dtypes.bool_, False))
            self.memo = {}
            with self.where(self.now.mask), self._guarded(s.guard) as runs:
                if runs:
                    (value,) = self.evaluate((s.value,), opaques(s.offset))
                    self._put(active, language.literal(dtypes.bool_, True))
                    self._put(kept, value.text)
                    at = self.index(self.offset(place, s.offset).base)
                    self._put(places, language.from_index(at, self.index_dtype))
        with (
            self.inside(language.loop(self.names[self.the_lane.name], "0", str(self.lanes))),
            self.where(self._get(active)),
        ):
            at = language.index(self._get(places), self.index_dtype)
            if isinstance(s, Store):
                self.do(language.store(place, at, self._get(kept)))
            else:
                self._add_to(s.op, place, at, self._get(kept))

    def _one(self, s: Store | Accumulate, values: Sequence[TextValue]) -> None:
        place = self.places[s.buffer]
        base = self.index.bare(self.offset(place, s.offset).base)
        if isinstance(s, Store):
            self.do(self.language.store(place, base, values[0].text))
        else:
            old = self.language.load(place, base)
            new = self._op(factors(s)[0], place.buffer.dtype, 0, [*(v.text for v in values), old])
            self.do(self.language.store(place, base, new))

    def _lane_tree(self, s: Accumulate, place: Place) -> None:
        """All lanes into one element: the first half of them with the second half, an odd last one waits."""
        language, dtype = self.language, s.value.dtype
        lane = self.names[self.the_lane.name]
        kept = self._lane_array(dtype, "kept")
        some = self.variable(dtypes.bool_, 0, language.literal(dtypes.bool_, False))
        with self.inside(language.loop(lane, "0", str(self.lanes))):
            self.do(language.store(kept, lane, language.literal(dtype, identity(s.op, dtype))))
            self.memo = {}
            with self.where(self.now.mask), self._guarded(s.guard) as runs:
                if runs:
                    self.do(language.store(kept, lane, self.evaluate((s.value,))[0].text))
                    self.do(language.assign(some, language.literal(dtypes.bool_, True)))
        left = self.lanes
        while left > 1:
            half = left // 2
            with self.inside(language.loop(lane, "0", str(half))):
                pair = [language.load(kept, lane), language.load(kept, f"{lane} + {half}")]
                self.do(language.store(kept, lane, self._op(s.op, dtype, 0, pair)))
            if left % 2:
                self.do(language.store(kept, str(half), language.load(kept, str(left - 1))))
            left = half + left % 2
        with self.where(some):
            self.memo = {}
            self.evaluate(opaques(s.offset))
            self._add_to(
                s.op, place, self.index.bare(self.offset(place, s.offset).base), language.load(kept, "0")
            )


def private(name: str, dtype: DType, size: int) -> Buffer:
    """A buffer of one thread."""
    return Buffer(name, dtype, size, Scope.REGISTER)
