"""More models as a user of PyTorch writes them, of images and of words; `T` is the module they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.models import filled, gated


def _unit(nn: Any, a: int, b: int, size: int = 1, stride: int = 1, groups: int = 1) -> list[Any]:
    """A convolution that keeps the image's size over its stride, and a batch norm."""
    return [nn.Conv2d(a, b, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(b)]


def resnet18(T: Any, blocks: Sequence[int] = (2, 2, 2, 2), width: int = 64, classes: int = 1000) -> Any:
    """Blocks of two 3x3 convolutions with batch norms, beside the identity (He et al. 2016)."""
    nn = T.nn

    class Basic(nn.Module):
        def __init__(self, a: int, b: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(*_unit(nn, a, b, 3, stride), nn.ReLU(), *_unit(nn, b, b, 3))
            self.side = nn.Sequential(*(_unit(nn, a, b, 1, stride) if stride > 1 else []))

        def forward(self, x: Any) -> Any:
            return T.relu(self.body(x) + self.side(x))

    layers, before = [*_unit(nn, 3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)], width
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(Basic(before, width << stage, 2 if stage and not block else 1))
            before = width << stage
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    return filled(T, nn.Sequential(*layers))


def unet(T: Any, widths: Sequence[int] = (32, 64, 128, 256), classes: int = 2) -> Any:
    """Pairs of 3x3 convolutions down to small images and up again, beside what was there (Ronneberger et al. 2015)."""
    nn = T.nn

    def pair(a: int, b: int) -> Any:
        return nn.Sequential(*_unit(nn, a, b, 3), nn.ReLU(), *_unit(nn, b, b, 3), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList([pair(a, b) for a, b in zip((3, *widths), widths, strict=False)])
            ups = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
            self.up = nn.ModuleList([nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in ups])
            self.joined = nn.ModuleList([pair(2 * b, b) for _, b in ups])
            self.pool, self.head = nn.MaxPool2d(2), nn.Conv2d(widths[0], classes, 1)

        def forward(self, x: Any) -> Any:
            seen = list[Any]()
            for k, body in enumerate(self.down):
                x = body(self.pool(x) if k else x)
                seen.append(x)
            for up, joined, beside in zip(self.up, self.joined, seen[-2::-1], strict=True):
                x = joined(T.cat([beside, up(x)], 1))
            return self.head(x)

    return filled(T, UNet())


EFFICIENT = (
    (1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 2, 3), (6, 5, 112, 1, 3), (6, 5, 192, 2, 4),
    (6, 3, 320, 1, 1),
)  # fmt: skip
"""EfficientNet-B0: how much wider inside, size of the depthwise convolution, channels after, stride, blocks."""


def efficientnet(
    T: Any, rows: Sequence[tuple[int, int, int, int, int]] = EFFICIENT, classes: int = 1000
) -> Any:
    """Inverted bottlenecks with weighted channels and swish (Tan & Le 2019)."""
    nn = T.nn

    class Inverted(nn.Module):
        def __init__(self, a: int, b: int, wider: int, size: int, stride: int) -> None:
            super().__init__()
            n = a * wider
            self.body = nn.Sequential(
                *([*_unit(nn, a, n), nn.SiLU()] if wider > 1 else []), *_unit(nn, n, n, size, stride, n), nn.SiLU(),
                gated(nn, n, max(a // 4, 1), nn.SiLU(), nn.Sigmoid()), *_unit(nn, n, b),
            )  # fmt: skip
            self.keeps = stride == 1 and a == b

        def forward(self, x: Any) -> Any:
            return x + self.body(x) if self.keeps else self.body(x)

    layers, before = [*_unit(nn, 3, 32, 3, 2), nn.SiLU()], 32
    for wider, size, after, stride, count in rows:
        for k in range(count):
            layers.append(Inverted(before, after, wider, size, 1 if k else stride))
            before = after
    layers += [
        *_unit(nn, before, 1280),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1280, classes),
    ]
    return filled(T, nn.Sequential(*layers))


REGNET = ((1, 48), (3, 104), (6, 208), (6, 440))
"""RegNetY-400MF: blocks and channels of each stage."""


def regnet(
    T: Any, stages: Sequence[tuple[int, int]] = REGNET, group: int = 8, stem: int = 32, classes: int = 1000
) -> Any:
    """Bottlenecks as wide inside, with grouped convolutions and weighted channels (Radosavovic et al. 2020)."""
    nn = T.nn

    class Block(nn.Module):
        def __init__(self, a: int, b: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                *_unit(nn, a, b), nn.ReLU(), *_unit(nn, b, b, 3, stride, b // group), nn.ReLU(),
                gated(nn, b, max(a // 4, 1), nn.ReLU(), nn.Sigmoid()), *_unit(nn, b, b),
            )  # fmt: skip
            self.side = nn.Sequential(*(_unit(nn, a, b, 1, stride) if stride > 1 or a != b else []))

        def forward(self, x: Any) -> Any:
            return T.relu(self.side(x) + self.body(x))

    layers, before = [*_unit(nn, 3, stem, 3, 2), nn.ReLU()], stem
    for count, after in stages:
        for k in range(count):
            layers.append(Block(before, after, 1 if k else 2))
            before = after
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    return filled(T, nn.Sequential(*layers))


GHOST = (
    (3, 16, 16, False, 1), (3, 48, 24, False, 2), (3, 72, 24, False, 1), (5, 72, 40, True, 2), (5, 120, 40, True, 1),
    (3, 240, 80, False, 2), (3, 200, 80, False, 1), (3, 184, 80, False, 1), (3, 184, 80, False, 1),
    (3, 480, 112, True, 1), (3, 672, 112, True, 1), (5, 672, 160, True, 2), (5, 960, 160, False, 1),
    (5, 960, 160, True, 1), (5, 960, 160, False, 1), (5, 960, 160, True, 1),
)  # fmt: skip
"""GhostNet: size of the depthwise convolution, channels inside and after, weighted channels, stride."""


def ghostnet(T: Any, rows: Sequence[tuple[int, int, int, bool, int]] = GHOST, classes: int = 1000) -> Any:
    """Bottlenecks of which half the channels are depthwise convolutions of the other half (Han et al. 2020)."""
    nn = T.nn

    class Ghost(nn.Module):
        def __init__(self, a: int, b: int, act: bool) -> None:
            super().__init__()
            half = b // 2
            last = [nn.ReLU()] if act else []
            self.first = nn.Sequential(*_unit(nn, a, half), *last)
            self.cheap = nn.Sequential(*_unit(nn, half, half, 3, 1, half), *last)

        def forward(self, x: Any) -> Any:
            y = self.first(x)
            return T.cat([y, self.cheap(y)], 1)

    class Bottleneck(nn.Module):
        def __init__(self, a: int, row: tuple[int, int, int, bool, int]) -> None:
            super().__init__()
            size, inside, after, weighted, stride = row
            self.body = nn.Sequential(
                Ghost(a, inside, True), *(_unit(nn, inside, inside, size, stride, inside) if stride > 1 else []),
                *([gated(nn, inside, inside // 4, nn.ReLU(), nn.Hardsigmoid())] if weighted else []),
                Ghost(inside, after, False),
            )  # fmt: skip
            turned = [*_unit(nn, a, a, size, stride, a), *_unit(nn, a, after)]
            self.side = nn.Sequential(*(turned if stride > 1 or a != after else []))

        def forward(self, x: Any) -> Any:
            return self.side(x) + self.body(x)

    layers, before = [*_unit(nn, 3, 16, 3, 2), nn.ReLU()], 16
    for row in rows:
        layers.append(Bottleneck(before, row))
        before = row[2]
    layers += [
        *_unit(nn, before, 960),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Conv2d(960, 1280, 1),
        nn.ReLU(),
    ]
    return filled(T, nn.Sequential(*layers, nn.Flatten(), nn.Linear(1280, classes)))


def convnext(
    T: Any,
    blocks: Sequence[int] = (3, 3, 9, 3),
    widths: Sequence[int] = (96, 192, 384, 768),
    classes: int = 1000,
) -> Any:
    """Depthwise 7x7 convolutions and perceptrons over channels, channels last in between (Liu et al. 2022)."""
    nn = T.nn

    class Norm(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(n, eps=1e-6)

        def forward(self, x: Any) -> Any:
            return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    class Block(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.deep, self.norm = nn.Conv2d(n, n, 7, padding=3, groups=n), nn.LayerNorm(n, eps=1e-6)
            self.up, self.down, self.act = nn.Linear(n, 4 * n), nn.Linear(4 * n, n), nn.GELU()
            self.weight = nn.Parameter(T.ones(n))

        def forward(self, x: Any) -> Any:
            y = self.norm(self.deep(x).permute(0, 2, 3, 1))
            y = self.weight * self.down(self.act(self.up(y)))
            return x + y.permute(0, 3, 1, 2)

    layers, before = list[Any](), 3
    for k, (count, n) in enumerate(zip(blocks, widths, strict=True)):
        layers += [nn.Conv2d(3, n, 4, 4), Norm(n)] if k == 0 else [Norm(before), nn.Conv2d(before, n, 2, 2)]
        layers += [Block(n) for _ in range(count)]
        before = n
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(before), nn.Linear(before, classes)]
    return filled(T, nn.Sequential(*layers))


def swin(
    T: Any, depths: Sequence[int] = (2, 2, 6, 2), width: int = 96, heads: Sequence[int] = (3, 6, 12, 24),
    window: int = 7, side: int = 224, classes: int = 1000,
) -> Any:  # fmt: skip
    """Attention within windows that shift from block to block, with a table of positions (Liu et al. 2021)."""
    nn, F = T.nn, T.nn.functional

    class Block(nn.Module):
        def __init__(self, n: int, count: int, side: int, shift: int) -> None:
            super().__init__()
            self.n, self.heads, self.side, self.shift = n, count, side, shift if side > window else 0
            self.norm1, self.norm2 = nn.LayerNorm(n), nn.LayerNorm(n)
            self.qkv, self.out = nn.Linear(n, 3 * n), nn.Linear(n, n)
            self.up, self.down = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)
            self.places = nn.Parameter(T.zeros(1, count, window**2, window**2))

        def attended(self, x: Any) -> Any:
            n, s, w, h = x.shape[0], self.side, window, self.heads
            x = T.roll(x, (-self.shift, -self.shift), (1, 2)) if self.shift else x
            x = (
                x.reshape(n, s // w, w, s // w, w, self.n)
                .permute(0, 1, 3, 2, 4, 5)
                .reshape(-1, w * w, self.n)
            )
            q, k, v = self.qkv(x).reshape(-1, w * w, 3, h, self.n // h).permute(2, 0, 3, 1, 4).unbind(0)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.places)
            y = self.out(y.transpose(1, 2).reshape(-1, w * w, self.n))
            y = y.reshape(n, s // w, s // w, w, w, self.n).permute(0, 1, 3, 2, 4, 5).reshape(n, s, s, self.n)
            return T.roll(y, (self.shift, self.shift), (1, 2)) if self.shift else y

        def forward(self, x: Any) -> Any:
            x = x + self.attended(self.norm1(x))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class Merged(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.norm, self.less = nn.LayerNorm(4 * n), nn.Linear(4 * n, 2 * n, bias=False)

        def forward(self, x: Any) -> Any:
            n, s, _, c = x.shape
            x = (
                x.reshape(n, s // 2, 2, s // 2, 2, c)
                .permute(0, 1, 3, 4, 2, 5)
                .reshape(n, s // 2, s // 2, 4 * c)
            )
            return self.less(self.norm(x))

    class Swin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.first = nn.Conv2d(3, width, 4, 4), nn.LayerNorm(width)
            layers, n, s = list[Any](), width, side // 4
            for k, (depth, count) in enumerate(zip(depths, heads, strict=True)):
                if k:
                    layers.append(Merged(n))
                    n, s = 2 * n, s // 2
                layers += [Block(n, count, s, window // 2 * (j % 2)) for j in range(depth)]
            self.layers = nn.Sequential(*layers)
            self.norm, self.head = nn.LayerNorm(n), nn.Linear(n, classes)

        def forward(self, x: Any) -> Any:
            x = self.first(self.patches(x).permute(0, 2, 3, 1))
            return self.head(self.norm(self.layers(x)).mean((1, 2)))

    return filled(T, Swin())


def word_lstm(T: Any, width: int = 512, layers: int = 2, vocabulary: int = 8000) -> Any:
    """A language model of words: LSTM layers between an embedding and a linear layer (Zaremba et al. 2014)."""
    nn = T.nn

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.lstm = (
                nn.Embedding(vocabulary, width),
                nn.LSTM(width, width, layers, batch_first=True),
            )
            self.head = nn.Linear(width, vocabulary)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.lstm(self.words(tokens))[0])

    return filled(T, Words())
