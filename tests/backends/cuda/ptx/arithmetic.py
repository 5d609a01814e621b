"""Scalar instructions as functions of arrays, one element per lane: (op, type) -> function of raw operands.

Operands and results are unsigned integers of the type's width; `view` sees them as what the type says.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .text import PtxError

Array = NDArray[Any]

TYPES: dict[str, Any] = {
    "pred": np.bool_,
    **{f"{k}{n}": np.dtype(f"u{n // 8}") for k in "bu" for n in (8, 16, 32, 64)},
    **{f"s{n}": np.dtype(f"i{n // 8}") for n in (8, 16, 32, 64)},
    "f16": np.dtype("f2"),
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
}


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c rounded once (to within a rounding of a rounding)."""
    if a.dtype.itemsize < 8:
        return (a.astype("f8") * b.astype("f8") + c.astype("f8")).astype(a.dtype)
    p = a * b
    split = 134217729.0
    ah, bh = a * split, b * split
    ah, bh = ah - (ah - a), bh - (bh - b)
    al, bl = a - ah, b - bh
    e = ((ah * bh - p) + ah * bl + al * bh) + al * bl
    s = p + c
    t = s - p
    exact = s + (((p - (s - t)) + (c - t)) + e)
    large, small = np.maximum(np.maximum(abs(a), abs(b)), abs(p)), np.where(p == 0, abs(c), abs(p))
    parts = (large > 2.0**990) | (small < 2.0**-960)  # of which some overflow, or are not exact
    one_by_one = np.flatnonzero(parts & np.isfinite(a) & np.isfinite(b) & np.isfinite(c))
    out = np.atleast_1d(np.where(np.isfinite(exact), exact, s))
    if len(one_by_one):
        a, b, c = (np.broadcast_to(v, out.shape) for v in (a, b, c))
        out[one_by_one] = [_fma()(a[k], b[k], c[k]) for k in one_by_one]
    return out


@cache
def _fma() -> Callable[[float, float, float], float]:
    """The C library's."""
    found = ctypes.CDLL(ctypes.util.find_library("m")).fma
    found.restype, found.argtypes = ctypes.c_double, (ctypes.c_double,) * 3
    return found


def _least(a: Array, b: Array, smaller: bool, nan: bool) -> Array:
    if a.dtype.kind != "f":
        return np.minimum(a, b) if smaller else np.maximum(a, b)
    first = np.where(np.signbit(a) == np.signbit(b), a < b if smaller else a > b, np.signbit(a) == smaller)
    out = np.where(first, a, b)
    if nan:
        return np.where(np.isnan(a), a, np.where(np.isnan(b), b, out))
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, out))


def _divided(a: Array, b: Array, rest: bool) -> Array:
    if a.dtype.kind == "f":
        return a / b
    d = np.where(b == 0, 1, b).astype(a.dtype)
    if a.dtype.kind == "u":
        q = a // d
    else:
        q = a // d
        q = q + ((a - q * d != 0) & ((a < 0) != (d < 0)))  # towards zero
    if rest:
        return np.where(b == 0, a, a - q * d)
    return np.where(b == 0, np.array(-1).astype(a.dtype), q)


def _shift(a: Array, by: Array, left: bool) -> Array:
    bits = a.dtype.itemsize * 8
    n = np.minimum(by.astype("u8"), bits - 1).astype(a.dtype)
    beyond = by.astype("u8") >= bits
    if left:
        return np.where(beyond, a.dtype.type(0), a << n)
    rest = a >> n
    return rest if a.dtype.kind == "i" else np.where(beyond, a.dtype.type(0), rest)


def _high(a: Array, b: Array) -> Array:
    n = a.dtype.itemsize
    if n < 8:
        wide = np.dtype(f"{a.dtype.kind}{2 * n}")
        return ((a.astype(wide) * b.astype(wide)) >> (8 * n)).astype(a.dtype)
    product = [int(x) * int(y) >> 64 for x, y in zip(a, np.broadcast_to(b, a.shape), strict=True)]
    return np.array(product, a.dtype)


def _funnel(low: Array, high: Array, by: Array, left: bool) -> Array:
    both = (high.astype("u8") << np.uint64(32)) | low.astype("u8")
    n = (by & np.uint32(31)).astype("u8")
    return ((both << n) >> np.uint64(32) if left else both >> n).astype("u4")


def _permuted(a: Array, b: Array, choose: Array) -> Array:
    both = a.astype("u8") | (b.astype("u8") << np.uint64(32))
    out = np.zeros(np.broadcast_shapes(a.shape, b.shape, choose.shape), "u4")
    for k in range(4):
        n = (choose >> np.uint32(4 * k)) & np.uint32(15)
        byte = (both >> ((n & np.uint32(7)).astype("u8") * np.uint64(8))) & np.uint64(255)
        sign = np.where(byte >= 128, np.uint64(255), np.uint64(0))
        out |= np.where(n >= 8, sign, byte).astype("u4") << np.uint32(8 * k)
    return out


