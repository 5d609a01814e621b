"""Pooling as layers. Shapes: (n, c, *sizes) -> (n, c, *windows), or the same without n."""

from __future__ import annotations

from weft.core import functional as F
from weft.core.functional.convolution import PerAxis
from weft.core.tensor import Tensor
from weft.nn.module import Module


class _Pool(Module):
    def __init__(
        self,
        kernel_size: PerAxis,
        stride: PerAxis | None = None,
        padding: PerAxis = 0,
    ) -> None:
        self.kernel_size, self.padding = kernel_size, padding
        self.stride = kernel_size if stride is None else stride

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _MaxPool(_Pool):
    def __init__(
        self,
        kernel_size: PerAxis,
        stride: PerAxis | None = None,
        padding: PerAxis = 0,
        dilation: PerAxis = 1,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.dilation, self.ceil_mode = dilation, ceil_mode

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, dilation={self.dilation}, ceil_mode={self.ceil_mode}"


class _AvgPool(_Pool):
    def __init__(
        self,
        kernel_size: PerAxis,
        stride: PerAxis | None = None,
        padding: PerAxis = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad


class MaxPool1d(_MaxPool):
    """y[n, c, i] = max over k of x[n, c, i * stride + k * dilation - padding]"""

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool1d(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)


class MaxPool2d(_MaxPool):
    """y[n, c, i, j] = max over k, l of x[n, c, i * stride + k * dilation - padding, j * stride + ...]

    >>> weft.nn.MaxPool2d(2)(weft.randn(4, 3, 8, 8)).shape
    (4, 3, 4, 4)
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)


class AvgPool1d(_AvgPool):
    """y[n, c, i] = mean over k of x[n, c, i * stride + k - padding]"""

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool1d(
            x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )


class AvgPool2d(_AvgPool):
    """y[n, c, i, j] = mean over k, l of x[n, c, i * stride + k - padding, j * stride + l - padding]"""

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(
            x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )


class _Adaptive(Module):
    def __init__(self, output_size: PerAxis) -> None:
        self.output_size = output_size

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_Adaptive):
    """The mean of windows that divide (n, c, L) into `output_size` parts."""

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool1d(x, self.output_size)


class AdaptiveAvgPool2d(_Adaptive):
    """The mean of windows that divide (n, c, H, W) into `output_size` parts.

    >>> weft.nn.AdaptiveAvgPool2d(1)(weft.randn(4, 3, 8, 8)).shape
    (4, 3, 1, 1)
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x, self.output_size)


class AdaptiveMaxPool2d(_Adaptive):
    """The maximum of windows that divide (n, c, H, W) into `output_size` parts."""

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_max_pool2d(x, self.output_size)
