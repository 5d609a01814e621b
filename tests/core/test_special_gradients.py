"""Gradients where formulas change or end, as torch has them: at zeros, kinks, ends of domains, infinities."""

from __future__ import annotations

import math

import numpy as np
import pytest

import weft
from weft.nn import functional as F

AT = [0.0, -0.0, 1.0, -1.0, 3.0, -3.0, math.inf, -math.inf]
GRADIENTS = {
    "abs": "0 0 1 -1 1 -1 1 -1",
    "acos": "-1 -1 -inf -inf nan nan nan nan",
    "asin": "1 1 inf inf nan nan nan nan",
    "asinh": "1 1 0.707106781 0.707106781 0.316227766 0.316227766 0 0",
    "atan": "1 1 0.5 0.5 0.1 0.1 0 0",
    "ceil": "0 0 0 0 0 0 0 0",
    "cos": "-0 0 -0.841470985 0.841470985 -0.141120008 0.141120008 nan nan",
    "cosh": "0 -0 1.17520119 -1.17520119 10.0178749 -10.0178749 inf -inf",
    "erf": "1.12837917 1.12837917 0.415107497 0.415107497 0.000139253052 0.000139253052 0 0",
    "erfc": "-1.12837917 -1.12837917 -0.415107497 -0.415107497 -0.000139253052 -0.000139253052 -0 -0",
    "exp": "1 1 2.71828183 0.367879441 20.0855369 0.0497870684 inf 0",
    "exp2": "0.693147181 0.693147181 1.38629436 0.34657359 5.54517744 0.0866433976 inf 0",
    "expm1": "1 1 2.71828183 0.367879441 20.0855369 0.0497870684 inf 0",
    "floor": "0 0 0 0 0 0 0 0",
    "frac": "1 1 1 1 1 1 1 1",
    "log": "inf -inf 1 -1 0.333333333 -0.333333333 0 -0",
    "log10": "inf -inf 0.434294482 -0.434294482 0.144764827 -0.144764827 0 -0",
    "log1p": "1 1 0.5 inf 0.25 -0.5 0 -0",
    "log2": "inf -inf 1.44269504 -1.44269504 0.480898347 -0.480898347 0 -0",
    "logit": "inf -inf inf nan nan nan nan nan",
    "neg": "-1 -1 -1 -1 -1 -1 -1 -1",
    "reciprocal": "-inf -inf -1 -1 -0.111111111 -0.111111111 -0 -0",
    "relu": "0 0 1 0 1 0 1 0",
    "round": "0 0 0 0 0 0 0 0",
    "rsqrt": "-inf inf -0.5 nan -0.0962250449 nan -0 nan",
    "sigmoid": "0.25 0.25 0.196611933 0.196611933 0.0451766597 0.0451766597 0 0",
    "sign": "0 0 0 0 0 0 0 0",
    "sin": "1 1 0.540302306 0.540302306 -0.989992497 -0.989992497 nan nan",
    "sinc": "0 0 -1 1 -0.333333333 0.333333333 nan nan",
    "sinh": "1 1 1.54308063 1.54308063 10.067662 10.067662 inf inf",
    "sqrt": "inf -inf 0.5 nan 0.288675135 nan 0 nan",
    "square": "0 -0 2 -2 6 -6 inf -inf",
    "tanh": "1 1 0.419974342 0.419974342 0.00986603717 0.00986603717 0 0",
    "trunc": "0 0 0 0 0 0 0 0",
    "celu": "1 1 1 0.367879441 1 0.0497870684 1 0",
    "elu": "1 1 1 0.367879441 1 0.0497870684 1 0",
    "gelu": "0.5 0.5 1.08331547 -0.0833154706 1.01194565 -0.0119456472 nan nan",
    "hardshrink": "0 0 1 1 1 1 1 1",
    "hardswish": "0.5 0.5 0.833333333 0.166666667 1 0 1 0",
    "hardtanh": "1 1 0 0 0 0 0 0",
    "leaky_relu": "0.01 0.01 1 0.01 1 0.01 1 0.01",
    "logsigmoid": "0.5 0.5 0.268941421 0.731058579 0.0474258732 0.952574127 0 1",
    "mish": "0.6 0.6 1.04903622 0.0592167559 1.02110691 -0.0933931145 nan nan",
    "relu6": "0 0 1 0 1 0 0 0",
    "selu": "1.75809934 1.75809934 1.05070099 0.646768603 1.05070099 0.0875306121 1.05070099 0",
    "silu": "0.5 0.5 0.927670512 0.0723294881 1.08810411 -0.088104106 nan nan",
    "softplus": "0.5 0.5 0.731058579 0.268941421 0.952574127 0.0474258732 1 0",
    "softshrink": "0 0 1 1 1 1 1 1",
    "softsign": "1 1 0.25 0.25 0.0625 0.0625 nan nan",
    "tanhshrink": "0 0 0.580025658 0.580025658 0.990133963 0.990133963 1 1",
    "hardsigmoid": "0.166666667 0.166666667 0.166666667 0.166666667 0 0 0 0",
}


