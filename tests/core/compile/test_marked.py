"""Marked axes: the first plan of a compiled function is for all their sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import errors
from weft.scheduler import families
from weft.scheduler import realize as realization

RNG = np.random.default_rng(0)
W = RNG.standard_normal((6, 5)).astype(np.float32)


@pytest.fixture(autouse=True)
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The plans that were built, from nothing known."""
    for table in (realization._plans, families._families, families._met):
        table.clear()
    built: list[int] = []
    make = realization._from_disk_or_built

    def counted(*args: Any) -> Any:
        built.append(1)
        return make(*args)

    monkeypatch.setattr(realization, "_from_disk_or_built", counted)
    return built


def rows(n: int) -> weft.Tensor:
    return weft.tensor(np.arange(6 * n, dtype=np.float32).reshape(n, 6) / 7)


def f(x: Any) -> Any:
    return (x @ weft.tensor(W)).tanh().sum(1)


def expected(x: Any) -> Any:
    return np.tanh(x.numpy() @ W).sum(1)


def test_a_marked_axis_has_a_plan_for_all_sizes_from_the_first_call_on(counts: list[int]) -> None:
    g = weft.compile(f)
    x = rows(4)
    weft.mark_dynamic(x, 0)
    for n in (4, 9, 3, 30):
        given = x if n == 4 else rows(n)
        np.testing.assert_allclose(g(given).numpy(), expected(given), rtol=1e-5)
    assert len(counts) == 1
    assert "a plan for all sizes" in str(weft.explain(g, x))


def test_all_axes_that_can_vary_do_when_asked(counts: list[int]) -> None:
    g = weft.compile(f, dynamic=True)
    for n in (4, 9, 3, 30):
        np.testing.assert_allclose(g(rows(n)).numpy(), expected(rows(n)), rtol=1e-5)
    assert len(counts) == 1


def test_without_marks_the_second_size_makes_it(counts: list[int]) -> None:
    g = weft.compile(f)
    for n in (4, 9, 3):
        g(rows(n))
    assert len(counts) == 2


def test_no_axis_varies_where_that_is_refused(counts: list[int]) -> None:
    g = weft.compile(f, dynamic=False)
    x = rows(4)
    weft.mark_dynamic(x, 0)
    for n in (4, 9, 3):
        g(x if n == 4 else rows(n))
    assert len(counts) == 3


def test_an_axis_that_cannot_vary_is_taken_as_it_is(counts: list[int]) -> None:
    g = weft.compile(f)
    x = rows(4)
    weft.mark_dynamic(x, (0, 1))  # of whose second the weights have 6
    np.testing.assert_allclose(g(x).numpy(), expected(x), rtol=1e-5)
    assert "a plan for all sizes" not in str(weft.explain(g, x))


def test_a_second_recording_changes_nothing(counts: list[int]) -> None:
    total = weft.zeros(5)
    total.realize()
    layer = weft.nn.Linear(6, 5)
    optimizer = weft.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    before = layer.weight.numpy().copy()

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = layer(x).square().mean()
        loss.backward()
        optimizer.step()
        total.add_(1)
        return loss

    x = rows(4)
    y = x.numpy() @ before.T + layer.bias.numpy()
    slope = (2 * y / y.size).T @ x.numpy()
    weft.mark_dynamic(x, 0)
    weft.compile(step)(x)
    np.testing.assert_array_equal(total.numpy(), np.ones(5))
    np.testing.assert_allclose(layer.weight.numpy(), before - 0.1 * slope, rtol=1e-4, atol=1e-6)


def test_a_function_that_asks_for_values_runs_once(counts: list[int]) -> None:
    seen: list[float] = []
    total = weft.zeros(1)

    def g(x: Any) -> Any:
        total.add_(1)
        seen.append(x.sum().item())
        return x * 2

    x = rows(4)
    weft.mark_dynamic(x, 0)
    np.testing.assert_array_equal(weft.compile(g)(x).numpy(), x.numpy() * 2)
    assert seen == [x.sum().item()]
    assert total.item() == 1


def test_mistakes_are_named() -> None:
    with pytest.raises(errors.IndexError, match="mark_dynamic"):
        weft.mark_dynamic(rows(2), 2)
    with pytest.raises(errors.DTypeError, match="mark_dynamic: expected a Tensor"):
        weft.mark_dynamic(np.zeros(2), 0)  # pyright: ignore[reportArgumentType]
