"""Small programs that change from step to step: lengths, batches and images of any size, trees, episodes, caches.

Each runs at a few sizes, since plans for all of them have programs of their own; and recurrent layers are of a few
widths, since those of products are for narrow and for wide axes. What is cut or joined has more than eight elements:
fewer are part of a program, as those of windows are (`scheduler/basic/sizes.py`).
"""
# Tests: tests/test_prepare.py

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import TypeAlias

import weft
from weft import Tensor, nn, optim
from weft.nn import functional as F
from weft.prepare.routine import Routine, leaf

CLASSES = 5

Tree: TypeAlias = "int | tuple[Tree, Tree]"
"""A word, or two trees."""


class _Last(nn.Module):
    """A recurrent layer, and a linear one on what it gives last."""

    def __init__(self, layer: nn.LSTM | nn.GRU | nn.RNN, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, a row for each sequence of a batch."""
        return self.head(self.layer(x)[0][:, -1])


def _trained(net: nn.Module, optimizer: optim.Optimizer, batches: Sequence[Tensor]) -> Iterator[Tensor]:
    """The losses of a step with each batch, and what the network gives for the last."""
    for x in batches:
        y = weft.zeros(x.shape[0], dtype=weft.int64).realize()
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        yield loss
    net.eval()
    with weft.no_grad():
        yield net(batches[-1])


def _recurrent(inputs: int, hidden: int, lengths: Sequence[int]) -> Iterator[Tensor]:
    """Recurrent layers over sequences of several lengths, trained."""
    for layer, width in (
        (nn.LSTM(inputs, hidden, batch_first=True), hidden),
        (nn.LSTM(inputs, hidden, 2, batch_first=True), hidden),
        (nn.LSTM(inputs, hidden, bidirectional=True, batch_first=True), 2 * hidden),
        (nn.GRU(inputs, hidden, batch_first=True), hidden),
        (nn.RNN(inputs, hidden, batch_first=True), hidden),
    ):
        net = _Last(layer, width)
        optimizer = optim.Adam(net.parameters(), lr=1e-3)
        yield from _trained(net, optimizer, [leaf(3, n, inputs) for n in lengths])


class _Windows(nn.Module):
    """Convolutions of a sequence, and a linear layer on the means, or the largest values, of its places."""

    def __init__(
        self, channels: int, act: Callable[[Tensor], Tensor], largest: bool, *more: nn.Module
    ) -> None:
        super().__init__()
        wide = 2 * channels
        self.first, self.second = nn.Conv1d(channels, wide, 3, padding=1), nn.Conv1d(wide, wide, 5, padding=2)
        self.third = nn.Sequential(*more)
        self.act, self.largest, self.head = act, largest, nn.Linear(wide, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, a row for each sequence of a batch."""
        x = self.third(self.act(self.second(self.act(self.first(x)))))
        return self.head(x.amax(-1) if self.largest else x.mean(-1))


def _windows() -> Iterator[Tensor]:
    """Convolutional networks over sequences of several lengths, trained."""
    plain = _Windows(6, F.relu, False)
    pooled = _Windows(6, F.gelu, True, nn.BatchNorm1d(12), nn.MaxPool1d(2), nn.Conv1d(12, 12, 7, padding=3))
    spread = _Windows(6, F.relu, True, nn.Conv1d(12, 12, 3, padding=2, dilation=2), nn.ReLU())
    for net in (plain, pooled, spread):
        optimizer = optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
        yield from _trained(net, optimizer, [leaf(3, 6, n) for n in (10, 14, 18)])


def _images() -> Iterator[Tensor]:
    """Convolutional networks over batches of several sizes, and images of several sizes, trained."""
    for channels, act in ((4, nn.ReLU), (6, nn.SiLU)):
        net = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), act(), nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.BatchNorm2d(2 * channels), act(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * channels, CLASSES),
        )  # fmt: skip
        optimizer = optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
        images = [leaf(rows, 3, size, size) for rows, size in ((5, 20), (9, 20), (6, 20), (7, 28), (4, 14))]
        yield from _trained(net, optimizer, images)


