"""Functions that rearrange elements. None moves data: they are functions from a result's index to an input's."""
# Tests: tests/core/views/test_views.py, tests/core/test_against_torch.py

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.autograd.context import device_of_files
from weft.autograd.joins import joined
from weft.autograd.value import Value, apply, record, zero_gradient
from weft.core.args import broadcast as bc
from weft.core.args.axes import Sizes, axes, axis, fill_in, is_int, sizes
from weft.core.args.defaults import check_dtype
from weft.core.args.handle import Dims, Handle, Number, describe, own, value_of, wrap
from weft.core.composed.composite import composite
from weft.core.pointwise.elementwise import where
from weft.errors import ArgumentError, DTypeError, IndexError, ShapeError
from weft.ir import graph
from weft.ir.dtypes import DType, bool_, int64, promote, uint8, uint16, uint32, uint64
from weft.ir.graph import Axes, Box, Padding, Shape, Window, arange, elements
from weft.ir.index import Int
from weft.ir.index import high as most
from weft.ir.index import low as least
from weft.ir.ops import Op
from weft.ir.places import placed

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


# ---------------------------------------------------------------------------------------------- shape


def reshape(input: Tensor, *shape: Sizes) -> Tensor:
    """The elements in row-major order in another shape; one size may be -1."""
    v = value_of("reshape", input)
    wanted = fill_in("reshape", sizes("reshape", shape), v.shape)
    return input if wanted == v.shape else wrap(apply(Op.RESHAPE, (v,), None, wanted))


def view(input: Tensor, *shape: Sizes | DType) -> Tensor:
    """As reshape: weft has no strides. With a dtype: the same bits as that dtype; where it is wider or narrower, the
    last dimension gets shorter or longer."""
    if len(shape) == 1 and isinstance(shape[0], DType):
        return bitcast(input, shape[0])
    v = value_of("view", input)
    wanted = fill_in("view", sizes("view", shape), v.shape)
    return input if wanted == v.shape else wrap(apply(Op.RESHAPE, (v,), None, wanted))


_BITS = {1: uint8, 2: uint16, 4: uint32, 8: uint64}


