"""Stacking, splitting, turning, and writing parts: `movement` and `indexing` under torch's many names."""
# Tests: tests/core/views/test_views.py, tests/core/test_surface.py

from __future__ import annotations

import builtins
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from weft.autograd.value import Value, apply, zero_gradient
from weft.core.args import broadcast as bc
from weft.core.args.axes import axis, is_int, known_sizes
from weft.core.args.handle import Handle, describe, value_of, wrap
from weft.core.args.requirements import at_most_dims, needs
from weft.core.layout.creation import tensor
from weft.core.layout.indexing import getitem, setitem
from weft.core.layout.movement import (
    cat,
    constant_pad,
    diagonal,
    expand,
    flatten,
    flip,
    meshgrid,
    movedim,
    narrow,
    pad_value,
    positions,
    reshape,
    stack,
    transpose,
    unsqueeze,
)  # fmt: skip
from weft.core.pointwise.elementwise import eq, where
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import int64
from weft.ir.graph import elements
from weft.ir.index import Int
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


# ---------------------------------------------------------------------------------------------- rank


def _each(given: tuple[Any, ...], at_least: Callable[[Any], Any]) -> Any:
    if len(given) == 1 and isinstance(given[0], Handle):
        return at_least(given[0])
    parts = given[0] if len(given) == 1 else given
    return tuple(at_least(x) for x in parts)


def atleast_1d(*tensors: Any) -> Any:
    """Each tensor with at least 1 dimension."""
    return _each(tensors, lambda x: x.reshape(1) if not x.value.shape else x)


def atleast_2d(*tensors: Any) -> Any:
    """Each tensor with at least 2 dimensions, vectors as rows."""
    return _each(tensors, lambda x: x.reshape(1, -1) if len(x.value.shape) < 2 else x)


def atleast_3d(*tensors: Any) -> Any:
    """Each tensor with at least 3 dimensions: a vector in the middle, a matrix in front."""

    def one(x: Tensor) -> Tensor:
        match len(x.value.shape):
            case 0 | 1:
                return x.reshape(1, x.numel(), 1)
            case 2:
                return x.unsqueeze(-1)
            case _:
                return x

    return _each(tensors, one)


# ---------------------------------------------------------------------------------------------- stacking


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors joined along the third dimension."""
    return cat([atleast_3d(x) for x in tensors], 2)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors joined along dimension 1, vectors as columns."""
    return cat([reshape(x, x.numel(), 1) if len(x.value.shape) < 2 else x for x in tensors], 1)


def block_diag(*tensors: Tensor) -> Tensor:
    """Matrices along the diagonal of one, zeros elsewhere; vectors count as rows."""
    parts: list[Tensor] = []
    for x in tensors:
        v = value_of("block_diag", x)
        if len(v.shape) > 2:
            raise ShapeError(f"block_diag: needs tensors of at most 2 dimensions, got shape {tuple(v.shape)}")
        parts.append(atleast_2d(x))
    if not parts:
        return tensor(np.zeros((1, 0), np.float32))
    width: Int = 0
    for p in parts:
        width = width + p.value.shape[1]
    rows: list[Tensor] = []
    at: Int = 0
    for p in parts:
        n = p.value.shape[1]
        rows.append(wrap(pad_value(p.value, [0, at], [0, width - at - n])))
        at = at + n
    return cat(rows, 0)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All combinations of one element from each vector, as rows."""
    for x in tensors:
        if len(value_of("cartesian_prod", x).shape) != 1:
            raise ShapeError(f"cartesian_prod: needs vectors, got {describe(x)}")
    if len(tensors) == 1:
        return tensors[0]
    return stack([flatten(g) for g in meshgrid(*tensors, indexing="ij")], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All combinations of r elements of a vector, as rows."""
    v = value_of("combinations", input)
    if len(v.shape) != 1:
        raise ShapeError(f"combinations: needs a vector, got shape {tuple(v.shape)}")
    if r < 0:
        raise ArgumentError(f"combinations: r must not be negative, got {r}")
    (n,) = known_sizes("combinations", v.shape)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = np.array(list(choose(builtins.range(n), r)), np.int64).reshape(-1, r)
    if not rows.size:
        return wrap(zero_gradient(bc.scalar(0, v.dtype, (0,) if r == 0 else (0, r)), v))
    return getitem(input, tensor(rows, device=v.node.device))


# ---------------------------------------------------------------------------------------------- splitting


