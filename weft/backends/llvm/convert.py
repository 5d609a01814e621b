"""Casts between dtypes, on scalars or vectors."""
# Tests: tests/backends/cpu/test_ops.py

from __future__ import annotations

from weft.backends.llvm.types import literal, register_type, suffix, vector
from weft.backends.llvm.writer import Function
from weft.ir import dtypes
from weft.ir.dtypes import DType, Kind


def cast(f: Function, src: DType, dst: DType, lanes: int, x: str) -> str:
    """`x` as `dst`: float to integer truncates and saturates (NaN gives 0), anything to bool is `!= 0`."""
    if src is dst:
        return x
    if src.is_float and src.bits == 16:
        wide = widen(f, src, lanes, x)
        return cast(f, dtypes.float32, dst, lanes, wide)
    if dst.is_float and dst.bits == 16:
        # by way of f32, as torch and NumPy's bfloat16 do
        return narrow(f, dst, lanes, cast(f, src, dtypes.float32, lanes, x))
    a, b = register_type(src, lanes), register_type(dst, lanes)
    match src.kind, dst.kind:
        case Kind.FLOAT, Kind.BOOL:
            return f.emit(f"fcmp une {a} {x}, zeroinitializer")
        case _, Kind.BOOL:
            return f.emit(f"icmp ne {a} {x}, zeroinitializer")
        case Kind.FLOAT, Kind.FLOAT:
            return f.emit(f"{'fpext' if dst.bits > src.bits else 'fptrunc'} {a} {x} to {b}")
        case Kind.FLOAT, _:
            return _saturated(f, src, dst, lanes, x)
        case _, Kind.FLOAT:
            return f.emit(f"{'sitofp' if src.kind is Kind.INT else 'uitofp'} {a} {x} to {b}")
        case _:
            if src.bits == dst.bits:
                return x
            how = "trunc" if dst.bits < src.bits else "sext" if src.kind is Kind.INT else "zext"
            return f.emit(f"{how} {a} {x} to {b}")


def _saturated(f: Function, src: DType, dst: DType, lanes: int, x: str) -> str:
    """A float of 32 or 64 bits -> the nearest integer towards zero that there is; NaN gives 0.

    There is an intrinsic; where processors have no instruction for it, LLVM takes a vector apart into scalars.
    """
    sign, low, high = "s" if dst.kind is Kind.INT else "u", int(dst.min), int(dst.max)
    a, b, to = register_type(src, lanes), register_type(dst, lanes), suffix(register_type(dst), lanes)
    if not lanes or f.module.saturating:
        return f.call(f"llvm.fpto{sign}i.sat.{to}.{suffix(register_type(src), lanes)}", b, [(a, x)])
    if dst.bits < 32:
        wide, word = _saturated(f, src, dtypes.int32, lanes, x), vector("i32", lanes)
        for name, bound in (("smax", low), ("smin", high)):
            full = f"llvm.{name}.{suffix('i32', lanes)}"
            wide = f.call(full, word, [(word, wide), (word, splat("i32", bound, lanes))])
        return f.emit(f"trunc {word} {wide} to {b}")

    def splat_float(value: int) -> str:
        return f"splat ({register_type(src)} {literal(src, float(value))})"

    bools = vector("i1", lanes)
    number = f.emit(f"select {bools} {f.emit(f'fcmp ord {a} {x}, {x}')}, {a} {x}, {a} zeroinitializer")
    above_low = f.emit(f"fcmp ogt {a} {number}, {splat_float(low)}")
    number = f.emit(f"select {bools} {above_low}, {a} {number}, {a} {splat_float(low)}")
    too_high = f.emit(f"fcmp oge {a} {x}, {splat_float(high + 1)}")
    # a conversion of what is too high is any number, where it is frozen, and not chosen
    found = f.emit(f"freeze {b} {f.emit(f'fpto{sign}i {a} {number} to {b}')}")
    return f.emit(f"select {bools} {too_high}, {b} {splat(register_type(dst), high, lanes)}, {b} {found}")


def widen(f: Function, src: DType, lanes: int, x: str) -> str:
    """A 16-bit float's bits -> its value as f32."""
    half, single, word = vector("i16", lanes), vector("float", lanes), vector("i32", lanes)
    if src is dtypes.float16:
        if not f.module.half:
            return _widen_half(f, lanes, x)
        as_half = vector("half", lanes)
        return f.emit(f"fpext {as_half} {f.emit(f'bitcast {half} {x} to {as_half}')} to {single}")
    high = f.emit(f"shl {word} {f.emit(f'zext {half} {x} to {word}')}, {splat('i32', 16, lanes)}")
    return f.emit(f"bitcast {word} {high} to {single}")


