"""Single elements of long rows, found bit by bit: as a stable sort finds them."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.autograd.value import apply
from weft.core.args.handle import wrap
from weft.core.functions.selection import PAYS
from weft.ir.graph import ScatterCombine
from weft.ir.ops import Op

RNG = np.random.default_rng(0)
N = PAYS + 3

ROWS = {
    "float32": np.round(RNG.standard_normal((2, N)) * 500).astype(np.float32),
    "float64": RNG.standard_normal(N) * 1e200,
    "float16": RNG.standard_normal(N).astype(np.float16),
    "uint8": RNG.integers(0, 200, N).astype(np.uint8),
    "int64": RNG.integers(-(2**63), 2**63 - 1, (2, N)),
    "uint32": RNG.integers(0, 2**32, N).astype(np.uint32),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_kth_value_and_where_it_is(name: str) -> None:
    x = ROWS[name]
    order = np.argsort(x, -1, kind="stable")
    t = weft.tensor(x)
    for k in (1, N // 3, N):
        values, indices = t.kthvalue(k)
        np.testing.assert_array_equal(indices.numpy(), order[..., k - 1])
        np.testing.assert_array_equal(
            values.numpy(), np.take_along_axis(x, order[..., k - 1 : k], -1)[..., 0]
        )


def test_medians_with_and_without_nan() -> None:
    x = ROWS["float32"].copy()
    x[0, :5], x[1, 9], x[1, 10] = np.nan, np.inf, -np.inf
    order = np.argsort(x, -1, kind="stable")
    t = weft.tensor(x)
    np.testing.assert_array_equal(t.median(-1).indices.numpy(), [order[0, N - 5], order[1, (N - 1) // 2]])
    np.testing.assert_array_equal(
        t.nanmedian(-1).indices.numpy(), [order[0, (N - 6) // 2], order[1, (N - 1) // 2]]
    )
    assert weft.full((N,), float("nan")).nanmedian().isnan().item()


def test_along_another_dimension_with_gradients() -> None:
    x = weft.tensor(ROWS["float32"].T.copy(), requires_grad=True)
    values, indices = x.median(0, keepdim=True)
    assert values.shape == (1, 2)
    values.sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy().argmax(0), indices.numpy()[0])
    assert x.grad.sum().item() == 2.0


def test_the_largest_unsigned_integers_are_in_order() -> None:
    x = np.array([2**63 + 5, 1, 2**64 - 1, 3, 2**63], np.uint64)
    assert weft.tensor(x).sort().indices.tolist() == [1, 3, 4, 0, 2]


@pytest.mark.parametrize("n, m", [(2, 3), (3, 1), (3, 2), (5, 3), (7, 1)])
def test_scatters_by_an_index_that_is_alike_in_some_groups_of_lanes(n: int, m: int) -> None:
    """Six lanes are a group of four and one of two, in which all agree on what the others do not."""
    src = weft.arange(1.0, n * m + 1).reshape(n, m)
    for at in (0, n - 1):
        hit = weft.full((n, m), False).index_fill(0, weft.tensor([at]), weft.tensor(True))
        index = weft.where(hit, weft.arange(n).reshape(n, 1).expand(n, m), n).reshape(n * m)
        out = apply(
            Op.SCATTER, (weft.zeros(n).value, index.value, src.reshape(n * m).value), ScatterCombine(0, None)
        )
        want = np.zeros(n)
        want[at] = (at + 1) * m
        np.testing.assert_array_equal(wrap(out).numpy(), want)
