"""The shortest way through compiled functions: when it is taken, and that it does what the general way does."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.core.compile import direct_call as direct_calls
from weft.core.compile.direct_call import MISS
from weft.core.execute import ownership
from weft.core.execute.routes import tensor_route

needs_route = pytest.mark.skipif(tensor_route() is None, reason="this interpreter has no routes")


def arr(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ten(*shape: int, seed: int = 0, **options: Any) -> weft.Tensor:
    return weft.tensor(arr(*shape, seed=seed), **options)


class Counted:
    """A function that counts how often it is run by Python, and its compiled form."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.runs, self.fn = 0, fn
        self.compiled = weft.compile(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.runs += 1
        return self.fn(*args, **kwargs)


@contextmanager
def another_thread() -> Iterator[None]:
    """Within the block, another thread waits."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_the_direct_way_is_taken_only_where_everything_is_as_at_the_trace() -> None:
    """A function of tensors with one result is called by source text of its own; what differs falls back."""
    scale = ten(4)
    f = Counted(lambda a, b: a * scale + b)
    a, b = ten(3, 4), ten(3, 4, seed=1)
    want = a.numpy() * scale.numpy() + b.numpy()
    f.compiled(a, b)
    direct = f.compiled._direct
    assert direct is not None

    def check(got: Any, expected: Any = want) -> None:
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)

    check(direct((a, b)))
    scale.copy_(scale * 2)  # captured: read anew
    want = a.numpy() * scale.numpy() + b.numpy()
    check(direct((a, b)), want)
    lazy = a + 0.0 * b
    others = [
        (a,), (a, b, b), (a, 1.0), (a, ten(4)), (a, b.double()), (a, ten(3, 4, requires_grad=True)), (lazy, b),
        (weft.nn.Parameter(a), b),
    ]  # fmt: skip
    assert all(direct(args) is MISS for args in others)
    check(f.compiled(lazy, b), want)
    check(f.compiled(a=a, b=b), want)
    check(f.compiled(a, b.double()), want)
    check(f.compiled(a, b), want)
    assert f.compiled._direct is direct
    with weft.no_grad():
        assert direct((a, b)) is MISS
        check(f.compiled(a, b), want)
    with weft.device("dummy"):
        assert direct((a, b)) is MISS
    check(f.compiled(a, b), want)
    outer = weft.compile(lambda a: f.compiled(a, b) * 2)  # within a trace nothing is computed
    check(outer(a), 2 * want)
    b.copy_(b + 1)
    check(outer(a), 2 * (want + 1))
    large, add = ten(1 << 20), weft.compile(lambda x: x + 1, dynamic=False)
    add(large)
    assert add._direct is not None
    with weft.memory_limit(0), pytest.raises(weft.MemoryPlanError, match="results"):
        add(large)


def test_no_direct_way_for_random_numbers_and_for_what_is_given_back_only() -> None:
    x = ten(4)
    for fn in (lambda x: weft.rand(4) + x, lambda x: (x.detach(), x + 1)):
        compiled = weft.compile(fn)
        for _ in range(3):
            compiled(x)
        assert compiled._direct is None


@needs_route
@pytest.mark.parametrize("threads", [1, 2])
def test_results_and_state_are_as_in_the_general_way(threads: int) -> None:
    x, y = ten(4), ten(4, seed=1)

    def states() -> list[weft.Tensor]:
        return [weft.full((4,), float(k)).realize() for k in range(3)]

    def nothing(s: list[weft.Tensor], x: weft.Tensor, y: weft.Tensor) -> None:
        s[0].add_(x)

    def several(s: list[weft.Tensor], x: weft.Tensor, y: weft.Tensor) -> Any:
        s[0].add_(x)
        s[1].mul_(y)
        return s[0], [x + y, (s[2] - 1, None)], s[1].sum()

    def swapped(s: list[weft.Tensor], x: weft.Tensor, y: weft.Tensor) -> Any:
        s[0].copy_(s[1] + x)
        s[1].copy_(s[0] * 2)
        return {"a": s[0] + 1, "b": (x, 3)}

    def of_an_argument(s: list[weft.Tensor], x: weft.Tensor, y: weft.Tensor) -> Any:
        s[2].sub_(x)
        return s[2]

    for fn in (nothing, several, swapped, of_an_argument):
        direct, general, eager = states(), states(), states()

        def captured(a: Any, b: Any, fn: Any = fn, s: Any = direct) -> Any:
            return fn(s, a, b)

        def other(a: Any, b: Any, fn: Any = fn, s: Any = general) -> Any:
            return fn(s, a, b)

        f, g = weft.compile(captured), weft.compile(other)
        with another_thread() if threads > 1 else weft.enable_grad():
            for k in range(5):
                found = f(x, y)
                assert f._recent is not None and f._recent.shortest is not None, fn.__name__
                if k:
                    assert g._recent is not None
                    g._recent.shortest = g._direct = None
                expected, wanted = g(x, y), fn(eager, x, y)
                _same(found, expected)
                _same(found, wanted)
                for a, b, c in zip(direct, general, eager, strict=True):
                    _same(a, b)
                    _same(a, c)


def _same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, weft.Tensor):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)
    elif isinstance(a, (tuple, list)):
        for x, y in zip(a, b, strict=True):
            _same(x, y)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for k in a:
            _same(a[k], b[k])
    else:
        assert a == b


def _counter() -> tuple[weft.Tensor, Any]:
    """A tensor, and a compiled function that adds one to it."""
    s = weft.zeros(4).realize()

    def add() -> None:
        s.add_(1)

    f = weft.compile(add)
    f()
    return s, f


@needs_route
@pytest.mark.parametrize("threads", [1, 2])
def test_state_stays_in_its_memory_where_nobody_else_sees_it(threads: int) -> None:
    s, f = _counter()
    with another_thread() if threads > 1 else weft.enable_grad():
        memory = id(s.value.node.storage.memory)
        assert f._direct(()) is None and id(s.value.node.storage.memory) == memory
        looks: list[Callable[[], Any]] = [
            lambda: s.value, lambda: s.value.node, lambda: s.value.node.storage,
            lambda: s.value.node.storage.memory, lambda: s + 1,
        ]  # fmt: skip
        for look in looks:
            seen = look()
            assert f._direct(()) is MISS
            before = s.tolist()
            f()
            assert s.tolist() == [before[0] + 1] * 4
            assert id(s.value.node.storage.memory) != memory
            memory = id(s.value.node.storage.memory)
            del seen
            assert f._direct(()) is None


@needs_route
def test_an_argument_stays_in_its_memory_too() -> None:
    f = weft.compile(lambda x: x.add_(1))
    x, memories = ten(4), set[int]()
    before = x.numpy().copy()
    for k in range(4):
        assert f(x) is x
        memories.add(id(x.value.node.storage.memory))
        if k:
            assert f._direct((x,)) is x
    np.testing.assert_allclose(x.numpy(), before + 7)
    assert len(memories) == 1 and x._version >= 7
    held = x.value.node.storage
    assert f._direct((x,)) is MISS and f(x) is x
    np.testing.assert_allclose(held.numpy(), before + 7)
    np.testing.assert_allclose(x.numpy(), before + 8)


@needs_route
def test_values_kept_of_what_is_written_are_computed_anew() -> None:
    s, f = _counter()
    g = weft.compile(lambda x: x * (s.exp() + s.cos()).softmax(-1))
    x = ten(4)
    for _ in range(4):
        expected = x.numpy() * (s.exp() + s.cos()).softmax(-1).numpy()
        np.testing.assert_allclose(g(x).numpy(), expected, rtol=1e-5)
        f()


@needs_route
def test_views_see_what_is_written() -> None:
    s, f = _counter()
    assert f._direct(()) is None
    row = s.reshape(2, 2)[0]
    row.realize()
    f()
    assert row.tolist() == s.tolist()[:2] == [3.0, 3.0]
    del row
    gc.collect()
    for _ in range(3):
        f()
    assert s.tolist() == [6.0] * 4


@needs_route
def test_integers_written_in_place_are_no_longer_known() -> None:
    index, x = weft.tensor([0, 1]), weft.tensor([10.0, 20.0, 30.0])
    step = weft.compile(lambda: index.add_(1))
    step()
    assert step._direct(()) is index and index.tolist() == [2, 3]
    with pytest.raises(IndexError):
        x[index]
    index.sub_(2).realize()
    assert x[index].tolist() == [10.0, 20.0]
    step()
    assert x[index].tolist() == [20.0, 30.0]


@needs_route
@pytest.mark.usefixtures("no_other_thread")
def test_an_interrupt_after_the_run_leaves_the_whole_step() -> None:
    p, s = nn.Parameter(ten(3)), weft.zeros(3).realize()

    def step(x: weft.Tensor) -> weft.Tensor:
        p.grad = None
        (p * x).sum().backward()
        with weft.no_grad():
            s.add_(x)
            p.sub_(s * 0.5)
        return s.sum()

    f, x = weft.compile(step), ten(3, seed=1)
    for _ in range(200):  # numbers get a plan of their own
        f(x)
    direct = f._direct
    assert direct is not None
    before = s.numpy().copy(), p.detach().numpy().copy()
    env, stops = direct.__globals__, [True]  # type: ignore[attr-defined]
    make = next(n for n in env if n.startswith("make"))
    made = env[make]

    def interrupted(memory: Any) -> Any:
        if stops:
            stops.clear()
            raise KeyboardInterrupt
        return made(memory)

    env[make] = interrupted
    p.grad = None
    with pytest.raises(KeyboardInterrupt):
        f(x)
    now = before[0] + x.numpy()
    np.testing.assert_allclose(s.numpy(), now, rtol=1e-5)
    np.testing.assert_allclose(p.detach().numpy(), before[1] - 0.5 * now, rtol=1e-4)
    assert p.grad is not None
    np.testing.assert_allclose(p.grad.numpy(), x.numpy(), rtol=1e-6)
    f(x)
    np.testing.assert_allclose(s.numpy(), now + x.numpy(), rtol=1e-5)


@needs_route
def test_steps_of_threads_are_one_after_the_other() -> None:
    s, f = _counter()
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        for _ in range(500):
            f()

    workers = [threading.Thread(target=work) for _ in range(4)]
    for w in workers:
        w.start()
    seen: list[list[float]] = []
    while any(w.is_alive() for w in workers):
        seen.append((s * 1).tolist())
    for w in workers:
        w.join()
    assert s.tolist() == [2001.0] * 4
    assert all(len(set(values)) == 1 for values in seen) and seen == sorted(seen)


@needs_route
def test_a_step_waits_for_another_that_has_its_tensors() -> None:
    s, f = _counter()
    with ownership.exclusive(frozenset([id(s)])):
        assert f._direct(()) is MISS
    with ownership.exclusive(frozenset([id(f)])):
        assert f._direct(()) is None


@needs_route
def test_long_runs_let_other_threads_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_calls, "HELD_NS", 0.0)
    monkeypatch.setattr(direct_calls, "TAKEN_NS", 0.0)
    s, f = _counter()
    monkeypatch.setattr(ownership, "sole_thread", lambda: True)
    alone, g = _counter()
    with another_thread():
        assert f._direct(()) is MISS
        f()
        assert g._direct(()) is None
    assert s.tolist() == alone.tolist() == [2.0] * 4


@needs_route
def test_gradients_are_read_and_set() -> None:
    p, q = nn.Parameter(ten(3)), nn.Parameter(ten(3, seed=2))

    def step(x: weft.Tensor) -> weft.Tensor:
        loss = (p * x * q).sum()
        loss.backward()
        return loss.detach()

    f, x = weft.compile(step), ten(3, seed=1)
    for k in range(1, 6):
        f(x)
        assert p.grad is not None and q.grad is not None
        np.testing.assert_allclose(p.grad.numpy(), k * (x * q).detach().numpy(), rtol=1e-5)
        np.testing.assert_allclose(q.grad.numpy(), k * (x * p).detach().numpy(), rtol=1e-5)
    assert f._direct is not None
    p.grad = None
    assert f._direct((x,)) is MISS
    f(x)
    np.testing.assert_allclose(p.grad.numpy(), (x * q).detach().numpy(), rtol=1e-5)  # type: ignore[union-attr]


def test_arguments_in_containers_take_the_shortest_way_too() -> None:
    f = weft.compile(lambda given, k: given["x"] * k + given["y"])
    given = {"x": ten(3), "y": ten(3, seed=1)}
    for _ in range(3):
        found = f(given, k=2)
        np.testing.assert_allclose(found.numpy(), (given["x"] * 2 + given["y"]).numpy(), rtol=1e-6)
    assert f._direct is None
    pair = weft.compile(lambda *tensors: tensors[0][0] + 1 if len(tensors) == 1 else tensors[0] + 2)
    a, b = ten(3), ten(3, seed=1)
    for _ in range(3):  # the same tensors, in another structure
        np.testing.assert_allclose(pair([a, b]).numpy(), a.numpy() + 1, rtol=1e-6)
        np.testing.assert_allclose(pair(a, b).numpy(), a.numpy() + 2, rtol=1e-6)


def test_other_devices_have_a_direct_way_without_state() -> None:
    with weft.device("dummy"):
        w, s = ten(3), weft.zeros(3).realize()
        f, g = weft.compile(lambda x: x * w), weft.compile(lambda x: s.add_(x))
        x = ten(3, seed=1)
        for k in range(1, 4):
            np.testing.assert_allclose(f(x).numpy(), arr(3) * arr(3, seed=1), rtol=1e-6)
            np.testing.assert_allclose(g(x).numpy(), k * arr(3, seed=1), rtol=1e-6)
        assert g._direct is None


@needs_route
def test_steps_share_the_workspace_with_what_other_threads_compute() -> None:
    x, y = ten(4, 8), ten(4, 1, seed=1)

    def step_of(net: nn.Module) -> Any:
        f = weft.compile(lambda: ((net(x) - y) ** 2).mean().backward())
        f()
        return f

    nets = [
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
        for _ in range(3)
    ]
    steps = [step_of(net) for net in nets]
    first = [[p.grad.numpy().copy() for p in net.parameters()] for net in nets]  # type: ignore[union-attr]
    workers = [threading.Thread(target=lambda f=f: [f() for _ in range(60)]) for f in steps]
    for w in workers:
        w.start()
    big = ten(64, 64)
    for _ in range(20):
        found = ((big @ big).softmax(-1) @ big).softmax(-1).sum(-1)
        np.testing.assert_allclose(found.numpy(), np.ones(64), rtol=1e-5)
    for w in workers:
        w.join()
    for net, f, grads in zip(nets, steps, first, strict=True):
        assert f._recent._plan.executable.workspace is not None and f._direct is not None
        for p, g in zip(net.parameters(), grads, strict=True):
            assert p.grad is not None
            np.testing.assert_allclose(p.grad.numpy(), 61 * g, rtol=1e-4, atol=1e-5)
