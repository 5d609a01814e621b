"""A compiled function tells its arguments from the tensors that it captures, even where one is both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft


def values(x: weft.Tensor) -> list[float]:
    return x.tolist()


def counted(fn: Callable[..., Any]) -> tuple[Any, list[int]]:
    """The function compiled, and a list that grows with each trace."""
    traces: list[int] = []

    def traced(*args: Any) -> Any:
        traces.append(1)
        return fn(*args)

    return weft.compile(traced), traces


def test_an_argument_that_is_also_captured() -> None:
    t, u, v = weft.tensor([1.0]), weft.tensor([10.0]), weft.tensor([100.0])
    f, traces = counted(lambda x: x * 2 + t)
    for _ in range(2):
        assert values(f(t)) == [3.0]
        assert values(f(u)) == [21.0]
        assert values(f(v)) == [201.0]
    assert len(traces) == 2, "one where they are one, one where they are two"


def test_the_other_way_round() -> None:
    t, u = weft.tensor([1.0]), weft.tensor([10.0])
    f, _ = counted(lambda x: x * 2 + t)
    assert values(f(u)) == [21.0]
    assert values(f(t)) == [3.0]
    assert values(f(u)) == [21.0]
    assert values(f(t)) == [3.0]


def test_arguments_that_nothing_else_refers_to_are_traced_once() -> None:
    w = weft.tensor([3.0])
    f, traces = counted(lambda x, y: x * w + y)
    for k in range(6):
        assert values(f(weft.tensor([float(k)]), weft.tensor([1.0]))) == [3.0 * k + 1]
    assert len(traces) == 1


def test_arguments_in_a_list_are_traced_twice_at_most() -> None:
    kept = [weft.tensor([float(k)]) for k in range(6)]
    f, traces = counted(lambda x: x + kept[0])
    assert [values(f(x)) for x in kept] == [[float(k)] for k in range(6)]
    assert [values(f(x)) for x in kept] == [[float(k)] for k in range(6)]
    assert len(traces) == 2
    g, traces = counted(lambda x: x * 2)
    assert [values(g(x)) for x in kept] == [[2.0 * k] for k in range(6)]
    assert len(traces) == 2


def test_an_argument_that_stays_while_another_changes() -> None:
    caches = [weft.tensor([5.0]), weft.tensor([7.0])]
    cache, other = caches
    f, traces = counted(lambda x, c: x + c)
    for k in range(6):
        assert values(f(weft.tensor([float(k)]), cache)) == [k + 5.0]
    assert len(traces) == 1
    for k in range(6):
        assert values(f(weft.tensor([float(k)]), other)) == [k + 7.0]
    assert len(traces) == 1
    holder = weft.nn.Module()
    holder.cache = cache
    h, traces = counted(lambda x, c: x + c)
    for k in range(6):
        assert values(h(weft.tensor([float(k)]), holder.cache)) == [k + 5.0]
    holder.cache = other
    for k in range(6):
        assert values(h(weft.tensor([float(k)]), holder.cache)) == [k + 7.0]
    assert len(traces) <= 2


def test_a_rebound_tensor_that_is_also_an_argument() -> None:
    state = weft.tensor([0.0])

    def add(x: weft.Tensor) -> weft.Tensor:
        state.add_(x)
        return state * 1

    f, _ = counted(add)
    assert values(f(state)) == [0.0]
    one = weft.tensor([1.0])
    assert [values(f(one))[0] for _ in range(3)] == [1.0, 2.0, 3.0]
    assert values(f(state)) == [6.0]
    assert values(one) == [1.0]
    assert values(f(one)) == [7.0]


def test_a_parameter_as_an_argument() -> None:
    model = weft.nn.Linear(2, 2)
    x = weft.ones(1, 2)
    f, _ = counted(lambda w: model(x) + w.sum())
    with weft.no_grad():
        expected = model(x).numpy() + model.weight.numpy().sum()
        np.testing.assert_allclose(f(model.weight).numpy(), expected, rtol=1e-6)
        np.testing.assert_allclose(f(weft.zeros(2, 2)).numpy(), model(x).numpy(), rtol=1e-6)
        np.testing.assert_allclose(f(model.weight).numpy(), expected, rtol=1e-6)


def test_training_steps_are_traced_twice() -> None:
    model = weft.nn.Linear(3, 1)
    optimizer = weft.optim.Adam(model.parameters(), lr=0.01)

    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    f, traces = counted(step)
    for _ in range(5):
        f(weft.randn(4, 3), weft.randn(4, 1))
    assert len(traces) <= 3
