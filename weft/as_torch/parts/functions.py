"""Functions of torch's own namespace and of torch._utils that are checks, questions and little tools."""

from __future__ import annotations

import math
import operator
import platform
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, cast

import weft
from weft.core.composed.autocast import get_autocast_dtype, is_autocast_enabled
from weft.core.tensor.tensor import Tensor
from weft.distributions.distribution import known

__all__ = [
    "_assert",
    "_assert_async",
    "_check",
    "_check_is_size",
    "_check_index",
    "_check_value",
    "_check_type",
    "_check_not_implemented",
    "_check_tensor_all",
    "_is_all_true",
    "_is_any_true",
    "_flatten_dense_tensors",
    "_unflatten_dense_tensors",
    "_take_tensors",
    "_get_all_device_indices",
    "_get_available_device_type",
    "_get_device_index",
]

SymInt, SymFloat, SymBool = (type(n, (), {"__doc__": "Sizes are Python's numbers here."}) for n in (
    "SymInt", "SymFloat", "SymBool",
))  # fmt: skip


def _assert(condition: Any, message: str = "") -> None:
    """AssertionError where the condition does not hold."""
    if not condition:
        raise AssertionError(message)


def _assert_async(input: Tensor, assert_msg: str = "") -> None:
    """RuntimeError where the one element is 0. Computes it."""
    if not bool(input):
        raise RuntimeError(assert_msg or "Expected Tensor with single nonzero value, but got zero")


def _check_with(error: type[Exception], condition: Any, message: Any) -> None:
    if not condition:
        text = (
            "Expected cond to be True"
            if message is None
            else str(message() if callable(message) else message)
        )
        raise error(text)


def _check(cond: Any, message: Any = None) -> None:
    _check_with(RuntimeError, cond, message)


def _check_is_size(i: Any, message: Any = None, *, max: Any = None) -> None:
    _check_with(RuntimeError, i >= 0 and (max is None or i <= max), message)


def _check_index(cond: Any, message: Any = None) -> None:
    _check_with(IndexError, cond, message)


def _check_value(cond: Any, message: Any = None) -> None:
    _check_with(ValueError, cond, message)


def _check_type(cond: Any, message: Any = None) -> None:
    _check_with(TypeError, cond, message)


def _check_not_implemented(cond: Any, message: Any = None) -> None:
    _check_with(NotImplementedError, cond, message)


def _check_tensor_all(cond: Tensor, message: Any = None) -> None:
    _check_with(RuntimeError, bool(cond.all()), message)


def _is_all_true(input: Tensor) -> Tensor:
    return input.all()


def _is_any_true(input: Tensor) -> Tensor:
    return input.any()


def no(*args: Any, **kwargs: Any) -> bool:
    """False."""
    return False


def compiled_with_cxx11_abi() -> bool:
    """True, as torch on Linux."""
    return True


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """False."""
    return False


def is_inference_mode_enabled() -> bool:
    """True where gradients are not recorded for good; weft's inference_mode is no_grad."""
    return not weft.is_grad_enabled()


def is_autocast_cpu_enabled() -> bool:
    """True where autocast is on for the CPU."""
    return is_autocast_enabled("cpu")


def is_autocast_cache_enabled() -> bool:
    """False: casts are fused, so there is nothing to keep."""
    return False


def get_autocast_cpu_dtype() -> Any:
    """The dtype of autocast on the CPU."""
    return get_autocast_dtype("cpu")


def get_autocast_gpu_dtype() -> Any:
    """The dtype of autocast on GPUs."""
    return get_autocast_dtype("cuda")


def _outside_contexts(name: str) -> Callable[..., None]:
    def call(*args: Any, **kwargs: Any) -> None:
        from weft.as_torch.kinds import refuse

        refuse(f"torch.{name}", "use the context torch.autocast(device, dtype, enabled)")

    return call


set_autocast_enabled = _outside_contexts("set_autocast_enabled")
set_autocast_dtype = _outside_contexts("set_autocast_dtype")
set_autocast_cpu_enabled = _outside_contexts("set_autocast_cpu_enabled")
set_autocast_cpu_dtype = _outside_contexts("set_autocast_cpu_dtype")
set_autocast_gpu_dtype = _outside_contexts("set_autocast_gpu_dtype")


