"""Mixed precision: within `autocast`, products take 16-bit floats, and what needs range or precision takes float32.

Which function does what is said where it is defined, by `lowers` and `widens`, after torch's "Autocast Op Reference".
Parameters stay as they are; what is cast of them is cast where it is used, within the kernels that use it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, Self, TypeVar, cast

from weft.autograd.context import Casts, context, switched
from weft.autograd.value import apply
from weft.core.args.contexts import DecoratingContext
from weft.core.args.handle import Handle, describe, wrap
from weft.errors import ArgumentError, DTypeError, wraps_calls
from weft.ir.dtypes import DType, bfloat16, float16, float32, float64
from weft.ir.ops import Op

wraps_calls(__file__)

P = ParamSpec("P")
R = TypeVar("R")


@cache
def _casts(kind: str, dtype: DType) -> Casts:
    """One object for each, so that compiled functions compare identities."""
    return Casts(kind, dtype)


class autocast(switched, DecoratingContext):  # noqa: N801  (torch's name)
    """Within the block, products of float tensors on devices of a kind are computed in a 16-bit float dtype (bfloat16
    on the CPU, else float16, unless told otherwise), and functions that need more in float32, as torch has them.
    float64 stays as it is. Gradients have the dtypes of what they are of.

    >>> with weft.autocast("cuda", dtype=weft.bfloat16):
    ...     loss = loss_fn(model(x), y)
    >>> loss.backward()

    Errors: ArgumentError for a dtype that is not float16 or bfloat16.
    """

    def __init__(
        self,
        device_type: str = "cpu",
        dtype: DType | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if not isinstance(device_type, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DTypeError(
                f"autocast: device_type must be a str such as 'cuda', got {describe(device_type)}"
            )
        kind = device_type.partition(":")[0]
        chosen = default_dtype(kind) if dtype is None else dtype
        if enabled and chosen not in (bfloat16, float16):
            raise ArgumentError(f"autocast: dtype must be float16 or bfloat16, got {describe_dtype(chosen)}")
        super().__init__(casts=_casts(kind, chosen) if enabled else None)

    def clone(self) -> Self:
        made = object.__new__(type(self))
        switched.__init__(made, **self._fields)
        return made


def describe_dtype(dtype: object) -> str:
    """The name of a dtype, for messages."""
    return dtype.name if isinstance(dtype, DType) else describe(dtype)


def default_dtype(kind: str) -> DType:
    """The dtype that `autocast` computes products in where nothing is said."""
    return bfloat16 if kind == "cpu" else float16


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """True within `autocast` for devices of this kind."""
    casts = context().casts
    return casts is not None and casts.kind == device_type


def get_autocast_dtype(device_type: str) -> DType:
    """The dtype of products on devices of this kind, within `autocast` or if there were one."""
    casts = context().casts
    return casts.dtype if casts is not None and casts.kind == device_type else default_dtype(device_type)


def lowers(function: Callable[P, R]) -> Callable[P, R]:
    """A product: within `autocast` its float tensors are cast to the 16-bit dtype."""
    return _casting(function, lambda casts: casts.dtype)


def widens(function: Callable[P, R]) -> Callable[P, R]:
    """A function that needs float32's range or precision: `autocast` casts its 16-bit floats to it."""
    return _casting(function, lambda _: float32)


def widens_on_gpus(function: Callable[P, R]) -> Callable[P, R]:
    """As `widens`; on the CPU it computes in the dtype that it is given, as torch does there."""
    return _casting(function, lambda casts: None if casts.kind == "cpu" else float32)


def _casting(function: Callable[P, R], chosen: Callable[[Casts], DType | None]) -> Callable[P, R]:
    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        casts = context().casts
        to = None if casts is None else chosen(casts)
        if casts is None or to is None:
            return function(*args, **kwargs)
        with switched(casts=None):  # what it is made of is not cast again
            return function(
                *(_cast(a, casts.kind, to) for a in args),
                **{k: _cast(a, casts.kind, to) for k, a in kwargs.items()},
            )  # pyright: ignore[reportCallIssue]  (the same arguments in other dtypes)

    return run


def _cast(x: Any, kind: str, to: DType) -> Any:
    """A float tensor on a device of this kind, or each in a list, in dtype `to`."""
    if isinstance(x, Handle):
        v = x.value
        here = v.node.device is None or v.node.device.partition(":")[0] == kind
        if not here or not v.dtype.is_float or v.dtype in (to, float64) or v.dtype.is_float8:
            return x
        return wrap(apply(Op.CAST, (v,), None, None, to))
    if isinstance(x, (list, tuple)):
        items = [_cast(i, kind, to) for i in cast("list[Any]", x)]
        return items if isinstance(x, list) else tuple(items)
    return x
