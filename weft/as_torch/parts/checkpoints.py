"""torch.utils.checkpoint beside weft's `checkpoint`: selective checkpoints' names, and modules under a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Any

import weft
from weft.core.grad import checkpointing
from weft.core.tensor.tensor import Tensor
from weft.nn.module import Module

__all__ = ["_infer_device_type", "_get_autocast_kwargs"]


class CheckpointPolicy(Enum):
    """The treatment of one operation's result in a selective checkpoint."""

    MUST_SAVE, PREFER_SAVE, MUST_RECOMPUTE, PREFER_RECOMPUTE, MUST_CPU_OFFLOAD = range(5)


class SelectiveCheckpointContext:
    """The context that a policy is asked with; weft asks none."""


class DefaultDeviceType:
    """The kind of device whose random numbers are kept: they are the same on all."""

    @staticmethod
    def get_device_type() -> str:
        """ "cuda", as in torch."""
        return "cuda"

    @staticmethod
    def set_device_type(device: str = "cuda") -> None:
        """Nothing."""


class CheckpointFunction:
    """torch's older form: `CheckpointFunction.apply(run, preserve, *args)`."""

    @staticmethod
    def apply(run_function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        """checkpoint(run, *args)."""
        return checkpointing.checkpoint(run_function, *args, preserve_rng_state=preserve_rng_state)


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Any = None,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: Any,
) -> Any:
    """weft's checkpoint; what is computed again is for weft to choose, so policies change nothing."""
    return checkpointing.checkpoint(function, *args, use_reentrant=use_reentrant, **kwargs)


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """weft's checkpoint_sequential."""
    return checkpointing.checkpoint_sequential(functions, segments, input, **kwargs)


def noop_context_fn() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Two contexts that do nothing."""
    return nullcontext(), nullcontext()


def create_selective_checkpoint_contexts(*args: Any, **kwargs: Any) -> Any:
    """Two contexts that do nothing: weft chooses itself what to keep."""
    return noop_context_fn()


def set_checkpoint_early_stop(enable: bool) -> AbstractContextManager[None]:
    """A context that changes nothing."""
    return nullcontext()


def set_checkpoint_debug_enabled(enabled: bool | None) -> AbstractContextManager[None]:
    """A context that changes nothing."""
    return nullcontext()


def check_backward_validity(inputs: Any) -> None:
    """Nothing."""


def detach_variable(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same values as new leaves that require grad as before."""
    return tuple(x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in inputs)


def get_device_states(*args: Any) -> tuple[list[int], list[Tensor]]:
    """No state of a device: the random numbers are those of the process."""
    return [], []


def set_device_states(devices: Any, states: Any, **kwargs: Any) -> None:
    """Nothing."""


def _infer_device_type(*args: Any) -> str:
    return "cpu"


def _get_autocast_kwargs(device_type: str = "cuda") -> tuple[dict[str, Any] | None, dict[str, Any]]:
    def now(kind: str) -> dict[str, Any]:
        return {
            "enabled": weft.is_autocast_enabled(kind),
            "dtype": weft.get_autocast_dtype(kind),
            "cache_enabled": False,
        }

    return now(device_type) if device_type in ("cuda", "cpu") else None, now("cpu")


class CheckpointWrapper(Module):
    """A module whose activations are computed again in the backward pass."""

    def __init__(self, module: Module, **kwargs: Any) -> None:
        super().__init__()
        self._checkpoint_wrapped_module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module under a checkpoint."""
        return checkpointing.checkpoint(self._checkpoint_wrapped_module, *args, **kwargs)


def checkpoint_wrapper(module: Module, *args: Any, **kwargs: Any) -> Module:
    """The module under a checkpoint."""
    return CheckpointWrapper(module)


offload_wrapper = checkpoint_wrapper


def apply_activation_checkpointing(
    model: Module,
    checkpoint_wrapper_fn: Callable[[Module], Module] = checkpoint_wrapper,
    check_fn: Callable[[Module], bool] = lambda m: True,
    auto_wrap_policy: Any = None,
) -> None:
    """Put every module that check_fn chooses under a checkpoint, in place."""
    for name, child in list(model.named_children()):
        apply_activation_checkpointing(child, checkpoint_wrapper_fn, check_fn)
        if check_fn(child):
            setattr(model, name, checkpoint_wrapper_fn(child))
