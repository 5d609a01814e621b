"""Elements picked or combined by index tensors."""
# Tests: tests/core/test_against_torch.py

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weft.autograd.value import Value, apply, zero_gradient
from weft.core.args import broadcast as bc
from weft.core.args.axes import axis, is_int
from weft.core.args.handle import Handle, Number, describe, value_of, wrap
from weft.core.args.requirements import at_most_dims, needs
from weft.core.execute import run
from weft.core.execute.writes import known_ranges
from weft.core.layout.creation import tensor
from weft.core.layout.movement import box, flatten, positions
from weft.core.pointwise.elementwise import eq, lt, where
from weft.errors import ArgumentError, DTypeError, IndexError, ShapeError
from weft.ir.dtypes import bool_, float32, float64, int64, uint8
from weft.ir.graph import Along, Fill, ScatterCombine, elements
from weft.ir.index import Int
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def index_range(v: Value) -> tuple[int, int] | None:
    """The smallest and largest index, if the values are there already and the host can read them."""
    node = v.node
    while node.op in (Op.RESHAPE, Op.EXPAND, Op.PERMUTE, Op.CAST) and node.storage is None:
        node = node.inputs[0]
    if node.op is Op.CONST and isinstance(node.attrs, Fill):
        return int(node.attrs.value), int(node.attrs.value)
    found = known_ranges.get(node)
    if found is None:
        array = run.host_array(node)
        if array is None or not array.size:
            return None
        found = known_ranges[node] = int(array.min()), int(array.max())
    return found


def check_range(op: str, v: Value, size: Int, dim: int, negative: bool) -> Value:
    """`v` with negative indices counted from the end; IndexError if one is known to be out of range."""
    known = index_range(v)
    if known is not None and isinstance(size, int):
        low = -size if negative else 0
        bad = known[0] if known[0] < low else known[1]
        if not low <= bad < size:
            raise IndexError(f"{op}: index {bad} is out of range for dimension {dim} of size {size}")
    if not negative or v.dtype.kind.name == "UINT" or (known is not None and known[0] >= 0):
        return v
    i = wrap(Value(v.node))
    if isinstance(size, int):
        return where(lt(i, 0), i + size, i).value
    return where(lt(i, 0), i + bc.size_tensor(size, v.dtype), i).value


def index_value(op: str, index: object) -> Value:
    """The value of an index tensor; DTypeError unless it holds integers. As in torch, no bytes: they were masks."""
    v = value_of(op, index)
    if v.dtype is uint8 and elements(v.shape):
        raise DTypeError(f"{op}: indices must be int32 or int64, got uint8; convert them with .long()")
    if not v.dtype.is_int:
        raise DTypeError(f"{op}: indices must be integers, got {v.dtype.name}; convert them with .long()")
    return v


def _picking(op: str, input: Tensor, index: Tensor) -> tuple[Value, Value]:
    """Both values; the index holds integers, and both are on one device."""
    v, i = value_of(op, input), index_value(op, index)
    bc.same_device(op, (v, i))
    return v, i


def _along(op: str, input: Tensor, dim: int, index: Tensor) -> tuple[Value, int, Value]:
    v, i = _picking(op, input, index)
    if len(v.shape) != len(i.shape):
        raise ShapeError(
            f"{op}: input and index must have equally many dimensions, got shapes {tuple(v.shape)} and {tuple(i.shape)}"
        )
    k = axis(op, dim, v.shape)
    return v, k, check_range(op, i, v.shape[k] if v.shape else 1, k, negative=False)


