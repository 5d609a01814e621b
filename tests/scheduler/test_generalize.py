"""Kernels alike but for constant places share a program; sums of slices' gradients are joined, not added up."""

from __future__ import annotations

import numpy as np

import weft
from weft.backends.registry import open_device
from weft.core.args.handle import value_of
from weft.ir.ops import Op
from weft.scheduler.assembly import Job
from weft.scheduler.build import build
from weft.scheduler.generalize import generalize
from weft.scheduler.kernelize.kernels import kernelize
from weft.scheduler.signature import signature


def _steps(x: weft.Tensor, w: weft.Tensor) -> weft.Tensor:
    h = weft.zeros(4, 8, dtype=x.dtype)
    for t in range(x.shape[0]):
        h = (x[t] + h @ w).tanh()
    return h


def test_an_unrolled_loop_has_the_programs_of_one_step() -> None:
    counts: dict[int, int] = {}
    for n in (6, 12):
        x, w = weft.randn(n, 4, 8).realize(), weft.randn(8, 8).realize()
        node = value_of("test", _steps(x, w)).node
        specs = kernelize([node])
        found = generalize([s.algorithm for s in specs])
        counts[n] = len({g.algorithm for g in found})
        assert len(specs) > counts[n]
        sig = signature([node])
        made, _ = build(Job((node,), sig.leaves, sig.variables, {}), open_device("cpu:0"))
        plan = made.plan({})
        assert len(plan.codes) == counts[n] and set(plan.constants) <= set(range(n))
    assert counts[6] == counts[12]


def test_results_and_gradients_of_an_unrolled_loop() -> None:
    n = 40  # more than are joined at once
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((n, 4, 8)) * 0.5, rng.standard_normal((8, 8)) * 0.3
    x, w = weft.tensor(a, requires_grad=True), weft.tensor(b, requires_grad=True)
    _steps(x, w).sum().backward()
    states = [np.zeros((4, 8))]
    for t in range(n):
        states.append(np.tanh(a[t] + states[-1] @ b))
    g, gx, gw = np.ones((4, 8)), np.zeros_like(a), np.zeros_like(b)
    for t in reversed(range(n)):
        gx[t] = g * (1 - states[t + 1] ** 2)
        gw += states[t].T @ gx[t]
        g = gx[t] @ b.T
    assert x.grad is not None and w.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), gx, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(w.grad.numpy(), gw, rtol=1e-10, atol=1e-12)


def test_gradients_of_slices_are_joined() -> None:
    x = weft.randn(50, 3, requires_grad=True)
    parts = [x[t] * float(t + 1) for t in range(50) if t % 7]
    overlapping = [x[t : t + 2].sum() for t in range(48)]
    (g,) = weft.autograd.grad(weft.stack(parts).sum() + weft.stack(overlapping).sum(), [x], create_graph=True)
    ops, stack = set[Op](), [value_of("test", g).node]
    while stack:
        node = stack.pop()
        ops.add(node.op)
        stack += node.inputs
    assert Op.CONCAT in ops and Op.PAD not in ops
    want = np.array([(t + 1.0) * bool(t % 7) for t in range(50)])
    want += [1, *[2] * 47, 1, 0]
    np.testing.assert_allclose(g.detach().numpy(), np.broadcast_to(want[:, None], (50, 3)), rtol=1e-6)


def test_joins_of_many_parts() -> None:
    rows = [weft.full((2,), float(k)) + 1 for k in range(100)]
    np.testing.assert_array_equal(weft.stack(rows).numpy()[:, 0], np.arange(100) + 1)
    np.testing.assert_array_equal(weft.cat(rows, 0).numpy()[::2], np.arange(100) + 1)


def test_second_derivatives_through_joined_slices() -> None:
    x = weft.randn(20, requires_grad=True, dtype=weft.float64)
    y = weft.stack([x[t] ** 3 for t in range(20)]).sum()
    (g,) = weft.autograd.grad(y, [x], create_graph=True)
    (h,) = weft.autograd.grad(g.sum(), [x])
    np.testing.assert_allclose(h.numpy(), 6 * x.detach().numpy(), rtol=1e-12)
