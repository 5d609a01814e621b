"""Random nestings of what runs a function at another time or for many: checkpoints, compiled functions, vmap, scan,
gradients of gradients, rules of one's own. Values and gradients are those of the functions as they are."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from weft.utils.checkpoint import checkpoint, checkpoint_sequential

import weft
import weft.nn.functional as F
from weft import Tensor, autograd

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))
WIDTH = 4
AT_ONCE = 10
"""Programs of one test."""

Fn = Callable[[Any], Any]
Make = Callable[[bool], Fn]
"""make(transformed): the function with its transforms, or without."""


class Product(autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Any, w: Any) -> Any:
        ctx.save_for_backward(t, w)
        return t @ w

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        t, w = ctx.saved_tensors
        return g @ w.mT, t.reshape(-1, WIDTH).mT @ g.reshape(-1, WIDTH)


class Two(autograd.Function):
    """sin t and t sin t."""

    @staticmethod
    def forward(ctx: Any, t: Any) -> Any:
        y = t.sin()
        ctx.save_for_backward(t, y)
        return y, t * y

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        t, y = ctx.saved_tensors
        return g * t.cos() + h * (y + t * t.cos())


def slope(f: Fn, t: Any) -> Any:
    """The gradient of the sum of f(t)."""
    t = t if t.requires_grad else t.detach().requires_grad_()
    y = f(t)
    if not y.requires_grad:
        return t * 0
    (found,) = autograd.grad(y.sum(), t, create_graph=True, allow_unused=True, materialize_grads=True)
    return found


def written(t: Any, b: Any) -> Any:
    y = t.clone()
    y.mul_(2.0)
    y[..., :1] = y[..., 1:2] * b[:1]
    return y.add_(b)


class Programs:
    """Functions of rows of WIDTH numbers, with weights that they capture."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.weights = [self.leaf(WIDTH, WIDTH) for _ in range(3)]
        self.bias = weft.from_numpy(self.rng.standard_normal(WIDTH) * 0.5 + 1).requires_grad_()

    def leaf(self, *shape: int) -> Any:
        return weft.from_numpy(self.rng.standard_normal(shape) * 0.5).requires_grad_()

    def pick(self, *options: Any) -> Any:
        return options[self.rng.integers(len(options))]

    def op(self) -> tuple[str, Make]:
        w, b = self.pick(*self.weights), self.bias
        ops: dict[str, Fn] = {
            "linear": lambda t: F.linear(t, w, b),
            "product": lambda t: t @ w,
            "tanh": lambda t: (t * b).tanh(),
            "gelu": lambda t: F.gelu(t + b),
            "softmax": lambda t: F.softmax(t * b, -1),
            "norm": lambda t: F.layer_norm(t, (WIDTH,), b),
            "own product": lambda t: Product.apply(t, w),
            "two results": lambda t: sum(Two.apply(t)),
            "running sum": lambda t: t.cumsum(-1),
            "less its maximum": lambda t: t - t.amax(-1, keepdim=True) * 0.1,
            "written": lambda t: written(t, b),
            "indexed": lambda t: t[..., [1, 0, 3, 2]] * b,
        }
        name = self.pick(*ops)
        return name, lambda _: ops[name]

    def function(self, depth: int) -> tuple[str, Make]:
        if depth == 0 or self.rng.random() < 0.2:
            return self.op()
        inner, make = self.function(depth - 1)
        other, make_other = self.function(depth - 1)
        kinds: dict[str, Callable[[Fn, Fn, bool], Fn]] = {
            "after": lambda f, g, _: lambda t: f(g(t)),
            "beside": lambda f, g, _: lambda t: f(t) + g(t),
            "residual": lambda f, _, __: lambda t: t + f(t),
            "halves": lambda f, _, __: lambda t: weft.cat([f(t[:1]), f(t[1:])]) if t.dim() > 1 else f(t),
            "slope": lambda f, _, __: lambda t: slope(f, t),
            "constant": lambda f, _, __: lambda t: t * f(t).detach(),
            "checkpoint": lambda f, _, on: (lambda t: checkpoint(f, t)) if on else f,
            "checkpoint that holds": lambda f, _, on: lambda t: _held(f, t, t * 1.5, on),
            "segments": lambda f, g, on: (
                (lambda t: checkpoint_sequential([f, g, f], 2, t)) if on else lambda t: f(g(f(t)))
            ),
            "compile": lambda f, _, on: weft.compile(f) if on else f,
            "vmap": lambda f, _, on: (lambda t: weft.vmap(f)(t) if t.dim() > 1 else f(t)) if on else f,
            "scan": lambda f, _, on: (lambda t: _scanned(f, t)) if on else f,
        }
        kind = self.pick(*kinds)
        text = f"{kind}({inner}, {other})" if kind in ("after", "beside", "segments") else f"{kind}({inner})"
        return text, lambda on: kinds[kind](make(on), make_other(on), on)


def _held(f: Fn, t: Any, held: Any, on: bool) -> Any:
    return checkpoint(lambda u: f(u) * held, t) if on else f(t) * held


def _scanned(f: Fn, t: Any) -> Any:
    if t.dim() == 1:
        return f(t)
    return weft.scan(lambda c, row: (c, f(row)), weft.zeros(1, dtype=weft.float64), t)[1]


def gradients(f: Fn, x: np.ndarray[Any, Any], weights: list[Any]) -> list[np.ndarray[Any, Any]]:
    """Of the sum of squares, by backward(): it comes after all that f has done."""
    for w in weights:
        w.grad = None
    t: Tensor = weft.from_numpy(x).requires_grad_()
    total = f(t).pow(2).sum()
    if total.requires_grad:  # not where a slope is the same everywhere
        total.backward()
    return [np.zeros(w.shape) if w.grad is None else w.grad.numpy() for w in (t, *weights)]


def check(seed: int) -> None:
    programs = Programs(seed)
    weights = [*programs.weights, programs.bias]
    text, make = programs.function(int(programs.rng.integers(1, 5)))
    plain, transformed = make(False), make(True)
    outer = programs.pick("as it is", "compiled", "a compiled step")
    if outer == "compiled":
        transformed = weft.compile(transformed)
    inner = transformed

    @weft.compile
    def step(t: Any) -> Any:
        total = inner(t).pow(2).sum() + 0.0 * t.sum()
        return autograd.grad(total, [t, *weights], allow_unused=True, materialize_grads=True)

    for rows in (3, 3, 2, 5, 3):
        x = programs.rng.standard_normal((rows, WIDTH))
        want = gradients(plain, x, weights)
        if outer == "a compiled step":
            found = [g.numpy() for g in step(weft.from_numpy(x).requires_grad_())]
        else:
            found = gradients(transformed, x, weights)
        for a, b in zip(want, found, strict=True):
            np.testing.assert_allclose(
                b,
                a,
                rtol=1e-8,
                atol=1e-8 * max(1.0, float(np.abs(a).max())),
                err_msg=f"{seed}: {outer}, {text}",
            )


@pytest.mark.parametrize("start", range(0, EXAMPLES or 3 * AT_ONCE, AT_ONCE))
def test_gradients_through_transforms_are_those_without(start: int) -> None:
    for seed in range(start, start + AT_ONCE):
        check(seed)
