"""Old weights that something which is not computed reads are let go of."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.backends.cpu.runtime import open_runtime
from weft.core.execute import holding, run

WIDTH = 128
WEIGHTS = 2 * 4 * WIDTH * WIDTH
STEPS = 40


@pytest.fixture(autouse=True)
def little_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PINNED_BYTES", 4 * WEIGHTS)
    monkeypatch.setattr(holding.mine, "carried", set())
    monkeypatch.setattr(holding.mine, "like_carried", {})


def guesses(kept: list[Any], y: Any) -> None:
    kept.append(y.argmax(1))


def results(kept: list[Any], y: Any) -> None:
    kept.append(y.detach().exp())


def hits(kept: list[Any], y: Any) -> None:
    kept[:] = [(kept[0] if kept else 0) + (y.argmax(1) > WIDTH // 2).sum()]


def trained(keep: Callable[..., None], read: bool = False) -> tuple[list[Any], list[int]]:
    """What a loop keeps, and the memory that is used after each step."""
    weft.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh(), nn.Linear(WIDTH, WIDTH, bias=False))
    optimizer, x = weft.optim.SGD(net.parameters(), lr=0.5), weft.randn(8, WIDTH).realize()
    kept, use = list[Any](), list[int]()
    for _ in range(STEPS):
        optimizer.zero_grad()
        y = net(x)
        keep(kept, y)
        if read:
            kept[-1].numpy()
        y.square().mean().backward()
        optimizer.step()
        gc.collect()
        use.append(open_runtime().allocator.use().live)
    return [np.array(t.numpy()) for t in kept], use


@pytest.mark.usefixtures("no_other_thread")
@pytest.mark.parametrize("keep", [guesses, results, hits])
def test_what_waits_keeps_a_few_steps_weights(keep: Callable[..., None]) -> None:
    found, use = trained(keep)
    assert max(use) - use[0] < 14 * WEIGHTS
    assert use[-1] - use[STEPS // 2] < 2 * WEIGHTS, "along with each step, from some step on"
    expected, _ = trained(keep, read=True)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


def test_what_keeps_little_waits() -> None:
    weft.manual_seed(0)
    net = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
    optimizer, x, kept = weft.optim.SGD(net.parameters(), lr=0.5), weft.randn(8, WIDTH).realize(), list[Any]()

    def step() -> Any:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        return net.weight.detach().sum()

    for _ in range(4):
        kept.append(net(x).argmax(1))
        step()
    assert all(t.value.node.storage is None for t in kept)
    weft.compile(step)().item()  # a look is due while it is traced
    assert all(t.value.node.storage is None for t in kept)


@pytest.mark.usefixtures("no_other_thread")
def test_what_only_the_last_step_left_is_not_computed() -> None:
    last: list[Any] = []

    def keep(kept: list[Any], y: Any) -> None:
        last[:] = [y.argmax(1)]

    _, use = trained(keep)
    assert last[0].value.node.storage is None
    assert max(use[2:]) - min(use[2:]) < 2 * WEIGHTS


def test_old_weights_that_the_program_keeps_stay_what_they_were() -> None:
    snapshots: list[Any] = []
    waiting = [(weft.ones(4) + 1).relu()]
    net = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
    optimizer = weft.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(12):
        optimizer.zero_grad()
        net(weft.ones(2, WIDTH)).sum().backward()
        snapshots.append(net.weight.detach().clone())
        optimizer.step()
    differences = [(a - b).abs().max().item() for a, b in itertools.pairwise(snapshots)]
    np.testing.assert_allclose(differences, 1.0, rtol=1e-3)
    np.testing.assert_array_equal(waiting[0].numpy(), np.full(4, 2, np.float32))


def test_optimizers_are_copied_and_saved_as_before() -> None:
    p = nn.Parameter(weft.ones(4))
    optimizer = weft.optim.SGD([p], lr=0.5, momentum=0.9)
    for _ in range(3):
        p.grad = weft.ones(4)
        optimizer.step()
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        (q,) = other.param_groups[0]["params"]
        q.grad = weft.ones(4)
        other.step()
    p.grad = weft.ones(4)
    optimizer.step()
    np.testing.assert_allclose(q.detach().numpy(), p.detach().numpy())
