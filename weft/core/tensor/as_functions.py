"""Methods of Tensor as functions, and questions about objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core.args.handle import value_of
from weft.core.tensor.tensor import Tensor


def is_tensor(obj: object) -> bool:
    """True for a Tensor."""
    return isinstance(obj, Tensor)


def numel(input: Tensor) -> Any:
    """The number of elements."""
    return input.numel()


def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """A tensor of its own with the same values."""
    return input.clone()


def conj(input: Tensor) -> Tensor:
    """The tensor itself: weft has real numbers only. `real` and `resolve_conj` are the same."""
    value_of("conj", input)
    return input


def detach(input: Tensor) -> Tensor:
    """The same values, without history."""
    return input.detach()


def fill(input: Tensor, value: Any) -> Tensor:
    """`value` in every element, in the shape and dtype of the input."""
    return input.clone().fill_(value)


def cond(
    pred: Tensor | bool,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: Sequence[Any] = (),
) -> Any:
    """true_fn(*operands) where pred, a bool or a tensor of one element that is computed, holds, else false_fn."""
    return (true_fn if bool(pred) else false_fn)(*operands)


def assert_true(condition: Any, message: str) -> None:
    """AssertionError with the message unless the condition holds, which is computed."""
    if not condition:
        raise AssertionError(message)


def is_nonzero(input: Tensor) -> bool:
    """True for a tensor of one element that is not 0. Computes."""
    return input.is_nonzero()


def is_floating_point(input: Tensor) -> bool:
    """True for float dtypes."""
    return input.is_floating_point()


def is_complex(input: Tensor) -> bool:
    """False: weft has real numbers only."""
    return input.is_complex()


def is_signed(input: Tensor) -> bool:
    """True for dtypes with a sign."""
    return input.is_signed()


def is_same_size(input: Tensor, other: Tensor) -> bool:
    """True for equal shapes."""
    return input.is_same_size(other)


def resize_as_(input: Tensor, the_template: Tensor) -> Tensor:
    """The handle in the shape of another, which has as many elements."""
    return input.resize_as_(the_template)


def get_device(input: Tensor) -> int:
    """The number of the device among those of its kind; -1 for the CPU."""
    return input.get_device()


def is_storage(obj: object) -> bool:
    """False: weft shows no storages."""
    return False


def typename(obj: object) -> str:
    """The full name of an object's type; of a tensor that of its dtype and device, "weft.FloatTensor"."""
    if isinstance(obj, Tensor):
        return obj.type()
    kind = type(obj)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
