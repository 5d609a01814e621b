"""Several Python threads at once: computing the same lazy tensors, and building, compiling and training their own."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends import registry
from weft.core.execute.ownership import Taken, take
from weft.ir import garbage, graph
from weft.scheduler import realize, shortcuts
from weft.scheduler.signature import signature

THREADS = 4


@pytest.fixture
def busy_switching() -> Iterator[None]:
    """Threads change places as often as the interpreter lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def _own_work(seed: int) -> None:
    """Graphs of shapes that no other thread has: a gradient, state rebound by a compiled function, random numbers."""
    rng = np.random.default_rng(seed)
    for n in (seed + 3, seed + 11):
        x = rng.standard_normal((n, 7)).astype(np.float32)
        w = weft.tensor(rng.standard_normal((7, 5)).astype(np.float32), requires_grad=True)
        hidden = np.tanh(x @ w.detach().numpy())
        ((weft.tensor(x) @ w).tanh() ** 2).sum().backward()
        assert w.grad is not None
        np.testing.assert_allclose(w.grad.numpy(), x.T @ (2 * hidden * (1 - hidden**2)), rtol=2e-3, atol=1e-4)
        total = weft.tensor(np.zeros(7, np.float32))

        @weft.compile
        def step(a: weft.Tensor, total: weft.Tensor = total) -> weft.Tensor:
            total.add_(a.sum(0))
            return a.softmax(-1)

        e = np.exp(x)
        for _ in range(3):
            np.testing.assert_allclose(
                step(weft.tensor(x)).numpy(), e / e.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6
            )
        np.testing.assert_allclose(total.numpy(), 3 * x.sum(0), rtol=1e-3, atol=1e-4)
        assert weft.randn(n).numpy().shape == (n,)


def test_threads_share_lazy_tensors_and_do_work_of_their_own(busy_switching: None) -> None:
    data = np.arange(64, dtype=np.float32).reshape(8, 8)
    x = weft.tensor(data)
    shared = [(x * k + 1).sum(0) for k in range(2, 20)]
    start = threading.Barrier(THREADS)

    def work(seed: int) -> None:
        start.wait()
        for k, t in enumerate(shared):
            np.testing.assert_allclose(t.numpy(), (data * (k + 2) + 1).sum(0), rtol=1e-5)
        _own_work(seed)

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work, 20 * k) for k in range(THREADS)]:
            done.result()