def tensor_split(
    input: Tensor, indices_or_sections: int | Sequence[int] | Tensor, dim: int = 0
) -> tuple[Tensor, ...]:
    """Parts along dim: a number of nearly equal ones (larger ones first), or cut at the indices."""
    v = value_of("tensor_split", input)
    if not v.shape:
        raise ShapeError("tensor_split: a tensor without dimensions cannot be split")
    k = axis("tensor_split", dim, v.shape)
    n = known_sizes("tensor_split", v.shape)[k]
    given = indices_or_sections
    if isinstance(given, Handle):
        given = cast("int | list[int]", wrap(given.value).tolist())
    if isinstance(given, int):
        if given < 1:
            raise ArgumentError(f"tensor_split: the number of parts must be positive, got {given}")
        size, more = divmod(n, given)
        cuts = list(itertools.accumulate([size + (i < more) for i in builtins.range(given)]))[:-1]
    else:
        cuts = [slice(None, c).indices(n)[1] for c in given]
    edges = [0, *cuts, n]
    return tuple(narrow(input, k, a, max(0, b - a)) for a, b in itertools.pairwise(edges))


def _split_along(op: str, input: Tensor, given: Any, dim: int, least: int) -> tuple[Tensor, ...]:
    v = value_of(op, input)
    if len(v.shape) < least:
        raise ShapeError(f"{op}: needs at least {least} dimensions, got shape {tuple(v.shape)}")
    n = v.shape[dim]
    if is_int(given) and isinstance(n, int) and (given < 1 or n % given):
        raise ArgumentError(f"{op}: {given} parts do not divide dimension {dim} of size {n}")
    return tensor_split(input, given, dim)


def hsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Parts along dimension 1, of a vector along dimension 0."""
    return _split_along("hsplit", input, indices_or_sections, 0 if len(input.value.shape) == 1 else 1, 1)


def vsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Parts along dimension 0."""
    return _split_along("vsplit", input, indices_or_sections, 0, 2)


def dsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Parts along dimension 2."""
    return _split_along("dsplit", input, indices_or_sections, 2, 3)


# ---------------------------------------------------------------------------------------------- turning


def fliplr(input: Tensor) -> Tensor:
    """The elements in reverse order along dimension 1."""
    if len(value_of("fliplr", input).shape) < 2:
        raise ShapeError(f"fliplr: needs at least 2 dimensions, got {describe(input)}")
    return flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """The elements in reverse order along dimension 0."""
    if not value_of("flipud", input).shape:
        raise ShapeError("flipud: needs at least 1 dimension")
    return flip(input, 0)


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turned k times by 90 degrees from the first to the second of two dimensions."""
    v = value_of("rot90", input)
    if len(dims) != 2 or len(v.shape) < 2:
        raise ArgumentError(
            f"rot90: needs two dimensions to turn in, got {tuple(dims)} for shape {tuple(v.shape)}"
        )
    a, b = axis("rot90", dims[0], v.shape), axis("rot90", dims[1], v.shape)
    if a == b:
        raise ArgumentError(f"rot90: the dimensions {tuple(dims)} must differ")
    match k % 4:
        case 1:
            return transpose(flip(input, b), a, b)
        case 2:
            return flip(input, a, b)
        case 3:
            return transpose(flip(input, a), a, b)
        case _:
            return input.clone()


