"""Small networks of common kinds: what is trained and run to have basic programs compiled."""
# Tests: tests/test_prepare.py

from __future__ import annotations

from collections.abc import Callable

import weft
from weft import Tensor, nn, optim
from weft.lazy_dataclass import dataclass
from weft.nn import functional as F
from weft.prepare.convolutional import UNet, bottlenecks, dense, inverted, isotropic

CLASSES, MANY_CLASSES = 10, 1000

MIN_IMAGE_AXES = 3
"""Axes of an image, whose convolutions have programs for their sizes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A small network of a common kind. `shape`: of its input; `ids`: that is of token numbers. `optimizer`: from
    parameters."""

    name: str
    network: Callable[[], nn.Module]
    shape: tuple[int, ...]
    optimizer: Callable[[nn.Module], optim.Optimizer]
    ids: bool = False

    def run(self) -> None:
        """A step of training, and an inference; for rows and sequences, of two numbers or lengths, since plans for all
        sizes have programs with room."""
        net = self.network()
        optimizer = self.optimizer(net)
        weft.realize(*net.parameters())
        axis, images = int(self.ids or len(self.shape) == 3), len(self.shape) > MIN_IMAGE_AXES
        for more in (0,) if images else (0, 3):
            shape = tuple([n + more * (k == axis) for k, n in enumerate(self.shape)])
            x = weft.zeros(*shape, dtype=weft.int64) if self.ids else weft.randn(*shape)
            x = x.realize()
            y = weft.zeros(shape[0] * (shape[1] if self.ids else 1), dtype=weft.int64).realize()
            net.train()
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            loss.item()
            net.eval()
            with weft.no_grad():
                net(x).realize()


class _Block(nn.Module):
    """A transformer's block; `gated`: normalized by root mean squares, with a gated feed-forward part."""

    def __init__(self, width: int, head: int, causal: bool, gated: bool) -> None:
        super().__init__()
        self.head = head
        norm = nn.RMSNorm if gated else nn.LayerNorm
        self.causal, self.gated = causal, gated
        self.first, self.second = norm(width), norm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, not gated), nn.Linear(width, width, not gated)
        self.up, self.down = nn.Linear(width, 4 * width, not gated), nn.Linear(4 * width, width, not gated)
        self.gate = nn.Linear(width, 4 * width, False) if gated else None

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, of the shape of its input."""
        rows, length, width = x.shape
        joined, heads = self.qkv(self.first(x)), (width // self.head, self.head)
        if self.causal:  # the two ways in which models take it apart
            q, k, v = (p.reshape(rows, length, *heads).transpose(1, 2) for p in joined.split(width, -1))
        else:
            q, k, v = joined.reshape(rows, length, 3, *heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
        y = self.second(x)
        y = F.gelu(self.up(y)) if self.gate is None else F.silu(self.gate(y)) * self.up(y)
        return x + self.down(y)


class _Decoder(nn.Module):
    """A decoder over tokens, with learned positions."""

    def __init__(self, depth: int, words: int, width: int, head: int, gated: bool = False) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
        self.blocks = nn.Sequential(*[_Block(width, head, True, gated) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, a row for each token."""
        y = self.tokens(x) + self.places(weft.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(y))).flatten(0, 1)


class _Vision(nn.Module):
    """A transformer over patches of images, with a class token."""

    def __init__(self) -> None:
        super().__init__()
        width = 128
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(weft.zeros(1, 1, width))
        self.places = nn.Parameter(weft.zeros(1, 65, width))
        self.blocks = nn.Sequential(*[_Block(width, 64, False, False) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, MANY_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of classes."""
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = weft.cat([self.token.expand(y.shape[0], -1, -1), y], 1) + self.places
        return self.head(self.norm(self.blocks(y))[:, 0])


class _Residual(nn.Module):
    """A residual block of convolutions, normalized over the batch."""

    def __init__(self, width: int, act: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), act(),
            nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False), nn.BatchNorm2d(width), act(),
            nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.act = act()

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, of the shape of its input."""
        return self.act(self.layers(x) + x)


class _Encoder(nn.Module):
    """The encoder that the library offers, over sequences, with a class for each."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, a row for each sequence."""
        return self.head(self.layers(x).mean(1))


def _perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, CLASSES)
    )