def gather(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """out[i, j, ..] = input[index[i, j, ..], j, ..] for dim 0, and so on. Negative indices are refused.

    Indices that are only known when computed are clamped into range.
    """
    if len(value_of("gather", input).shape) != len(value_of("gather", index).shape):
        input, index, scalar = _lifted("gather", input, index)
        if scalar is not None:
            return wrap(bc.reshape(gather(input, dim, index).value, scalar))
    v, k, i = _along("gather", input, dim, index)
    if not v.shape:
        return wrap(v)
    if not elements(i.shape):
        return wrap(zero_gradient(bc.scalar(0, v.dtype, i.shape), v))
    size = tuple(n if d == k else i.shape[d] for d, n in enumerate(v.shape))
    _fits("gather", v, i, k)
    return wrap(apply(Op.GATHER, (box(v, (0,) * len(size), size), i), Along(k)))


def _lifted(op: str, input: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Any]:
    """torch takes a tensor without dimensions for a vector of one, and any index without elements."""
    v, i = value_of(op, input), index_value(op, index)
    if not elements(i.shape):
        zero = bc.scalar(0, int64, (0,) * max(1, len(v.shape)))
        return (input if v.shape else wrap(bc.reshape(v, (1,)))), wrap(zero), i.shape
    if {len(v.shape), len(i.shape)} == {0, 1}:
        shape = i.shape
        return wrap(bc.reshape(v, (elements(v.shape),))), wrap(bc.reshape(i, (elements(i.shape),))), shape
    return input, index, None


def _fits(op: str, v: Value, i: Value, k: int) -> None:
    for d, (n, m) in enumerate(zip(v.shape, i.shape, strict=True)):
        if d != k and isinstance(n, int) and isinstance(m, int) and m > n:
            raise ShapeError(
                f"{op}: index of shape {tuple(i.shape)} exceeds shape {tuple(v.shape)} in dimension {d}"
            )


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """As gather, but the other dimensions broadcast and negative indices count from the end; dim None flattens both."""
    v, i = _picking("take_along_dim", input, indices)
    if dim is None:
        flat = wrap(bc.reshape(v, (elements(v.shape),)))
        return take_along_dim(flat, wrap(bc.reshape(i, (elements(i.shape),))), 0)
    if len(v.shape) != len(i.shape):
        raise ShapeError(
            f"take_along_dim: shapes {tuple(v.shape)} and {tuple(i.shape)} must have equally many dimensions"
        )
    k = axis("take_along_dim", dim, v.shape)
    ones = tuple(1 if d == k else n for d, n in enumerate(v.shape))
    shape = bc.broadcast_shape(
        "take_along_dim", [ones, tuple(1 if d == k else n for d, n in enumerate(i.shape))]
    )
    wide = bc.expand(v, tuple(v.shape[d] if d == k else n for d, n in enumerate(shape)))
    at = bc.expand(i, tuple(i.shape[d] if d == k else n for d, n in enumerate(shape)))
    at = check_range("take_along_dim", at, v.shape[k], k, negative=True)
    return wrap(apply(Op.GATHER, (wide, at), Along(k)))


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices along dim that a vector of indices names."""
    v, i = _picking("index_select", input, index)
    if len(i.shape) > 1:
        raise ShapeError(f"index_select: index must be a vector, got shape {tuple(i.shape)}")
    k = axis("index_select", dim, v.shape)
    if not v.shape:
        return wrap(bc.reshape(rows(bc.reshape(v, (1,)), 0, bc.reshape(i, (1,))), ()))
    i = check_range("index_select", i, v.shape[k], k, negative=True)
    return wrap(rows(v, k, bc.reshape(i, (elements(i.shape),))))


def rows(v: Value, k: int, i: Value) -> Value:
    """v[.., i, ..] along axis k for a vector of indices."""
    n = i.shape[0]
    shape = (*v.shape[:k], n, *v.shape[k + 1 :])
    at = bc.expand(bc.reshape(i, (1,) * k + (n,) + (1,) * (len(shape) - k - 1)), shape)
    return apply(Op.GATHER, (v, at), Along(k))


def take(input: Tensor, index: Tensor) -> Tensor:
    """Elements of the flattened input, in the shape of index."""
    v, i = _picking("take", input, index)
    n = elements(v.shape)
    flat = check_range("take", bc.reshape(i, (elements(i.shape),)), n, 0, negative=True)
    return wrap(bc.reshape(rows(bc.reshape(v, (n,)), 0, flat), i.shape))


_REDUCTIONS: dict[str, Op] = {
    "add": Op.ADD, "sum": Op.ADD, "multiply": Op.MUL, "prod": Op.MUL, "amax": Op.MAX, "amin": Op.MIN,
}  # fmt: skip


def _source(op: str, v: Value, i: Value, src: Tensor | Number) -> Value:
    if not isinstance(src, Handle):
        return bc.scalar(src, v.dtype, i.shape)
    s = src.value
    if s.dtype is not v.dtype:
        raise DTypeError(f"{op}: src is {s.dtype.name}, input {v.dtype.name}; convert one with .to(...)")
    if len(s.shape) != len(i.shape) or any(
        isinstance(m, int) and isinstance(n, int) and m > n for m, n in zip(i.shape, s.shape, strict=True)
    ):
        raise ShapeError(f"{op}: index of shape {tuple(i.shape)} exceeds src of shape {tuple(s.shape)}")
    return box(s, (0,) * len(i.shape), i.shape)


_OF_BOOLS = {Op.ADD: Op.OR, Op.MUL: Op.AND, Op.MAX: Op.OR, Op.MIN: Op.AND}


def _scatter(op: str, v: Value, k: int, i: Value, s: Value, combine: Op | None) -> Value:
    """SCATTER, which wants equal sizes beside axis k; index may cover less of the input, so that part is updated."""
    bc.same_device(op, (v, i, s))
    _fits(op, v, i, k)
    if not v.shape:
        if combine is None:
            return zero_gradient(s, v)
        return apply(_OF_BOOLS[combine] if v.dtype is bool_ else combine, (v, s))
    part_shape = tuple(n if d == k else i.shape[d] for d, n in enumerate(v.shape))
    if part_shape == v.shape:
        return apply(Op.SCATTER, (v, i, s), ScatterCombine(k, combine))
    from weft.ir.graph import Box

    zero, one = (0,) * len(v.shape), (1,) * len(v.shape)
    part = apply(Op.SCATTER, (box(v, zero, part_shape), i, s), ScatterCombine(k, combine))
    return apply(Op.UPDATE, (v, part), Box(zero, one))


def scatter(
    input: Tensor, dim: int, index: Tensor, src: Tensor | Number, *, reduce: str | None = None
) -> Tensor:
    """The input with out[index[i, j, ..], j, ..] = src[i, j, ..] for dim 0, and so on; reduce: "add" or "multiply".

    Where several elements go to one place, the last in row-major order stays.
    """
    v, k, i = _along("scatter", input, dim, index)
    if reduce not in (None, "add", "multiply"):
        raise ArgumentError(f"scatter: reduce must be None, 'add' or 'multiply', got {reduce!r}")
    combine = _REDUCTIONS[reduce] if reduce else None
    return wrap(_scatter("scatter", v, k, i, _source("scatter", v, i, src), combine))


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """The input with src[i, j, ..] added at [index[i, j, ..], j, ..] for dim 0, and so on."""
    v, k, i = _along("scatter_add", input, dim, index)
    return wrap(_scatter("scatter_add", v, k, i, _source("scatter_add", v, i, src), Op.ADD))


def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Elements of src combined at their index: "sum", "prod", "mean", "amax" or "amin"."""
    v, k, i = _along("scatter_reduce", input, dim, index)
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise ArgumentError(f"scatter_reduce: reduce must be sum, prod, mean, amax or amin, got {reduce!r}")
    s = _source("scatter_reduce", v, i, src)
    combine = _REDUCTIONS.get(reduce, Op.ADD)
    neutral: dict[Op, Number] = {Op.ADD: 0, Op.MUL: 1, Op.MAX: v.dtype.min, Op.MIN: v.dtype.max}
    out = base = v
    if not include_self:
        start = bc.scalar(neutral[combine], v.dtype, i.shape)
        base = _scatter("scatter_reduce", v, k, i, start, None)
    out = wrap(_scatter("scatter_reduce", base, k, i, s, combine))
    if reduce != "mean":
        return out
    ones = bc.scalar(1, int64, i.shape)
    hits = wrap(_scatter("scatter_reduce", bc.scalar(int(include_self), int64, v.shape), k, i, ones, Op.ADD))
    many = where(lt(hits, 1), 1, hits)
    return wrap(bc.cast((out / many if v.dtype.is_float else out // many).value, v.dtype))


@needs(at_most_dims("index", 1))
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1) -> Tensor:
    """The input with alpha * source[j] added to slice index[j] along dim."""
    v, i = value_of("index_add", input), index_value("index_add", index)
    k = axis("index_add", dim, v.shape)
    return wrap(_indexed("index_add", v, k, i, source if alpha == 1 else source * alpha, Op.ADD))


@needs(at_most_dims("index", 1))
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """The input with slice index[j] along dim replaced by source[j]."""
    v, i = value_of("index_copy", input), index_value("index_copy", index)
    return wrap(_indexed("index_copy", v, axis("index_copy", dim, v.shape), i, source, None))


@needs(at_most_dims("index", 1))
def index_fill(input: Tensor, dim: int, index: Tensor, value: Tensor | Number) -> Tensor:
    """The input with the slices that index names filled with a value."""
    v, i = value_of("index_fill", input), index_value("index_fill", index)
    k = axis("index_fill", dim, v.shape)
    if not v.shape:
        return wrap(bc.reshape(index_fill(wrap(bc.reshape(v, (1,))), 0, index, value).value, ()))
    if isinstance(value, Handle):
        if value.value.shape:
            raise ShapeError(f"index_fill: the value must have no dimensions, got {describe(value)}")
        shape = (*v.shape[:k], elements(i.shape), *v.shape[k + 1 :])
        filled = wrap(bc.expand(bc.cast(value.value, v.dtype), shape))
        return wrap(_indexed("index_fill", v, k, i, filled, None))
    shape = (*v.shape[:k], elements(i.shape), *v.shape[k + 1 :])
    return wrap(_indexed("index_fill", v, k, i, wrap(bc.scalar(value, v.dtype, shape)), None))


def _indexed(op: str, v: Value, k: int, i: Value, source: Tensor, combine: Op | None) -> Value:
    if not v.shape:
        given = value_of(op, source)
        if elements(given.shape) != 1 or (given.shape and op == "index_add"):
            raise ShapeError(f"{op}: source must have the input's shape, (), got {describe(source)}")
        flat = wrap(bc.reshape(given, (1,)))
        return bc.reshape(_indexed(op, bc.reshape(v, (1,)), 0, i, flat, combine), ())
    i = check_range(op, bc.reshape(i, (elements(i.shape),)), v.shape[k], k, negative=op != "index_add")
    n = i.shape[0]
    shape = (*v.shape[:k], n, *v.shape[k + 1 :])
    s = value_of(op, source)
    if s.shape != shape or s.dtype is not v.dtype:
        raise ShapeError(
            f"{op}: source must be {v.dtype.name} of shape {tuple(shape)}, got {describe(source)}"
        )
    at = bc.expand(bc.reshape(i, (1,) * k + (n,) + (1,) * (len(shape) - k - 1)), shape)
    return _scatter(op, v, k, at, s, combine)


def check_mask(op: str, mask: object) -> Value:
    """The value of a mask; DTypeError for what is not bool."""
    m = value_of(op, mask)
    if m.dtype is not bool_:
        raise DTypeError(
            f"{op}: the mask must be bool, got {m.dtype.name}; compare it with something, as in x != 0"
        )
    return m


def masked_fill(input: Tensor, mask: Tensor, value: Tensor | Number) -> Tensor:
    """`value` where the mask is true, else the input."""
    v, m = value_of("masked_fill", input), check_mask("masked_fill", mask)
    if isinstance(value, Handle):
        if value.value.shape:
            raise ShapeError(
                f"masked_fill: the value must have no dimensions, got shape {tuple(value.value.shape)}"
            )
        fill = wrap(bc.cast(value.value, v.dtype))
    else:
        fill = wrap(bc.scalar(bc.fitting("masked_fill", value, v.dtype), v.dtype, ()))
    return where(wrap(m), fill, input)


def one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    """A new last dimension of num_classes with 1 at the index and 0 elsewhere, int64. -1: one more than the largest."""
    i = index_value("one_hot", input)
    known = index_range(i)
    if num_classes == -1:
        array = run.to_numpy(i.node)
        if not array.size:
            raise ArgumentError("one_hot: num_classes must be given for a tensor without elements")
        known = int(np.min(array)), int(np.max(array))
        num_classes = known[1] + 1
    if known is not None and not (known[0] >= 0 and known[1] < num_classes):
        bad = known[0] if known[0] < 0 else known[1]
        raise IndexError(
            f"one_hot: class {bad} is out of range for {max(num_classes, 0)} classes; they count from 0"
        )
    shape = (*i.shape, num_classes)
    column = wrap(positions(shape, len(shape) - 1, i.dtype))
    return wrap(bc.cast(eq(wrap(bc.expand(bc.reshape(i, (*i.shape, 1)), shape)), column).value, int64))


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Counts of each nonnegative integer. Computes the input's maximum, on which the size depends."""
    i = index_value("bincount", input)
    array = run.to_numpy(i.node)
    if array.size and array.min() < 0:
        raise ArgumentError(f"bincount: needs integers that are not negative, got {array.min()}")
    n = max(minlength, int(array.max()) + 1 if array.size else 0)
    source = wrap(bc.scalar(1, int64, i.shape)) if weights is None else weights
    if source.value.shape != i.shape:
        raise ShapeError(
            f"bincount: weights of shape {tuple(source.value.shape)} for input of {tuple(i.shape)}"
        )
    if weights is not None and source.value.dtype is not float32:
        source = wrap(bc.cast(source.value, float64))
    return scatter_add(wrap(bc.scalar(0, source.value.dtype, (n,))), 0, wrap(i), source)


def repeat_interleave(
    input: Tensor,
    repeats: int | Tensor | None = None,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> Tensor:
    """Each element repeated `repeats` times in place, along dim or of the flattened tensor.

    A tensor of repeats, one for each element, is computed, since the size of the result depends on it. Without
    repeats, the input holds them, and the result is 0 repeated input[0] times, 1 input[1] times, and so on.
    """
    if repeats is None:
        counts = np.asarray(wrap(input.value).tolist(), np.int64)
        return tensor(
            np.repeat(np.arange(counts.size, dtype=np.int64), counts), device=input.value.node.device
        )
    if dim is None:
        return repeat_interleave(flatten(input), repeats, 0)
    v = value_of("repeat_interleave", input)
    if isinstance(repeats, Handle):
        return _repeated(v, axis("repeat_interleave", dim, v.shape), wrap(repeats.value))
    if not is_int(repeats) or repeats < 0:
        raise ArgumentError(f"repeat_interleave: repeats must be an int from 0, got {describe(repeats)}")
    k = axis("repeat_interleave", dim, v.shape)
    shape = v.shape
    wide = bc.expand(
        bc.reshape(v, (*shape[: k + 1], 1, *shape[k + 1 :])), (*shape[: k + 1], repeats, *shape[k + 1 :])
    )
    return wrap(bc.reshape(wide, (*shape[:k], shape[k] * repeats, *shape[k + 1 :])))


def _repeated(v: Value, k: int, repeats: Tensor) -> Tensor:
    if not repeats.value.dtype.is_int or len(repeats.value.shape) > 1:
        raise DTypeError(f"repeat_interleave: repeats must be a vector of integers, got {describe(repeats)}")
    counts = np.atleast_1d(np.asarray(repeats.tolist(), np.int64))
    n = v.shape[k] if v.shape else 1
    if len(counts) not in (1, n):
        raise ShapeError(
            f"repeat_interleave: {len(counts)} repeats for dimension {k} of shape {tuple(v.shape)}"
        )
    if (counts < 0).any():
        raise ArgumentError("repeat_interleave: repeats must not be negative")
    if not isinstance(n, int):
        raise ShapeError(f"repeat_interleave: the size {n} of dimension {k} must be known")
    times = counts if len(counts) == n else np.full(n, counts[0], np.int64)
    return index_select(
        wrap(v), k, tensor(np.repeat(np.arange(n, dtype=np.int64), times), device=v.node.device)
    )
