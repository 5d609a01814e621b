"""Averages of weights, under torch's names. The averaged model is a module: it is in weft.nn, loaded when asked for."""
# Tests: tests/optim/test_lr_scheduler.py

from __future__ import annotations

import importlib
from typing import Any

from weft.optim.lr_scheduler import SWALR as SWALR

_IN_NN = frozenset({
    "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn", "get_swa_multi_avg_fn", "update_bn",
})  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _IN_NN:
        return getattr(importlib.import_module("weft.nn.averaging"), name)
    raise AttributeError(f"module 'weft.optim.swa_utils' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*_IN_NN, "SWALR"})
