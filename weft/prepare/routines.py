"""Small programs: what is written by hand, op by op, and read in between, to have basic programs compiled.

Each result is computed for itself, as programs that read it do, so that each op has a program of its own.
"""
# Tests: tests/test_prepare.py

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import weft
from weft import Tensor, nn
from weft.lazy_dataclass import dataclass
from weft.nn import functional as F


@dataclass(frozen=True, slots=True)
class Routine:
    """A program; what it yields is computed."""

    name: str
    results: Callable[[], Iterator[Tensor]]

    def run(self) -> None:
        """Compute each result, one after another."""
        for result in self.results():
            result.realize()


def _leaf(*shape: int) -> Tensor:
    return weft.rand(*shape).realize()


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
        x, y, k = _leaf(*shape), _leaf(*shape), _leaf()
        for name in unary:
            yield getattr(x, name)()
        for name in binary[:4]:
            yield getattr(x, name)(y)
            yield getattr(x, name)(0.7)
            yield getattr(x, name)(k)
            yield from (getattr(x, name)(plain) for plain in (0.5, 1.0, 2.0))
        for name in (*binary[4:], *compared):
            yield getattr(x, name)(y)
        for name in compared:
            yield getattr(x, name)(0.3)
        yield 1.0 - x
        yield 0.7 / x
        yield x.clamp(0.1, 0.8)
        yield x.where(x > 0.3, y)
        yield x.where(x > 0.3, 0.0)
        yield x.to(weft.int64)
        yield (x > 0.5).to(weft.float32)
        yield x + x.to(weft.int64).realize()
        yield x.clone()
    x, row, column = _leaf(4, 6), _leaf(6), _leaf(4, 1)
    for name in binary[:4]:
        yield getattr(x, name)(row)
        yield getattr(x, name)(column)
    yield x.T.contiguous()
    yield x + _leaf(6, 4).T


def _reductions() -> Iterator[Tensor]:
    """Sums and their like, over all axes, the last, the first and a middle one."""
    x, row, y = _leaf(4, 6), _leaf(6), _leaf(3, 4, 6)
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
            yield t.cumsum(axis)
    yield x.sum()
    yield x.mean()
    yield (x > 0.5).all()
    yield (x > 0.5).any()
    yield row.sort().values
    yield row.topk(2).values


def _places() -> Iterator[Tensor]:
    """Slices, joins, and reads and writes by indices."""
    x, row, at = _leaf(4, 6), _leaf(12), weft.tensor([1, 0, 2]).realize()
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
    yield weft.stack([row[k] for k in range(4)])
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
    for rows in (5, 1):
        w, b = _leaf(6, 4).requires_grad_(), _leaf(4).requires_grad_()
        v = _leaf(4, 3).requires_grad_()
        x, y = _leaf(rows, 6), _leaf(rows, 3)
        for momentum in (0.0, 0.9):
            state = [weft.zeros_like(p).realize() for p in (w, b, v)]
            loss = (((x @ w + b).tanh() @ v - y) ** 2).mean()
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


def _steps() -> Iterator[Tensor]:
    """A policy that is asked row by row, and learns from an episode; cells over a few steps; a next token."""
    net, critic = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), nn.Linear(6, 1)
    optimizer = weft.optim.Adam([*net.parameters(), *critic.parameters()], lr=1e-3)
    chosen: list[Tensor] = []
    values: list[Tensor] = []
    for _ in range(4):
        state = _leaf(6)
        share = net(state).softmax(-1)
        yield share
        chosen.append(share[0].log())
        values.append(critic(state))
    advantage = weft.stack([0.5 - v.squeeze() for v in values])
    actor = weft.stack([-c * a.detach() for c, a in zip(chosen, advantage, strict=True)]).sum()
    loss = actor + F.smooth_l1_loss(advantage, weft.zeros(4))
    loss.backward()
    optimizer.step()
    yield loss
    cell, head = nn.LSTMCell(6, 8), nn.Linear(8, 5)
    for rows in (1, 3):
        h = c = weft.zeros(rows, 8).realize()
        for _ in range(2):
            h, c = cell(_leaf(rows, 6), (h, c))
        loss = F.cross_entropy(head(h), weft.zeros(rows, dtype=weft.int64).realize())
        loss.backward()
        yield loss
        yield from (p.grad for p in cell.parameters() if p.grad is not None)
    table = nn.Embedding(11, 6)
    tokens = weft.tensor([[1, 2, 3]]).realize()
    logits = F.layer_norm(table(tokens), (6,))[:, -1] @ table.weight.T
    token = logits.argmax(-1, keepdim=True)
    yield token
    yield weft.cat([tokens, token], 1)


def _sequences() -> Iterator[Tensor]:
    """Recurrent layers over sequences, trained; running sums, and what is sorted. Of two lengths: plans for all
    sizes have programs of their own."""
    layers = (
        nn.LSTM(6, 8, 2, batch_first=True),
        nn.GRU(6, 8, batch_first=True),
        nn.LSTM(6, 8, bidirectional=True),
    )
    heads = nn.Linear(8, 5), nn.Linear(8, 1), nn.Linear(16, 5)
    for length in (6, 9):
        for layer, head in zip(layers, heads, strict=True):
            optimizer = weft.optim.Adam([*layer.parameters(), *head.parameters()], lr=1e-3)
            found, _ = layer(_leaf(3, length, 6))
            last = head(found[:, -1])
            loss = F.cross_entropy(last, weft.zeros(last.shape[0], dtype=weft.int64).realize())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss
        x, y = _leaf(40 * length), _leaf(4, 10 * length)
        for t in (x, y, y.T):
            yield t.cumsum(-1)
            yield t.cumprod(-1)
            yield t.cummax(-1).values
        for t in (x, y):
            yield from t.sort()
            yield from t.sort(descending=True)
            yield t.argsort()
            yield from t.topk(3)
        yield x.median()


def _images() -> Iterator[Tensor]:
    """Windows over images that networks are made of, and their gradients: of convolutions, alone and channel by
    channel, and of pools, with a stride of one and of two. One graph: those alike would share plans for all windows."""
    images, results = _leaf(2, 4, 16, 16).requires_grad_(), list[Tensor]()
    for size, stride, groups in product((3, 5, 7), (1, 2), (1, 4)):
        w = _leaf(4, 4 // groups, size, size).requires_grad_()
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
    Routine("reductions", _reductions),
    Routine("places", _places),
    Routine("training by hand", _training),
    Routine("steps that are read", _steps),
    Routine("sequences", _sequences),
    Routine("images", _images),
)
"""The programs."""
