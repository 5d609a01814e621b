"""16-bit floats: a function of several steps takes them in float32 and rounds once, at its end."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from weft.autograd.value import Value, apply, no_arithmetic
from weft.core.handle import value_of, wrap
from weft.errors import user_call
from weft.ir.dtypes import accumulator
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor import Tensor

P = ParamSpec("P")


def widened(v: Value) -> Value:
    """`v` in the dtype that accumulates it: float32 for the 16-bit floats, else as it is. No 8-bit floats."""
    if v.dtype.is_float8:
        raise no_arithmetic(user_call().function.strip("_"), v.dtype)
    wide = accumulator(v.dtype)
    return v if v.dtype is wide else apply(Op.CAST, (v,), None, None, wide)


def rounded_once(f: Callable[Concatenate[Tensor, P], Tensor]) -> Callable[Concatenate[Tensor, P], Tensor]:
    """`f` with a 16-bit first argument widened, and its result rounded back."""

    @wraps(f)
    def run(input: Tensor, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        v = value_of(f.__name__, input)
        if v.dtype.bits != 16 or not v.dtype.is_float:
            return f(input, *args, **kwargs)
        return wrap(apply(Op.CAST, (f(wrap(widened(v)), *args, **kwargs).value,), None, None, v.dtype))

    return run
