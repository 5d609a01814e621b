"""Order statistics: values at the ends and among NaNs and infinities, and who has the gradient of equal elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import weft

nan, inf = math.nan, math.inf


def gradient(fn: Any, x: Any) -> list[Any]:
    t = weft.tensor(x, dtype=weft.float64, requires_grad=True)
    fn(t).backward()
    return t.grad.tolist()


EQUALS = [
    ("median", [1.0, 3.0, 3.0, 2.0, 3.0], [0, 1 / 3, 1 / 3, 0, 1 / 3]),
    ("median", [[2.0, 2.0], [1.0, 1.0]], [[0, 0], [0.5, 0.5]]),
    ("median", [1.0, nan, 3.0, nan], [0, 0.5, 0, 0.5]),
    ("nanmedian", [1.0, nan, 1.0, 2.0, 2.0, nan], [0.5, 0, 0.5, 0, 0, 0]),
    ("nanmedian", [nan, nan], [0.5, 0.5]),
    ("median", [inf, inf, 1.0], [0.5, 0.5, 0]),
    ("max", [[1.0, 3.0], [3.0, 0.0]], [[0, 0.5], [0.5, 0]]),
    ("max", [1.0, nan, 3.0, nan], [0, 0.5, 0, 0.5]),
    ("min", [1.0, nan, 3.0], [0, 1, 0]),
    ("min", [0.0, -0.0, 1.0], [0.5, 0.5, 0]),
]


@pytest.mark.parametrize(("name", "x", "expected"), EQUALS)
def test_an_element_chosen_from_all_shares_its_gradient_with_its_equals(
    name: str, x: Any, expected: Any
) -> None:
    np.testing.assert_allclose(gradient(getattr(weft, name), x), expected)


def test_a_median_of_many_shares_its_gradient_with_its_equals() -> None:
    x = np.repeat(np.arange(5.0), 4001)
    got = np.array(gradient(weft.median, x))
    np.testing.assert_allclose(got, np.where(x == 2, 1 / 4001, 0))


def test_along_a_dimension_the_element_at_the_index_has_all_of_the_gradient() -> None:
    x = weft.tensor([[1.0, 3.0, 3.0, 3.0]], requires_grad=True)
    values, indices = x.median(1)
    values.sum().backward()
    assert x.grad.tolist() == [[float(k == indices.item()) for k in range(4)]]


@pytest.mark.parametrize("interpolation", ["lower", "higher", "nearest", "midpoint", "linear"])
def test_quantiles_among_nans_are_the_nan_and_have_its_gradient(interpolation: str) -> None:
    def quantile(x: weft.Tensor) -> weft.Tensor:
        return weft.quantile(x, 0.25, interpolation=interpolation)

    assert math.isnan(quantile(weft.tensor([1.0, nan, 3.0])).item())
    assert gradient(quantile, [1.0, nan, 3.0]) == [0.0, 1.0, 0.0]
    assert gradient(lambda x: weft.nanquantile(x, 0.0, interpolation=interpolation), [nan, nan]) == [1.0, 0.0]


def test_quantiles_that_are_an_element_may_be_infinite() -> None:
    x = weft.tensor([inf, inf, 1.0, -inf])
    got = [weft.quantile(x, 0.7, interpolation=i).item() for i in ("lower", "higher", "nearest")]
    assert got == [inf, inf, inf]
    assert weft.quantile(x, 0.0, interpolation="lower").item() == -inf
    assert weft.nanquantile(weft.tensor([inf, nan, inf]), 0.5, interpolation="higher").item() == inf


def test_lerp_begins_at_one_end_and_ends_at_the_other() -> None:
    a, b = weft.tensor([1e8, 0.1]), weft.tensor([1.0, 0.7])
    for weight in (1.0, weft.tensor(1.0), weft.tensor([1.0, 1.0])):
        assert weft.lerp(a, b, weight).tolist() == b.tolist()
    for weight in (0.0, weft.tensor(0.0)):
        assert weft.lerp(a, b, weight).tolist() == a.tolist()
    np.testing.assert_allclose(weft.lerp(a, b, 0.25).numpy(), [75000000.25, 0.25])
