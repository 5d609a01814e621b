"""Sums with factors outside are those sums, and wait for no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
import weft.nn.functional as F
from weft import Tensor
from weft.ir.calls import expand_calls
from weft.ir.graph import Axes, Node, toposort
from weft.ir.ops import REDUCE, Op
from weft.scheduler.factored_sums import factored
from weft.testing.reference import evaluate


def _leaf(*shape: int, seed: int = 0, dtype: weft.DType = weft.float32) -> Tensor:
    return weft.tensor(np.random.default_rng(seed).standard_normal(shape), dtype=dtype).realize()


def _nodes(*results: Tensor) -> list[Node]:
    return expand_calls([t.value.node for t in results])


def _channel_sums(nodes: Sequence[Node]) -> list[Node]:
    return [
        n
        for n in toposort(nodes)
        if n.op is Op.SUM and isinstance(n.attrs, Axes) and n.attrs.axes == (0, 2, 3)
    ]


def _passes(nodes: Sequence[Node]) -> int:
    """Reductions that wait for each other, at most."""
    depth: dict[Node, int] = {}
    for n in toposort(nodes):
        before = max((depth[i] for i in n.inputs), default=0) if n.storage is None else 0
        depth[n] = before + (n.op in REDUCE)
    return max(depth[n] for n in nodes)


def _close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * (float(np.abs(want).max(initial=0)) or 1.0))


def _normed(act: Any = F.relu) -> list[Node]:
    norm = weft.nn.BatchNorm2d(4)
    x, g = _leaf(3, 4, 5, 6).requires_grad_(), _leaf(3, 4, 5, 6, seed=1)
    y = act(norm(x))
    return _nodes(*weft.gradients((y * g).sum(), [x, norm.weight, norm.bias]))


@pytest.mark.parametrize("act", [F.relu, F.silu, weft.tanh])
def test_a_batch_norms_gradients_are_of_one_pass(act: Any) -> None:
    nodes = _normed(act)
    made = factored(nodes)
    for got, want in zip(evaluate(made), evaluate(nodes), strict=True):
        _close(got, want)
    assert len(_channel_sums(nodes)) == 6, "two for the norm, and four for its gradients"
    assert len(_channel_sums(made)) == 5, "of the gradients dy, dy xc and xc, once each"
    assert _passes(nodes) == 4 and _passes(made) == 3


def test_sums_that_gain_nothing_stay_as_they_are() -> None:
    x, g, r = _leaf(2, 4, 5, 5), _leaf(4, seed=1), _leaf(2, 4, 5, 5, seed=2)
    scaled = x * g[None, :, None, None]
    for y in (
        scaled.sum((0, 2, 3)),  # a factor that is there waits for nothing
        (x * r).sum((0, 2, 3)) * 2,
        (x * x.exp().sum((2, 3), keepdim=True)).sum(3),
        F.softmax(x, 3).sum((0, 2, 3)),
        (x / x.amax((0, 2, 3), keepdim=True)).sum(),
    ):
        nodes = _nodes(y)
        assert factored(nodes) is nodes
    nothing = _leaf(0, 4, 5, 5)
    empty = _nodes((nothing * nothing.mean((0, 2, 3), keepdim=True)).sum((0, 2, 3)))
    assert factored(empty) is empty, "0, and not 0 times what the mean of nothing is"
    narrow = _leaf(2, 4, 5, 5, dtype=weft.bfloat16)
    half = _nodes((narrow * narrow.sum((0, 2, 3), keepdim=True)).sum((0, 2, 3)))
    assert factored(half) is half, "a sum without its factor would be rounded elsewhere"
    with weft.numerics("same"):
        pinned = _nodes((x * x.sum((0, 2, 3), keepdim=True)).sum((0, 2, 3)))
        assert factored(pinned) is pinned
    free = _nodes((x * x.sum((0, 2, 3), keepdim=True)).sum((0, 2, 3)))
    assert factored(free) is not free


def test_long_and_deep_products_are_left_alone() -> None:
    x = _leaf(2, 3, 2, 2)
    scale = x.abs().amax((0, 2, 3), keepdim=True)
    squared = deep = x / scale
    for _ in range(40):
        squared = squared * squared * 1.0
    for _ in range(3000):
        deep = deep * 0.5 + x
    for y in (squared, deep):
        nodes = _nodes((y * scale).sum((0, 2, 3)))
        for got, want in zip(evaluate(factored(nodes)), evaluate(nodes), strict=True):
            _close(got, want)


@st.composite
def _expressions(draw: st.DrawFn) -> Tensor:
    """Sums and products of values that differ everywhere, of numbers, and of what channels have."""
    leaves = [_leaf(2, 3, 4, 5, seed=k) for k in range(3)]
    sums = [
        leaves[0].sum((0, 2, 3), keepdim=True),
        _leaf(1, 3, 1, 1, seed=7),
        leaves[1].exp().mean((0, 2, 3), keepdim=True),
    ]
    pool = [*leaves, *[s + 0.0 * leaves[0] if draw(st.booleans()) else s.expand(2, 3, 4, 5) for s in sums]]
    for _ in range(draw(st.integers(1, 7))):
        a, b = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        pool.append(
            draw(
                st.sampled_from(
                    [
                        a + b,
                        a - b,
                        a * b,
                        -a,
                        a * 0.5,
                        a / (1.5 + sums[1] ** 2),
                        a / sums[2],
                        (a.abs() + 1).log(),
                    ]
                )
            )
        )
    return pool[-1]


@settings(
    max_examples=150, derandomize=True, suppress_health_check=list(HealthCheck), deadline=None, database=None
)
@given(_expressions(), st.sampled_from([(0, 2, 3), (2, 3), (0, 1, 2, 3), (1, 2, 3)]), st.booleans())
def test_random_sums(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> None:
    y = x.sum(axes, keepdim=keepdim)
    nodes = _nodes(y, (x * y.sum()).sum(axes))
    made = factored(nodes)
    size = float(np.abs(evaluate(_nodes(x))[0]).max(initial=0)) or 1.0
    for got, want in zip(evaluate(made), evaluate(nodes), strict=True):
        assert got.shape == want.shape
        scale = max(float(np.abs(want).max(initial=0)), size)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=2e-3 * scale)


def test_compiled_steps_with_norms_train_alike() -> None:
    def trained(compiled: bool) -> list[Any]:
        weft.manual_seed(0)
        net = weft.nn.Sequential(
            weft.nn.Conv2d(3, 8, 1),
            weft.nn.BatchNorm2d(8),
            weft.nn.SiLU(),
            weft.nn.Conv2d(8, 4, 1),
            weft.nn.BatchNorm2d(4),
        )
        optimizer = weft.optim.SGD(net.parameters(), lr=1e-2)
        x, target = _leaf(4, 3, 6, 7), _leaf(4, 4, 6, 7, seed=1)

        def step() -> Tensor:
            optimizer.zero_grad()
            loss = ((net(x) - target) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        run = weft.compile(step) if compiled else step
        return [[run().item() for _ in range(4)], *[p.numpy().copy() for p in net.parameters()]]

    with weft.numerics("same"):
        want = trained(False)
    for got, expected in zip(trained(True), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5)
