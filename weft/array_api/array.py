"""The array object of the standard: a Tensor whose operators follow the standard's promotion instead of torch's."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeGuard, TypeVar, cast

from weft.array_api import elementwise, products
from weft.core.args.handle import writing
from weft.core.layout import creation, indexing
from weft.core.tensor.tensor import Tensor
from weft.ir.dtypes import bool_

P = ParamSpec("P")
R = TypeVar("R")


def as_arrays(result: Any) -> Any:
    """A Tensor, or those in a tuple, named tuple or list, as Arrays; anything else as it is."""
    match result:
        case Array():
            return result
        case Tensor():
            out = object.__new__(Array)
            out.value = result.value
            return out
        case list():
            return [as_arrays(r) for r in cast("list[Any]", result)]
        case tuple():
            parts = [as_arrays(r) for r in cast("tuple[Any, ...]", result)]
            kind = type(cast("tuple[Any, ...]", result))
            return kind(*parts) if hasattr(kind, "_fields") else tuple(parts)
        case _:
            return result


def giving_arrays(function: Callable[P, R]) -> Callable[P, R]:
    """The function with Arrays for results."""

    @wraps(function)
    def standard(*args: P.args, **kwargs: P.kwargs) -> R:
        return as_arrays(function(*args, **kwargs))

    return standard


def offer_arrays(namespace: dict[str, Any], names: list[str]) -> None:
    """Replace the functions of a namespace by those that give Arrays."""
    for name in names:
        if isinstance(namespace[name], types.FunctionType):
            namespace[name] = giving_arrays(namespace[name])


def _binary(function: Callable[..., Tensor]) -> Any:
    def operator(self: Array, other: Any, /) -> Any:
        if not isinstance(other, (Tensor, bool, int, float)):
            return NotImplemented
        return as_arrays(function(self, other))

    return operator


def _reflected(function: Callable[..., Tensor]) -> Any:
    def operator(self: Array, other: Any, /) -> Any:
        if not isinstance(other, (Tensor, bool, int, float)):
            return NotImplemented
        return as_arrays(function(other, self))

    return operator


def _in_place(function: Callable[..., Tensor]) -> Any:
    def operator(self: Array, other: Any, /) -> Any:
        if not isinstance(other, (Tensor, bool, int, float)):
            return NotImplemented
        with writing:
            return self.become(f"{function.__name__} in place", function(self, other).value)

    return operator


def _unary(function: Callable[[Tensor], Tensor]) -> Any:
    def operator(self: Array, /) -> Any:
        return as_arrays(function(self))

    return operator


def _empty_mask(key: object) -> TypeGuard[Tensor]:
    """True for a mask without elements: it picks nothing, whatever the sizes, as in NumPy."""
    return isinstance(key, Tensor) and key.dtype is bool_ and 0 in key.shape


class Array(Tensor):
    """A Tensor with the operators and attributes of the array API standard.

    Operands without dimensions promote like all others, results are Arrays, and `size` is the number of elements.
    Everything else is Tensor's. Source: https://data-apis.org/array-api/2024.12.
    """

    __hash__ = object.__hash__

    __add__, __radd__, __iadd__ = (f(elementwise.add) for f in (_binary, _reflected, _in_place))
    __sub__, __rsub__, __isub__ = (f(elementwise.subtract) for f in (_binary, _reflected, _in_place))
    __mul__, __rmul__, __imul__ = (f(elementwise.multiply) for f in (_binary, _reflected, _in_place))
    __truediv__, __rtruediv__, __itruediv__ = (
        f(elementwise.divide) for f in (_binary, _reflected, _in_place)
    )
    __floordiv__, __rfloordiv__, __ifloordiv__ = (
        f(elementwise.floor_divide) for f in (_binary, _reflected, _in_place)
    )
    __mod__, __rmod__, __imod__ = (f(elementwise.remainder) for f in (_binary, _reflected, _in_place))
    __pow__, __rpow__, __ipow__ = (f(elementwise.pow) for f in (_binary, _reflected, _in_place))
    __matmul__, __rmatmul__, __imatmul__ = (f(products.matmul) for f in (_binary, _reflected, _in_place))
    __and__, __rand__, __iand__ = (f(elementwise.bitwise_and) for f in (_binary, _reflected, _in_place))
    __or__, __ror__, __ior__ = (f(elementwise.bitwise_or) for f in (_binary, _reflected, _in_place))
    __xor__, __rxor__, __ixor__ = (f(elementwise.bitwise_xor) for f in (_binary, _reflected, _in_place))
    __lshift__, __rlshift__, __ilshift__ = (
        f(elementwise.bitwise_left_shift) for f in (_binary, _reflected, _in_place)
    )
    __rshift__, __rrshift__, __irshift__ = (
        f(elementwise.bitwise_right_shift) for f in (_binary, _reflected, _in_place)
    )
    __lt__, __le__ = _binary(elementwise.less), _binary(elementwise.less_equal)
    __gt__, __ge__ = _binary(elementwise.greater), _binary(elementwise.greater_equal)
    __eq__, __ne__ = _binary(elementwise.equal), _binary(elementwise.not_equal)
    __neg__, __pos__ = _unary(elementwise.negative), _unary(elementwise.positive)
    __abs__, __invert__ = _unary(elementwise.abs), _unary(elementwise.bitwise_invert)

    def __getitem__(self, key: Any, /) -> Array:
        if (
            _empty_mask(key)
            and key.ndim <= self.ndim
            and all(k in (0, n) for k, n in zip(key.shape, self.shape, strict=False))
        ):
            return as_arrays(
                creation.zeros((0, *self.shape[key.ndim :]), dtype=self.dtype, device=self.device)
            )
        return as_arrays(indexing.getitem(self, key))

    def __dlpack_device__(self) -> tuple[int, int]:
        return super().__dlpack_device__()

    @property
    def size(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]  (torch's is a method)
        """The number of elements."""
        return cast("int", self.numel())

    @property
    def T(self) -> Array:
        """A matrix transposed."""
        return as_arrays(products.matrix_transpose(self))

    @property
    def mT(self) -> Array:
        """The last two axes exchanged."""
        return as_arrays(products.matrix_transpose(self))

    def to_device(self, device: str, /, *, stream: Any = None) -> Array:
        """The array on a device. Streams are weft's own: `stream` must be None."""
        if stream is not None:
            raise ValueError("to_device: weft chooses streams itself; stream must be None")
        return as_arrays(self.to(device))
