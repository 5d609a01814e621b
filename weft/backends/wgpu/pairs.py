"""64-bit integers as pairs of words, the low one first, for devices whose shaders have none. All of it is exact.

A value is a `vec2<u32>`, as it lies in memory. `HELPERS` are the functions of the text by name; they end in `2` (both
kinds), `2u` (unsigned) or `2i` (signed).
"""

from __future__ import annotations

from weft.ir.dtypes import DType, Kind

TYPE = "vec2<u32>"

BITS = 4
"""Bits of a quotient that one iteration finds."""

DIVISION_STEPS = 64 // BITS
"""Iterations that a division may take."""

_COMPARE = {"<": "weft_less2{k}({a}, {b})", "<=": "(!weft_less2{k}({b}, {a}))", "==": "all({a} == {b})"}
_ARITHMETIC = {"+": "weft_add2", "-": "weft_sub2", "*": "weft_mul2"}


def is_pair(dtype: DType) -> bool:
    """True where values of this dtype are pairs."""
    return dtype.is_int and dtype.bits == 64


def _letter(dtype: DType) -> str:
    return "i" if dtype.kind is Kind.INT else "u"


def literal(n: int) -> str:
    """A constant, of either kind."""
    return f"{TYPE}({n & 0xFFFFFFFF}u, {n >> 32 & 0xFFFFFFFF}u)"


def binary(symbol: str, dtype: DType, a: str, b: str) -> str:
    """`+ - * / & | ^`; division rounds toward zero."""
    if symbol in _ARITHMETIC:
        return f"{_ARITHMETIC[symbol]}({a}, {b})"
    return f"weft_div2{_letter(dtype)}({a}, {b})" if symbol == "/" else f"({a} {symbol} {b})"


def shift(symbol: str, dtype: DType, a: str, amount: str) -> str:
    """By the low word of a pair."""
    return f"weft_shl2({a}, {amount}.x)" if symbol == "<<" else f"weft_shr2{_letter(dtype)}({a}, {amount}.x)"


def compare(symbol: str, dtype: DType, a: str, b: str) -> str:
    """A bool."""
    return f"any({a} != {b})" if symbol == "!=" else _COMPARE[symbol].format(k=_letter(dtype), a=a, b=b)


def widened(source: str, x: str) -> str:
    """A value of type `source` (i32, u32, f32) as a pair."""
    match source:
        case "u32":
            return f"{TYPE}({x}, 0u)"
        case "i32":
            return f"weft_extended2({x})"
        case _:
            return f"weft_from_float2({x})"


def narrowed(dtype: DType, target: str, x: str) -> str:
    """A pair of this dtype as type `target`: the low word, or the nearest float."""
    match target:
        case "u32":
            return f"{x}.x"
        case "i32":
            return f"bitcast<i32>({x}.x)"
        case _:
            return f"weft_to_float2{_letter(dtype)}({x})"


