"""Values that tensors hold and that are not computed: a computation looks at its own nodes, not at all that wait."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

import weft
from weft import Tensor
from weft.core.args.handle import recent_tensors
from weft.core.execute import holding, pending


@pytest.fixture(autouse=True)
def as_in_a_thread_of_its_own() -> Iterator[None]:
    pending.mine.__init__()
    holding.mine.__init__()
    recent_tensors.tensors.clear()
    yield
    pending.mine.__init__()
    holding.mine.__init__()


def leaf(*shape: int) -> Tensor:
    return weft.tensor(np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 8)


def test_what_is_held_and_computed_on_the_way_is_kept_and_waits_no_more() -> None:
    x = leaf(4, 4)
    y, other = (x @ x).tanh(), x.exp()
    z = y.sum()
    assert z.item() == pytest.approx(float(np.tanh(x.numpy() @ x.numpy()).sum()), rel=1e-5)
    assert y.value.node.storage is not None and other.value.node.storage is None
    assert {id(t) for t in holding.held()} >= {id(other)} and id(y) not in {id(t) for t in holding.held()}
    np.testing.assert_allclose(other.numpy(), np.exp(x.numpy()), rtol=1e-6)
    assert not list(holding.held())


def test_two_tensors_of_one_node_are_both_computed() -> None:
    x = leaf(3, 3)
    a, b = x * 2, x * 2
    assert a.value.node is b.value.node
    leaf(2).sum().item()  # something else: both wait
    (a + 1).sum().item()
    assert a.value.node.storage is not None and b.value.node.storage is not None


def test_a_graph_is_asked_from_its_smaller_side() -> None:
    x = leaf(4, 4)
    waiting = [(x + k).exp() for k in range(40)]
    leaf(2).sum().item()
    asked: list[int] = []

    class Nodes(dict[object, int]):
        def __contains__(self, n: object) -> bool:
            asked.append(1)
            return super().__contains__(n)

    few: Mapping[object, int] = Nodes({waiting[3].value.node: 0, x.value.node: 1})
    ask = holding.Among()
    assert ask(few) == [waiting[3].value.node] == list(ask.met) and not asked
    many = Nodes({t.value.node: k for k, t in enumerate(waiting)} | {k: k for k in range(100)})
    assert holding.Among()(many) == [t.value.node for t in waiting]
    assert len(asked) == len(waiting)


def test_what_nobody_wants_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "FEW", 16)
    holding.mine.many = 16
    x = leaf(4)
    kept = x.exp()
    for k in range(100):
        y = (x * (k + 0.5)).exp()
        leaf(2).sum().item()
        del y
    gc.collect()
    assert len(holding.mine.waiting) <= 40
    assert kept.value.node.storage is None
    assert any(t is kept for t in holding.held())


def test_values_that_were_carried_are_computed_with_what_shares_their_work() -> None:
    state = leaf(8).cos()
    for _ in range(4):
        leaf(2).sum().item()  # something else is computed while the state waits
        state = (state * 0.5).cos()
        (state * 3).sum().item()  # computes the state, and the one before it, that nobody holds any more
    assert holding.mine.carried
    state = (state * 0.5).cos()
    older = state * 0.25
    leaf(2).sum().item()
    total = (older * 3).sum() + state.sum()
    assert np.isfinite(total.item())
    assert state.value.node.storage is not None


def test_many_waiting_values_cost_a_computation_nothing() -> None:
    """Counted in steps of the interpreter, not in seconds."""
    import sys

    def calls(waiting: int) -> int:
        as_if = [(leaf(2) + k).exp() for k in range(waiting)]
        leaf(3).sum().item()
        x = leaf(3)
        y = (x * 2).tanh().sum()
        count = 0

        def step(*_: object) -> object:
            nonlocal count
            count += 1
            return step

        before = sys.gettrace()
        sys.settrace(step)
        try:
            y.item()
        finally:
            sys.settrace(before)
        assert len(as_if) == waiting
        return count

    calls(8)
    assert calls(800) < calls(8) + 400


def separate(count: int) -> list[Tensor]:
    """Parameters whose gradients share no work, and are not computed."""
    ps = [weft.tensor(np.full(3, k + 1.0, np.float32), requires_grad=True) for k in range(count)]
    sum((p**2).sum() for p in ps).backward()
    return ps


def test_companions_that_share_nothing_are_looked_at_later_and_later(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    grouped = pending._grouped
    monkeypatch.setattr(pending, "_grouped", lambda cs, s: (looked.append(len(cs)), grouped(cs, s))[1])
    ps = separate(64)
    weft.explain(ps[0].grad)  # looks, and puts nothing off
    assert not pending.mine.put_off
    looked.clear()
    for k, p in enumerate(ps):
        assert p.grad is not None
        np.testing.assert_array_equal(p.grad.numpy(), np.full(3, 2.0 * (k + 1), np.float32))
    assert sum(looked) < 64 * 12, looked


def test_what_was_put_off_is_noted_again_for_a_second_backward_pass() -> None:
    ps = separate(8)
    leaf(2).sum().item()
    assert pending.mine.put_off and not pending.mine.noted
    sum((p * 3).sum() for p in ps).backward()
    for k, p in enumerate(ps):
        assert p.grad is not None
        np.testing.assert_array_equal(p.grad.numpy(), np.full(3, 2.0 * (k + 1) + 3, np.float32))


def test_spent_gradients_are_not_put_off() -> None:
    ps = separate(4)
    with weft.no_grad():
        for p in ps:
            assert p.grad is not None
            p -= 0.5 * p.grad
    weft.realize(*ps)
    assert any(reason is pending.Reason.SPENT for _, reason in pending.mine.noted)
    grad = ps[0].grad
    assert grad is not None
    np.testing.assert_array_equal(grad.numpy(), np.full(3, 2.0, np.float32))
    assert not any(key[1] is pending.Reason.SPENT for _, _, key, _ in pending.mine.put_off)


def test_nodes_are_counted_up_to_as_many_as_matter() -> None:
    x = weft.ones(4).realize()
    for k in range(100):
        x = x * 1.5 + float(k)
    assert holding.count([x.value.node], most=8) == 9
    assert holding.count([x.value.node]) == 200
    assert holding.count([x.value.node], [x.value.node]) == 0