def narrow(f: Function, dst: DType, lanes: int, x: str) -> str:
    """An f32 value -> the bits of the nearest 16-bit float, ties to even; a NaN stays one.

    bf16 is done in integers where the target is not known to do it: x86's own instruction flushes denormals.
    """
    half, single, word = vector("i16", lanes), vector("float", lanes), vector("i32", lanes)
    if dst is dtypes.float16:
        if not f.module.half:
            return _narrow_half(f, lanes, x)
        as_half = vector("half", lanes)
        return f.emit(f"bitcast {as_half} {f.emit(f'fptrunc {single} {x} to {as_half}')} to {half}")
    if f.module.bfloat:
        as_brain = vector("bfloat", lanes)
        return f.emit(f"bitcast {as_brain} {f.emit(f'fptrunc {single} {x} to {as_brain}')} to {half}")
    w = _Words(f, lanes)
    bits = f.emit(f"bitcast {single} {x} to {word}")
    high = w("lshr", bits, 16)
    rounded = w("lshr", w("add", w("add", bits, w("and", high, 1)), 0x7FFF), 16)
    is_nan = f.emit(f"fcmp uno {single} {x}, {x}")
    return f.emit(f"trunc {word} {w.one_of(is_nan, w('or', high, 0x40), rounded)} to {half}")


class _Words:
    """32-bit integer instructions on registers and constants."""

    def __init__(self, f: Function, lanes: int) -> None:
        self.f, self.lanes, self.type = f, lanes, vector("i32", lanes)

    def __call__(self, name: str, a: str, b: str | int) -> str:
        return self.f.emit(f"{name} {self.type} {a}, {self.of(b)}")

    def of(self, x: str | int) -> str:
        return splat("i32", x, self.lanes) if isinstance(x, int) else x

    def one_of(self, condition: str, a: str | int, b: str | int) -> str:
        """a where condition else b."""
        mask = vector("i1", self.lanes)
        return self.f.emit(f"select {mask} {condition}, {self.type} {self.of(a)}, {self.type} {self.of(b)}")


def _widen_half(f: Function, lanes: int, x: str) -> str:
    """f16 -> f32 without instructions for it: shift into place and multiply the exponents' difference in."""
    w, single = _Words(f, lanes), vector("float", lanes)
    wide = f.emit(f"zext {vector('i16', lanes)} {x} to {w.type}")
    small = f.emit(f"bitcast {w.type} {w('shl', w('and', wide, 0x7FFF), 13)} to {single}")
    scaled = f.emit(f"bitcast {single} {f.emit(f'fmul {single} {small}, {_power(lanes, 112)}')} to {w.type}")
    special = w("icmp uge", scaled, (127 + 16) << 23)
    magnitude = w.one_of(special, w("or", scaled, 255 << 23), scaled)
    return f.emit(f"bitcast {w.type} {w('or', magnitude, w('shl', w('and', wide, 0x8000), 16))} to {single}")


def _narrow_half(f: Function, lanes: int, x: str) -> str:
    """f32 -> f16 without instructions for it. Source: F. Giesen, "half_float.cpp", float_to_half_fast3_rtne."""
    w, single = _Words(f, lanes), vector("float", lanes)
    bits = f.emit(f"bitcast {single} {x} to {w.type}")
    u = w("and", bits, 0x7FFFFFFF)
    too_large = w.one_of(w("icmp ugt", u, 255 << 23), 0x7E00, 0x7C00)
    # adding a half aligns a subnormal's bits, rounded, at the end of the word
    magic = f.emit(f"fadd {single} {f.emit(f'bitcast {w.type} {u} to {single}')}, {_power(lanes, -1)}")
    subnormal = w("sub", f.emit(f"bitcast {single} {magic} to {w.type}"), 126 << 23)
    odd = w("and", w("lshr", u, 13), 1)
    normal = w("lshr", w("add", w("add", u, 0xFFF - (112 << 23)), odd), 13)
    finite = w.one_of(w("icmp ult", u, 113 << 23), subnormal, normal)
    magnitude = w.one_of(w("icmp uge", u, (127 + 16) << 23), too_large, finite)
    signed = w("or", magnitude, w("and", w("lshr", bits, 16), 0x8000))
    return f.emit(f"trunc {w.type} {signed} to {vector('i16', lanes)}")


def _power(lanes: int, exponent: int) -> str:
    """2**exponent as an f32 constant."""
    word = f"0x{(1023 + exponent) << 52:016X}"
    return f"splat (float {word})" if lanes else word


def splat(scalar: str, value: int, lanes: int) -> str:
    """An integer constant in all lanes."""
    return f"splat ({scalar} {value})" if lanes else str(value)
