"""Promotion of operands in the standard: arrays by dtype alone, Python numbers in the arrays' dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from weft.core.args import broadcast
from weft.core.layout import creation, movement
from weft.core.pointwise import elementwise
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, IndexError
from weft.ir import dtypes
from weft.ir.dtypes import DType, bool_, int64

Scalar: TypeAlias = bool | int | float
Operand: TypeAlias = Tensor | Scalar
Axes: TypeAlias = int | tuple[int, ...] | None
Reduce: TypeAlias = Callable[[Tensor, Axes, bool], Tensor]


def as_array(op: str, x: object) -> Tensor:
    """The argument as it is; DTypeError for what is no array."""
    if not isinstance(x, Tensor):
        raise DTypeError(f"{op}: expected an array, got {type(x).__name__}; make one with asarray")
    return x


def together(op: str, *xs: Operand) -> list[Tensor]:
    """The operands in one dtype: arrays by their dtypes alone, Python numbers in that of the arrays."""
    dtype = result_type(*xs)
    if not any(isinstance(x, Tensor) for x in xs):
        raise DTypeError(f"{op}: at least one operand must be an array")
    return [x.to(dtype) if isinstance(x, Tensor) else creation.full((), x, dtype=dtype) for x in xs]


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype that arrays, dtypes and Python numbers combine in."""
    found: DType | None = None
    numbers: list[Scalar] = []
    for x in arrays_and_dtypes:
        if isinstance(x, (bool, int, float)):
            numbers.append(x)
            continue
        dtype = x if isinstance(x, DType) else as_array("result_type", x).dtype
        found = dtype if found is None else dtypes.promote(found, dtype)
    for n in numbers:
        kind = broadcast.number_dtype(n)
        higher = found is None or (kind.is_float and not found.is_float) or (kind.is_int and found is bool_)
        found = kind if higher else found
    if found is None:
        raise ArgumentError("result_type: needs at least one array, dtype or number")
    return found


def floats(op: str, *xs: Operand) -> list[Tensor]:
    """The operands in one dtype, which must be a float."""
    both = together(op, *xs)
    if not both[0].dtype.is_float:
        raise DTypeError(f"{op}: needs floats, got {both[0].dtype.name}; convert with astype")
    return both


def number(op: str, x: Tensor) -> Tensor:
    """The array as it is; DTypeError for bool."""
    if as_array(op, x).dtype is bool_:
        raise DTypeError(f"{op}: not defined on bool; convert with astype")
    return x


def index_of(axis: int, rank: int) -> int:
    """The axis counted from 0; IndexError where there is none."""
    if not -rank <= axis < rank:
        raise IndexError(f"axis {axis} is out of range for {rank} axes")
    return axis + rank if axis < 0 else axis


def over_axes(x: Tensor, axis: Axes, keepdims: bool, reduce: Reduce, keep_int64: bool = False) -> Tensor:
    """A reduction over axes, for which an empty tuple means none."""
    if isinstance(axis, tuple) and not axis:
        return elementwise.ne(x, 0).to(int64) if keep_int64 else reduce(movement.unsqueeze(x, 0), 0, False)
    return reduce(x, axis, keepdims)