@pytest.mark.parametrize("dtype", [weft.float32, weft.float64])
def test_gradients_at_special_values(dtype: weft.DType) -> None:
    x = weft.tensor(AT, dtype=dtype, requires_grad=True)
    found = {
        name: weft.autograd.grad((getattr(x, name)() if hasattr(x, name) else getattr(F, name)(x)).sum(), x)[
            0
        ]
        for name in GRADIENTS
    }
    weft.realize(*found.values())
    for name, text in GRADIENTS.items():
        want = np.array([float(t) for t in text.split()])
        np.testing.assert_allclose(found[name].numpy(), want, 1e-5, 1e-8, err_msg=name)


def test_equal_extrema_and_no_deviation() -> None:
    """max and min along a dimension give all of the gradient to the index that they return; amax shares it."""
    x = weft.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 4.0]], requires_grad=True)
    for f, want in [
        (lambda x: x.max(1).values, [[1, 0], [1, 0], [0, 1]]),
        (lambda x: x.min(1, keepdim=True)[0], [[1, 0], [1, 0], [1, 0]]),
        (lambda x: x.amax(1), [[0.5, 0.5], [0.5, 0.5], [0, 1]]),
        (lambda x: x[:2].std(1), [[0, 0], [0, 0], [0, 0]]),
        (lambda x: x.std(1, correction=0), [[0, 0], [0, 0], [-0.5, 0.5]]),
    ]:
        assert weft.autograd.grad(f(x).sum(), x)[0].tolist() == want


def test_truth_over_no_axes_and_ranges_as_indices() -> None:
    x = weft.tensor([[0.0, 2.0], [0.0, 0.0]])
    assert x.any(()).tolist() == x.all(()).tolist() == [[False, True], [False, False]]
    assert x[range(1)].tolist() == [[0, 2]]


def test_bounds_that_are_tensors() -> None:
    """clamp gives the gradient on a bound to the input, as torch, and passes NaN of either on."""
    x = weft.tensor([1.0, 2.0, 3.0, math.nan, 0.0], requires_grad=True)
    bound = weft.tensor([1.0, 1.0, 4.0, 1.0, math.nan], requires_grad=True)
    y = weft.clamp_max(x, bound)
    np.testing.assert_array_equal(y.detach().numpy(), [1, 1, 3, math.nan, math.nan])
    for part, want in zip(weft.autograd.grad(y[:3].sum(), (x, bound)), ([1, 0, 1], [0, 1, 0]), strict=True):
        assert part.tolist()[:3] == want
    np.testing.assert_array_equal(weft.clamp(x, min=bound).detach().numpy(), [1, 2, 4, math.nan, math.nan])
    assert weft.clamp_min(weft.tensor([1, 5]), weft.tensor([3, 2])).tolist() == [3, 5]


def test_exponential_units_pass_the_gradient_of_nan_on() -> None:
    x = weft.tensor([math.nan, 0.5], requires_grad=True)
    for f in (F.elu, F.celu):
        assert weft.autograd.grad(f(x).sum(), x)[0].tolist() == [1, 1]


