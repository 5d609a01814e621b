"""Optimizers and schedules against torch's, step by step; saving; mistakes."""

from __future__ import annotations

import copy
import math
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
    "Adagrad": (
        "Adagrad",
        {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.2},
    ),
    "Adadelta": ("Adadelta", {"lr": 0.5, "rho": 0.8, "weight_decay": 0.1}),
    "RMSprop": ("RMSprop", {"lr": 0.05, "alpha": 0.9, "weight_decay": 0.1}),
    "RMSprop centered": ("RMSprop", {"lr": 0.01, "centered": True, "momentum": 0.9, "eps": 1e-3}),
    "Adamax": ("Adamax", {"lr": 0.05, "weight_decay": 0.1}),
    "NAdam": ("NAdam", {"lr": 0.05, "weight_decay": 0.1}),
    "NAdam decoupled": ("NAdam", {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "RAdam": ("RAdam", {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.1}),
    "RAdam slow": ("RAdam", {"lr": 0.05, "decoupled_weight_decay": True, "weight_decay": 0.1}),
    "Rprop": ("Rprop", {"lr": 0.05}),
    "ASGD": ("ASGD", {"lr": 0.05, "lambd": 0.1, "t0": 2.0, "weight_decay": 0.1}),
    "Adafactor": ("Adafactor", {"lr": 0.05, "weight_decay": 0.1}),
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
    if kind in ("NAdam", "ASGD"):
        tolerance = max(tolerance, 3e-7)  # torch keeps their scalars in float32
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
    from weft.core.execute import run as engine

    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = optim.Adam(model.parameters())
    calls: list[int] = []
    original = engine.realize
    monkeypatch.setattr(
        engine,
        "realize",
        lambda nodes, held, along, spent: (
            calls.append(len(nodes) + len(along)),
            original(nodes, held, along, spent),
        )[1],
    )
    x = weft.tensor(np.ones((3, 4), np.float32))
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    parameters, moments, count, statistics = 6, 12, 1, 3
    assert calls == [parameters + moments + count + statistics + 1]
    assert loss.value.node.storage is not None
    assert all(t.value.node.inputs == () for t in [*model.parameters(), *model.buffers()])


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
    saved, values = copy.deepcopy(optimizer.state_dict()), [p.numpy() for p in params]
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
    "MultiplicativeLR": ("MultiplicativeLR", (lambda epoch: 0.9,)),
    "MultiStepLR": ("MultiStepLR", ([2, 4, 4], 0.5)),
    "ConstantLR": ("ConstantLR", (0.5, 3)),
    "LinearLR": ("LinearLR", (0.25, 1.0, 4)),
    "ExponentialLR": ("ExponentialLR", (0.8,)),
    "PolynomialLR": ("PolynomialLR", (4, 2.0)),
    "CosineAnnealingWarmRestarts": ("CosineAnnealingWarmRestarts", (2, 2, 0.01)),
    "CyclicLR": ("CyclicLR", (0.1, 0.5, 2, 3, "triangular2")),
    "CyclicLR exp": ("CyclicLR", (0.1, 0.5, 2, None, "exp_range", 0.9)),
    "OneCycleLR": ("OneCycleLR", (0.5, 10)),
    "OneCycleLR three": (
        "OneCycleLR",
        (0.5, 10, None, None, 0.4, "linear", True, 0.8, 0.9, 10.0, 100.0, True),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    kind, args = SCHEDULES[name]
    rates: list[list[float]] = []
    for library in (weft, torch):
        p = library.ones(1, requires_grad=True)
        optimizer = library.optim.SGD([{"params": [p], "lr": 0.4, "momentum": 0.9}])
        scheduler = getattr(library.optim.lr_scheduler, kind)(optimizer, *args)
        found = []
        for _ in range(9):
            optimizer.step()
            found += [scheduler.get_last_lr()[0], optimizer.param_groups[0]["momentum"]]
            scheduler.step()
        rates.append(found)
    np.testing.assert_allclose(rates[0], rates[1], rtol=1e-12, atol=1e-15)


def test_schedules_of_schedules() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    rates: list[list[float]] = []
    for library in (weft, torch):
        tools = library.optim.lr_scheduler
        found = []
        for kind in ("sequential", "chained", "plateau", "swa"):
            optimizer = library.optim.SGD([library.ones(1, requires_grad=True)], lr=0.4)
            if kind == "plateau":
                scheduler = tools.ReduceLROnPlateau(optimizer, patience=1, cooldown=1, factor=0.5)
            elif kind == "swa":
                scheduler = library.optim.swa_utils.SWALR(optimizer, 0.1, 4)
            else:
                parts = [tools.ConstantLR(optimizer, 0.5, 2), tools.ExponentialLR(optimizer, 0.9)]
                scheduler = (
                    tools.SequentialLR(optimizer, parts, [3])
                    if kind == "sequential"
                    else tools.ChainedScheduler(parts)
                )
            for epoch in range(8):
                optimizer.step()
                found.append(optimizer.param_groups[0]["lr"])
                scheduler.step(
                    *([[1.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9][epoch]] if kind == "plateau" else [])
                )
        rates.append(found)
    np.testing.assert_allclose(rates[0], rates[1], rtol=1e-9)


@pytest.mark.parametrize("options", [{}, {"adjust_lr_fn": "match_rms_adamw", "nesterov": False}])
def test_muon(options: dict[str, Any]) -> None:
    """Beside torch's, which takes the Newton-Schulz steps in bfloat16: the same direction within its digits."""
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    results = []
    for library in (weft, torch):
        params, loss = problem(library)
        run(library, library.optim.Muon(params[:1], lr=0.05, **options), loss, 3)
        results.append(params[0].detach().numpy())
    np.testing.assert_allclose(*results, rtol=0.05, atol=0.02)


def test_lamb_and_lion_follow_their_formulas() -> None:
    p0, g = np.array([3.0, -4.0], np.float32), np.array([1.0, -2.0], np.float32)
    for kind, expected in (
        ("LAMB", p0 - 0.1 * 5 / math.sqrt(2) * np.array([1.0, -1.0])),
        ("Lion", p0 - 0.1 * (np.sign(g) + 0.0 * p0)),
    ):
        p = weft.tensor(p0, requires_grad=True)
        p.grad = weft.tensor(g)
        getattr(optim, kind)([p], lr=0.1).step()
        np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-4)
    for kind in ("LAMB", "Lion"):
        params, loss = problem(weft)
        before = loss().item()
        run(weft, getattr(optim, kind)(params, lr=0.02, weight_decay=0.01), loss, 20)
        assert loss().item() < before


def test_averaged_models() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    results: list[list[np.ndarray]] = []
    for library in (weft, torch):
        tools, found = library.optim.swa_utils, []
        for make in ({}, {"multi_avg_fn": tools.get_ema_multi_avg_fn(0.9)}):
            model = library.nn.Sequential(library.nn.Linear(2, 2), library.nn.BatchNorm1d(2))
            model[0].load_state_dict({"weight": library.ones(2, 2), "bias": library.zeros(2)})
            average = tools.AveragedModel(model, **make)
            optimizer = library.optim.SGD(model.parameters(), lr=0.1)
            x = library.tensor(np.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]], np.float32))
            for _ in range(3):
                optimizer.zero_grad()
                (model(x) * library.tensor(np.array([1.0, 2.0], np.float32))).square().sum().backward()
                optimizer.step()
                average.update_parameters(model)
            tools.update_bn([x, x * 2], average)
            found += [p.detach().numpy() for p in average.parameters()]
            found += [average.module[1].running_mean.numpy(), average.eval()(x).detach().numpy()]
        results.append(found)
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_step_hooks_and_a_tensor_as_learning_rate() -> None:
    p = weft.ones(2, requires_grad=True)
    p.grad = weft.ones(2)
    optimizer, seen = optim.SGD([p], lr=weft.tensor(0.5)), []
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: seen.append("pre"))
    optimizer.register_step_post_hook(lambda opt, args, kwargs: seen.append("post"))
    optimizer.step()
    assert seen == ["pre", "post"] and p.tolist() == [0.5, 0.5]


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
    assert text.startswith("SGD (\nParameter Group 0\n    dampening: 0\n    differentiable: False\n")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda p: optim.SGD([], lr=1),
            "SGD: optimizer got an empty parameter list; an iterator gives its parameters only once",
        ),
        (lambda p: optim.SGD([p], lr=-1), "SGD: lr must be at least 0, got -1"),
        (lambda p: optim.SGD([p], nesterov=True), "SGD: nesterov needs a momentum and no dampening"),
        (
            lambda p: optim.Adam([p], betas=(0.9, 1.0)),
            "Adam: betas[1] must be at least 0 and below 1, got 1.0",
        ),
        (lambda p: optim.SGD([p], lr="0.1"), "SGD: lr must be at least 0, got '0.1'"),
        (lambda p: optim.RMSprop([p], lr=None), "RMSprop: lr must be at least 0, got None"),
        (lambda p: optim.NAdam([p], betas=(0.9,)), "NAdam: betas must be two numbers, got (0.9,)"),
        (lambda p: optim.Adam([p], betas=0.9), "Adam: betas must be two numbers, got 0.9"),
        (lambda p: optim.Adadelta([p], rho=2.0), "Adadelta: rho must be at least 0 and at most 1, got 2.0"),
        (
            lambda p: optim.Adafactor([p], beta2_decay=1.0),
            "Adafactor: beta2_decay must be at most 0, got 1.0",
        ),
        (lambda p: optim.Adafactor([p], eps=1e-3), "Adafactor: eps must be two numbers, got 0.001"),
        (
            lambda p: optim.Rprop([p], etas=(0.0, 1.2)),
            "Rprop: etas must be a number between 0 and 1, and one above 1, got (0.0, 1.2)",
        ),
        (lambda p: optim.SGD([{"param": [p]}]), "SGD: a group needs its parameters as 'params', got param"),
        (
            lambda p: optim.SGD([{"params": {p}}]),
            (
                "SGD: optimizer parameters need to be organized in ordered collections, but the ordering of tensors "
                "in sets will change between runs. Please use a list instead."
            ),
        ),
        (
            lambda p: optim.lr_scheduler.CosineAnnealingWarmRestarts(optim.SGD([p]), 1.5),
            "CosineAnnealingWarmRestarts: T_0 and T_mult must be ints, at least 1, got 1.5, 1",
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


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs(search: str | None) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    results = []
    for library in (weft, torch):
        params, loss = problem(library, np.float64)
        optimizer = library.optim.LBFGS(
            params, lr=0.1 if search is None else 1.0, max_iter=4, line_search_fn=search
        )

        def closure(optimizer: Any = optimizer, loss: Any = loss) -> Any:
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        first = [optimizer.step(closure).item() for _ in range(2)]
        results.append([np.array(first), *(p.detach().numpy() for p in params)])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)
    with pytest.raises(weft.ArgumentError, match="LBFGS: step needs a closure"):
        optim.LBFGS([weft.ones(2, requires_grad=True)]).step()


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_cycled_momentum_reaches_compiled_steps_without_new_plans(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weft.core.compile.compiled_function import CompiledFunction

    def trained(xp: Any, steps: int) -> tuple[list[Any], list[int]]:
        params, loss = problem(xp)
        options = {"momentum": 0.9, "weight_decay": 0.01} if name == "SGD" else {}
        optimizer = getattr(xp.optim, name)(params, lr=0.05, **options)
        schedule = xp.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=8)

        def step() -> Any:
            value = loss()
            for p in params:
                p.grad = None
            value.backward()
            optimizer.step()
            return value.detach()

        compiled: Any = weft.compile(step) if xp is weft else step
        kept: list[int] = []
        for k in range(steps):
            compiled()
            schedule.step()
            for group in optimizer.param_groups:
                if k == 3:
                    group["weight_decay"] = 0.1
            if isinstance(compiled, CompiledFunction):
                kept.append(len(traces))
        return [p.detach().numpy() for p in params], kept

    import torch

    traces: list[int] = []
    original = CompiledFunction._trace
    monkeypatch.setattr(
        CompiledFunction, "_trace", lambda self, *a: (traces.append(1), original(self, *a))[1]
    )
    got, kept = trained(weft, 6)
    want, _ = trained(torch, 6)
    assert kept[-1] == kept[1]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", [*OPTIMIZERS, "Lion", "LAMB"])
