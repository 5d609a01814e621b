"""Casts between dtypes, on scalars or vectors."""

from __future__ import annotations

from weft.backends.llvm.types import register_type, suffix, vector
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
            sign = "s" if dst.kind is Kind.INT else "u"
            name = f"llvm.fpto{sign}i.sat.{suffix(register_type(dst), lanes)}.{suffix(register_type(src), lanes)}"
            return f.call(name, b, [(a, x)])
        case _, Kind.FLOAT:
            return f.emit(f"{'sitofp' if src.kind is Kind.INT else 'uitofp'} {a} {x} to {b}")
        case _:
            if src.bits == dst.bits:
                return x
            how = "trunc" if dst.bits < src.bits else "sext" if src.kind is Kind.INT else "zext"
            return f.emit(f"{how} {a} {x} to {b}")


def widen(f: Function, src: DType, lanes: int, x: str) -> str:
    """A 16-bit float's bits -> its value as f32."""
    half, single, word = vector("i16", lanes), vector("float", lanes), vector("i32", lanes)
    if src is dtypes.float16:
        as_half = vector("half", lanes)
        return f.emit(f"fpext {as_half} {f.emit(f'bitcast {half} {x} to {as_half}')} to {single}")
    high = f.emit(f"shl {word} {f.emit(f'zext {half} {x} to {word}')}, {splat('i32', 16, lanes)}")
    return f.emit(f"bitcast {word} {high} to {single}")


def narrow(f: Function, dst: DType, lanes: int, x: str) -> str:
    """An f32 value -> the bits of the nearest 16-bit float, ties to even; a NaN stays one.

    bf16 is done in integers: x86's own instruction flushes denormals.
    """
    half, single, word = vector("i16", lanes), vector("float", lanes), vector("i32", lanes)
    if dst is dtypes.float16:
        as_half = vector("half", lanes)
        return f.emit(f"bitcast {as_half} {f.emit(f'fptrunc {single} {x} to {as_half}')} to {half}")
    bits = f.emit(f"bitcast {single} {x} to {word}")
    high = f.emit(f"lshr {word} {bits}, {splat('i32', 16, lanes)}")
    odd = f.emit(f"and {word} {high}, {splat('i32', 1, lanes)}")
    near = f.emit(f"add {word} {f.emit(f'add {word} {bits}, {odd}')}, {splat('i32', 0x7FFF, lanes)}")
    rounded = f.emit(f"lshr {word} {near}, {splat('i32', 16, lanes)}")
    quiet = f.emit(f"or {word} {high}, {splat('i32', 0x40, lanes)}")
    is_nan = f.emit(f"fcmp uno {single} {x}, {x}")
    chosen = f.emit(f"select {vector('i1', lanes)} {is_nan}, {word} {quiet}, {word} {rounded}")
    return f.emit(f"trunc {word} {chosen} to {half}")


def splat(scalar: str, value: int, lanes: int) -> str:
    """An integer constant in all lanes."""
    return f"splat ({scalar} {value})" if lanes else str(value)
