"""Window functions, approximations of low rank and smoothed resizing beside torch's."""

from __future__ import annotations

import numpy as np
import pytest

import weft
import weft.signal

WINDOWS = (
    "bartlett", "blackman", "cosine", "exponential", "gaussian", "general_hamming", "hamming", "hann", "kaiser",
    "nuttall",
)  # fmt: skip


def test_windows() -> None:
    import torch

    made, wanted = [], []
    for name in WINDOWS:
        for points, sym in ((0, True), (1, True), (2, False), (5, True), (16, False)):
            made.append(getattr(weft.signal.windows, name)(points, sym=sym, dtype=weft.float64))
            wanted.append(getattr(torch.signal.windows, name)(points, sym=sym, dtype=torch.float64))
    for name in ("bartlett", "blackman", "hamming", "hann", "kaiser"):
        made.append(getattr(weft, f"{name}_window")(9))
        wanted.append(getattr(torch, f"{name}_window")(9))
    weft.realize(*made)
    for got, want in zip(made, wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-6, atol=1e-7)


def test_mistakes_in_windows() -> None:
    with pytest.raises(weft.ArgumentError, match="must not be negative"):
        weft.hann_window(-1)
    with pytest.raises(weft.ArgumentError, match="windows are floats"):
        weft.hann_window(4, dtype=weft.int32)
    with pytest.raises(weft.ArgumentError, match="tau must be positive"):
        weft.signal.windows.exponential(4, tau=0.0)


def test_low_rank() -> None:
    weft.manual_seed(0)
    a = weft.randn(2, 8, 2) @ weft.randn(2, 2, 6)
    u, s, v = weft.svd_lowrank(a, q=2)
    np.testing.assert_allclose(((u * s.unsqueeze(-2)) @ v.mT).numpy(), a.numpy(), atol=1e-4)
    u, s, v = weft.pca_lowrank(a[0].mT, q=3)
    np.testing.assert_allclose(((u * s) @ v.mT).numpy(), (a[0].mT - a[0].mT.mean(0)).numpy(), atol=1e-4)
    with pytest.raises(weft.ArgumentError, match="q must be from 0"):
        weft.svd_lowrank(a, q=7)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_smoothed_resizing(mode: str) -> None:
    import torch
    import torch.nn.functional as F

    x = np.random.default_rng(0).standard_normal((2, 3, 9, 7)).astype(np.float32)
    options = [
        {"size": (4, 5)}, {"size": (4, 5), "align_corners": True}, {"size": (12, 3)}, {"scale_factor": 0.4},
    ]  # fmt: skip
    found = [weft.nn.functional.interpolate(weft.tensor(x), mode=mode, antialias=True, **o) for o in options]
    weft.realize(*found)
    for got, o in zip(found, options, strict=True):
        want = F.interpolate(torch.tensor(x), mode=mode, antialias=True, **o)
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)
