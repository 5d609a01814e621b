"""Small programs: what is written by hand, op by op, and read in between, to have basic programs compiled.

Each result is computed for itself, as programs that read it do, so that each op has a program of its own.
"""
# Tests: tests/test_prepare.py

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import product
from operator import add

import weft
from weft import Tensor, nn
from weft.nn import functional as F
from weft.prepare.routine import Routine, leaf

_SHAPES = ((24,), (4, 6), ())
"""The shapes that single ops are computed for: all axes are one; axes of their own; an element."""


def _elements() -> Iterator[Tensor]:
    """Ops on elements, of tensors alike, with rows, with columns, and with numbers."""
    unary = (
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "tanh",
        "sigmoid",
        "relu",
        "abs",
        "neg",
        "square",
        "erf",
        "floor",
    )
    binary = ("add", "sub", "mul", "div", "maximum", "minimum", "pow")
    compared = ("lt", "le", "gt", "ge", "eq", "ne")
    for shape in _SHAPES:
        x, y, k = leaf(*shape), leaf(*shape), leaf()
        for name in unary:
            yield getattr(x, name)()
        for name in binary[:4]:
            yield getattr(x, name)(y)
            yield getattr(x, name)(0.7)
            yield getattr(x, name)(k)
            yield from (getattr(x, name)(plain) for plain in (0.5, 1.0, 2.0))
        for name in (*binary[4:], *compared):
            yield getattr(x, name)(y)
        yield 1.0 - x
        yield x.clamp(0.1, 0.8)
        yield x.to(weft.int64)
        yield (x > 0.5).to(weft.float32)
        yield x + x.to(weft.int64).realize()
        yield x.clone()
        yield from _sums_of_many(shape)
        yield from _whole_numbers(shape)
    x, row, column = leaf(4, 6), leaf(6), leaf(4, 1)
    for name in binary[:4]:
        yield getattr(x, name)(row)
        yield getattr(x, name)(column)
    yield x.T.contiguous()
    yield x + leaf(6, 4).T


MOST_TOGETHER = 8
"""Operands that are added, or joined, in one kernel: what a tensor's gradients from many places are."""


def _sums_of_many(shape: tuple[int, ...]) -> Iterator[Tensor]:
    terms = [leaf(*shape) for _ in range(MOST_TOGETHER)]
    for count in range(3, MOST_TOGETHER + 1):
        yield reduce(add, terms[:count])


def _whole_numbers(shape: tuple[int, ...]) -> Iterator[Tensor]:
    a, b = (leaf(*shape).mul(9).to(weft.int64).realize() for _ in range(2))
    for other in (b, 1, 2, 3):
        yield a + other
        yield a - other
        yield a * other
        yield a < other
        yield a == other
    yield a // 3
    yield a % 3
    yield a.clone()


def _numbers() -> Iterator[Tensor]:
    """Ops on elements and numbers: such as are part of a program at first, and such as came with several values."""
    mask = leaf(24).gt(0.5).realize()
    for shape in _SHAPES:
        x, y, k = leaf(*shape), leaf(*shape), leaf()
        for c in (k, 0.3):
            for name in ("pow", "lt", "le", "gt", "ge", "eq", "ne"):
                yield getattr(x, name)(c)
            yield c - x
            yield c / x
            yield c**x
            yield x.clamp(min=c)
            yield x.clamp(max=c)
            yield weft.where(x > c, x, 0.0)
            yield weft.where(x < c, x, 0.0)
            yield weft.where(x > c, x, y)
            yield weft.where(x < c, x, y)
        yield x.maximum(k)
        yield x.minimum(k)
        yield x.clamp(-k, k)
        yield x.clamp(k, leaf())
        yield x * 0.3 + 0.7
        yield weft.full(shape, 0.3)
        yield k.expand(shape).clone()
        whole = leaf(*shape).mul(9).to(weft.int64).realize()
        most = leaf().mul(9).to(weft.int64).realize()
        for c in (most, 0, 7):
            yield whole < c
            yield whole > c
            yield whole + c
    for c in (0.3, leaf()):
        yield weft.where(mask, c, leaf(24))
        yield weft.where(mask, leaf(24), c)
        yield weft.where(mask, 1.0, c)
    yield weft.where(mask, leaf(24), leaf(24))
    yield mask.to(weft.int64)
    yield mask.to(weft.float32)
    yield ~mask
    yield mask & leaf(24).gt(0.5).realize()
    yield mask | leaf(24).gt(0.5).realize()
    row = leaf(12)
    for c in (0.7, leaf()):
        for at in (0, 3):
            yield row[at] * c
            yield row[at] / c
            yield row[at] + c
            yield row[at] - c
            yield c - row[at]


