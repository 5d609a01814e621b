"""The 8-bit floats in integer arithmetic, so that no device needs them: a program stores bytes.

    x: f8e5m2[8]                   x: u8[8]
    y[i] = cast_f32(x[i])    ->    y[i] = cast_f32(bitcast_f16(cast_u16(x[i]) << 8))

To f32 goes by way of a float16 with the same exponent field, or one that is a power of two away. From f32 is shifting
and rounding of its bits, as `backends/llvm/convert.py` does it for float16.
"""
# Tests: tests/core/test_float8.py

from __future__ import annotations

from dataclasses import replace

from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.expr import Const, Expr, Load, ScalarCall, Temp, call, cast, transform
from weft.ir.float8 import NAN, encode, exponent_bias, fraction_bits, largest
from weft.ir.loops import Alloc, Block, Buffer, If, Loop, Program, Stmt
from weft.ir.math.value import ScalarExpr, where
from weft.ir.ops import Op
from weft.ir.passes.rewrite import index_map, map_block


def stored_as_bytes(program: Program) -> Program:
    """The program with every 8-bit float as its byte, once `converted` has replaced the conversions."""
    memo: dict[Expr, Expr] = {}

    def expr(e: Expr) -> Expr:
        return transform(e, _byte, memo=memo)

    body = _retyped(map_block(program.body, expr, index_map(expr)))
    return replace(program, params=tuple(map(_as_bytes, program.params)), body=body)


def _as_bytes(b: Buffer) -> Buffer:
    return replace(b, dtype=dtypes.uint8) if b.dtype.is_float8 else b


def _retyped(body: Block) -> Block:
    """The same statements, with allocations of 8-bit floats as bytes."""
    out: list[Stmt] = []
    for s in body:
        match s:
            case Alloc():
                out.append(Alloc(_as_bytes(s.buffer)))
            case Loop() | If():
                out.append(replace(s, body=_retyped(s.body)))
            case _:
                out.append(s)
    return tuple(out)


def converted(c: ScalarCall) -> Expr | None:
    """A conversion from or to an 8-bit float, written out between its byte and f32; None for other conversions."""
    (x,) = c.args
    source, dtype = x.dtype, c.dtype
    if source.is_float8:
        x = to_f32(call(Op.BITCAST, x, dtype=dtypes.uint8), source)
    if dtype.is_float8:
        return call(Op.BITCAST, from_f32(cast(x, dtypes.float32), dtype), dtype=dtype)
    return cast(x, dtype) if source.is_float8 else None


def _byte(e: Expr) -> Expr | None:
    """The byte of an 8-bit float that is left: a constant, a load, a name or reinterpreted bytes."""
    small = e.dtype.is_float8
    match e:
        case Const() if small:
            return Const(dtypes.uint8, encode(e.dtype, float(e.value)))
        case Load() if small:
            return Load(dtypes.uint8, e.source, e.index, e.guard)
        case Temp() if small:
            return Temp(dtypes.uint8, e.name)
        case ScalarCall(op=Op.BITCAST, args=(x,)):
            dtype = dtypes.uint8 if small else e.dtype
            return x if x.dtype is dtype else call(Op.BITCAST, x, dtype=dtype)
        case _:
            return None


def to_f32(byte: Expr, dtype: DType) -> Expr:
    """The number of a byte, in f32.

    A float16 has 10 bits of fraction and the bias 15, so e5m2 is its upper half. e4m3 has a bias of 7: shifted to the
    same place it is 2**8 too small, subnormals included. Its NaN would be 480.
    """
    x = ScalarExpr(cast(byte, dtypes.uint16))
    if dtype is dtypes.float8_e5m2:
        return (x << 8).bits_as(dtypes.float16).to(dtypes.float32).expr
    size = x & 0x7F
    magnitude = where(size.equals(NAN), ScalarExpr(Const(dtypes.uint16, 0x7E00)), size << 7)
    half = (magnitude | ((x & 0x80) << 8)).bits_as(dtypes.float16)
    return (half.to(dtypes.float32) * 256.0).expr


def from_f32(number: Expr, dtype: DType) -> Expr:
    """The byte of the number nearest to an f32, ties to even; what is too large becomes the largest.

    Normal numbers: exponent and fraction are one integer, to which half a unit in the new last place is added, less one
    where the last bit is even. Below the smallest normal number, adding a power of two whose unit is that of the
    subnormals makes the addition round; the sum's last bits are the result.
    """
    bits, bias = fraction_bits(dtype), exponent_bias(dtype)
    cut = 23 - bits
    word = ScalarExpr(number).bits_as(dtypes.uint32)
    size = word & 0x7FFFFFFF
    odd = (size >> cut) & 1
    normal = (size + odd + ((1 << (cut - 1)) - 1) - ((127 - bias) << 23)) >> cut
    normal = where(normal < largest(dtype), normal, largest(dtype))
    magic = 127 + 1 - bias - bits + 23
    shift = ScalarExpr(Const(dtypes.uint32, magic << 23)).bits_as(dtypes.float32)
    tiny = (size.bits_as(dtypes.float32) + shift).bits_as(dtypes.uint32) - (magic << 23)
    finite = where(size < ((128 - bias) << 23), tiny, normal)
    magnitude = where(
        ScalarExpr(Const(dtypes.uint32, 0x7F800000)) < size, ScalarExpr(Const(dtypes.uint32, NAN)), finite
    )
    return (magnitude | ((word >> 24) & 0x80)).to(dtypes.uint8).expr
