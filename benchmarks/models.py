"""Models as a user of PyTorch writes them; `T` is the module they are made of, weft or torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def filled(T: Any, net: Any, seed: int = 0) -> Any:
    """The module with weights that do not depend on who made it: the scales of norms 1, shifts 0, all else normal."""
    rng = np.random.default_rng(seed)
    state = net.state_dict()
    for name, p in net.named_parameters():
        shape = tuple(p.shape)
        if len(shape) > 1:
            drawn = rng.standard_normal(shape, np.float32) / np.float32(math.sqrt(math.prod(shape[1:])))
        else:
            drawn = np.full(shape, float(name.endswith("weight")), np.float32)
        state[name] = T.tensor(drawn)
    net.load_state_dict(state)
    return net


def weights(net: Any) -> list[Array]:
    """The numbers that a module has learned, in its own memory."""
    return [np.asarray(p.detach()) for p in net.parameters()]


def mlp(T: Any, sizes: Sequence[int]) -> Any:
    """Linear layers with relu between them."""
    nn, layers = T.nn, list[Any]()
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return filled(T, nn.Sequential(*layers[:-1]))


def recurrent(T: Any, width: int, classes: int = 10) -> Any:
    """An LSTM, and a linear layer on its last state."""

    class Recurrent(T.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = T.nn.LSTM(width, width, batch_first=True)
            self.head = T.nn.Linear(width, classes)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0][:, -1])

    return filled(T, Recurrent())


def encoder(T: Any, width: int, heads: int, layers: int, classes: int = 10) -> Any:
    """Transformer layers without dropout, and a linear layer on the mean of what they give."""

    class Encoder(T.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = T.nn.ModuleList(
                [
                    T.nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
                    for _ in range(layers)
                ]
            )
            self.head = T.nn.Linear(width, classes)

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return self.head(x.mean(1))

    return filled(T, Encoder())


def convolved(T: Any, channels: int, classes: int = 10) -> Any:
    """Two convolutions of a sequence, and a linear layer on the mean."""

    class Convolved(T.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = T.nn.Conv1d(channels, 2 * channels, 3, padding=1)
            self.second = T.nn.Conv1d(2 * channels, 2 * channels, 5, padding=2)
            self.head = T.nn.Linear(2 * channels, classes)

        def forward(self, x: Any) -> Any:
            x = T.relu(self.second(T.relu(self.first(x))))
            return self.head(x.mean(-1))

    return filled(T, Convolved())


def convnet(T: Any, channels: int = 16, classes: int = 10) -> Any:
    """Convolutions with batch norm and maxima, for images of any size."""
    nn = T.nn
    layers = [
        nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1, bias=False), nn.BatchNorm2d(2 * channels), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * channels, classes),
    ]  # fmt: skip
    return filled(T, nn.Sequential(*layers))


def gpt(T: Any, layers: int, width: int, heads: int, vocabulary: int, context: int) -> Any:
    """A decoder with learned positions (Radford et al. 2019). With `past`, a list of the layers' keys and values or of
    Nones, it takes the tokens that come next, and grows the list's entries by `cat`."""
    nn, F = T.nn, T.nn.functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any, past: Any) -> Any:
            n, t, _ = x.shape
            q, k, v = (
                y.reshape(n, t, heads, width // heads).transpose(1, 2)
                for y in self.qkv(self.norm1(x)).split(width, dim=-1)
            )
            if past is not None:
                k, v = T.cat([past[0], k], 2), T.cat([past[1], v], 2)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
            x = x + self.out(y.transpose(1, 2).reshape(n, t, width))
            return x + self.down(F.gelu(self.up(self.norm2(x)))), (k, v)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, tokens: Any, past: Any = None) -> Any:
            cached = past if past is not None and past[0] is not None else None
            start = cached[0][0].shape[2] if cached else 0
            x = self.tokens(tokens) + self.places(T.arange(start, start + tokens.shape[1]))
            for j, block in enumerate(self.blocks):
                x, kept = block(x, cached[j] if cached else None)
                if past is not None:
                    past[j] = kept
            return self.head(self.norm(x))

    return filled(T, Decoder())


