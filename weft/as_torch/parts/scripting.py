"""Parts of torch.jit, torch.fx and torch's C++ modules that are more than names that change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import weft
from weft.core.tensor.tensor import Tensor
from weft.nn.module import Module

T = TypeVar("T")

REQUIRED = object()
"""torch.optim.optimizer.required: the default of an argument that has to be given."""


class _Asked(type):
    """Ordinary modules are no instances, though the class is that of modules for those who subclass it."""

    def __instancecheck__(cls, instance: object) -> bool:
        return type.__instancecheck__(cls, instance)


class ScriptModule(Module, metaclass=_Asked):
    """A module: as torch.jit.ScriptModule for those who subclass it. weft scripts none."""


class DispatchKeySet:
    """A set of keys of torch's dispatcher, which no function here asks about."""

    def __init__(self, *keys: Any) -> None:
        self.keys = keys

    def has(self, key: Any) -> bool:
        """True where a key is among them."""
        return key in self.keys

    def __or__(self, other: DispatchKeySet) -> DispatchKeySet:
        return DispatchKeySet(*self.keys, *other.keys)


class Attribute(NamedTuple):
    """A value of a scripted module with its type."""

    value: Any
    type: Any


def annotate(the_type: Any, the_value: T) -> T:
    """The value."""
    return the_value


def same(x: T, *args: Any, **kwargs: Any) -> T:
    """The first argument."""
    return x


def boolean_dispatch(
    arg_name: str,
    arg_index: int,
    default: bool,
    if_true: Callable[..., Any],
    if_false: Callable[..., Any],
    module_name: str | None = None,
    func_name: str | None = None,
) -> Callable[..., Any]:
    """A function that is one or the other, by the value of one of its arguments."""

    def call(*args: Any, **kwargs: Any) -> Any:
        chosen = kwargs.get(arg_name, args[arg_index] if arg_index < len(args) else default)
        return (if_true if chosen else if_false)(*args, **kwargs)

    return call


def known(x: Any) -> bool:
    """True where it holds: sizes are known when a program asks."""
    return bool(x)


def no_symbols(*args: Any) -> set[Any]:
    """The empty set: sizes are numbers."""
    return set()


def shape_as_tensor(x: Tensor) -> Tensor:
    """The shape as a tensor of int64."""
    return weft.tensor(list(x.shape), dtype=weft.int64)


def reshape_from_tensor_shape(x: Tensor, shape: Tensor) -> Tensor:
    """`x` in the shape that a tensor tells."""
    return x.reshape([int(n) for n in cast("list[int]", shape.tolist())])


def privateuse1() -> str:
    """The name of a device of one's own, if none was registered."""
    return "privateuseone"


class Stub(Module):
    """A module that gives its input, as torch's quantization stubs do in a model that is not quantized."""

    def __init__(self, qconfig: Any = None) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        """x."""
        return x


class FloatFunctional(Module):
    """Additions and products as a module, as torch.nn.quantized.FloatFunctional."""

    def forward(self, x: Any) -> Any:
        """RuntimeError: use one of its functions."""
        raise RuntimeError(
            "FloatFunctional is not intended to use the 'forward'. Please use the underlying operation"
        )

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y."""
        return x + y

    add_scalar = add

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """x * y."""
        return x * y

    mul_scalar = mul

    def cat(self, x: list[Tensor], dim: int = 0) -> Tensor:
        """The tensors, one after the other."""
        return weft.cat(x, dim)

    def add_relu(self, x: Tensor, y: Tensor) -> Tensor:
        """relu(x + y)."""
        return (x + y).relu()

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        """x @ y."""
        return x @ y


def parse_to(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool, Any]:
    """(device, dtype, non_blocking, memory_format) of the arguments of `to`."""
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    rest = list(args)
    if rest and isinstance(rest[0], Tensor):
        device, dtype = rest[0].device, rest[0].dtype
        rest.pop(0)
    for x in rest[:2]:
        if isinstance(x, weft.dtype):
            dtype = x
        elif isinstance(x, str) or (isinstance(x, int) and not isinstance(x, bool)):
            device = weft.device(f"cuda:{x}" if isinstance(x, int) else x)
    flags = [x for x in rest if isinstance(x, bool)]
    blocking = bool(kwargs.get("non_blocking", flags[0] if flags else False))
    return device, dtype, blocking, kwargs.get("memory_format")