def get_device_module(device: Any = None) -> Any:
    """torch.cuda, torch.mps ...: the module of a kind of device; by default that of the default device."""
    kind = str(weft.get_default_device() if device is None else device).partition(":")[0]
    return import_module(f"torch.{kind}")


def set_flush_denormal(mode: bool) -> bool:
    """False: it is not changed, which torch says by False, too."""
    return False


def spmm(input: Tensor, mat2: Tensor) -> Tensor:
    """The product, of dense matrices."""
    return weft.mm(input, mat2)


sym_float, sym_int, sym_not = float, int, operator.not_
sym_max, sym_min = max, min


def sym_sqrt(a: float) -> float:
    """The square root of a number."""
    return a**0.5


def sym_sum(args: Sequence[Any]) -> Any:
    """The sum of numbers."""
    return sum(args)


def sym_ite(b: Any, t: Any, f: Any) -> Any:
    """t if b else f."""
    return t if b else f


def thread_safe_generator() -> None:
    """None: this is no worker of a loader of data."""


def get_file_path(*path_components: str) -> str:
    """A path below torch's folder, where there is nothing."""
    return "/".join(("torch", *path_components))


def set_module(obj: Any, mod: Any) -> None:
    """Set the module that a class or a function says it is from."""
    obj.__module__ = mod


def swap_tensors(t1: Tensor, t2: Tensor) -> None:
    """Have each of two tensors stand for the other's values."""
    first, second = t1.detach().clone(), t2.detach().clone()
    t1.data, t2.data = second, first


def group_by_device_and_dtype(tensorlistlist: Sequence[Sequence[Any]], with_indices: bool = False) -> Any:
    """(device, dtype) of the first list's tensors -> (the lists' tensors there, their numbers)."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for i, t in enumerate(tensorlistlist[0]):
        groups[t.device, t.dtype].append(i)
    return {
        key: ([[xs[i] for i in where] if xs else [] for xs in tensorlistlist], where if with_indices else [])
        for key, where in groups.items()
    }


def _flatten_dense_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """All elements, one tensor after the other."""
    return weft.cat([t.reshape(-1) for t in tensors])


def _unflatten_dense_tensors(flat: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The elements in the shapes of tensors, one after the other."""
    parts = flat.split([t.numel() for t in tensors])
    return tuple(p.reshape(t.shape) for p, t in zip(parts, tensors, strict=True))


def _take_tensors(tensors: Sequence[Tensor], size_limit: int) -> Iterator[list[Tensor]]:
    """Tensors of a type, in groups of up to so many bytes."""
    groups: dict[Any, list[Tensor]] = defaultdict(list)
    sizes: dict[Any, int] = defaultdict(int)
    for t in tensors:
        nbytes = math.prod(known(t.shape)) * t.element_size()
        if groups[t.dtype] and sizes[t.dtype] + nbytes > size_limit:
            yield groups.pop(t.dtype)
            sizes[t.dtype] = 0
        groups[t.dtype].append(t)
        sizes[t.dtype] += nbytes
    yield from (g for g in groups.values() if g)


def _get_all_device_indices() -> list[int]:
    return list(range(cast("Any", import_module("weft.cuda")).device_count()))


def _get_available_device_type() -> str | None:
    return "cuda" if _get_all_device_indices() else None


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    if isinstance(device, int):
        return device
    _, _, number = str(device or "").partition(":")
    return int(number) if number else (0 if "cuda" in str(device or "cuda") else -1)


class ExceptionWrapper:
    """An error of a worker, to be raised elsewhere."""

    def __init__(self, exc_info: Any = None, where: str = "in background") -> None:
        self.error, self.where = (exc_info[1] if exc_info else None), where

    def reraise(self) -> None:
        """Raise it."""
        raise self.error or RuntimeError(f"an error {self.where}")


def environment() -> str:
    """The machine, as a report of an error would describe it."""
    return f"weft {weft.__version__} in torch's place, Python {platform.python_version()} on {platform.platform()}"


def __getattr__(name: str) -> Any:
    """`topk_result` ...: the class of what weft.topk gives."""
    kind = name.removesuffix("_result")
    if kind == name:
        raise AttributeError(name)
    example = weft.ones(2)
    args: tuple[Any, ...] = {"topk": (1,), "kthvalue": (1,), "aminmax": ()}.get(kind, (0,))
    return cast("Any", type(getattr(example, kind)(*args)))
