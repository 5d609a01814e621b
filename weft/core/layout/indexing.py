"""x[...] and x[...] = v, by torch's rules: numbers, slices, None, ..., integer tensors and boolean masks."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

import numpy as np

from weft.autograd.value import Value, apply, zero_gradient
from weft.core.args import broadcast as bc
from weft.core.args.axes import axis, new_shape
from weft.core.args.broadcast import is_array
from weft.core.args.handle import Handle, Number, describe, value_of, wrap
from weft.core.execute import run
from weft.core.layout.creation import tensor
from weft.core.layout.gather import check_mask, check_range
from weft.core.layout.movement import box, box_within, broadcast_tensors, pad_value
from weft.core.pointwise.elementwise import ne, where
from weft.core.pointwise.nonzeros import flat_places
from weft.errors import ArgumentError, DTypeError, IndexError, ShapeError
from weft.ir.dtypes import bool_, int64, uint8
from weft.ir.graph import Along, Axes, ScatterCombine, Shape, elements
from weft.ir.index import Index, Int
from weft.ir.ops import Op
from weft.ir.places import placed
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


@dataclass(slots=True)
class Basic:
    """The part of an index made of numbers and slices: a strided box, then axes to reverse, then the result's shape."""

    start: list[Int]
    step: list[int]
    size: list[Int]
    flipped: list[int]
    shape: list[Int]
    advanced: dict[int, Value]
    """Integer tensors, by the axis of `shape` that each picks from."""


def getitem(input: Tensor, key: Any) -> Tensor:
    """input[key]. A boolean mask is computed, since the size of the result depends on it; uint8 means a mask, as in
    torch."""
    v = value_of("indexing", input)
    plain = _plain(v, key)
    if plain is not None:
        return wrap(plain)
    mask = _whole_mask(v, key)
    if mask is not None and len(mask.shape) > 1:
        return wrap(_take(_as_one(v, mask), {0: _true_places(v, mask)}))
    picks, key = _picks(v, key)
    for k, i in picks:
        v = _pick(v, k, i)
    if picks and key == ():
        return wrap(v)
    plan = _parse(v, key)
    out = _take_basic(v, plan)
    return wrap(_take(out, plan.advanced) if plan.advanced else out)


def setitem(input: Tensor, key: Any, value: Tensor | Number) -> Value:
    """The value of the input with input[key] replaced by `value`, which broadcasts."""
    v = value_of("indexing", input)
    mask = _whole_mask(v, key)
    if mask is not None and not (isinstance(value, Handle) and value.value.shape):
        src = bc.operand("index assignment", value)
        filled = bc.cast(src, v.dtype) if isinstance(src, Value) else bc.scalar(src, v.dtype, ())
        wide = bc.reshape(mask, (*mask.shape, *(1 for _ in v.shape[len(mask.shape) :])))
        return where(wrap(wide), wrap(filled), input).value
    if mask is not None and len(mask.shape) > 1:
        return bc.reshape(_put(_as_one(v, mask), {0: _true_places(v, mask)}, value), v.shape)
    picks, key = _picks(v, key)
    if picks:
        parts = [v]
        for k, i in picks:
            parts.append(_pick(parts[-1], k, i))
        new = setitem(wrap(parts.pop()), key, value)
        for (k, i), old in zip(reversed(picks), reversed(parts), strict=True):
            new = _put_back(old, k, i, new)
        return new
    plan = _parse(v, key)
    if not plan.advanced:
        return _put_basic(v, plan, _source(v, value, tuple(plan.shape)))
    part = _take_basic(v, plan)
    return _put_basic(v, plan, _put(part, plan.advanced, value))


# ---------------------------------------------------------------------------------------------- one number each


def is_number(entry: object) -> bool:
    """True for a key's entry that is a tensor of one integer, which picks as a number does; uint8 is a mask."""
    return (
        isinstance(entry, Handle)
        and not entry.value.shape
        and entry.value.dtype.is_int
        and entry.value.dtype is not uint8
    )


def _picks(v: Value, key: Any) -> tuple[list[tuple[int, Value]], Any]:
    """Tensors of one integer in a key, with the axes that they pick from when picked one by one, and the other entries.

    As in torch they come first: x[i, :, [0, 1]] is x[i][:, [0, 1]].
    """
    entries: tuple[Any, ...] = cast("Any", key) if isinstance(key, tuple) else (key,)
    if not any(map(is_number, entries)):
        return [], cast("Any", key)
    found: list[tuple[int, Value]] = []
    rest: list[Any] = []
    widths = [_width(_entry(e, v.node.device)) for e in entries]
    rank, k = len(v.shape), 0
    _check_count(sum(widths), v)
    for e, width in zip(entries, widths, strict=True):
        if is_number(e):
            bc.same_device("indexing", (v, e.value))
            found.append((k, check_range("indexing", e.value, v.shape[k], k, negative=True)))
        else:
            rest.append(e)
        k += rank - sum(widths) if e is Ellipsis else width
    found.reverse()
    return found, tuple(rest)


