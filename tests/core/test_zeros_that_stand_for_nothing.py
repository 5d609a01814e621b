"""Infinities and NaN beside zeros that stand for nothing: inserted by strides, padded, or masked. As torch has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft

torch = pytest.importorskip("torch")

Call = Callable[..., Any]


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape)


def results(m: Any, call: Call, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The value, and the gradient of each argument."""
    xs = [m.tensor(a).requires_grad_() for a in arrays]
    y = call(m.nn.functional, *xs)
    seed = np.random.default_rng(2).standard_normal(tuple(y.shape))
    grads = m.autograd.grad(y, xs, m.tensor(seed))
    return [np.array(t.detach().numpy()) for t in (y, *grads)]


CASES: dict[str, tuple[Call, list[np.ndarray]]] = {
    "transposed, stride and dilation": (
        lambda F, x, w: F.conv_transpose1d(x, w, None, 2, 1, 1, 1, 2),
        [drawn(1, 2, 3), drawn(2, 2, 3)],
    ),
    "transposed, stride": (
        lambda F, x, w: F.conv_transpose1d(x, w, None, 2),
        [drawn(2, 2, 4), drawn(2, 3, 3)],
    ),
    "transposed, dilation": (
        lambda F, x, w: F.conv_transpose1d(x, w, None, 1, 1, 0, 1, 2),
        [drawn(1, 2, 4), drawn(2, 2, 3)],
    ),
    "transposed, groups": (
        lambda F, x, w: F.conv_transpose2d(x, w, None, 2, 1, 1, 2),
        [drawn(1, 4, 3, 3), drawn(4, 2, 3, 3)],
    ),
    "transposed, depthwise": (
        lambda F, x, w: F.conv_transpose2d(x, w, None, 2, 1, 1, 2),
        [drawn(1, 2, 3, 3), drawn(2, 1, 3, 3)],
    ),
    "depthwise": (
        lambda F, x, w: F.conv2d(x, w, None, 1, 1, 1, 3),
        [drawn(2, 3, 5, 18), drawn(3, 1, 3, 3)],
    ),
    "stride": (lambda F, x, w: F.conv2d(x, w, None, 2, 1), [drawn(1, 2, 5, 4), drawn(2, 2, 3, 3)]),
    "stride above the kernel": (lambda F, x, w: F.conv1d(x, w, None, 3), [drawn(1, 2, 8), drawn(2, 2, 2)]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("special", [math.inf, math.nan])
def test_convolutions_touch_what_their_taps_reach(name: str, special: float) -> None:
    call, arrays = CASES[name]
    for k, a in enumerate(arrays):
        for place in (0, a.size // 2):
            given = [b.copy() for b in arrays]
            given[k].flat[place] = special
            for ours, theirs in zip(results(weft, call, given), results(torch, call, given), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_the_case_that_showed_it() -> None:
    y = weft.nn.functional.conv_transpose1d(
        weft.ones(1, 1, 3),
        weft.tensor([[[math.inf, 1.0, 1.0]]]),
        stride=2,
        dilation=2,
        padding=1,
        output_padding=1,
    )
    assert y.tolist() == [[[0, math.inf, 0, math.inf, 0, 2, 0, 1]]]


AT_ZERO: dict[str, tuple[Call, list[float]]] = {
    "abs": (lambda F, x: x.abs(), [-1.0, math.nan, 0.5]),
    "l1": (lambda F, x: F.l1_loss(x, x.detach() * 0, reduction="none"), [-1.0, math.nan, 0.5]),
    "relu": (lambda F, x: x.relu(), [0.0, 0.0, 0.5]),
    "clamp": (lambda F, x: x.clamp(min=0), [0.0, math.inf, 0.5]),
    "softshrink": (lambda F, x: F.softshrink(x, 0.25), [0.0, 0.0, 4.0]),
}


@pytest.mark.parametrize("name", AT_ZERO)
def test_an_infinite_slope_meets_a_slope_of_zero(name: str) -> None:
    call, want = AT_ZERO[name]
    for m in (weft, torch):
        x = m.tensor([-1.0, 0.0, 2.0] if name != "softshrink" else [-0.1, 0.0, 0.5]).requires_grad_()
        call(m.nn.functional, x).log().sum().backward()
        np.testing.assert_allclose(np.array(x.grad.numpy()), want, rtol=1e-6)


def test_distances_of_zero_have_no_slope_at_all_and_norms_have_zero() -> None:
    for m in (weft, torch):
        x = m.zeros(2, 1).requires_grad_()
        m.cdist(x, m.zeros(3, 1)).sqrt().sum().backward()
        assert x.grad.tolist() == [[0.0], [0.0]]
        y = m.zeros(2, 3).requires_grad_()
        y.norm(dim=1).log().sum().backward()
        assert bool(m.isnan(y.grad).all())


@pytest.mark.parametrize("mode", ["trunc", "floor"])
def test_rounded_quotients_have_slope_zero_also_over_zero(mode: str) -> None:
    x, y = weft.ones(3).requires_grad_(), weft.zeros(3).requires_grad_()
    weft.div(x, y, rounding_mode=mode).sum().backward()
    assert x.grad is not None and y.grad is not None
    assert x.grad.tolist() == y.grad.tolist() == [0.0] * 3