def _convolutions(act: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), act(), nn.MaxPool2d(3, 2, 1),
        _Residual(32, act), nn.AvgPool2d(2), _Residual(32, act),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, MANY_CLASSES),
    )  # fmt: skip


def _adam(net: nn.Module) -> optim.Optimizer:
    return optim.Adam(net.parameters(), lr=1e-3)


def _adamw(net: nn.Module) -> optim.Optimizer:
    return optim.AdamW(net.parameters(), lr=1e-3)


def _sgd(net: nn.Module) -> optim.Optimizer:
    return optim.SGD(net.parameters(), lr=1e-3)


def _momentum(net: nn.Module) -> optim.Optimizer:
    return optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)


def _heavy(net: nn.Module) -> optim.Optimizer:
    return optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)


NETWORKS = (
    Sample("perceptron, Adam", _perceptron, (50, 784), _adam),
    Sample("perceptron, SGD", _perceptron, (50, 784), _sgd),
    Sample("decoder, Adam", lambda: _Decoder(1, 256, 128, 32), (2, 64), _adam, ids=True),
    # another depth: graphs alike but for sizes share a plan, and would have no basic one
    Sample("decoder of longer texts, AdamW", lambda: _Decoder(2, 256, 128, 64), (2, 128), _adamw, ids=True),
    Sample(
        "gated decoder of many words, AdamW",
        lambda: _Decoder(2, 8192, 256, 128, True),
        (2, 128),
        _adamw,
        ids=True,
    ),
    Sample("encoder, Adam", _Encoder, (4, 24, 32), _adam),
    Sample("vision transformer, Adam", _Vision, (4, 3, 64, 64), _adam),
    Sample("convolutions, SGD", lambda: _convolutions(nn.ReLU), (2, 3, 64, 64), _momentum),
    Sample("convolutions, Adam", lambda: _convolutions(nn.Hardswish), (2, 3, 64, 64), _adam),
    Sample("bottlenecks, SGD", bottlenecks, (2, 3, 64, 64), _momentum),
    # images whose halves are odd
    Sample("bottlenecks, Adam", bottlenecks, (4, 3, 60, 60), _adam),
    Sample(
        "inverted bottlenecks, SGD",
        lambda: inverted(32, 5, nn.Hardswish, nn.Hardsigmoid),
        (2, 3, 48, 48),
        _heavy,
    ),
    Sample(
        "inverted bottlenecks, Adam", lambda: inverted(16, 3, nn.ReLU, nn.Hardsigmoid), (2, 3, 44, 44), _adam
    ),
    Sample(
        "inverted bottlenecks, AdamW", lambda: inverted(32, 3, nn.SiLU, nn.Sigmoid), (4, 3, 48, 48), _adamw
    ),
    Sample("dense blocks, SGD", dense, (2, 3, 60, 60), _heavy),
    # images of which an element is left
    Sample("dense blocks of few elements, SGD", dense, (2, 3, 4, 4), _heavy),
    Sample("bottlenecks of few elements, SGD", bottlenecks, (2, 3, 8, 8), _heavy),
    Sample(
        "inverted bottlenecks of few elements, SGD",
        lambda: inverted(16, 3, nn.Hardswish, nn.Hardsigmoid),
        (2, 3, 4, 4),
        _heavy,
    ),
    Sample("isotropic blocks, AdamW", isotropic, (2, 3, 64, 64), _adamw),
    Sample("U-Net, Adam", lambda: UNet(16, CLASSES), (2, 3, 32, 32), _adam),
)
"""The networks, smallest first."""
