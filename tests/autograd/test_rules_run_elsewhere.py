"""A Function's backward that is run on stand-ins, by compiled functions, vmap and scan: what it reads and changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import autograd

Apply = Callable[[Any], Any]
RUNS: dict[str, Callable[[Apply], Apply]] = {
    "as it is": lambda f: f,
    "compiled": lambda f: weft.compile(lambda x: f(x)),
    "vmap": lambda f: lambda x: weft.vmap(lambda row: f(row[None])[0])(x),
    "compiled vmap": lambda f: weft.compile(lambda x: weft.vmap(lambda row: f(row[None])[0])(x)),
    "scan": lambda f: lambda x: weft.scan(lambda c, row: (c, f(row[None])[0]), weft.zeros(1), x)[1],
}
"""How a function of rows is applied to all."""


def function(backward: Callable[[Any, Any], Any], forward: Callable[[Any, Any], Any] | None = None) -> Apply:
    own = forward or (lambda ctx, x: x * 1.0)
    made = type(
        "Own", (autograd.Function,), {"forward": staticmethod(own), "backward": staticmethod(backward)}
    )
    return made.apply


def gradient(f: Apply, x: Any) -> Any:
    x.grad = None
    f(x).sum().backward()
    return x.grad.numpy()


@pytest.mark.parametrize("run", RUNS)
def test_it_reads_what_it_had_not_read_before(run: str) -> None:
    scale = weft.tensor([2.0, 3.0, 4.0])
    f = RUNS[run](function(lambda ctx, g: g * scale))
    x = weft.ones(2, 3, requires_grad=True)
    for _ in range(3):
        np.testing.assert_array_equal(gradient(f, x), [scale.tolist()] * 2)
        scale.add_(1)


@pytest.mark.parametrize("run", RUNS)
def test_what_it_reads_has_second_derivatives(run: str) -> None:
    w = weft.tensor([2.0, 3.0, 4.0], requires_grad=True)
    f = RUNS[run](function(lambda ctx, g: g * w))
    x = weft.ones(2, 3, requires_grad=True)
    (slope,) = autograd.grad(f(x).sum(), x, create_graph=True)
    slope.sum().backward()
    assert w.grad is not None and w.grad.tolist() == [2.0] * 3


@pytest.mark.parametrize("run", RUNS)
def test_it_counts(run: str) -> None:
    count = weft.zeros(1)

    def backward(ctx: Any, g: Any) -> Any:
        count.add_(1)
        return g

    f = RUNS[run](function(backward))
    gradient(f, weft.ones(2, 3, requires_grad=True))
    assert count.tolist() == [1.0]


def _kept(kept: Any, g: Any) -> None:
    kept.copy_(g.sum(0))


def _added(kept: Any, g: Any) -> None:
    (kept.requires_grad_() * g).sum().backward()


@pytest.mark.parametrize("change", [_kept, _added])
@pytest.mark.parametrize("run", RUNS)
def test_what_only_a_call_knows_is_not_left_in_tensors_from_outside(run: str, change: Any) -> None:
    kept = weft.zeros(3)

    def backward(ctx: Any, g: Any) -> Any:
        with weft.enable_grad() if change is _added else weft.no_grad():
            change(kept, g)
        return g

    f, x = RUNS[run](function(backward)), weft.ones(2, 3, requires_grad=True)
    if run == "as it is":
        gradient(f, x)
        return
    with pytest.raises(weft.GradError, match="call backward\\(\\) in the compiled function"):
        gradient(f, x)
    assert kept.tolist() == [0.0] * 3 and kept.grad is None


@pytest.mark.parametrize("run", RUNS)
def test_it_may_change_what_it_makes(run: str) -> None:
    def backward(ctx: Any, g: Any) -> Any:
        out = weft.zeros(g.shape)
        out.add_(g)
        out[..., :1] = 7.0
        return out

    found = gradient(RUNS[run](function(backward)), weft.ones(2, 3, requires_grad=True))
    np.testing.assert_array_equal(found, [[7.0, 1.0, 1.0]] * 2)


@pytest.mark.parametrize("saves", [True, False])
def test_attributes_and_saved_tensors_are_those_of_each_call(saves: bool) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        y = x.sin()
        ctx.save_for_backward(y)
        ctx.y = y
        return y * y

    def backward(ctx: Any, g: Any) -> Any:
        return g * (ctx.saved_tensors[0] if saves else ctx.y)

    f = RUNS["compiled"](function(backward, forward))
    xs = [weft.full((2, 3), v).requires_grad_() for v in (0.5, 1.0, 1.5, 2.0)]
    for x, y in zip(xs, [f(x) for x in xs], strict=True):
        y.sum().backward()
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), np.sin(x.detach().numpy()), rtol=1e-5)


def test_what_is_saved_is_stored_when_it_is_computed() -> None:
    contexts: list[Any] = []

    def forward(ctx: Any, x: Any) -> Any:
        contexts.append(ctx)
        y = x.exp() + x
        ctx.save_for_backward(y)
        return y.sin()

    x = weft.from_numpy(np.random.default_rng(0).standard_normal((2, 3))).requires_grad_()
    out = function(lambda ctx, g: g, forward)(x)
    out.detach().numpy()
    (saved,) = contexts[0].saved_tensors
    assert saved.value.node.storage is not None
