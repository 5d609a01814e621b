"""What a loop multiplies with in each step lies in panels before it."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import Tensor
from weft.backends.registry import open_device
from weft.ir import numerics
from weft.ir.calls import expand_calls
from weft.ir.graph import Node, toposort
from weft.ir.loop_body import LoopNode
from weft.ir.ops import Op
from weft.scheduler.loop_panels import MIN_STEPS, with_panels

RNG = np.random.default_rng(5)


def data(*shape: int) -> np.ndarray:
    return (0.1 * RNG.standard_normal(shape)).astype(np.float32)


def recurrence(xs: Tensor, w: Tensor, turned: bool = False) -> tuple[Tensor, Tensor]:
    """h = tanh(x[t] + h @ w), from zeros: the last one, and all."""

    def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = (x + h @ (w.T if turned else w)).tanh()
        return h, h * 2

    return weft.scan(step, weft.zeros(*xs.shape[1:]), xs)


def loops(*outputs: Tensor) -> tuple[list[Node], list[Node]]:
    """The loops of a graph before and after, each result a node."""
    before = expand_calls([t.value.node for t in outputs])
    after = with_panels(before, open_device("cpu:0").info)
    return [n for n in toposort(before) if n.op is Op.LOOP], [n for n in toposort(after) if n.op is Op.LOOP]


def panels_of(loop: Node) -> list[tuple[object, ...]]:
    """The shapes of a loop's fixed inputs that have three axes."""
    assert isinstance(loop.attrs, LoopNode)
    return [p.shape for p in loop.attrs.body.fixed if len(p.shape) == 3]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows", [2, 3, 16])
def test_a_matrix_lies_in_panels_before_a_loop(rows: int, turned: bool) -> None:
    xs, w = data(20, rows, 96), data(96, 96)
    last, every = recurrence(weft.tensor(xs), weft.tensor(w), turned)
    before, after = loops(last, every)
    assert not any(map(panels_of, before)) and len(after) == 2
    for n in after:
        ((count, steps, width),) = panels_of(n)
        assert count * width == 96 and steps == 96
        assert isinstance(n.attrs, LoopNode) and len(n.attrs.body.fixed) == 1, "nothing else reads the matrix"
    assert len({(n.attrs.body, n.inputs) for n in after if isinstance(n.attrs, LoopNode)}) == 1, (
        "one loop still"
    )
    h, states = np.zeros((rows, 96), np.float32), []
    for x in xs:
        h = np.tanh(x + h @ (w.T if turned else w))
        states.append(h * 2)
    np.testing.assert_allclose(last.numpy(), h, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(every.numpy(), np.stack(states), rtol=1e-4, atol=1e-5)


def test_what_reads_the_matrix_otherwise_has_it_as_well() -> None:
    xs, w = weft.tensor(data(20, 4, 96)), weft.tensor(data(96, 96))

    def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = (x + h @ w + w[0]).tanh()
        return h, h @ w.T

    last, every = weft.scan(step, weft.zeros(4, 96), xs)
    _, after = loops(last, every)
    assert all(len(panels_of(n)) == 2 for n in after), "panels for each of the two products"
    assert all(isinstance(n.attrs, LoopNode) and len(n.attrs.body.fixed) == 3 for n in after)
    h, states = np.zeros((4, 96), np.float32), []
    for x in xs.numpy():
        h = np.tanh(x + h @ w.numpy() + w.numpy()[0])
        states.append(h @ w.numpy().T)
    np.testing.assert_allclose(last.numpy(), h, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(every.numpy(), np.stack(states), rtol=1e-4, atol=1e-5)


def test_gradients_of_a_recurrence_are_computed_from_panels() -> None:
    xs, w = data(12, 4, 64), data(64, 64)
    a, b = weft.tensor(xs, requires_grad=True), weft.tensor(w, requires_grad=True)
    last, every = recurrence(a, b)
    grads = weft.autograd.grad((last.sum() + (every**2).sum()), [a, b])
    _, after = loops(*grads)
    assert {len(panels_of(n)) for n in after} == {1}, "both ways"
    eps = 1e-3

    def loss(xs: np.ndarray, w: np.ndarray) -> float:
        h, found = np.zeros((4, 64)), 0.0
        for x in xs:
            h = np.tanh(x + h @ w)
            found += float(((2 * h) ** 2).sum())
        return found + float(h.sum())

    for given, grad in ((xs, grads[0].numpy()), (w, grads[1].numpy())):
        at = (1,) * given.ndim
        up, down = given.astype(float), given.astype(float)
        up[at] += eps
        down[at] -= eps
        of = (lambda v: loss(v, w)) if given is xs else (lambda v: loss(xs, v))
        np.testing.assert_allclose(grad[at], (of(up) - of(down)) / (2 * eps), rtol=1e-2)


@pytest.mark.parametrize(
    ("length", "rows", "size", "why"),
    [
        (MIN_STEPS - 1, 4, 96, "few steps"),
        (20, 1, 96, "one row"),
        (20, 4, 32, "a small matrix"),
        (20, 4, 97, "no whole vectors"),
    ],
)
def test_loops_that_gain_nothing_stay_as_they_are(length: int, rows: int, size: int, why: str) -> None:
    xs, w = weft.tensor(data(length, rows, size)), weft.tensor(data(size, size))
    before, after = loops(*recurrence(xs, w))
    assert before == after, why


def test_what_changes_from_step_to_step_stays_as_it_is() -> None:
    ws = weft.tensor(data(20, 96, 96))
    before, after = loops(*weft.scan(lambda h, w: ((h @ w).tanh(), h), weft.ones(4, 96), ws))
    assert before == after


def test_pinned_numerics_and_graphs_without_loops_stay_as_they_are() -> None:
    xs, w = weft.tensor(data(20, 4, 96)), weft.tensor(data(96, 96))
    with numerics.switched(True):
        before, after = loops(*recurrence(xs, w))
        assert before == after
    plain = [(xs[0] @ w).value.node]
    assert with_panels(plain, open_device("cpu:0").info) is plain
