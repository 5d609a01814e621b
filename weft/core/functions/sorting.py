"""Ordering: sort and what follows from it. Sorting is stable and runs on the device: see `radix_sort`."""
# Tests: tests/core/functions/test_radix_sort.py, tests/core/test_surface.py

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from weft.autograd.value import Value, apply, composed
from weft.core.args import broadcast as bc
from weft.core.args.axes import axis, is_int
from weft.core.args.handle import Handle, TensorLike, describe, value_of, wrap
from weft.core.args.requirements import needs, no_bools
from weft.core.composed.composite import composite
from weft.core.composed.known_values import check_known
from weft.core.execute import run
from weft.core.functions import selection
from weft.core.functions.radix_sort import order
from weft.core.functions.reductions import any, argmax, shared_by_equals, sum
from weft.core.functions.scans import cummax
from weft.core.layout.creation import tensor
from weft.core.layout.gather import gather
from weft.core.layout.movement import (
    flatten,
    narrow,
    pad_value,
    positions,
    reshape,
    squeeze,
    transpose,
    unsqueeze,
)
from weft.core.pointwise.elementwise import (
    bitwise_not,
    ceil,
    eq,
    floor,
    ge,
    gt,
    isnan,
    lerp,
    logical_and,
    logical_not,
    lt,
    minimum,
    ne,
    round,
    where,
)  # fmt: skip
from weft.core.pointwise.float_format import raw_bits
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import bool_, int32, int64, uint8, uint64
from weft.ir.graph import elements
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


class Sorted(NamedTuple):
    """Values in order, and where each was."""

    values: Tensor
    indices: Tensor


# ---------------------------------------------------------------------------------------------- sort


def _keys(v: Value, descending: bool) -> Value:
    """Integers in the order of the values: NaN above all numbers, -0.0 equal to 0.0."""
    x = wrap(Value(v.node))
    if v.dtype is bool_:
        key = wrap(bc.cast(x.value, uint8))
    elif v.dtype.is_float:
        whole = raw_bits(v)
        rest = int(whole.value.dtype.max)
        key = where(lt(whole, 0), whole ^ rest, whole)
        key = where(isnan(x), rest, where(eq(x, 0), 0, key))
    else:
        key = x
    return (bitwise_not(key) if descending else key).value


def _known(op: str, v: Value, dim: int) -> tuple[int, int]:
    k = axis(op, dim, v.shape)
    n = v.shape[k] if v.shape else 1
    if not isinstance(n, int):
        raise ShapeError(f"{op}: the size {n} of dimension {dim} must be known")
    return k, n


@composite(rounds_once=False)
def _ordered(op: str, input: Tensor, dim: int, descending: bool, keep: int | None = None) -> Sorted:
    v = value_of(op, input)
    k, n = _known(op, v, dim)
    if not v.shape:
        if keep == 0:
            return Sorted(narrow(reshape(input, 1), 0, 0, 0), wrap(bc.scalar(0, int64, (0,))))
        return Sorted(wrap(v), wrap(bc.scalar(0, int64, ())))
    count = n if keep is None else keep
    if 0 in (*v.shape, count):
        shape = (*v.shape[:k], count, *v.shape[k + 1 :])
        return Sorted(narrow(input, k, 0, count), wrap(bc.scalar(0, int64, shape)))
    if n == 1:
        return Sorted(wrap(v), wrap(bc.scalar(0, int64, v.shape)))
    keys = transpose(wrap(_keys(v, descending)), k, -1)
    indices = transpose(wrap(bc.cast(order(keys.value, count), int64)), k, -1)
    return Sorted(gather_free(input, k, indices), indices)


def gather_free(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """gather with indices that are known to fit."""
    from weft.ir.graph import Along

    return wrap(apply(Op.GATHER, (input.value, index.value), Along(dim)))


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool | None = False) -> Sorted:
    """The elements along dim, ascending, and where each was; equal ones keep their order, NaN counts as largest."""
    return _ordered("sort", input, dim, descending)


