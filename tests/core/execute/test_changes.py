"""A computation that cannot be done takes with it no more than what depends on it."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest

import weft
from weft.core.execute import changes

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "24"))
LIMIT = 4 << 20


def column(n: int) -> weft.Tensor:
    return weft.tensor(np.ones((n, 1), np.float32)).exp()


class Program:
    """Tensors that are changed in place at random, by a value that does not fit memory, too; and what they should be.

    `true` is a tensor's value, `good` the latest that does not depend on what does not fit.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.arrays: list[Any] = [np.arange(3, dtype=np.float32) + k for k in range(4)]
        self.tensors = [weft.tensor(a).realize() for a in self.arrays]
        self.free = [True] * 4
        self.shared, self.shared_array = self.tensors[0] * 2.0, self.arrays[0] * 2
        self.huge = (column(4096) * column(2048).T).cumsum(0)[5, :3]
        self.log: list[tuple[str, int, int]] = []

    def change(self) -> None:
        k, j = self.rng.randrange(4), self.rng.randrange(4)
        what = self.rng.choice(["add", "mul", "set", "huge", "shared", "copy", "view", "read"])
        self.log.append((what, k, j))
        t, a, free = self.tensors[k], self.arrays[k].copy(), self.free[k]
        match what:
            case "add":
                t.add_(self.tensors[j] * 0.5)
                a, free = a + self.arrays[j] * np.float32(0.5), free and self.free[j]
            case "mul":
                t.mul_(1.5)
                a = a * np.float32(1.5)
            case "set":
                t[0] = 7.0
                a[0] = 7.0
            case "huge":
                t.add_(self.huge)
                free = False
            case "shared":
                t.add_(self.shared)
                a = a + self.shared_array
            case "copy":
                t.copy_(self.tensors[j])
                a, free = self.arrays[j].copy(), self.free[j]
            case "view":
                t[:2].mul_(3)
                a[:2] *= 3
            case _:
                if free:
                    t.numpy()
        if free:
            self.arrays[k] = a
        self.free[k] = free

    def fail(self) -> None:
        lost = [t for t, free in zip(self.tensors, self.free, strict=True) if not free]
        with pytest.raises(MemoryError):
            (self.rng.choice(lost) if lost and self.rng.random() < 0.5 else self.huge + self.shared).numpy()

    def check(self) -> None:
        for k, (t, a) in enumerate(zip(self.tensors, self.arrays, strict=True)):
            if not self.free[k]:
                try:
                    t.numpy()
                except (
                    MemoryError
                ):  # who is not changed along with what failed, is as it was when asked for itself
                    continue
        for k, (t, a) in enumerate(zip(self.tensors, self.arrays, strict=True)):
            np.testing.assert_allclose(t.numpy(), a, err_msg=f"tensor {k} of {self.log}")


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_changes_at_random(seed: int) -> None:
    program = Program(seed)
    for _ in range(program.rng.randrange(2, 9)):
        program.change()
    with weft.memory_limit(LIMIT):
        program.fail()
        program.check()


def test_a_mistake_withdraws_nothing() -> None:
    n = weft.Variable("n", 1, 8)
    x = weft.tensor(1.0)
    x += weft.arange(8)[:n].sum()
    with pytest.raises(weft.ArgumentError):
        x.item()
    assert weft.bind(x, n=3).item() == 4.0


def test_an_interrupt_withdraws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.core.execute import run

    x = weft.tensor([1.0, 2.0])
    x += 1

    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run, "_scheduler", lambda: interrupted)
        with pytest.raises(KeyboardInterrupt):
            x.numpy()
    assert x.tolist() == [2.0, 3.0]


def test_changes_are_let_go_when_they_are_computed_or_dead() -> None:
    changes.settle()
    before = len(changes.mine.changed)
    x, y = weft.tensor([1.0]), weft.tensor([2.0])
    x += 1
    y += 1
    assert len(changes.mine.changed) == before + 2
    x.numpy()  # and y with it
    assert len(changes.mine.changed) == before
    y += 1
    assert len(changes.mine.changed) == before + 1
    del y
    weft.tensor([3.0]).add_(1).numpy()
    assert len(changes.mine.changed) == before


def test_what_changes_often_and_is_not_read_is_computed_with_something_else() -> None:
    changes.catch_up()
    changes.settle()
    for _ in range(2):  # the count starts anew when what has changed is computed
        counter, other = weft.zeros(3).realize(), weft.zeros(3).realize()
        other += 1
        for _ in range(changes.LONG):
            counter += 1
        assert counter.value.node.storage is None
        weft.tensor([3.0]).add_(1).numpy()
        assert counter.value.node.storage is not None
        assert other.value.node.storage is not None  # it was changed, too
        assert counter.tolist() == [changes.LONG] * 3
        weft.tensor([3.0]).add_(1).numpy()


def test_of_a_users_changes_those_that_can_be_computed_have_happened() -> None:
    x = weft.zeros(3).realize()
    with weft.memory_limit(LIMIT):
        shared = column(3).squeeze(1)
        x += shared
        x *= 2.0
        too_much = (column(4096) * column(2048).T).cumsum(0)[5, :3] + shared
        x += too_much
        with pytest.raises(MemoryError):
            (too_much * 3.0).numpy()
        np.testing.assert_allclose(x.numpy(), np.full(3, 2 * np.e), rtol=1e-6)


def test_elements_stay_shared_after_a_change_is_withdrawn() -> None:
    x = weft.zeros(4, 3).realize()
    with weft.memory_limit(LIMIT):
        with weft.no_grad():
            x += (column(4096) * column(2048).T).cumsum(0)[5, :3]
        row = x.detach()[1]
        with pytest.raises(MemoryError):
            x.numpy()
    row = x[1]
    row.fill_(2.0)
    assert x.tolist() == [[0.0] * 3, [2.0] * 3, [0.0] * 3, [0.0] * 3]


@pytest.mark.parametrize("looks_first", [False, True])
def test_a_shape_that_was_changed_in_place_is_as_before_when_the_change_is_withdrawn(
    looks_first: bool,
) -> None:
    x = weft.zeros(2, 6).realize()
    row = x[0] if looks_first else None
    with weft.memory_limit(LIMIT), weft.no_grad():
        x += (column(4096) * column(2048).T).cumsum(0)[5, :6]
        x.transpose_(0, 1)
        with pytest.raises(MemoryError):
            x.numpy()
    assert x.tolist() == [[0.0] * 6] * 2
    x[0] = 3.0
    assert x.tolist() == [[3.0] * 6, [0.0] * 6]
    assert row is None or row.tolist() == [3.0] * 6


def test_a_gradient_before_a_change_is_let_go_with_the_change() -> None:
    x = weft.zeros(3).realize()
    x += weft.arange(3.0).realize()  # another change, which waits on
    p = weft.nn.Parameter(weft.tensor([1.0, 2.0, 3.0]))
    (p * p * p).sum().backward()
    with weft.no_grad():
        p.grad = p.grad * 2
    before = len(changes.mine.changed)
    weft.optim.SGD([p], lr=0.1).zero_grad()
    assert len(changes.mine.changed) == changes.mine.left == before - 1 > 0
