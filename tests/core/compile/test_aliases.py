"""A compiled function tells its arguments from the tensors that it captures, even where one is both."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from ctypes import py_object
from functools import partial
from itertools import repeat
from typing import Any
from weakref import WeakValueDictionary, proxy, ref

import numpy as np
import pytest

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


class Box:
    """An object with a tensor."""

    def __init__(self, t: Any) -> None:
        self.t = t

    def scaled(self, x: weft.Tensor) -> weft.Tensor:
        return x * 10 + self.t


def an_array(content: Any) -> Any:
    """An array of dtype object: the collector does not know what it refers to."""
    array = np.empty(1, object)
    array[0] = content
    return array


def a_generator(t: weft.Tensor) -> Iterator[weft.Tensor]:
    """Of which nothing but its own frame, while it waits, has the tensor."""
    while True:
        yield t


def by_class(t: weft.Tensor) -> Any:
    kept = type("Kept", (), {"t": t})
    return lambda x: x * 10 + kept.t


def by_weak_dict(t: weft.Tensor) -> Any:
    kept = WeakValueDictionary({0: t})
    return lambda x: x * 10 + kept[0]


def by_array_fields(t: weft.Tensor) -> Any:
    kept = np.zeros(1, [("t", object)])
    kept["t"][0] = t
    return lambda x: x * 10 + kept["t"][0]


CAPTURES: dict[str, Callable[[weft.Tensor], Any]] = {
    "a closure": lambda t: lambda x: x * 10 + t,
    "a default": lambda t: lambda x, t=t: x * 10 + t,
    "an array": lambda t: lambda x, a=an_array(t): x * 10 + a[0],
    "an array of no axes": lambda t: lambda x, a=an_array(t)[0:1].reshape(()): x * 10 + a[()],
    "an array with fields": by_array_fields,
    "a list in an array": lambda t: lambda x, a=an_array([t]): x * 10 + a[0][0],
    "a tuple in an array": lambda t: lambda x, a=an_array((t,)): x * 10 + a[0][0],
    "an object in an array": lambda t: lambda x, a=an_array(Box(t)): x * 10 + a[0].t,
    "a partial in an array": lambda t: lambda x, a=an_array(partial(lambda t: t, t)): x * 10 + a[0](),
    "a generator": lambda t: lambda x, g=a_generator(t): x * 10 + next(g),
    "a generator in an array": lambda t: lambda x, a=an_array(a_generator(t)): x * 10 + next(a[0]),
    "an iterator": lambda t: lambda x, i=repeat(t): x * 10 + next(i),
    "a weak reference": lambda t: lambda x, r=ref(t): x * 10 + r(),
    "a proxy": lambda t: lambda x, p=proxy(t): x * 10 + p,
    "a weak dict": by_weak_dict,
    "a weak reference in an array": lambda t: lambda x, a=an_array(ref(t)): x * 10 + a[0](),
    "a partial": lambda t: partial(lambda t, x: x * 10 + t, t),
    "a method's object": lambda t: Box(t).scaled,
    "an object": lambda t: lambda x, b=Box(t): x * 10 + b.t,
    "a class": by_class,
    "a deque": lambda t: lambda x, d=deque([t]): x * 10 + d[0],
    "a view of a dict": lambda t: lambda x, v={0: t}.values(): x * 10 + next(iter(v)),
    "a frozen set": lambda t: lambda x, s=frozenset([t]): x * 10 + next(iter(s)),
    "ctypes": lambda t: lambda x, c=py_object(t): x * 10 + c.value,
}


CALLS: dict[str, Callable[[Any, weft.Tensor], weft.Tensor]] = {
    "by itself": lambda f, t: f(t),
    "as a list": lambda f, t: f(*[t]),
    "through a function": lambda f, t: (lambda *args, **named: f(*args, **named))(t),
    "as a module": lambda f, t: Through(f)(t),
    "by its name": lambda f, t: f(x=t),
}


class Through(weft.nn.Module):
    """A module that is a function."""

    def __init__(self, f: Any) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return self.f(x)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("way", CAPTURES)
def test_an_argument_that_is_captured_in_any_way(way: str, call: str) -> None:
    t = weft.tensor([1.0])
    f = weft.compile(CAPTURES[way](t))
    for _ in range(2):
        assert values(CALLS[call](f, t)) == [11.0]
        assert values(CALLS[call](f, weft.tensor([5.0]))) == [51.0]


def test_an_argument_within_a_container_that_is_captured() -> None:
    t = weft.tensor([1.0])
    kept = [t]
    del t
    f = weft.compile(lambda x: x[0] * 10 + kept[0])
    for _ in range(2):
        assert values(f(kept)) == [11.0]
        assert values(f([weft.tensor([5.0])])) == [51.0]


def test_arguments_of_which_only_the_call_knows_are_traced_once() -> None:
    f, traces = counted(lambda x, y, z: x[0] + y["y"] + z)
    for k in range(4):
        z = weft.tensor([1.0])
        assert values(f([weft.tensor([float(k)])], {"y": weft.tensor([2.0])}, z)) == [k + 3.0]
        given = [weft.tensor([float(k)])], {"y": weft.tensor([2.0])}
        assert values(f(*given, z)) == [k + 3.0]
    assert len(traces) == 1


def test_named_arguments_and_those_of_modules_are_traced_once() -> None:
    traces: list[int] = []

    class Net(weft.nn.Module):
        def forward(self, x: weft.Tensor, scale: weft.Tensor) -> weft.Tensor:
            traces.append(1)
            return x * scale

    f = weft.compile(Net())
    for k in range(4):
        x = weft.tensor([float(k)])
        assert values(f(x, scale=weft.tensor([2.0]))) == [2.0 * k]
    assert len(traces) == 1


def test_slices_as_arguments_are_traced_once() -> None:
    data = weft.arange(12.0)
    f, traces = counted(lambda x: x.sum(0, keepdim=True))
    assert [values(f(data[i : i + 4])) for i in range(0, 12, 4)] == [[6.0], [22.0], [38.0]]
    assert len(traces) == 1


def test_variables_that_were_counted_are_not_kept() -> None:
    f = weft.compile(lambda x: x * 2)
    x = weft.ones(2)
    gone = ref(x)
    f(x)
    x = weft.ones(2)
    assert gone() is None
