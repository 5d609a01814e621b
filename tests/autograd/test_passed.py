"""Histories that a backward pass went through: kept until a leaf is written over, then let go."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np
import pytest

import weft
from weft import nn
from weft.backends.cpu.runtime import open_runtime
from weft.errors import GradError

WIDTH = 256
WEIGHTS = 2 * 4 * WIDTH * WIDTH


def made() -> tuple[Any, Any, Any]:
    """A network, its optimizer, and rows for it."""
    weft.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh(), nn.Linear(WIDTH, WIDTH, bias=False))
    return net, weft.optim.SGD(net.parameters(), lr=0.1), weft.randn(4, WIDTH).realize()


def gradients(net: Any, loss: Any) -> list[Any]:
    """The gradients that a backward pass leaves."""
    net.zero_grad()
    loss.backward(retain_graph=True)
    return [np.array(p.grad.detach().numpy()) for p in net.parameters()]


def by_optimizer(net: Any, optimizer: Any) -> None:
    optimizer.step()


def by_hand(net: Any, optimizer: Any) -> None:
    with weft.no_grad():
        for p in net.parameters():
            p -= 0.1 * p.grad


def through_data(net: Any, optimizer: Any) -> None:
    net[0].weight.data.mul_(0.5)


def copied(net: Any, optimizer: Any) -> None:
    with weft.no_grad():
        net[2].weight.copy_(weft.zeros(WIDTH, WIDTH))


WRITERS = (by_optimizer, by_hand, through_data, copied)


@pytest.mark.parametrize("write", WRITERS)
def test_a_pass_may_be_made_again_until_a_leaf_is_written_over(write: Callable[..., None]) -> None:
    net, optimizer, x = made()
    loss = net(x).square().mean()
    loss.backward()
    once = [np.array(p.grad.numpy()) for p in net.parameters()]
    loss.backward()
    for p, g in zip(net.parameters(), once, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), 2 * g, rtol=1e-5)
    write(net, optimizer)
    assert loss.requires_grad and not loss.is_leaf
    with pytest.raises(GradError, match="retain_graph=True"):
        loss.backward()
    with pytest.raises(GradError, match="written over"):
        weft.autograd.grad(loss, list(net.parameters()))


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("kept", [{"retain_graph": True}, {"create_graph": True}])
def test_a_history_that_is_retained_stays(write: Callable[..., None], kept: dict[str, bool]) -> None:
    net, optimizer, x = made()
    loss = net(x).square().mean()
    loss.backward(**kept)
    once = [np.array(p.grad.detach().numpy()) for p in net.parameters()]
    with weft.no_grad():
        write(net, optimizer)
    np.testing.assert_equal(gradients(net, loss), once)


def test_gradients_of_a_function_count_as_a_pass() -> None:
    net, optimizer, x = made()
    parameters = list(net.parameters())
    loss, other = net(x).square().mean(), net(x).square().mean()
    for p, g in zip(parameters, weft.autograd.grad(loss, parameters, retain_graph=True), strict=True):
        p.grad = g
    weft.autograd.grad(other, parameters)
    optimizer.step()
    loss.backward()
    with pytest.raises(GradError, match="written over"):
        other.backward()


def test_what_no_pass_went_through_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "WEFT_DETERMINISTIC", "1"
    )  # else a size that comes again may get a plan of its own between the two
    net, optimizer, x = made()
    loss, other = net(x).square().mean(), net(x).sum()
    loss.backward()
    optimizer.step()
    found = gradients(net, other)
    weft.manual_seed(0)
    again, _, x = made()
    np.testing.assert_equal(found, gradients(again, again(x).sum()))


def test_writing_something_else_gives_up_nothing() -> None:
    net, optimizer, x = made()
    loss = net(x).square().mean()
    loss.backward()
    with weft.no_grad():
        weft.ones(3, requires_grad=True).add_(1)
    for p in net.parameters():
        p.requires_grad_(True)
    loss.backward()
    optimizer.step()


def test_part_of_a_history_is_gone_for_all_that_has_it() -> None:
    net, optimizer, x = made()
    y = net(x)
    loss, other = y.square().mean(), y.sum()
    loss.backward()
    optimizer.step()
    with pytest.raises(GradError, match="written over"):
        other.backward()
    assert np.isfinite(other.item()) and y.shape == (4, WIDTH)


def test_values_stay_what_they_were() -> None:
    net, optimizer, x = made()
    y = net(x)
    loss = y.square().mean()
    expected, held = np.array(net(x).detach().numpy()), y.exp().detach()
    loss.backward()
    optimizer.step()
    np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(held.numpy(), np.exp(expected), rtol=1e-5)
    np.testing.assert_allclose(loss.item(), np.square(expected).mean(), rtol=1e-5)


def test_gradients_can_be_read_after_the_step() -> None:
    net, optimizer, x = made()
    loss = net(x).square().mean()
    expected = [np.array(g.numpy()) for g in weft.autograd.grad(loss, list(net.parameters()))]
    loss.backward()
    optimizer.step()
    for p, g in zip(net.parameters(), expected, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), g, rtol=1e-4, atol=1e-7)


def test_the_history_of_a_retained_gradient_and_of_a_custom_rule_goes_too() -> None:
    class Doubled(weft.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Any) -> Any:
            ctx.save_for_backward(a)
            return 2 * a

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (a,) = ctx.saved_tensors
            return 2 * g + 0 * a

    net, optimizer, x = made()
    y = net(x)
    y.retain_grad()
    loss = Doubled.apply(y).sum()
    loss.backward()
    np.testing.assert_array_equal(y.grad.numpy(), np.full((4, WIDTH), 2, np.float32))
    optimizer.step()
    with pytest.raises(GradError, match="written over"):
        loss.backward()


def losses(kept: list[Any], y: Any, loss: Any) -> None:
    kept.append(loss)


def results(kept: list[Any], y: Any, loss: Any) -> None:
    kept.append(y)


def read_losses(kept: list[Any], y: Any, loss: Any) -> None:
    loss.item()
    kept.append(loss)


def sums(kept: list[Any], y: Any, loss: Any) -> None:
    if kept:
        kept[0] += loss
    else:
        kept.append(0 + loss)


@pytest.mark.usefixtures("no_other_thread")
@pytest.mark.parametrize("keep", [losses, results, read_losses, sums])
@pytest.mark.parametrize("write", [by_optimizer, by_hand])
def test_what_loops_keep_does_not_keep_old_weights(
    keep: Callable[..., None], write: Callable[..., None]
) -> None:
    net, optimizer, x = made()
    allocator, kept, use = open_runtime().allocator, list[Any](), list[int]()
    for _ in range(8):
        optimizer.zero_grad()
        y = net(x)
        loss = y.square().mean()
        loss.backward()
        keep(kept, y, loss)
        write(net, optimizer)
        weft.realize(*net.parameters())
        gc.collect()
        use.append(allocator.use().live)
    assert use[-1] - use[3] < WEIGHTS
    assert all(np.isfinite(t.detach().numpy()).all() for t in kept)


ENDS: dict[str, Callable[[Any], object]] = {
    "leaves": lambda end: end.backward(),
    "its own gradient": lambda end: (end.retain_grad(), end.backward()),
    "itself": lambda end: weft.autograd.grad(end, end),
    "what is made of it": lambda end: weft.autograd.grad(end, end * 2, allow_unused=True),
}


@pytest.mark.parametrize("reach", ENDS)
def test_what_was_gone_through_goes_with_its_last_holder(reach: str) -> None:
    net, _, x = made()
    end = net(x).square().mean()
    ENDS[reach](end)
    value = ref(end.value)
    del end
    gc.collect()
    assert value() is None


def test_a_compiled_step_gives_up_what_it_writes_over() -> None:
    net, optimizer, x = made()

    @weft.compile
    def step() -> Any:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        eager = net(x).square().mean()
        eager.backward()
        step().item()
        with pytest.raises(GradError, match="written over"):
            eager.backward()


@pytest.mark.usefixtures("no_other_thread")
def test_parameters_are_updated_where_they_are_by_gradients_that_are_there() -> None:
    net, optimizer, x = made()
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        weft.realize(loss, *[p.grad for p in net.parameters()])
        before = [p.value.node.storage.memory.address for p in net.parameters()]
        optimizer.step()
        assert [p.value.node.storage.memory.address for p in net.parameters()] == before


def test_passes_of_other_threads_are_their_own() -> None:
    net, optimizer, x = made()
    loss = net(x).square().mean()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    optimizer.step()
    loss.backward()


def test_a_step_that_fails_may_be_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    net, optimizer, x = made()
    loss = net(x).square().mean()
    loss.backward()
    before = np.array(net[0].weight.detach().numpy())

    def broken(*_: Any) -> list[Any]:
        raise MemoryError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(type(optimizer), "_update", broken)
        with pytest.raises(MemoryError):
            optimizer.step()
    np.testing.assert_array_equal(net[0].weight.detach().numpy(), before)
    optimizer.step()
    assert not np.array_equal(net[0].weight.detach().numpy(), before)
