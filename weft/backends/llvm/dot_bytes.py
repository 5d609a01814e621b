"""Four products of bytes, summed in each lane of 32 bits: `matrix k in 4: vector l: c[l] += i32(a) * i32(b)`.

    lanes of bytes      a[4*l + k], b[4*l + k]
    with the unit       c = vpdpbusd(c, a, b)                one of them unsigned, the other signed
    else                products in 32 bits, neighbours added: LLVM makes vpmaddwd of them

The two loops become one over bytes, in which every operand is what it is: bytes that lie as the lanes want them are one
load, four that all lanes share are one broadcast, and fields of bytes are unpacked in lanes of 8 bits.
"""
# Tests: tests/backends/cpu/test_dot_bytes.py

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from weft.backends.llvm import memory
from weft.backends.llvm.frame import Condition, Group, RegisterValue, groups_of
from weft.backends.llvm.index import affine
from weft.backends.llvm.types import register_type
from weft.ir import dtypes
from weft.ir.dtypes import Kind
from weft.ir.expr import Expr, Temp, transform
from weft.ir.index import Index, Int, Var, floordiv, mod
from weft.ir.loops import Accumulate, Let, Loop, LoopKind
from weft.ir.matrix import TERMS, bytes_of
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.backends.llvm.body import Body


class _Dots(NamedTuple):
    """The accumulation, its lanes, and the two operands in lanes of bytes, numbered by a variable of their own."""

    into: Accumulate
    lane: Var
    lanes: int
    byte: Var
    operands: tuple[Expr, Expr]


def render(body: Body, loop: Loop, units: Mapping[int, str], most: int) -> bool:
    """The instructions of such a loop, False where it is no such one. `units`: the intrinsics that add products of
    unsigned and signed bytes, by their lanes; `most`: the lanes of a register."""
    dots = _recognised(loop)
    frame = body.frame
    if dots is None or frame.lane is not None:
        return False
    outer = frame.groups
    place = frame.place(dots.into.buffer)
    for lanes in groups_of(dots.lanes, most):
        wide = Group(TERMS * lanes.start, TERMS * lanes.lanes)
        frame.lane, frame.lanes, frame.groups, frame.now = dots.byte, TERMS * dots.lanes, [wide], wide
        body.expressions(dots.operands)
        values = [wide.memo[x] for x in dots.operands]
        frame.lane, frame.lanes, frame.groups, frame.now = dots.lane, dots.lanes, [lanes], lanes
        at = affine(frame, dots.into.offset)
        old = memory.load(frame, place, at, Condition())
        new = _summed(
            body, lanes.lanes, frame.broadcast(old, "i32", lanes.lanes), dots.operands, values, units
        )
        memory.store(frame, place, at, RegisterValue(new, lanes.lanes))
    frame.lane, frame.lanes, frame.groups, frame.now = None, 0, outer, outer[0]
    frame.touch((dots.into.buffer,))
    return True


def _recognised(loop: Loop) -> _Dots | None:
    if loop.kind is not LoopKind.MATRIX or loop.extent != TERMS:
        return None
    *lets, vector = loop.body
    if (
        not isinstance(vector, Loop)
        or vector.kind is not LoopKind.VECTOR
        or not isinstance(vector.extent, int)
    ):
        return None
    *more, into = vector.body
    if not isinstance(into, Accumulate) or into.op is not Op.ADD or into.guard:
        return None
    named: dict[str, Expr] = {}
    for s in (*lets, *more):
        if not isinstance(s, Let):
            return None
        named[s.name] = s.value
    byte = Var(f"{vector.var.name}_{loop.var.name}", 0, TERMS * vector.extent - 1)
    where = {loop.var: mod(byte, TERMS), vector.var: floordiv(byte, TERMS)}
    memo: dict[Expr, Expr] = {}

    def leaf(e: Expr) -> Expr | None:
        known = named.get(e.name) if isinstance(e, Temp) else None
        return None if known is None else transform(known, leaf, index)

    def index(i: Index) -> Int | None:
        return where.get(i) if isinstance(i, Var) else None

    operands = bytes_of(transform(into.value, leaf, index, memo))
    return None if operands is None else _Dots(into, vector.var, vector.extent, byte, operands)


def _summed(
    body: Body,
    lanes: int,
    old: str,
    operands: tuple[Expr, Expr],
    values: list[RegisterValue],
    units: Mapping[int, str],
) -> str:
    """The sums with the products of a register of lanes."""
    f, count = body.frame.f, TERMS * lanes
    refs = [body.frame.broadcast(v, "i8", count) for v in values]
    sums, packed, wide = (register_type(d, n) for d, n in _types(lanes))
    signed = [e.dtype.kind is Kind.INT for e in operands]
    unit = units.get(lanes)
    if unit is not None and signed[0] is not signed[1]:
        first, second = refs if signed[1] else refs[::-1]
        args = [(sums, f.emit(f"bitcast {packed} {x} to {sums}")) for x in (first, second)]
        return f.call(unit, sums, [(sums, old), *args])
    a, b = (
        f.emit(f"{'sext' if s else 'zext'} {packed} {x} to {wide}") for s, x in zip(signed, refs, strict=True)
    )
    x = f.emit(f"mul nsw {wide} {a}, {b}")
    while count > lanes:
        pairs = [
            f.emit(
                f"shufflevector <{count} x i32> {x}, <{count} x i32> poison, <{count // 2} x i32> "
                f"<{', '.join(f'i32 {k}' for k in range(first, count, 2))}>"
            )
            for first in (0, 1)
        ]
        count //= 2
        x = f.emit(f"add <{count} x i32> {pairs[0]}, {pairs[1]}")
    return f.emit(f"add {sums} {old}, {x}")


def _types(lanes: int) -> tuple[tuple[dtypes.DType, int], ...]:
    return (dtypes.int32, lanes), (dtypes.int8, TERMS * lanes), (dtypes.int32, TERMS * lanes)
