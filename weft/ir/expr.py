"""Scalar expressions: what one element of a value is. Shared by kernels (the algorithm) and lowered loops.

An expression is an immutable DAG: build it with the helpers below, which fold constants; share subexpressions by
using the same object. `Load` reads one element; in an algorithm its index has one entry per axis, in lowered loops
it is one flat offset.
"""
# Tests: tests/ir/test_interning.py, tests/ir/passes/test_meaning.py

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter, is_
from typing import Any, TypeAlias

from weft.ir import dtypes
from weft.ir.dtypes import DType, Kind
from weft.ir.float8 import decode, encode
from weft.ir.index import (
    NEVER,
    Guard,
    Index,
    Int,
    Opaque,
    atoms,
    in_range,
    map_guard,
    rewrite,
    variable_names,
)
from weft.ir.interning import Interned
from weft.ir.ops import COMPARE, Op
from weft.lazy_dataclass import dataclass

Scalar: TypeAlias = bool | int | float


class Expr(metaclass=Interned):
    """A scalar expression of one dtype. Equal expressions are one object: they are compared and hashed by identity."""

    __slots__ = ("__weakref__", "below", "dtype", "names", "parts")
    dtype: DType
    names: frozenset[str] | None
    """The result of `names_of`, once it was asked for."""
    parts: tuple[Expr, ...]
    """The scalar expressions directly inside this one, those in its indices included."""

    below: tuple[Expr, ...] | None
    """All distinct expressions inside this one, operands before users, once they were asked for (and are not many)."""

    def _init(self, dtype: DType, parts: tuple[Expr, ...] = ()) -> None:
        self.dtype, self.parts, self.names = dtype, parts, None
        self.below = None if parts else ()

    def fields(self) -> tuple[Any, ...]:
        """The arguments of the constructor."""
        raise AssertionError

    def operands(self) -> tuple[Expr, ...]:
        """The scalar expressions directly inside this one (those inside its indices not included)."""
        return ()

    def rebuild(self, operands: tuple[Expr, ...]) -> Expr:
        """The same expression over other operands."""
        return self

    def __repr__(self) -> str:
        from weft.ir.expr_text import show

        return show(self)

    def brief(self) -> str:
        """As `repr`, cut short where the tree is large (it may be exponentially larger than the DAG)."""
        from weft.ir.expr_text import brief

        return brief(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.fields())


class Const(Expr):
    """A constant; two are equal when dtype and bits are."""

    __slots__ = ("value",)

    def __init__(self, dtype: DType, value: Scalar) -> None:
        self.value = normalize(dtype, value)
        self._init(dtype)

    @staticmethod
    def key(dtype: DType, value: Scalar) -> tuple[Any, ...]:
        """The dtype and the bits of the value."""
        return (dtype, bits(normalize(dtype, value)))

    def fields(self) -> tuple[Any, ...]:
        return (self.dtype, self.value)


class FromIndex(Expr):
    """The value of an index expression, as an integer dtype."""

    __slots__ = ("index",)

    def __init__(self, dtype: DType, index: Int) -> None:
        self.index = index
        self._init(dtype, _values((index,)))

    def fields(self) -> tuple[Any, ...]:
        return (self.dtype, self.index)


class Test(Expr):
    """True where the guard holds."""

    __slots__ = ("guard",)

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._init(dtypes.bool_, _values(_guard_indices(guard)))

    def fields(self) -> tuple[Any, ...]:
        return (self.guard,)


class ScalarCall(Expr):
    """An elementwise op applied to operands. CAST and BITCAST go to this expression's dtype."""

    __slots__ = ("args", "op")

    def __init__(self, dtype: DType, op: Op, args: tuple[Expr, ...]) -> None:
        self.op, self.args = op, args
        self._init(dtype, args)

    def fields(self) -> tuple[Any, ...]:
        return (self.dtype, self.op, self.args)

    def operands(self) -> tuple[Expr, ...]:
        return self.args

    def rebuild(self, operands: tuple[Expr, ...]) -> Expr:
        return call(self.op, *operands, dtype=self.dtype)