def _pick(v: Value, k: int, i: Value) -> Value:
    """The element i of axis k."""
    one, left = (*v.shape[:k], 1, *v.shape[k + 1 :]), (*v.shape[:k], *v.shape[k + 1 :])
    _not_empty(v.shape[k])
    if 0 in left:
        return bc.reshape(box(v, (0,) * len(one), one), left)
    return bc.reshape(apply(Op.GATHER, (v, _everywhere(i, one)), Along(k)), left)


def _put_back(v: Value, k: int, i: Value, new: Value) -> Value:
    """`v` with `new` as the element i of axis k."""
    one = (*v.shape[:k], 1, *v.shape[k + 1 :])
    if 0 in one:
        return zero_gradient(v, new)
    return apply(Op.SCATTER, (v, _everywhere(i, one), bc.reshape(new, one)), ScatterCombine(k, None))


def _everywhere(i: Value, shape: Shape) -> Value:
    return bc.expand(bc.reshape(i, (1,) * len(shape)), shape)


# ---------------------------------------------------------------------------------------------- reading a key


def _entries(key: Any, device: str | None) -> list[Any]:
    if isinstance(key, tuple):
        return [_entry(k, device) for k in cast("tuple[Any, ...]", key)]
    return [_entry(key, device)]


def _entry(k: object, device: str | None) -> Any:
    """One part of a key: lists and arrays become tensors, NumPy integers Python ones."""
    if k is None or k is Ellipsis or isinstance(k, (slice, int, Handle, Index)):
        if isinstance(k, Handle) and k.value.dtype is uint8:
            return ne(wrap(k.value), 0)
        return cast("Any", k)
    if isinstance(k, range):
        k = list(k)
    if is_array(k) and not k.shape and k.dtype.kind in "iu":
        return int(k)
    if is_array(k) or isinstance(k, (list, tuple)):
        out = tensor(k, device=device)
        if out.dtype is uint8:
            out = ne(out, 0)
        return (
            wrap(bc.cast(out.value, int64))
            if out.value.shape == (0,) and isinstance(k, (list, tuple))
            else out
        )
    if isinstance(k, np.bool_):
        return k == np.True_
    if isinstance(k, SupportsIndex):
        return int(k)
    raise DTypeError(
        "indexing: an index must be an int, a slice, None, ..., or a tensor or list of integers or bools, "
        f"got {describe(k)}"
    )


def _width(entry: Any) -> int:
    """The number of dimensions that an entry consumes."""
    if entry is None or entry is Ellipsis or isinstance(entry, bool):
        return 0
    if isinstance(entry, Handle) and entry.value.dtype is bool_:
        return len(entry.value.shape)
    return 1


def _parse(v: Value, key: Any) -> Basic:
    if key.__class__ is slice and v.node.shape:
        plan = Basic([], [], [], [], [], {})
        _slice_entry(plan, v, key)
        for n in v.node.shape[1:]:
            _whole(plan, n)
        return plan
    entries = _entries(key, v.node.device)
    if sum(e is Ellipsis for e in entries) > 1:
        raise IndexError("indexing: ... may appear only once")
    used = sum(map(_width, entries))
    rank = len(v.shape)
    _check_count(used, v)
    if Ellipsis not in [e if e is Ellipsis else None for e in entries]:
        entries.append(Ellipsis)
    plan = Basic([], [], [], [], [], {})
    for e in entries:
        if e is Ellipsis:
            for _ in range(rank - used):
                _whole(plan, v.shape[len(plan.start)])
        elif e is None:
            plan.shape.append(1)
        elif isinstance(e, bool):
            plan.advanced[len(plan.shape)] = tensor(
                [0] if e else np.zeros(0, np.int64), device=v.node.device
            ).value
            plan.shape.append(1)
        elif isinstance(e, Handle):
            _tensor_entry(plan, v, e.value)
        elif isinstance(e, slice):
            _slice_entry(plan, v, cast("slice[Any, Any, Any]", e))
        else:
            _int_entry(plan, v, e)
    return plan


