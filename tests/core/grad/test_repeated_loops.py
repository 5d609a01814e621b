"""Loops that repeat are built from what was recorded: as they would be made, and nothing else is kept of them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
from weft import Tensor
from weft.core.grad import loops, repeated_loops
from weft.ir.errors import IRError
from weft.testing import reference

Step = Callable[[Any, Any], tuple[Any, Any]]
LENGTHS = (5, 9, 6, 21, 9, 12, 1, 40, 3, 4, 2)


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("_known", "_seen"):
        monkeypatch.setattr(repeated_loops, name, {})
    yield


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of steps of each loop that was made, where forms are not verified."""
    monkeypatch.setattr(repeated_loops.settings, "verify", lambda: False)
    found: list[int] = []
    results = loops._Trace.results

    def counted(trace: Any) -> Any:
        found.append(trace.length)
        return results(trace)

    monkeypatch.setattr(loops._Trace, "results", counted)
    return found


def _leaf(rng: np.random.Generator, *shape: int) -> Tensor:
    return weft.tensor(rng.standard_normal(shape) * 0.5, requires_grad=True)


W, V = (_leaf(np.random.default_rng(1), *s) for s in ((4, 4), (4,)))


def _cell(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    new = (c @ W + x).sigmoid() * V.tanh()
    return new, new * x


def _loop(step: Step, xs: Tensor, init: Any = None, **how: Any) -> list[Tensor]:
    """The results of a scan, and the gradients of some number by all that is given."""
    init = weft.zeros(3, 4, dtype=weft.float64) if init is None else init
    end, ys = weft.scan(step, init, xs, **how)
    loss = (end * end).sum() + ys.sin().sum()
    return [end, ys, *weft.autograd.grad(loss, [xs, W, V], allow_unused=True, materialize_grads=True)]


def _steps(step: Step, xs: Tensor, init: Any = None, reverse: bool = False) -> list[Tensor]:
    c = weft.zeros(3, 4, dtype=weft.float64) if init is None else init
    rows: list[Tensor] = []
    for x in reversed(list(xs)) if reverse else xs:
        c, y = step(c, x)
        rows.append(y)
    ys = weft.stack(rows[::-1] if reverse else rows)
    loss = (c * c).sum() + ys.sin().sum()
    return [c, ys, *weft.autograd.grad(loss, [xs, W, V], allow_unused=True, materialize_grads=True)]


def _agree(step: Step, **how: Any) -> None:
    """At each length in turn, a loop does what its steps do; numbers differ from one to the next."""
    rng = np.random.default_rng(2)
    for n in LENGTHS:
        xs = _leaf(rng, n, 3, 4)
        got = reference.evaluate([t.value.node for t in _loop(step, xs, **how)])
        want = reference.evaluate([t.value.node for t in _steps(step, xs, **how)])
        for k, (a, b) in enumerate(zip(got, want, strict=True)):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12, err_msg=f"{n} steps, {k}")