def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The indices that sort the elements along dim."""
    return _ordered("argsort", input, dim, descending).indices


def msort(input: Tensor) -> Tensor:
    """Sorted along dimension 0."""
    return _ordered("msort", input, 0, False).values


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Sorted:
    """The k largest (or smallest) elements along dim, in order, and where each was."""
    v = value_of("topk", input)
    d, n = _known("topk", v, dim)
    if not is_int(k) or not 0 <= k <= n:
        raise ArgumentError(f"topk: k must be from 0 to {n}, the size of dimension {dim}, got {k}")
    if v.dtype is bool_:
        raise DTypeError("topk: not defined on bool; convert with .to(weft.uint8)")
    return _ordered("topk", input, d, largest, k)


@needs(no_bools("input"))
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Sorted:
    """The k-th smallest element along dim, counted from 1, and where it was."""
    v = value_of("kthvalue", input)
    d, n = _known("kthvalue", v, dim)
    if not is_int(k) or not 1 <= k <= n:
        raise ArgumentError(f"kthvalue: k must be from 1 to {n}, the size of dimension {dim}, got {k}")
    return _kth(input, d, n, k, keepdim)


@composite(rounds_once=False)
def _kth(input: Tensor, d: int, n: int, k: int, keepdim: bool) -> Sorted:
    v = input.value
    if v.shape and _searched(v, n):
        return _selected(input, d, selection.kth(_last(v, d), k - 1), keepdim)
    found = _ordered("kthvalue", input, d, False, k)
    return _pick(found, d, k - 1, keepdim) if v.shape else found


def _searched(v: Value, n: int) -> bool:
    """True where one element of so many is found faster without sorting."""
    return n >= selection.PAYS and v.dtype is not uint64


def _last(v: Value, d: int) -> Value:
    """The keys of ascending order, dimension d last."""
    return transpose(wrap(_keys(v, False)), d, -1).value


@composite(rounds_once=False)
def _selected(input: Tensor, d: int, place: Value, keepdim: bool) -> Sorted:
    """The element of each row, dimension d last there, that `place` names."""
    at = transpose(wrap(bc.cast(place, int64)), d, -1)
    return Sorted(*(p if keepdim else squeeze(p, d) for p in (gather_free(input, d, at), at)))


def _pick(found: Sorted, d: int, at: int, keepdim: bool) -> Sorted:
    parts = (narrow(found.values, d, at, 1), narrow(found.indices, d, at, 1))
    return Sorted(*(p if keepdim else squeeze(p, d) for p in parts))


# ---------------------------------------------------------------------------------------------- median, quantile, mode


@needs(no_bools("input"))
def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median of all elements, or along dim with its index; NaN if there is one."""
    return _median("median", input, dim, keepdim, ignore_nan=False)


@needs(no_bools("input"))
def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """As median, of the elements that are not NaN."""
    return _median("nanmedian", input, dim, keepdim, ignore_nan=True)