def _plain(v: Value, key: Any) -> Value | None:
    """v[key] for numbers, slices without a step and Nones, where all sizes are known and all is in range; else None:
    `_parse` reads what there is, and refuses."""
    shape = v.node.shape
    start: list[int] = []
    size: list[int] = []
    out: list[int] = []
    for e in cast("tuple[Any, ...]", key) if key.__class__ is tuple else (key,):
        kind = e.__class__
        if e is None:
            out.append(1)
            continue
        if len(start) == len(shape):
            return None
        n = shape[len(start)]
        if n.__class__ is not int:
            return None
        if kind is int:
            if not -n <= e < n:
                return None
            start.append(e + n if e < 0 else e)
            size.append(1)
        elif kind is slice and e.step is None and _BOUNDS.issuperset((e.start.__class__, e.stop.__class__)):
            first, end, _ = e.indices(n)
            count = max(end - first, 0)
            start.append(first if count else 0)
            size.append(count)
            out.append(count)
        else:
            return None
    rest = shape[len(start) :]
    for n in rest:
        if n.__class__ is not int:
            return None
    part = box_within(v, (*start, *(0,) * len(rest)), (*size, *rest))
    return bc.reshape(part, (*out, *rest))


_BOUNDS = frozenset({int, NoneType})


def _check_count(used: int, v: Value) -> None:
    if used > len(v.shape):
        raise IndexError(f"indexing: {used} indices are too many for shape {tuple(v.shape)}")


def _whole(plan: Basic, n: Int) -> None:
    plan.start.append(0)
    plan.step.append(1)
    plan.size.append(n)
    plan.shape.append(n)


def _int_entry(plan: Basic, v: Value, i: Int) -> None:
    k = len(plan.start)
    n = v.shape[k]
    if isinstance(n, int) and isinstance(i, int) and not -n <= i < n:
        raise IndexError(f"indexing: index {i} is out of range for dimension {k} of size {n}")
    plan.start.append(i + n if isinstance(i, int) and i < 0 else i)
    plan.step.append(1)
    plan.size.append(1)


def _slice_entry(plan: Basic, v: Value, s: slice[Any, Any, Any]) -> None:
    k = len(plan.start)
    n = v.shape[k]
    start, stop, step = (_bound(b) for b in (s.start, s.stop, s.step))
    if step == 0 or isinstance(step, Index):
        raise ArgumentError("indexing: the step of a slice must be a nonzero int")
    if isinstance(n, int) and not isinstance(start, Index) and not isinstance(stop, Index):
        picked = range(*slice(start, stop, step).indices(n))
        size: Int = len(picked)
        first: Int = (picked[-1] if picked.step < 0 else picked[0]) if picked else 0
        if picked.step < 0 and size:
            plan.flipped.append(len(plan.shape))
        step = abs(picked.step)
    else:
        if step not in (None, 1):
            raise ArgumentError("indexing: a slice with runtime bounds must have step 1")
        first = 0 if start is None else n + start if isinstance(start, int) and start < 0 else start
        last = n if stop is None else n + stop if isinstance(stop, int) and stop < 0 else stop
        size, step = last - first, 1
    plan.start.append(first)
    plan.step.append(step or 1)
    plan.size.append(size)
    plan.shape.append(size)


def _bound(b: Any) -> Any:
    if b is None or isinstance(b, (int, Index)):
        return b
    if isinstance(b, Handle):
        return int(wrap(b.value).item())
    if hasattr(b, "__index__"):
        return int(b.__index__())
    raise DTypeError(f"indexing: the bounds of a slice must be ints, got {describe(b)}")


def _tensor_entry(plan: Basic, v: Value, i: Value) -> None:
    if i.dtype is bool_:
        k = len(plan.start)
        if i.shape != v.shape[k : k + len(i.shape)]:
            raise IndexError(
                f"indexing: a mask of shape {tuple(i.shape)} does not fit shape {tuple(v.shape)} at dimension {k}"
            )
        found = (
            np.nonzero(run.to_numpy(i.node)) if i.shape else (np.zeros(int(run.to_numpy(i.node)), np.int64),)
        )
        if not i.shape:
            plan.advanced[len(plan.shape)] = tensor(found[0], device=v.node.device).value
            plan.shape.append(1)
        for f in found if i.shape else ():
            plan.advanced[len(plan.shape)] = tensor(f.astype(np.int64), device=v.node.device).value
            _whole(plan, v.shape[len(plan.start)])
        return
    if not i.dtype.is_int:
        raise DTypeError(f"indexing: an index tensor must hold integers or bools, got {i.dtype.name}")
    bc.same_device("indexing", (v, i))
    k = len(plan.start)
    plan.advanced[len(plan.shape)] = check_range("indexing", i, v.shape[k], k, negative=True)
    _whole(plan, v.shape[k])


