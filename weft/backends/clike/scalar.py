"""One table: elementwise op -> the text that computes it. The meaning of each is stated in `weft.ir.ops`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from weft.backends.clike.language import Language
from weft.ir import dtypes
from weft.ir.dtypes import DType, Kind
from weft.ir.expr import Scalar
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

_NAME = re.compile(r"[\w.]+")


@dataclass(frozen=True, slots=True)
class Site:
    """The site of an op: the language, names for values that are needed several times, the dtype and lanes."""

    language: Language
    bind: Callable[[DType, int, str], str]
    dtype: DType
    lanes: int

    def of(self, dtype: DType) -> Site:
        """The same place for operands of another dtype."""
        return Site(self.language, self.bind, dtype, self.lanes)

    def name(self, x: str) -> str:
        """A name for `x`, unless it is one, or a number."""
        return x if _NAME.fullmatch(x) else self.bind(self.dtype, self.lanes, x)

    def const(self, value: Scalar) -> str:
        """A constant of this dtype in all lanes."""
        text = self.language.literal(self.dtype, value)
        return self.language.broadcast(self.dtype, self.lanes, text) if self.lanes else text

    def __call__(self, symbol: str, a: str, b: str) -> str:
        return self.language.binary(symbol, self.dtype, self.lanes, a, b)

    def compare(self, symbol: str, a: str, b: str) -> str:
        """A bool."""
        return self.language.compare(symbol, self.dtype, self.lanes, a, b)

    def select(self, condition: str, a: str, b: str) -> str:
        """a where the condition holds, else b."""
        return self.language.select(self.dtype, self.lanes, condition, a, b)

    def shift(self, symbol: str, a: str, amount: int) -> str:
        """By a constant."""
        return self.language.shift(symbol, self.dtype, self.lanes, a, self.const(amount))

    def either(self, a: str, b: str) -> str:
        """The disjunction of two bools."""
        return self.language.binary("|", dtypes.bool_, self.lanes, a, b)


RenderRule: TypeAlias = Callable[[Site, Sequence[str]], str]


def _symbol(symbol: str, on_bool: str | None = None) -> RenderRule:
    def rule(s: Site, args: Sequence[str]) -> str:
        return s(on_bool if on_bool is not None and s.dtype is dtypes.bool_ else symbol, *args)

    return rule


def _function(name: str) -> RenderRule:
    """A function of floats; integers are already what it gives."""
    return lambda s, args: s.language.function(name, s.dtype, s.lanes, args) if s.dtype.is_float else args[0]


def _neg(s: Site, args: Sequence[str]) -> str:
    # 0 - x would turn 0.0 into 0.0
    return f"(-{args[0]})" if s.dtype.is_float else s("-", s.const(0), args[0])


def _abs(s: Site, args: Sequence[str]) -> str:
    match s.dtype.kind:
        case Kind.FLOAT:
            return s.language.function("abs", s.dtype, s.lanes, args)
        case Kind.INT:
            x = s.name(args[0])
            return s.select(s.compare("<", x, s.const(0)), s("-", s.const(0), x), x)
        case _:
            return args[0]


def _extremum(wins: str, on_bool: str) -> RenderRule:
    """MAX or MIN. On floats the zeros are equal and a NaN wins."""

    def rule(s: Site, args: Sequence[str]) -> str:
        if s.dtype is dtypes.bool_:
            return s(on_bool, *args)
        a, b = (s.name(x) for x in args)
        first, second = (b, a) if wins == ">" else (a, b)
        better = s.compare("<", first, second)
        if s.dtype.is_float:
            better = s.either(better, s.compare("!=", a, a))
        return s.select(better, a, b)

    return rule


def _compare(symbol: str) -> RenderRule:
    def rule(s: Site, args: Sequence[str]) -> str:
        if s.dtype is not dtypes.bool_:
            return s.compare(symbol, *args)
        a, b = args
        language, n = s.language, s.lanes
        match symbol:
            case "!=":
                return language.binary("^", s.dtype, n, a, b)
            case "==":
                return language.inverted(s.dtype, n, language.binary("^", s.dtype, n, a, b))
            case _:
                return language.binary(
                    "&" if symbol == "<" else "|", s.dtype, n, language.inverted(s.dtype, n, a), b
                )

    return rule


def _divisor(s: Site, b: str) -> tuple[str, str, str]:
    """A divisor that cannot trap, and where the real one is 0, and -1."""
    zero = s.bind(dtypes.bool_, s.lanes, s.compare("==", b, s.const(0)))
    bad = minus = zero
    if s.dtype.kind is Kind.INT:
        minus = s.bind(dtypes.bool_, s.lanes, s.compare("==", b, s.const(-1)))
        bad = s.either(zero, minus)
    return s.name(s.select(bad, s.const(1), b)), zero, minus


def _division(s: Site, a: str, b: str) -> tuple[str, str, str]:
    """Quotient and remainder toward zero, and, signed, where the remainder has not the divisor's sign."""
    q = s.name(s("/", a, b))
    rest = s.name(s("-", a, s("*", q, b)))
    if s.dtype.kind is not Kind.INT:
        return q, rest, ""
    opposite = s.compare("<", s("^", rest, b), s.const(0))
    uneven = s.compare("!=", rest, s.const(0))
    return q, rest, s.language.binary("&", dtypes.bool_, s.lanes, uneven, opposite)


