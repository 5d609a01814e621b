"""Weights of products are laid out in panels where the product's lanes read them so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft import Tensor
from weft.autograd.value import Value
from weft.backends.registry import open_device
from weft.core.args.handle import wrap
from weft.ir.calls import expand_calls
from weft.ir.graph import Node, toposort
from weft.scheduler.panels import MAX_ROWS, MIN_ROWS, Panels, panels

DEVICE = open_device("dummy:0")
INFO = replace(DEVICE.info, vector_bytes=DEVICE.info.costs.line_bytes)  # a vector of the panel is a line
LANES = INFO.lanes(weft.float32)


def _found(result: Tensor, *weights: Tensor) -> list[Panels]:
    order = toposort(expand_calls([result.value.node]))
    return list(panels(order, {w.value.node for w in weights}, INFO))


def _leaf(*shape: int, dtype: weft.DType = weft.float32) -> Tensor:
    return weft.zeros(*shape, dtype=dtype).realize()


def _tensor(n: Node) -> Tensor:
    return wrap(Value(n))


N, K = 8 * LANES, 64 * 16


@pytest.mark.parametrize("rows", [MIN_ROWS, 20, MAX_ROWS])
def test_the_weight_of_a_linear_layer_is_found(rows: int) -> None:
    x, w = _leaf(rows, K), _leaf(N, K)
    (found,) = _found(F.linear(x, w), w)
    assert found.weight is w.value.node and (found.axis, found.width) == (0, 4 * LANES)
    assert found.laid_out().shape == (2, K, 4 * LANES)


def test_a_weight_that_is_not_transposed_is_found() -> None:
    x, w = _leaf(20, K), _leaf(K, N)
    (found,) = _found(x @ w, w)
    assert found.axis == 1 and found.laid_out().shape == (2, K, 4 * LANES)


def test_the_panels_hold_the_weight() -> None:
    rng = np.random.default_rng(0)
    array = rng.standard_normal((N, K)).astype(np.float32)
    for w, x in ((weft.tensor(array), _leaf(20, K)), (weft.tensor(array.T.copy()), _leaf(20, K))):
        y = x @ w.T if w.shape == (N, K) else x @ w
        (found,) = _found(y, w)
        laid_out = _tensor(found.laid_out())
        np.testing.assert_array_equal(laid_out.numpy(), array.reshape(2, 4 * LANES, K).transpose(0, 2, 1))
        np.testing.assert_array_equal(_tensor(found.weight_in(laid_out.value.node)).numpy(), w.numpy())


def test_the_width_divides_the_weight() -> None:
    x = _leaf(20, K)
    for vectors, width in ((8, 4), (9, 3), (10, 2), (11, 1)):
        w = _leaf(vectors * LANES, K)
        assert [p.width for p in _found(F.linear(x, w), w)] == [width * LANES]
    w = _leaf(8 * LANES + 1, K)
    assert _found(F.linear(x, w), w) == []


def test_few_or_many_rows_and_small_weights_are_left_alone() -> None:
    w, small = _leaf(N, K), _leaf(LANES, 16)
    for rows in (1, MIN_ROWS - 1, MAX_ROWS + 1):
        assert _found(F.linear(_leaf(rows, K), w), w) == []
    assert _found(F.linear(_leaf(20, 16), small), small) == []


def test_what_is_no_plain_weight_is_left_alone() -> None:
    x, w = _leaf(20, K), _leaf(N, K)
    assert _found(F.linear(x, w.exp()), w) == []
    assert _found(F.linear(x, w)) == []
    assert _found(F.linear(x, w[::2]), w) == []
    both = _leaf(4, N, K)
    assert _found(weft.bmm(_leaf(4, 20, K), both.mT), both) == []
    half = _leaf(N, K, dtype=weft.float16)
    assert _found(F.linear(x, half.float()), half) == []


def test_images_are_left_alone() -> None:
    x, w = _leaf(1, 64, 8, 8), _leaf(N, 64, 3, 3)
    assert _found(F.conv2d(x, w), w) == []
    depthwise = _leaf(64, 1, 3, 3)
    assert _found(F.conv2d(x, depthwise, groups=64), depthwise) == []


def test_products_of_nothing_are_left_alone() -> None:
    w = _leaf(N, K)
    assert _found(F.linear(_leaf(0, K), w), w) == []
    empty = _leaf(N, 0)
    assert _found(F.linear(_leaf(20, 0), empty), empty) == []
