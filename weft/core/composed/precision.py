"""16-bit floats: a function of several steps takes them in float32 and rounds once, at its end.

A `composite` function does so unless it says otherwise; others by `rounded_once`. A cast is computed where it is read,
so that nothing is stored for it, and gradients pass through the same casts: they too are float32 inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from weft.autograd.context import context, switched
from weft.autograd.value import Value, apply, no_arithmetic
from weft.core.args.handle import Handle, wrap, wrap_untracked
from weft.errors import WeftError, user_call, wraps_calls
from weft.ir.dtypes import DType, accumulator, bfloat16, float16, float32
from weft.ir.ops import Op

wraps_calls(__file__)

P = ParamSpec("P")
R = TypeVar("R")


def widened(v: Value) -> Value:
    """`v` in the dtype that accumulates it: float32 for the 16-bit floats, else as it is. No 8-bit floats."""
    if v.dtype.is_float8:
        raise no_arithmetic(user_call().function.strip("_"), v.dtype)
    wide = accumulator(v.dtype)
    return v if v.dtype is wide else apply(Op.CAST, (v,), None, None, wide)


def rounded_once(function: Callable[P, R]) -> Callable[P, R]:
    """The function in float32 where tensors among its arguments (or in lists of them) are 16-bit floats; its results
    are rounded to the dtypes that they would have had without. It must change nothing: it may be run twice."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        for a in args:
            if isinstance(a, Handle):
                dtype = a.value.node.dtype
                if dtype is float16 or dtype is bfloat16:
                    return _in_float32(function, args, kwargs)
            elif (a.__class__ is tuple or a.__class__ is list) and _has_halves(cast("Any", a)):
                return _in_float32(function, args, kwargs)
        if kwargs and _has_halves(kwargs.values()):
            return _in_float32(function, args, kwargs)
        return function(*args, **kwargs)

    return run


def _has_halves(items: Iterable[Any]) -> bool:
    return any(d is float16 or d is bfloat16 for d in _dtypes(items))


def _dtypes(items: Iterable[Any]) -> list[DType]:
    """The float dtypes of the tensors among the items and in tuples and lists of them; what is itself a dtype, too."""
    found: list[DType] = []
    for a in items:
        if isinstance(a, Handle):
            if a.value.node.dtype.is_float:
                found.append(a.value.node.dtype)
        elif isinstance(a, DType):
            found.append(a)
        elif a.__class__ is tuple or a.__class__ is list:
            found += _dtypes(a)
    return found


def _in_float32(function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
    if context().unrounded:
        return function(*args, **kwargs)
    first, *rest = _dtypes((*args, *kwargs.values()))
    plain: Any = None
    if any(d is not first for d in rest):  # what they promote to, or whether they may meet, the function says
        plain = _unrounded(function, args, kwargs)
    try:
        out = function(*(_wide(a) for a in args), **{k: _wide(a) for k, a in kwargs.items()})
    except WeftError:
        function(*args, **kwargs)  # its message names the dtypes that were given
        raise
    return cast("R", _rounded(out, plain, first))


def _unrounded(function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
    """The results of the function on its arguments as they are: their dtypes are of interest."""
    with switched(unrounded=True, grad=False):
        return function(*args, **kwargs)


def _wide(a: Any) -> Any:
    if isinstance(a, Handle):
        dtype = a.value.node.dtype
        return wrap_untracked(widened(a.value)) if dtype is float16 or dtype is bfloat16 else a
    if a.__class__ is tuple or a.__class__ is list:
        parts = [_wide(i) for i in cast("list[Any]", a)]
        return tuple(parts) if a.__class__ is tuple else parts
    return a


def _rounded(out: Any, plain: Any, dtype: DType) -> Any:
    """A result, or a tuple of them, in the dtype of `plain`, the same without casts, where that is known, else in
    `dtype`. What is no float32 was asked for in another dtype, or is no float."""
    if isinstance(out, Handle):
        to = dtype if plain is None else plain.value.dtype
        v = out.value
        if v.node.dtype is not float32 or to not in (float16, bfloat16):
            return out
        return wrap(apply(Op.CAST, (v,), None, None, to))
    if isinstance(out, (tuple, list)):
        items = cast("list[Any]", out)
        others = cast("list[Any]", [None] * len(items) if plain is None else plain)
        parts = [_rounded(a, b, dtype) for a, b in zip(items, others, strict=True)]
        if isinstance(out, list):
            return parts
        make: Callable[[list[Any]], Any] = getattr(cast("Any", out), "_make", tuple)
        return make(parts)
    return out