def _whole_mask(v: Value, key: Any) -> Value | None:
    """The mask, if the key is one over the leading dimensions."""
    if is_array(key) and key.dtype == np.bool_:
        key = tensor(key, device=v.node.device)
    if (
        isinstance(key, Handle)
        and key.value.dtype is bool_
        and key.value.shape == v.shape[: len(key.value.shape)]
    ):
        return key.value
    return None


def _as_one(v: Value, mask: Value) -> Value:
    """`v` with the dimensions that the mask is over as one: one index for each true element, not one per dimension."""
    return bc.reshape(v, (elements(mask.shape), *v.shape[len(mask.shape) :]))


def _true_places(v: Value, mask: Value) -> Value:
    """The places of true elements in row-major order, where `v` is. Computes the mask."""
    return tensor(flat_places(run.to_numpy(mask.node)), device=v.node.device).value


# ---------------------------------------------------------------------------------------------- boxes


def _take_basic(v: Value, plan: Basic) -> Value:
    out = box(v, tuple(plan.start), tuple(plan.size), tuple(plan.step))
    out = bc.reshape(out, tuple(plan.shape))
    return apply(Op.FLIP, (out,), Axes(tuple(plan.flipped))) if plan.flipped else out


def _put_basic(v: Value, plan: Basic, src: Value) -> Value:
    if plan.flipped:
        src = apply(Op.FLIP, (src,), Axes(tuple(plan.flipped)))
    src = bc.reshape(src, tuple(plan.size))
    if 0 in plan.size:
        return v
    return apply(Op.UPDATE, (v, src), placed(v.shape, tuple(plan.start), tuple(plan.step), tuple(plan.size)))


def _source(v: Value, value: Any, shape: Shape) -> Value:
    """The assigned value, in the dtype of the tensor and the shape of the place."""
    src = bc.operand("index assignment", value)
    if not isinstance(src, Value):
        return bc.scalar(src, v.dtype, shape)
    bc.same_device("index assignment", (v, src))
    have = src.shape
    while len(have) > len(shape) and have[0] == 1:
        have = have[1:]
    if len(have) > len(shape) or any(n not in (1, m) for n, m in zip(have[::-1], shape[::-1], strict=False)):
        raise ShapeError(
            f"index assignment: a value of shape {tuple(src.shape)} does not fit a place of shape {tuple(shape)}"
        )
    return bc.expand(bc.cast(bc.reshape(src, have), v.dtype), shape)


# ---------------------------------------------------------------------------------------------- integer tensors


@dataclass(slots=True)
class _Merged:
    """Indexed axes brought together and flattened into one: order of axes, one index, and where the result's go."""

    order: tuple[int, ...]
    place: int
    index: Value
    shape: Shape
    flat: Shape


def _merge(v: Value, advanced: dict[int, Value]) -> _Merged:
    axes_ = sorted(advanced)
    shape = bc.broadcast_shape("indexing", [advanced[k].shape for k in axes_])
    together = axes_ == list(range(axes_[0], axes_[0] + len(axes_)))
    place = axes_[0] if together else 0
    rest = [k for k in range(len(v.shape)) if k not in advanced]
    order = (*rest[:place], *axes_, *rest[place:])
    index: Tensor | None = None
    for k in axes_:
        i = wrap(bc.expand(bc.cast(advanced[k], int64) if len(axes_) > 1 else advanced[k], shape))
        n = v.shape[k]
        if index is None:
            index = i
        elif isinstance(n, int):
            index = index * n + i
        else:
            index = index * bc.size_tensor(n, int64) + i
    assert index is not None
    merged = elements(tuple(v.shape[k] for k in axes_))
    lead, tail = tuple(v.shape[k] for k in rest[:place]), tuple(v.shape[k] for k in rest[place:])
    flat_index = bc.reshape(index.value, (elements(shape),))
    return _Merged(order, place, flat_index, (*lead, *shape, *tail), (*lead, merged, *tail))


def _spread(i: Value, k: int, shape: Shape) -> Value:
    """A vector of indices along axis k, repeated over the other axes."""
    n = i.shape[0]
    return bc.expand(bc.reshape(i, (1,) * k + (n,) + (1,) * (len(shape) - k - 1)), shape)


def _ordered(v: Value, order: Sequence[int]) -> Value:
    return v if tuple(order) == tuple(range(len(order))) else apply(Op.PERMUTE, (v,), Axes(tuple(order)))