def _losses() -> Iterator[Tensor]:
    """Losses of elements and of rows, and their gradients, each read for itself."""
    for shape in ((24,), (4, 6), (1,), ()):
        for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits):
            x, y = leaf(*shape).requires_grad_(), leaf(*shape)
            found = loss(x, y)
            yield found
            yield from (g for g in weft.autograd.grad(found, [x]) if g is not None)


def _texts() -> Iterator[Tensor]:
    """Losses of next words, which are cut from the same text; the last position of each, and a first one normalized."""
    words = leaf(2, 9).mul(7).to(weft.int64).realize()
    table, head = nn.Embedding(7, 6), nn.Linear(6, 7)
    loss = F.cross_entropy(head(table(words[:, :-1])).reshape(-1, 7), words[:, 1:].reshape(-1))
    loss.backward()
    yield loss
    yield from (p.grad for p in (*table.parameters(), *head.parameters()) if p.grad is not None)
    x = leaf(4, 70, 64).requires_grad_()
    first = F.layer_norm(x[:, 0], (64,))
    yield first
    yield from _gradients(first, x)
    for rows in (1, 4):
        yield leaf(rows, 4, 6)[:, -1].clone()
        yield leaf(rows, 4, 6)[:, 1].clone()
    row = words[:1].clone().realize()
    for at in (0, 2, 8):
        yield row[0, at]
        yield row[:, at]


def _reductions() -> Iterator[Tensor]:
    """Sums and their like, over all axes, the last, the first and a middle one."""
    x, row, y = leaf(4, 6), leaf(6), leaf(3, 4, 6)
    for t, axes in ((row, (0,)), (x, (1, 0)), (y, (1,))):
        for axis in axes:
            for name in (
                "sum",
                "mean",
                "amax",
                "amin",
                "var",
                "std",
                "argmax",
                "argmin",
                "softmax",
                "log_softmax",
                "norm",
            ):
                yield getattr(t, name)(dim=axis)
            yield (t * t).sum(axis)
            yield (t > 0.5).sum(axis)
            yield (t < leaf()).sum(axis)
            yield t.mul(9).to(weft.int64).realize().sum(axis)
            yield t.cumsum(axis)
    for t, axis in ((leaf(70), 0), (leaf(3, 70), 1), (leaf(70, 3), 0)):  # in blocks
        yield t.cumsum(axis)
        yield t.mul(9).to(weft.int64).realize().cumsum(axis)
    yield x.sum()
    yield x.mean()
    yield (x > 0.5).all()
    yield (x > 0.5).any()
    yield row.sort().values
    yield row.topk(2).values