STEPS: dict[str, Step] = {
    "a cell": _cell,
    "a transposed weight": lambda c, x: ((c @ W.T + x).tanh(), c),
    "rows of a weight": lambda c, x: (c * V[1:3].repeat(2) + x, x @ W[:, :2]),
    "one weight twice": lambda c, x: ((c @ W + x @ W).tanh(), c * V),
    "a constant from outside": lambda c, x: (c * weft.full((4,), 0.5, dtype=weft.float64) + x, c),
    "what was computed outside": lambda c, x, w=W * 2: (c @ w + x, (x * w[0]).sum(-1)),
    "a weight times one": lambda c, x: ((c @ (W * 1) + x).tanh(), c),
    "a detached weight": lambda c, x: ((c @ W.detach() + x * V).tanh(), c),
    "a detached carry": lambda c, x: (c.detach() * V + x, (c * V).sum()),
    "no carry": lambda c, x: (c, x @ W),
    "a weight as it is": lambda c, x: (V.expand(3, 4), c + x),
    "softmax and norms": lambda c, x: (weft.nn.functional.layer_norm(c + x, (4,), V), (c @ W).softmax(-1)),
    "extrema": lambda c, x: (weft.maximum(c, x @ W), c.amax(-1)),
    "a loop inside": lambda c, x: (weft.scan(lambda a, b: (a * V + b, a), x[0], c)[0].expand(3, 4) * 0.3, c),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_a_loop_does_what_its_steps_do(name: str) -> None:
    _agree(STEPS[name])


def test_backwards_and_from_values() -> None:
    _agree(_cell, reverse=True)
    _agree(_cell, init=_leaf(np.random.default_rng(3), 3, 4).detach())


def test_further_lengths_are_built(made: list[int]) -> None:
    rng = np.random.default_rng(4)
    for n in LENGTHS[:4]:
        _loop(_cell, _leaf(rng, n, 3, 4))
    made.clear()
    for n in (12, 17, 40, 9):
        _loop(_cell, _leaf(rng, n, 3, 4))
    assert made == []
    _loop(_cell, _leaf(rng, 1, 3, 4))  # of which rules make another graph
    assert 1 in made


def test_without_gradients_too(made: list[int]) -> None:
    with weft.no_grad():
        for n in (*LENGTHS[:4], 12, 17):
            if n == 12:
                made.clear()
            end, _ = weft.scan(
                _cell, weft.zeros(3, 4, dtype=weft.float64), weft.ones(n, 3, 4, dtype=weft.float64)
            )
            assert not end.requires_grad
    assert made == []


@pytest.mark.parametrize(
    "other",
    [
        lambda c, x: ((c @ W * 2.0 + x).tanh(), c),
        lambda c, x: ((c @ W.T + x).tanh(), c),
        lambda c, x: ((c @ W.detach() + x).tanh(), c),
        lambda c, x: ((c @ W + x).tanh(), c * V),
        lambda c, x: ((c @ W + x).tanh(), x),
        lambda c, x: ((x @ W + c).tanh(), c),
        lambda c, x: ((c @ W + x).tanh(), c.detach()),
    ],
)
def test_another_step_is_another_loop(other: Step) -> None:
    """What two steps have in common does not make them one."""
    for n in (5, 9, 6):
        _loop(lambda c, x: ((c @ W + x).tanh(), c), _leaf(np.random.default_rng(n), n, 3, 4))
    before = len(repeated_loops._known)
    _agree(other)
    assert len(repeated_loops._known) > before


def test_what_is_given_makes_another_loop() -> None:
    """Who needs a gradient, dtypes, and whether a result has one."""
    xs = _leaf(np.random.default_rng(5), 5, 3, 4)
    variants: list[Callable[[], object]] = [
        lambda: weft.scan(_cell, weft.zeros(3, 4, dtype=weft.float64), xs),
        lambda: weft.scan(_cell, weft.zeros(3, 4, dtype=weft.float64), xs.detach()),
        lambda: weft.scan(_cell, weft.zeros(3, 4, dtype=weft.float64, requires_grad=True), xs),
        lambda: weft.scan(_cell, weft.zeros(3, 4, dtype=weft.float64), xs, reverse=True),
        lambda: weft.scan(lambda c, x: (c + x, x), weft.zeros(3, 4), weft.ones(5, 3, 4)),
        lambda: weft.scan(lambda c, x: (c + x, x), weft.zeros(3, 4).int(), weft.ones(5, 3, 4).int()),
        lambda: weft.scan(lambda c, x: (x, c), weft.zeros(3, 4), weft.ones(5, 3, 4)),
        lambda: weft.scan(lambda c, x: (x, c), weft.zeros(3, 4).double(), weft.ones(5, 3, 4).double()),
    ]
    for k, call in enumerate(variants):
        call(), call()
        assert len(repeated_loops._known) == k + 1


def test_gradients_of_some_results() -> None:
    rng = np.random.default_rng(6)
    for n in (5, 7, 9, 11):
        xs = _leaf(rng, n, 3, 4)
        for pick in (
            lambda end, ys: end.sum(),
            lambda end, ys: ys.sum(),
            lambda end, ys: (end * ys[-1]).sum(),
        ):
            found: list[Any] = []
            for end, ys in (
                weft.scan(_cell, weft.zeros(3, 4, dtype=weft.float64), xs),
                _steps(_cell, xs)[:2],
            ):
                found.append(weft.autograd.grad(pick(end, ys), [xs, W, V]))
            for a, b in zip(*found, strict=True):
                np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9)


