"""Windows that begin inside and end outside: what averages with ceil_mode divide by; which of several NaNs, and of
equal maxima, a window takes. Pixels resized to pixels."""

from __future__ import annotations

import itertools

import numpy as np

import weft
from weft.nn import functional as F


def averaged(x: np.ndarray, k: int, s: int, p: int, include: bool) -> list[float]:
    """torch's rule: the last window starts in the input or its left padding; the right padding counts to its end."""
    n = len(x)
    count = -(-(n + 2 * p - k) // s) + 1
    count -= (count - 1) * s >= n + p
    out = []
    for start in range(-p, -p + count * s, s):
        end = min(start + k, n + p)
        inside = x[max(start, 0) : min(end, n)]
        out.append(inside.sum() / (end - start if include else len(inside)))
    return out


def test_averages_with_ceil_mode() -> None:
    cases = list(itertools.product((9, 10, 11, 13), (2, 3), (1, 2, 3), (0, 1), (True, False)))
    found = [
        F.avg_pool1d(weft.arange(1.0, n + 1).reshape(1, n), k, s, p, ceil_mode=True, count_include_pad=i)[0]
        for n, k, s, p, i in cases
    ]
    weft.realize(*found)
    for (n, k, s, p, i), got in zip(cases, found, strict=True):
        np.testing.assert_allclose(got.numpy(), averaged(np.arange(1.0, n + 1), k, s, p, i), rtol=1e-6)


def test_the_first_maximum_and_the_last_nan_are_taken() -> None:
    """As torch's kernels do, which go on to the next element that is larger, or a NaN."""
    nan, low = float("nan"), float("-inf")
    x = weft.tensor([[1.0, 2.0, 2.0, nan, 1.0, nan, low, low]], requires_grad=True)
    top, place = F.max_pool1d(x, 3, 2, 1, return_indices=True)
    assert place.tolist() == [[1, 3, 5, 5]]
    assert top[0, 0].item() == 2 and bool(top[0, 1:].isnan().all())
    top.backward(weft.tensor([[1.0, 2.0, 4.0, 8.0]]))
    assert x.grad is not None and x.grad.tolist() == [[0, 1, 0, 2, 0, 12, 0, 0]]
    ends = weft.tensor([[low, low]])
    assert F.max_pool1d(ends, 2, 1, 1, return_indices=True)[1].tolist() == [[0, 0, 1]]


def test_gradients_of_windows_that_overlap_are_added_in_float32() -> None:
    x = weft.tensor([[0.0, 1.0, 0.0, 0.0]], dtype=weft.bfloat16, requires_grad=True)
    F.max_pool1d(x, 3, 1, 1).backward(weft.tensor([[256.0, 1.0, 1.0, 0.0]], dtype=weft.bfloat16))
    assert x.grad is not None and x.grad.dtype is weft.bfloat16 and x.grad.tolist() == [[0, 258, 0, 0]]


def test_pixels_resized() -> None:
    x = weft.tensor([[0, 10], [200, 255]], dtype=weft.uint8).reshape(1, 1, 2, 2)
    out = F.interpolate(x, size=(2, 4), mode="bilinear")
    assert out.dtype is weft.uint8 and out[0, 0].tolist() == [[0, 3, 8, 10], [200, 214, 241, 255]]
