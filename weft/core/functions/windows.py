"""Window functions: weights over M points, for spectra and filters. torch's names and forms.

`sym` windows are the same from both ends; periodic ones (sym=False) are the first M points of a symmetric one of M + 1.
Source: Harris, "On the use of windows for harmonic analysis with the discrete Fourier transform", 1978.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from weft.core.args.defaults import get_default_dtype
from weft.core.args.handle import describe
from weft.core.layout.creation import arange, full
from weft.core.pointwise.elementwise import abs, cos, exp, sin, sqrt
from weft.core.pointwise.special_functions import i0
from weft.errors import ArgumentError, DTypeError
from weft.ir.dtypes import DType, float64

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def _points(op: str, M: int, sym: bool) -> tuple[Tensor | None, int]:
    """0, 1, ... M - 1 in float64, and the number of steps from end to end; None for windows of one point or none."""
    if isinstance(M, bool) or not isinstance(M, int):  # pyright: ignore[reportUnnecessaryIsInstance]  (users' errors)
        raise DTypeError(f"{op}: the number of points must be an int, got {describe(M)}")
    if M < 0:
        raise ArgumentError(f"{op}: the number of points must not be negative, got {M}")
    return (arange(M, dtype=float64), M - 1 if sym else M) if M > 1 else (None, 1)


def _made(
    op: str, w: Tensor | None, M: int, dtype: DType | None, device: str | None, requires_grad: bool
) -> Tensor:
    kind = get_default_dtype() if dtype is None else dtype
    if not kind.is_float:
        raise ArgumentError(f"{op}: windows are floats, got {kind.name}; convert the window with .to(...)")
    out = full((M,), 1.0, dtype=kind, device=device) if w is None else w.to(kind)
    out = out if device is None else out.to(device)
    return out.requires_grad_() if requires_grad else out


def general_cosine(
    M: int, *, a: Iterable[float], sym: bool = True, dtype: DType | None = None, device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """sum (-1)**k a_k cos(2 pi k n / (M - 1))"""
    if not isinstance(a, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  (what users give)
        raise DTypeError(f"general_cosine: a must be a list of numbers, got {a}")
    weights = list(a)
    if not weights:
        raise ArgumentError("general_cosine: needs at least one coefficient")
    n, last = _points("general_cosine", M, sym)
    w: Tensor | None = None
    if n is not None:
        w = n * 0.0 + weights[0]
        for k, c in enumerate(weights[1:], 1):
            w = w + cos(n * (2 * math.pi * k / last)) * ((-1) ** k * c)
    return _made("general_cosine", w, M, dtype, device, requires_grad)


def general_hamming(M: int, *, alpha: float = 0.54, sym: bool = True, **options: Any) -> Tensor:
    """alpha - (1 - alpha) cos(2 pi n / (M - 1))"""
    return general_cosine(M, a=[alpha, 1 - alpha], sym=sym, **options)


def hamming(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """0.54 - 0.46 cos(2 pi n / (M - 1))"""
    return general_hamming(M, sym=sym, **options)


def hann(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """0.5 - 0.5 cos(2 pi n / (M - 1))"""
    return general_hamming(M, alpha=0.5, sym=sym, **options)


def blackman(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """0.42 - 0.5 cos(2 pi n / (M - 1)) + 0.08 cos(4 pi n / (M - 1))"""
    return general_cosine(M, a=[0.42, 0.5, 0.08], sym=sym, **options)


def nuttall(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """Four cosine terms with the least continuous sidelobes (Nuttall 1981)."""
    return general_cosine(M, a=[0.3635819, 0.4891775, 0.1365995, 0.0106411], sym=sym, **options)


def bartlett(
    M: int, *, sym: bool = True, dtype: DType | None = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:  # fmt: skip
    """1 - |2 n / (M - 1) - 1|, a triangle"""
    n, last = _points("bartlett", M, sym)
    return _made(
        "bartlett", None if n is None else 1 - abs(n * (2 / last) - 1), M, dtype, device, requires_grad
    )


def cosine(
    M: int, *, sym: bool = True, dtype: DType | None = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:  # fmt: skip
    """sin(pi (n + 1/2) / M)"""
    n, last = _points("cosine", M, sym)
    w = None if n is None else sin((n + 0.5) * (math.pi / (last + 1)))
    return _made("cosine", w, M, dtype, device, requires_grad)


def exponential(
    M: int, *, center: float | None = None, tau: float = 1.0, sym: bool = True, dtype: DType | None = None,
    device: str | None = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """exp(-|n - center| / tau)"""
    if tau <= 0:
        raise ArgumentError(f"exponential: tau must be positive, got {tau}")
    if sym and center is not None:
        raise ArgumentError("exponential: a symmetric window has its center in the middle; give sym=False")
    n, last = _points("exponential", M, sym)
    w = None if n is None else exp(-abs(n - (last / 2 if center is None else center)) * (1 / tau))
    return _made("exponential", w, M, dtype, device, requires_grad)


def gaussian(
    M: int, *, std: float = 1.0, sym: bool = True, dtype: DType | None = None, device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """exp(-((n - (M - 1) / 2) / std)**2 / 2)"""
    if std <= 0:
        raise ArgumentError(f"gaussian: std must be positive, got {std}")
    n, last = _points("gaussian", M, sym)
    w = None if n is None else exp(((n - last / 2) * (1 / std)) ** 2 * -0.5)
    return _made("gaussian", w, M, dtype, device, requires_grad)


def kaiser(
    M: int, *, beta: float = 12.0, sym: bool = True, dtype: DType | None = None, device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """I0(beta sqrt(1 - (2 n / (M - 1) - 1)**2)) / I0(beta)"""
    if beta < 0:
        raise ArgumentError(f"kaiser: beta must not be negative, got {beta}")
    n, last = _points("kaiser", M, sym)
    w: Tensor | None = None
    if n is not None:
        across = n * (2 / last) - 1
        w = i0(sqrt((1 - across * across).clamp(min=0.0)) * beta) / i0(full((), beta, dtype=float64))
    return _made("kaiser", w, M, dtype, device, requires_grad)


# torch's older functions, periodic unless told otherwise


def bartlett_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    """See weft.signal.windows.bartlett."""
    return bartlett(window_length, sym=not periodic, **options)


def blackman_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    """See weft.signal.windows.blackman."""
    return blackman(window_length, sym=not periodic, **options)


def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, **options: Any
) -> Tensor:
    """alpha - beta cos(2 pi n / N)"""
    return general_cosine(window_length, a=[alpha, beta], sym=not periodic, **options)


def hann_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    """See weft.signal.windows.hann."""
    return hann(window_length, sym=not periodic, **options)


def kaiser_window(window_length: int, periodic: bool = True, beta: float = 12.0, **options: Any) -> Tensor:
    """See weft.signal.windows.kaiser."""
    return kaiser(window_length, beta=beta, sym=not periodic, **options)
