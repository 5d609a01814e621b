"""torch.nn.parallel's functions and torch.distributed's names, for one process and one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, cast

import weft
from weft.nn.module import Module

DEFAULT_TIMEOUT = timedelta(minutes=30)


class group:  # noqa: N801  (torch's name)
    """torch.distributed.group: WORLD is the group of all processes, of which there is one."""

    WORLD = None
    NON_GROUP_MEMBER = -100


def get_backend(group: Any = None) -> str:
    """ "gloo", torch's for CPUs."""
    return "gloo"


def data_parallel(
    module: Any,
    inputs: Any,
    device_ids: Any = None,
    output_device: Any = None,
    dim: int = 0,
    module_kwargs: Any = None,
) -> Any:
    """module(*inputs): one device, and no copies."""
    return module(*_several(inputs), **(module_kwargs or {}))


def _several(inputs: Any) -> tuple[Any, ...]:
    return (
        cast("tuple[Any, ...]", inputs) if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    )


def parallel_apply(
    modules: Sequence[Any],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[Any] | None = None,
    devices: Any = None,
) -> list[Any]:
    """Each module of its input, one after the other."""
    none: list[Any] = [{}] * len(modules)
    return [m(*_several(x), **k) for m, x, k in zip(modules, inputs, kwargs_tup or none, strict=True)]


def replicate(network: Any, devices: Sequence[Any], detach: bool = False) -> list[Any]:
    """The module, once for each device: there is one."""
    return [network for _ in devices]


def scatter(inputs: Any, target_gpus: Sequence[Any], dim: int = 0) -> Any:
    """The inputs in parts along an axis, one for each device; other things than tensors as they are."""
    n = len(target_gpus)
    match inputs:
        case weft.Tensor():
            return tuple(inputs.chunk(n, dim))
        case tuple() | list() if inputs:
            kind = cast("Any", inputs).__class__
            each = [scatter(x, target_gpus, dim) for x in cast("Sequence[Any]", inputs)]
            return [kind(part) for part in zip(*each, strict=True)]
        case dict() if inputs:
            named = {k: scatter(v, target_gpus, dim) for k, v in cast("dict[Any, Any]", inputs).items()}
            return [{k: v[i] for k, v in named.items()} for i in range(n)]
        case _:
            return [inputs for _ in target_gpus]


def scatter_kwargs(inputs: Any, kwargs: Any, target_gpus: Sequence[Any], dim: int = 0) -> tuple[Any, Any]:
    """Arguments in parts along an axis, one for each device."""
    args: Any = scatter(inputs, target_gpus, dim) if inputs else [() for _ in target_gpus]
    named: Any = scatter(kwargs, target_gpus, dim) if kwargs else [{} for _ in args]
    return tuple(args), tuple(named)


def gather(outputs: Sequence[Any], target_device: Any, dim: int = 0) -> Any:
    """Parts along an axis as one; in dicts, lists and tuples, too."""
    match outputs[0]:
        case weft.Tensor():
            return weft.cat([x.reshape(1) if not x.ndim else x for x in outputs], dim)
        case None:
            return None
        case dict():
            keys = list(cast("dict[Any, Any]", outputs[0]))
            return {k: gather([o[k] for o in outputs], target_device, dim) for k in keys}
        case _:
            kind: Any = cast("Any", type(outputs[0]))
            return kind([gather(list(x), target_device, dim) for x in zip(*outputs, strict=True)])


def always_wrap_policy(*args: Any, **kwargs: Any) -> bool:
    """True."""
    return True


def lambda_auto_wrap_policy(
    module: Module, recurse: bool, nonwrapped_numel: int, lambda_fn: Callable[[Module], bool]
) -> bool:
    """True to go into, or to wrap, a module: by the function."""
    return recurse or lambda_fn(module)


def transformer_auto_wrap_policy(
    module: Module, recurse: bool, nonwrapped_numel: int, transformer_layer_cls: set[type[Module]]
) -> bool:
    """True to go into, or to wrap, a module: those of some classes."""
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(
    module: Module, recurse: bool, nonwrapped_numel: int, min_num_params: int = int(1e8), **kwargs: Any
) -> bool:
    """True to go into, or to wrap, a module: those with so many parameters."""
    return nonwrapped_numel >= min_num_params


class ModuleWrapPolicy:
    """Modules of some classes are to be wrapped."""

    def __init__(self, module_classes: Any) -> None:
        self._module_classes = set(module_classes)

    def __call__(self, module: Module, recurse: bool, *args: Any, **kwargs: Any) -> bool:
        return recurse or isinstance(module, tuple(self._module_classes))


class CustomPolicy:
    """Modules that a function chooses are to be wrapped."""

    def __init__(self, lambda_fn: Callable[[Module], Any]) -> None:
        self._lambda_fn = lambda_fn