def _policies(actions: int) -> Iterator[Tensor]:
    """Policies that are asked state by state, and learn from episodes of several lengths."""
    body, actor, critic = nn.Linear(6, 8), nn.Linear(8, actions), nn.Linear(8, 1)
    parameters = [*body.parameters(), *actor.parameters(), *critic.parameters()]
    optimizer = optim.Adam(parameters, lr=1e-3)
    for length in (4, 6, 9):
        chosen: list[Tensor] = []
        values: list[Tensor] = []
        for k in range(length):
            seen = F.relu(body(leaf(6)))
            share, value = actor(seen).softmax(-1), critic(seen)
            yield share[0]
            yield value
            chosen.append(share[k % actions].log())
            values.append(value)
        losses = [-c * (0.7 - v.item()) for c, v in zip(chosen, values, strict=True)]
        losses += [F.smooth_l1_loss(v, weft.tensor([0.7])).reshape(()) for v in values]
        optimizer.zero_grad()
        loss = weft.stack(losses).sum()
        loss.backward()
        optimizer.step()
        yield loss


def _episodes() -> Iterator[Tensor]:
    """Policies that learn from all states of an episode at once."""
    body, actor, critic = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 1)
    parameters = [*body.parameters(), *actor.parameters(), *critic.parameters()]
    optimizer = optim.Adam(parameters, lr=1e-3)
    for length in (5, 7, 11):
        seen, taken = F.relu(body(leaf(length, 6))), weft.zeros(length, 1, dtype=weft.int64).realize()
        gains = leaf(length)
        gains = (gains - gains.mean()) / (gains.std() + 1e-6)
        scores = actor(seen).log_softmax(-1)
        kept = scores.gather(1, taken)[:, 0] * (gains - critic(seen)[:, 0].detach())
        surprise = (scores.exp() * scores).sum(-1).mean()
        loss = F.mse_loss(critic(seen)[:, 0], gains) - kept.mean() + 0.01 * surprise
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        yield loss


