"""Compiled functions of which a gradient may be asked for: each call records their graph anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F


class Scaled(weft.autograd.Function):
    """x times a factor, which is given no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, factor: Any) -> Any:
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (factor,) = ctx.saved_tensors
        return g * factor, None


def test_a_step_may_leave_out_gradients_of_some_inputs() -> None:
    f = weft.compile(Scaled.apply)
    for n in (2.0, 3.0):
        x, factor = weft.ones(3, requires_grad=True), weft.full((3,), n, requires_grad=True)
        f(x, factor).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [n] * 3
        assert factor.grad is None or factor.grad.tolist() == [0.0] * 3


@pytest.mark.parametrize("device", ["cpu", "dummy:0"])
def test_numbers_are_drawn_on_the_devices_of_their_tensors(device: str) -> None:
    f = weft.compile(lambda x: F.dropout(x, 0.5, True))
    x = weft.ones(64, device=device, requires_grad=True)
    drawn = [f(x) for _ in range(3)]
    for y in drawn:
        assert y.device == x.device and set(y.tolist()) == {0.0, 2.0}
        (g,) = weft.autograd.grad(y.sum(), x)
        assert g.tolist() == y.tolist()
    assert drawn[0].tolist() != drawn[1].tolist() != drawn[2].tolist()


def test_gradients_that_a_call_sets_beside_results_with_history() -> None:
    w, q = weft.ones(3, requires_grad=True), weft.full((3,), 2.0, requires_grad=True)

    @weft.compile
    def f(x: Any) -> Any:
        (w * x).sum().backward()
        return (q * x).sum()

    for k in (1, 2, 3):
        w.grad = q.grad = None
        x = weft.full((3,), float(k))
        y = f(x)
        assert w.grad is not None and w.grad.tolist() == [float(k)] * 3
        y.backward()
        assert q.grad is not None and q.grad.tolist() == [float(k)] * 3
        np.testing.assert_allclose(y.item(), 6.0 * k)