def tree_lstm(T: Any, width: int, vocabulary: int, classes: int = 5) -> Any:
    """A binary tree-LSTM (Tai et al. 2015): a tree is a token, or a pair of trees."""

    class TreeLSTM(T.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = T.nn.Embedding(vocabulary, width)
            self.gates = T.nn.Linear(2 * width, 5 * width)
            self.head = T.nn.Linear(width, classes)

        def states(self, tree: Any) -> tuple[Any, Any]:
            if isinstance(tree, int):
                h = self.words(T.tensor([tree]))
                return h, T.zeros_like(h)
            (h1, c1), (h2, c2) = self.states(tree[0]), self.states(tree[1])
            i, f1, f2, o, u = self.gates(T.cat([h1, h2], 1)).chunk(5, 1)
            c = T.sigmoid(i) * T.tanh(u) + T.sigmoid(f1) * c1 + T.sigmoid(f2) * c2
            return T.sigmoid(o) * T.tanh(c), c

        def forward(self, tree: Any) -> Any:
            return self.head(self.states(tree)[0])

    return filled(T, TreeLSTM())


def actor_critic(T: Any, seen: int, width: int, actions: int) -> Any:
    """Chances of actions, and the value of a state."""

    class ActorCritic(T.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = T.nn.Linear(seen, width)
            self.actor, self.critic = T.nn.Linear(width, actions), T.nn.Linear(width, 1)

        def forward(self, x: Any) -> tuple[Any, Any]:
            x = T.relu(self.first(x))
            return T.softmax(self.actor(x), -1), self.critic(x)

    return filled(T, ActorCritic())


def vit(T: Any, layers: int, width: int, heads: int, patch: int, side: int, classes: int = 10) -> Any:
    """Patches of an image as tokens of a transformer (Dosovitskiy et al. 2021)."""
    nn = T.nn

    class ViT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, width, patch, stride=patch)
            self.token = nn.Parameter(T.zeros(1, 1, width))
            self.places = nn.Parameter(T.zeros(1, (side // patch) ** 2 + 1, width))
            self.layers = nn.ModuleList(
                [
                    nn.TransformerEncoderLayer(
                        width,
                        heads,
                        4 * width,
                        dropout=0.0,
                        activation="gelu",
                        batch_first=True,
                        norm_first=True,
                    )
                    for _ in range(layers)
                ]
            )
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

        def forward(self, x: Any) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = T.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x[:, 0]))

    return filled(T, ViT())


def resnet(T: Any, blocks: Sequence[int], width: int, classes: int = 10) -> Any:
    """Bottlenecks of three convolutions with batch norms, beside the identity (He et al. 2016)."""
    nn = T.nn

    def unit(a: int, b: int, size: int, stride: int = 1) -> list[Any]:
        return [nn.Conv2d(a, b, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(b)]

    class Bottleneck(nn.Module):
        def __init__(self, a: int, b: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                *unit(a, b, 1), nn.ReLU(), *unit(b, b, 3, stride), nn.ReLU(), *unit(b, 4 * b, 1)
            )
            self.side = nn.Sequential(*(unit(a, 4 * b, 1, stride) if stride > 1 or a != 4 * b else []))

        def forward(self, x: Any) -> Any:
            return T.relu(self.body(x) + self.side(x))

    layers, before = [*unit(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)], width
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(Bottleneck(before, width << stage, 2 if stage and not block else 1))
            before = 4 * (width << stage)
    return filled(
        T, nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
    )


def gated(nn: Any, n: int, few: int, act: Any, gate: Any) -> Any:
    """Channels times weights of their own, which come of all their means (Hu et al. 2018)."""

    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.AdaptiveAvgPool2d(1), nn.Conv2d(n, few, 1), act, nn.Conv2d(few, n, 1), gate
            )

        def forward(self, x: Any) -> Any:
            return x * self.body(x)

    return Weighted()


MOBILE = (
    (3, 16, 16, True, False, 2), (3, 72, 24, False, False, 2), (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2), (5, 240, 40, True, True, 1), (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1), (5, 144, 48, True, True, 1), (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1), (5, 576, 96, True, True, 1),
)  # fmt: skip
"""MobileNetV3-small: size of the depthwise convolution, channels inside and after, weighted channels, hard swish,
stride."""


def mobilenet(T: Any, rows: Sequence[tuple[int, int, int, bool, bool, int]], classes: int = 10) -> Any:
    """Inverted bottlenecks with depthwise convolutions and weighted channels (Howard et al. 2019)."""
    nn = T.nn

    def unit(a: int, b: int, size: int = 1, stride: int = 1, groups: int = 1) -> list[Any]:
        return [nn.Conv2d(a, b, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(b)]

    class Inverted(nn.Module):
        def __init__(self, a: int, row: tuple[int, int, int, bool, bool, int]) -> None:
            super().__init__()
            size, inside, after, weighted, swish, stride = row
            act = nn.Hardswish if swish else nn.ReLU
            self.body = nn.Sequential(
                *unit(a, inside), act(), *unit(inside, inside, size, stride, inside), act(),
                *([gated(nn, inside, inside // 4, nn.ReLU(), nn.Hardsigmoid())] if weighted else []),
                *unit(inside, after),
            )  # fmt: skip
            self.keeps = stride == 1 and a == after

        def forward(self, x: Any) -> Any:
            return x + self.body(x) if self.keeps else self.body(x)

    layers, before = [*unit(3, 16, 3, 2), nn.Hardswish()], 16
    for row in rows:
        layers.append(Inverted(before, row))
        before = row[2]
    layers += [*unit(before, 6 * before), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers += [nn.Linear(6 * before, 256), nn.Hardswish(), nn.Linear(256, classes)]
    return filled(T, nn.Sequential(*layers))


def densenet(T: Any, blocks: Sequence[int], growth: int, classes: int = 10) -> Any:
    """Layers that see all layers before them, by concatenation (Huang et al. 2017)."""
    nn = T.nn

    class Dense(nn.Module):
        def __init__(self, a: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.BatchNorm2d(a), nn.ReLU(), nn.Conv2d(a, 4 * growth, 1, bias=False),
                nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            return T.cat([x, self.body(x)], 1)

    n = 2 * growth
    layers = [
        nn.Conv2d(3, n, 7, 2, 3, bias=False),
        nn.BatchNorm2d(n),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    for stage, count in enumerate(blocks):
        if stage:
            layers += [nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, n // 2, 1, bias=False), nn.AvgPool2d(2)]
            n //= 2
        for _ in range(count):
            layers.append(Dense(n))
            n += growth
    layers += [nn.BatchNorm2d(n), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, classes)]
    return filled(T, nn.Sequential(*layers))