class Load(Expr):
    """One element of `source` (a parameter, a value or a buffer, by name); where the guard fails, zero.

    Nothing is read where the guard fails, so the index may then be out of range.
    """

    __slots__ = ("guard", "index", "source")

    def __init__(self, dtype: DType, source: str, index: tuple[Int, ...], guard: Guard = ()) -> None:
        self.source, self.index, self.guard = source, index, guard
        self._init(dtype, _values((*index, *_guard_indices(guard)) if guard else index))

    @staticmethod
    def key(dtype: DType, source: str, index: tuple[Int, ...], guard: Guard = ()) -> tuple[Any, ...]:
        """All of it, whether a guard was given or not."""
        return (dtype, source, index, guard)

    def fields(self) -> tuple[Any, ...]:
        return (self.dtype, self.source, self.index, self.guard)


class Temp(Expr):
    """A name bound by a `Let` statement of the lowered loops."""

    __slots__ = ("name",)

    def __init__(self, dtype: DType, name: str) -> None:
        self.name = name
        self._init(dtype)

    def fields(self) -> tuple[Any, ...]:
        return (self.dtype, self.name)


def bits(value: Scalar) -> int | bytes:
    """The bits of a constant, by which constants are equal (0.0 is not -0.0, a NaN equals itself)."""
    return _double(value) if isinstance(value, float) else int(value)


_double = struct.Struct("<d").pack
_single = struct.Struct("<f")


def normalize(dtype: DType, value: Scalar) -> Scalar:
    """`value` as the Python scalar that `dtype` holds: wrapped for integers, rounded for floats."""
    if dtype.is_float:
        return _round(dtype, float(value))
    match dtype.kind:
        case Kind.BOOL:
            return bool(value)
        case _:
            n = _truncate(dtype, value) if isinstance(value, float) else int(value)
            n &= (1 << dtype.bits) - 1
            return n - (1 << dtype.bits) if dtype.kind is Kind.INT and n >> (dtype.bits - 1) else n


def _truncate(dtype: DType, value: float) -> int:
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return int(dtype.max if value > 0 else dtype.min)
    return min(max(int(value), int(dtype.min)), int(dtype.max))