def bitcast(input: Tensor, dtype: DType) -> Tensor:
    """The same bits read as another dtype, in the byte order of x86 and Arm: the first of several is the lowest.

    Shapes: (..., n) -> (..., n * old width / new width); nothing changes where the widths agree.
    """
    v = value_of("view", input)
    check_dtype("view", dtype)
    old, new = v.dtype.itemsize, dtype.itemsize
    if old == new:
        return wrap(apply(Op.BITCAST, (v,), None, None, dtype))
    n = v.shape[-1] if v.shape else None
    if n is None or (new > old and not (isinstance(n, int) and n % (new // old) == 0)):
        raise ShapeError(
            f"view: the last dimension of {tuple(v.shape)} holds {v.dtype.name} of {old} bytes and cannot be read as "
            f"{dtype.name} of {new}; its bytes must be a multiple of {new}"
        )
    bits = wrap(apply(Op.BITCAST, (v,), None, None, _BITS[old]))
    ratio = max(old, new) // min(old, new)
    shifts = wrap(bc.cast(Value(arange(ratio)), _BITS[max(old, new)])) * (8 * min(old, new))
    if new < old:
        parts = bc.cast((unsqueeze(bits, -1) >> shifts).value, _BITS[new])
        whole = bc.reshape(parts, (*v.shape[:-1], n * ratio))
    else:
        parts = bc.cast(bc.reshape(bits.value, (*v.shape[:-1], n // ratio, ratio)), _BITS[new])
        whole = apply(Op.SUM, ((wrap(parts) << shifts).value,), Axes((len(v.shape),)))
    return wrap(apply(Op.BITCAST, (whole,), None, None, dtype))


def view_as(input: Tensor, other: Tensor) -> Tensor:
    """The input in the shape of other."""
    return reshape(input, other.value.shape)


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Dimensions start_dim to end_dim merged into one."""
    v = value_of("flatten", input)
    first, last = axis("flatten", start_dim, v.shape), axis("flatten", end_dim, v.shape)
    if first > last:
        raise ArgumentError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}")
    wanted = (*v.shape[:first], elements(v.shape[first : last + 1]), *v.shape[last + 1 :])
    return input if wanted == v.shape else wrap(bc.reshape(v, wanted))


def ravel(input: Tensor) -> Tensor:
    """All dimensions merged into one. As torch's, a copy where the elements do not lie one after the other."""
    return flatten(input)


def unflatten(input: Tensor, dim: int, sizes: Sequence[Int]) -> Tensor:
    """Dimension dim split into `sizes`, of which one may be -1."""
    v = value_of("unflatten", input)
    k = axis("unflatten", dim, v.shape)
    parts = fill_in("unflatten", tuple(sizes), (v.shape[k],))
    return wrap(bc.reshape(v, (*v.shape[:k], *parts, *v.shape[k + 1 :])))


def squeeze(input: Tensor, dim: Dims | None = None) -> Tensor:
    """Dimensions of size 1 removed: all, or those named."""
    v = value_of("squeeze", input)
    chosen = () if isinstance(dim, (tuple, list)) and not dim else axes("squeeze", dim, v.shape)
    return wrap(bc.reshape(v, tuple(n for k, n in enumerate(v.shape) if k not in chosen or n != 1)))


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """A dimension of size 1 inserted at dim."""
    v = value_of("unsqueeze", input)
    k = axis("unsqueeze", dim, v.shape, extra=1)
    return wrap(bc.reshape(v, (*v.shape[:k], 1, *v.shape[k:])))


def expand(input: Tensor, *sizes_: Sizes) -> Tensor:
    """Dimensions of size 1 repeated to the sizes given; -1 keeps a size, new dimensions may come in front."""
    v = value_of("expand", input)
    wanted = sizes("expand", sizes_)
    extra = len(wanted) - len(v.shape)
    if extra < 0:
        raise ShapeError(f"expand: {wanted} has fewer dimensions than shape {tuple(v.shape)}")
    shape = tuple(
        v.shape[k - extra] if isinstance(n, int) and n == -1 and k >= extra else n
        for k, n in enumerate(wanted)
    )
    for have, want in zip(v.shape, shape[extra:], strict=True):
        if have != want and have != 1:
            raise ShapeError(
                f"expand: shape {tuple(v.shape)} does not expand to {wanted}: only sizes of 1 do"
            )
    if any(isinstance(n, int) and n < 0 for n in shape):
        raise ShapeError(f"expand: sizes must not be negative, got {wanted}")
    return wrap(bc.expand(v, shape))


def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """The input expanded to the shape of other."""
    return expand(input, value_of("expand_as", other).shape)


def broadcast_to(input: Tensor, size: Sequence[Int]) -> Tensor:
    """The input expanded to shape `size`."""
    return expand(input, tuple(size))


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All tensors expanded to their common shape."""
    shape = bc.broadcast_shape("broadcast_tensors", [value_of("broadcast_tensors", t).shape for t in tensors])
    return tuple(t if t.shape == shape else t.expand(shape) for t in tensors)


# ---------------------------------------------------------------------------------------------- order


def permute(input: Tensor, *args: Dims, dims: Dims | None = None) -> Tensor:
    """The dimensions in another order."""
    v = value_of("permute", input)
    if dims is None:
        dims = sizes("permute", args)  # pyright: ignore[reportAssignmentType]  (ints, as axis checks)
    order = tuple(axis("permute", d, v.shape) for d in sizes("permute", (dims,)))
    if sorted(order) != list(range(len(v.shape))):
        raise ArgumentError(
            f"permute: {dims} is no order of the {len(v.shape)} dimensions of shape {tuple(v.shape)}"
        )
    return wrap(_permute(v, order))


def _permute(v: Value, order: tuple[int, ...]) -> Value:
    return v if order == tuple(range(len(order))) else apply(Op.PERMUTE, (v,), Axes(order))


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two dimensions exchanged."""
    v = value_of("transpose", input)
    a, b = axis("transpose", dim0, v.shape), axis("transpose", dim1, v.shape)
    order = list(range(len(v.shape)))
    if order:
        order[a], order[b] = order[b], order[a]
    return wrap(_permute(v, tuple(order)))


def t(input: Tensor) -> Tensor:
    """A matrix transposed; vectors and scalars as they are."""
    v = value_of("t", input)
    if len(v.shape) > 2:
        raise ShapeError(
            f"t: needs at most 2 dimensions, got shape {tuple(v.shape)}; use .mT or .transpose(-2, -1)"
        )
    return wrap(_permute(v, tuple(reversed(range(len(v.shape))))))


def matrix_transpose(input: Tensor) -> Tensor:
    """The last two dimensions exchanged."""
    v = value_of("mT", input)
    if len(v.shape) < 2:
        raise ShapeError(f"mT: needs at least 2 dimensions, got shape {tuple(v.shape)}")
    return transpose(input, -2, -1)


def reverse_dims(input: Tensor) -> Tensor:
    """All dimensions in reverse order."""
    v = value_of("T", input)
    return wrap(_permute(v, tuple(reversed(range(len(v.shape))))))


def movedim(input: Tensor, source: Dims, destination: Dims) -> Tensor:
    """Dimensions moved to other places; the rest keep their order."""
    v = value_of("movedim", input)
    src = [axis("movedim", d, v.shape) for d in ([source] if isinstance(source, int) else source)]
    dst = [
        axis("movedim", d, v.shape) for d in ([destination] if isinstance(destination, int) else destination)
    ]
    if len(src) != len(dst) or len(set(src)) != len(src) or len(set(dst)) != len(dst):
        raise ArgumentError(
            f"movedim: source {source} and destination {destination} must be equally many distinct dimensions"
        )
    rest = iter(k for k in range(len(v.shape)) if k not in src)
    place = dict(zip(dst, src, strict=True))
    return wrap(_permute(v, tuple(place[k] if k in place else next(rest) for k in range(len(v.shape)))))


def flip(input: Tensor, *args: Dims, dims: Dims | None = None) -> Tensor:
    """The elements in reverse order along the dimensions."""
    v = value_of("flip", input)
    if dims is None and not args:
        raise ArgumentError("flip: give the dimensions to reverse, as in flip(x, (0, 1))")
    wanted = sizes("flip", args if dims is None else (dims,))
    chosen = axes("flip", wanted, v.shape) if wanted else ()
    return wrap(apply(Op.FLIP, (v,), Axes(chosen))) if chosen else own(v)


def roll(input: Tensor, shifts: Int | Sequence[Int], dims: Dims | None = None) -> Tensor:
    """The elements moved by `shifts` places along `dims`, those that leave at one end entering at the other."""
    v = value_of("roll", input)
    if isinstance(shifts, Sequence) and not shifts:
        raise ArgumentError("roll: needs at least one shift")
    if dims is None and len(v.shape) != 1:
        return reshape(roll(flatten(input), shifts, 0), v.shape)
    dims = 0 if dims is None else dims
    by_dim = list(shifts) if isinstance(shifts, Sequence) else [shifts]
    along = [dims] if isinstance(dims, int) else list(dims)
    if len(by_dim) != len(along):
        raise ArgumentError(f"roll: {len(by_dim)} shifts for {len(along)} dimensions; give as many of both")
    if not v.shape and along:
        raise IndexError("roll: a tensor without dimensions has none to roll along")
    out = v
    for by, dim in zip(by_dim, along, strict=True):
        k = axis("roll", dim, v.shape)
        n = v.shape[k]
        places = _places(by, n)
        if not isinstance(places, int) or places:
            out = joined([_part(out, k, n - places, places), _part(out, k, 0, n - places)], k)
    return wrap(out)


def _places(by: Int, n: Int) -> Int:
    """The number of elements that `roll` takes from the end of an axis of n to its front."""
    if isinstance(n, int):
        return by % n if n else 0
    if least(by) >= 0 and most(by) <= least(n):
        return by
    if most(by) < 0 and least(by + n) >= 0:
        return by + n
    raise ShapeError(
        f"roll: an axis of {n} elements is rolled by at most {least(n)}, its least size, got {by}"
    )


# ---------------------------------------------------------------------------------------------- parts


def box(
    v: Value, start: tuple[Int, ...], size: tuple[Int, ...], step: tuple[int, ...] | None = None
) -> Value:
    """The elements start, start + step, ... of each axis, as many as `size`."""
    if size == v.shape:
        return v
    return apply(Op.SHRINK, (v,), placed(v.shape, start, step or (1,) * len(start), size), size)


def box_within(v: Value, start: tuple[Int, ...], size: tuple[Int, ...]) -> Value:
    """The same for elements one after the other that are known to be there: no rule looks at them again."""
    if size == v.shape:
        return v
    part, node = Box(start, (1,) * len(start)), v.node
    return record(
        graph.made(Op.SHRINK, (node,), part, size, node.dtype, device_of_files), Op.SHRINK, part, (v,)
    )


def narrow(input: Tensor, dim: int, start: Int | Tensor, length: Int) -> Tensor:
    """`length` elements from `start` along dim."""
    v = value_of("narrow", input)
    if not v.shape:
        raise ShapeError("narrow: a tensor without dimensions has no parts")
    if isinstance(start, Handle):
        if start.value.shape or not start.value.dtype.is_int:
            raise DTypeError(
                f"narrow: start must be an int or an integer tensor without dimensions, got {describe(start)}"
            )
        start = int(wrap(start.value).item())
    k = axis("narrow", dim, v.shape)
    n = v.shape[k]
    if isinstance(n, int) and isinstance(start, int) and isinstance(length, int):
        if not -n <= start <= n:
            raise IndexError(f"narrow: start {start} is out of range for dimension {dim} of size {n}")
        first = start + n if start < 0 else start
        if length < 0 or first < 0 or first + length > n:
            raise ShapeError(
                f"narrow: {length} elements from {start} do not fit dimension {dim} of shape {tuple(v.shape)}"
            )
        start = first
    return wrap(_part(v, k, start, length))


def _part(v: Value, k: int, start: Int, length: Int) -> Value:
    """`length` elements from `start` along axis k, which has them."""
    shape = v.node.shape
    first = (*(0,) * k, start, *(0,) * (len(shape) - k - 1))
    size = (*shape[:k], length, *shape[k + 1 :])
    return (box_within if _INT.issuperset(map(type, (start, *size))) else box)(v, first, size)


_INT = frozenset({int})


def shrink(input: Tensor, ranges: Sequence[tuple[Int, Int] | None]) -> Tensor:
    """The elements from start up to end of each dimension; None keeps a dimension whole."""
    v = value_of("shrink", input)
    if len(ranges) != len(v.shape):
        raise ArgumentError(
            f"shrink: needs {len(v.shape)} ranges for shape {tuple(v.shape)}, got {len(ranges)}"
        )
    pairs = [(0, n) if r is None else r for r, n in zip(ranges, v.shape, strict=True)]
    for (start, end), n in zip(pairs, v.shape, strict=True):
        if least(start) < 0 or least(end - start) < 0 or least(end - n) > 0:
            raise ShapeError(f"shrink: {start} to {end} is no part of a dimension of size {n}")
    return wrap(box(v, tuple(a for a, _ in pairs), tuple(b - a for a, b in pairs)))


def split(input: Tensor, split_size_or_sections: Int | Sequence[Int], dim: int = 0) -> tuple[Tensor, ...]:
    """Consecutive parts along dim: of one size (the last may be smaller), or of the sizes listed."""
    v = value_of("split", input)
    k = axis("split", dim, v.shape)
    n = v.shape[k]
    if not isinstance(split_size_or_sections, Sequence):
        size = split_size_or_sections
        if not isinstance(size, int) or not isinstance(n, int) or size < 1:
            raise ArgumentError(f"split: the size of the parts must be a positive int, got {size}")
        starts = range(0, n, size) if n else (0,)
        return tuple([wrap(_part(v, k, at, min(size, n - at))) for at in starts])
    parts = list(split_size_or_sections)
    total: Int = 0
    for size in parts:
        total = total + size
    if total != n:
        raise ShapeError(
            f"split: sections {parts} add up to {total}, but dimension {dim} of {tuple(v.shape)} has size {n}"
        )
    out: list[Tensor] = []
    at: Int = 0
    for size in parts:
        out.append(narrow(input, k, at, size))
        at = at + size
    return tuple(out)


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` consecutive parts of equal size along dim (the last may be smaller)."""
    v = value_of("chunk", input)
    n = v.shape[axis("chunk", dim, v.shape)]
    if chunks < 1 or not isinstance(n, int):
        raise ArgumentError(f"chunk: needs a positive number of chunks, got {chunks}")
    if n == 0:
        return split(input, [0] * chunks, dim)
    return split(input, -(-n // chunks), dim)


def window(v: Value, k: int, size: int, stride: int, dilation: int) -> Value:
    """Windows of `size` elements sliding over axis k: their number in its place, their elements in a new last axis."""
    n = v.shape[k]
    count = (n - dilation * (size - 1) - 1) // stride + 1
    wide = apply(Op.EXPAND, (bc.reshape(v, (*v.shape, 1)),), None, (*v.shape, size))
    return apply(
        Op.SHEAR,
        (wide,),
        Window(k, len(v.shape), stride, dilation),
        (*v.shape[:k], count, *v.shape[k + 1 :], size),
    )


def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size` elements, `step` apart, along a dimension; their elements in a new last dimension."""
    v = value_of("unfold", input)
    if not is_int(step) or step < 1:
        raise ArgumentError(f"unfold: step must be a positive int, got {describe(step)}")
    if not v.shape:
        axis("unfold", dimension, v.shape)
        v = bc.reshape(v, (1,))
        if size == 0:
            return wrap(box(v, (0,), (0,)))
        if size == 1:
            return wrap(v)
    k = axis("unfold", dimension, v.shape)
    n = v.shape[k] if v.shape else 1
    if size == 0 and step > 0 and isinstance(n, int):
        return wrap(bc.scalar(0, v.dtype, (*v.shape[:k], n // step + 1, *v.shape[k + 1 :], 0)))
    if size < 1 or step < 1 or (isinstance(n, int) and size > n):
        raise ArgumentError(
            f"unfold: windows of {size} every {step} do not fit dimension {dimension} of {tuple(v.shape)}"
        )
    return wrap(window(v, k, size, step, 1))


# ---------------------------------------------------------------------------------------------- joining


def _common(op: str, tensors: Sequence[Tensor]) -> list[Value]:
    if isinstance(tensors, Handle) or not isinstance(tensors, (tuple, list)):
        raise DTypeError(f"{op}: expected a list or tuple of Tensors, got {describe(tensors)}")
    values = [value_of(op, x) for x in tensors]
    if not values:
        raise ArgumentError(f"{op}: needs at least one Tensor")
    dtype = values[0].dtype
    for v in values[1:]:
        dtype = promote(dtype, v.dtype)
    bc.same_device(op, values)
    return [bc.cast(v, dtype) for v in values]


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors one after the other along dim. Their other sizes must agree; dtypes promote."""
    given = _common("cat", tensors)
    # torch's legacy: an empty vector fits anything
    values = [v for v in given if v.shape != (0,)] or given[:1]
    first = values[0]
    if not first.shape:
        raise ShapeError("cat: tensors without dimensions cannot be concatenated; use stack")
    k = axis("cat", dim, first.shape)
    for v in values:
        if v.shape == first.shape:
            continue
        if len(v.shape) != len(first.shape) or any(
            a != b for i, (a, b) in enumerate(zip(v.shape, first.shape, strict=True)) if i != k
        ):
            raise ShapeError(
                f"cat: shapes {tuple(first.shape)} and {tuple(v.shape)} differ in more than dimension {dim}"
            )
    return own(zero_gradient(joined(values, k), *(v for v in given if v.shape == (0,))))


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape joined along a new dimension."""
    values = _common("stack", tensors)
    shape = values[0].shape
    k = axis("stack", dim, shape, extra=1)
    for v in values:
        if v.shape != shape:
            raise ShapeError(f"stack: all shapes must be equal, got {tuple(shape)} and {tuple(v.shape)}")
    parts = [bc.reshape(v, (*shape[:k], 1, *shape[k:])) for v in values]
    return wrap(joined(parts, k))


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors joined along dimension 1, vectors along dimension 0."""
    parts = [x if x.value.shape else reshape(x, 1) for x in tensors]
    return cat(parts, 0 if parts and len(parts[0].value.shape) == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors joined along dimension 0, vectors as rows."""
    return cat([x if len(x.value.shape) > 1 else reshape(x, 1, -1) for x in tensors], 0)


def repeat(input: Tensor, *repeats: Sizes) -> Tensor:
    """The tensor repeated `repeats` times along each dimension; more repeats than dimensions add some in front."""
    v = value_of("repeat", input)
    times = sizes("repeat", repeats)
    extra = len(times) - len(v.shape)
    if extra < 0 or any(isinstance(n, int) and n < 0 for n in times):
        raise ShapeError(
            f"repeat: {times} must have one nonnegative number per dimension of shape {tuple(v.shape)}"
        )
    shape = (1,) * extra + v.shape
    apart: list[Int] = []
    wide: list[Int] = []
    for n, by in zip(shape, times, strict=True):
        apart += [1, n]
        wide += [by, n]
    out = bc.expand(bc.reshape(v, tuple(apart)), tuple(wide))
    return wrap(bc.reshape(out, tuple(n * by for n, by in zip(shape, times, strict=True))))


def tile(input: Tensor, *dims: Sizes) -> Tensor:
    """As repeat, but missing numbers of repeats count as 1."""
    times = sizes("tile", dims)
    return repeat(input, (1,) * (len(value_of("tile", input).shape) - len(times)) + times)


# ---------------------------------------------------------------------------------------------- padding


def pad_value(v: Value, low: Sequence[Int], high: Sequence[Int], fill: Number = 0) -> Value:
    """`v` with `low` elements of `fill` before and `high` after on each axis, both >= 0."""
    if any(low) or any(high):
        return apply(Op.PAD, (v,), Padding(tuple(low), tuple(high), (0,) * len(v.shape), fill))
    return v


def constant_pad(input: Tensor, pad: Sequence[int], value: Number = 0) -> Tensor:
    """Padding as torch writes it: (before, after) of the last dimension, then of the one before it ...; < 0 cuts."""
    v = value_of("pad", input)
    rank = len(v.shape)
    if len(pad) % 2 or len(pad) > 2 * rank:
        raise ArgumentError(
            f"pad: needs pairs for at most {rank} dimensions of shape {tuple(v.shape)}, got {tuple(pad)}"
        )
    low, high = [0] * rank, [0] * rank
    for i in range(len(pad) // 2):
        low[rank - 1 - i], high[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    if any(n < 0 for n in (*low, *high)):
        start = tuple(max(0, -n) for n in low)
        size = tuple(n - s - max(0, -h) for n, s, h in zip(v.shape, start, high, strict=True))
        if any(isinstance(n, int) and n < 0 for n in size):
            raise ShapeError(f"pad: {tuple(pad)} cuts more than shape {tuple(v.shape)} has")
        v = box(v, start, size)
    fill = float(value) if v.dtype.is_float else bool(value) if v.dtype is bool_ else int(value)
    return own(pad_value(v, [max(0, n) for n in low], [max(0, n) for n in high], fill))


# ---------------------------------------------------------------------------------------------- triangles


def positions(shape: Shape, k: int, dtype: DType = int64) -> Value:
    """The index along axis k, in every element of a tensor of this shape."""
    n = shape[k]
    line = Value(arange(n, dtype))
    return bc.expand(bc.reshape(line, (1,) * k + (n,) + (1,) * (len(shape) - k - 1)), shape)


def _triangle(op: str, input: Tensor, diagonal: int, lower: bool) -> Tensor:
    v = value_of(op, input)
    if len(v.shape) < 2:
        raise ShapeError(f"{op}: needs at least 2 dimensions, got shape {tuple(v.shape)}")
    shape = v.shape[-2:]
    row, column = wrap(positions(shape, 0)), wrap(positions(shape, 1))
    keep = column <= row + diagonal if lower else column >= row + diagonal
    return where(keep, input, wrap(bc.scalar(0, v.dtype, ())))


@composite(rounds_once=False)
def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of matrices, zero above `diagonal`."""
    return _triangle("tril", input, diagonal, lower=True)


@composite(rounds_once=False)
def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of matrices, zero below `diagonal`."""
    return _triangle("triu", input, diagonal, lower=False)


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonal over two dimensions, as a new last dimension."""
    v = value_of("diagonal", input)
    a, b = axis("diagonal", dim1, v.shape), axis("diagonal", dim2, v.shape)
    if a == b:
        raise ArgumentError(f"diagonal: dim1 and dim2 are both {dim1}")
    rest = tuple(k for k in range(len(v.shape)) if k not in (a, b))
    moved = _permute(v, (*rest, a, b))
    lead, (n, m) = moved.shape[:-2], moved.shape[-2:]
    row, column = max(0, -offset), max(0, offset)
    if not isinstance(n, int) or not isinstance(m, int):
        raise ShapeError(f"diagonal: the sizes {n} and {m} must be known")
    length = max(0, min(n - row, m - column))
    if not length:
        return wrap(box(moved, (0,) * len(moved.shape), (*lead, 0, 0))).reshape(*lead, 0)
    cut = box(moved, (*(0 for _ in lead), row, column), (*lead, length, length))
    # the element (i, i) of a square lies at i * (length + 1) of its flattened rows
    flat = pad_value(
        bc.reshape(cut, (*lead, length * length)), [*(0 for _ in lead), 0], [*(0 for _ in lead), length]
    )
    rows = bc.reshape(flat, (*lead, length, length + 1))
    return wrap(bc.reshape(box(rows, (0,) * len(rows.shape), (*lead, length, 1)), (*lead, length)))


def diag(input: Tensor, diagonal_: int = 0) -> Tensor:
    """A vector as the diagonal of a matrix, or a matrix's diagonal as a vector."""
    v = value_of("diag", input)
    if len(v.shape) == 2:
        return diagonal(input, diagonal_)
    if len(v.shape) != 1:
        raise ShapeError(f"diag: needs 1 or 2 dimensions, got shape {tuple(v.shape)}")
    n = v.shape[0] + builtins.abs(diagonal_)
    line = pad_value(v, [max(0, diagonal_)], [max(0, -diagonal_)])
    row, column = wrap(positions((n, n), 0)), wrap(positions((n, n), 1))
    return where(column == row + diagonal_, wrap(bc.expand(line, (n, n))), wrap(bc.scalar(0, v.dtype, ())))


def meshgrid(*tensors: Tensor | Sequence[Tensor], indexing: str = "ij") -> tuple[Tensor, ...]:
    """Vectors expanded over the grid of all of them. indexing "xy" exchanges the first two dimensions."""
    if indexing not in ("ij", "xy"):
        raise ArgumentError(f"meshgrid: indexing must be 'ij' or 'xy', got {indexing!r}")
    flat_list = [x for given in tensors for x in ((given,) if isinstance(given, Handle) else given)]
    values = [value_of("meshgrid", x) for x in flat_list]
    if not values:
        raise ArgumentError("meshgrid: needs at least one tensor")
    for x in flat_list:
        if len(x.value.shape) > 1 or x.value.dtype is not values[0].dtype:
            raise ShapeError(
                f"meshgrid: needs vectors of one dtype, got {describe(flat_list[0])} and {describe(x)}"
            )
    order = list(range(len(values)))
    if indexing == "xy" and len(values) > 1:
        order[0], order[1] = 1, 0
    shape = tuple(elements(values[k].shape) for k in order)
    out: list[Tensor] = []
    for i, v in enumerate(values):
        place = order.index(i)
        flat = (1,) * place + (elements(v.shape),) + (1,) * (len(shape) - place - 1)
        out.append(flat_list[i].reshape(flat).expand(shape))
    return tuple(out)


def contiguous(input: Tensor, memory_format: Any = None) -> Tensor:
    """The same values, in memory of their own: what comes before and after is never fused into one kernel. What has
    such memory already is given as it is."""
    v = value_of("contiguous", input)
    if memory_format is not None:
        from weft.core.args.switches import check_memory_format, preserve_format

        check_memory_format("contiguous", memory_format, len(v.shape))
        if memory_format is preserve_format:
            raise ArgumentError("contiguous: weft.preserve_format is for copies; leave it out")
    return input if v.node.op is Op.BUFFER else wrap(apply(Op.CONTIGUOUS, (v,)))
