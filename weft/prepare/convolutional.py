"""Small convolutional networks of the families in use: what their blocks have of their own beside plain convolutions.

bottlenecks           1x1, 3x3, 1x1, a stride in the middle, and a convolution beside it
inverted bottlenecks  wide in the middle, channel by channel, with channels weighed by their means
dense blocks          each layer reads all before it
isotropic blocks      large windows channel by channel, layer norm over channels
U-Nets                halved, doubled again, joined with what was before; group norm
"""
# Tests: tests/test_prepare.py

from __future__ import annotations

from collections.abc import Callable

import weft
from weft import Tensor, nn
from weft.nn import functional as F

MANY_CLASSES = 1000

Act = Callable[[], nn.Module]


def conv(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution that keeps the image's size, but for its stride."""
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)


class Bottleneck(nn.Module):
    """A residual block of three convolutions."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 2 * width
        self.layers = nn.Sequential(
            conv(inputs, width, 1), nn.BatchNorm2d(width), nn.ReLU(),
            conv(width, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU(),
            conv(width, outputs, 1), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.beside = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, smaller by its stride."""
        return F.relu(self.layers(x) + self.beside(x))


class _Weighed(nn.Module):
    """Channels weighed by what their means say (squeeze and excitation)."""

    def __init__(self, width: int, gate: Act) -> None:
        super().__init__()
        self.down, self.up, self.gate = nn.Conv2d(width, 8, 1), nn.Conv2d(8, width, 1), gate()

    def forward(self, x: Tensor) -> Tensor:
        """The weighed channels."""
        return x * self.gate(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))


class Inverted(nn.Module):
    """A residual block that is wide in the middle, where each channel is convolved by itself."""

    def __init__(self, width: int, size: int, stride: int, act: Act, gate: Act) -> None:
        super().__init__()
        wide = 3 * width
        self.layers = nn.Sequential(
            conv(width, wide, 1), nn.BatchNorm2d(wide), act(),
            conv(wide, wide, size, stride, wide), nn.BatchNorm2d(wide), act(),
            _Weighed(wide, gate), conv(wide, width, 1), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, smaller by its stride."""
        return self.layers(x) + x if self.stride == 1 else self.layers(x)


class Dense(nn.Module):
    """Layers that each read the outputs of all before; normalized ahead of each convolution."""

    def __init__(self, inputs: int, growth: int, depth: int) -> None:
        super().__init__()
        widths = [inputs + k * growth for k in range(depth)]
        self.layers = nn.ModuleList([
            nn.Sequential(
                nn.BatchNorm2d(n), nn.ReLU(), conv(n, 2 * growth, 1),
                nn.BatchNorm2d(2 * growth), nn.ReLU(), conv(2 * growth, growth, 3),
            ) for n in widths
        ])  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """All of the outputs, and the input, along the channels."""
        found = [x]
        for layer in self.layers:
            found.append(layer(weft.cat(found, 1)))
        return weft.cat(found, 1)


class Isotropic(nn.Module):
    """A large window channel by channel, then a perceptron over the channels, with a scale of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.window, self.norm = nn.Conv2d(width, width, 7, 1, 3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(weft.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, of the shape of its input."""
        y = self.norm(self.window(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class UNet(nn.Module):
    """An image halved and doubled again, joined with what it was before; a class for each of its points."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()

        def layer(inputs: int, outputs: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU(),
                nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
            )  # fmt: skip

        self.first, self.second, self.third = (
            layer(3, width),
            layer(width, 2 * width),
            layer(3 * width, width),
        )
        self.up, self.other = nn.ConvTranspose2d(2 * width, width, 2, 2), nn.Conv2d(2 * width, width, 1)
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, a row for each image."""
        first = self.first(x)
        second = self.second(F.max_pool2d(first, 2))
        doubled = self.up(second) + F.interpolate(self.other(second), scale_factor=2, mode="nearest")
        return self.last(self.third(weft.cat([first, doubled + first, first], 1))).mean((2, 3))


def _headed(stem: int, *blocks: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, stem, 3, 2, 1, bias=False), nn.BatchNorm2d(stem), nn.ReLU(), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(width, MANY_CLASSES),
    )  # fmt: skip


def bottlenecks() -> nn.Module:
    """A residual network of bottlenecks."""
    return _headed(16, nn.MaxPool2d(3, 2, 1), Bottleneck(16, 16, 1), Bottleneck(32, 32, 2), width=64)


def inverted(width: int, size: int, act: Act, gate: Act) -> nn.Module:
    """A network of inverted bottlenecks with these windows."""
    return _headed(width, *[Inverted(width, size, stride, act, gate) for stride in (1, 2, 1)], width=width)


def dense() -> nn.Module:
    """Two dense blocks, halved between them."""
    halved = nn.Sequential(nn.BatchNorm2d(80), nn.ReLU(), conv(80, 40, 1), nn.AvgPool2d(2, 2))
    return _headed(32, Dense(32, 16, 3), halved, Dense(40, 16, 4), nn.BatchNorm2d(104), nn.ReLU(), width=104)


def isotropic() -> nn.Module:
    """A network of blocks with large windows, over patches."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 4, 4), Isotropic(32), Isotropic(32),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(32), nn.Linear(32, MANY_CLASSES),
    )  # fmt: skip
