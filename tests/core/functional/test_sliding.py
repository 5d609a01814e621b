"""Windows that slide, and their transpose: against loops over taps, and what plans of their gradients store."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import weft
from weft.nn import functional as F

Array = np.ndarray[Any, Any]

rng = np.random.default_rng(5)


def scattered(g: Array, w: Array, shape: tuple[int, ...], padding: tuple[int, int]) -> Array:
    """The gradient of the input of a depthwise convolution: each product added where its tap lies."""
    (n, c, rows, columns), (kh, kw) = shape, w.shape[2:]
    whole = np.zeros((n, c, rows + 2 * padding[0], columns + 2 * padding[1]))
    for r, s in itertools.product(range(kh), range(kw)):
        whole[:, :, r : r + g.shape[2], s : s + g.shape[3]] += g * w[:, 0, r, s][:, None, None]
    return whole[:, :, padding[0] : padding[0] + rows, padding[1] : padding[1] + columns]


@pytest.mark.parametrize(
    ("size", "kernel", "padding", "channels_last"),
    [
        ((2, 3, 9, 20), (3, 3), (1, 1), False),
        ((2, 5, 20, 9), (7, 7), (3, 3), True),
        ((1, 4, 5, 6), (4, 2), (0, 1), False),
        ((3, 2, 4, 17), (1, 5), (0, 2), True),
        ((2, 16, 6, 6), (5, 3), (4, 0), True),
    ],
)
def test_the_gradient_of_a_depthwise_convolution_adds_each_product_where_its_tap_lies(
    size: tuple[int, ...], kernel: tuple[int, int], padding: tuple[int, int], channels_last: bool
) -> None:
    c = size[1]
    x = weft.tensor(rng.standard_normal(size)).requires_grad_()
    w = rng.standard_normal((c, 1, *kernel))
    y = F.conv2d(x, weft.tensor(w), padding=padding, groups=c)
    g = rng.standard_normal(tuple(y.shape))
    given = weft.tensor(g)
    if channels_last:
        given = weft.tensor(np.ascontiguousarray(g.transpose(0, 2, 3, 1))).permute(0, 3, 1, 2)
    (found,) = weft.autograd.grad(y, [x], given * 2 - given)
    np.testing.assert_allclose(found.numpy(), scattered(g, w, size, padding), rtol=1e-10, atol=1e-12)
    back = F.conv_transpose2d(given, weft.tensor(w), padding=padding, groups=c)
    np.testing.assert_allclose(back.numpy(), scattered(g, w, size, padding), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dilation", [1, 2])
def test_no_tensor_of_all_taps_lies_between_a_norm_and_the_convolution_before_it(dilation: int) -> None:
    x = weft.randn(2, 8, 12, 12).requires_grad_()
    w = weft.randn(8, 1, 7, 7)
    y = F.conv2d(x, w, padding=3 * dilation, dilation=dilation, groups=8).permute(0, 2, 3, 1)
    (g,) = weft.autograd.grad((F.layer_norm(y, (8,)) * weft.randn(2, 12, 12, 8)).sum(), [x])
    assert all(k.bytes < 8 * x.nbytes for k in weft.explain(g))
