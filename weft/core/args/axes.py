"""Dimensions and sizes as users write them: negative numbers, tuples or several arguments, one size of -1."""
# Tests: tests/core/test_errors.py, tests/core/test_surface.py

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeGuard, cast

from weft.core.args.handle import Dims, describe
from weft.errors import ArgumentError, DTypeError, IndexError, ShapeError
from weft.ir.graph import Shape, elements
from weft.ir.index import Index, Int, low

Sizes: TypeAlias = Int | Sequence[Int]


def axis(op: str, dim: Any, shape: Shape, extra: int = 0) -> int:
    """`dim` as a number from 0; `extra` more dimensions than the shape has are allowed (as unsqueeze needs)."""
    rank = len(shape) + extra
    if type(dim) is not int:
        if isinstance(dim, bool):
            raise DTypeError(f"{op}: a dimension must be an int, got {dim}")
        try:
            dim = dim.__index__()
        except (AttributeError, TypeError):
            raise DTypeError(f"{op}: a dimension must be an int, got {describe(dim)}") from None
    if -rank <= dim < rank:
        return dim + rank if dim < 0 else dim
    if rank == 0 and dim in (0, -1):
        return 0
    raise IndexError(
        f"{op}: dimension {dim} is out of range for shape {tuple(shape)}; it must be from {-max(rank, 1)} "
        f"to {max(rank, 1) - 1}"
    )


def axes(op: str, dim: Dims | Sequence[Int] | None, shape: Shape) -> tuple[int, ...]:
    """The distinct dimensions, ascending; all for None or an empty tuple."""
    if dim is None:
        return tuple(range(len(shape)))
    if isinstance(dim, Sequence):
        out = [axis(op, d, shape) for d in dim]
        if len(set(out)) != len(out):
            raise ArgumentError(
                f"{op}: dimension {next(d for d in out if out.count(d) > 1)} appears twice in {tuple(dim)}"
            )
        if not shape or not out:
            return tuple(range(len(shape)))
        return tuple(sorted(out))
    return (axis(op, dim, shape),) if shape else (axis(op, dim, shape),)[:0]


def is_int(x: object) -> TypeGuard[int]:
    """True for an int that is no bool."""
    return isinstance(x, int) and not isinstance(x, bool)


def known_sizes(op: str, shape: Shape) -> list[int]:
    """The sizes as ints; ShapeError if one is only known at run time."""
    out = [n for n in shape if isinstance(n, int)]
    if len(out) != len(shape):
        raise ShapeError(f"{op}: needs sizes that are known now, got shape {tuple(shape)}")
    return out


def sizes(op: str, args: Sequence[Any]) -> tuple[Int, ...]:
    """Sizes given as one sequence or as several arguments."""
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        args = cast("Sequence[Any]", args[0])
    return tuple([n if type(n) is int or isinstance(n, Index) else _size(op, n) for n in args])


def _size(op: str, n: Any) -> int:
    if isinstance(n, bool):
        raise DTypeError(f"{op}: a size must be an int, got {n}")
    try:
        return int(n.__index__())
    except (AttributeError, TypeError):
        raise DTypeError(f"{op}: a size must be an int, got {describe(n)}") from None


def new_shape(op: str, args: Sequence[Any]) -> Shape:
    """The shape of a tensor to make; no size may be negative."""
    shape = sizes(op, args)
    for n in shape:
        if isinstance(n, int) and n < 0:
            raise ShapeError(f"{op}: sizes must not be negative, got {shape}")
    return shape


def fill_in(op: str, wanted: tuple[Int, ...], have: Shape) -> Shape:
    """`wanted` with a size of -1 replaced by what `have` leaves; ShapeError when they have different element counts."""
    total = elements(have)
    holes = [k for k, n in enumerate(wanted) if isinstance(n, int) and n == -1]
    if not holes:
        if elements(wanted) != total or any(isinstance(n, int) and n < 0 for n in wanted):
            raise ShapeError(
                f"{op}: shape {tuple(have)} has {total} elements, which do not fit {tuple(wanted)}"
            )
        return wanted
    known = elements(tuple(n for k, n in enumerate(wanted) if k not in holes))
    if len(holes) > 1:
        raise ShapeError(f"{op}: only one size may be -1, got {tuple(wanted)}")
    if low(known) == 0:
        raise ShapeError(f"{op}: the size of -1 in {tuple(wanted)} could be anything; give it")
    rest = total // known
    if rest * known != total:
        raise ShapeError(f"{op}: shape {tuple(have)} has {total} elements, which do not fit {tuple(wanted)}")
    return tuple(rest if k in holes else n for k, n in enumerate(wanted))
