"""The functions of torch.fft that need no complex numbers."""

from __future__ import annotations

from typing import Any

import weft
from weft.core.tensor.tensor import Tensor
from weft.distributions.distribution import known


def fftfreq(n: int, d: float = 1.0, **options: Any) -> Tensor:
    """The frequencies of an FFT of n samples at distance d."""
    half = (n - 1) // 2 + 1
    return weft.cat([weft.arange(half, **options), weft.arange(-(n // 2), 0, **options)]) / (n * d)


def rfftfreq(n: int, d: float = 1.0, **options: Any) -> Tensor:
    """The frequencies of an FFT of n real samples at distance d."""
    return weft.arange(n // 2 + 1, **options) / (n * d)


def _dims(input: Tensor, dim: Any) -> list[int]:
    return list(range(input.ndim)) if dim is None else [dim] if isinstance(dim, int) else list(dim)


def fftshift(input: Tensor, dim: Any = None) -> Tensor:
    """The frequency 0 in the middle."""
    dims = _dims(input, dim)
    return weft.roll(input, [known(input.shape)[d] // 2 for d in dims], dims)


def ifftshift(input: Tensor, dim: Any = None) -> Tensor:
    """fftshift undone."""
    dims = _dims(input, dim)
    return weft.roll(input, [(known(input.shape)[d] + 1) // 2 for d in dims], dims)
