"""Random numbers, casts and dtypes of functions that checkpoints run again, and of rules that are run elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from weft.utils.checkpoint import checkpoint

import weft
import weft.nn.functional as F
from weft import autograd
from weft.core.execute import random_draws


def noisy(t: Any) -> Any:
    return F.dropout(F.dropout(t, 0.2) * 1.5, 0.2)


def gradient_is_of(y: Any, x: Any) -> None:
    """y is linear in x, which is all ones: the gradient of its sum is y."""
    y.sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), y.detach().numpy())
    assert np.ptp(y.detach().numpy()) > 0


def test_numbers_are_those_of_the_first_run_whatever_other_threads_draw() -> None:
    """They are noted as they are given: between two of them another thread may have drawn."""

    def between(t: Any) -> Any:
        a = F.dropout(t, 0.5)
        other = threading.Thread(target=lambda: weft.rand(3).numpy())
        other.start()
        other.join()
        return F.dropout(a, 0.5)

    x = weft.ones(64, requires_grad=True)
    gradient_is_of(checkpoint(between, x), x)


def test_the_stream_goes_on_and_is_nowhere_set_back() -> None:
    weft.manual_seed(3)
    want = [weft.rand(64).numpy() for _ in range(4)]
    weft.manual_seed(3)
    found = []

    def draws(t: Any) -> Any:
        found.append(weft.rand(64).numpy())
        return t * weft.from_numpy(found[-1])

    x = weft.ones(64, requires_grad=True)
    y = checkpoint(draws, x)
    state = weft.get_rng_state().tolist()
    gradient_is_of(y, x)
    assert weft.get_rng_state().tolist() == state
    np.testing.assert_array_equal(found[0], want[0])
    np.testing.assert_array_equal(found[1], want[0])
    np.testing.assert_array_equal(weft.rand(64).numpy(), want[1])


def test_generators_of_ones_own_give_the_same_again() -> None:
    own = weft.Generator().manual_seed(5)
    x = weft.ones(64, requires_grad=True)
    gradient_is_of(checkpoint(lambda t: t * weft.rand(64, generator=own), x), x)


def test_checkpoints_within_checkpoints() -> None:
    x = weft.ones(64, requires_grad=True)
    gradient_is_of(checkpoint(lambda t: noisy(checkpoint(noisy, noisy(t))), x), x)


def test_a_backward_within_is_of_its_own_numbers() -> None:
    """What it draws again is no draw of the function around it."""

    def f(t: Any) -> Any:
        inner = weft.ones(64, requires_grad=True)
        gradient = autograd.grad(checkpoint(noisy, inner).sum(), inner)[0]
        return noisy(t) * gradient

    x = weft.ones(256, requires_grad=True)
    gradient_is_of(checkpoint(lambda t: f(t.reshape(4, 64)), x).reshape(256), x)


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_in_compiled_functions(inside: bool, breaks: bool) -> None:
    """Where backward() is called outside, and where the trace is left between a function and its second run."""

    @weft.compile
    def step(x: Any) -> Any:
        y = checkpoint(lambda t: noisy(weft.rand(64) * 0 + t), x)
        if breaks:
            assert y.sum().item() >= 0
        if inside:
            x.grad = None
            y.sum().backward()
        return y

    x = weft.ones(64, requires_grad=True)
    results = []
    for _ in range(3):
        if inside:
            y = step(x).detach()
        else:
            x.grad = None
            y = step(x)
            y.sum().backward()
        assert x.grad is not None
        np.testing.assert_array_equal(x.grad.numpy(), y.detach().numpy())
        results.append(y.detach().numpy())
    assert (results[0] != results[1]).any() and (results[1] != results[2]).any()


def test_a_compiled_function_draws_in_one_what_its_parts_drew() -> None:
    """A trace that is left had its numbers one by one; run as compiled, the function asks for all at once."""
    inner = weft.compile(noisy)

    @weft.compile
    def step(x: Any) -> Any:
        y = checkpoint(inner, x)
        assert y.sum().item() >= 0
        x.grad = None
        y.sum().backward()
        return y.detach()

    x = weft.ones(64, requires_grad=True)
    for _ in range(2):
        y = step(x)
        assert x.grad is not None
        np.testing.assert_array_equal(x.grad.numpy(), y.numpy())


def test_functions_that_draw_otherwise_are_refused() -> None:
    x = weft.ones(1, requires_grad=True)

    def drawing(*sizes: int) -> Any:
        left = iter(sizes)
        return lambda t: (t * weft.rand(n)).sum() if (n := next(left)) else (t * 2.0).sum()

    for first, then, said in (
        (3, 4, "4 random numbers where it drew 3"),
        (0, 3, "3 random numbers where it drew none"),
    ):
        y = checkpoint(drawing(first, then), x)
        with pytest.raises(weft.ArgumentError, match=f"the function of a checkpoint draws {said}"):
            y.backward()
        checkpoint(drawing(first, then), x, preserve_rng_state=False).backward()


def test_draws_on_meta_are_none() -> None:
    x = weft.ones(8, requires_grad=True)

    def f(t: Any) -> Any:
        with weft.device("meta"):
            weft.rand(3)
        return noisy(t)

    gradient_is_of(checkpoint(f, x), x)


def test_numbers_of_two_streams_are_not_taken_as_one() -> None:
    spans = [random_draws.Span(1, 0, 2), random_draws.Span(1, 2, 3), random_draws.Span(2, 5, 1)]
    with random_draws.again(spans, None):
        assert random_draws.given_again(5) == random_draws.Span(1, 0, 5)
        assert random_draws.given_again(1) == spans[2]
    with random_draws.again(spans, None), pytest.raises(weft.ArgumentError):
        random_draws.given_again(6)
    assert random_draws.given_again(1) is None


def captured() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    w = weft.from_numpy(rng.standard_normal((5, 5)).astype("f4")).requires_grad_()
    return w, weft.from_numpy(rng.standard_normal((3, 5)).astype("f4")).requires_grad_()


@pytest.mark.parametrize("transform", [lambda f: f, weft.compile], ids=["eager", "compiled"])
def test_what_a_function_captures_has_gradients(transform: Any) -> None:
    """Compiled, it is run again after its trace: on what the trace had in the place of parameters, and on what it made
    itself; of several calls, backward() is for each."""
    w, x = captured()
    plain = x.detach().numpy()

    def f(scale: Any, x: Any) -> Any:
        hidden = x * scale
        return checkpoint(lambda t: (t @ w).tanh() * hidden, x + 0.0)

    run = transform(f)
    ys = [run(weft.tensor(s), x) for s in (1.0, 2.0, -3.0)]
    for s, y in zip((1.0, 2.0, -3.0), ys, strict=True):
        x.grad = w.grad = None
        y.sum().backward()
        t = np.tanh(plain @ w.detach().numpy())
        inner = (1 - t * t) * plain * s
        assert x.grad is not None and w.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), t * s + inner @ w.detach().numpy().T, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(w.grad.numpy(), plain.T @ inner, rtol=1e-4, atol=1e-5)


def test_one_tensor_may_be_two_arguments_and_held_besides() -> None:
    x = weft.tensor([1.0, 2.0, 3.0], requires_grad=True)
    checkpoint(lambda a, b: a * b * x, x, x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0, 12.0, 27.0]


def test_what_a_trace_made_is_each_calls_in_checkpoints_within() -> None:
    @weft.compile
    def f(scale: Any, x: Any) -> Any:
        made = scale * 2.0
        return checkpoint(lambda t: checkpoint(lambda u: u * made, t), x)

    x = weft.ones(3, requires_grad=True)
    ys = [f(weft.full((3,), s), x) for s in (1.0, 2.0, 3.0)]
    for s, y in zip((1.0, 2.0, 3.0), ys, strict=True):
        x.grad = None
        y.sum().backward()
        assert x.grad is not None and x.grad.tolist() == [2 * s] * 3


def test_layers_of_a_compiled_model_that_are_checkpoints_learn_as_others() -> None:
    """The usual way: backward() outside, an optimizer, several steps; statistics of norms are those of one run a step
    within the trace."""
    found = []
    for use in (False, True):
        weft.manual_seed(0)
        blocks = [
            weft.nn.Sequential(weft.nn.Linear(6, 6), weft.nn.GELU(), weft.nn.Dropout(0.3)) for _ in range(3)
        ]
        model = weft.nn.ModuleList(blocks)
        optimizer = weft.optim.AdamW(model.parameters(), lr=1e-2)

        @weft.compile
        def forward(x: Any, blocks: Any = blocks, use: bool = use) -> Any:
            for b in blocks:
                x = checkpoint(b, x) if use else b(x)
            return x

        losses = []
        for k in range(4):
            loss = (forward(weft.full((4, 6), 0.1 * k + 0.1)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found.append(losses)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    assert found[0][0] != found[0][1]


@pytest.mark.parametrize("transform", [lambda f: f, weft.compile], ids=["eager", "compiled"])
def test_a_function_that_reads_another_tensor_when_it_is_run_again_reads_that(transform: Any) -> None:
    w, x = captured()
    other = weft.full((5, 5), 2.0)
    scales = iter([w, other])
    transform(lambda x: checkpoint(lambda t: t @ next(scales), x))(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[10.0] * 5] * 3


@pytest.mark.parametrize(
    "transform", [lambda f: f, weft.compile, weft.vmap], ids=["eager", "compiled", "vmap"]
)
def test_gradients_of_gradients(transform: Any) -> None:
    w, x = captured()
    found = []
    for use in (False, True):

        def slope(t: Any, use: bool = use) -> Any:
            f = lambda u: (u @ w).sin()  # noqa: E731
            return autograd.grad((checkpoint(f, t) if use else f(t)).sum(), t, create_graph=True)[0]

        x.grad = w.grad = None
        (transform(slope)(x) ** 2).sum().backward()
        assert x.grad is not None and w.grad is not None
        found.append((x.grad.numpy(), w.grad.numpy()))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_tensors_that_a_function_saved_do_not_take_gradients_from_others() -> None:
    """`save_for_backward` keeps a tensor that stands for a parameter; what outlives a trace is rebound after it."""

    class Product(autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any) -> Any:
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, w = ctx.saved_tensors
            return g @ w.T, x.T @ g

    w, x = captured()
    step = weft.compile(lambda x: Product.apply(x, w).sum())
    for _ in range(3):
        w.grad = None
        step(x).backward()
        assert w.grad is not None
    w.grad = None
    (x @ w).sum().backward()
    assert w.grad is not None
    y = weft.vmap(lambda r: Product.apply(r[None], w)[0])(x)
    x.grad = w.grad = None
    y.sum().backward()
    assert x.grad is not None and w.grad is not None
    np.testing.assert_allclose(w.grad.numpy(), x.detach().numpy().T @ np.ones((3, 5)), rtol=1e-5)


def weights() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    w = weft.from_numpy(rng.standard_normal((5, 5)).astype("f4")).requires_grad_()
    x = weft.from_numpy(rng.standard_normal((4, 3, 5)).astype("f4")).requires_grad_()
    return w, x


PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {
    "linear": lambda x, w: F.linear(x, w),
    "attention": lambda x, w: F.scaled_dot_product_attention((x @ w)[None], x[None], x[None]),
    "loss": lambda x, w: F.cross_entropy(F.linear(x, w).reshape(-1, 5), weft.arange(x[..., 0].numel()) % 5),
    "checkpoint": lambda x, w: checkpoint(lambda t: (t @ w).sin() @ w, x),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("cast", [False, True])
def test_gradients_do_not_depend_on_the_casts_where_they_are_asked_for(name: str, cast: bool) -> None:
    found = []
    for inside in (False, True):
        w, x = weights()
        with weft.autocast("cpu", weft.bfloat16, enabled=cast):
            loss = (PRODUCTS[name](x, w).float() ** 2).sum()
        with weft.autocast("cpu", weft.bfloat16, enabled=inside):
            loss.backward()
        assert x.grad is not None and w.grad is not None
        found.append((x.grad.numpy(), w.grad.numpy()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


@pytest.mark.parametrize("name", PRODUCTS)
def test_vmap_has_gradients_within_autocast(name: str) -> None:
    """The rule of a product is run on stand-ins there, of which no gradient is recorded."""
    found = []
    for loop in (False, True):
        w, x = weights()
        with weft.autocast("cpu", weft.bfloat16):
            f = PRODUCTS[name]
            y = weft.stack([f(t, w) for t in x]) if loop else weft.vmap(lambda t: f(t, w))(x)
            (y.float() ** 2).sum().backward()
        assert x.grad is not None and w.grad is not None
        found.append((x.grad.numpy(), w.grad.numpy()))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=0.05, atol=0.02 * np.abs(a).max())


def test_a_function_that_is_run_again_has_the_default_dtype_of_its_call() -> None:
    x = weft.ones(3, requires_grad=True)
    y = F.softplus(F.gelu(x), beta=2.0)
    seen: list[Any] = []
    z = checkpoint(lambda t: (seen.append(weft.tensor(0.1).dtype), t * 2.0)[1], x)
    weft.set_default_dtype(weft.float64)
    try:
        assert autograd.grad(y.sum(), x, create_graph=True)[0].dtype is weft.float32
        assert autograd.grad(z.sum(), x)[0].dtype is weft.float32
        assert seen == [weft.float32] * 2
    finally:
        weft.set_default_dtype(weft.float32)
