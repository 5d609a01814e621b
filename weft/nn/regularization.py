"""Dropout, and layers that only change the shape."""

from __future__ import annotations

from weft.core.functional.dropouts import check_probability
from weft.core.tensor.tensor import Tensor
from weft.nn import functional as F
from weft.nn.module import Module


class _Dropout(Module):
    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        check_probability(type(self).__name__, "p", p)
        self.p, self.inplace = p, inplace

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Dropout(_Dropout):
    """y = 0 with probability p, else x / (1 - p); y = x in evaluation. Source: Srivastava et al., JMLR 15 (2014)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p, self.training, self.inplace)


class Dropout1d(_Dropout):
    """Dropout of whole channels of (n, c, L)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout1d(x, self.p, self.training, self.inplace)


class Dropout2d(_Dropout):
    """Dropout of whole channels of (n, c, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout2d(x, self.p, self.training, self.inplace)


class Dropout3d(_Dropout):
    """Dropout of whole channels of (n, c, D, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout3d(x, self.p, self.training, self.inplace)


class AlphaDropout(_Dropout):
    """Dropout that keeps mean 0 and variance 1 of what SELU gives. Source: arXiv:1706.02515 (Klambauer et al.)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.alpha_dropout(x, self.p, self.training, self.inplace)


class FeatureAlphaDropout(_Dropout):
    """AlphaDropout of whole channels of (n, c, ...)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.feature_alpha_dropout(x, self.p, self.training, self.inplace)


class Flatten(Module):
    """The dimensions start_dim ... end_dim as one. Shapes: (n, a, b, c) -> (n, a b c) unless told otherwise."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """The dimension `dim` as several. Shapes: (n, a b) -> (n, a, b) for dim=1 and unflattened_size=(a, b)."""

    def __init__(self, dim: int, unflattened_size: tuple[int, ...]) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, unflattened_size

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


_DropoutNd = _Dropout  # torch's name
