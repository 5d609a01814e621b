"""Statements of lowered loops -> source text. What differs between languages is in `Language`, between targets in
`Hooks`.

Where the language has vectors, a vector loop's lanes are cut into groups of its vectors' lengths, and every statement
is written for one group after another. Where it has none, every statement becomes a loop over the lanes:

    vector j in 4:                      for (long j = 0; j < 4; j++) t0[j] = x[j] * 2.0f;
      t0 = x[j] * 2.0           ->      for (long j = 0; j < 4; j++) y[3 - j] = t0[j];
      y[3 - j] = t0
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from weft.backends.clike import scalar
from weft.backends.clike.index import IndexText
from weft.backends.clike.language import Language, Place, Where
from weft.backends.clike.scalar import Site
from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.expr import (
    Call,
    Const,
    Expr,
    FromIndex,
    Load,
    Temp,
    Test,
    names_of,
    opaque_values,
    walk,
)
from weft.ir.index import NEVER, Guard, InRange, Int, Var, bounds, coefficient, substitute, variables
from weft.ir.loops import (
    Accumulate,
    Alloc,
    Barrier,
    Block,
    Buffer,
    If,
    Let,
    Loop,
    LoopKind,
    Prefetch,
    Scope,
    Stmt,
    Store,
)
from weft.ir.loops_names import every, names_of_guard, names_of_index, written
from weft.ir.ops import Op

LONGEST = 100
"""Expressions whose text is longer get a name."""


_ARITHMETIC = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.FMA})

MAX_COPIES = 512
"""Statements that an unrolled nest may be written out to; larger ones stay loops."""


class Hooks(Protocol):
    """What a target adds."""

    def spread(self, body: Body, loop: Loop) -> None:
        """A PARALLEL, BLOCK or THREAD loop."""
        ...

    def barrier(self, body: Body) -> None:
        """All threads of a block meet, and see each other's stores."""
        ...


class Value(NamedTuple):
    """A scalar's or, with lanes, a vector's text."""

    text: str
    lanes: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """`lanes` lanes of a vector loop from `start` on, as one vector, of which only those in `mask` (None: all) are
    active. 0 lanes: a single thread of execution, whose mask is a scalar."""

    start: int = 0
    lanes: int = 0
    mask: str | None = None


class Offset(NamedTuple):
    """Where each lane of a group accesses a buffer: at `base`, `steps` further on; or, if these are not constants,
    wherever `whole` says."""

    base: Int
    steps: tuple[int, ...] | None
    whole: Int

    @property
    def uniform(self) -> bool:
        return self.steps is not None and not any(self.steps)

    @property
    def contiguous(self) -> bool:
        return self.steps == tuple(range(len(self.steps or ())))

    @property
    def apart(self) -> bool:
        """Whether no two lanes access the same element, as far as is known."""
        return self.steps is not None and len(set(self.steps)) == len(self.steps)


class Condition(NamedTuple):
    """A guard: a scalar condition and one per lane; None where there is nothing to ask."""

    shared: str | None = None
    mask: str | None = None
    never: bool = False


@dataclass(slots=True)
class Names:
    """Names of one function's text, each given once."""

    taken: set[str] = field(default_factory=set[str])

    def fresh(self, name: str) -> str:
        """`name`, or one like it that is free."""
        out, k = name, 1
        while out in self.taken:
            k += 1
            out = f"{name}_{k}"
        self.taken.add(out)
        return out


