"""Optimizers through Python's pickle and copy: they go on as they would have."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import weft
from weft import nn, optim

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: optim.AdamW(p, lr=0.1, betas=(0.8, 0.9)),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.1),
}


def steps(model: nn.Module, optimizer: optim.Optimizer, count: int) -> Any:
    for _ in range(count):
        optimizer.zero_grad()
        (model(weft.arange(6.0).reshape(3, 2)) ** 2).mean().backward()
        optimizer.step()
    return [p.tolist() for p in model.parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("protocol", [2, 5, None])
def test_a_pickled_optimizer_goes_on(name: str, protocol: int | None) -> None:
    model = nn.Linear(2, 2)
    optimizer = OPTIMIZERS[name](model.parameters())
    schedule = optim.lr_scheduler.StepLR(optimizer, 1)
    steps(model, optimizer, 2)
    schedule.step()
    run = (model, optimizer, schedule)
    twin, again, theirs = (
        copy.deepcopy(run) if protocol is None else pickle.loads(pickle.dumps(run, protocol))
    )
    assert (
        again.param_groups[0]["params"][0] is twin.weight and theirs.get_last_lr() == schedule.get_last_lr()
    )
    again.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] = 0.02
    assert steps(twin, again, 2) == steps(model, optimizer, 2)
