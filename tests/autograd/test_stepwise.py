"""Results that depend on their input in steps or not at all: they require grad as in torch, and their gradient is 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft

NONE = weft.tensor([], dtype=weft.int64)

# of a matrix of (3, 3)
STEPWISE: dict[str, Callable[[weft.Tensor], Any]] = {
    "floor": lambda x: x.floor(),
    "round": lambda x: x.round(),
    "sign": lambda x: x.sign(),
    "angle": lambda x: weft.angle(x),
    "fill": lambda x: weft.fill(x, 2.0),
    "fill, by a tensor": lambda x: weft.fill(x, weft.tensor(2.0)),
    "zero_": lambda x: x.clone().zero_(),
    "copy_": lambda x: x.clone().copy_(weft.ones(3, 3)),
    "uniform_": lambda x: x.clone().uniform_(),
    "bernoulli": lambda x: weft.bernoulli(x.sigmoid()),
    "heaviside": lambda x: weft.heaviside(x, weft.tensor(0.5)),
    "cdist": lambda x: weft.cdist(x, x + 1, p=0.0),
    "pdist": lambda x: weft.nn.functional.pdist(x, 0.0),
    "vector_norm": lambda x: weft.linalg.vector_norm(x, 0),
    "matrix_power": lambda x: weft.linalg.matrix_power(x, 0),
    "slogdet": lambda x: weft.linalg.slogdet(x).sign,
    "pinv of nothing": lambda x: weft.linalg.pinv(x[:0]),
    "householder_product": lambda x: weft.linalg.householder_product(x, weft.zeros(0)),
    "gather": lambda x: weft.gather(x, 0, NONE.reshape(0, 3)),
    "index": lambda x: x[NONE],
    "embedding": lambda x: weft.nn.functional.embedding(NONE, x),
    "combinations": lambda x: weft.combinations(x[0, :1]),
    "into integers and back": lambda x: x.floor_divide(2.0),
}


@pytest.fixture(scope="module")
def x() -> weft.Tensor:
    values = np.random.default_rng(0).uniform(0.5, 2.0, (3, 3)).astype(np.float32)
    return weft.tensor(values, requires_grad=True)


def test_zeros(x: weft.Tensor) -> None:
    found: list[weft.Tensor] = []
    for name, f in STEPWISE.items():
        y = f(x)
        assert y.requires_grad, name
        found += [g for g in weft.gradients(y.sum(), x) if g is not None]
        assert len(found) == list(STEPWISE).index(name) + 1, name
    weft.realize(*found)
    for name, g in zip(STEPWISE, found, strict=True):
        np.testing.assert_array_equal(g.numpy(), np.zeros((3, 3)), err_msg=name)


def test_what_torch_refuses_is_refused(x: weft.Tensor) -> None:
    for y in (x > 1, x.argmax(), x.isnan(), x.long(), x.eq(x), weft.zeros_like(x), x.new_ones(2)):
        assert not y.requires_grad
        with pytest.raises(weft.GradError, match="does not depend on one that requires grad"):
            y.sum().backward()


def test_no_grad_leaves_no_history(x: weft.Tensor) -> None:
    with weft.no_grad():
        assert not weft.fill(x, 1.0).requires_grad


def test_zeros_are_not_added_to_other_gradients(x: weft.Tensor) -> None:
    """x - round(x), as used for quantization, has the gradient 1 without an addition of zeros."""
    (g,) = weft.gradients((x - x.round()).sum(), x)
    assert g is not None
    assert g.value.node.op.name in ("CONST", "EXPAND"), g.value.node


def test_nextafter_moves_with_its_input(x: weft.Tensor) -> None:
    y = weft.tensor([[2.0, 0.0, 1.0]], requires_grad=True)
    a = weft.tensor([[1.0, 1.0, 1.0]], requires_grad=True)
    found = weft.gradients(weft.nextafter(a, y).sum(), (a, y))
    assert [g.tolist() for g in found if g is not None] == [[[1.0, 1.0, 0.0]], [[0.0, 0.0, 0.0]]]


def test_formulas_of_compiled_results() -> None:
    """A compiled function's result keeps formulas for gradients, and what they hold, over the tensors of each call."""

    class Scaled(weft.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: weft.Tensor, s: weft.Tensor) -> weft.Tensor:
            ctx.save_for_backward(x * 2, s)
            return x * x * s

        @staticmethod
        def backward(ctx: Any, g: weft.Tensor) -> tuple[weft.Tensor, weft.Tensor]:
            double, s = ctx.saved_tensors
            return g * double * s, g * double * double / 4

    w = weft.tensor([0.5, 1.5], requires_grad=True)

    def f(x: weft.Tensor) -> weft.Tensor:
        return weft.lgamma(x * w) + Scaled.apply(w, x) + weft.angle(w)

    compiled = weft.compile(f)
    for k in range(3):
        x = weft.tensor([1.0, 2.0 + k])
        (wanted,) = weft.gradients(f(x).sum(), w)
        (first,) = weft.gradients(compiled(x).sum(), w, create_graph=True)
        assert wanted is not None and first is not None
        np.testing.assert_allclose(first.numpy(), wanted.numpy(), rtol=1e-6)
        (again,) = weft.gradients(first.sum(), w)
        (once,) = weft.gradients(f(x).sum(), w, create_graph=True)
        assert once is not None and again is not None
        (twice,) = weft.gradients(once.sum(), w)
        assert twice is not None
        np.testing.assert_allclose(again.numpy(), twice.numpy(), rtol=1e-6)


COMPOSED: dict[str, Callable[[weft.Tensor], Any]] = {
    "max_pool1d": lambda x: weft.nn.functional.max_pool1d(x[None], 2),
    "conv1d": lambda x: weft.nn.functional.conv1d(x[None], x.reshape(3, 3, 1)),
    "binary_cross_entropy": lambda x: weft.nn.functional.binary_cross_entropy(x.sigmoid(), x.sigmoid()),
    "lgamma": lambda x: x.lgamma(),
    "embedding": lambda x: weft.nn.functional.embedding(weft.tensor([2, 0]), x, max_norm=None, padding_idx=0),
    "hypot": lambda x: weft.hypot(x, x),
}
"""Results with a formula for their gradient."""


def test_nothing_requires_grad_where_no_input_does(x: weft.Tensor) -> None:
    functions = STEPWISE | COMPOSED
    assert [name for name, f in functions.items() if f(x.detach()).requires_grad] == []
    with weft.no_grad():
        assert [name for name, f in functions.items() if f(x).requires_grad] == []
    assert [name for name, f in COMPOSED.items() if not f(x).requires_grad] == []