HELPERS = {
    "weft_extended2": (
        "fn weft_extended2(x: i32) -> vec2<u32> { return vec2<u32>(bitcast<u32>(x), bitcast<u32>(x >> 31u)); }"
    ),
    "weft_add2": """fn weft_add2(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}""",
    "weft_sub2": """fn weft_sub2(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}""",
    "weft_product2": """fn weft_product2(a: u32, b: u32) -> vec2<u32> {
  let ll = (a & 0xffffu) * (b & 0xffffu);
  let lh = (a & 0xffffu) * (b >> 16u);
  let hl = (a >> 16u) * (b & 0xffffu);
  let middle = (ll >> 16u) + (lh & 0xffffu) + (hl & 0xffffu);
  let high = (a >> 16u) * (b >> 16u) + (lh >> 16u) + (hl >> 16u) + (middle >> 16u);
  return vec2<u32>((ll & 0xffffu) | (middle << 16u), high);
}""",
    "weft_mul2": """fn weft_mul2(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let p = weft_product2(a.x, b.x);
  return vec2<u32>(p.x, p.y + a.x * b.y + a.y * b.x);
}""",
    "weft_less2u": """fn weft_less2u(a: vec2<u32>, b: vec2<u32>) -> bool {
  return a.y < b.y || (a.y == b.y && a.x < b.x);
}""",
    "weft_less2i": """fn weft_less2i(a: vec2<u32>, b: vec2<u32>) -> bool {
  return bitcast<i32>(a.y) < bitcast<i32>(b.y) || (a.y == b.y && a.x < b.x);
}""",
    "weft_shl2": """fn weft_shl2(a: vec2<u32>, n: u32) -> vec2<u32> {
  if (n == 0u) { return a; }
  if (n >= 32u) { return vec2<u32>(0u, a.x << (n - 32u)); }
  return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}""",
    "weft_shr2u": """fn weft_shr2u(a: vec2<u32>, n: u32) -> vec2<u32> {
  if (n == 0u) { return a; }
  if (n >= 32u) { return vec2<u32>(a.y >> (n - 32u), 0u); }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), a.y >> n);
}""",
    "weft_shr2i": """fn weft_shr2i(a: vec2<u32>, n: u32) -> vec2<u32> {
  let high = bitcast<i32>(a.y);
  if (n == 0u) { return a; }
  if (n >= 32u) { return vec2<u32>(bitcast<u32>(high >> (n - 32u)), bitcast<u32>(high >> 31u)); }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), bitcast<u32>(high >> n));
}""",
    # in one step where both fit in a word, in three for short divisors, else bit by bit
    "weft_div2u": """fn weft_div2u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if (a.y == 0u && b.y == 0u) { return vec2<u32>(a.x / b.x, 0u); }
  if (b.y == 0u && b.x < 0x10000u) {
    let high = a.y / b.x;
    let one = ((a.y % b.x) << 16u) | (a.x >> 16u);
    let two = ((one % b.x) << 16u) | (a.x & 0xffffu);
    return vec2<u32>(((one / b.x) << 16u) | (two / b.x), high);
  }
  if (weft_less2u(a, b)) { return vec2<u32>(0u, 0u); }
  let up = select(32u + countLeadingZeros(b.x), countLeadingZeros(b.y), b.y != 0u) - countLeadingZeros(a.y);
  var rest = a;
  var d = weft_shl2(b, up);
  var q = vec2<u32>(0u, 0u);
  for (var k = 0u; k <= up;) {
"""
    + "    if (k <= up) { "
    "q = vec2<u32>(q.x << 1u, (q.y << 1u) | (q.x >> 31u)); "
    "if (!weft_less2u(rest, d)) { rest = weft_sub2(rest, d); q.x |= 1u; } "
    "d = vec2<u32>((d.x >> 1u) | (d.y << 31u), d.y >> 1u); k++; }\n"
    * BITS
    + """  }
  return q;
}""",
    "weft_div2i": """fn weft_div2i(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let q = weft_div2u(weft_abs2(a), weft_abs2(b));
  return select(q, weft_sub2(vec2<u32>(0u, 0u), q), ((a.y ^ b.y) >> 31u) == 1u);
}""",
    "weft_abs2": """fn weft_abs2(a: vec2<u32>) -> vec2<u32> {
  return select(a, weft_sub2(vec2<u32>(0u, 0u), a), (a.y >> 31u) == 1u);
}""",
    # the words below the first set bit stand in for what they hold, as one bit below all that f32 keeps
    "weft_to_float2u": """fn weft_to_float2u(a: vec2<u32>) -> f32 {
  if (a.y == 0u) { return f32(a.x); }
  let up = countLeadingZeros(a.y);
  let all = weft_shl2(a, up);
  return f32(all.y | select(0u, 1u, all.x != 0u)) * bitcast<f32>((159u - up) << 23u);
}""",
    "weft_to_float2i": """fn weft_to_float2i(a: vec2<u32>) -> f32 {
  let x = weft_to_float2u(weft_abs2(a));
  return select(x, -x, (a.y >> 31u) == 1u);
}""",
    "weft_from_float2": """fn weft_from_float2(x: f32) -> vec2<u32> {
  let whole = trunc(abs(x));
  let high = u32(whole * 2.3283064365386963e-10f);
  let a = vec2<u32>(u32(whole - f32(high) * 4294967296.0f), high);
  return select(a, weft_sub2(vec2<u32>(0u, 0u), a), x < 0.0f);
}""",
}
"""WGSL has no order of declarations, so neither have these."""
