"""torch._foreach_*: one function on every tensor of a list. What they build is one graph, computed in one plan.

Each function is a row of a table: how its arguments are spread over the list, and what is called for each tensor. The
in-place form of a row has the name with `_`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from weft.core.args.handle import Handle, describe
from weft.core.functions import reductions
from weft.core.functions.matmul import matmul
from weft.core.functions.norms import vector_norm
from weft.core.pointwise import elementwise
from weft.core.pointwise.arithmetic import clamp_max, clamp_min
from weft.core.pointwise.special_functions import erfc, lgamma
from weft.core.pointwise.trigonometry import acos, asin, atan
from weft.errors import ArgumentError, DTypeError

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

_UNARY: dict[str, Callable[..., Any]] = {
    "abs": elementwise.abs, "acos": acos, "asin": asin, "atan": atan, "ceil": elementwise.ceil,
    "cos": elementwise.cos, "cosh": elementwise.cosh, "erf": elementwise.erf, "erfc": erfc,
    "exp": elementwise.exp, "expm1": elementwise.expm1, "floor": elementwise.floor, "frac": elementwise.frac,
    "lgamma": lgamma, "log": elementwise.log, "log10": elementwise.log10, "log1p": elementwise.log1p,
    "log2": elementwise.log2, "neg": elementwise.neg, "reciprocal": elementwise.reciprocal,
    "round": elementwise.round, "rsqrt": elementwise.rsqrt, "sigmoid": elementwise.sigmoid,
    "sign": elementwise.sign, "sin": elementwise.sin, "sinh": elementwise.sinh, "sqrt": elementwise.sqrt,
    "tan": elementwise.tan, "tanh": elementwise.tanh, "trunc": elementwise.trunc,
}  # fmt: skip
"""f(x)"""


_BINARY: dict[str, Callable[..., Any]] = {
    "add": elementwise.add, "sub": elementwise.sub, "mul": elementwise.mul, "div": elementwise.div,
    "clamp_max": clamp_max, "clamp_min": clamp_min, "maximum": clamp_min, "minimum": clamp_max,
    "pow": elementwise.pow,
}  # fmt: skip
"""f(x, y), where y is a number or a tensor for all, or a list with one of them for each; add and sub take alpha."""

_TERNARY: dict[str, Callable[..., Any]] = {
    "addcdiv": elementwise.addcdiv, "addcmul": elementwise.addcmul, "lerp": elementwise.lerp,
}  # fmt: skip
"""f(x, y, z, number or numbers); of lerp f(x, y, number, numbers or tensors)."""


def _tensors(op: str, given: Any) -> list[Tensor]:
    """The list, or a DTypeError for what is none of tensors."""
    items: list[Any] = list(cast("list[Any]", given)) if isinstance(given, (list, tuple)) else [given]
    for x in items:
        if not isinstance(x, Handle):
            raise DTypeError(f"{op}: expected a list of Tensors, got {describe(cast('Any', given))}")
    if not items:
        raise ArgumentError(f"{op}: Tensor list must have at least one tensor.")
    return items


def _spread(op: str, count: int, given: Any) -> Sequence[Any]:
    """One argument for each tensor: the entries of a list (or tuple), anything else the same for all."""
    if not isinstance(given, (list, tuple)):
        return [given] * count
    items = cast("Sequence[Any]", given)
    if len(items) != count:
        raise ArgumentError(
            f"{op}: Tensor lists must have the same number of tensors, got {count} and {len(items)}."
        )
    return items


def _factors(op: str, count: int, given: Any) -> Sequence[Any]:
    """The factors of addcmul and addcdiv: a number, numbers, or a tensor with one for each."""
    if isinstance(given, Handle):
        numbers = cast("Any", given)
        if tuple(numbers.shape) != (count,):
            raise ArgumentError(
                f"{op}: expected a tensor of {count} numbers, got {describe(cast('Any', given))}"
            )
        return [numbers[k] for k in range(count)]
    return _spread(op, count, given)


def _scaled(function: Callable[..., Any], x: Tensor, y: Tensor, z: Tensor, factor: Any) -> Tensor:
    """x + factor * f(y, z), also for a factor that is a tensor."""
    if not isinstance(factor, Handle):
        return function(x, y, z, value=factor)
    product = elementwise.mul if function is elementwise.addcmul else elementwise.div
    return x + cast("Any", factor).to(x.dtype) * product(y, z)


def _norm(x: Tensor, order: float, dtype: Any) -> Tensor:
    return vector_norm(x, order, dtype=dtype)


def _power_sum(x: Tensor, order: float, dtype: Any) -> Tensor:
    return reductions.sum(elementwise.pow(elementwise.abs(x if dtype is None else x.to(dtype)), order))


def unary(name: str, self: Sequence[Tensor]) -> Iterator[Tensor]:
    """f(x) for each tensor."""
    function = _UNARY[name]
    return (function(x) for x in _tensors(f"_foreach_{name}", self))


def binary(name: str, self: Any, other: Any, *, alpha: Any = 1) -> Iterator[Tensor]:
    """f(x, y) for each tensor."""
    op, function = f"_foreach_{name}", _BINARY[name]
    if name == "pow" and not isinstance(self, (list, tuple)) and isinstance(self, (bool, int, float)):
        return (self**y for y in _tensors(op, other))
    items = _tensors(op, self)
    each = _spread(op, len(items), other)
    if alpha != 1:
        return (function(x, y, alpha=alpha) for x, y in zip(items, each, strict=True))
    return (function(x, y) for x, y in zip(items, each, strict=True))


def ternary(name: str, self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Iterator[Tensor]:
    """x + value * y * z, or x + value * y / z, for each tensor."""
    op, function, items = f"_foreach_{name}", _TERNARY[name], _tensors(f"_foreach_{name}", self)
    lists = [_spread(op, len(items), _tensors(op, t)) for t in (tensor1, tensor2)]
    factors = _factors(op, len(items), value)
    return (_scaled(function, *row) for row in zip(items, *lists, factors, strict=True))


def lerp(self: Any, tensors1: Any, weight: Any) -> Iterator[Tensor]:
    """x + weight * (y - x) for each tensor."""
    op, items = "_foreach_lerp", _tensors("_foreach_lerp", self)
    ends = _spread(op, len(items), _tensors(op, tensors1))
    weights = _spread(op, len(items), weight)
    return (elementwise.lerp(*row) for row in zip(items, ends, weights, strict=True))


def clone(self: Any, *, memory_format: Any = None) -> tuple[Tensor, ...]:
    """A tensor of its own with the same values, for each tensor."""
    return tuple([x.clone() for x in _tensors("_foreach_clone", self)])


def largest(self: Any) -> tuple[Tensor, ...]:
    """The largest element of each tensor."""
    return tuple([reductions.max(x) for x in _tensors("_foreach_max", self)])


def mm(self: Any, mat2: Any) -> tuple[Tensor, ...]:
    """The product of each pair of matrices."""
    items = _tensors("_foreach_mm", self)
    return tuple([matmul(x, y) for x, y in zip(items, _spread("_foreach_mm", len(items), mat2), strict=True)])


def norm(self: Any, ord: float = 2, dtype: Any = None) -> tuple[Tensor, ...]:
    """The norm of each tensor, taken as a vector."""
    return tuple([_norm(x, float(ord), dtype) for x in _tensors("_foreach_norm", self)])


def powsum(self: Any, ord: float = 2, dtype: Any = None) -> tuple[Tensor, ...]:
    """The sum of |x| ** ord over each tensor."""
    return tuple([_power_sum(x, ord, dtype) for x in _tensors("_foreach_powsum", self)])


def copy_(self: Any, src: Any, non_blocking: bool = False) -> None:
    """In place: each tensor takes the values of another."""
    items = _tensors("_foreach_copy_", self)
    for x, y in zip(items, _spread("_foreach_copy_", len(items), src), strict=True):
        x.copy_(y)


def zero_(self: Any) -> None:
    """In place: 0 in every element of every tensor."""
    for x in _tensors("_foreach_zero_", self):
        x.zero_()


def _whole(function: Callable[..., Iterator[Tensor]]) -> Callable[..., tuple[Tensor, ...]]:
    """The form that gives new tensors."""

    def call(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        return tuple(function(*args, **kwargs))

    call.__doc__ = function.__doc__
    return call


def _in_place(name: str, function: Callable[..., Iterator[Tensor]]) -> Callable[..., None]:
    """The form that has each tensor take its result before the next is looked at: a list may name a tensor twice."""
    label = f"_foreach_{name}_"

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        items = _tensors(label, self)
        for x, new in zip(items, function(items, *args, **kwargs), strict=True):
            x.become(label, new.value)

    call.__doc__ = f"In place: {function.__doc__}"
    return call


def _table() -> dict[str, Callable[..., Any]]:
    plain: dict[str, Callable[..., Iterator[Tensor]]] = {
        **{name: partial(unary, name) for name in _UNARY},
        **{name: partial(binary, name) for name in _BINARY},
        **{name: partial(ternary, name) for name in ("addcdiv", "addcmul")},
        "lerp": lerp,
    }
    return {
        **{f"_foreach_{name}": _whole(f) for name, f in plain.items()},
        **{f"_foreach_{name}_": _in_place(name, f) for name, f in plain.items()},
        "_foreach_clone": clone, "_foreach_copy_": copy_, "_foreach_max": largest, "_foreach_mm": mm,
        "_foreach_norm": norm, "_foreach_powsum": powsum, "_foreach_zero_": zero_,
    }  # fmt: skip


FOREACH: dict[str, Callable[..., Any]] = _table()
"""Every function by torch's name."""


