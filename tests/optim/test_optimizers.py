"""Optimizers and schedules against torch's, step by step; saving; mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, optim

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {"lr": 0.1}),
    "SGD momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}),
    "SGD dampening": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.4}),
    "SGD nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.05}),
    "SGD maximize": ("SGD", {"lr": 0.1, "maximize": True, "weight_decay": 0.05}),
    "Adam": ("Adam", {"lr": 0.05}),
    "Adam decay": ("Adam", {"lr": 0.05, "weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-4}),
    "Adam amsgrad": ("Adam", {"lr": 0.05, "amsgrad": True, "maximize": True}),
    "Adam without memory": ("Adam", {"lr": 0.05, "betas": (0.0, 0.5)}),
    "AdamW": ("AdamW", {"lr": 0.05}),
    "AdamW decay": ("AdamW", {"lr": 0.05, "weight_decay": 0.3, "amsgrad": True}),
}


def problem(library: Any, dtype: Any = np.float32) -> tuple[list[Any], Callable[[], Any]]:
    """Parameters, the third of which plays no part, and a loss of the others."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((4, 3)), rng.standard_normal(3), np.ones(2)]
    params = [library.tensor(a.astype(dtype), requires_grad=True) for a in arrays]
    x, y = (library.tensor(rng.standard_normal(s).astype(dtype)) for s in ((5, 4), (5, 3)))
    return params, lambda: ((x @ params[0] + params[1]).sin() - y).square().sum()


def run(library: Any, optimizer: Any, loss: Callable[[], Any], steps: int = 5) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-12)])
def test_against_torch(name: str, dtype: Any, tolerance: float) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    kind, options = OPTIMIZERS[name]
    results = []
    for library in (weft, torch):
        params, loss = problem(library, dtype)
        run(library, getattr(library.optim, kind)(params, **options), loss)
        results.append([p.detach().numpy() for p in params])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_groups_have_options_of_their_own() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    results = []
    for library in (weft, torch):
        params, loss = problem(library)
        groups = [{"params": params[:1], "lr": 0.2}, {"params": params[1:], "momentum": 0.5}]
        optimizer = library.optim.SGD(groups, lr=0.01)
        run(library, optimizer, loss)
        optimizer.param_groups[0]["lr"] = 0.05
        run(library, optimizer, loss)
        results.append([p.detach().numpy() for p in params])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_16_bit_parameters_keep_their_dtype() -> None:
    p = weft.ones(3, dtype=weft.bfloat16, requires_grad=True)
    optimizer = optim.Adam([p], lr=0.1)
    p.sum().backward()
    optimizer.step()
    assert p.dtype is weft.bfloat16 and p.tolist() == pytest.approx([0.9] * 3, abs=0.01)


def test_a_step_computes_everything_in_one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.core import run as engine

    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = optim.Adam(model.parameters())
    calls: list[int] = []
    original = engine.realize
    monkeypatch.setattr(engine, "realize", lambda nodes: (calls.append(len(nodes)), original(nodes))[1])
    x = weft.tensor(np.ones((3, 4), np.float32))
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    parameters, moments, count, statistics = 6, 12, 1, 2
    assert calls == [parameters + moments + count + statistics + 1]
    assert loss.value.node.storage is not None
    assert all(t.value.node.inputs == () for t in [*model.parameters(), *model.buffers()][:-1])


def test_the_graph_does_not_grow_from_step_to_step() -> None:
    from weft.ir.graph import live_nodes

    params, loss = problem(weft)
    optimizer = optim.AdamW(params)
    sizes = []
    for _ in range(4):
        run(weft, optimizer, loss, 1)
        sizes.append(sum(1 for _ in live_nodes()))
    assert sizes[3] <= sizes[1]


def test_learning_rate_and_step_count_are_leaves() -> None:
    """A number in the graph would need a new program at every step."""
    from weft.ir.graph import Fill, toposort

    def constants() -> set[Any]:
        optimizer.zero_grad()
        loss().backward()
        nodes = toposort([t.value.node for t in optimizer.advance()])
        found = {n.attrs.value for n in nodes if isinstance(n.attrs, Fill)}
        weft.realize(*params)
        return found

    params, loss = problem(weft)
    optimizer = optim.Adam(params, lr=0.03125)
    first = constants()
    optimizer.param_groups[0]["lr"] = 0.0078125
    assert constants() == first and not {0.03125, 0.0078125} & first


