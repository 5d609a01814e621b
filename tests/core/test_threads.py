"""Several Python threads at once: computing the same lazy tensors, and building, compiling and training their own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import weft

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