# ---------------------------------------------------------------------------------------------- diagonals, windows


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The last dimension as a diagonal over two new dimensions."""
    v = value_of("diag_embed", input)
    if not v.shape:
        raise ShapeError("diag_embed: needs at least 1 dimension")
    shape = (*v.shape, 1)
    a, b = axis("diag_embed", dim1, shape), axis("diag_embed", dim2, shape)
    if a == b:
        raise ArgumentError(f"diag_embed: dim1 and dim2 are both {dim1}")
    n = v.shape[-1] + builtins.abs(offset)
    line = constant_pad(input, (max(0, offset), max(0, -offset)))
    row, column = wrap(positions((n, n), 0)), wrap(positions((n, n), 1))
    wide = expand(unsqueeze(line, -2), (*v.shape[:-1], n, n))
    out = where(eq(column, row + offset), wide, wrap(bc.scalar(0, v.dtype, ())))
    return movedim(out, (-2, -1), (a, b))


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """The flattened input as the diagonal of a matrix."""
    return diag_embed(flatten(input), offset)


def as_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """out[i, j, ..] = element (offset + i * stride[0] + j * stride[1] ..) of the flattened input."""
    v = value_of("as_strided", input)
    at = _strided_positions("as_strided", v, size, stride, storage_offset)
    return getitem(flatten(input) if v.shape else reshape(input, 1), at)


def _strided_positions(
    op: str, v: Value, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> Tensor:
    if len(size) != len(stride):
        raise ArgumentError(f"{op}: size {tuple(size)} and stride {tuple(stride)} must have equal lengths")
    if any(n < 0 for n in (*size, *stride, offset or 0)):
        raise ArgumentError(
            f"{op}: size {tuple(size)}, stride {tuple(stride)} and offset {offset or 0} must not be negative; "
            "use .flip(...) to go backwards"
        )
    at = np.full(tuple(size), offset or 0, np.int64)
    for k, (n, step) in enumerate(zip(size, stride, strict=True)):
        at = at + (np.arange(n) * step).reshape((-1,) + (1,) * (len(size) - k - 1))
    n = elements(v.shape)
    if at.size and isinstance(n, int) and not (at.min() >= 0 and at.max() < n):
        raise ShapeError(
            f"{op}: size {tuple(size)} and stride {tuple(stride)} leave the {n} elements of the input"
        )
    return tensor(at, device=v.node.device)


def unravel_index(indices: Tensor, shape: Int | Sequence[Int]) -> tuple[Tensor, ...]:
    """Positions in a flattened tensor of `shape` as one index per dimension."""
    from weft.core.pointwise.elementwise import floor_divide, remainder

    sizes = (
        [shape]
        if isinstance(shape, int)
        else known_sizes("unravel_index", tuple(cast("Sequence[Int]", shape)))
    )
    if not value_of("unravel_index", indices).dtype.is_int:
        raise DTypeError(f"unravel_index: needs integers, got {describe(indices)}")
    out: list[Tensor] = []
    rest = wrap(bc.cast(indices.value, int64))
    for n in reversed(sizes):
        out.append(remainder(rest, n))
        rest = floor_divide(rest, n)
    return tuple(reversed(out))


# ---------------------------------------------------------------------------------------------- writing parts


def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """The input with src in place of element `index` along dim."""
    k = axis("select_scatter", dim, value_of("select_scatter", input).shape)
    return _written("select_scatter", input, (*[slice(None)] * k, index), src)


def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """The input with src in place of a slice along dim."""
    k = axis("slice_scatter", dim, value_of("slice_scatter", input).shape)
    return _written("slice_scatter", input, (*[slice(None)] * k, slice(start, end, step)), src)


def _written(op: str, input: Tensor, key: Any, src: Tensor) -> Tensor:
    place = getitem(wrap(Value(value_of(op, input).node)), key).value.shape
    if value_of(op, src).shape != place:
        raise ShapeError(f"{op}: src has shape {tuple(src.value.shape)}, its place {tuple(place)}")
    return wrap(setitem(input, key, src))


def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The input with src in place of a diagonal."""
    v = value_of("diagonal_scatter", input)
    place = diagonal(wrap(Value(v.node)), offset, dim1, dim2).value.shape
    if value_of("diagonal_scatter", src).shape != place:
        raise ShapeError(
            f"diagonal_scatter: src has shape {tuple(src.value.shape)}, the diagonal {tuple(place)}"
        )
    a, b = axis("diagonal_scatter", dim1, v.shape), axis("diagonal_scatter", dim2, v.shape)
    n, m = v.shape[a], v.shape[b]
    row, column = max(0, -offset), max(0, offset)
    line = wrap(bc.cast(src.value, v.dtype))
    # the diagonal laid out along the rows, then repeated over the columns
    low, high = row, n - row - place[-1]
    none = [0] * (len(place) - 1)
    filled = wrap(pad_value(line.value, [*none, low], [*none, high]))
    shape = (*place[:-1], n, m)
    wide = expand(unsqueeze(filled, -1), shape)
    i, j = wrap(positions((n, m), 0)), wrap(positions((n, m), 1))
    hit = eq(j - column, i - row)
    wide, mask = movedim(wide, (-2, -1), (a, b)), movedim(expand(hit, shape), (-2, -1), (a, b))
    return where(mask, wide, input)


