"""Functions given by a value and a formula for their derivative, each written where it is accurate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weft.autograd.ops import mul
from weft.autograd.value import Value, composed
from weft.core.args import broadcast as bc
from weft.core.args.defaults import get_default_dtype
from weft.core.args.handle import TensorLike, value_of, wrap
from weft.core.composed.precision import widened
from weft.errors import GradError
from weft.ir.dtypes import DType, float64

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

Function1 = Callable[["Tensor"], "Tensor"]
Function2 = Callable[["Tensor", "Tensor"], "Tensor"]


def chebyshev(u: Tensor, c: Sequence[float]) -> Tensor:
    """sum c[k] T_k(u) by Clenshaw's recurrence, for u from -1 to 1."""
    twice = u * 2.0
    after: Tensor | float = 0.0
    here: Tensor | float = c[-1]
    for k in range(len(c) - 2, 0, -1):
        here, after = twice * here - after + c[k], here
    return u * here - after + c[0] if len(c) > 1 else u * 0.0 + c[0]


def on(x: Tensor, lo: float, hi: float) -> Tensor:
    """x from lo..hi as u from -1..1."""
    return (x - (lo + hi) / 2) * (2 / (hi - lo))


def like(x: Tensor, number: float) -> Tensor:
    """A number in the shape and dtype of x."""
    return wrap(bc.scalar(number, x.value.dtype, x.value.shape))


def float_input(op: str, x: object) -> Value:
    """A float value; integers and bools become the default float dtype."""
    v = value_of(op, x)
    return v if v.dtype.is_float else bc.cast(v, get_default_dtype())


def smooth(op: str, input: Tensor, value: Function1, slope: Function1 | None, wide: bool = False) -> Tensor:
    """`value` of the input with derivative `slope`, in float32 for 16-bit floats; with `wide` all in float64."""
    v = float_input(op, input)
    x = bc.cast(v, float64) if wide else widened(v)
    out = value(wrap(Value(x.node))).value

    def rule(g: Value, result: Value, x: Value) -> tuple[Value | None, ...]:
        if slope is None:
            raise GradError(f"{op}: has no derivative here, as in torch")
        return (mul(g, slope(wrap(x)).value),)

    return wrap(bc.cast(composed(out.node, (x,), rule), v.dtype))


def float_operands(op: str, x: TensorLike, y: TensorLike) -> tuple[Value, Value, DType]:
    """Both operands, broadcast, in the float dtype that computes them, and the dtype of the result."""
    a, b = bc.operand(op, x), bc.operand(op, y)
    dtype = bc.result_dtype((a, b))
    dtype = dtype if dtype.is_float else get_default_dtype()
    left, right = bc.broadcast(op, (a, b), dtype)
    return left, right, dtype


def smooth2(
    op: str,
    x: TensorLike,
    y: TensorLike,
    value: Function2,
    slopes: tuple[Function2 | None, Function2 | None],
    wide: bool = False,
) -> Tensor:
    """As `smooth`, for a function of two arguments, which broadcast and promote to floats."""
    left, right, dtype = float_operands(op, x, y)
    a, b = (bc.cast(v, float64) if wide else widened(v) for v in (left, right))
    out = value(wrap(Value(a.node)), wrap(Value(b.node))).value

    def rule(g: Value, result: Value, a: Value, b: Value) -> tuple[Value | None, ...]:
        grads: list[Value | None] = []
        for v, slope in zip((a, b), slopes, strict=True):
            if not v.needs_grad:
                grads.append(None)
            elif slope is None:
                raise GradError(f"{op}: has no derivative with respect to this argument, as in torch")
            else:
                grads.append(mul(g, slope(wrap(a), wrap(b)).value))
        return tuple(grads)

    return wrap(bc.cast(composed(out.node, (a, b), rule), dtype))