def group_tensors_by_device_and_dtype(
    tensorlistlist: Sequence[Sequence[Tensor | None]], with_indices: bool = False
) -> dict[tuple[Any, Any], tuple[list[list[Any]], list[int]]]:
    """The rows of several lists, of one length, by the device and dtype of the first list's tensors, with the numbers
    of the rows where asked for."""
    groups: dict[tuple[Any, Any], tuple[list[list[Any]], list[int]]] = {}
    for k, first in enumerate(tensorlistlist[0]):
        if first is None:
            raise DTypeError("_group_tensors_by_device_and_dtype: the first list must hold tensors, got None")
        rows, numbers = groups.setdefault((first.device, first.dtype), ([[] for _ in tensorlistlist], []))
        for row, tensors in zip(rows, tensorlistlist, strict=True):
            if tensors:
                row.append(tensors[k])
        if with_indices:
            numbers.append(k)
    return groups


_group_tensors_by_device_and_dtype = group_tensors_by_device_and_dtype  # torch.utils._foreach_utils has it so


def _foreach_supported(*given: Any) -> bool:
    """True: lists of any tensors are one graph."""
    return True


_has_foreach_support = _device_has_foreach_support = _foreach_supported


def _get_foreach_kernels_supported_devices() -> list[str]:
    return ["cpu", "cuda"]


_get_fused_kernels_supported_devices = _get_foreach_kernels_supported_devices


def __getattr__(name: str) -> Callable[..., Any]:
    if name in FOREACH:
        return FOREACH[name]
    raise AttributeError(f"module 'weft.core.surface.foreach' has no attribute {name!r}")