def _trees() -> Iterator[Tensor]:
    """Cells over trees of several forms (Tai et al. 2015), trained."""
    words, gates, head = nn.Embedding(11, 10), nn.Linear(20, 50), nn.Linear(10, CLASSES)
    parameters = [*words.parameters(), *gates.parameters(), *head.parameters()]
    optimizers = optim.Adam(parameters, lr=1e-3), optim.SGD(parameters, lr=1e-2)

    def states(tree: Tree) -> tuple[Tensor, Tensor]:
        if isinstance(tree, int):
            h = words(weft.tensor([tree]))
            return h, weft.zeros_like(h)
        (h1, c1), (h2, c2) = states(tree[0]), states(tree[1])
        i, f1, f2, o, u = gates(weft.cat([h1, h2], 1)).chunk(5, 1)
        c = i.sigmoid() * u.tanh() + f1.sigmoid() * c1 + f2.sigmoid() * c2
        return o.sigmoid() * c.tanh(), c

    forms: tuple[Tree, ...] = (
        (1, 2),
        ((1, 2), 3),
        ((1, 2), (3, (4, 5))),
        (((1, 6), (7, 2)), (3, (4, (5, 8)))),
    )
    for optimizer, tree in product(optimizers, forms):
        loss = F.cross_entropy(head(states(tree)[0]), weft.tensor([1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


def _cells() -> Iterator[Tensor]:
    """A recurrent cell over a few steps, and its gradients."""
    cell, head = nn.LSTMCell(6, 10), nn.Linear(10, CLASSES)
    for rows in (1, 3):
        h = c = weft.zeros(rows, 10).realize()
        for _ in range(2):
            h, c = cell(leaf(rows, 6), (h, c))
        loss = F.cross_entropy(head(h), weft.zeros(rows, dtype=weft.int64).realize())
        loss.backward()
        yield loss
        yield from (p.grad for p in cell.parameters() if p.grad is not None)


def _tokens() -> Iterator[Tensor]:
    """Likeliest tokens one after another: from all before, and with keys and values kept, to which the next are
    joined."""
    table, places, norm = nn.Embedding(11, 16), nn.Embedding(32, 16), nn.LayerNorm(16)
    joint, out, up, down = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 64), nn.Linear(64, 16)

    def heads(x: Tensor) -> Tensor:
        return x.reshape(1, -1, 2, 8).transpose(1, 2)

    def likeliest(tokens: Tensor, at: int, kept: list[tuple[Tensor, Tensor]] | None) -> Tensor:
        x = table(tokens) + places(weft.arange(at, at + tokens.shape[1]))
        for k in range(2):
            q, key, value = (heads(t) for t in joint(norm(x)).split(16, -1))
            if kept is not None:
                if at:
                    key, value = weft.cat([kept[k][0], key], 2), weft.cat([kept[k][1], value], 2)
                kept[k : k + 1] = [(key, value)]
            y = F.scaled_dot_product_attention(q, key, value, is_causal=at == 0)
            x = x + out(y.transpose(1, 2).reshape(1, -1, 16))
            x = x + down(F.gelu(up(norm(x))))
        return (norm(x)[:, -1] @ table.weight.T).argmax(-1, keepdim=True)

    with weft.no_grad():
        for caching in (False, True):
            tokens, kept = weft.tensor([[1, 2, 3]]).realize(), list[tuple[Tensor, Tensor]]()
            token = likeliest(tokens, 0, kept if caching else None)
            for at in range(3, 7):
                yield token
                tokens = weft.cat([tokens, token], 1)
                yield tokens
                token = likeliest(token, at, kept) if caching else likeliest(tokens, 0, None)


def _accumulated() -> Iterator[Tensor]:
    """Gradients of several batches together, with running statistics, and updates by hand from `.grad`."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, CLASSES),
    )  # fmt: skip
    rows = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES))
    for layers, shape in ((net, (4, 3, 8, 8)), (rows, (4, 6))):
        parameters = list(layers.parameters())
        optimizer = optim.SGD(parameters, lr=1e-2, momentum=0.9)
        for batches in (2, 3):
            for _ in range(batches):
                loss = F.cross_entropy(layers(leaf(*shape)), weft.zeros(4, dtype=weft.int64).realize())
                (loss / batches).backward()
                yield loss
            optimizer.step()
            optimizer.zero_grad()
        moments = [weft.zeros_like(p).realize() for p in parameters]
        for momentum in (False, False, True, True):
            loss = F.cross_entropy(layers(leaf(*shape)), weft.zeros(4, dtype=weft.int64).realize())
            loss.backward()
            with weft.no_grad():
                for p, m in zip(parameters, moments, strict=True):
                    grad = p.grad
                    assert grad is not None
                    p -= 0.01 * (m.mul_(0.9).add_(grad) if momentum else grad)
                    if momentum:
                        grad.zero_()
                    else:
                        p.grad = None
            yield loss


def _runs() -> Iterator[Tensor]:
    """Running sums, and what is sorted, of several lengths."""
    for length in (6, 9):
        x, y = leaf(40 * length), leaf(4, 10 * length)
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
        for t in (x, y, leaf(4, 20 * length)):
            yield from t.median(-1)
            yield from t.kthvalue(2, -1)


CHANGING = (
    Routine("cells", _cells),
    Routine("a policy of two actions", partial(_policies, 2)),
    Routine("a policy of four actions", partial(_policies, 4)),
    Routine("episodes", _episodes),
    Routine("trees", _trees),
    Routine("next tokens", _tokens),
    Routine("running sums", _runs),
    *(
        Routine(f"recurrent layers, {hidden} wide", partial(_recurrent, inputs, hidden, lengths))
        for inputs, hidden, lengths in ((9, 10, (11, 14, 17)), (24, 32, (12, 15, 90)), (96, 100, (11, 14)))
    ),
    Routine("sequences in windows", _windows),
    Routine("images of any size", _images),
    Routine("gradients of several batches", _accumulated),
)
"""The programs that change."""