def _round(dtype: DType, value: float) -> float:
    if dtype is dtypes.float64 or value != value:
        return value
    if dtype is dtypes.float32:
        try:
            return _single.unpack(_single.pack(value))[0]
        except OverflowError:
            return math.copysign(math.inf, value)
    if dtype is dtypes.float8_e4m3fn:
        return decode(dtype, encode(dtype, value))
    if math.isinf(value):
        return value
    if dtype is dtypes.bfloat16:
        return _round_bfloat16(value)
    if dtype is dtypes.float8_e5m2:
        return decode(dtype, encode(dtype, value))
    try:
        return float(struct.unpack("<e", struct.pack("<e", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _round_bfloat16(value: float) -> float:
    """Through round-to-odd f32, so that rounding twice cannot go wrong."""
    try:
        near = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    word = struct.unpack("<I", struct.pack("<f", near))[0]
    if math.isinf(near):
        return float(near)
    if near != value:  # step to the neighbour toward zero, then mark the lost bits
        word = (word - (abs(near) > abs(value))) | 1
    word = (word + 0x7FFF + ((word >> 16) & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", word))[0])


def const(dtype: DType, value: Scalar) -> Const:
    """A constant of `dtype`."""
    return Const(dtype, value)


def from_index(index: Int, dtype: DType = dtypes.int64) -> Expr:
    """The value of an index expression as a scalar."""
    if isinstance(index, int):
        return Const(dtype, index)
    if isinstance(index, Opaque) and index.value.dtype is dtype:
        return index.value
    return FromIndex(dtype, index)


def as_index(value: Expr, lo: int, hi: int) -> Int:
    """A computed integer, known to lie in lo..hi, as an index expression."""
    match value:
        case Const():
            return int(value.value)
        case FromIndex():
            return value.index
        case _:
            return Opaque(value, lo, hi) if lo < hi else lo


def test(guard: Guard) -> Expr:
    """The guard as a bool scalar."""
    if guard == () or guard == NEVER:
        return Const(dtypes.bool_, guard == ())
    return Test(guard)


def call(op: Op, *args: Expr, dtype: DType | None = None) -> Expr:
    """`op` applied to `args`, folded where all are constants or an identity holds exactly (also for NaN and -0.0)."""
    out = dtype if dtype is not None else result_dtype(op, args)
    if op is Op.CAST and args[0].dtype is out:
        return args[0]
    if op is Op.WHERE:
        c, a, b = args
        if isinstance(c, Const):
            return a if c.value else b
        if a == b:
            return a
    if all(isinstance(a, Const) for a in args):
        from weft.ir.fold import fold

        value = fold(op, out, args)
        if value is not None:
            return Const(out, value)
    if op in COMPARE:
        known = _compare_indices(op, *args)
        if known is not None:
            return known
    simpler = _identity(op, args)
    return simpler if simpler is not None else ScalarCall(out, op, args)


def _compare_indices(op: Op, a: Expr, b: Expr) -> Expr | None:
    """A comparison of index expressions as a guard, whose ranges are known."""
    x, y = _index_of(a), _index_of(b)
    if x is None or y is None:
        return None
    match op:
        case Op.LT:
            return test(in_range(y - x, 1, None))
        case Op.LE:
            return test(in_range(y - x, 0, None))
        case Op.EQ:
            return test(in_range(x - y, 0, 1))
        case _:
            return call(Op.NOT, test(in_range(x - y, 0, 1)))


def _index_of(e: Expr) -> Int | None:
    if isinstance(e, FromIndex):
        return e.index
    return int(e.value) if isinstance(e, Const) and e.dtype.is_int else None


def _identity(op: Op, args: tuple[Expr, ...]) -> Expr | None:
    if len(args) != 2:
        return None
    a, b = args
    match op:
        case Op.MUL | Op.DIV if _is(b, 1):
            return a
        case Op.MUL if _is(a, 1):
            return b
        case Op.ADD if _is_zero_of_add(b):
            return a
        case Op.ADD if _is_zero_of_add(a):
            return b
        case Op.SUB if isinstance(b, Const) and bits(b.value) in (0, bits(0.0)):
            return a
        case Op.AND if isinstance(a, Const) and a.dtype is dtypes.bool_:
            return b if a.value else a
        case Op.AND if isinstance(b, Const) and b.dtype is dtypes.bool_:
            return a if b.value else b
        case Op.OR if isinstance(a, Const) and a.dtype is dtypes.bool_:
            return a if a.value else b
        case Op.OR if isinstance(b, Const) and b.dtype is dtypes.bool_:
            return b if b.value else a
        case _:
            return None


def _is(e: Expr, value: int) -> bool:
    return isinstance(e, Const) and e.dtype is not dtypes.bool_ and e.value == value


def _is_zero_of_add(e: Expr) -> bool:
    """x + -0.0 is x for every float; x + 0 for every integer (0.0 would turn -0.0 into 0.0)."""
    return isinstance(e, Const) and bits(e.value) == (bits(-0.0) if e.dtype.is_float else 0)


def result_dtype(op: Op, args: tuple[Expr, ...]) -> DType:
    """The dtype of `op` on `args` where it follows from them."""
    if op in COMPARE:
        return dtypes.bool_
    if op is Op.WHERE:
        return args[1].dtype
    if op in (Op.CAST, Op.BITCAST):
        raise ValueError(f"{op.symbol} needs its dtype")
    return args[0].dtype


def where(c: Expr, a: Expr, b: Expr) -> Expr:
    """a where c else b."""
    return call(Op.WHERE, c, a, b)


def cast(e: Expr, dtype: DType) -> Expr:
    """`e` converted to `dtype`."""
    return call(Op.CAST, e, dtype=dtype)


def indices(e: Expr) -> tuple[Int, ...]:
    """The index expressions that `e` itself holds."""
    match e:
        case FromIndex():
            return (e.index,)
        case Load():
            return (*e.index, *_guard_indices(e.guard))
        case Test():
            return _guard_indices(e.guard)
        case _:
            return ()


def _guard_indices(g: Guard) -> tuple[Int, ...]:
    return tuple(x for c in g for x in (c.value, c.lo, c.hi) if x is not None)


_REMEMBERED = 512
"""The most expressions inside another that are remembered in it: all of a chain would be quadratic."""


def walk(roots: Iterable[Expr], into_indices: bool = True) -> Iterator[Expr]:
    """Each distinct expression under `roots` once, operands before users; Opaque index values included if asked."""
    if not into_indices:
        return iter(_ordered(roots, lambda e: e.operands()))
    out: dict[Expr, None] = {}
    for e in roots:
        if e not in out:
            below = e.below
            if below is None:
                *rest, _ = _ordered((e,), _parts)
                below = tuple(rest)
                if len(below) <= _REMEMBERED:
                    e.below = below
            out.update(dict.fromkeys(below))
            out[e] = None
    return iter(out)


_parts: Callable[[Expr], tuple[Expr, ...]] = attrgetter("parts")


def _ordered(roots: Iterable[Expr], inside: Callable[[Expr], tuple[Expr, ...]]) -> dict[Expr, None]:
    """Each distinct expression once, after those inside it."""
    done: dict[Expr, None] = {}
    stack = list(roots)
    stack.reverse()
    while stack:
        e = stack[-1]
        if e in done:
            stack.pop()
            continue
        missing = [o for o in inside(e) if o not in done]
        if missing:
            missing.reverse()
            stack += missing
            continue
        stack.pop()
        done[e] = None
    return done


def opaque_values(i: Int) -> list[Expr]:
    """The scalar values that an index expression depends on."""
    if isinstance(i, int) or not i.computed:
        return []
    return [a.value for a in atoms(i) if isinstance(a, Opaque)]


def _values(held: tuple[Int, ...]) -> tuple[Expr, ...]:
    """The scalar values that index expressions depend on."""
    for i in held:
        if not isinstance(i, int) and i.computed:
            return tuple([v for i in held for v in opaque_values(i)])
    return ()


_NO_NAMES: frozenset[str] = frozenset()


def names_of(e: Expr) -> frozenset[str]:
    """Every variable, temporary and buffer that `e` depends on: they share one namespace. Remembered in `e`."""
    if e.names is not None:
        return e.names
    stack = [e]
    while stack:
        x = stack[-1]
        if x.names is not None:
            stack.pop()
            continue
        parts = x.parts
        missing = [b for b in parts if b.names is None]
        if missing:
            stack += missing
            continue
        stack.pop()
        own = _NO_NAMES
        for b in parts:
            names = b.names or _NO_NAMES
            if not names <= own:
                own = own | names if own else names
        match x:
            case Temp():
                own = frozenset((x.name,))
            case Load():
                own = own.union((x.source,), *(variable_names(i) for i in indices(x)))
            case FromIndex() | Test():
                own = own.union(*(variable_names(i) for i in indices(x)))
            case _:
                pass
        x.names = own
    return e.names or _NO_NAMES


def transform(
    e: Expr,
    leaf: Callable[[Expr], Expr | None],
    index: Callable[[Index], Int | None] | None = None,
    memo: dict[Expr, Expr] | None = None,
) -> Expr:
    """`e` rebuilt bottom-up: `leaf` may replace any expression (seen after its operands and indices were rebuilt),
    `index` any index subexpression. One memo keeps sharing over several calls; what is in it is not looked into.
    """
    memo = {} if memo is None else memo
    known = memo.get(e)
    if known is not None:
        return known

    def on_index(i: Index) -> Int | None:
        if index is not None:
            new = index(i)
            if new is not None:
                return new
        if isinstance(i, Opaque):
            value = memo[i.value]
            return i if value is i.value else as_index(value, i.lo, i.hi)
        return None

    def on_int(i: Int) -> Int:
        if isinstance(i, int) or (index is None and not i.computed):
            return i
        return rewrite(i, on_index)

    stack = [e]
    while stack:
        x = stack[-1]
        if x in memo:
            stack.pop()
            continue
        parts = x.parts
        if parts:
            missing = [p for p in parts if p not in memo]
            if missing:
                missing.reverse()
                stack += missing
                continue
        stack.pop()
        new = x
        match x:
            case ScalarCall():
                for a in parts:
                    if memo[a] is not a:
                        new = x.rebuild(tuple([memo[b] for b in parts]))
                        break
            case Load():
                new = _over(x, on_int)
            case FromIndex():
                i = on_int(x.index)
                new = x if i is x.index else from_index(i, x.dtype)
            case Test():
                g = map_guard(x.guard, on_int)
                new = x if g is x.guard else test(g)
            case _:
                pass
        # what a call is simplified to is one of its parts, which `leaf` has seen
        seen = new is not x and isinstance(x, ScalarCall) and not isinstance(new, ScalarCall)
        replaced = None if seen else leaf(new)
        memo[x] = new if replaced is None else replaced
    return memo[e]


def _over(x: Load, on_int: Callable[[Int], Int]) -> Expr:
    """The load with its indices and its guard mapped."""
    g = map_guard(x.guard, on_int) if x.guard else x.guard
    if g == NEVER:
        return Const(x.dtype, 0)
    at = tuple([on_int(i) for i in x.index])
    same = g is x.guard and all(map(is_, at, x.index))
    return x if same else Load(x.dtype, x.source, at, g)


@dataclass(frozen=True, slots=True)
class Reduction:
    """op over `axes` (index variables) of an expression, accumulated in the expression's dtype."""

    op: Op
    axes: tuple[Index, ...]
