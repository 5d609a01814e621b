"""WGSL.

Integers of 8 and 16 bits are held in 32, wrapped after each operation; 16-bit floats are their bits. In storage they
are packed into words, as the host has them: reading takes a word apart, writing clears and sets bits of it atomically,
since the neighbours in the word may be another thread's. 64-bit integers are the device's, or pairs of words (see
`pairs`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.backends.clike import c_family
from weft.backends.clike.c import NoVectorsError
from weft.backends.clike.language import Place, Where
from weft.backends.wgpu import pairs
from weft.ir import dtypes
from weft.ir.dtypes import DType, Kind
from weft.ir.expr import Scalar
from weft.lazy_dataclass import dataclass

_TYPES = {
    dtypes.bool_: "bool", dtypes.int8: "i32", dtypes.uint8: "u32", dtypes.int16: "i32", dtypes.uint16: "u32",
    dtypes.int32: "i32", dtypes.uint32: "u32", dtypes.int64: "i64", dtypes.uint64: "u64", dtypes.float16: "u32",
    dtypes.bfloat16: "u32", dtypes.float32: "f32",
}  # fmt: skip
_SUFFIXES = {"i32": "i", "u32": "u", "i64": "li", "u64": "lu"}

DTYPES = frozenset(_TYPES) | {dtypes.float8_e4m3fn, dtypes.float8_e5m2}
"""The dtypes of every device; float64 never."""

RESERVED = c_family.words(
    """
    alias break case const const_assert continue continuing default diagnostic discard else enable false fn for if let
    loop override requires return struct switch true var while abs acos all any array atomic atan atan2 bool ceil clamp
    cos cosh cross degrees determinant distance dot exp exp2 f16 f32 f64 i32 i64 u32 u64 faceForward floor fma fract
    frexp inverseSqrt ldexp length log log2 mat2x2 max min mix modf normalize pow ptr quantizeToF16 radians reflect
    refract round sampler saturate select sign sin sinh smoothstep sqrt step tan tanh texture transpose trunc vec2 vec3
    vec4 active and as asm async await become binding_array cast catch class common compile concept constexpr crate
    delete do dynamic_cast enum export extends extern external fallthrough filter final finally friend from get goto
    groupshared handle highp impl implements import in inline instanceof interface layout lowp macro match mediump meta
    mod module move mut mutable namespace new nil noexcept noinline noperspective null nullptr of operator package
    packoffset partition pass patch pixelfragment precise precision premerge priv protected pub public readonly ref
    register regardless resource restrict self set shared sizeof smooth snorm static std subroutine super target
    template this thread_local throw trait try type typedef typeof typename union unless unorm unsafe unsized use using
    varying virtual volatile wgsl where with writeonly yield main bitcast override storage private workgroup function
    uniform read write read_write insertBits extractBits
    """
)

HELPERS = {
    "weft_floordiv": "fn weft_floordiv(a: i32, b: i32) -> i32 { return a / b - select(0, 1, a % b < 0); }",
    "weft_mod": "fn weft_mod(a: i32, b: i32) -> i32 { let r = a % b; return select(r, r + b, r < 0); }",
    "weft_min": "fn weft_min(a: i32, b: i32) -> i32 { return min(a, b); }",
    "weft_max": "fn weft_max(a: i32, b: i32) -> i32 { return max(a, b); }",
    # a zero that no compiler knows is in `weft_zero`; a constant that is no number would be an error
    "weft_float": "fn weft_float(bits: u32) -> f32 { return bitcast<f32>(bits | weft_zero); }",
    "weft_rounded": "fn weft_rounded(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) | weft_zero); }",
    "weft_apart": "fn weft_apart(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ weft_zero); }",
    **{
        name: text
        for t, high in (("i64", "i32"), ("u64", "u32"))
        for name, text in (
            (
                f"weft_less_{t}",
                (
                    f"fn weft_less_{t}(a: {t}, b: {t}) -> bool {{ let x = {high}(a >> 32u); let y = {high}(b >> 32u); "
                    "return x < y || (x == y && u32(a) < u32(b)); }"
                ),
            ),
            (
                f"weft_same_{t}",
                (
                    f"fn weft_same_{t}(a: {t}, b: {t}) -> bool "
                    "{ return u32(a >> 32u) == u32(b >> 32u) && u32(a) == u32(b); }"
                ),
            ),
        )
    },
    "weft_fmod": """fn weft_fmod(x: f32, y: f32) -> f32 {
  let a = bitcast<u32>(x) & 0x7fffffffu;
  let b = bitcast<u32>(y) & 0x7fffffffu;
  let sign = bitcast<u32>(x) & 0x80000000u;
  if (b == 0u || a >= 0x7f800000u || b > 0x7f800000u) { return weft_float(0x7fc00000u); }
  if (a < b) { return x; }
  var e = max(a >> 23u, 1u);
  let f = max(b >> 23u, 1u);
  var m = select((a & 0x7fffffu) | 0x800000u, a, a < 0x800000u);
  let n = select((b & 0x7fffffu) | 0x800000u, b, b < 0x800000u);
  m = m % n;
  while (e > f) {
    let k = min(8u, e - f);
    m = (m << k) % n;
    e -= k;
  }
  let up = select(0u, min(countLeadingZeros(m) - 8u, e - 1u), m != 0u);
  m = m << up;
  e -= up;
  return bitcast<f32>(sign | select((m & 0x7fffffu) | (e << 23u), m, m < 0x800000u));
}""",
    **pairs.HELPERS,
}
"""Functions of the text, by name."""


def needed(text: str) -> frozenset[str]:
    """The helpers that a text calls, and those that they call."""
    used = {name for name in HELPERS if f"{name}(" in text}
    new = used
    while new:
        new = {n for name in new for n in HELPERS if f"{n}(" in HELPERS[name]} - used
        used = used | new
    return frozenset(used)


def is_packed(dtype: DType) -> bool:
    """True where several elements share a word of storage."""
    return dtype.itemsize < 4


@dataclass(frozen=True, slots=True)
class Wgsl:
    """The language as the renderer asks for it. Of vectors nothing is ever asked. `pairs`: 64-bit integers are."""

    pairs: bool = False

    def paired(self, dtype: DType) -> bool:
        """True where values of this dtype are pairs of words."""
        return self.pairs and pairs.is_pair(dtype)

    @property
    def widths(self) -> tuple[int, ...]:
        return (1,)  # lanes are written out, so that tiles get into registers

    @property
    def reserved(self) -> frozenset[str]:
        return RESERVED

    @property
    def index_bits(self) -> int:
        return 32

    def type(self, dtype: DType, lanes: int = 0) -> str:
        return pairs.TYPE if self.paired(dtype) else _TYPES[dtype]

    def constant(self, dtype: DType, lanes: int, name: str, value: str) -> str:
        return f"let {name}: {self.type(dtype)} = {value};"

    def variable(self, dtype: DType, lanes: int, name: str, value: str) -> str:
        return f"var {name}: {self.type(dtype)} = {value};"

    def assign(self, name: str, value: str) -> str:
        return f"{name} = {value};"

    def array(self, place: Place, size: int) -> str:
        return f"var {place.name}: array<{self.type(place.buffer.dtype)}, {size}>;"

    def loop(self, name: str, first: str, last: str) -> str:
        return f"for (var {name}: i32 = {first}; {name} < {last}; {name}++) {{"

    def branch(self, condition: str) -> str:
        return f"if ({condition}) {{"

    def literal(self, dtype: DType, value: Scalar) -> str:
        if dtype is dtypes.bool_:
            return "true" if value else "false"
        if self.paired(dtype):
            return pairs.literal(int(value))
        t = _TYPES[dtype]
        if dtype.is_float:
            bits = c_family.float_bits(float(value), dtype)
            if dtype.bits == 16:
                return f"{bits}u"
            x = float(value)
            if not math.isfinite(x) or (x == 0 and bits) or 0 < abs(x) < 2.0**-126:
                return f"weft_float({bits:#010x}u)"
            text = c_family.float_literal(x, True)
            assert text is not None
            return text
        n, suffix = int(value), _SUFFIXES[t]
        if n == -(1 << 31) and t == "i32":
            return "i32(-2147483648)"
        if n == -(1 << 63):
            return "(-9223372036854775807li - 1li)"
        return f"{n}{suffix}" if n >= 0 else f"({n}{suffix})"

    def _wrapped(self, dtype: DType, x: str) -> str:
        """A 32-bit value as one of a narrow dtype."""
        if dtype.bits >= 32 or dtype.is_float:
            return x
        if dtype.kind is Kind.INT:
            return f"extractBits({x}, 0u, {dtype.bits}u)"
        return f"({x} & {(1 << dtype.bits) - 1:#x}u)"

    def binary(self, symbol: str, dtype: DType, lanes: int, a: str, b: str) -> str:
        if dtype is dtypes.bool_:
            return f"({a} {'!=' if symbol == '^' else symbol} {b})"
        if self.paired(dtype):
            return pairs.binary(symbol, dtype, a, b)
        return self._wrapped(dtype, f"({a} {symbol} {b})")

    def shift(self, symbol: str, dtype: DType, lanes: int, a: str, amount: str) -> str:
        if self.paired(dtype):
            return pairs.shift(symbol, dtype, a, amount)
        return self._wrapped(dtype, f"({a} {symbol} u32({amount}))")

    def inverted(self, dtype: DType, lanes: int, x: str) -> str:
        return f"(!{x})" if dtype is dtypes.bool_ else self._wrapped(dtype, f"(~{x})")

    def compare(self, symbol: str, dtype: DType, lanes: int, a: str, b: str) -> str:
        if self.paired(dtype):
            return pairs.compare(symbol, dtype, a, b)
        if dtype.bits == 64:  # llvmpipe compares some lanes of 64 bits wrongly, but none of their halves
            t = _TYPES[dtype]
            match symbol:
                case "<":
                    return f"weft_less_{t}({a}, {b})"
                case "<=":
                    return f"(!weft_less_{t}({b}, {a}))"
                case "==":
                    return f"weft_same_{t}({a}, {b})"
                case _:
                    return f"(!weft_same_{t}({a}, {b}))"
        if symbol == "!=" and dtype.is_float:  # which naga makes false for NaN
            return f"(!({a} == {b}))"
        return f"({a} {symbol} {b})"

    def select(self, dtype: DType, lanes: int, condition: str, a: str, b: str) -> str:
        return f"select({b}, {a}, {condition})"

    def convert(self, src: DType, dst: DType, lanes: int, x: str) -> str:
        if src is dtypes.bool_:
            return f"select({self.literal(dst, 0)}, {self.literal(dst, 1)}, {x})"
        a, b = self.type(src), self.type(dst)
        if self.paired(src) or self.paired(dst):
            if self.paired(src):
                x = x if a == b else pairs.narrowed(src, b, x)
            else:
                x = pairs.widened(a, x)
            return self._wrapped(dst, x)
        # naga extends by the sign of the type that it converts to
        between = {("u32", "i64"): "u64", ("i32", "u64"): "i64"}.get((a, b))
        text = x if a == b else f"{b}({x})" if between is None else f"bitcast<{b}>({between}({x}))"
        if dst.bits < 32 and dst.is_int and not src.is_float:
            return self._wrapped(dst, text)
        return text

    def rounded(self, dtype: DType, lanes: int, x: str) -> str:
        # drivers take (x + c) - c for x, and x - x and x * 0 for 0: nothing in WGSL forbids it
        return f"weft_rounded({x})" if dtype is dtypes.float32 else x

    def subtrahend(self, dtype: DType, lanes: int, x: str) -> str:
        return f"weft_apart({x})" if dtype is dtypes.float32 else x

    def reinterpret(self, src: DType, dst: DType, lanes: int, x: str) -> str:
        a, b = self.type(src), self.type(dst)
        text = x if a == b else f"bitcast<{b}>({x})"
        return self._wrapped(dst, text) if dst.bits < 32 else text

    def function(self, name: str, dtype: DType, lanes: int, args: Sequence[str]) -> str:
        return f"{'weft_fmod' if name == 'fmod' else name}({', '.join(args)})"

    def load(self, place: Place, offset: str, lanes: int = 0) -> str:
        dtype = place.buffer.dtype
        if place.where is not Where.GLOBAL or not is_packed(dtype):
            return f"{place.name}[{offset}]"
        word, shift = _packed(dtype, offset)
        text = f"atomicLoad(&{place.name}[{word}])" if place.written else f"{place.name}[{word}]"
        bits = 8 * dtype.itemsize
        if dtype.kind is Kind.INT:
            return f"extractBits(bitcast<i32>({text}), {shift}, {bits}u)"
        value = f"extractBits({text}, {shift}, {bits}u)"
        return f"({value} != 0u)" if dtype is dtypes.bool_ else value

    def store(self, place: Place, offset: str, value: str, lanes: int = 0, stream: bool = False) -> str:
        dtype = place.buffer.dtype
        if place.where is not Where.GLOBAL or not is_packed(dtype):
            return f"{place.name}[{offset}] = {value};"
        word, shift = _packed(dtype, offset)
        full = f"{(1 << 8 * dtype.itemsize) - 1:#x}u"
        bits = f"select(0u, 1u, {value})" if dtype is dtypes.bool_ else f"bitcast<u32>({value})"
        at = f"&{place.name}[{word}]"
        return (
            f"{{ let weft_bits = ({bits} & {full}) << ({shift}); atomicAnd({at}, ~({full} << ({shift}))); "
            f"atomicOr({at}, weft_bits); }}"
        )

    def choose(self, condition: str, a: str, b: str) -> str:
        return f"select({b}, {a}, {condition})"

    def prefetch(self, place: Place, offset: str) -> str:
        return ""

    def index(self, x: str, dtype: DType) -> str:
        if self.paired(dtype):
            return pairs.narrowed(dtype, "i32", x)
        return x if _TYPES[dtype] == "i32" else f"i32({x})"

    def from_index(self, x: str, dtype: DType) -> str:
        text = f"i32({x})"
        t = _TYPES[dtype]
        if self.paired(dtype):
            return pairs.widened("i32", text)
        if t == "u32":
            text = f"bitcast<u32>({text})"
        elif t != "i32":
            text = f"{t}({text})"
        return self._wrapped(dtype, text) if dtype.bits < 32 else text

    def helpers(self, used: frozenset[str]) -> str:
        return "".join(f"{text}\n" for name, text in HELPERS.items() if name in used)

    def broadcast(self, dtype: DType, lanes: int, x: str) -> str:
        return x

    def vector(self, dtype: DType, parts: Sequence[str]) -> str:
        raise NoVectorsError

    def lane(self, x: str, lane: int) -> str:
        raise NoVectorsError

    def halves(self, x: str) -> tuple[str, str]:
        raise NoVectorsError

    def truth(self, x: str) -> str:
        raise NoVectorsError

    def all_lanes(self, x: str) -> str:
        raise NoVectorsError

    def any_lane(self, x: str) -> str:
        raise NoVectorsError

    def load_some(self, place: Place, offset: str, lanes: int, mask: str) -> str:
        raise NoVectorsError

    def store_some(self, place: Place, offset: str, value: str, lanes: int, mask: str) -> str:
        raise NoVectorsError


def _packed(dtype: DType, offset: str) -> tuple[str, str]:
    """The word that holds an element, and by how many bits it is shifted there."""
    per_word = 4 // dtype.itemsize
    at = f"u32({offset})"
    return f"{at} / {per_word}u", f"({at} % {per_word}u) * {8 * dtype.itemsize}u"
