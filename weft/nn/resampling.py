"""Layers that resize images or rearrange their elements."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.functional.convolution import PerAxis
from weft.core.tensor.tensor import Tensor
from weft.nn import functional as F
from weft.nn.module import Module


class Upsample(Module):
    """The input resized to `size` or by `scale_factor`; see weft.nn.functional.interpolate.

    >>> weft.nn.Upsample(scale_factor=2)(weft.randn(1, 3, 4, 5)).shape
    weft.Size([1, 3, 8, 10])
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(
            x, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )

    def extra_repr(self) -> str:
        size = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"
        return f"{size}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Upsample with mode "nearest"."""

    def __init__(
        self, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None
    ) -> None:
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """Upsample with mode "bilinear" and aligned corners."""

    def __init__(
        self, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None
    ) -> None:
        super().__init__(size, scale_factor, "bilinear", align_corners=True)


class PixelShuffle(Module):
    """Channels as pixels. Shapes: (..., c r r, H, W) -> (..., c, H r, W r). Source: Shi et al., arXiv:1609.05158."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(x, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """Pixels as channels. Shapes: (..., c, H r, W r) -> (..., c r r, H, W)."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_unshuffle(x, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """Channels as (groups, c / groups), transposed. Shapes: (n, c, ...) -> same. Source: arXiv:1707.01083."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        return F.channel_shuffle(x, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class Unfold(Module):
    """Windows as columns. Shapes: (n, c, H, W) -> (n, c kh kw, number of windows)."""

    def __init__(
        self, kernel_size: PerAxis, dilation: PerAxis = 1, padding: PerAxis = 0, stride: PerAxis = 1
    ) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


class Fold(Module):
    """The sum of windows laid over one another. Shapes: (n, c kh kw, number of windows) -> (n, c, *output_size)."""

    def __init__(
        self,
        output_size: PerAxis,
        kernel_size: PerAxis,
        dilation: PerAxis = 1,
        padding: PerAxis = 0,
        stride: PerAxis = 1,
    ) -> None:
        super().__init__()
        self.output_size, self.kernel_size = output_size, kernel_size
        self.dilation, self.padding, self.stride = dilation, padding, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.fold(x, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, kernel_size={self.kernel_size}, stride={self.stride}"