@composite(rounds_once=False)
def _median(op: str, input: Tensor, dim: int | None, keepdim: bool, ignore_nan: bool) -> Any:
    v = value_of(op, input)
    if dim is None:
        if not elements(v.shape):
            return wrap(bc.scalar(math.nan if v.dtype.is_float else int(v.dtype.min), v.dtype, ()))
        found = _median(op, flatten(wrap(Value(v.node))), 0, False, ignore_nan)
        return wrap(composed(found.values.value.node, (v,), shared_by_equals))
    d, n = _known(op, v, dim)
    if not v.shape:
        return Sorted(input, wrap(bc.scalar(0, int64, ())))
    if n == 0:
        raise ShapeError(f"{op}: shape {tuple(v.shape)} has no elements along dimension {dim}")
    if _searched(v, n):
        place = selection.median(_last(v, d), v.dtype.is_float, ignore_nan)
        return _selected(input, d, place, keepdim)
    found = _ordered(op, input, d, False)
    if not v.dtype.is_float:
        return _pick(found, d, (n - 1) // 2, keepdim)
    nan = isnan(wrap(Value(v.node)))
    bad = sum(nan, d, keepdim=True)
    if ignore_nan:
        at = where(lt(bad, n), (n - 1 - bad) // 2, 0)
    else:  # the first NaN follows the numbers
        at = where(gt(bad, 0), n - bad, (n - 1) // 2)
    at = wrap(bc.cast(at.value, int64))
    values, indices = gather_free(found.values, d, at), gather_free(found.indices, d, at)
    return Sorted(*(p if keepdim else squeeze(p, d) for p in (values, indices)))


_INTERPOLATION = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(
    input: Tensor,
    q: Tensor | float,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """The value below which a fraction q of the elements lies; NaN if there is one among them."""
    return _quantile("quantile", input, q, dim, keepdim, interpolation, ignore_nan=False)


def nanquantile(
    input: Tensor,
    q: Tensor | float,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """As quantile, of the elements that are not NaN."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, ignore_nan=True)


_ROUNDED = {"lower": floor, "higher": ceil, "nearest": round}
"""The interpolations that are an element: the one at the place so rounded."""


def _element(ordered: Tensor, place: Tensor) -> Tensor:
    """The elements of rows at whole places."""
    return gather_free(ordered, len(ordered.value.shape) - 1, wrap(bc.cast(place.detach().value, int64)))


def _quantile(
    op: str,
    input: Tensor,
    q: Tensor | float,
    dim: int | None,
    keepdim: bool,
    interpolation: str,
    ignore_nan: bool,
) -> Tensor:
    v = value_of(op, input)
    if v.dtype.name not in ("float32", "float64"):
        raise DTypeError(f"{op}: needs float32 or float64, got {v.dtype.name}; convert it with .float()")
    if interpolation not in _INTERPOLATION:
        raise ArgumentError(
            f"{op}: interpolation must be one of {', '.join(_INTERPOLATION)}, got {interpolation!r}"
        )
    if isinstance(q, Handle):
        at = q.value
        if at.dtype is not v.dtype:
            raise DTypeError(f"{op}: q must be {v.dtype.name} like the input, got {at.dtype.name}")
        if len(at.shape) > 1:
            raise ShapeError(f"{op}: q must be a scalar or a vector, got shape {tuple(at.shape)}")
        check_known(op, "q", at, 0, 1)
    elif not 0 <= q <= 1:
        raise ArgumentError(f"{op}: q must be from 0 to 1, got {q}")
    return _quantiles(
        op, input, q if isinstance(q, Handle) else float(q), dim, keepdim, interpolation, ignore_nan
    )


@composite(rounds_once=False)
def _quantiles(
    op: str,
    input: Tensor,
    q: Tensor | float,
    dim: int | None,
    keepdim: bool,
    interpolation: str,
    ignore_nan: bool,
) -> Tensor:
    """The quantiles at fractions that are right."""
    v = input.value
    at = wrap(q.value) if isinstance(q, Handle) else wrap(bc.scalar(float(q), v.dtype, ()))
    rank = len(v.shape)
    d = 0 if dim is None else axis(op, dim, v.shape)
    x = flatten(input) if dim is None or not v.shape else transpose(input, d, -1)
    n = x.value.shape[-1]
    if not isinstance(n, int) or n == 0:
        raise ShapeError(f"{op}: the input must have elements, got shape {tuple(v.shape)}")
    ordered = _ordered(op, x, -1, False).values if n > 1 else x
    bad = sum(isnan(wrap(Value(x.value.node))), -1, keepdim=True)
    fraction = at.reshape((-1,))  # (m,)
    last = wrap(bc.cast((n - 1 - bad if ignore_nan else bad * 0 + (n - 1)).value, v.dtype))
    place = fraction * last.clamp(min=0)  # (.., m)
    if not ignore_nan:
        place = where(gt(bad, 0), wrap(bc.scalar(n - 1, v.dtype, ())), place)  # NaNs are the largest
    pick = _ROUNDED.get(interpolation)
    out = _element(ordered, pick(place) if pick is not None else floor(place))
    if pick is None:
        weight = 0.5 if interpolation == "midpoint" else place - floor(place)
        out = lerp(out, _element(ordered, ceil(place)), weight)
    # the quantiles' own dimension comes first
    if dim is None:
        if keepdim:
            out = reshape(out, (-1,) + (1,) * rank)
    elif rank:
        out = transpose(unsqueeze(out, 0), 0, -1)  # (m, .., 1), dimension d and the last still exchanged
        out = transpose(out, d + 1, -1)
        out = out if keepdim else squeeze(out, d + 1)
    return out if at.value.shape else squeeze(out, 0)


@composite(rounds_once=False)
def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Sorted:
    """The most frequent element along dim, the smallest of several, and the last place where it is."""
    v = value_of("mode", input)
    d, n = _known("mode", v, dim)
    if not v.shape:
        return Sorted(input, wrap(bc.scalar(0, int64, ())))
    if n == 0:
        raise ShapeError(f"mode: shape {tuple(v.shape)} has no elements along dimension {dim}")
    found = _ordered("mode", input, d, False)
    x = wrap(Value(found.values.value.node))
    at = wrap(positions(v.shape, d))
    if n > 1:
        changed = ne(narrow(x, d, 1, n - 1), narrow(x, d, 0, n - 1))
        low = [1 if i == d else 0 for i in range(len(v.shape))]
        start = wrap(pad_value(bc.cast(changed.value, uint8), low, [0] * len(low), 1))
        first = cummax(where(ne(start, 0), at, 0), d).values
        best = argmax(at - first, d, keepdim=True)
    else:
        best = wrap(bc.scalar(0, int64, v.shape))
    values, indices = gather_free(found.values, d, best), gather_free(found.indices, d, best)
    return Sorted(*(p if keepdim else squeeze(p, d) for p in (values, indices)))


# ---------------------------------------------------------------------------------------------- unique


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The distinct elements (or slices along dim), where each element went, how often each occurs. Computes."""
    v = value_of("unique", input)
    array = _host(v)
    k = None if dim is None else axis("unique", dim, v.shape)
    # what is not asked for takes an order of the elements, which is slower than to sort them
    found = np.unique(
        array, return_inverse=return_inverse, return_counts=return_counts, axis=k, equal_nan=False
    )
    values, *more = found if isinstance(found, tuple) else (found,)
    inverse = more.pop(0) if return_inverse else None
    if inverse is not None and k is None:
        inverse = inverse.reshape(array.shape)
    return _unique_result(v, values, inverse, more[0] if more else None, return_inverse, return_counts)


def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The elements (or slices along dim) without those equal to the one before. Computes."""
    v = value_of("unique_consecutive", input)
    array = _host(v)
    k = 0 if dim is None else axis("unique_consecutive", dim, v.shape)
    flat = array.reshape(-1) if dim is None else array
    n = flat.shape[k] if flat.ndim else 1
    rows = np.moveaxis(flat, k, 0).reshape(n, -1) if flat.size else np.zeros((n, 0))
    starts = np.ones(n, bool)
    if n > 1 and rows.shape[1]:
        starts[1:] = (rows[1:] != rows[:-1]).any(1)
    elif n > 1:
        starts[1:] = False
    at = np.flatnonzero(starts)
    values = np.take(flat, at, axis=k)
    inverse = np.cumsum(starts) - 1
    counts = np.diff(np.append(at, n))
    return _unique_result(
        v,
        values,
        inverse.reshape(array.shape) if dim is None else inverse,
        counts,
        return_inverse,
        return_counts,
    )


def _host(v: Value) -> np.ndarray[Any, Any]:
    array = run.to_numpy(v.node)
    return array.astype(np.float32) if v.dtype.name == "bfloat16" else array


def _unique_result(
    v: Value, values: Any, inverse: Any, counts: Any, with_inverse: bool, with_counts: bool
) -> Any:
    device = v.node.device
    out = [tensor(values, dtype=v.dtype, device=device)]
    if with_inverse:
        out.append(tensor(np.asarray(inverse, np.int64), device=device))
    if with_counts:
        out.append(tensor(np.asarray(counts, np.int64), device=device))
    return out[0] if len(out) == 1 else tuple(out)


# ---------------------------------------------------------------------------------------------- searching


@composite(rounds_once=False)
def searchsorted(
    sorted_sequence: Tensor,
    input: TensorLike,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Literal["left", "right"] | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """The place to insert each element into the last dimension of an ascending sequence, by binary search.

    Before equal ones, or behind them with `right` or side="right".
    """
    s = value_of("searchsorted", sorted_sequence)
    if not isinstance(input, Handle) and not s.dtype.is_float:  # a number is neither truncated nor wrapped
        s = bc.cast(s, bc.result_dtype((s, float(input) if isinstance(input, float) else 0)))
        s = bc.cast(s, int64) if s.dtype.is_int and not s.dtype.min <= input <= s.dtype.max else s
    v = input.value if isinstance(input, Handle) else bc.scalar(input, s.dtype, ())
    if side not in (None, "left", "right"):
        raise ArgumentError(f"searchsorted: side must be 'left' or 'right', got {side!r}")
    if right and side == "left":
        raise ArgumentError("searchsorted: side='left' contradicts right=True")
    if not s.shape:
        raise ShapeError("searchsorted: the sequence must have at least 1 dimension")
    if len(s.shape) > 1 and (len(v.shape) != len(s.shape) or v.shape[:-1] != s.shape[:-1]):
        raise ShapeError(
            f"searchsorted: shape {tuple(v.shape)} must agree with that of the sequence, {tuple(s.shape)}, but for the "
            "last dimension, or the sequence be a vector"
        )
    if sorter is not None:
        order = value_of("searchsorted", sorter)
        if order.shape != s.shape:
            raise ShapeError(
                f"searchsorted: sorter has shape {tuple(order.shape)}, the sequence {tuple(s.shape)}"
            )
        if order.dtype is not int64:
            raise DTypeError(f"searchsorted: sorter must be int64, got {order.dtype.name}")
        s = gather(wrap(Value(s.node)), -1, sorter).value
    if s.dtype is not v.dtype:
        common = bc.result_dtype((s, v))
        s, v = bc.cast(s, common), bc.cast(v, common)
    kind = int32 if out_int32 else int64
    n = s.shape[len(s.shape) - 1]
    if not isinstance(n, int):
        raise ShapeError(f"searchsorted: the size {n} of the sequence must be known")
    if n == 0 or 0 in v.shape:
        return wrap(bc.scalar(0, kind, v.shape))
    flat = len(s.shape) == 1
    x = wrap(bc.reshape(Value(v.node), (elements(v.shape),)) if flat else Value(v.node))
    line = wrap(Value(s.node)).contiguous()
    low = wrap(bc.scalar(0, int32, x.value.shape))
    high = wrap(bc.scalar(n, int32, x.value.shape))
    for _ in range(n.bit_length()):
        middle = (low + high) >> 1
        seen = gather_free(line, len(s.shape) - 1, middle)
        before = logical_not(gt(seen, x) if right or side == "right" else ge(seen, x))
        before = logical_and(before, lt(low, high))
        low, high = where(before, middle + 1, low), where(before, high, minimum(middle, high))
    return wrap(bc.reshape(bc.cast(low.value, kind), v.shape))


@composite(rounds_once=False)
def bucketize(
    input: TensorLike, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """The number of the interval between ascending boundaries in which each element lies."""
    if len(value_of("bucketize", boundaries).shape) != 1:
        raise ShapeError(f"bucketize: the boundaries must be a vector, got {describe(boundaries)}")
    x = input
    if isinstance(x, Handle) and x.value.dtype is not boundaries.value.dtype:
        common = bc.result_dtype((x.value, boundaries.value))
        x, boundaries = wrap(bc.cast(x.value, common)), wrap(bc.cast(boundaries.value, common))
    elif not isinstance(x, Handle):
        common = bc.result_dtype((x, boundaries.value))
        boundaries = wrap(bc.cast(boundaries.value, common))
    return searchsorted(boundaries, x, out_int32=out_int32, right=right)


@needs(no_bools("elements", "test_elements"))
def isin(
    elements: TensorLike, test_elements: TensorLike, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """True where an element is equal to one of test_elements."""
    operands = [bc.operand("isin", elements), bc.operand("isin", test_elements)]
    dtype = bc.result_dtype(operands)
    x, tests = (
        wrap(bc.cast(Value(o.node), dtype) if isinstance(o, Value) else bc.scalar(o, dtype, ()))
        for o in operands
    )
    tests = flatten(tests)
    m = tests.value.shape[0]
    if m == 0:
        found = wrap(bc.scalar(False, bool_, x.value.shape))
    elif isinstance(m, int) and m > 64:
        ordered = sort(tests).values
        at = searchsorted(ordered, x).clamp(max=m - 1)
        found = eq(gather_free(ordered, 0, flatten(at)).reshape(x.value.shape), x)
    else:
        found = any(eq(unsqueeze(x, -1), tests), -1)
    return logical_not(found) if invert else found
