"""Convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.core.functional.convolution import PerAxis, per_axis
from weft.core.layout.creation import empty
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.ir.dtypes import DType
from weft.nn import functional as F
from weft.nn import init
from weft.nn.module import Module, Parameter

_MODES = ("zeros", "reflect", "replicate", "circular")


class _ConvNd(Module):
    """The common base of convolutions, transposed ones too."""

    rank: int
    weight: Parameter
    bias: Parameter | None


class _Conv(_ConvNd):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PerAxis,
        stride: PerAxis = 1,
        padding: PerAxis | str = 0,
        dilation: PerAxis = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ArgumentError(
                f"{name}: {groups} groups do not divide {in_channels} and {out_channels} channels"
            )
        if padding_mode not in _MODES:
            raise ArgumentError(f"{name}: padding_mode must be one of {_MODES}, got {padding_mode!r}")
        if isinstance(padding, str) and padding not in ("same", "valid"):
            raise ArgumentError(f"{name}: padding must be 'same', 'valid' or sizes, got {padding!r}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = per_axis(name, "kernel_size", kernel_size, self.rank, 1)
        self.stride = per_axis(name, "stride", stride, self.rank, 1)
        self.dilation = per_axis(name, "dilation", dilation, self.rank, 1)
        if padding == "same" and max(self.stride) > 1:
            raise ArgumentError(f"{name}: padding='same' needs stride 1, got {self.stride}; pad by sizes")
        self.padding = padding if isinstance(padding, str) else per_axis(name, "padding", padding, self.rank)
        self.padding_mode, self.transposed, self.output_padding = padding_mode, False, (0,) * self.rank
        self._reversed_padding_repeated_twice = self._around()
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = Parameter(empty(shape, device=device, dtype=dtype))
        self.register_parameter(
            "bias", Parameter(empty(out_channels, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        fan_in, _ = init.fans(self.weight)
        bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution by other weights."""
        padding: PerAxis | str = self.padding
        if self.padding_mode != "zeros":
            input, padding = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode), 0
        convolve = (F.conv1d, F.conv2d, F.conv3d)[self.rank - 1]
        return convolve(input, weight, bias, self.stride, padding, self.dilation, self.groups)

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.weight, self.bias)

    def _around(self) -> list[int]:
        """The padding at both ends of each dimension, the last one first."""
        around: list[int] = []
        for k in reversed(range(self.rank)):
            whole = self.dilation[k] * (self.kernel_size[k] - 1)
            match self.padding:
                case "same":
                    around += [whole // 2, whole - whole // 2]
                case str():
                    around += [0, 0]
                case amounts:
                    around += [amounts[k]] * 2
        return around

    def extra_repr(self) -> str:
        parts = [
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        ]
        ones = (1,) * self.rank
        for name, value, usual in (
            ("padding", self.padding, (0,) * self.rank),
            ("dilation", self.dilation, ones),
            ("groups", self.groups, 1),
            ("bias", self.bias is not None, True),
            ("padding_mode", self.padding_mode, "zeros"),
        ):
            if value != usual:
                parts.append(f"{name}={value}")
        return ", ".join(parts)


class Conv1d(_Conv):
    """y[n, o, i] = bias[o] + sum over c, k of weight[o, c, k] * x[n, c, i * stride + k * dilation - padding]

    Shapes: (n, in_channels, L) -> (n, out_channels, L'), weight (out_channels, in_channels / groups, kernel_size);
    L' = (L + 2 padding - dilation (kernel_size - 1) - 1) // stride + 1. padding may be "valid" or "same".

    >>> weft.nn.Conv1d(16, 33, 3, stride=2)(weft.randn(20, 16, 50)).shape
    weft.Size([20, 33, 24])
    """

    rank = 1


class Conv2d(_Conv):
    """y[n, o, i, j] = bias[o] + sum over c, k, l of weight[o, c, k, l] * x[n, c, i * stride + k, j * stride + l]

    Shapes: (n, in_channels, H, W) -> (n, out_channels, H', W'), weight (out_channels, in_channels / groups, kh, kw);
    H' = (H + 2 padding - dilation (kh - 1) - 1) // stride + 1. padding may be "valid" or "same".

    >>> weft.nn.Conv2d(3, 8, 3, padding=1)(weft.randn(4, 3, 32, 32)).shape
    weft.Size([4, 8, 32, 32])
    """

    rank = 2


class Conv3d(_Conv):
    """Convolution of volumes; as Conv2d with one size more.

    Shapes: (n, in_channels, D, H, W) -> (n, out_channels, D', H', W').

    >>> weft.nn.Conv3d(1, 2, 3)(weft.randn(1, 1, 8, 8, 8)).shape
    weft.Size([1, 2, 6, 6, 6])
    """

    rank = 3


class _ConvTransposeNd(_ConvNd):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: PerAxis,
        stride: PerAxis = 1,
        padding: PerAxis = 0,
        output_padding: PerAxis = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: PerAxis = 1,
        padding_mode: str = "zeros",
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ArgumentError(
                f"{name}: {groups} groups do not divide {in_channels} and {out_channels} channels"
            )
        if padding_mode != "zeros":
            raise ArgumentError(f"{name}: padding_mode must be 'zeros', got {padding_mode!r}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = per_axis(name, "kernel_size", kernel_size, self.rank, 1)
        self.stride = per_axis(name, "stride", stride, self.rank, 1)
        self.padding = per_axis(name, "padding", padding, self.rank)
        self.output_padding = per_axis(name, "output_padding", output_padding, self.rank)
        self.dilation = per_axis(name, "dilation", dilation, self.rank, 1)
        self.padding_mode, self.transposed = padding_mode, True
        self._reversed_padding_repeated_twice = [p for p in reversed(self.padding) for _ in range(2)]
        shape = (in_channels, out_channels // groups, *self.kernel_size)
        self.weight = Parameter(empty(shape, device=device, dtype=dtype))
        self.register_parameter(
            "bias", Parameter(empty(out_channels, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        fan_in, _ = init.fans(self.weight)
        bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def _output_padding(self, x: Tensor, output_size: Sequence[int] | None) -> tuple[int, ...]:
        """The padding at the end that makes the output as large as asked for."""
        if output_size is None:
            return self.output_padding
        name, wanted = type(self).__name__, list(output_size)[-self.rank :]
        out: list[int] = []
        for n, m, k, s, p, d in zip(
            x.shape[-self.rank :],
            wanted,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            strict=True,
        ):
            least = (n - 1) * s - 2 * p + d * (k - 1) + 1
            extra = m - least
            if not isinstance(extra, int) or not 0 <= extra < max(s, d):
                raise ShapeError(
                    f"{name}: output_size {tuple(output_size)} is not within a stride of {least}"
                )
            out.append(extra)
        return tuple(out)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        )


class ConvTranspose1d(_ConvTransposeNd):
    """The transpose of Conv1d, which has the same weights: it spreads each element over a window.

    Shapes: (n, in_channels, L) -> (n, out_channels, ...), weight (in_channels, out_channels / groups, *kernel);
    L' = (L - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1. output_size says which of the sizes
    that convolve to this one is meant.

    >>> weft.nn.ConvTranspose1d(3, 2, 4, stride=2, padding=1)(weft.randn(1, 3, 5)).shape
    weft.Size([1, 2, 10])
    """

    rank = 1

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        extra = self._output_padding(x, output_size)
        return F.conv_transpose1d(
            x, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation
        )


class ConvTranspose2d(_ConvTransposeNd):
    """The transpose of Conv2d, which has the same weights: it spreads each element over a window.

    Shapes: (n, in_channels, H, W) -> (n, out_channels, ...), weight (in_channels, out_channels / groups, *kernel);
    H' = (H - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1. output_size says which of the sizes
    that convolve to this one is meant.

    >>> weft.nn.ConvTranspose2d(3, 2, 4, stride=2, padding=1)(weft.randn(1, 3, 5, 5)).shape
    weft.Size([1, 2, 10, 10])
    """

    rank = 2

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        extra = self._output_padding(x, output_size)
        return F.conv_transpose2d(
            x, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation
        )


class ConvTranspose3d(_ConvTransposeNd):
    """The transpose of Conv3d, which has the same weights: it spreads each element over a window.

    Shapes: (n, in_channels, D, H, W) -> (n, out_channels, ...), weight (in_channels, out_channels / groups, *kernel);
    D' = (D - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1. output_size says which of the sizes
    that convolve to this one is meant.

    >>> weft.nn.ConvTranspose3d(3, 2, 4, stride=2, padding=1)(weft.randn(1, 3, 5, 5, 5)).shape
    weft.Size([1, 2, 10, 10, 10])
    """

    rank = 3

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        extra = self._output_padding(x, output_size)
        return F.conv_transpose3d(
            x, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation
        )