def _floordiv(s: Site, args: Sequence[str]) -> str:
    a, b = (s.name(x) for x in args)
    safe, zero, minus = _divisor(s, b)
    q, _, off = _division(s, a, safe)
    if off:
        q = s.select(off, s("-", q, s.const(1)), q)
        q = s.select(minus, s("-", s.const(0), a), q)
    return s.select(zero, s.const(0), q)


def _mod(s: Site, args: Sequence[str]) -> str:
    if s.dtype.is_float:
        return s.language.function("fmod", s.dtype, s.lanes, [s.name(x) for x in args])
    a, b = (s.name(x) for x in args)
    # for a divisor of 0 or -1 the remainder by 1 is what is wanted: 0
    safe, _, _ = _divisor(s, b)
    _, rest, off = _division(s, a, safe)
    return s.select(off, s("+", rest, safe), rest) if off else rest


def _shift(symbol: str) -> RenderRule:
    def rule(s: Site, args: Sequence[str]) -> str:
        a, b = args[0], s.name(args[1])
        arithmetic = symbol == ">>" and s.dtype.kind is Kind.INT
        fits = s.compare("<", b, s.const(s.dtype.bits))
        if s.dtype.kind is Kind.INT:
            fits = s.language.binary("&", dtypes.bool_, s.lanes, fits, s.compare("<=", s.const(0), b))
        fits = s.bind(dtypes.bool_, s.lanes, fits)
        amount = s.select(fits, b, s.const(s.dtype.bits - 1 if arithmetic else 0))
        moved = s.language.shift(symbol, s.dtype, s.lanes, a, amount)
        return moved if arithmetic else s.select(fits, moved, s.const(0))

    return rule


RULES: dict[Op, RenderRule] = {
    Op.NEG: _neg,
    Op.ABS: _abs,
    Op.RECIP: lambda s, args: s("/", s.const(1.0), args[0]),
    Op.SQRT: _function("sqrt"),
    Op.FLOOR: _function("floor"),
    Op.CEIL: _function("ceil"),
    Op.TRUNC: _function("trunc"),
    Op.ROUND: _function("round"),
    Op.NOT: lambda s, args: s.language.inverted(s.dtype, s.lanes, args[0]),
    Op.ADD: _symbol("+", "|"),
    Op.SUB: _symbol("-", "^"),
    Op.MUL: _symbol("*", "&"),
    Op.DIV: _symbol("/"),
    Op.FLOORDIV: _floordiv,
    Op.MOD: _mod,
    Op.MAX: _extremum(">", "|"),
    Op.MIN: _extremum("<", "&"),
    Op.LT: _compare("<"),
    Op.LE: _compare("<="),
    Op.EQ: _compare("=="),
    Op.NE: _compare("!="),
    Op.AND: _symbol("&"),
    Op.OR: _symbol("|"),
    Op.XOR: _symbol("^"),
    Op.SHL: _shift("<<"),
    Op.SHR: _shift(">>"),
    Op.FMA: lambda s, args: s.language.function("fma", s.dtype, s.lanes, args),
}
"""Rules over operands of one dtype. CAST, BITCAST and WHERE, which are not, stand in `render`."""

NATIVE: frozenset[Op] = frozenset(RULES) | {Op.CAST, Op.BITCAST, Op.WHERE}
"""The ops that need no expansion before rendering."""


def render(s: Site, op: Op, dst: DType, args: Sequence[str]) -> str:
    """The text of `op` on operands of the site's dtype; the result is a `dst`. ValueError for an op without a rule."""
    match op:
        case Op.CAST:
            return cast(s, dst, args[0])
        case Op.BITCAST:
            if dst is s.dtype:
                return args[0]
            if dtypes.bool_ in (s.dtype, dst):
                return cast(s.of(dtypes.uint8) if s.dtype.bits == 8 else s, dst, args[0])
            return s.language.reinterpret(s.dtype, dst, s.lanes, args[0])
        case Op.WHERE:
            return s.of(dst).select(*args)
        case _:
            rule = RULES.get(op)
            if rule is None:
                raise ValueError(f"{op.symbol} must be expanded before it is rendered")
            return rule(s, args)


