"""Briefs: a graph like the one before finds its plan without a look inside its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft import Tensor
from weft.core.composed import composite
from weft.ir.errors import IRError
from weft.ir.index import Var
from weft.scheduler import brief, families, outline
from weft.scheduler.brief import Brief, Layout
from weft.scheduler.varying import Pattern


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """For each graph that was asked for as one of a family: whether a brief found its plan."""
    looked: list[bool] = []
    briefly = families._briefly

    def count(*args: Any) -> Any:
        plan = briefly(*args)
        looked.append(plan is not None)
        return plan

    monkeypatch.setattr(families, "_briefly", count)
    monkeypatch.setattr(composite, "_entries", {})
    monkeypatch.setattr(composite, "_families", {})
    for table in (families._families, families._met, families._alike, outline._walks):
        table.clear()
    yield looked
    for table in (families._families, families._met, outline._walks):
        table.clear()


def array(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


W = array(64, 24)
SIZES = (9, 21, 33, 50, 70, 27, 11, 95, 38, 12, 81)

STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "layers": lambda x, w: F.softmax(F.gelu(x @ w), -1).sum(0),
    "a mean": lambda x, w: (F.layer_norm(x, (64,)) @ w).mean(),
    "rows that are cut": lambda x, w: F.gelu(x[2:] @ w)[:-1].relu().sum(0),
    "padding": lambda x, w: F.gelu(F.pad(x, (0, 0, 1, 2)) @ w).sum(0),
    "heads": lambda x, w: F.softmax(x.reshape(x.shape[0], 4, 16).transpose(0, 1), -1).mean(1).sum(),
}


@pytest.mark.parametrize("name", STEPS)
def test_plans_are_found_by_briefs_and_are_right(name: str, found: list[bool]) -> None:
    """Where forms are verified, each brief is compared with the outline."""
    w = weft.tensor(W)
    for n in SIZES:
        x = weft.tensor(array(n, 64), requires_grad=True)
        y = STEPS[name](x, w)
        (g,) = weft.autograd.grad((y * y).sum(), x)
        own = weft.tensor(array(n, 64), requires_grad=True)
        z = composite.without_calls(STEPS[name])(own, w)
        (want,) = weft.autograd.grad((z * z).sum(), own)
        np.testing.assert_allclose(g.numpy(), want.numpy(), rtol=1e-3, atol=1e-5)
    assert sum(found[-8:]) >= 4, found


def test_what_differs_in_more_than_sizes_has_no_brief(found: list[bool]) -> None:
    w = weft.tensor(W)

    def step(n: int, k: int) -> None:
        x = weft.tensor(array(n, 64))
        y = F.gelu(x @ w)
        y = (y.sum(0), y.amax(0), y.exp().sum(0))[k]
        own = array(n, 64) @ W
        inner = own * 0.5 * (1 + np.vectorize(__import__("math").erf)(own / np.sqrt(2)))
        want = (inner.sum(0), inner.max(0), np.exp(inner).sum(0))[k]
        np.testing.assert_allclose(y.numpy(), want, rtol=1e-3, atol=1e-3)

    for n in SIZES[:7]:
        step(n, 0)
    for k, n in enumerate(SIZES):
        step(n, k % 3)


@composite.composite()
def blended(p: Tensor, q: Tensor) -> Tensor:
    return (p.exp() - q * 2.0).tanh()


def test_calls_on_other_inputs_have_no_brief(found: list[bool]) -> None:
    """All else is alike: what goes in is numbered before."""
    w = weft.tensor(W)
    for k, n in enumerate((*SIZES, *SIZES[::-1])):
        x = weft.tensor(array(n, 64))
        u, v = x @ w, F.gelu(x @ w)
        y = (u + v) * (blended(u, v) if k < 8 or k % 2 else blended(v, u))
        a = array(n, 64) @ W
        b = composite.without_calls(F.gelu)(weft.tensor(a)).numpy()
        p, q = (a, b) if k < 8 or k % 2 else (b, a)
        np.testing.assert_allclose(y.numpy(), (a + b) * np.tanh(np.exp(p) - q * 2), rtol=1e-3, atol=1e-3)


def test_a_size_of_one_is_another_structure(found: list[bool]) -> None:
    w = weft.tensor(W)
    for n in (*SIZES[:8], 1, 13, 1, 44):
        got = F.gelu(weft.tensor(array(n, 64)) @ w).sum(0)
        own = composite.without_calls(F.gelu)(weft.tensor(array(n, 64)) @ w).sum(0)
        np.testing.assert_allclose(got.numpy(), own.numpy(), rtol=1e-4, atol=1e-5)


def test_a_brief_that_is_wrong_is_found(found: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    w = weft.tensor(W)
    for n in SIZES[:8]:
        F.gelu(weft.tensor(array(n, 64)) @ w).sum(0).realize()
    assert found[-1]
    is_next = brief._is_next

    def wrong(own: Brief, walk: Any, rows: Any) -> bool:
        done = is_next(own, walk, rows)
        own.sizes = tuple([s + 1 if s == 41 else s for s in own.sizes])
        return done

    monkeypatch.setattr(brief, "_is_next", wrong)
    with pytest.raises(IRError, match="not what was made of the one before"):
        F.gelu(weft.tensor(array(41, 64)) @ w).sum(0).realize()


N = Var("n", 2, 64)
PATTERN = Pattern.of((N,), (N, 64, N, N * 2, N), (0,))
LAYOUT = Layout(((0, 2), (3,), (4,)), ((1, 64),), (0, 1, 2), (None, None, None))


def test_a_pattern_says_the_same_of_a_brief() -> None:
    own = LAYOUT.brief_pattern(PATTERN)
    assert own is not None
    assert own.sizes == (N, N * 2, N)
    assert own.bind((7, 14, 7)) == (7,) and own.bind((7, 14, 8)) is None and own.bind((65, 130, 65)) is None


@pytest.mark.parametrize(
    "sizes",
    [(N, 63, N, N * 2, N), (N, N, N, N * 2, N), (N, 64, N * 2, N * 2, N)],
    ids=["another constant", "a constant that varies", "sizes that are one number for its maker"],
)
def test_a_pattern_that_asks_for_more_has_none(sizes: tuple[Any, ...]) -> None:
    assert LAYOUT.brief_pattern(Pattern.of((N,), sizes, (0,))) is None


def test_a_variable_that_no_number_gives_has_none() -> None:
    layout = replace(LAYOUT, places=((2,), (3,), (4,)), fixed=((1, 64), (0, 7)))
    assert layout.brief_pattern(Pattern.of((N,), (7, 64, N, N * 2, N), (0,))) is None
