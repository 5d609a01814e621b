"""Sums over windows that slide over a tensor, and the transpose of that: convolutions and their gradients.

    convolve   y[n, g, o, p] = sum over c, k of x[n, g, c, p * stride + k * dilation] * w[g, o, c, k]
    unconvolve x[n, g, c, i] = sum over o, k of y[n, g, o, (i - k * dilation) / stride] * w[g, o, c, k],  where exact
    taps       w[g, o, c, k] = sum over n, p of y[n, g, o, p] * x[n, g, c, p * stride + k * dilation]

with p, k and i one index per dimension. Each is linear in both its operands, and its gradients are the two others.

A stride makes all but one of `stride` taps of the second meet nothing. The phases of its result, i = stride * j + f,
have taps of their own, k = stride * t + f, which are dense:

    x[n, g, c, stride * j + f] = sum over o, t of y[n, g, o, j - t] * w[g, o, c, stride * t + f]

So all phases are the channels of one convolution without a stride, put side by side afterwards (Shi et al. 2016,
arXiv:1609.07009).
"""

from __future__ import annotations

from math import prod

from weft.autograd.context import grad_mode
from weft.autograd.value import Value, apply, composed
from weft.core.args import broadcast as bc
from weft.core.layout.movement import box, pad_value
from weft.ir.dtypes import bool_
from weft.ir.graph import Axes, Shape, Window, elements, product_axes
from weft.ir.index import Int, ceildiv, high
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Taps:
    """Windows of `kernel` elements: `strides` apart, their elements `dilations` apart, in each dimension."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def is_dense(self) -> bool:
        """True where windows and their elements lie side by side."""
        return all(s == 1 for s in self.strides) and all(d == 1 for d in self.dilations)

    def spread(self, v: Value, count: Int) -> Value:
        """(n, groups, a, *sizes) -> (n, groups, count, *sizes, a, *kernel): every tap of every one of `count`."""
        (n, groups, a), sizes = v.shape[:3], v.shape[3:]
        v = apply(Op.PERMUTE, (v,), Axes((0, 1, *range(3, 3 + self.rank), 2)))
        v = bc.reshape(v, (n, groups, 1, *sizes, a, *(1 for _ in self.kernel)))
        return apply(Op.EXPAND, (v,), None, (n, groups, count, *sizes, a, *self.kernel))

    def shear(self, op: Op, v: Value, sizes: Shape) -> Value:
        """The elements of windows (SHEAR) or windows of elements (UNSHEAR) of what `spread` gave: `sizes`."""
        for i, size in enumerate(sizes):
            window = Window(3 + i, 4 + self.rank + i, self.strides[i], self.dilations[i])
            v = apply(op, (v,), window, (*v.shape[: 3 + i], size, *v.shape[4 + i :]))
        return v

    def summed(self, windows: Value, taps: Value, real: tuple[Value, Value] | None = None) -> Value:
        """(n, groups, b, *sizes, a, *kernel) times taps (groups, b, a, *kernel), summed -> (n, groups, b, *sizes); with
        `real`, of the same shapes, only where both are."""
        groups, b = taps.shape[:2]
        taps = bc.reshape(taps, (1, groups, b, *(1 for _ in self.kernel), *taps.shape[2:]))
        product = apply(Op.MUL, (windows, bc.expand(taps, windows.shape)))
        if real is not None:
            tap = bc.expand(bc.reshape(real[1], taps.shape), windows.shape)
            nothing = bc.scalar(0, product.dtype, product.shape)
            product = apply(Op.WHERE, (apply(Op.AND, (real[0], tap)), product, nothing))
        return apply(Op.SUM, (product,), product_axes(range(3 + self.rank, len(windows.shape))))


def convolve(x: Value, w: Value, taps: Taps, counts: Shape) -> Value:
    """Windows, `counts` of them in each dimension, times taps.

    Shapes: x (n, groups, c, *sizes), w (groups, o, c, *kernel) -> (n, groups, o, *counts).
    """
    with grad_mode(False):
        y = taps.summed(taps.shear(Op.SHEAR, taps.spread(x, w.shape[1]), counts), w)

    def grads(g: Value, _out: Value, x: Value, w: Value) -> tuple[Value, Value]:
        return unconvolve(g, w, taps, x.shape[3:]), _taps_of(g, x, taps)

    return composed(y.node, (x, w), grads)


def unconvolve(y: Value, w: Value, taps: Taps, sizes: Shape) -> Value:
    """The transpose of `convolve`: what windows reach, each as often as they do, times taps.

    Shapes: y (n, groups, o, *counts), w (groups, o, c, *kernel) -> (n, groups, c, *sizes).
    """
    known = all(isinstance(n, int) for n in (*y.shape[3:], *sizes))
    with grad_mode(False):
        if not known or (taps.is_dense and w.shape[1] != 1):
            # zeros outside stand for y, so this is a product of two tensors: a contraction
            turned = apply(Op.PERMUTE, (w,), Axes((0, 2, 1, *range(3, 3 + taps.rank))))
            x = taps.summed(taps.shear(Op.UNSHEAR, taps.spread(y, w.shape[2]), sizes), turned)
        elif taps.is_dense:
            x = _by_windows(y, w, taps, sizes)
        elif w.shape[1] == 1 and all(d == 1 for d in taps.dilations):
            x = _by_phases(y, w, taps, sizes)
        else:
            x = _by_columns(y, w, taps, sizes)

    def grads(g: Value, _out: Value, y: Value, w: Value) -> tuple[Value, Value]:
        return convolve(g, w, taps, y.shape[3:]), _taps_of(y, g, taps)

    return composed(x.node, (y, w), grads)


def _taps_of(y: Value, x: Value, taps: Taps) -> Value:
    """The gradient of taps. Shapes: y (n, groups, o, *counts), x (n, groups, c, *sizes) -> (groups, o, c, *kernel)."""
    slid = taps.shear(Op.SHEAR, taps.spread(x, y.shape[2]), y.shape[3:])
    y = bc.reshape(y, (*y.shape, *(1 for _ in slid.shape[len(y.shape) :])))
    product = apply(Op.MUL, (slid, bc.expand(y, slid.shape)))
    return apply(Op.SUM, (product,), product_axes((0, *range(3, 3 + taps.rank))))


def _by_windows(y: Value, w: Value, taps: Taps, sizes: Shape) -> Value:
    """`unconvolve` of one channel each, where windows and their elements lie side by side: windows slide over `y`.

    What no tap reaches meets no product, as in `_by_columns`.
    """
    turned = apply(Op.PERMUTE, (w,), Axes((0, 2, 1, *range(3, 3 + taps.rank))))

    def windows(y: Value) -> Value:
        return taps.shear(Op.UNSHEAR, taps.spread(y, w.shape[2]), sizes)

    real = (windows(bc.scalar(True, bool_, y.shape)), bc.scalar(True, bool_, turned.shape))
    return taps.summed(windows(y), turned, real)


def _by_columns(y: Value, w: Value, taps: Taps, sizes: Shape) -> Value:
    """`unconvolve` as the products of every window with every tap, which are then added where they belong.

    What no tap reaches meets no product: an infinity in one operand makes no NaN with a zero that stands for nothing.
    """
    rank = taps.rank
    n, (groups, o, c), counts = y.shape[0], w.shape[:3], y.shape[3:]
    many, places = prod(taps.kernel), elements(counts)
    left = bc.reshape(w, (1, groups, o, c * many, 1))
    right = bc.reshape(y, (n, groups, o, 1, places))
    shape = (n, groups, o, c * many, places)
    product = apply(Op.MUL, (bc.expand(left, shape), bc.expand(right, shape)))
    if o != 1:  # a product of matrices, computed once and not for every element that it is added to
        product = apply(Op.CONTIGUOUS, (apply(Op.SUM, (product,), product_axes((2,))),))
    v = bc.reshape(product, (n, groups, c, *taps.kernel, *counts))
    v = apply(Op.PERMUTE, (v,), Axes((0, 1, 2, *range(3 + rank, 3 + 2 * rank), *range(3, 3 + rank))))
    if all(d == 1 for d in taps.dilations) and all(isinstance(n, int) for n in (*counts, *sizes)):
        return _joined(v, taps, sizes)
    v = bc.reshape(v, (n, groups, c, *counts, 1, *taps.kernel))
    v = taps.shear(Op.UNSHEAR, v, sizes)
    return apply(Op.SUM, (v,), Axes(tuple(range(3 + rank, len(v.shape)))))


def _joined(v: Value, taps: Taps, sizes: Shape) -> Value:
    """Products (n, groups, c, *counts, *kernel) added where they belong, without dilation: (n, groups, c, *sizes)."""
    rank, strides = taps.rank, taps.strides
    lead, counts = v.shape[:3], v.shape[3 : 3 + rank]
    steps = tuple(ceildiv(k, s) for k, s in zip(taps.kernel, strides, strict=True))
    more = [t * s - k for t, s, k in zip(steps, strides, taps.kernel, strict=True)]
    v = pad_value(v, [0] * len(v.shape), [*(0 for _ in range(3 + rank)), *more])
    v = bc.reshape(v, (*lead, *counts, *(x for pair in zip(steps, strides, strict=True) for x in pair)))
    at = 3 + rank
    order = (0, 1, 2, *range(at + 1, at + 2 * rank, 2), *range(3, at), *range(at, at + 2 * rank, 2))
    v = apply(Op.PERMUTE, (v,), Axes(order))  # (.., *phases, *counts, *steps)
    for i in range(rank):
        axis = 3 + rank + i
        window = Window(axis, axis + rank, 1, 1)
        v = apply(Op.UNSHEAR, (v,), window, (*v.shape[:axis], counts[i] + steps[i] - 1, *v.shape[axis + 1 :]))
    v = apply(Op.SUM, (v,), Axes(tuple(range(3 + 2 * rank, 3 + 3 * rank))))
    wide = v.shape[3 + rank :]
    v = apply(Op.PERMUTE, (v,), Axes((0, 1, 2, *(a for i in range(rank) for a in (3 + rank + i, 3 + i)))))
    v = bc.reshape(v, (*lead, *(m * s for m, s in zip(wide, strides, strict=True))))
    missing = [max(high(size - have), 0) for size, have in zip(sizes, v.shape[3:], strict=True)]
    v = pad_value(v, [0] * len(v.shape), [0, 0, 0, *missing])
    return box(v, (0,) * len(v.shape), (*lead, *sizes))


def _by_phases(y: Value, w: Value, taps: Taps, sizes: Shape) -> Value:
    """`unconvolve` with a stride, of one channel each."""
    rank, strides = taps.rank, taps.strides
    n, (groups, o, c) = y.shape[0], w.shape[:3]
    steps = tuple(ceildiv(k, s) for k, s in zip(taps.kernel, strides, strict=True))
    # a kernel shorter than the stride has fewer phases: the others are 0
    phases = tuple(min(k, s) for k, s in zip(taps.kernel, strides, strict=True))
    more = [t * f - k for t, f, k in zip(steps, phases, taps.kernel, strict=True)]
    channels = c * prod(phases)

    def phased(w: Value) -> Value:
        w = pad_value(w, [0] * len(w.shape), [0, 0, 0, *more])
        w = bc.reshape(w, (groups, o, c, *(x for pair in zip(steps, phases, strict=True) for x in pair)))
        w = apply(Op.FLIP, (w,), Axes(tuple(range(3, 3 + 2 * rank, 2))))
        w = apply(Op.PERMUTE, (w,), Axes((0, 2, *range(4, 3 + 2 * rank, 2), 1, *range(3, 3 + 2 * rank, 2))))
        return bc.reshape(w, (groups, channels, o, *steps))

    dense = Taps(steps, (1,) * rank, (1,) * rank)
    edges = [0, 0, 0, *(t - 1 for t in steps)]
    counts = tuple(size + t - 1 for size, t in zip(y.shape[3:], steps, strict=True))

    def windows(y: Value) -> Value:
        return dense.shear(Op.SHEAR, dense.spread(pad_value(y, edges, edges), channels), counts)

    real = (windows(bc.scalar(True, bool_, y.shape)), phased(bc.scalar(True, bool_, w.shape)))
    x = dense.summed(windows(y), phased(w), real)
    x = apply(Op.CONTIGUOUS, (x,))  # a product stores elements that lie apart one by one
    x = bc.reshape(x, (n, groups, c, *phases, *counts))
    x = apply(Op.PERMUTE, (x,), Axes((0, 1, 2, *(a for i in range(rank) for a in (3 + rank + i, 3 + i)))))
    absent = [a for f, s in zip(phases, strides, strict=True) for a in (0, s - f)]
    x = pad_value(x, [0] * len(x.shape), [0, 0, 0, *absent])
    x = bc.reshape(x, (n, groups, c, *(q * s for q, s in zip(counts, strides, strict=True))))
    missing = [max(high(size - have), 0) for size, have in zip(sizes, x.shape[3:], strict=True)]
    x = pad_value(x, [0] * len(x.shape), [0, 0, 0, *missing])
    return box(x, (0,) * len(x.shape), (n, groups, c, *sizes))