def as_strided_scatter(
    input: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """The input with src in place of the elements that as_strided would pick."""
    v = value_of("as_strided_scatter", input)
    at = _strided_positions("as_strided_scatter", v, size, stride, storage_offset)
    if value_of("as_strided_scatter", src).shape != at.value.shape:
        raise ShapeError(
            f"as_strided_scatter: src has shape {tuple(src.value.shape)}, its place {tuple(at.value.shape)}"
        )
    return reshape(wrap(setitem(reshape(input, -1), at, src)), v.shape)


def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """The input with elements of its flattened form replaced by (or, with accumulate, increased by) source."""
    from weft.core.layout.gather import check_range, index_value
    from weft.ir.graph import ScatterCombine

    v, s = value_of("put", input), value_of("put", source)
    i = index_value("put", index)
    if elements(i.shape) != elements(s.shape):
        raise ShapeError(
            f"put: index of shape {tuple(i.shape)} and source of shape {tuple(s.shape)} differ in size"
        )
    if s.dtype is not v.dtype:
        raise DTypeError(f"put: source is {s.dtype.name}, input {v.dtype.name}; convert one with .to(...)")
    n, m = elements(v.shape), elements(i.shape)
    if m == 0:
        return wrap(zero_gradient(v, s))
    at = check_range("put", bc.reshape(i, (m,)), n, 0, negative=True)
    combine = ScatterCombine(0, Op.ADD if accumulate else None)
    out = apply(Op.SCATTER, (bc.reshape(v, (n,)), at, bc.reshape(s, (m,))), combine)
    return wrap(bc.reshape(out, v.shape))


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The input with the elements of source, in order, where the mask is true."""
    from weft.core.functions.scans import cumsum
    from weft.core.layout.gather import gather
    from weft.core.layout.movement import broadcast_tensors
    from weft.ir.dtypes import bool_

    if value_of("masked_scatter", mask).dtype is not bool_:
        raise DTypeError(f"masked_scatter: the mask must be bool, got {describe(mask)}")
    v, s = value_of("masked_scatter", input), value_of("masked_scatter", source)
    if s.dtype is not v.dtype:
        raise DTypeError(
            f"masked_scatter: source is {s.dtype.name}, input {v.dtype.name}; convert one with .to(...)"
        )
    x, m = broadcast_tensors(input, mask)
    if not elements(x.value.shape) or not elements(s.shape):
        return x
    before = cumsum(flatten(m), 0) - 1
    last = known_sizes("masked_scatter", (elements(s.shape),))[0] - 1
    picked = gather(flatten(source), 0, before.clamp(0, last))
    return where(m, reshape(picked, x.value.shape), x)


@needs(at_most_dims("index", 1))
def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Slices of source combined into those of the input that index names: "prod", "mean", "amax" or "amin"."""
    from weft.core.layout.gather import index_value, scatter_reduce

    if reduce not in ("prod", "mean", "amax", "amin"):
        raise ArgumentError(f"index_reduce: reduce must be prod, mean, amax or amin, got {reduce!r}")
    v, s = value_of("index_reduce", input), value_of("index_reduce", source)
    k = axis("index_reduce", dim, v.shape)
    n = elements(value_of("index_reduce", index).shape)
    wanted = (*v.shape[:k], n, *v.shape[k + 1 :]) if v.shape else ()
    if s.shape != wanted:
        raise ShapeError(f"index_reduce: source must have shape {tuple(wanted)}, got {describe(source)}")
    if not v.shape:
        input, source = reshape(input, 1), reshape(source, 1)
        return reshape(index_reduce(input, 0, index, source, reduce, include_self=include_self), ())
    i = index_value("index_reduce", index)
    at = bc.expand(bc.reshape(i, (1,) * k + (elements(i.shape),) + (1,) * (len(v.shape) - k - 1)), s.shape)
    return scatter_reduce(input, k, wrap(at), source, reduce, include_self=include_self)


def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The indices of the first `size` nonzero elements, one per row, filled up with fill_value. Stays lazy."""
    from weft.core.functions.reductions import sum
    from weft.core.functions.scans import cumsum
    from weft.core.functions.sorting import searchsorted
    from weft.core.pointwise.elementwise import lt, ne

    v = value_of("nonzero_static", input)
    if not v.shape or not elements(v.shape):
        return wrap(bc.scalar(fill_value, int64, (size, len(v.shape))))
    hit = ne(flatten(input), 0)
    running = cumsum(hit, 0)
    wanted = wrap(positions((size,), 0)) + 1
    at = searchsorted(running, wanted)
    inside = lt(wanted, sum(hit) + 1)
    safe = at.clamp(max=known_sizes("nonzero_static", (elements(v.shape),))[0] - 1)
    parts = [where(inside, p, fill_value) for p in unravel_index(safe, v.shape)]
    return stack(parts, 1)


def slice_copy(
    input: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """A slice along dim."""
    k = axis("slice_copy", dim, value_of("slice_copy", input).shape)
    return getitem(input, (*[slice(None)] * k, slice(start, end, step)))


def sum_to_size(input: Tensor, *size: Any) -> Tensor:
    """Summed over the dimensions that broadcasting from `size` would have stretched."""
    from weft.core.args.axes import sizes
    from weft.core.functions.reductions import sum

    v = value_of("sum_to_size", input)
    wanted = sizes("sum_to_size", size)
    extra = len(v.shape) - len(wanted)
    fits = extra >= 0 and all(m in (1, n) for n, m in zip(v.shape[extra:], wanted, strict=True))
    if not fits:
        raise ShapeError(f"sum_to_size: size {wanted} does not broadcast to shape {tuple(v.shape)}")
    over = [
        *builtins.range(extra),
        *(k + extra for k, m in enumerate(wanted) if m == 1 != v.shape[k + extra]),
    ]
    if not wanted:  # as torch, also where there is nothing to add up: bools and integers become int64
        return sum(input)
    return reshape(sum(input, tuple(over)), wanted) if over else input


def resize_as(input: Tensor, other: Tensor) -> Tensor:
    """The elements in the shape of other, which must have as many."""
    return reshape(input, value_of("resize_as", other).shape)
