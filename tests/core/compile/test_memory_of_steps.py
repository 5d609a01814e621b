"""Memory of compiled training steps: each parameter, gradient and moment is there once, also while a step runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.backends.cpu.runtime import open_runtime

WIDTH, LAYERS = 256, 6
WEIGHT = 4 * WIDTH * WIDTH


class Trained:
    """A chain of linear layers with a compiled step; with `draws`, calls take the general way, else the shortest."""

    def __init__(self, draws: bool) -> None:
        weft.manual_seed(0)
        drop = [nn.Dropout(0.25)] if draws else []
        self.net = nn.Sequential(
            *[m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh(), *drop)]
        )
        self.optimizer = weft.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.x = weft.randn(8, WIDTH).realize()
        self.step: Callable[[], Any] = weft.compile(self.run)

    def run(self) -> Any:
        self.optimizer.zero_grad()
        loss = self.net(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss

    @property
    def weight(self) -> Any:
        return self.net[0].weight


def _same(t: Any) -> Any:
    return t


WAYS = pytest.mark.parametrize("draws", [False, True], ids=["shortest", "general"])


@WAYS
@pytest.mark.usefixtures("no_other_thread")
def test_a_step_takes_no_memory_for_new_weights_moments_or_gradients(draws: bool) -> None:
    trained, allocator = Trained(draws), open_runtime().allocator
    for _ in range(3):
        trained.step().item()
    allocator.reset_peak()
    before = allocator.use().peak
    trained.step().item()
    assert allocator.use().peak - before < WEIGHT


@WAYS
@pytest.mark.parametrize("holder", ["tensor", "pending", "array", "value"])
def test_a_gradient_that_somebody_else_has_stays_as_it_was(draws: bool, holder: str) -> None:
    trained = Trained(draws)
    for _ in range(3):
        trained.step().item()
    grad = trained.weight.grad
    expected = np.array(grad.numpy())
    held = {"tensor": _same, "pending": lambda t: t * 1, "array": np.asarray, "value": weft.Tensor.detach}[
        holder
    ](grad)
    del grad
    trained.step().item()
    found = held if isinstance(held, np.ndarray) else held.numpy()
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(trained.weight.grad.numpy(), expected)


@WAYS
def test_gradients_are_those_of_steps_that_are_not_compiled(draws: bool) -> None:
    compiled, plain = Trained(draws), Trained(draws)
    for _ in range(4):
        compiled.step().item()
    weft.manual_seed(0)
    for _ in range(4):
        plain.run().item()
    if draws:  # the generator has given numbers to both
        assert np.isfinite(compiled.weight.grad.numpy()).all()
        return
    for a, b in zip(compiled.net.parameters(), plain.net.parameters(), strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-4, atol=1e-9)


@WAYS
def test_beside_another_thread_gradients_get_memory_of_their_own(draws: bool) -> None:
    trained = Trained(draws)
    for _ in range(3):
        trained.step().item()
    over, read = threading.Event(), list[np.ndarray]()

    def reads() -> None:
        while not over.is_set():
            read.append(np.array(trained.weight.grad.numpy()))

    thread = threading.Thread(target=reads)
    thread.start()
    seen = [np.array(trained.weight.grad.numpy())]
    for _ in range(10):
        trained.step().item()
        seen.append(np.array(trained.weight.grad.numpy()))
    over.set()
    thread.join()
    assert read
    assert all(any(np.array_equal(r, s) for s in seen) for r in read)
