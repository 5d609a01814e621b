"""Batch normalization: a few calls whatever it computes, and running statistics that move or stay as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import Tensor
from weft.errors import ShapeError
from weft.ir.graph import toposort
from weft.nn import functional as F


def statistics(channels: int) -> tuple[Tensor, Tensor]:
    return weft.zeros(channels).realize(), weft.ones(channels).realize()


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_and_its_gradients_are_a_few_calls(training: bool) -> None:
    x = weft.randn(4, 3, 5, 5).realize().requires_grad_()
    w, b = (weft.randn(3).realize().requires_grad_() for _ in range(2))
    mean, var = statistics(3)
    y = F.batch_norm(x, mean, var, w, b, training)
    leaves = 5
    assert len(toposort([y.value.node])) <= 1 + leaves
    assert len(toposort([y.value.node, mean.value.node, var.value.node])) <= 3 + leaves
    seed = weft.randn(4, 3, 5, 5).realize()
    found = weft.autograd.grad(y, [x, w, b], seed)
    assert len(toposort([g.value.node for g in found])) <= 4 + leaves + 1


@pytest.mark.parametrize("name", ["weight", "bias", "running_mean", "running_var"])
def test_a_vector_of_another_length_is_refused_before_anything_moves(name: str) -> None:
    mean, var = statistics(3)
    given: dict[str, Any] = {
        "running_mean": mean,
        "running_var": var,
        "weight": None,
        "bias": None,
        name: weft.ones(4),
    }
    with pytest.raises(ShapeError, match=rf"batch_norm: {name} must have shape \(3,\), got \(4,\)"):
        F.batch_norm(weft.randn(2, 3), training=True, **given)
    assert mean.tolist() == [0.0] * 3 and var.tolist() == [1.0] * 3


def test_one_statistic_may_move_without_the_other() -> None:
    x = np.random.default_rng(3).standard_normal((6, 2, 4))
    mean, var = (weft.tensor(a, dtype=weft.float64) for a in ([1.0, 2.0], [3.0, 4.0]))
    F.batch_norm(weft.tensor(x), mean, None, training=True, momentum=0.25)
    np.testing.assert_allclose(mean.numpy(), 0.75 * np.array([1, 2]) + 0.25 * x.mean((0, 2)), rtol=1e-12)
    F.batch_norm(weft.tensor(x), None, var, training=True, momentum=0.25)
    unbiased = x.var((0, 2), ddof=1)
    np.testing.assert_allclose(var.numpy(), 0.75 * np.array([3, 4]) + 0.25 * unbiased, rtol=1e-12)
