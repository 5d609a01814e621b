"""Convolutional networks as functions of their parameters and of a framework's operations: the same for every one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

Array = np.ndarray[Any, Any]

Network: TypeAlias = "Callable[[Operations, Sequence[Any], Any], Any]"

WIDTHS = (32, 64, 128)
"""Channels of a residual network's stages; each but the first halves the image. Two blocks in each."""

EXPANDED = ((16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 80, 2), (80, 80, 1))
"""(channels in, channels out, stride) of the inverted bottlenecks of a depthwise network."""

WIDER = 6
"""How much wider a bottleneck is inside."""


class Operations(Protocol):
    """What a framework does on images (n, channels, height, width)."""

    def conv(self, x: Any, w: Any, stride: int, groups: int) -> Any:
        """A convolution of odd size that keeps the image's."""
        ...

    def norm(self, x: Any, scale: Any, shift: Any) -> Any:
        """Each channel with mean 0 and variance 1 over the batch and the image, scaled and shifted."""
        ...

    def relu(self, x: Any) -> Any: ...
    def sigmoid(self, x: Any) -> Any: ...

    def mean(self, x: Any) -> Any:
        """(n, channels, 1, 1)."""
        ...


class _Layers:
    """Takes parameters in order."""

    def __init__(self, ops: Operations, parameters: Sequence[Any]) -> None:
        self.ops, self.rest = ops, iter(parameters)

    def conv(self, x: Any, stride: int = 1, depthwise: bool = False) -> Any:
        w = next(self.rest)
        return self.ops.conv(x, w, stride, w.shape[0] if depthwise else 1)

    def unit(self, x: Any, stride: int = 1, depthwise: bool = False) -> Any:
        x = self.conv(x, stride, depthwise)
        return self.ops.norm(x, next(self.rest), next(self.rest))

    def swish(self, x: Any) -> Any:
        return x * self.ops.sigmoid(x)

    def head(self, x: Any) -> Any:
        return self.ops.mean(x)[:, :, 0, 0] @ next(self.rest)


def residual(ops: Operations, parameters: Sequence[Any], x: Any) -> Any:
    """Blocks of two 3x3 convolutions with batch norms, beside the identity or a 1x1 convolution (He et al. 2016)."""
    layers = _Layers(ops, parameters)
    x = ops.relu(layers.unit(x))
    for stage in range(len(WIDTHS)):
        for block in range(2):
            stride = 2 if stage and not block else 1
            y = layers.unit(ops.relu(layers.unit(x, stride)))
            x = ops.relu(y + (x if stride == 1 else layers.unit(x, stride)))
    return layers.head(x)


def depthwise(ops: Operations, parameters: Sequence[Any], x: Any) -> Any:
    """Bottlenecks that are wide inside, with a depthwise convolution and weighted channels there (Tan & Le 2019)."""
    layers = _Layers(ops, parameters)
    x = layers.swish(layers.unit(x, 2))
    for before, after, stride in EXPANDED:
        y = layers.swish(layers.unit(x))
        y = layers.swish(layers.unit(y, stride, depthwise=True))
        y = y * ops.sigmoid(layers.conv(layers.swish(layers.conv(ops.mean(y)))))
        y = layers.unit(y)
        x = x + y if stride == 1 and before == after else y
    return layers.head(x)


def _drawn(shapes: Iterator[tuple[int, ...]]) -> list[Array]:
    """Normal weights that keep the scale of what goes through; pairs of scales and shifts for shapes of one size."""
    rng, out = np.random.default_rng(11), list[Array]()
    for shape in shapes:
        if len(shape) == 1:
            out += [np.ones(shape, np.float32), np.zeros(shape, np.float32)]
        else:
            fan = shape[0] if len(shape) == 2 else math.prod(shape[1:])
            out.append(rng.standard_normal(shape, np.float32) / np.float32(math.sqrt(fan)))
    return out


def _residual_shapes() -> Iterator[tuple[int, ...]]:
    yield from ((WIDTHS[0], 3, 3, 3), (WIDTHS[0],))
    before = WIDTHS[0]
    for stage, wide in enumerate(WIDTHS):
        for block in range(2):
            yield from ((wide, before, 3, 3), (wide,), (wide, wide, 3, 3), (wide,))
            if stage and not block:
                yield from ((wide, before, 1, 1), (wide,))
            before = wide
    yield (before, 10)


def _depthwise_shapes() -> Iterator[tuple[int, ...]]:
    first = EXPANDED[0][0]
    yield from ((first, 3, 3, 3), (first,))
    for before, after, _ in EXPANDED:
        wide, few = before * WIDER, before // 4
        yield from ((wide, before, 1, 1), (wide,), (wide, 1, 3, 3), (wide,))
        yield from ((few, wide, 1, 1), (wide, few, 1, 1), (after, wide, 1, 1), (after,))
    yield (EXPANDED[-1][1], 10)


def residual_parameters() -> list[Array]:
    """What `residual` takes."""
    return _drawn(_residual_shapes())


def depthwise_parameters() -> list[Array]:
    """What `depthwise` takes."""
    return _drawn(_depthwise_shapes())


class _Counted:
    """Operations that count multiply-adds, on shapes only."""

    def __init__(self) -> None:
        self.products = 0

    def conv(self, x: Any, w: Any, stride: int, groups: int) -> Any:
        side = -(-x.shape[-1] // stride)
        self.products += x.shape[0] * side * side * math.prod(w.shape)
        return np.broadcast_to(np.float32(0), (x.shape[0], w.shape[0], side, side))

    def norm(self, x: Any, scale: Any, shift: Any) -> Any:
        return x

    def relu(self, x: Any) -> Any:
        return x

    def sigmoid(self, x: Any) -> Any:
        return x

    def mean(self, x: Any) -> Any:
        return x[:, :, :1, :1]


def step_flops(network: Network, parameters: list[Array], batch: int, side: int) -> float:
    """Operations of a training step on square images: products forward, and both gradients of each."""
    counted = _Counted()
    network(counted, parameters, np.zeros((1, 3, side, side), np.float32))
    return 6.0 * batch * counted.products
