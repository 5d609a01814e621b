"""Norms of any order: their gradients at zeros are those of torch."""

from __future__ import annotations

import math

import numpy as np
import pytest

import weft


def gradients(x: list[float], order: float) -> tuple[list[float], list[float]]:
    """The gradient of the norm, and that of the sum of the gradient's squares."""
    t = weft.tensor(x, dtype=weft.float64, requires_grad=True)
    (first,) = weft.autograd.grad(weft.linalg.vector_norm(t, order), t, create_graph=True)
    (second,) = weft.autograd.grad((first * first).sum(), t)
    return first.tolist(), second.tolist()


@pytest.mark.parametrize("order", [3.0, 2.5, 2.0, 1.5, 1.0, 0.5, -1.0, math.inf])
def test_the_gradient_of_a_norm_of_zeros_is_zero(order: float) -> None:
    first, second = gradients([0.0, 0.0, 0.0], order)
    assert first == [0.0, 0.0, 0.0]
    if order <= 1 or order >= 3:  # between, a power of 0 has no slope
        assert second == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (3.0, [1 / 9 ** (2 / 3), 0.0, -4 / 9 ** (2 / 3)]),
        (1.5, [1 / (1 + 2**1.5) ** (1 / 3), 0.0, -(2**0.5) / (1 + 2**1.5) ** (1 / 3)]),
        (0.5, [1 + 2**0.5, 0.0, -(1 + 2**0.5) / 2**0.5]),
        (-1.0, [0.0, 0.0, 0.0]),
    ],
)
def test_a_zero_among_others_has_no_part_in_the_gradient(order: float, expected: list[float]) -> None:
    first, _ = gradients([1.0, 0.0, -2.0], order)
    np.testing.assert_allclose(first, expected, rtol=1e-14)


@pytest.mark.parametrize("order", [3.0, 1.5, 0.5, -1.0])
def test_gradients_of_norms_are_the_slopes(order: float) -> None:
    x = np.array([[0.7, -1.3, 2.1], [1.9, 0.4, -0.6]])
    t = weft.tensor(x, requires_grad=True)

    def norm(t: weft.Tensor) -> weft.Tensor:
        return weft.linalg.vector_norm(t, order, dim=1)

    assert weft.autograd.gradcheck(norm, (t,))
    assert weft.autograd.gradgradcheck(norm, (t,))


def test_distances_of_equal_rows_have_a_gradient_of_zero() -> None:
    a = weft.tensor([[1.0, 1.0], [2.0, 3.0]], dtype=weft.float64, requires_grad=True)
    b = weft.tensor([[1.0, 1.0]], dtype=weft.float64)
    weft.cdist(a, b, p=3.0).sum().backward()
    long = 9 ** (2 / 3)
    np.testing.assert_allclose(a.grad.numpy(), [[0.0, 0.0], [1 / long, 4 / long]])


@pytest.mark.parametrize("ord", [float("inf"), 0, 1, 2, 3])
def test_vectors_without_elements_have_no_length(ord: float) -> None:
    assert weft.linalg.vector_norm(weft.ones(3, 0), ord, dim=0).shape == (0,)
    if ord != float("inf"):
        assert weft.linalg.vector_norm(weft.ones(3, 0), ord, dim=1).tolist() == [0.0] * 3
    assert weft.linalg.vector_norm(weft.ones(0, 3), ord, dim=1).shape == (0,)


@pytest.mark.parametrize("order", [float("inf"), -float("inf")])
def test_extreme_norms_of_no_vectors(order: float) -> None:
    assert weft.linalg.vector_norm(weft.ones(0, 3), order, dim=1).shape == (0,)
    for empty, dim in ((weft.ones(3, 0), 1), (weft.ones(0), None)):
        with pytest.raises(weft.ShapeError, match=r"vector_norm: .*no elements along dimension"):
            weft.linalg.vector_norm(empty, order, dim=dim)


def test_the_norm_of_order_zero_counts_what_is_not_zero() -> None:
    x = weft.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, -1.0], [0.0, 0.0, 0.0]])
    assert weft.linalg.vector_norm(x, 0, dim=1).tolist() == [2.0, 2.0, 0.0]


def test_nuclear_norms_are_of_the_last_two_dimensions_by_default() -> None:
    a = np.random.default_rng(0).normal(size=(3, 4))
    want = np.linalg.norm(a, "nuc")
    for dim in (None, (0, 1), (-2, -1)):
        np.testing.assert_allclose(weft.norm(weft.tensor(a), "nuc", dim=dim).item(), want)
    with pytest.raises(weft.ArgumentError, match="'nuc' needs two dimensions"):
        weft.norm(weft.tensor(a), "nuc", dim=1)
