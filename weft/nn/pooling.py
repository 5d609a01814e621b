"""Pooling as layers. Shapes: (n, c, *sizes) -> (n, c, *windows), or the same without n."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.functional.convolution import PerAxis
from weft.core.functional.pooling import Sizes
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.nn import functional as F
from weft.nn.module import Module


class _Pool(Module):
    def __init__(
        self,
        kernel_size: PerAxis,
        stride: PerAxis | None = None,
        padding: PerAxis = 0,
    ) -> None:
        super().__init__()
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
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.dilation, self.return_indices, self.ceil_mode = dilation, return_indices, ceil_mode

    pool: Any

    def forward(self, x: Tensor) -> Any:
        return self.pool(
            x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
            return_indices=self.return_indices,
        )  # fmt: skip

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
        divisor_override: int | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad
        self.divisor_override = divisor_override

    pool: Any

    def forward(self, x: Tensor) -> Tensor:
        divisor = {} if self.divisor_override is None else {"divisor_override": self.divisor_override}
        return self.pool(
            x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, **divisor
        )


class MaxPool1d(_MaxPool):
    """y[n, c, i] = max over k of x[n, c, i * stride + k * dilation - padding]; also where, if asked"""

    pool = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    """y[n, c, i, j] = max over k, l of x[n, c, i * stride + k, j * stride + l]; also where, if asked"""

    pool = staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPool):
    """y[n, c, i, j, h] = max over k, l, m of
    x[n, c, i * stride + k, j * stride + l, h * stride + m]; also where, if asked
    """

    pool = staticmethod(F.max_pool3d)


class AvgPool1d(_AvgPool):
    """y[n, c, i] = mean over k of x[n, c, i * stride + k]"""

    pool = staticmethod(F.avg_pool1d)


class AvgPool2d(_AvgPool):
    """y[n, c, i, j] = mean over k, l of x[n, c, i * stride + k, j * stride + l]"""

    pool = staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPool):
    """y[n, c, i, j, h] = mean over k, l, m of x[n, c, i * stride + k, j * stride + l, h * stride + m]"""

    pool = staticmethod(F.avg_pool3d)


class _LPPool(Module):
    def __init__(
        self, norm_type: float, kernel_size: PerAxis, stride: PerAxis | None = None, ceil_mode: bool = False
    ) -> None:
        super().__init__()
        self.norm_type, self.kernel_size, self.stride = norm_type, kernel_size, stride
        self.ceil_mode = ceil_mode

    def extra_repr(self) -> str:
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class LPPool1d(_LPPool):
    """y = (sum x**p) ** (1/p) over windows of 1 size, p = norm_type"""

    def forward(self, x: Tensor) -> Tensor:
        return F.lp_pool1d(x, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)


class LPPool2d(_LPPool):
    """y = (sum x**p) ** (1/p) over windows of 2 sizes, p = norm_type"""

    def forward(self, x: Tensor) -> Tensor:
        return F.lp_pool2d(x, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)


class LPPool3d(_LPPool):
    """y = (sum x**p) ** (1/p) over windows of 3 sizes, p = norm_type"""

    def forward(self, x: Tensor) -> Tensor:
        return F.lp_pool3d(x, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)


class MaxUnpool1d(_Pool):
    """Maxima put back where MaxPool1d with return_indices found them, zeros elsewhere."""

    def forward(self, x: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return F.max_unpool1d(x, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool2d(_Pool):
    """Maxima put back where MaxPool2d with return_indices found them, zeros elsewhere."""

    def forward(self, x: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return F.max_unpool2d(x, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool3d(_Pool):
    """Maxima put back where MaxPool3d with return_indices found them, zeros elsewhere."""

    def forward(self, x: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return F.max_unpool3d(x, indices, self.kernel_size, self.stride, self.padding, output_size)


class _Adaptive(Module):
    def __init__(self, output_size: Sizes) -> None:
        super().__init__()
        self.output_size = output_size

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class _AdaptiveMax(_Adaptive):
    def __init__(self, output_size: Sizes, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices


class AdaptiveAvgPool1d(_Adaptive):
    """The mean of windows that divide the input into output_size parts; None keeps a size."""

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool1d(x, self.output_size)


class AdaptiveAvgPool2d(_Adaptive):
    """The mean of windows that divide the input into output_size parts; None keeps a size."""

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x, self.output_size)


class AdaptiveAvgPool3d(_Adaptive):
    """The mean of windows that divide the input into output_size parts; None keeps a size."""

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool3d(x, self.output_size)


class AdaptiveMaxPool1d(_AdaptiveMax):
    """The maximum of windows that divide the input into output_size parts; None keeps a size."""

    def forward(self, x: Tensor) -> Any:
        return F.adaptive_max_pool1d(x, self.output_size, self.return_indices)


class AdaptiveMaxPool2d(_AdaptiveMax):
    """The maximum of windows that divide the input into output_size parts; None keeps a size."""

    def forward(self, x: Tensor) -> Any:
        return F.adaptive_max_pool2d(x, self.output_size, self.return_indices)


class AdaptiveMaxPool3d(_AdaptiveMax):
    """The maximum of windows that divide the input into output_size parts; None keeps a size."""

    def forward(self, x: Tensor) -> Any:
        return F.adaptive_max_pool3d(x, self.output_size, self.return_indices)


def _check_output(name: str, size: PerAxis | None, ratio: float | Sequence[float] | None) -> None:
    if (size is None) == (ratio is None):
        raise ArgumentError(f"{name}: give one of output_size and output_ratio, got {size} and {ratio}")
    ratios = () if ratio is None else ratio if isinstance(ratio, Sequence) else (ratio,)
    if not all(0 < r < 1 for r in ratios):
        raise ArgumentError(f"{name}: output_ratio must be between 0 and 1, got {ratio}")


class FractionalMaxPool2d(Module):
    """The maximum of windows whose steps are random. Source: Graham 2014, arXiv:1412.6071."""

    def __init__(
        self,
        kernel_size: PerAxis,
        output_size: PerAxis | None = None,
        output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> None:
        super().__init__()
        _check_output(type(self).__name__, output_size, output_ratio)
        self.kernel_size, self.output_size, self.output_ratio = kernel_size, output_size, output_ratio
        self.return_indices, self._random_samples = return_indices, _random_samples

    def forward(self, x: Tensor) -> Any:
        return F.fractional_max_pool2d(
            x,
            self.kernel_size,
            self.output_size,
            self.output_ratio,
            self.return_indices,
            self._random_samples,
        )


class FractionalMaxPool3d(Module):
    """The maximum of windows whose steps are random. Source: Graham 2014, arXiv:1412.6071."""

    def __init__(
        self,
        kernel_size: PerAxis,
        output_size: PerAxis | None = None,
        output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> None:
        super().__init__()
        _check_output(type(self).__name__, output_size, output_ratio)
        self.kernel_size, self.output_size, self.output_ratio = kernel_size, output_size, output_ratio
        self.return_indices, self._random_samples = return_indices, _random_samples

    def forward(self, x: Tensor) -> Any:
        return F.fractional_max_pool3d(
            x,
            self.kernel_size,
            self.output_size,
            self.output_ratio,
            self.return_indices,
            self._random_samples,
        )


_MaxPoolNd, _AvgPoolNd, _LPPoolNd = _MaxPool, _AvgPool, _LPPool  # torch's names
_AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd = _Adaptive, _AdaptiveMax