class Body:
    """Renders blocks into `lines`."""

    def __init__(self, language: Language, hooks: Hooks, taken: Iterable[str] = (), depth: int = 1) -> None:
        self.language, self.hooks = language, hooks
        self.lines: list[str] = []
        self.depth = depth
        self.fresh = Names({*language.reserved, *taken})
        self.places: dict[str, Place] = {}
        self.names: dict[str, str] = {}
        """What index variables are called; an unrolled loop's is a number."""
        self.helpers: set[str] = set()
        self.constants: dict[Var, Int] = {}
        self.temps: dict[str, dict[int | None, Value]] = {}
        self.lane: Var | None = None
        self.lanes = 0
        self.varying: set[str] = set()
        """Names, in a vector loop, of what may differ between its lanes."""
        self.groups: list[Group] = [Group()]
        self.now = self.groups[0]
        self.memo: dict[Expr, Value] = {}
        self.shared: dict[Expr, Value] = {}
        self.index_dtype = dtypes.int64 if language.index_bits == 64 else dtypes.int32
        self.index = IndexText(self.names, self._opaque, self.helpers)
        self.read: dict[tuple[str, Int, Guard], str] = {}
        """Names of elements that have been read, by buffer, offset and guard: unrolled loops read them again."""
        self._counter = 0

    # text

    def do(self, line: str) -> None:
        """One line at the current depth."""
        self.lines.append("  " * self.depth + line)

    @contextmanager
    def inside(self, head: str) -> Generator[None]:
        """Lines between `head`, which ends with a brace, and the closing one."""
        self.do(head)
        self.depth += 1
        outer = dict(self.read)
        yield
        self.read = {k: v for k, v in outer.items() if k in self.read}
        self.depth -= 1
        self.do("}")

    @contextmanager
    def where(self, condition: str | None) -> Generator[None]:
        """Lines that run where the condition holds."""
        if condition is None:
            yield
        else:
            with self.inside(self.language.branch(condition)):
                yield

    def _name(self) -> str:
        self._counter += 1
        return self.fresh.fresh(f"v{self._counter}")

    def bind(self, dtype: DType, lanes: int, text: str) -> str:
        """A name for a value."""
        name = self._name()
        self.do(self.language.constant(dtype, lanes, name, text))
        return name

    def variable(self, dtype: DType, lanes: int, value: str) -> str:
        """A variable that may be assigned to."""
        name = self._name()
        self.do(self.language.variable(dtype, lanes, name, value))
        return name

    def define(self, name: str) -> str:
        """What a name of the program is called from now on."""
        self.names[name] = self.fresh.fresh(name)
        return self.names[name]

    # statements

    def block(self, stmts: Block) -> None:
        """All statements in order."""
        for s in stmts:
            self.statement(s)

    def statement(self, s: Stmt) -> None:
        """One statement. TypeError for an unknown one."""
        match s:
            case Loop():
                self.loop(s)
            case Alloc():
                self.alloc(s)
            case Let():
                self._let(s)
            case Store():
                self._store(s)
                self._forget({s.buffer})
            case Accumulate():
                self._accumulate(s)
                self._forget({s.buffer})
            case If():
                self._if(s)
            case Prefetch():
                self._prefetch(s)
            case Barrier():
                self.hooks.barrier(self)
                self._forget(None)
            case _:
                raise TypeError(f"not a statement: {type(s).__name__}")

    def _forget(self, buffers: Set[str] | None) -> None:
        """What was read of these buffers may have changed; None: of all that other threads can write to."""
        if self.read:
            self.read = {k: v for k, v in self.read.items() if buffers is not None and k[0] not in buffers}

    def _forget_written(self, body: Block) -> None:
        """Before a loop over `body`: what its iterations change is not what was read before it."""
        if self.read:
            inside = list(every(body))
            self._forget(None if any(isinstance(s, Barrier) for s in inside) else written(body))

    def loop(self, loop: Loop) -> None:
        """A loop of any kind."""
        match loop.kind:
            case LoopKind.VECTOR if loop.extent != 1 and self.language.widths:
                self._vector(loop)
            case LoopKind.VECTOR if loop.extent != 1:
                self._lane_loop(loop)
            case LoopKind.VECTOR:
                self.unroll(loop)
            case LoopKind.UNROLL if copies((loop,)) <= MAX_COPIES:
                self.unroll(loop)
            case LoopKind.SERIAL if loop.extent == 1:
                self.unroll(loop)
            case LoopKind.SERIAL | LoopKind.UNROLL | LoopKind.MATRIX:
                self._begin((loop.extent,))
                self._forget_written(loop.body)
                last = self.index.bare(self.at(loop.extent))
                with self.inside(self.language.loop(self.define(loop.var.name), "0", last)):
                    self.block(loop.body)
            case _:
                self.hooks.spread(self, loop)

    def unroll(self, loop: Loop) -> None:
        """Iterations written out, the variable a constant in each."""
        assert isinstance(loop.extent, int), "loops of unknown extent are not unrolled"
        for k in range(loop.extent):
            self.constants[loop.var] = k
            self.names[loop.var.name] = str(k)
            self.block(loop.body)
        self.constants.pop(loop.var, None)

    def _vector(self, loop: Loop) -> None:
        assert isinstance(loop.extent, int), "vector loops have a constant extent"
        outer, self.lane = (self.groups, self.now), loop.var
        self.lanes, self.groups, self.varying = loop.extent, [], {loop.var.name}
        start = 0
        for width in (*self.language.widths, 1):
            while loop.extent - start >= width:
                self.groups.append(Group(start, width if width > 1 else 0))
                start += width
        self.names.pop(loop.var.name, None)
        if self.groups:
            self.now = self.groups[0]
            self.block(loop.body)
        (self.groups, self.now), self.lane, self.lanes, self.varying = outer, None, 0, set()

    def _lane_loop(self, loop: Loop) -> None:
        assert isinstance(loop.extent, int), "vector loops have a constant extent"
        self.lane, self.lanes = loop.var, loop.extent
        self.define(loop.var.name)
        self.varying = {loop.var.name}
        if loop.extent:
            self.block(loop.body)
        self.lane, self.lanes, self.varying = None, 0, set()

    @property
    def looped(self) -> bool:
        """Whether this is inside a vector loop that is a loop over lanes."""
        return self.lane is not None and not self.language.widths

    @contextmanager
    def _over_lanes(self) -> Generator[None]:
        """In a loop over lanes: the loop, and what is under the mask."""
        assert self.lane is not None
        with self.inside(self.language.loop(self.names[self.lane.name], "0", str(self.lanes))):
            self.memo = {}
            with self.where(self.now.mask):
                yield

    def alloc(self, s: Alloc) -> None:
        """A buffer of this thread's own."""
        b = s.buffer
        assert isinstance(b.size, int), "allocations have a constant size"
        place = Place(self.fresh.fresh(b.name), b, Where.PRIVATE, self.lanes)
        self.places[b.name] = place
        self.do(self.language.array(place, max(1, b.size * max(1, self.lanes))))
        if self.lane is not None:
            self.varying.add(b.name)

    def _let(self, s: Let) -> None:
        masked = any(g.mask is not None for g in self.groups)
        if self.lane is None or not (masked or self._differs(names_of(s.value))):
            next(self.each())
            self.temps[s.name] = {None: self._named(s, *self.evaluate((s.value,)))}
            return
        self.varying.add(s.name)
        if self.looped:
            array = self._lane_array(s.value.dtype, s.name)
            with self._over_lanes():
                (value,) = self.evaluate((s.value,))
                self._put(array, value.text)
            self.temps[s.name] = {None: Value(self._get(array))}
            return
        values: dict[int | None, Value] = {}
        for group in self.each():
            values[group.start] = self._named(s, *self.evaluate((s.value,)))
        self.temps[s.name] = values

    def _differs(self, names: frozenset[str]) -> bool:
        """Whether what depends on these names may differ between lanes."""
        return not names.isdisjoint(self.varying)

    def _named(self, s: Let, value: Value) -> Value:
        name = self.fresh.fresh(s.name)
        self.do(self.language.constant(s.value.dtype, value.lanes, name, value.text))
        return Value(name, value.lanes)

    def _lane_array(self, dtype: DType, name: str) -> Place:
        """An array with one element per lane."""
        array = Place(self.fresh.fresh(name), _buffer(name, dtype, self.lanes), Where.PRIVATE)
        self.do(self.language.array(array, self.lanes))
        return array

    def _put(self, array: Place, value: str) -> None:
        """Set this lane's element."""
        self.do(self.language.store(array, self.names[_lane(self).name], value))

    def _get(self, array: Place) -> str:
        """This lane's element."""
        return self.language.load(array, self.names[_lane(self).name])

    def each(self) -> Generator[Group]:
        """The groups in order, each made the current one."""
        self.shared = {}
        for group in self.groups:
            self.now, self.memo = group, {}
            yield group
        self.now = self.groups[0]

    def _begin(self, indices: Iterable[Int]) -> None:
        """Start a statement by computing what these indices depend on."""
        self.memo, self.shared = {}, {}
        self.evaluate((), [v for i in indices for v in _opaques(i)])

    # writing

    def _store(self, s: Store) -> None:
        if self.looped:
            self._in_lanes(s)
            return
        if not self._careful(s):
            for _ in self.each():
                with self._guarded(s.guard) as runs:
                    if runs:
                        (value,) = self.evaluate((s.value,), _opaques(s.offset))
                        self._write(s.buffer, s.offset, value, s.stream)
            return
        ready: list[tuple[Group, dict[Expr, Value], Value]] = []
        for _ in self.each():
            if self._fold(s.guard):
                (value,) = self.evaluate((s.value,), _opaques(s.offset))
                ready.append((self.now, self.memo, self._bound(s.value.dtype, value)))
        for group, memo, value in ready:
            self.now, self.memo = group, memo
            self._write(s.buffer, s.offset, value, s.stream)
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

    def _prefetch(self, s: Prefetch) -> None:
        if self.looped:
            return
        for _ in self.each():
            self.evaluate((), _opaques(s.offset))
            at = self._steps(s.offset)
            if at.steps is not None:
                line = self.language.prefetch(self.places[s.buffer], self.index.bare(at.base))
                if line:
                    self.do(line)

    def _careful(self, s: Store | Accumulate) -> bool:
        """Whether a group might read what another one has already written."""
        if len(self.groups) == 1:
            return False
        return s.buffer in names_of(s.value) | names_of_index(s.offset) | names_of_guard(s.guard)

    @contextmanager
    def _guarded(self, guard: Guard) -> Generator[bool]:
        """For the current group: inside, the guard holds; yields whether it ever does."""
        when = self.condition(guard)
        if when.never:
            yield False
            return
        group, memo, shared = self.now, self.memo, self.shared
        self.now = replace(group, mask=self._both(group.mask, when.mask))
        self.memo = dict(memo)
        if when.shared is not None:
            self.shared = dict(shared)
        with self.where(when.shared):
            yield True
        self.now, self.memo, self.shared = group, memo, shared

    def _write(self, buffer: str, offset: Int, value: Value, stream: bool = False) -> None:
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
                name = self._bound(dtype, Value(text, group.lanes))
                with self.inside(language.branch(language.all_lanes(group.mask))):
                    self.do(language.store(place, base, name.text, group.lanes))
                with self.inside("else {"):
                    self.do(language.store_some(place, base, name.text, group.lanes, group.mask))
        else:
            self._write_each(place, at, self._bound(dtype, value))

    def _write_last(self, place: Place, at: Offset, value: Value) -> None:
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

    def _write_each(self, place: Place, at: Offset, value: Value) -> None:
        """Lane by lane."""
        for k in range(self.now.lanes):
            with self.where(self._active(k)):
                own = self._component(place.buffer.dtype, value, k)
                self.do(self.language.store(place, self.index.bare(self._lane_index(at, k)), own))

    def _accumulate(self, s: Accumulate) -> None:
        if self.looped:
            self._in_lanes(s)
            return
        place, dtype = self.places[s.buffer], s.value.dtype
        op, parts = _fused(s)
        whole = self.lane is not None and not (place.lanes or self._differs(names_of_index(s.offset)))
        if not whole and not self._careful(s):
            for _ in self.each():
                with self._guarded(s.guard) as runs:
                    if runs:
                        self._combine(op, place, s.offset, self.evaluate(parts, _opaques(s.offset)))
            return
        wanted = (s.value,) if whole else parts
        ready: list[tuple[Group, dict[Expr, Value], list[Value]]] = []
        for _ in self.each():
            if self._fold(s.guard):
                values = self.evaluate(wanted, _opaques(s.offset))
                bound = [self._bound(e.dtype, v) for e, v in zip(wanted, values, strict=True)]
                ready.append((self.now, self.memo, bound))
        if whole and ready:
            self._together(s.op, place, dtype, s.offset, ready)
        else:
            for group, memo, values in ready:
                self.now, self.memo = group, memo
                self._combine(op, place, s.offset, values)
        self.now = self.groups[0]

    def _together(
        self,
        op: Op,
        place: Place,
        dtype: DType,
        offset: Int,
        ready: Sequence[tuple[Group, dict[Expr, Value], list[Value]]],
    ) -> None:
        """All lanes combined as a tree, the first half with the second, and that into the element."""
        language = self.language
        values: list[Value] = []
        for group, memo, (value,) in ready:
            self.now, self.memo = group, memo
            text = self._wide(dtype, value)
            if group.mask is not None:
                neutral = self._spread_const(dtype, group.lanes, identity(op, dtype))
                text = language.select(dtype, group.lanes, group.mask, text, neutral)
            values.append(Value(text, group.lanes))
        while len(values) > 1 and values[0].lanes == values[-1].lanes and len(values) % 2 == 0:
            half = len(values) // 2
            values = [self._two(op, dtype, a, b) for a, b in zip(values[:half], values[half:], strict=True)]
        totals: list[Value] = []
        for value in values:
            while value.lanes:
                name = self._bound(dtype, value).text
                low, high = language.halves(name)
                if value.lanes == 2 and dtype is dtypes.bool_:
                    low, high = language.truth(low), language.truth(high)
                n = value.lanes // 2 if value.lanes > 2 else 0
                value = self._two(op, dtype, Value(low, n), Value(high, n))
            totals.append(value)
        while len(totals) > 1:
            totals = [self._two(op, dtype, totals[0], totals[1]), *totals[2:]]
        total = self._bound(dtype, totals[0]).text
        some = self._any_of([g for g, _, _ in ready])
        self.now, self.memo = ready[0][0], ready[0][1]
        with self.where(some):
            self._add_to(op, place, self.index.bare(self.offset(place, offset).base), total)

    def _any_of(self, groups: Sequence[Group]) -> str | None:
        """Whether any lane of the groups is active; None: one is."""
        found: list[str] = []
        for g in groups:
            if g.mask is None:
                return None
            found.append(self.language.any_lane(g.mask) if g.lanes else g.mask)
        return f"({' || '.join(dict.fromkeys(found))})"

    def _add_to(self, op: Op, place: Place, base: str, value: str) -> None:
        old = self.language.load(place, base)
        self.do(self.language.store(place, base, self._op(op, place.buffer.dtype, 0, [value, old])))

    def _two(self, op: Op, dtype: DType, a: Value, b: Value) -> Value:
        return self._bound(dtype, Value(self._op(op, dtype, a.lanes, [a.text, b.text]), a.lanes))

    def _combine(self, op: Op, place: Place, offset: Int, values: Sequence[Value]) -> None:
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

    def _combine_run(self, op: Op, place: Place, at: Offset, values: Sequence[Value]) -> None:
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

    def _combine_each(self, op: Op, place: Place, at: Offset, values: Sequence[Value]) -> None:
        """Lane by lane, in order: several may have the same element."""
        dtype = place.buffer.dtype
        for k in range(self.now.lanes):
            with self.where(self._active(k)):
                base = self.index.bare(self._lane_index(at, k))
                own = [self._component(dtype, v, k) for v in values]
                new = self._op(op, dtype, 0, [*own, self.language.load(place, base)])
                self.do(self.language.store(place, base, new))

    # loops over lanes

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
                    self._one(s, self.evaluate(_fused(s)[1], _opaques(s.offset)))
            return
        kept = self._lane_array(dtype, "kept")
        places = self._lane_array(self.index_dtype, "at")
        active = self._lane_array(dtypes.bool_, "active")
        language = self.language
        with self.inside(language.loop(self.names[_lane(self).name], "0", str(self.lanes))):
            self._put(active, language.literal(dtypes.bool_, False))
            self.memo = {}
            with self.where(self.now.mask), self._guarded(s.guard) as runs:
                if runs:
                    (value,) = self.evaluate((s.value,), _opaques(s.offset))
                    self._put(active, language.literal(dtypes.bool_, True))
                    self._put(kept, value.text)
                    at = self.index(self.offset(place, s.offset).base)
                    self._put(places, language.from_index(at, self.index_dtype))
        with (
            self.inside(language.loop(self.names[_lane(self).name], "0", str(self.lanes))),
            self.where(self._get(active)),
        ):
            at = language.index(self._get(places), self.index_dtype)
            if isinstance(s, Store):
                self.do(language.store(place, at, self._get(kept)))
            else:
                self._add_to(s.op, place, at, self._get(kept))

    def _one(self, s: Store | Accumulate, values: Sequence[Value]) -> None:
        place = self.places[s.buffer]
        base = self.index.bare(self.offset(place, s.offset).base)
        if isinstance(s, Store):
            self.do(self.language.store(place, base, values[0].text))
        else:
            old = self.language.load(place, base)
            new = self._op(_fused(s)[0], place.buffer.dtype, 0, [*(v.text for v in values), old])
            self.do(self.language.store(place, base, new))

    def _lane_tree(self, s: Accumulate, place: Place) -> None:
        """All lanes into one element: the first half of them with the second half, an odd last one waits."""
        language, dtype = self.language, s.value.dtype
        lane = self.names[_lane(self).name]
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
            self.evaluate(_opaques(s.offset))
            self._add_to(
                s.op, place, self.index.bare(self.offset(place, s.offset).base), language.load(kept, "0")
            )

    # conditions

    def _if(self, s: If) -> None:
        outer, now = self.groups, self.now
        if self.looped and not self._same_in_lanes(s.guard):
            active = self._lane_array(dtypes.bool_, "active")
            with self.inside(self.language.loop(self.names[_lane(self).name], "0", str(self.lanes))):
                self._put(active, self.language.literal(dtypes.bool_, False))
                self.memo = {}
                with self.where(self.now.mask), self._guarded(s.guard) as runs:
                    if runs:
                        self._put(active, self.language.literal(dtypes.bool_, True))
            self.groups = [replace(self.groups[0], mask=self._get(active))]
            self.now = self.groups[0]
            self.block(s.body)
            self.groups, self.now = outer, now
            return
        inside: list[Group] = []
        shared: str | None = None
        varies = self.lane is not None and self._differs(names_of_guard(s.guard))
        for _ in self.each():
            if varies:
                if self._fold(s.guard):
                    inside.append(self.now)
                continue
            when = self.condition(s.guard)
            if when.never:
                return
            shared = when.shared
            inside = list(outer)
            break
        if not inside:
            return
        self.groups, self.now = inside, inside[0]
        with self.where(self._any_of(inside) if varies else shared):
            self.block(s.body)
        self.groups, self.now = outer, now

    def _same_in_lanes(self, guard: Guard) -> bool:
        return self.now.mask is None and not self._differs(names_of_guard(guard))

    def condition(self, guard: Guard) -> Condition:
        """The guard for the current group."""
        if not guard:
            return Condition()
        if guard == NEVER:
            return Condition(never=True)
        self.evaluate([v for c in guard for i in (c.value, c.lo, c.hi) if i is not None for v in _opaques(i)])
        shared: list[InRange] = []
        mask: str | None = None
        for c in guard:
            parts = [self._here(c)]
            if not self.now.lanes or all(self._uniform(i) for i in _parts(parts[0])):
                shared += parts
            else:
                mask = self._both(mask, self._lanes_in(parts[0]))
        for c in shared:
            if all(isinstance(i, int) for i in _parts(c)):
                value, lo, hi = (c.value, c.lo, c.hi)
                assert isinstance(value, int)
                if (isinstance(lo, int) and value < lo) or (isinstance(hi, int) and value >= hi):
                    return Condition(never=True)
        shared = [c for c in shared if not all(isinstance(i, int) for i in _parts(c))]
        return Condition(self.index.holds(tuple(shared)) if shared else None, mask)

    def _here(self, c: InRange) -> InRange:
        """The condition with what is constant here put in."""
        return InRange(self.at(c.value), *(None if b is None else self.at(b) for b in (c.lo, c.hi)))

    def _lanes_in(self, c: InRange) -> str:
        """One condition in each lane."""
        lo = min(bounds(i)[0] for i in _parts(c)) - 1
        hi = max(bounds(i)[1] for i in _parts(c)) + 1
        dtype = dtypes.int32 if lo > -(1 << 31) and hi < 1 << 31 else self.index_dtype
        n = self.now.lanes
        value = self._index_vector(c.value, dtype)
        mask: str | None = None
        if c.lo is not None:
            mask = self.language.compare("<=", dtype, n, self._index_vector(c.lo, dtype), value)
        if c.hi is not None:
            below_hi = self.language.compare("<", dtype, n, value, self._index_vector(c.hi, dtype))
            mask = self._both(mask, below_hi)
        assert mask is not None
        return mask if mask.isidentifier() else self.bind(dtypes.bool_, n, mask)

    def _both(self, a: str | None, b: str | None) -> str | None:
        if a is None or b is None or a == b:
            return b if a is None else a
        return self.bind(
            dtypes.bool_, self.now.lanes, self.language.binary("&", dtypes.bool_, self.now.lanes, a, b)
        )

    def _active(self, k: int) -> str | None:
        """Whether lane k of the current group is active; None: it is."""
        mask = self.now.mask
        return None if mask is None else self.language.truth(self.language.lane(mask, k))

    # indices

    def at(self, i: Int) -> Int:
        """`i` with what is constant here put in, a lane by itself included."""
        if isinstance(i, int):
            return i
        if self.lane is not None and self.language.widths and not self.now.lanes:
            return substitute(i, {**self.constants, self.lane: self.now.start})
        return substitute(i, self.constants)

    def _uniform(self, i: Int) -> bool:
        """Whether all lanes of the group have the same value; what it depends on has been computed."""
        if isinstance(i, int) or not self.now.lanes:
            return True
        return self.lane not in variables(i) and not any(self.memo[v].lanes for v in _opaques(i))

    def offset(self, place: Place, offset: Int) -> Offset:
        """Where the current group accesses `place`; what the offset depends on has been computed."""
        if place.lanes:
            assert self.lane is not None
            offset = offset * place.lanes + self.lane
        return self._steps(offset)

    def _steps(self, i: Int) -> Offset:
        i = self.at(i)
        n, lane = self.now.lanes, self.lane
        if not n or lane is None:
            return Offset(i, (), i)
        if self._uniform(i):
            return Offset(i, (0,) * n, i)
        if isinstance(i, int) or any(self.memo[v].lanes for v in _opaques(i)):
            return Offset(i, None, i)
        base = substitute(i, {lane: self.now.start})
        step = coefficient(i, lane)
        if step is not None:
            return Offset(base, tuple(step * k for k in range(n)), i)
        steps: list[int] = []
        for k in range(n):
            step = substitute(i, {lane: self.now.start + k}) - base
            if not isinstance(step, int):
                return Offset(base, None, i)
            steps.append(step)
        return Offset(base, tuple(steps), i)

    def _lane_index(self, at: Offset, k: int) -> Int:
        """Lane k's index; computed integers in it are looked up in that lane."""
        self._component_of = k
        if at.steps is not None:
            return at.base + at.steps[k]
        assert self.lane is not None
        return substitute(at.whole, {self.lane: self.now.start + k})

    _component_of: int = 0

    def _opaque(self, value: Expr) -> str:
        """A computed integer, as an index."""
        known = self.memo[value]
        text = self.language.lane(known.text, self._component_of) if known.lanes else known.text
        return self.language.index(text, value.dtype)

    def _index_vector(self, i: Int, dtype: DType) -> str:
        """An index in all lanes."""
        at, n, language = self._steps(i), self.now.lanes, self.language
        if at.steps is None:
            parts = [language.from_index(self.index(self._lane_index(at, k)), dtype) for k in range(n)]
            return language.vector(dtype, parts)
        base = language.broadcast(dtype, n, language.from_index(self.index(at.base), dtype))
        if not any(at.steps):
            return base
        steps = language.vector(dtype, [language.literal(dtype, k) for k in at.steps])
        return language.binary("+", dtype, n, base, steps)

    def _aligned(self, base: Int, lanes: int) -> bool:
        """Whether an offset is known to be a multiple of the vector's length."""
        return base % lanes == 0

    # values

    def evaluate(self, wanted: Sequence[Expr], at: Sequence[Expr] = ()) -> list[Value]:
        """The values of expressions for the current group; those of `at`, which indices depend on, get names."""
        order = list(walk((*at, *wanted)))
        uses: dict[Expr, int] = {}
        named: set[Expr] = set(at)
        for e in order:
            parts = e.parts
            for p in parts:
                uses[p] = uses.get(p, 0) + 1
            if isinstance(e, Load | FromIndex | Test):
                named.update(parts)
        for e in order:
            if e in self.memo:
                continue
            known = self.shared.get(e)
            if known is None:
                known = self._expression(e)
                simple = isinstance(e, Const | Temp)
                if not simple and (uses.get(e, 0) > 1 or e in named or len(known.text) > LONGEST):
                    known = self._bound(e.dtype, known)
                if self.now.mask is None and self.now.lanes and not self._differs(names_of(e)):
                    self.shared[e] = known
            self.memo[e] = known
        return [self.memo[e] for e in wanted]

    def _bound(self, dtype: DType, value: Value) -> Value:
        """The value under a name."""
        if value.text.replace(".", "_").isidentifier():
            return value
        return Value(self.bind(dtype, value.lanes, value.text), value.lanes)

    def _expression(self, e: Expr) -> Value:
        match e:
            case Const():
                return Value(self.language.literal(e.dtype, e.value))
            case Temp():
                found = self.temps[e.name]
                return found[None] if None in found else found[self.now.start]
            case Load():
                return self._load(e)
            case Call():
                values = [self.memo[a] for a in e.args]
                lanes = max(v.lanes for v in values)
                texts = [
                    self._wide(a.dtype, v) if lanes else v.text for a, v in zip(e.args, values, strict=True)
                ]
                if e.op in _ARITHMETIC and e.dtype.is_float:
                    texts = [
                        t if isinstance(a, Const | Load) else self.language.rounded(a.dtype, lanes, t)
                        for a, t in zip(e.args, texts, strict=True)
                    ]
                site = Site(self.language, self.bind, e.args[0].dtype, lanes)
                return Value(scalar.render(site, e.op, e.dtype, texts), lanes)
            case FromIndex():
                if self._uniform(self.at(e.index)):
                    return Value(self.language.from_index(self.index(self.at(e.index)), e.dtype))
                return Value(self._index_vector(e.index, e.dtype), self.now.lanes)
            case Test():
                return self._test(e.guard)
            case _:
                raise TypeError(f"not a scalar expression: {type(e).__name__}")

    def _op(self, op: Op, dtype: DType, lanes: int, args: Sequence[str]) -> str:
        return scalar.render(Site(self.language, self.bind, dtype, lanes), op, dtype, args)

    def _wide(self, dtype: DType, value: Value) -> str:
        """In all lanes of the group."""
        n = self.now.lanes
        return value.text if value.lanes or not n else self.language.broadcast(dtype, n, value.text)

    def _spread_const(self, dtype: DType, lanes: int, value: bool | int | float) -> str:
        text = self.language.literal(dtype, value)
        return self.language.broadcast(dtype, lanes, text) if lanes else text

    def _component(self, dtype: DType, value: Value, k: int) -> str:
        """Lane k of a value, as a scalar."""
        if not value.lanes:
            return value.text
        own = self.language.lane(value.text, k)
        return self.language.truth(own) if dtype is dtypes.bool_ else own

    def _test(self, guard: Guard) -> Value:
        when = self.condition(guard)
        if when.never:
            return Value(self.language.literal(dtypes.bool_, False))
        if when.mask is None:
            return Value(when.shared or self.language.literal(dtypes.bool_, True))
        if when.shared is None:
            return Value(when.mask, self.now.lanes)
        shared = self.language.broadcast(dtypes.bool_, self.now.lanes, when.shared)
        return Value(
            self.language.binary("&", dtypes.bool_, self.now.lanes, when.mask, shared), self.now.lanes
        )

    def _load(self, e: Load) -> Value:
        """The elements at the offset, zero where the guard fails; nothing is read there."""
        language, place, group, dtype = self.language, self.places[e.source], self.now, e.dtype
        zero = language.literal(dtype, False if dtype is dtypes.bool_ else 0)
        when = self.condition(e.guard)
        if when.never:
            return Value(zero)
        at = self.offset(place, e.index[0])
        if not group.lanes and group.mask is None and place.where is not Where.PRIVATE:
            return Value(self._read_once(e, place, at.base, when.shared, zero))
        if not group.lanes:
            own = group.mask if self.lane is not None and language.widths else None
            conditions = [c for c in (own, when.shared) if c is not None]
            if not conditions:
                return Value(language.load(place, self.index.bare(at.base)))
            condition = conditions[0] if len(conditions) == 1 else f"({' && '.join(conditions)})"
            return Value(self._load_if(place, condition, at.base, zero))
        n = group.lanes
        mask = self._both(group.mask, when.mask)
        if at.uniform:
            return self._load_one(place, at, when, mask, zero)
        zeros = language.broadcast(dtype, n, zero)
        whole = ""
        if at.contiguous:
            whole = language.load(place, self.index.bare(at.base), n)
            if mask is None and when.shared is None:
                return Value(whole, n)
            if place.where is Where.PRIVATE and when.shared is None and mask is not None:
                return Value(language.select(dtype, n, mask, whole, zeros), n)
        elif mask is None and when.shared is None:
            parts = [language.load(place, self.index.bare(self._lane_index(at, k))) for k in range(n)]
            return Value(language.vector(dtype, parts), n)
        if not whole:
            parts: list[str] = []
            for k in range(n):
                own = None if mask is None else language.truth(language.lane(mask, k))
                both = [c for c in (when.shared, own) if c is not None]
                condition = both[0] if len(both) == 1 else f"({' && '.join(both)})"
                parts.append(self._load_if(place, condition, self._lane_index(at, k), zero))
            return Value(language.vector(dtype, parts), n)
        got = self.variable(dtype, n, zeros)
        with self.where(when.shared):
            if mask is None:
                self.do(language.assign(got, whole))
            else:
                with self.inside(language.branch(language.all_lanes(mask))):
                    self.do(language.assign(got, whole))
                with self.inside("else {"):
                    base = self.index.bare(at.base)
                    self.do(language.assign(got, language.load_some(place, base, n, mask)))
        return Value(got, n)

    def _read_once(self, e: Load, place: Place, at: Int, condition: str | None, zero: str) -> str:
        """The name of an element, read now or before."""
        guard = tuple([self._here(c) for c in e.guard])
        computed = any(_opaques(i) for i in (at, *(i for c in guard for i in _parts(c))))
        again = not computed and bool(self.constants or len(self.groups) > 1)
        key = (e.source, at, guard)
        if again and key in self.read:
            return self.read[key]
        if condition is None:
            text = self.language.load(place, self.index.bare(at))
        else:
            text = self._load_if(place, condition, at, zero)
        if again:
            text = self.read[key] = self.bind(e.dtype, 0, text)
        return text

    def _load_if(self, place: Place, condition: str, at: Int, zero: str) -> str:
        """One element where the condition holds, else zero. Without a branch: element 0 is read instead."""
        language, dtype = self.language, place.buffer.dtype
        if not isinstance(at, int) or at:
            here = self.index(at)
            if not condition.isidentifier():
                condition = self.bind(dtypes.bool_, 0, condition)
            text = language.load(place, language.choose(condition, here, "0"))
        else:
            text = language.load(place, "0")
        return language.select(dtype, 0, condition, text, zero)

    def _load_one(self, place: Place, at: Offset, when: Condition, mask: str | None, zero: str) -> Value:
        """One element for all lanes."""
        language, dtype, n = self.language, place.buffer.dtype, self.now.lanes
        text = language.load(place, self.index.bare(at.base))
        conditions = [when.shared] if when.shared is not None else []
        if mask is not None and place.where is not Where.PRIVATE:
            conditions.append(language.any_lane(mask))
        if conditions:
            condition = conditions[0] if len(conditions) == 1 else f"({' && '.join(conditions)})"
            text = self.bind(dtype, 0, self._load_if(place, condition, at.base, zero))
        if when.mask is None:
            return Value(text)
        every_lane = language.broadcast(dtype, n, text)
        return Value(language.select(dtype, n, when.mask, every_lane, language.broadcast(dtype, n, zero)), n)


