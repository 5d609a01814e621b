"""Dtypes and constants as LLVM IR writes them.

In registers a bool is `i1` and the 16-bit floats are their bits (`i16`), because nothing is ever computed in them;
in memory a bool is `i8`. `lanes` 0 means a scalar, else a vector of that many.
"""

from __future__ import annotations

import math
import struct
from functools import cache

from weft.ir import dtypes
from weft.ir.dtypes import DType, Kind
from weft.ir.expr import Scalar


@cache
def register_type(dtype: DType, lanes: int = 0) -> str:
    """The type of a value of `dtype` in registers."""
    return vector(_scalar(dtype), lanes)


@cache
def memory_type(dtype: DType, lanes: int = 0) -> str:
    """The type of a value of `dtype` in memory."""
    return vector("i8" if dtype is dtypes.bool_ else _scalar(dtype), lanes)


def vector(scalar: str, lanes: int) -> str:
    """`scalar` itself, or the vector type of `lanes` of them."""
    return f"<{lanes} x {scalar}>" if lanes else scalar


def _scalar(dtype: DType) -> str:
    if dtype.is_float:
        return {16: "i16", 32: "float", 64: "double"}[dtype.bits]
    return f"i{dtype.bits}"


def suffix(scalar: str, lanes: int = 0) -> str:
    """The part of an intrinsic's name that stands for a type: "v16f32", "i64"."""
    short = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}.get(scalar, scalar)
    return f"v{lanes}{short}" if lanes else short


def literal(dtype: DType, value: Scalar) -> str:
    """A scalar constant as LLVM IR writes it in registers."""
    if dtype.kind is Kind.BOOL:
        return "true" if value else "false"
    if not dtype.is_float:
        return str(int(value))
    x = float(value)
    if dtype is dtypes.float16:
        return str(_bits("<e", "<H", x))
    if dtype is dtypes.bfloat16:
        return str(0x7FC0 if math.isnan(x) else _bits("<f", "<I", x) >> 16)
    # an f32 constant is written as the f64 of the same value
    return f"0x{_bits('<d', '<Q', x):016X}"


def _bits(as_float: str, as_int: str, value: float) -> int:
    return int(struct.unpack(as_int, struct.pack(as_float, value))[0])


def constant_vector(scalar: str, values: list[int]) -> str:
    """A vector constant of integers."""
    first = values[0]
    if all(v == first for v in values):
        return f"splat ({scalar} {first})"
    return "<" + ", ".join(f"{scalar} {v}" for v in values) + ">"


def constant_mask(mask: str) -> list[bool] | None:
    """The lanes of a mask that `constant_vector` wrote; None for one that is only known when run."""
    if not mask.startswith("<i1"):
        return None
    return [lane.endswith("1") for lane in mask[1:-1].split(", ")]
