"""Conditions, indices and values of expressions -> text, for the current group of lanes."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace

from weft.backends.clike import scalar
from weft.backends.clike.index import IndexText
from weft.backends.clike.language import Language, Place, Where
from weft.backends.clike.scalar import Site
from weft.backends.clike.text import Condition, Group, Offset, Text, TextValue
from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.expr import Const, Expr, FromIndex, Load, ScalarCall, Temp, Test, names_of, opaque_values, walk
from weft.ir.index import NEVER, Guard, InRange, Int, Var, bounds, coefficient, substitute, variables
from weft.ir.ops import Op

LONGEST = 100
"""Expressions whose text is longer get a name."""

_ARITHMETIC = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.FMA})
_REAL = _ARITHMETIC | {Op.DIV}


class Values(Text):
    """Text that computes. Inside a vector loop over `lane`, `groups` are the parts that its lanes are cut into, `now`
    the one that is written; `temps` holds what bindings are called, by the first lane of a group."""

    def __init__(self, language: Language, taken: Iterable[str] = (), depth: int = 1) -> None:
        super().__init__(language, taken, depth)
        self.constants: dict[Var, Int] = {}
        self.temps: dict[str, dict[int | None, TextValue]] = {}
        self.lane: Var | None = None
        self.lanes = 0
        self.varying: set[str] = set()
        """Names, in a vector loop, of what may differ between its lanes."""
        self.groups: list[Group] = [Group()]
        self.now: Group = self.groups[0]
        self.memo: dict[Expr, TextValue] = {}
        self.shared: dict[Expr, TextValue] = {}
        self.index_dtype = dtypes.int64 if language.index_bits == 64 else dtypes.int32
        self.index = IndexText(self.names, self._opaque, self.helpers)
        self._component_of = 0

    @property
    def the_lane(self) -> Var:
        """The variable of the vector loop that this is inside of."""
        assert self.lane is not None
        return self.lane

    @property
    def looped(self) -> bool:
        """True inside a vector loop that is a loop over lanes."""
        return self.lane is not None and not self.language.widths

    def _differs(self, names: frozenset[str]) -> bool:
        """True where what depends on these names may differ between lanes."""
        return not names.isdisjoint(self.varying)

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
        self.evaluate((), [v for i in indices for v in opaques(i)])

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

    # conditions

    def condition(self, guard: Guard) -> Condition:
        """The guard for the current group."""
        if not guard:
            return Condition()
        if guard == NEVER:
            return Condition(never=True)
        self.evaluate([v for c in guard for i in (c.value, c.lo, c.hi) if i is not None for v in opaques(i)])
        shared: list[InRange] = []
        mask: str | None = None
        for c in guard:
            parts = [self._here(c)]
            if not self.now.lanes or all(self._uniform(i) for i in ends(parts[0])):
                shared += parts
            else:
                mask = self._both(mask, self._lanes_in(parts[0]))
        for c in shared:
            if all(isinstance(i, int) for i in ends(c)):
                value, lo, hi = (c.value, c.lo, c.hi)
                assert isinstance(value, int)
                if (isinstance(lo, int) and value < lo) or (isinstance(hi, int) and value >= hi):
                    return Condition(never=True)
        shared = [c for c in shared if not all(isinstance(i, int) for i in ends(c))]
        return Condition(self.index.holds(tuple(shared)) if shared else None, mask)

    def _here(self, c: InRange) -> InRange:
        """The condition with what is constant here put in."""
        return InRange(self.at(c.value), *(None if b is None else self.at(b) for b in (c.lo, c.hi)))

    def _lanes_in(self, c: InRange) -> str:
        """One condition in each lane."""
        lo = min(bounds(i)[0] for i in ends(c)) - 1
        hi = max(bounds(i)[1] for i in ends(c)) + 1
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
        """The condition that lane k of the current group is active; None: it is."""
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
        """True where all lanes of the group have the same value; what it depends on has been computed."""
        if isinstance(i, int) or not self.now.lanes:
            return True
        return self.lane not in variables(i) and not any(self.memo[v].lanes for v in opaques(i))

    def offset(self, place: Place, offset: Int) -> Offset:
        """The offset of the current group in `place`; what it depends on has been computed."""
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
        if isinstance(i, int) or any(self.memo[v].lanes for v in opaques(i)):
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
        """True where an offset is known to be a multiple of the vector's length."""
        return base % lanes == 0

    # values

    def evaluate(self, wanted: Sequence[Expr], at: Sequence[Expr] = ()) -> list[TextValue]:
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

    def _bound(self, dtype: DType, value: TextValue) -> TextValue:
        """The value under a name."""
        if value.text.replace(".", "_").isidentifier():
            return value
        return TextValue(self.bind(dtype, value.lanes, value.text), value.lanes)

    def _expression(self, e: Expr) -> TextValue:
        match e:
            case Const():
                return TextValue(self.language.literal(e.dtype, e.value))
            case Temp():
                found = self.temps[e.name]
                return found[None] if None in found else found[self.now.start]
            case Load():
                return self._load_once(e)
            case ScalarCall():
                values = [self.memo[a] for a in e.args]
                lanes = max(v.lanes for v in values)
                texts = [
                    self._wide(a.dtype, v) if lanes else v.text for a, v in zip(e.args, values, strict=True)
                ]
                if e.dtype.is_float:
                    texts = [self._operand(e, k, t, lanes) for k, t in enumerate(texts)]
                site = Site(self.language, self.bind, e.args[0].dtype, lanes)
                return TextValue(scalar.render(site, e.op, e.dtype, texts), lanes)
            case FromIndex():
                if self._uniform(self.at(e.index)):
                    return TextValue(self.language.from_index(self.index(self.at(e.index)), e.dtype))
                return TextValue(self._index_vector(e.index, e.dtype), self.now.lanes)
            case Test():
                return self._test(e.guard)
            case _:
                raise TypeError(f"not a scalar expression: {type(e).__name__}")

    def _operand(self, e: ScalarCall, position: int, text: str, lanes: int) -> str:
        """An operand of a float op, where compilers that take floats for real numbers could drop it: of a sum that was
        rounded before ((x + c) - c), taken away from itself (x - x), or zero (x * 0)."""
        a = e.args[position]
        if e.op is Op.SUB and position == 1:
            return self.language.subtrahend(a.dtype, lanes, text)
        match a:
            case Const():
                vanishes = e.op in _REAL and a.value == 0
            case Load():
                vanishes = False
            case _:
                vanishes = e.op in _ARITHMETIC
        return self.language.rounded(a.dtype, lanes, text) if vanishes else text

    def _op(self, op: Op, dtype: DType, lanes: int, args: Sequence[str]) -> str:
        return scalar.render(Site(self.language, self.bind, dtype, lanes), op, dtype, args)

    def _wide(self, dtype: DType, value: TextValue) -> str:
        """In all lanes of the group."""
        n = self.now.lanes
        return value.text if value.lanes or not n else self.language.broadcast(dtype, n, value.text)

    def _spread_const(self, dtype: DType, lanes: int, value: bool | int | float) -> str:
        text = self.language.literal(dtype, value)
        return self.language.broadcast(dtype, lanes, text) if lanes else text

    def _component(self, dtype: DType, value: TextValue, k: int) -> str:
        """Lane k of a value, as a scalar."""
        if not value.lanes:
            return value.text
        own = self.language.lane(value.text, k)
        return self.language.truth(own) if dtype is dtypes.bool_ else own

    def _test(self, guard: Guard) -> TextValue:
        when = self.condition(guard)
        if when.never:
            return TextValue(self.language.literal(dtypes.bool_, False))
        if when.mask is None:
            return TextValue(when.shared or self.language.literal(dtypes.bool_, True))
        if when.shared is None:
            return TextValue(when.mask, self.now.lanes)
        shared = self.language.broadcast(dtypes.bool_, self.now.lanes, when.shared)
        return TextValue(
            self.language.binary("&", dtypes.bool_, self.now.lanes, when.mask, shared), self.now.lanes
        )

    def _load_once(self, e: Load) -> TextValue:
        """As `_load`; what unrolled iterations read again under a guard, or piece by piece, is read once."""
        group, place = self.now, self.places[e.source]
        plain = not group.lanes or not self.constants or place.where is Where.PRIVATE
        if plain or any(opaques(i) for i in (*e.index, *(i for c in e.guard for i in ends(c)))):
            return self._load(e)
        if not e.guard and group.mask is None and self.offset(place, e.index[0]).contiguous:
            return self._load(e)
        key = (e.source, self.at(e.index[0]), tuple([self._here(c) for c in e.guard]), group)
        if key not in self.read:
            self.read[key] = self._bound(e.dtype, self._load(e))
        return self.read[key]

    def _load(self, e: Load) -> TextValue:
        """The elements at the offset, zero where the guard fails; nothing is read there."""
        language, place, group, dtype = self.language, self.places[e.source], self.now, e.dtype
        zero = language.literal(dtype, False if dtype is dtypes.bool_ else 0)
        when = self.condition(e.guard)
        if when.never:
            return TextValue(zero)
        at = self.offset(place, e.index[0])
        if not group.lanes and group.mask is None and place.where is not Where.PRIVATE:
            return TextValue(self._read_once(e, place, at.base, when.shared, zero))
        if not group.lanes:
            own = group.mask if self.lane is not None and language.widths else None
            conditions = [c for c in (own, when.shared) if c is not None]
            if not conditions:
                return TextValue(language.load(place, self.index.bare(at.base)))
            condition = conditions[0] if len(conditions) == 1 else f"({' && '.join(conditions)})"
            return TextValue(self._load_if(place, condition, at.base, zero))
        n = group.lanes
        mask = self._both(group.mask, when.mask)
        if at.uniform:
            return self._load_one(place, at, when, mask, zero)
        zeros = language.broadcast(dtype, n, zero)
        whole = ""
        if at.contiguous:
            whole = language.load(place, self.index.bare(at.base), n)
            if mask is None and when.shared is None:
                return TextValue(whole, n)
            if place.where is Where.PRIVATE and when.shared is None and mask is not None:
                return TextValue(language.select(dtype, n, mask, whole, zeros), n)
        elif mask is None and when.shared is None:
            parts = [language.load(place, self.index.bare(self._lane_index(at, k))) for k in range(n)]
            return TextValue(language.vector(dtype, parts), n)
        if not whole:
            parts: list[str] = []
            for k in range(n):
                own = None if mask is None else language.truth(language.lane(mask, k))
                both = [c for c in (when.shared, own) if c is not None]
                condition = both[0] if len(both) == 1 else f"({' && '.join(both)})"
                parts.append(self._load_if(place, condition, self._lane_index(at, k), zero))
            return TextValue(language.vector(dtype, parts), n)
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
        return TextValue(got, n)

    def _read_once(self, e: Load, place: Place, at: Int, condition: str | None, zero: str) -> str:
        """The name of an element, read now or before."""
        guard = tuple([self._here(c) for c in e.guard])
        computed = any(opaques(i) for i in (at, *(i for c in guard for i in ends(c))))
        again = not computed and bool(self.constants or len(self.groups) > 1)
        key = (e.source, at, guard, Group())
        if again and key in self.read:
            return self.read[key].text
        if condition is None:
            text = self.language.load(place, self.index.bare(at))
        else:
            text = self._load_if(place, condition, at, zero)
        if again:
            text = self.bind(e.dtype, 0, text)
            self.read[key] = TextValue(text)
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

    def _load_one(self, place: Place, at: Offset, when: Condition, mask: str | None, zero: str) -> TextValue:
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
            return TextValue(text)
        every_lane = language.broadcast(dtype, n, text)
        return TextValue(
            language.select(dtype, n, when.mask, every_lane, language.broadcast(dtype, n, zero)), n
        )


def ends(c: InRange) -> list[Int]:
    """The indices that a condition compares."""
    return [x for x in (c.value, c.lo, c.hi) if x is not None]


def opaques(i: Int) -> list[Expr]:
    """The computed integers that an index depends on."""
    return opaque_values(i)
