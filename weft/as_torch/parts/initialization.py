"""Parts of torch.nn.init beside weft.nn.init, of torch.nn.modules beside layers: helpers for programs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from weft.core.args.modes import no_grad
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.nn import ModuleList, functional, init

__all__ = ["_calculate_fan_in_and_fan_out", "_calculate_correct_fan", "_get_activation_fn", "_get_clones"]

SPARSE_BLOCK = 128
"""torch.nn.attention.flex_attention's size of blocks."""


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    return init.fans(tensor)


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    modes = ("fan_in", "fan_out")
    if mode.lower() not in modes:
        raise ArgumentError(f"init: mode {mode!r} is not one of {', '.join(modes)}")
    return init.fans(tensor)[modes.index(mode.lower())]


def _older(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(*args: Any, **kwargs: Any) -> Tensor:
        return function(*args, **kwargs)

    call.__name__ = function.__name__.removesuffix("_")
    return call


constant, dirac, eye, normal = map(_older, (init.constant_, init.dirac_, init.eye_, init.normal_))
orthogonal, sparse, uniform = map(_older, (init.orthogonal_, init.sparse_, init.uniform_))
kaiming_normal, kaiming_uniform = map(_older, (init.kaiming_normal_, init.kaiming_uniform_))
xavier_normal, xavier_uniform = map(_older, (init.xavier_normal_, init.xavier_uniform_))
_no_grad_uniform_, _no_grad_normal_, _no_grad_trunc_normal_ = init.uniform_, init.normal_, init.trunc_normal_
_no_grad_fill_, _no_grad_zero_ = init.constant_, init.zeros_


def _get_activation_fn(activation: str) -> Callable[[Tensor], Tensor]:
    functions: dict[str, Callable[[Tensor], Tensor]] = {"relu": functional.relu, "gelu": functional.gelu}
    if activation not in functions:
        raise ArgumentError(f"activation should be relu/gelu, not {activation}")
    return functions[activation]


def _get_clones(module: Any, N: int) -> Any:
    return ModuleList([copy.deepcopy(module) for _ in range(N)])


def skip_init(module_cls: Any, *args: Any, **kwargs: Any) -> Any:
    """The module with zeros for parameters, which are to be loaded."""
    module = module_cls(*args, **kwargs)
    with no_grad():
        for p in module.parameters():
            p.zero_()
    return module
