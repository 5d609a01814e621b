"""Reverse-mode differentiation over the graph: one table of vector-Jacobian products and the backward walk.

For users, `weft.autograd` also offers torch's tools (grad, Function, functional.jacobian ...). They take Tensors, of
which this package knows nothing, so they are in weft.core, and looked up there when first asked for.
"""
# Tests: tests/autograd/test_reverse.py, tests/autograd/test_tools.py

from __future__ import annotations

import importlib
from operator import attrgetter
from typing import Any

_TOOLS = {
    "Function": "weft.core.grad.function:Function",
    "FunctionCtx": "weft.core.grad.function:FunctionCtx",
    "once_differentiable": "weft.core.grad.function:once_differentiable",
    "backward": "weft.core.grad.differentiate:backward_all",
    "grad": "weft.core.grad.differentiate:gradients",
    "functional": "weft.core.grad.jacobians:functional",
    "hessian": "weft.core.grad.jacobians:functional.hessian",
    "jacobian": "weft.core.grad.jacobians:functional.jacobian",
    "jvp": "weft.core.grad.jacobians:functional.jvp",
    "vjp": "weft.core.grad.jacobians:functional.vjp",
    "gradcheck": "weft.core.grad.gradcheck:gradcheck",
    "gradgradcheck": "weft.core.grad.gradcheck:gradgradcheck",
    "no_grad": "weft.core.args.modes:no_grad",
    "enable_grad": "weft.core.args.modes:enable_grad",
    "inference_mode": "weft.core.args.modes:inference_mode",
    "set_grad_enabled": "weft.core.args.modes:set_grad_enabled",
    "Variable": "weft.core.args.modes:variable",
    "detect_anomaly": "weft.core.args.modes:detect_anomaly",
    "set_detect_anomaly": "weft.core.args.modes:detect_anomaly",
    "checkpoint": "weft.core.grad.checkpointing:checkpoint",
    "checkpoint_sequential": "weft.core.grad.checkpointing:checkpoint_sequential",
}


def __getattr__(name: str) -> Any:
    if name not in _TOOLS:
        raise AttributeError(f"module 'weft.autograd' has no attribute {name!r}")
    module, _, attribute = _TOOLS[name].partition(":")
    found = globals()[name] = attrgetter(attribute)(importlib.import_module(module))
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_TOOLS})
