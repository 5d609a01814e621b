"""Cells: calls that are what their formulas are, with gradients that meet before the products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import Tensor, nn
from weft.core.composed import composite
from weft.ir.graph import toposort
from weft.ir.ops import Op

CELLS: dict[str, Callable[..., Any]] = {
    "LSTM": nn.LSTMCell,
    "GRU": nn.GRUCell,
    "RNN": nn.RNNCell,
    "RNN of relu": lambda *args, **more: nn.RNNCell(*args, nonlinearity="relu", **more),
}


def shown(state: Any) -> Tensor:
    return state[0] * state[1] if isinstance(state, tuple) else state


def states(cell: Any, x: Tensor, start: Any) -> tuple[Tensor, list[Any]]:
    """A number of what three steps come to, and its gradients."""
    state = start
    for _ in range(3):
        state = cell(x, state)
    loss = (shown(state) * 1.5).sum()
    return loss, [g.numpy() for g in weft.autograd.grad(loss, [x, *cell.parameters()])]


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("given", [True, False])
def test_calls_are_their_formulas(name: str, bias: bool, given: bool) -> None:
    weft.manual_seed(4)
    cell = CELLS[name](5, 6, bias=bias)
    for shape in ((3, 5), (7, 5), (9, 5), (4, 5), (5,)):
        x = weft.randn(shape, requires_grad=True)
        h = weft.randn(*shape[:-1], 6)
        start = ((h, h * 0.5) if name == "LSTM" else h) if given else None
        loss, found = states(cell, x, start)
        plain, want = composite.without_calls(states)(cell, x, start)
        np.testing.assert_allclose(loss.numpy(), plain.numpy(), rtol=1e-5)
        for a, b in zip(found, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", CELLS)
def test_a_step_is_few_calls(name: str) -> None:
    cell = CELLS[name](5, 6)
    state = cell(weft.randn(3, 5).realize())
    last = state[0] if isinstance(state, tuple) else state
    ops = [n.op for n in toposort([last.value.node])]
    assert [op for op in ops if op is not Op.BUFFER] == [Op.CALL] * (3 if name == "LSTM" else 1)


def test_gradients_of_both_results_go_through_the_products_once() -> None:
    cell = nn.LSTMCell(5, 6)
    x = weft.randn(3, 5, requires_grad=True)
    (g,) = weft.autograd.grad(shown(cell(x, (weft.randn(3, 6), weft.randn(3, 6)))).sum(), x)
    sums = [
        n for n in toposort(weft.ir.calls.expand_calls([g.value.node])) if n.op is Op.SUM and n.shape[-1] == 1
    ]
    products = [n for n in sums if n.inputs[0].op is Op.MUL and 24 in n.inputs[0].shape]
    assert len(products) <= 1, products


def test_second_derivatives() -> None:
    cell = nn.LSTMCell(2, 3).double()
    x = weft.randn(2, 2, dtype=weft.float64, requires_grad=True)
    assert weft.autograd.gradgradcheck(lambda x: shown(cell(x)), (x,))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: nn.LSTMCell(3, 4)(weft.zeros(2, 3), (weft.zeros(2, 4), weft.zeros(2, 5))),
            "a state must have shape",
        ),
        (lambda: nn.GRUCell(3, 4)(weft.zeros(2, 3), weft.zeros(1, 4)), "a state must have shape"),
        (lambda: nn.RNNCell(3, 4)(weft.zeros(2, 2, 3)), "input must be"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(weft.ShapeError, match=message):
        call()