def test_second_derivatives() -> None:
    for n in (5, 7, 9, 11):
        xs = _leaf(np.random.default_rng(n), n, 3, 4)
        found: list[Any] = []
        for end, _ in (weft.scan(_cell, weft.zeros(3, 4, dtype=weft.float64), xs), _steps(_cell, xs)[:2]):
            (g,) = weft.autograd.grad((end**2).sum(), [W], create_graph=True)
            found.append(weft.autograd.grad(g.sin().sum(), [xs, W]))
        for a, b in zip(*found, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-8, atol=1e-12)


class _Double(weft.autograd.Function):
    """Twice its argument, with a gradient of a user's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * _slope[0]


_slope = [2.0]


def test_code_of_a_user_runs_each_time() -> None:
    """A gradient, and a hook on what a step makes."""

    def step(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return _Double.apply(c) * V + x, c

    found: list[Tensor] = []
    for slope in (2.0, 2.0, 2.0, 3.0):
        _slope[0] = slope
        found.append(_loop(step, _leaf(np.random.default_rng(7), 5, 3, 4))[2])
    _slope[0] = 2.0
    assert repeated_loops._known == {}
    assert not np.allclose(found[3].numpy(), found[2].numpy())
    factor = [1.0]

    def hooked(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        new = c * V + x
        new.register_hook(lambda g: g * factor[0])
        return new, new

    for factor[0] in (1.0, 1.0, 1.0, 2.0):
        found.append(_loop(hooked, _leaf(np.random.default_rng(8), 5, 3, 4))[2])
    assert repeated_loops._known == {}
    assert not np.allclose(found[-1].numpy(), found[-2].numpy())


def test_rows_of_a_longer_tensor_are_read_where_they_are(made: list[int]) -> None:
    """As carries' histories are; a loop over them is made each time."""
    long = _leaf(np.random.default_rng(9), 50, 3, 4)
    for n in (5, 9, 6, 21, 8):
        made.clear()
        weft.scan(_cell, weft.zeros(3, 4, dtype=weft.float64), long[2 : n + 2])
        assert made == [n]


def test_what_is_built_is_compared_where_forms_are_verified() -> None:
    def run(factor: float, n: int) -> None:
        weft.scan(lambda c, x: (c * factor + x, c), weft.zeros(3, 4), weft.ones(n, 3, 4))

    for n in (5, 9, 6, 21):
        run(2.0, n), run(3.0, n)
    twice, thrice = repeated_loops._known.values()
    thrice.results = twice.results
    with pytest.raises(IRError, match="not what is recorded"):
        run(3.0, 8)


def test_recordings_keep_no_values(made: list[int]) -> None:
    kept: list[weakref.ref[Any]] = []
    for n in (5, 9, 6, 21):
        w = _leaf(np.random.default_rng(n), 4, 4)
        xs = _leaf(np.random.default_rng(n), n, 3, 4)
        end, _ = weft.scan(lambda c, x, w=w: ((c @ w + x).tanh(), c), weft.zeros(3, 4).double(), xs)
        end.sum().backward()
        assert w.value.node.storage is not None
        kept.append(weakref.ref(w.value.node.storage.memory))
    del w, xs, end, _  # whose gradients are pending
    gc.collect()
    assert [r() for r in kept] == [None] * 4 and len(repeated_loops._known) == 1


def test_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_loops, "KEPT", 3)
    monkeypatch.setattr(repeated_loops, "SEEN", 4)
    monkeypatch.setattr(repeated_loops, "LENGTHS_KEPT", 2)
    for k in range(8):
        for n in (2, 3, 1, 2):
            weft.scan(lambda c, x, k=k: (c * float(k + 2) + x, None), weft.zeros(3), weft.ones(n, 3))
    assert len(repeated_loops._known) == 3 and len(repeated_loops._seen) <= 4
    assert all(len(r.results.by_sizes) <= 2 for r in repeated_loops._known.values())


def test_a_gradient_that_is_a_constant() -> None:
    """A loop reads it from memory."""
    for n in (5, 7, 9, 11):
        xs = _leaf(np.random.default_rng(n), n, 3, 4)
        _, ys = weft.scan(lambda c, x: (c, x * V), weft.zeros(3), xs)
        found = weft.autograd.grad(ys, [xs, V], weft.ones_like(ys))
        want = np.broadcast_to(V.detach().numpy(), (n, 3, 4)), xs.detach().numpy().sum((0, 1))
        for a, b in zip(found, want, strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-9)
