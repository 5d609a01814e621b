"""Schedulers of learning rates one after the other, chained, saved and loaded, against torch's."""

from __future__ import annotations

import math
import os
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft

torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "40"))

Make = Callable[[Any, Any], Any]
MAKERS: dict[str, Make] = {
    "lambda": lambda s, o: s.LambdaLR(o, lambda e: 0.9**e),
    "multiplicative": lambda s, o: s.MultiplicativeLR(o, lambda e: 0.8 + 0.01 * e),
    "step": lambda s, o: s.StepLR(o, 3, 0.5),
    "multi step": lambda s, o: s.MultiStepLR(o, [2, 5, 5, 7], 0.3),
    "constant": lambda s, o: s.ConstantLR(o, 0.25, 4),
    "linear": lambda s, o: s.LinearLR(o, 0.2, 0.9, 6),
    "exponential": lambda s, o: s.ExponentialLR(o, 0.7),
    "polynomial": lambda s, o: s.PolynomialLR(o, 8, 2.0),
    "cosine": lambda s, o: s.CosineAnnealingLR(o, 4, 0.01),
    "restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 3, 2, 0.01),
    "cyclic": lambda s, o: s.CyclicLR(o, 0.01, 0.1, 3, 4, mode="triangular2"),
    "cyclic exp": lambda s, o: s.CyclicLR(o, [0.01, 0.02], [0.1, 0.3], 3, mode="exp_range", gamma=0.9),
    "one cycle": lambda s, o: s.OneCycleLR(o, 0.5, 40),
    "three phases": lambda s, o: s.OneCycleLR(
        o, [0.5, 0.2], 40, three_phase=True, anneal_strategy="linear", pct_start=0.25
    ),
    "plateau": lambda s, o: s.ReduceLROnPlateau(o, patience=1, cooldown=1, factor=0.5),
    "plateau max": lambda s, o: s.ReduceLROnPlateau(o, "max", 0.5, 0, threshold_mode="abs", min_lr=0.002),
    "sequential": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, 1.0, 3), s.ExponentialLR(o, 0.9), s.CosineAnnealingLR(o, 5)], [3, 6]
    ),
    "chained": lambda s, o: s.ChainedScheduler([s.ConstantLR(o, 0.5, 3), s.ExponentialLR(o, 0.9)]),
}


def optimizer(lib: Any, kind: str) -> Any:
    groups = [{"params": [lib.ones(1, requires_grad=True)], "lr": lr} for lr in (0.1, 0.05)]
    return lib.optim.SGD(groups, lr=0.1, momentum=0.9) if kind == "SGD" else lib.optim.Adam(groups, lr=0.1)


def schedulers(lib: Any) -> Any:
    return lib.optim.lr_scheduler


def step(scheduler: Any, k: int) -> None:
    metric = (math.sin(k * 1.7),) if "Plateau" in type(scheduler).__name__ else ()
    scheduler.step(*metric)


def state(o: Any) -> list[float]:
    keys = ("lr", "initial_lr", "momentum", "betas", "max_lr", "min_lr")
    return [float(x) for g in o.param_groups for k in keys if k in g for x in np.ravel(g[k])]


def sequence(lib: Any, names: list[str], kind: str, reload: int) -> list[list[float]]:
    """The rates at each epoch of schedulers made one after the other; at one epoch they are saved and loaded anew."""
    rows: list[list[float]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        o = optimizer(lib, kind)
        made = [MAKERS[n](schedulers(lib), o) for n in names]
        rows.append(state(o))
        for k in range(14):
            if k == reload:
                saved, inner = [s.state_dict() for s in made], o.state_dict()
                o = optimizer(lib, kind)
                made = [MAKERS[n](schedulers(lib), o) for n in names]
                o.load_state_dict(inner)
                for s, d in zip(made, saved, strict=True):
                    s.load_state_dict(d)
            o.step()
            for s in made:
                step(s, k)
            rows.append(state(o) + [float(x) for s in made for x in s.get_last_lr()])
    return rows


def same(names: list[str], kind: str, reload: int = -1) -> None:
    mine, theirs = (sequence(lib, names, kind, reload) for lib in (weft, torch))
    assert [len(r) for r in mine] == [len(r) for r in theirs], names
    for k, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15, err_msg=f"{names} {kind} {reload} epoch {k}")


@pytest.mark.parametrize("name", MAKERS)
def test_each(name: str) -> None:
    same([name], "SGD")
    same([name], "Adam", reload=5)


def test_one_after_another() -> None:
    draw = random.Random(os.environ.get("WEFT_FUZZ_SEED", "7"))
    for _ in range(EXAMPLES):
        names = [draw.choice(list(MAKERS)) for _ in range(draw.choice([2, 2, 3]))]
        same(names, draw.choice(["SGD", "Adam"]), draw.choice([-1, 4, 9]))


@pytest.mark.parametrize(
    "name", [n for n in MAKERS if "plateau" not in n and n not in ("sequential", "chained")]
)
def test_an_epoch_of_ones_choice(name: str) -> None:
    found: list[list[list[float]]] = []
    for lib in (weft, torch):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            o = optimizer(lib, "SGD")
            s = MAKERS[name](schedulers(lib), o)
            rows = []
            for epoch in (4, 2, 9, None, None):
                s.step() if epoch is None else s.step(epoch)
                rows.append(state(o))
        found.append(rows)
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_swa() -> None:
    from weft.optim.swa_utils import SWALR

    for kind in ("cos", "linear"):
        for epochs in (0, 1, 5):
            found = []
            for lib, made in ((weft, SWALR), (torch, torch.optim.swa_utils.SWALR)):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    o = optimizer(lib, "SGD")
                    first = schedulers(lib).ExponentialLR(o, 0.9)
                    s = made(o, [0.01, 0.02], epochs, kind)
                    rows = [state(o)]
                    for _ in range(8):
                        first.step()
                        s.step()
                        rows.append(state(o))
                found.append(rows)
            np.testing.assert_allclose(*found, rtol=1e-12)


def test_schedulers_of_users() -> None:
    """A subclass written for torch defines get_lr and reads base_lrs, last_epoch and _step_count."""
    found = []
    for lib in (weft, torch):

        class Halves(schedulers(lib).LRScheduler):  # type: ignore[misc]
            def get_lr(self) -> list[float]:
                return [b / (1 + self.last_epoch + self._step_count) for b in self.base_lrs]

        o = optimizer(lib, "SGD")
        s = Halves(o)
        rows = [state(o)]
        for _ in range(3):
            o.step()
            s.step()
            rows.append(state(o))
        found.append(rows)
        assert sorted(k for k in s.state_dict() if not k.startswith("_")) == ["base_lrs", "last_epoch"]
    np.testing.assert_allclose(*found)


def test_rates_that_are_tensors() -> None:
    class Plain(weft.optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            return None

    rate = weft.tensor(0.5)
    o = Plain([weft.ones(1, requires_grad=True)], {"lr": rate})
    s = schedulers(weft).ExponentialLR(o, 0.5)
    s.step()
    assert o.param_groups[0]["lr"] is rate and rate.item() == 0.25
    assert float(s.get_last_lr()[0]) == 0.25 and float(s.base_lrs[0]) == 0.5


def test_resuming_needs_the_first_rates() -> None:
    with pytest.raises(KeyError, match="initial_lr"):
        schedulers(weft).StepLR(optimizer(weft, "SGD"), 3, last_epoch=2)
    with pytest.raises(TypeError, match="is not an Optimizer"):
        schedulers(weft).StepLR(3, 3)
