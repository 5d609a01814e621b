"""Matrix units: instructions by which the threads of a warp multiply small matrices together.

    c (m x n) += a (m x k) @ b (k x n)

How the elements of c lie in the threads' registers is data: each axis of c is a product of factors, outermost first,
of which some count threads (LANE) and some count the registers of one thread (ELEMENT). For an axis of 16 rows,
`(ELEMENT 2, LANE 8)` says: row 8 * e + g is element e of the threads with number g. Threads are numbered by the row's
LANE factors, then the column's. A schedule that splits its loops by these factors keeps every element of the result in
the registers of the one thread that its unit puts it in, and reads it there like any other value.

Units of single threads: each lane of 32 bits adds the products of its four pairs of bytes to its sum (`bytes_of`).
"""
# Tests: tests/scheduler/optimize/test_gpu_matrix.py

from __future__ import annotations

from enum import Enum
from math import prod

from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.expr import Expr, ScalarCall
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

TERMS = 4
"""The bytes of a lane of 32 bits: as many products of bytes are summed in it at once."""


class Role(Enum):
    """The role of a factor of a row's or column's number: what it counts."""

    ELEMENT = "element"
    LANE = "lane"


@dataclass(frozen=True, slots=True)
class LayoutFactor:
    """`extent` values of one role."""

    role: Role
    extent: int


@dataclass(frozen=True, slots=True)
class MatrixUnit:
    """One instruction: sizes, dtypes of the operands and of the sum, and where the sums lie."""

    m: int
    n: int
    k: int
    operand: DType
    accumulator: DType
    rows: tuple[LayoutFactor, ...]
    columns: tuple[LayoutFactor, ...]
    row_bytes: int = 0
    """The bytes of the rows in which panels lie one after the other in LOCAL memory, where the unit reads them
    there by itself; 0: threads load their elements from panels of any layout."""

    @property
    def threads(self) -> int:
        """The threads that run it together."""
        return prod(d.extent for d in (*self.rows, *self.columns) if d.role is Role.LANE)

    def __str__(self) -> str:
        return f"m{self.m}n{self.n}k{self.k} {self.operand.name}"


def bytes_of(e: Expr) -> tuple[Expr, Expr] | None:
    """The two integers of 8 bits that an int32 is the product of."""
    if not isinstance(e, ScalarCall) or e.op is not Op.MUL or e.dtype is not dtypes.int32:
        return None
    a, b = (_byte(x) for x in e.args)
    return None if a is None or b is None else (a, b)


def _byte(e: Expr) -> Expr | None:
    inner = e.args[0] if isinstance(e, ScalarCall) and e.op is Op.CAST else None
    return inner if inner is not None and inner.dtype in (dtypes.int8, dtypes.uint8) else None
