"""Graphs of up to 100,000 nodes: built, differentiated, scheduled and run without recursion, in linear time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
from tests.growth import best_ratio
from weft import Tensor
from weft.scheduler.signature import signature

NODES, IN_A_TREE = 100_000, 25_000


@pytest.fixture(autouse=True)
def unverified(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a user runs it: verifying every form of a graph of this size takes longer than all the rest."""
    monkeypatch.setenv("WEFT_VERIFY", "0")
    yield


def chain(x: Tensor, nodes: int) -> Tensor:
    for k in range(nodes):
        x = x * 0.5 if k % 2 else x + 1.0
    return x


def tree(leaves: list[Tensor], nodes: int) -> Tensor:
    """A balanced tree over `nodes` / 2 products of the leaves with numbers."""
    row = [leaves[k % len(leaves)] * (k / nodes) for k in range(nodes // 2)]
    while len(row) > 1:
        row = [a + b for a, b in zip(row[::2], row[1::2], strict=False)] + row[len(row) & ~1 :]
    return row[0]


def test_chain() -> None:
    x = weft.ones(4).realize().requires_grad_(True)
    y = chain(x, NODES)
    y.sum().backward()
    grad = x.grad
    assert grad is not None
    np.testing.assert_allclose(y.numpy(), np.full(4, 1.0), rtol=1e-6)
    np.testing.assert_array_equal(grad.numpy(), np.zeros(4))


def test_tree() -> None:
    leaves = [weft.tensor([float(k), 1.0]).requires_grad_(True) for k in range(4)]
    y = tree(leaves, IN_A_TREE)
    (y / IN_A_TREE).sum().backward()
    k = np.arange(IN_A_TREE // 2)
    np.testing.assert_allclose(y.numpy(), [(k / IN_A_TREE * (k % 4)).sum(), (k / IN_A_TREE).sum()], rtol=1e-5)
    for j, leaf in enumerate(leaves):
        assert leaf.grad is not None
        np.testing.assert_allclose(
            leaf.grad.numpy(), (k[k % 4 == j] / IN_A_TREE).sum() / IN_A_TREE, rtol=1e-4
        )


def test_building_and_differentiating_is_linear() -> None:
    x = weft.ones(4).realize().requires_grad_(True)

    def work(n: int) -> None:
        chain(x, n).sum().backward()
        x.grad = None

    work(1000)
    assert best_ratio(lambda n: n, work, 2000, 8) < 2.5


@pytest.mark.parametrize("device", ["cpu", "dummy"])
@pytest.mark.parametrize("step", [lambda y: y * (1 - y), lambda y: y * (y * 1.01)], ids=["parts", "products"])
def test_parts_that_are_shared_many_times_over_are_looked_at_once(
    step: Callable[[Any], Any], device: str
) -> None:
    x = np.linspace(0.1, 0.2, 128, dtype=np.float32).reshape(8, 16)
    y, z = x, weft.tensor(x, device=device)
    for _ in range(50):  # as a tree it would have 2**50 leaves
        y, z = step(y), step(z)
    got = (z * weft.tensor(x, device=device)).sum(-1)
    np.testing.assert_allclose(got.numpy(), (y * x).sum(-1), rtol=1e-4, atol=1e-30)
    weights = weft.softmax(z, -1) @ weft.ones(16, 4, device=device)
    np.testing.assert_allclose(weights.numpy(), np.ones((8, 4)), rtol=1e-4)


class Counted(list[Any]):
    """A list that counts the elements it gives out."""

    given = 0

    def __iter__(self) -> Iterator[Any]:
        for x in super().__iter__():
            self.given += 1
            yield x

    def __getitem__(self, k: Any) -> Any:
        found = super().__getitem__(k)
        self.given += len(found) if isinstance(k, slice) else 1
        return found


def test_many_results_are_walked_once() -> None:
    x = weft.ones(4).realize()
    nodes = Counted([(x + float(k)).value.node for k in range(2000)])
    assert len(signature(nodes).results()) == 2000
    assert nodes.given <= 2 * len(nodes)
