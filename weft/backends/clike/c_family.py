"""Text common to OpenCL C and C99: types of scalars, literals, declarations, loops, helper functions."""

from __future__ import annotations

import math
import struct

from weft.ir import dtypes
from weft.ir.dtypes import DType, Kind
from weft.ir.expr import Scalar


def words(text: str) -> frozenset[str]:
    """The words of a text: names that are taken."""
    return frozenset(text.split())


def integer_literal(value: int, bits: int, signed: bool, long: str) -> str:
    """An integer constant of that many bits; `long` is the suffix of 64-bit ones."""
    if not signed:
        return f"{value}u{long if bits == 64 else ''}"
    if value == -(1 << (bits - 1)) and bits >= 32:  # its magnitude is no constant of the type
        return f"({value + 1}{long if bits == 64 else ''} - 1)"
    text = f"{value}{long if bits == 64 else ''}"
    return f"({text})" if value < 0 else text


def float_literal(value: float, single: bool) -> str | None:
    """A finite float constant, exactly; None for what has no literal."""
    if not math.isfinite(value):
        return None
    short = repr(value)
    if single and "e" not in short and len(short) > 12:
        short = value.hex()
    if single and "x" not in short and struct.unpack("<f", struct.pack("<f", float(short)))[0] != value:
        short = value.hex()
    text = short + ("f" if single else "")
    return f"({text})" if text.startswith("-") else text


def float_bits(value: float, dtype: DType) -> int:
    """The bits of a float constant; of any NaN, the usual one's."""
    if math.isnan(value):
        return {16: 0x7E00 if dtype is dtypes.float16 else 0x7FC0, 32: 0x7FC00000, 64: 0x7FF8 << 48}[
            dtype.bits
        ]
    if dtype is dtypes.bfloat16:
        return int(struct.unpack("<I", struct.pack("<f", value))[0]) >> 16
    codes = {16: ("<e", "<H"), 32: ("<f", "<I"), 64: ("<d", "<Q")}[dtype.bits]
    return int(struct.unpack(codes[1], struct.pack(codes[0], value))[0])


def literal(dtype: DType, value: Scalar, long: str) -> str:
    """A scalar constant that is no infinity and no NaN; 16-bit floats are their bits."""
    match dtype.kind:
        case Kind.BOOL:
            return "true" if value else "false"
        case Kind.FLOAT if dtype.bits == 16:
            return integer_literal(float_bits(float(value), dtype), 16, False, long)
        case Kind.FLOAT:
            text = float_literal(float(value), dtype is dtypes.float32)
            assert text is not None
            return text
        case _:
            return integer_literal(int(value), dtype.bits, dtype.kind is Kind.INT, long)


def index_helpers(used: frozenset[str], index_type: str) -> str:
    """Functions of indices that the text calls."""
    t = index_type
    bodies = {
        "weft_floordiv": "return a / b - (a % b < 0);",
        "weft_mod": f"{t} r = a % b; return r < 0 ? r + b : r;",
        "weft_min": "return a < b ? a : b;",
        "weft_max": "return a > b ? a : b;",
    }
    return "".join(
        f"static inline {t} {name}({t} a, {t} b) {{ {body} }}\n"
        for name, body in bodies.items()
        if name in used
    )