def test_a_value_stored_while_another_thread_signs_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The "other thread" computes what is asked for between the look at its storage and the walk of its graph."""
    shortcuts.forget()
    signature, first = realize.signature, list[int]()
    for y in (weft.tensor([0.0, 1.0, 2.0]) * 2 + 1, weft.arange(3.0) * 2 + 1):
        node = y.value.node

        def slow(todo: Any, held: Any = (), node: Any = node) -> Any:
            if todo[0] is node and not first:
                first.append(1)
                realize.realize([node])
            return signature(todo, held)

        first.clear()
        monkeypatch.setattr(realize, "signature", slow)
        assert (y.tolist(), len(first)) == ([1.0, 3.0, 5.0], 1)


def test_a_value_stored_while_another_thread_looks_at_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    look, first = shortcuts.look, list[int]()
    for k in range(4):
        x = weft.tensor([0.0, 1.0, 2.0])
        inner = x * 2
        y = inner + 1
        node, early = y.value.node, (inner if k % 2 else y).value.node

        def slow(n: Any, node: Any = node, early: Any = early) -> Any:
            if n is node and not first:
                first.append(1)
                realize.realize([early])
            return look(n)

        first.clear()
        monkeypatch.setattr(shortcuts, "look", slow)
        assert (y.tolist(), len(first)) == ([1.0, 3.0, 5.0], 1)


def test_values_are_stored_once() -> None:
    y = weft.tensor([1.0, 2.0]) * 3
    y.realize()
    stored = y.value.node.storage
    again = weft.tensor([1.0, 2.0]) * 3
    sig = signature([again.value.node])
    realize.realize([again.value.node])
    kept = again.value.node.storage
    realize.run([again.value.node], sig, registry.open_device("cpu:0"))
    assert again.value.node.storage is kept is not None
    assert stored is y.value.node.storage


def test_constants_keep_no_value_that_others_could_lose() -> None:
    c = graph.const(2.5, weft.float32, (7,))
    x, y = weft.full((7,), 2.5), weft.full((7,), 2.5) * 2
    assert x.value.node is c
    assert (x.tolist(), y.tolist()) == ([2.5] * 7, [5.0] * 7)
    assert c.storage is None
    assert x.value.node is not c


def test_indices_that_a_compiled_step_writes_over_are_looked_at_again() -> None:
    index, x = weft.tensor([0, 1]), weft.tensor([10.0, 20.0, 30.0])
    assert x[index].tolist() == [10.0, 20.0]

    @weft.compile
    def step() -> weft.Tensor:
        index.sub_(1)
        return index.sum()

    step()
    step()
    assert x[index].tolist() == [20.0, 30.0]
    step()
    step()
    with pytest.raises(IndexError, match="-4"):
        x[index]


def test_defaults_are_each_threads_own_after_the_main_threads() -> None:
    def of_the_thread() -> tuple[object, ...]:
        before = (weft.get_default_dtype(), str(weft.get_default_device()))
        weft.set_default_dtype(weft.float16)
        weft.set_default_device("dummy:0")
        with weft.device("dummy:1"):
            inside = str(weft.zeros(1).device)
        return (*before, weft.get_default_dtype(), str(weft.zeros(1).device), inside)

    weft.set_default_dtype(weft.float64)
    try:
        with ThreadPoolExecutor(1) as pool, weft.device("dummy:1"):
            assert pool.submit(of_the_thread).result() == (
                weft.float64, "cpu", weft.float16, "dummy:0", "dummy:1",
            )  # fmt: skip
        assert (weft.get_default_dtype(), str(weft.zeros(1).device)) == (weft.float64, "cpu")
    finally:
        weft.set_default_dtype(weft.float32)


def test_a_step_that_updates_in_place_is_seen_whole_or_not_at_all() -> None:
    """Who asks for memory that is being written over gets it when that is done."""
    state = weft.zeros(4)
    state.realize()
    mine: list[Taken] = []
    take([state], mine)
    (taken,) = mine
    seen: list[object] = []
    reader = threading.Thread(target=lambda: seen.append(state.tolist()))
    others: list[Taken] = []
    step = threading.Thread(target=lambda: take([state], others))
    reader.start()
    step.start()
    reader.join(0.05)
    assert not seen
    assert not others
    taken.give_back()
    step.join()
    for t in others:
        t.give_back()
    reader.join()
    assert seen == [[0.0] * 4]


def test_what_somebody_else_holds_is_not_written_over() -> None:
    held = weft.ones(2)
    held.realize()
    other = held.detach()
    taken: list[Taken] = []
    take([held], taken)
    assert not taken
    assert other.tolist() == held.tolist() == [1.0, 1.0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_finds_all_locks_free(busy_switching: None) -> None:
    weft.ones(2).sum().item()  # what is imported late is there
    stop = threading.Event()
    sizes = itertools.count(3)

    def busy() -> None:
        x = weft.ones(4, 4)
        while not stop.is_set():
            float((x + 1).sum())
            x.add_(0)
            weft.rand(3)
            float((weft.arange(float(next(sizes))) * 3).sum())  # most of the time is LLVM's

    threads = [threading.Thread(target=busy, daemon=True) for _ in range(3)]
    for t in threads:
        t.start()
    try:
        for k in range(8):
            pid = os.fork()
            if not pid:
                signal.alarm(30)
                x = weft.zeros(2)
                x.add_(1)
                right = float((weft.arange(5.0) * k).sum()) == 10 * k and x.tolist() == [1, 1]
                os._exit(0 if right and gc.isenabled() else 1)
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        stop.set()
        for t in threads:
            t.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_process_forked_while_another_thread_stops_the_collector_collects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped = threading.Event()

    def disable() -> None:
        gc.disable()
        stopped.set()
        time.sleep(0.05)

    def rest() -> None:
        with garbage.not_collected():
            pass

    monkeypatch.setattr(
        garbage, "gc", SimpleNamespace(disable=disable, enable=gc.enable, isenabled=gc.isenabled)
    )
    thread = threading.Thread(target=rest)
    thread.start()
    assert stopped.wait(10)
    pid = os.fork()
    if not pid:
        os._exit(not gc.isenabled())
    assert os.waitpid(pid, 0)[1] == 0
    thread.join()
    assert gc.isenabled()