def _places() -> Iterator[Tensor]:
    """Slices, joins, and reads and writes by indices."""
    x, row, at = leaf(4, 6), leaf(12), weft.tensor([1, 0, 2]).realize()
    deep = leaf(3, 4, 6)
    whole = leaf(12).mul(9).to(weft.int64).realize()
    for t, shape in (
        (x, (4, 6)), (row, (12,)), (whole, (12,)), (row[None], (1, 12)), (whole[None], (1, 12)),
        (deep, (3, 4, 6)), (deep.transpose(0, 1), (4, 3, 6)),
    ):  # fmt: skip
        for axis, size in enumerate(shape):
            for start, end in ((0, 2), (2, size), (1, 3), (size - 1, size)):
                if 0 <= start < end <= size > 1:
                    yield t.narrow(axis, start, end - start).clone()
    for count in range(2, MOST_TOGETHER + 1):
        yield weft.stack([row[k] for k in range(count)])
        yield weft.cat([leaf(k + 2) for k in range(count)])
        yield weft.cat([leaf(6)[None] for _ in range(count)])
    for other in (leaf(1, 5), leaf(1, 1)):
        yield weft.cat([row[None], other], 1)
    for t in (x, row, x.T):
        yield t[1:3].clone()
        yield t[1] + 1.0
        yield t[-1].clone()
        yield weft.cat([t, t])
        yield weft.stack([t, t])
        yield t[at]
        yield t.index_select(0, at)
        yield t.flip(0)
        yield t.roll(1, 0)
    yield x[:, 1:3].clone()
    yield x[:, 2].clone()
    yield row[3].log()
    yield weft.cat([x, x], 1)
    yield F.pad(row, (1, 2))
    yield F.pad(x, (1, 2))
    yield x.gather(1, at[:, None].expand(3, 2).realize())
    for t in (x.clone(), row.clone()):
        t[1] = 2.0
        t[1:3] = 0.0
        yield t
        yield t.index_add(0, at, weft.rand_like(t[:3]).realize())
    yield F.one_hot(at, 5)
    yield weft.arange(7)
    yield weft.arange(7) * 0.5


def _training() -> Iterator[Tensor]:
    """Steps of small networks by hand: of a batch, and of single rows."""
    for rows, act in product((5, 1), (Tensor.tanh, Tensor.relu, Tensor.sigmoid)):
        w, b = leaf(6, 4).requires_grad_(), leaf(4).requires_grad_()
        v = leaf(4, 3).requires_grad_()
        x, y = leaf(rows, 6), leaf(rows, 3)
        for momentum in (0.0, 0.9):
            state = [weft.zeros_like(p).realize() for p in (w, b, v)]
            loss = ((act(x @ w + b) @ v - y) ** 2).mean()
            grads = [g for g in weft.autograd.grad(loss, [w, b, v]) if g is not None]
            with weft.no_grad():
                for p, g, m in zip((w, b, v), grads, state, strict=True):
                    if momentum:
                        m.mul_(momentum).add_(g)
                    p -= 0.01 * (m if momentum else g)
            yield loss
            yield w
            yield b
            yield v


def _images() -> Iterator[Tensor]:
    """Windows over images that networks are made of, and their gradients: of convolutions, alone and channel by
    channel, and of pools, with a stride of one and of two. One graph: those alike would share plans for all windows."""
    images, results = leaf(2, 4, 16, 16).requires_grad_(), list[Tensor]()
    for size, stride, groups in product((3, 5, 7), (1, 2), (1, 4)):
        w = leaf(4, 4 // groups, size, size).requires_grad_()
        results.append(F.conv2d(images, w, stride=stride, padding=size // 2, groups=groups))
        results += _gradients(results[-1], images, w)
    for size, padding in ((2, 0), (3, 1)):
        results.append(F.max_pool2d(images, size, 2, padding))
        results += _gradients(results[-1], images)
        results.append(F.avg_pool2d(images, size, 2, padding))
        results += _gradients(results[-1], images)
    weft.realize(*results)
    yield results[-1]


def _gradients(result: Tensor, *of: Tensor) -> list[Tensor]:
    return [g for g in weft.autograd.grad(result.square().sum(), of) if g is not None]


ROUTINES = (
    Routine("elements", _elements),
    Routine("numbers", _numbers),
    Routine("losses", _losses),
    Routine("texts", _texts),
    Routine("reductions", _reductions),
    Routine("places", _places),
    Routine("training by hand", _training),
    Routine("images", _images),
)
"""The programs of single ops and by hand."""