def _field(a: Array, at: Array, count: Array) -> Array:
    wide = a.astype("i8" if a.dtype.kind == "i" else "u8")
    at, count = at.astype(wide.dtype), count.astype(wide.dtype)
    if a.dtype.kind == "u":
        return ((wide >> at) & ((np.uint64(1) << count) - np.uint64(1))).astype(a.dtype)
    left = np.int64(64) - at - count
    return ((wide << left) >> (np.int64(64) - count)).astype(a.dtype)


BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}

UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": lambda a: -a,
    "abs": np.abs,
    "not": lambda a: ~a,
    "sqrt": np.sqrt,
    "rcp": lambda a: a.dtype.type(1) / a,
    "rsqrt": lambda a: a.dtype.type(1) / np.sqrt(a),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "clz": lambda a: np.array([a.dtype.itemsize * 8 - int(x).bit_length() for x in a], "u4"),
    "popc": lambda a: np.array([int(x).bit_count() for x in a], "u4"),
    "brev": lambda a: np.array([int(f"{int(x):0{a.dtype.itemsize * 8}b}"[::-1], 2) for x in a], a.dtype),
}

COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: (a != b) & (a == a) & (b == b),
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lo": lambda a, b: a < b,
    "ls": lambda a, b: a <= b,
    "hi": lambda a, b: a > b,
    "hs": lambda a, b: a >= b,
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": lambda a, b: a != b,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: (a == a) & (b == b),
    "nan": lambda a, b: (a != a) | (b != b),
}

TESTS: dict[str, Callable[[Array], Array]] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda a: ~np.isnan(a),
    "notanumber": np.isnan,
    "normal": lambda a: np.isfinite(a) & (np.abs(a) >= np.finfo(a.dtype).tiny),
    "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
}
"""`testp`."""

ROUND: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def floats(a: Array, kind: str) -> Array:
    """bf16 bits -> f32."""
    assert kind == "bf16"
    return (a.astype("u4") << np.uint32(16)).view("f4")


def to_bf16(a: Array) -> Array:
    """f32 -> bf16 bits, to the nearest, ties to even."""
    bits = np.ascontiguousarray(a.astype("f4")).view("u4")
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(a), np.uint32(0x7FFF), rounded).astype("u2")


def converted(a: Array, source: str, target: str, rounding: str | None) -> Array:
    """`cvt`: a value of type `source` as one of type `target` (of its own width)."""
    if source == "bf16":
        a, source = floats(a, source), "f32"
    if target == "bf16":
        return to_bf16(a)
    t = TYPES[target]
    if source.startswith("f"):
        if rounding in ROUND:
            a = ROUND[rounding](a)
        if not target.startswith("f"):
            info = np.iinfo(t)
            if rounding not in ROUND:
                raise PtxError("cvt from a float to an integer without a rounding")
            wide = np.where(np.isnan(a), 0, a).astype("f8")
            inside = np.clip(wide, float(info.min), float(info.max))
            out = np.where(inside >= float(info.max), 0, inside).astype(t)
            return np.where(inside >= float(info.max), info.max, out).astype(t)
    return a.astype(t)


def function(op: tuple[str, ...], kind: str) -> Callable[..., Array]:
    """What an instruction with these parts computes from operands that are seen as its type."""
    name = op[0]
    if name in BINARY and "cc" not in op:
        return BINARY[name]
    match name:
        case "mul" if "hi" in op:
            return _high
        case "mul" | "mad" if "wide" in op:
            wide = np.dtype(f"{TYPES[kind].kind}{TYPES[kind].itemsize * 2}")
            if name == "mul":
                return lambda a, b: a.astype(wide) * b.astype(wide)
            return lambda a, b, c: a.astype(wide) * b.astype(wide) + c
        case "mul":
            return lambda a, b: a * b
        case "mad":
            return lambda a, b, c: a * b + c
        case "fma":
            return fma
        case "min" | "max":
            nan = "NaN" in op
            return lambda a, b: _least(a, b, name == "min", nan)
        case "div":
            return lambda a, b: _divided(a, b, False)
        case "rem":
            return lambda a, b: _divided(a, b, True)
        case "shf":
            return lambda a, b, c: _funnel(a, b, c, "l" in op)
        case "prmt":
            return _permuted
        case "bfe":
            return _field
        case "copysign":
            return lambda a, b: np.copysign(b, a)
        case _ if name in UNARY:
            return UNARY[name]
        case _:
            raise PtxError(f"unknown instruction {'.'.join(op)}")


def shift(op: str, a: Array, by: Array) -> Array:
    return _shift(a, by, op == "shl")