def test_what_follows_the_first_step_is_planned_already(
    name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State is there before the first step, and numbers that change are read from memory."""
    from weft.scheduler import realize as planner

    kind, options = OPTIMIZERS.get(name, (name, {"lr": 0.05}))
    make, planned = planner._from_disk_or_built, list[int]()
    monkeypatch.setattr(planner, "_from_disk_or_built", lambda *a, **k: (planned.append(1), make(*a, **k))[1])
    with weft.device("dummy"):
        params, loss = problem(weft)
        optimizer = getattr(optim, kind)(params, **options)

        def step() -> Any:
            optimizer.zero_grad()
            value = loss()
            value.backward()
            optimizer.step()
            return value

        run_step: Any = weft.compile(step) if compiled else step
        run_step().item()
        planned.clear()
        for _ in range(3):
            run_step().item()
    assert not planned


@pytest.mark.parametrize("name", ["AdamW", "SGD", "RMSprop"])
def test_groups_of_one_shape_have_rules_of_their_own(name: str) -> None:
    """A rule is recorded for the options of its group, and again for others."""

    def trained(apart: bool) -> list[list[float]]:
        params = [nn.Parameter(weft.full((3,), 2.0)) for _ in range(2)]
        kind = getattr(weft.optim, name)
        decays = (0.1, 0.6)
        groups = [
            {"params": [p], "weight_decay": d, "maximize": d > 0.5}
            for p, d in zip(params, decays, strict=True)
        ]
        steppers = [kind([g], lr=0.1) for g in groups] if apart else [kind(groups, lr=0.1)]
        for k in range(4):
            for p in params:
                p.grad = weft.tensor([0.5] * 3)
            for o in steppers:
                if k == 2:
                    for g in o.param_groups:
                        g["weight_decay"] *= 2
                        g["maximize"] = not g["maximize"]
                o.step()
        return [p.tolist() for p in params]

    together = trained(apart=False)
    assert together == trained(apart=True)
    assert together[0] != together[1]