def _take(v: Value, advanced: dict[int, Value]) -> Value:
    m = _merge(v, advanced)
    flat = bc.reshape(_ordered(v, m.order), m.flat)
    shape = (*m.flat[: m.place], m.index.shape[0], *m.flat[m.place + 1 :])
    if 0 in shape:
        return zero_gradient(bc.scalar(0, v.dtype, m.shape), v)
    _not_empty(m.flat[m.place])
    out = apply(Op.GATHER, (flat, _spread(m.index, m.place, shape)), Along(m.place))
    return bc.reshape(out, m.shape)


def _put(v: Value, advanced: dict[int, Value], value: Any, combine: Op | None = None) -> Value:
    m = _merge(v, advanced)
    ordered = _ordered(v, m.order)
    src = _source(v, value, m.shape)
    shape = (*m.flat[: m.place], m.index.shape[0], *m.flat[m.place + 1 :])
    if 0 in shape:
        return zero_gradient(v, src)
    _not_empty(m.flat[m.place])
    at = _spread(m.index, m.place, shape)
    out = apply(
        Op.SCATTER,
        (bc.reshape(ordered, m.flat), at, bc.reshape(src, shape)),
        ScatterCombine(m.place, combine),
    )
    back = [0] * len(m.order)
    for i, k in enumerate(m.order):
        back[k] = i
    return _ordered(bc.reshape(out, ordered.shape), back)


def _not_empty(n: Int) -> None:
    if n == 0:
        raise IndexError("indexing: there is nothing to pick in a dimension of size 0")


def index_put(
    input: Tensor, indices: Sequence[Tensor], values: Tensor | Number, accumulate: bool = False
) -> Tensor:
    """The input with values put, or added with accumulate, where index tensors of the leading dimensions say."""
    v = value_of("index_put", input)
    if isinstance(values, Handle) and values.value.dtype is not v.dtype:
        raise DTypeError(
            f"index_put: values are {values.value.dtype.name}, input {v.dtype.name}; convert one with .to(...)"
        )
    plan = _parse(v, tuple(indices))
    return wrap(_put(v, plan.advanced, values, Op.ADD if accumulate else None))


def index(input: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """input[indices]."""
    return getitem(input, tuple(slice(None) if i is None else i for i in indices))


def filled_diagonal(input: Tensor, fill_value: Number, wrap_: bool) -> Tensor:
    """The input with its main diagonal filled."""
    v = value_of("fill_diagonal_", input)
    if len(v.shape) < 2 or (len(v.shape) > 2 and len(set(v.shape)) > 1):
        raise ShapeError(f"fill_diagonal_: needs a matrix or equal sizes, got shape {tuple(v.shape)}")
    sizes = [n for n in v.shape if isinstance(n, int)]
    mask = np.zeros(sizes, np.bool_)
    np.fill_diagonal(mask, True, wrap=wrap_)
    return where(tensor(mask, device=v.node.device), fill_value, input)


def resized(input: Tensor, size: Sequence[Any]) -> Tensor:
    """The elements in row-major order in another shape, cut off or filled up with zeros."""
    v = value_of("resize_", input)
    shape = new_shape("resize_", size)
    have, want = elements(v.shape), elements(shape)
    if not isinstance(have, int) or not isinstance(want, int):
        raise ShapeError(f"resize_: the sizes of {tuple(v.shape)} and {tuple(shape)} must be known")
    flat = bc.reshape(v, (have,))
    flat = box(flat, (0,), (want,)) if want <= have else pad_value(flat, [0], [want - have])
    return wrap(bc.reshape(flat, shape))


def select(input: Tensor, dim: int, index: Int) -> Tensor:
    """Element `index` along dim, without that dimension."""
    k = axis("select", dim, value_of("select", input).shape)
    return getitem(input, (*[slice(None)] * k, index))


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """All slices along dim, each without that dimension."""
    v = value_of("unbind", input)
    if not v.shape:
        raise IndexError("unbind: a tensor without dimensions has no slices")
    n = v.shape[axis("unbind", dim, v.shape)]
    if not isinstance(n, int):
        raise ShapeError(f"unbind: the size of dimension {dim} is not known")
    return tuple(select(input, dim, i) for i in range(n))


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask is true, as a vector. Computes the mask, since its result's size depends on it."""
    check_mask("masked_select", mask)
    x, m = broadcast_tensors(input, mask)
    return getitem(x, m)


__all__ = ["filled_diagonal", "getitem", "index", "index_put", "is_number", "resized", "setitem"]
