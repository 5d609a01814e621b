"""A checkpoint's activations are not kept: the workspace of a training step is that of few blocks."""

from __future__ import annotations

from typing import Any

import weft
from weft import nn
from weft.autograd import checkpoint
from weft.backends.registry import open_device
from weft.core.args.handle import value_of
from weft.scheduler.assembly import Job
from weft.scheduler.build import build
from weft.scheduler.signature import signature


def _workspace(blocks: int, saved: bool) -> int:
    layers: list[Any] = [
        nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(blocks)
    ]
    params = [p for layer in layers for p in layer.parameters()]
    h = weft.ones(64, 16).contiguous().realize()
    for layer in layers:
        h = checkpoint(layer, h) if saved else layer(h)
    grads = weft.autograd.grad((h * h).mean(), params)
    nodes = tuple(value_of("test", g).node for g in grads)
    sig = signature(nodes)
    made, _ = build(Job(nodes, sig.leaves, sig.variables, {}), open_device("cpu:0"))
    plan = made.plan({})
    return plan.commands.workspace_bytes


def test_checkpoints_save_memory() -> None:
    kept, saved = _workspace(6, False), _workspace(6, True)
    assert saved < kept / 2, (saved, kept)