def identity(op: Op, dtype: DType) -> bool | int | float:
    """What `op` leaves every value as it is with."""
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


def copies(block: Block) -> int:
    """How many statements a block is, its unrolled loops written out."""
    total = 0
    for s in block:
        inside = copies(s.body) if isinstance(s, Loop | If) else 1
        times = s.extent if isinstance(s, Loop) and s.kind is LoopKind.UNROLL else 1
        total += inside * (times if isinstance(times, int) else 1)
    return total


def _fused(s: Store | Accumulate) -> tuple[Op, tuple[Expr, ...]]:
    """A sum of products is accumulated in one rounding, as on every device."""
    if not isinstance(s, Accumulate):
        return Op.ADD, (s.value,)
    e = s.value
    if s.op is Op.ADD and isinstance(e, Call) and e.op is Op.MUL and e.dtype.is_float:
        return Op.FMA, e.args
    return s.op, (e,)


def _buffer(name: str, dtype: DType, size: int) -> Buffer:
    return Buffer(name, dtype, size, Scope.REGISTER)


def _lane(body: Body) -> Var:
    assert body.lane is not None
    return body.lane


def _parts(c: InRange) -> list[Int]:
    return [x for x in (c.value, c.lo, c.hi) if x is not None]


def _opaques(i: Int) -> list[Expr]:
    return opaque_values(i)
