"""Memory of eager training steps: moments are updated where they are, unless somebody else sees them."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.backends.cpu.runtime import open_runtime
from weft.core.execute import holding, pending, realization

WIDTH, LAYERS = 256, 6
WEIGHT = 4 * WIDTH * WIDTH


class Trained:
    """A chain of linear layers, and Adam."""

    def __init__(self) -> None:
        weft.manual_seed(0)
        self.net = nn.Sequential(
            *[m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh())]
        )
        self.optimizer = weft.optim.Adam(self.net.parameters(), lr=1e-3)
        self.x = weft.randn(8, WIDTH).realize()

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.net(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @property
    def moment(self) -> Any:
        return self.optimizer.state[self.net[0].weight]["exp_avg"]

    def values(self) -> list[np.ndarray]:
        """Parameters and moments, in memory of their own."""
        state = self.optimizer.state
        found = [t for p in self.net.parameters() for t in (p, *state[p].values())]
        return [np.array(t.detach().numpy()) for t in found]


def address(t: Any) -> int:
    return t.value.node.storage.memory.address


@pytest.mark.usefixtures("no_other_thread")
def test_a_step_takes_no_memory_for_new_moments() -> None:
    trained, allocator = Trained(), open_runtime().allocator
    for _ in range(3):
        trained.step()
    trained.optimizer.zero_grad()  # its gradients were not computed, and hold what they are computed from
    before, moment = allocator.use().live, address(trained.moment)
    allocator.reset_peak()
    idle = allocator.use().peak - before
    trained.step()
    assert address(trained.moment) == moment
    assert allocator.use().peak - idle - before < (LAYERS + 1) * WEIGHT, "parameters only"


HOLDERS: dict[str, Callable[[Trained], Callable[[], Any]]] = {
    "pending": lambda t: (t.moment * 1).numpy,
    "pending view": lambda t: t.moment.reshape(-1).clone().reshape(WIDTH, WIDTH).numpy,
    "array": lambda t: lambda array=np.asarray(t.moment): array,
    "copy": lambda t: copy.deepcopy(t.optimizer.state_dict())["state"][0]["exp_avg"].numpy,
    "saved": lambda t: pickle.loads(pickle.dumps(t.moment)).numpy,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_moment_that_somebody_else_has_stays_as_it_was(holder: str) -> None:
    trained = Trained()
    for _ in range(3):
        trained.step()
    expected = np.array(trained.moment.numpy())
    found = HOLDERS[holder](trained)
    for _ in range(2):
        trained.step()
    np.testing.assert_array_equal(found(), expected)
    assert not np.array_equal(trained.moment.numpy(), expected)


def test_what_shares_elements_with_a_moment_sees_the_next_ones() -> None:
    trained = Trained()
    trained.step()
    shared, part = trained.optimizer.state_dict()["state"][0]["exp_avg"], trained.moment[3:5]
    for _ in range(2):
        trained.step()
        np.testing.assert_array_equal(shared.numpy(), trained.moment.numpy())
        np.testing.assert_array_equal(part.numpy(), trained.moment.numpy()[3:5])


def test_steps_beside_another_thread_are_the_same_to_the_bit() -> None:
    alone, beside = Trained(), Trained()
    for _ in range(4):
        alone.step()
    over, read = threading.Event(), [0]

    def reads() -> None:
        while not over.is_set():
            read[0] += bool(np.isfinite(beside.moment.numpy()).all())

    thread = threading.Thread(target=reads)
    thread.start()
    for _ in range(4):
        beside.step()
    over.set()
    thread.join()
    assert read[0]
    for a, b in zip(alone.values(), beside.values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_held_moment_does_not_change_what_a_step_computes() -> None:
    plain, held = Trained(), Trained()
    for _ in range(4):
        plain.step()
        kept = [t.detach() for p in held.net.parameters() for t in held.optimizer.state[p].values()]
        held.step()
        assert kept
    for a, b in zip(plain.values(), held.values(), strict=True):
        np.testing.assert_array_equal(a, b)


def with_gradients(t: Trained) -> Any:
    """The first weight, when all gradients are in memory."""
    t.optimizer.zero_grad()
    t.net(t.x).square().mean().backward()
    weft.realize(*[p.grad for p in t.net.parameters()])
    return t.net[0].weight


@pytest.mark.usefixtures("no_other_thread")
def test_a_parameter_whose_gradient_is_there_is_updated_where_it_is() -> None:
    trained = Trained()
    for _ in range(2):
        trained.step()
    weight = with_gradients(trained)
    before, grad = address(weight), np.array(weight.grad.numpy())
    trained.optimizer.step()
    assert address(weight) == before
    np.testing.assert_array_equal(weight.grad.numpy(), grad)


def clipped_step(t: Trained, max_norm: float = 1e-4) -> weft.Tensor:
    t.optimizer.zero_grad()
    t.net(t.x).square().mean().backward()
    total = nn.utils.clip_grad_norm_(t.net.parameters(), max_norm)
    t.optimizer.step()
    return total


@pytest.fixture
def large_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realization, "LARGE_BYTES", 4 * WEIGHT)


@pytest.mark.usefixtures("no_other_thread", "large_gradients")
@pytest.mark.parametrize("who", ["optimizer", "net"])
def test_a_parameter_whose_gradient_is_clipped_is_updated_where_it_is(who: str) -> None:
    trained, allocator = Trained(), open_runtime().allocator
    for _ in range(3):
        clipped_step(trained)
    trained.optimizer.zero_grad()
    weight = trained.net[0].weight
    live, before = allocator.use().live, address(weight)
    allocator.reset_peak()
    idle = allocator.use().peak - live
    total = clipped_step(trained)
    assert address(weight) == before
    assert allocator.use().peak - idle - live < (LAYERS + 1) * WEIGHT, "gradients once"
    norm = np.sqrt(sum(np.square(p.grad.numpy()).sum() for p in trained.net.parameters()))
    assert total.item() > 2e-4
    np.testing.assert_allclose(norm, 1e-4, rtol=2e-3)
    getattr(trained, who).zero_grad()
    assert allocator.use().live - live < WEIGHT, "they are gone with the last who has them"


@pytest.mark.usefixtures("no_other_thread")
def test_a_parameter_whose_gradient_was_scaled_by_hand_is_updated_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pending.mine, "reads_of_spent", 0)  # of other tests
    trained = Trained()
    for _ in range(2):
        trained.step()
    weight = with_gradients(trained)
    before, grad = address(weight), np.array(weight.grad.numpy())
    for p in trained.net.parameters():
        p.grad = p.grad * 0.5 + p.grad * 0.25
    trained.optimizer.step()
    assert address(weight) == before
    assert weight.grad.value.node.storage is None
    np.testing.assert_allclose(weight.grad.numpy(), grad * 0.75, rtol=1e-6)


def test_what_else_is_held_is_stored_by_a_step_whose_gradients_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pending.mine, "reads_of_spent", 0)  # of other tests
    monkeypatch.setattr(holding.mine, "carried", set())
    trained = Trained()
    trained.step()
    weight = with_gradients(trained)
    decay = weft.randn(WIDTH, WIDTH).realize().square()
    weight.grad = weight.grad + decay
    trained.optimizer.step()
    assert weight.grad.value.node.storage is None
    assert decay.value.node.storage is not None


def test_clipped_gradients_that_are_small_are_stored_by_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending.mine, "reads_of_spent", 0)  # of other tests
    trained = Trained()
    for _ in range(2):
        clipped_step(trained)
        assert all(p.grad.value.node.storage is not None for p in trained.net.parameters())


@pytest.mark.parametrize("read", [False, True])
def test_clipped_gradients_are_the_same_whenever_they_are_computed(
    read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[np.ndarray]] = []
    for large in (0, 1 << 60):
        monkeypatch.setattr(realization, "LARGE_BYTES", large)
        trained, grads = Trained(), list[np.ndarray]()
        for _ in range(5):
            clipped_step(trained)
            if read:
                grads += [np.array(p.grad.numpy()) for p in trained.net.parameters()]
        found.append([*trained.values(), *grads])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7)


@pytest.mark.usefixtures("large_gradients")
def test_a_clipped_gradient_that_was_let_go_comes_back_where_its_step_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained = Trained()
    for _ in range(2):
        clipped_step(trained)
    values, weight = trained.values(), trained.net[0].weight
    expected = np.array(weight.grad.numpy())

    def refuse(*args: Any, **how: Any) -> Any:
        raise MemoryError("no memory")

    with monkeypatch.context() as m:
        m.setattr("weft.scheduler.realize.plan_for", refuse)
        m.setattr("weft.scheduler.realize._plans", {})
        with pytest.raises(MemoryError):
            trained.optimizer.step()
    np.testing.assert_array_equal(weight.grad.numpy(), expected)
    for a, b in zip(values, trained.values(), strict=True):
        np.testing.assert_array_equal(a, b)
    trained.optimizer.step()
    assert not np.array_equal(trained.values()[0], values[0])