SMOOTH_AT_ZERO = {
    "softplus": (lambda F, x: F.softplus(x), 0.25),
    "logsigmoid": (lambda F, x: F.logsigmoid(x), -0.25),
    "logits": (lambda F, x: F.binary_cross_entropy_with_logits(x, x.detach(), reduction="none"), 0.25),
    "soft margin": (lambda F, x: F.soft_margin_loss(x, x.detach() + 1, reduction="none"), 0.25),
    "huber": (lambda F, x: F.huber_loss(x, x.detach(), reduction="none"), 1.0),
    "smooth l1": (lambda F, x: F.smooth_l1_loss(x, x.detach(), reduction="none", beta=0.5), 2.0),
}


@pytest.mark.parametrize("name", SMOOTH_AT_ZERO)
def test_second_derivatives_at_zero(name: str) -> None:
    """Their values are made of |x| and max(x, 0), which have none there."""
    function, want = SMOOTH_AT_ZERO[name]
    x = weft.zeros(2, dtype=weft.float64).requires_grad_()
    (slope,) = weft.autograd.grad(function(F, x).sum(), [x], create_graph=True)
    (second,) = weft.autograd.grad(slope.sum(), [x])
    np.testing.assert_allclose(second.numpy(), want, rtol=1e-12)


def test_gradients_that_are_known_to_be_zero_have_derivatives() -> None:
    x = weft.zeros(2).requires_grad_()
    (slope,) = weft.autograd.grad((x * x).sum(), [x], create_graph=True)
    (second,) = weft.autograd.grad(slope.sum(), [x])
    assert second.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("n", [5, 33, 65])
def test_the_second_derivative_of_logcumsumexp(n: int) -> None:
    x = weft.tensor(np.random.default_rng(n).standard_normal(n)).requires_grad_()
    (g,) = weft.autograd.grad(x.logcumsumexp(0).sum(), [x], create_graph=True)
    (second,) = weft.autograd.grad((g * g).sum(), [x])
    p = np.exp(x.detach().numpy())
    share = np.tril(
        p[None] / np.cumsum(p)[:, None]
    )  # of each element in each sum: the first derivative's summands
    grad = share.sum(0)
    hessian = np.diag(grad) - share.T @ share
    np.testing.assert_allclose(second.numpy(), 2 * hessian @ grad, rtol=1e-9, atol=1e-12)


def test_scattering_by_strides_takes_the_gradient_of_what_is_replaced() -> None:
    """The input's gradient is 0 where src stands; torch gives it the other way around."""
    x, src = weft.arange(6.0).requires_grad_(), weft.ones(2, 2).requires_grad_()
    y = weft.as_strided_scatter(x, src, (2, 2), (2, 1), 0)
    y.backward(weft.arange(1.0, 7.0))
    assert x.grad is not None and src.grad is not None
    assert x.grad.tolist() == [0, 0, 0, 0, 5, 6]
    assert src.grad.tolist() == [[1, 2], [3, 4]]


def test_a_draw_is_no_function_of_its_mean() -> None:
    mean, std = weft.zeros(3).requires_grad_(), weft.ones(3).requires_grad_()
    weft.normal(mean, std).sum().backward()
    assert mean.grad is not None and std.grad is not None
    assert mean.grad.tolist() == std.grad.tolist() == [0.0] * 3


@pytest.mark.parametrize("shape", [(0, 3), (2, 3, 0)])
def test_batch_norm_of_nothing(shape: tuple[int, ...]) -> None:
    x, w = weft.zeros(*shape).requires_grad_(), weft.ones(3).requires_grad_()
    mean, var = weft.zeros(3), weft.ones(3)
    y = F.batch_norm(x, mean, var, w, None, True)
    y.sum().backward()
    assert y.shape == shape and x.grad is not None and x.grad.shape == shape
    assert w.grad is not None and w.grad.tolist() == [0.0] * 3
    assert mean.tolist() == [0.0] * 3 and var.tolist() == [1.0] * 3


@pytest.mark.parametrize("delta", [0.5, 1.0])
def test_huber_has_no_second_derivative_from_delta_on(delta: float) -> None:
    x = weft.tensor([-delta, -delta / 2, 0.0, delta / 2, delta, 3.0], requires_grad=True)
    (first,) = weft.autograd.grad(F.huber_loss(x, weft.zeros(6), "sum", delta), x, create_graph=True)
    assert first.tolist() == [-delta, -delta / 2, 0.0, delta / 2, delta, delta]
    (second,) = weft.autograd.grad(first.sum(), x)
    assert second.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0, 0.0]