@pytest.mark.parametrize("name", ["SGD momentum", "Adam", "AdamW decay"])
def test_saved_state_continues_as_if_never_interrupted(name: str) -> None:
    kind, options = OPTIMIZERS[name]
    params, loss = problem(weft)
    optimizer = getattr(optim, kind)(params, **options)
    run(weft, optimizer, loss, 3)
    saved, values = optimizer.state_dict(), [p.numpy() for p in params]
    run(weft, optimizer, loss, 2)
    again, loss2 = problem(weft)
    for p, v in zip(again, values, strict=True):
        p.data = weft.tensor(v)
    resumed = getattr(optim, kind)(again, lr=9.0, **{k: v for k, v in options.items() if k != "lr"})
    resumed.load_state_dict(saved)
    run(weft, resumed, loss2, 2)
    for p, q in zip(params, again, strict=True):
        np.testing.assert_array_equal(p.numpy(), q.numpy())


def test_closures() -> None:
    params, loss = problem(weft)
    optimizer = optim.SGD(params, lr=0.1)

    def closure() -> weft.Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    values = [optimizer.step(closure).item() for _ in range(3)]  # pyright: ignore[reportOptionalMemberAccess]
    assert values[0] > values[1] > values[2]


SCHEDULES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "StepLR": ("StepLR", (2, 0.5)),
    "CosineAnnealingLR": ("CosineAnnealingLR", (4, 0.01)),
    "LambdaLR": ("LambdaLR", (lambda epoch: 0.9**epoch,)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    kind, args = SCHEDULES[name]
    rates: list[list[float]] = []
    for library in (weft, torch):
        p = library.ones(1, requires_grad=True)
        optimizer = library.optim.SGD([{"params": [p], "lr": 0.4}])
        scheduler = getattr(library.optim.lr_scheduler, kind)(optimizer, *args)
        found = []
        for _ in range(6):
            optimizer.step()
            found.append(scheduler.get_last_lr()[0])
            scheduler.step()
        rates.append(found)
    np.testing.assert_allclose(rates[0], rates[1], rtol=1e-12)


def test_schedules_move_the_rate_that_updates_read() -> None:
    p = weft.tensor([1.0], requires_grad=True)
    optimizer = optim.SGD([p], lr=1.0)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for _ in range(3):
        p.grad = weft.tensor([1.0])
        optimizer.step()
        scheduler.step()
    assert p.item() == 1 - (1 + 0.5 + 0.25)
    state = scheduler.state_dict()
    scheduler.load_state_dict(state)
    assert scheduler.last_epoch == 3


def test_printing() -> None:
    text = repr(optim.SGD([weft.ones(2, requires_grad=True)], lr=0.5))
    assert text.startswith("SGD (\nParameter Group 0: 1 parameters\n    dampening: 0.0\n    lr: 0.5\n")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: optim.SGD([], lr=1), "SGD: got no parameters"),
        (lambda p: optim.SGD([p], lr=-1), "SGD: lr must be at least 0, got -1"),
        (lambda p: optim.SGD([p], nesterov=True), "SGD: nesterov needs a momentum and no dampening"),
        (
            lambda p: optim.Adam([p], betas=(0.9, 1.0)),
            "Adam: betas[1] must be at least 0 and below 1, got 1.0",
        ),
        (lambda p: optim.AdamW([p, p]), "AdamW: a parameter of shape (2,) is given twice"),
        (lambda p: optim.Adam([1.0]), "Adam: parameters must be Tensors, got float"),
        (
            lambda p: optim.Adam([weft.ones(2, dtype=weft.int64)]),
            "Adam: parameters must be floats, got int64",
        ),
        (lambda p: optim.Adam([p * 2]), "Adam: parameter 0 is the result of an operation, not a leaf"),
        (
            lambda p: optim.lr_scheduler.StepLR(optim.SGD([p]), 0),
            "StepLR: step_size must be at least 1, got 0",
        ),
        (
            lambda p: optim.Adam([p]).load_state_dict(optim.Adam([weft.ones(1), weft.ones(1)]).state_dict()),
            "load_state_dict: the state has groups of [2] parameters, the optimizer of [1]",
        ),
        (
            lambda p: optim.Adam([p]).load_state_dict(optim.Adam([weft.ones(3)]).state_dict()),
            "load_state_dict: exp_avg of a parameter of shape (2,) has shape (3,)",
        ),
    ],
)
def test_mistakes(make: Callable[[weft.Tensor], object], message: str) -> None:
    with pytest.raises(weft.WeftError) as error:
        make(weft.ones(2, requires_grad=True))
    assert error.value.message == message
