"""Random step functions: scan computes what the steps one by one do, and so do its gradients and its batches."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

import weft
from weft import Tensor
from weft.core.execute.realization import realize
from weft.testing import reference

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))

Step = Callable[[Any, Any], tuple[Any, Any]]


def one_by_one(f: Step, carry: Any, xs: Tensor, reverse: bool) -> tuple[Any, tuple[Tensor, ...]]:
    """The steps, laid out."""
    rows: list[Any] = []
    steps = range(xs.shape[0])
    for t in reversed(steps) if reverse else steps:
        carry, ys = f(carry, xs[t])
        rows.append(ys)
    rows = rows[::-1] if reverse else rows
    return carry, tuple(weft.stack(list(column)) for column in zip(*rows, strict=True))


def random_step(rng: np.random.Generator, weights: list[Tensor]) -> Step:
    """A function of a matrix and a vector, and a row, with the weights (a matrix and a vector) and without."""
    w, v = weights
    pick = rng.integers(0, 1 << 16, 16).tolist()

    def of(k: int, *options: Callable[[], Tensor]) -> Tensor:
        return options[pick[k] % len(options)]()

    def f(carry: tuple[Tensor, Tensor], x: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
        a, b = carry
        p = of(0, lambda: a @ w, lambda: a @ w.T, lambda: a * v, lambda: a.softmax(-1), lambda: a)
        q = of(1, lambda: x, lambda: x @ w, lambda: x * b, lambda: x.cumsum(0), lambda: x[[2, 0, 0]])
        a1 = of(
            2,
            lambda: (p + q).tanh(),
            lambda: p.sigmoid() * q,
            lambda: p * 0.5 + q,
            lambda: weft.where(x > 0, p, q),
        )
        b1 = of(
            3, lambda: b * 0.9 + a1.mean(0), lambda: b, lambda: a1.amax(0), lambda: v.sin(),
            lambda: weft.index_add(b, 0, weft.tensor([1, 0, 1, 3]), p[0] * 0.1),
        )  # fmt: skip
        y = of(4, lambda: a1, lambda: a1.sum(-1), lambda: (a1 * x).T, lambda: b, lambda: x)
        z = of(5, lambda: a @ w, lambda: b1, lambda: weft.logsumexp(q, 0), lambda: v * 2)
        return (a1, b1), (y, z) if pick[6] % 2 else (y,)

    return f


def test_scan_does_what_the_steps_do() -> None:
    for seed in range(EXAMPLES or 8):
        rng = np.random.default_rng(seed)
        length, reverse = int(rng.integers(1, 6)), bool(rng.integers(0, 2))

        def leaf(*shape: int, grad: bool = True, rng: np.random.Generator = rng) -> Tensor:
            return weft.tensor(
                rng.standard_normal(shape) * 0.5, requires_grad=grad and bool(rng.integers(0, 4))
            )

        weights = [leaf(4, 4), leaf(4)]
        f = random_step(rng, weights)
        a, b, xs = leaf(3, 4), leaf(4), leaf(length, 3, 4)
        results: list[list[Tensor]] = []
        for run in (one_by_one, lambda f, c, x, r: weft.scan(f, c, x, reverse=r)):
            ends, ys = run(f, (a, b), xs, reverse)
            found = [*ends, *ys]
            loss = sum((t * t).sum() * (k + 1) for k, t in enumerate(found))
            given = [t for t in (a, b, xs, *weights) if t.requires_grad]
            if given:
                grads = weft.autograd.grad(loss, given, allow_unused=True, materialize_grads=True)
                found += grads
            results.append(found)
        want, loops = (reference.evaluate([t.value.node for t in found]) for found in results)
        realize(*results[1])
        for k, (x, y, z) in enumerate(zip(want, loops, results[1], strict=True)):
            np.testing.assert_allclose(y, x, rtol=1e-9, atol=1e-9, err_msg=f"seed {seed}, {k}")
            np.testing.assert_allclose(z.numpy(), x, rtol=1e-9, atol=1e-9, err_msg=f"seed {seed}, {k}")


def test_scans_of_many_lengths_do_what_the_steps_do() -> None:
    """Those that come later are built from what was recorded of the first."""
    for seed in range(EXAMPLES or 4):
        rng = np.random.default_rng(200 + seed)
        grad = [bool(g) for g in rng.integers(0, 3, 5)]

        def leaf(k: int, *shape: int, rng: np.random.Generator = rng, grad: list[bool] = grad) -> Tensor:
            return weft.tensor(rng.standard_normal(shape) * 0.5, requires_grad=grad[k])

        weights = [leaf(0, 4, 4), leaf(1, 4)]
        f, reverse = random_step(rng, weights), bool(rng.integers(0, 2))
        for length in rng.integers(1, 12, 8).tolist():
            a, b, xs = leaf(2, 3, 4), leaf(3, 4), leaf(4, length, 3, 4)
            given = [t for t in (a, b, xs, *weights) if t.requires_grad]
            results: list[list[Tensor]] = []
            for run in (one_by_one, lambda f, c, x, r: weft.scan(f, c, x, reverse=r)):
                ends, ys = run(f, (a, b), xs, reverse)
                found = [*ends, *ys]
                loss = sum((t * t).sum() * (k + 1) for k, t in enumerate(found))
                if given:
                    found += weft.autograd.grad(loss, given, allow_unused=True, materialize_grads=True)
                results.append(found)
            want, loops = (reference.evaluate([t.value.node for t in found]) for found in results)
            for k, (x, y) in enumerate(zip(want, loops, strict=True)):
                np.testing.assert_allclose(
                    y, x, rtol=1e-9, atol=1e-9, err_msg=f"seed {seed}, {length} steps, {k}"
                )


def test_batches_and_second_derivatives_of_scans() -> None:
    for seed in range(EXAMPLES or 2):
        rng = np.random.default_rng(100 + seed)
        w, v, a, b = (weft.tensor(rng.standard_normal(s) * 0.5) for s in ((4, 4), (4,), (3, 4), (4,)))
        xs = weft.tensor(rng.standard_normal((2, 3, 3, 4)))
        f = random_step(rng, [w, v])

        def ends(x: Tensor, a: Tensor = a, b: Tensor = b, f: Step = f) -> Tensor:
            (p, q), ys = weft.scan(f, (a, b), x, reverse=True)
            return sum((t.sin().sum() for t in ys), p.sum() + (q * q).sum())

        each = [ends(x) for x in xs]
        slopes = [weft.func.grad(ends)(x) for x in xs]

        def sharp(x: Tensor, ends: Callable[[Tensor], Tensor] = ends) -> Tensor:
            return weft.func.grad(ends)(x).cos().sum()

        second = weft.func.grad(sharp)(xs[0])
        plain = weft.func.grad(
            lambda x, f=f, a=a, b=b: (
                weft.func.grad(
                    lambda x: (
                        lambda found: sum(
                            (t.sin().sum() for t in found[1]), found[0][0].sum() + (found[0][1] ** 2).sum()
                        )
                    )(one_by_one(f, (a, b), x, True))
                )(x)
                .cos()
                .sum()
            )
        )(xs[0])
        pairs = [
            (weft.vmap(ends)(xs), weft.stack(each)),
            (weft.vmap(weft.func.grad(ends))(xs), weft.stack(slopes)),
            (second, plain),
        ]
        wanted = reference.evaluate([t.value.node for _, t in pairs])
        realize(*(t for t, _ in pairs))
        for (got, _), want in zip(pairs, wanted, strict=True):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-8, atol=1e-8, err_msg=f"seed {seed}")