def cast(s: Site, dst: DType, x: str) -> str:
    """`x` as `dst`: float to integer truncates and saturates (NaN gives 0), anything to bool is `!= 0`."""
    src = s.dtype
    if src is dst:
        return x
    if src.is_float and src.bits == 16:
        return cast(s.of(dtypes.float32), dst, _widen(s, x))
    if dst.is_float and dst.bits == 16:  # by way of f32, as torch and NumPy's bfloat16 do
        single = s.of(dtypes.float32)
        return _narrow(single, dst, single.name(cast(s, dtypes.float32, x)))
    if dst is dtypes.bool_:
        return s.compare("!=", x, s.const(0))
    if src.is_float and dst.is_int:
        return _saturate(s, dst, s.name(x))
    return s.language.convert(src, dst, s.lanes, x)


def _saturate(s: Site, dst: DType, x: str) -> str:
    """Float to integer. What is out of range is converted as 0 and then replaced."""
    t = s.of(dst)
    top = 2.0 ** (dst.bits - (dst.kind is Kind.INT))
    low = s.compare("<", x, s.const(-top if dst.kind is Kind.INT else 0.0))
    high = s.bind(dtypes.bool_, s.lanes, s.compare("<=", s.const(top), x))
    low = s.bind(dtypes.bool_, s.lanes, low)
    odd = s.either(s.either(low, high), s.compare("!=", x, x))
    inside = s.language.convert(s.dtype, dst, s.lanes, s.select(odd, s.const(0.0), x))
    return t.select(low, t.const(int(dst.min)), t.select(high, t.const(int(dst.max)), inside))


def _widen(s: Site, x: str) -> str:
    """A 16-bit float's bits -> its value as f32, in integers and one exact product."""
    w, single = s.of(dtypes.uint32), s.of(dtypes.float32)
    bits = w.name(s.language.convert(dtypes.uint16, dtypes.uint32, s.lanes, x))

    def as_float(word: str) -> str:
        return s.language.reinterpret(dtypes.uint32, dtypes.float32, s.lanes, word)

    if s.dtype is dtypes.bfloat16:
        return as_float(w.shift("<<", bits, 16))
    sign = w.name(w.shift("<<", w("&", bits, w.const(0x8000)), 16))
    magnitude = w.name(w("&", bits, w.const(0x7FFF)))
    small = single(
        "*", s.language.convert(dtypes.uint32, dtypes.float32, s.lanes, magnitude), single.const(2.0**-24)
    )
    small = s.language.reinterpret(dtypes.float32, dtypes.uint32, s.lanes, small)
    shifted = w.shift("<<", magnitude, 13)
    normal = w("+", shifted, w.const(112 << 23))
    special = w("|", shifted, w.const(255 << 23))
    is_small = w.compare("<", magnitude, w.const(0x400))
    is_special = w.compare("<=", w.const(0x7C00), magnitude)
    return as_float(w("|", sign, w.select(is_small, small, w.select(is_special, special, normal))))


def _narrow(s: Site, dst: DType, x: str) -> str:
    """An f32 value -> the bits of the nearest 16-bit float, ties to even; a NaN stays one. Half follows F. Giesen,
    "half_float.cpp", float_to_half_fast3_rtne."""
    w = s.of(dtypes.uint32)
    bits = w.name(s.language.reinterpret(dtypes.float32, dtypes.uint32, s.lanes, x))
    if dst is dtypes.bfloat16:
        high = w.name(w.shift(">>", bits, 16))
        odd = w("&", high, w.const(1))
        rounded = w.shift(">>", w("+", w("+", bits, odd), w.const(0x7FFF)), 16)
        out = w.select(s.compare("!=", x, x), w("|", high, w.const(0x40)), rounded)
        return s.language.convert(dtypes.uint32, dtypes.uint16, s.lanes, out)
    u = w.name(w("&", bits, w.const(0x7FFFFFFF)))
    too_large = w.select(w.compare("<", w.const(255 << 23), u), w.const(0x7E00), w.const(0x7C00))
    # adding a half aligns a subnormal's bits, rounded, at the end of the word
    magic = s("+", s.language.reinterpret(dtypes.uint32, dtypes.float32, s.lanes, u), s.const(0.5))
    subnormal = w(
        "-", s.language.reinterpret(dtypes.float32, dtypes.uint32, s.lanes, magic), w.const(126 << 23)
    )
    odd = w("&", w.shift(">>", u, 13), w.const(1))
    biased = w("+", u, w.const((0xFFF - (112 << 23)) & 0xFFFFFFFF))
    normal = w.shift(">>", w("+", biased, odd), 13)
    finite = w.select(w.compare("<", u, w.const(113 << 23)), subnormal, normal)
    magnitude = w.select(w.compare("<=", w.const((127 + 16) << 23), u), too_large, finite)
    signed = w("|", magnitude, w("&", w.shift(">>", bits, 16), w.const(0x8000)))
    return s.language.convert(dtypes.uint32, dtypes.uint16, s.lanes, signed)
