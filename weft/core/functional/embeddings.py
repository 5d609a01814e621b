"""Rows of a table, by index; alone, or combined in bags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.autograd.value import Value, apply, composed, zero_gradient
from weft.core.args import broadcast as bc
from weft.core.args.broadcast import size_tensor
from weft.core.args.handle import value_of, wrap
from weft.core.args.modes import no_grad
from weft.core.composed.composite import composite
from weft.core.composed.precision import rounded_once
from weft.core.execute import run
from weft.core.functional.distances import vector_norm
from weft.core.functions.reductions import amax, sum
from weft.core.layout.gather import check_range, index_value, one_hot, rows
from weft.core.layout.movement import positions
from weft.core.pointwise.elementwise import eq, gt, logical_and, lt, ne, where
from weft.errors import ArgumentError, ShapeError
from weft.ir.dtypes import bool_, int64
from weft.ir.graph import ScatterCombine, elements
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """weight[input]; the row padding_idx gets no gradient.

    With max_norm, the rows that are read are first scaled, in weight itself, to a norm of at most that. With
    scale_grad_by_freq, the gradient of a row is divided by how often it is read. `sparse` is accepted: gradients are
    dense. Shapes: input (...) of integers, weight (n, dim) -> (..., dim). IndexError for known indices outside
    0 ... n - 1.
    """
    i, w = _checked("embedding", input, weight)
    flat = check_range("embedding", bc.reshape(i, (elements(i.shape),)), w.shape[0], 0, negative=False)
    if 0 in flat.shape:
        return wrap(zero_gradient(bc.scalar(0, w.dtype, (*i.shape, w.shape[1])), w))
    if padding_idx is not None:
        _padding_row("embedding", padding_idx, w)
    if max_norm is not None:
        w = _renormalized(weight, flat, max_norm, norm_type)
    picked = rows(w, 0, flat)
    if scale_grad_by_freq:
        picked = _by_frequency(picked, flat, w.shape[0])
    out = wrap(bc.reshape(picked, (*i.shape, w.shape[1])))
    if padding_idx is None or not w.needs_grad:
        return out
    row = padding_idx + size_tensor(w.shape[0], i.dtype) if padding_idx < 0 else padding_idx
    same = eq(wrap(bc.reshape(i, (*i.shape, 1))), row)
    return where(same, wrap(Value(out.value.node)), out)


def _checked(op: str, input: Tensor, weight: Tensor) -> tuple[Value, Value]:
    i, w = index_value(op, input), value_of(op, weight)
    bc.same_device(op, (i, w))
    if len(w.shape) != 2:
        raise ShapeError(f"{op}: weight must have shape (n, dim), got {tuple(w.shape)}")
    return i, w


def _padding_row(op: str, padding_idx: int, w: Value) -> int:
    n = w.shape[0]
    if isinstance(n, int) and not -n <= padding_idx < n:
        raise ArgumentError(f"{op}: padding_idx {padding_idx} is out of range for {n} rows")
    return padding_idx + n if padding_idx < 0 and isinstance(n, int) else padding_idx


def _renormalized(weight: Tensor, flat: Value, max_norm: float, norm_type: float) -> Value:
    """The weight, in which the rows that `flat` names now have at most this norm."""
    with no_grad():
        n = weight.value.shape[0]
        unread = bc.scalar(False, bool_, (n,))
        read = wrap(
            apply(Op.SCATTER, (unread, flat, bc.scalar(True, bool_, flat.shape)), ScatterCombine(0, None))
        )
        weight.copy_(_limited(weight.detach(), read, max_norm, norm_type))
    return weight.value


@composite
def _limited(weight: Tensor, read: Tensor, max_norm: float, norm_type: float) -> Tensor:
    norm = vector_norm(weight, norm_type, 1, keepdim=True)
    long = logical_and(read.unsqueeze(1), gt(norm, max_norm))
    return where(long, weight * (max_norm / (norm + 1e-7)), weight)


def _by_frequency(picked: Value, flat: Value, n: object) -> Value:
    """The same rows; the gradient of each divided by how often its number is in `flat`."""

    def rule(g: Value, _out: Value, _x: Value, flat: Value) -> tuple[Value, None]:
        ones = bc.scalar(1, g.dtype, flat.shape)
        zeros = bc.scalar(0, g.dtype, (n,))  # pyright: ignore[reportArgumentType]  (a size)
        count = rows(apply(Op.SCATTER, (zeros, flat, ones), ScatterCombine(0, Op.ADD)), 0, flat)
        return (wrap(g) / wrap(count).unsqueeze(1)).value, None

    return composed(picked.node, (picked, flat), rule)


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The "sum", "mean" or "max" of the rows of each bag; zeros for an empty bag.

    Shapes: input (bags, length), or (all indices) with offsets (bags), the position where each bag begins; weight
    (n, dim) -> (bags, dim). per_sample_weights, shaped like input, scale the rows ("sum" only). Indices equal to
    padding_idx count for nothing. With include_last_offset, offsets end with the number of indices.
    """
    op = "embedding_bag"
    i, w = _checked(op, input, weight)
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f"{op}: mode must be 'sum', 'mean' or 'max', got {mode!r}")
    if per_sample_weights is not None:
        if mode != "sum":
            raise ArgumentError(f"{op}: per_sample_weights need mode 'sum', got {mode!r}")
        if value_of(op, per_sample_weights).shape != i.shape:
            raise ShapeError(
                f"{op}: per_sample_weights must have the shape of input, {tuple(i.shape)}, got "
                f"{tuple(per_sample_weights.value.shape)}"
            )
    if len(i.shape) == 2:
        if offsets is not None:
            raise ArgumentError(
                f"{op}: input of two dimensions holds a bag in each row, so it takes no offsets"
            )
        bag, bags = positions(i.shape, 0, int64), i.shape[0]
    elif len(i.shape) == 1:
        if offsets is None:
            raise ArgumentError(f"{op}: input of one dimension needs offsets, where each bag begins")
        begin = index_value(op, offsets)
        if len(begin.shape) != 1:
            raise ShapeError(f"{op}: offsets must be a vector, got shape {tuple(begin.shape)}")
        known = run.host_array(begin.node)
        if known is not None and known.size and known[0] != 0:
            raise ArgumentError(f"{op}: the first bag must begin at 0, got offsets[0] = {known[0]}")
        borders = begin.shape[0]
        bags = borders - 1 if include_last_offset else borders
        at = wrap(positions((i.shape[0], borders), 0, begin.dtype))
        bag = (sum(wrap(bc.reshape(begin, (1, borders))) <= at, 1) - 1).value
    else:
        raise ShapeError(f"{op}: input must have 1 or 2 dimensions, got shape {tuple(i.shape)}")
    pad = None if padding_idx is None else _padding_row(op, padding_idx, w)
    picked = embedding(input, weight, pad, max_norm, norm_type, scale_grad_by_freq)
    counted = None if pad is None else ne(input, pad)
    count, dim = elements(i.shape), w.shape[1]
    if len(i.shape) == 2:
        return _bags(picked, per_sample_weights, counted, mode)
    if count == 0 or bags == 0:
        return wrap(zero_gradient(bc.scalar(0, w.dtype, (bags, dim)), w))
    # one bag per row, by comparing numbers: a sum over members, without writes that collide
    member = eq(wrap(bc.reshape(bag, (1, count))), wrap(positions((bags, count), 0, int64)))
    if counted is not None:
        member = logical_and(member, counted)
    shares = None if per_sample_weights is None else per_sample_weights.unsqueeze(0).expand(bags, count)
    return _bags(picked.unsqueeze(0).expand(bags, count, dim), shares, member, mode)


@rounded_once
def _bags(picked: Tensor, shares: Tensor | None, counted: Tensor | None, mode: str) -> Tensor:
    """(bags, length, dim), times shares (bags, length), combined over the length, those not counted left out."""
    if shares is not None:
        picked = picked * shares.unsqueeze(-1)
    length = picked.value.shape[1]
    if mode == "max":
        if length == 0:
            return sum(picked, 1)
        if counted is None:
            return amax(picked, 1)
        low = float(picked.value.dtype.min)
        top = amax(where(counted.unsqueeze(-1), picked, low), 1)
        return where(sum(counted, 1).unsqueeze(-1) > 0, top, 0.0)
    kept = picked if counted is None else where(counted.unsqueeze(-1), picked, 0.0)
    total = sum(kept, 1)
    if mode == "sum" or length == 0:
        return total
    if counted is None:
        return total / size_tensor(length, picked.value.dtype)
    many = sum(counted, 1).unsqueeze(-1)
    return total / wrap(bc.cast(where(lt(many, 1), 1, many).value, picked.value.dtype))


__all__ = ["embedding", "embedding_bag", "one_hot"]
