"""Functions that combine the elements along dimensions into one."""

from __future__ import annotations

import builtins
import math
from typing import TYPE_CHECKING, NamedTuple, overload

from weft.autograd.value import Value, apply, composed
from weft.core.args import broadcast as bc
from weft.core.args.axes import axes, axis
from weft.core.args.defaults import get_default_dtype
from weft.core.args.handle import Dims, Handle, passed_on, value_of, wrap
from weft.core.args.requirements import at_least, needs, no_bools, one_dtype
from weft.core.composed.autocast import widens, widens_on_gpus
from weft.core.composed.composite import composite
from weft.core.composed.precision import widened
from weft.core.layout.movement import positions
from weft.core.pointwise.elementwise import (
    abs,
    eq,
    exp,
    isnan,
    log,
    logical_and,
    logical_or,
    maximum,
    minimum,
    ne,
    sqrt,
    where,
)
from weft.errors import DTypeError, ShapeError
from weft.ir.dtypes import DType, bool_, int32, int64, uint8
from weft.ir.graph import Axes, Shape, elements
from weft.ir.index import Int, high
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


class Extremum(NamedTuple):
    """The result of max and min along a dimension: the values, and where each was found first."""

    values: Tensor
    indices: Tensor


class Moments(NamedTuple):
    """The result of var_mean and std_mean."""

    spread: Tensor
    mean: Tensor


def reduce(op: Op, v: Value, over: tuple[int, ...], keepdim: bool) -> Value:
    """`op` over the axes; with keepdim they stay, with size 1."""
    if not over:
        return v
    out = apply(op, (v,), Axes(over))
    return bc.reshape(out, kept(v.shape, over)) if keepdim else out


def kept(shape: Shape, over: tuple[int, ...]) -> Shape:
    """The shape with 1 in place of the sizes of the reduced axes."""
    return tuple(1 if k in over else n for k, n in enumerate(shape))


def count(v: Value, over: tuple[int, ...]) -> Int:
    """The number of elements that each result combines."""
    return elements(tuple(v.shape[k] for k in over))


def _summable(v: Value, dtype: DType | None) -> Value:
    return bc.cast(v, dtype if dtype is not None else v.dtype if v.dtype.is_float else int64)


@widens_on_gpus
def sum(
    input: Tensor, dim: Dims | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The sum over dim (all by default). Bools and integers give int64 unless dtype says otherwise."""
    v = value_of("sum", input)
    over = axes("sum", dim, v.shape)
    v = _summable(v, dtype)
    if v.dtype is bool_:
        return any(input, dim, keepdim)
    return wrap(reduce(Op.SUM, v, over, keepdim) if over else passed_on(v))


@widens
def prod(
    input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The product over dim (all by default). Bools and integers give int64 unless dtype says otherwise."""
    v = value_of("prod", input)
    over = axes("prod", dim, v.shape)
    v = _summable(v, dtype)
    if v.dtype is bool_:
        return all(input, dim, keepdim)
    return wrap(reduce(Op.PROD, v, over, keepdim))


def _float_input(op: str, input: Tensor, dtype: DType | None = None) -> Value:
    v = value_of(op, input)
    if dtype is not None:
        v = bc.cast(v, dtype)
    if not v.dtype.is_float:
        raise DTypeError(
            f"{op}: needs a float tensor, got {v.dtype.name} of shape {tuple(v.shape)}; convert it with .float()"
        )
    return v


@composite
def mean(
    input: Tensor, dim: Dims | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """sum / count over dim (all by default). Needs floats."""
    v = _float_input("mean", input, dtype)
    return wrap(bc.cast(_mean(widened(v), axes("mean", dim, v.shape), keepdim), v.dtype))


def _mean(v: Value, over: tuple[int, ...], keepdim: bool) -> Value:
    total = wrap(reduce(Op.SUM, v, over, keepdim))
    return (total / bc.size_tensor(count(v, over), v.dtype)).value


def _moments(
    op: str, input: Tensor, dim: Dims | bool | None, correction: float | None, unbiased: bool, keepdim: bool
) -> tuple[Tensor, Tensor, DType]:
    """Variance and mean, in the accumulator's dtype, and the dtype of the result."""
    if isinstance(dim, bool):  # torch's older form: var(unbiased)
        dim, unbiased = None, dim
    v = _float_input(op, input)
    x = widened(v)
    over = axes(op, dim, v.shape)
    middle = _mean(x, over, keepdim=True)
    deviation = wrap(x) - wrap(middle)
    squares = wrap(reduce(Op.SUM, (deviation * deviation).value, over, keepdim))
    less = correction if correction is not None else float(unbiased)
    n = count(x, over)
    if isinstance(n, int):
        left = builtins.max(n - less, 0)
        spread = squares / left if left else squares * math.inf * 0.0 if n == 0 else squares / 0.0
    else:
        spread = squares / (bc.size_tensor(n, x.dtype) - less)
    shape = spread.value.shape
    return spread, wrap(bc.reshape(middle, shape)), v.dtype


def _root(variance: Tensor) -> Value:
    """The square root, with the derivative 0 at 0, as torch's std: of what does not vary."""
    v = variance.value
    out = sqrt(wrap(Value(v.node))).value

    def slope(g: Value, y: Value, v: Value) -> tuple[Value]:
        still = eq(wrap(y), 0)
        return (where(still, 0.0, wrap(g) / (where(still, 1.0, wrap(y)) * 2)).value,)

    return composed(out.node, (v,), slope)


@composite
def var(
    input: Tensor,
    dim: Dims | bool | None = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """sum((x - mean)**2) / (count - correction) over dim; correction is 1 unless given."""
    spread, _, dtype = _moments("var", input, dim, correction, unbiased, keepdim)
    return wrap(bc.cast(spread.value, dtype))


@composite
def std(
    input: Tensor,
    dim: Dims | bool | None = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """The square root of var."""
    spread, _, dtype = _moments("std", input, dim, correction, unbiased, keepdim)
    return wrap(bc.cast(_root(spread), dtype))


@composite
def var_mean(
    input: Tensor,
    dim: Dims | bool | None = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Moments:
    """Variance and mean, computed together."""
    spread, middle, dtype = _moments("var_mean", input, dim, correction, unbiased, keepdim)
    return Moments(wrap(bc.cast(spread.value, dtype)), wrap(bc.cast(middle.value, dtype)))


@composite
def std_mean(
    input: Tensor,
    dim: Dims | bool | None = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Moments:
    """Standard deviation and mean, computed together."""
    spread, middle, dtype = _moments("std_mean", input, dim, correction, unbiased, keepdim)
    return Moments(wrap(bc.cast(_root(spread), dtype)), wrap(bc.cast(middle.value, dtype)))


# ---------------------------------------------------------------------------------------------- extrema


def _extremum_axes(op: str, v: Value, dim: Dims | None) -> tuple[int, ...]:
    over = axes(op, dim, v.shape)
    for k in over:
        if v.shape[k] == 0:
            raise ShapeError(
                f"{op}: shape {tuple(v.shape)} has no elements along dimension {k} to choose from"
            )
    return over


def amax(input: Tensor, dim: Dims | None = None, keepdim: bool = False) -> Tensor:
    """The maximum over dim (all by default), NaN if there is one. Equal maxima share the gradient."""
    v = value_of("amax", input)
    return wrap(reduce(Op.REDUCE_MAX, v, _extremum_axes("amax", v, dim), keepdim))


def amin(input: Tensor, dim: Dims | None = None, keepdim: bool = False) -> Tensor:
    """The minimum over dim (all by default), NaN if there is one. Equal minima share the gradient."""
    v = value_of("amin", input)
    return wrap(reduce(Op.REDUCE_MIN, v, _extremum_axes("amin", v, dim), keepdim))


class Range(NamedTuple):
    """The result of aminmax."""

    min: Tensor
    max: Tensor


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Range:
    """The minimum and the maximum."""
    return Range(amin(input, dim, keepdim), amax(input, dim, keepdim))


def _first_match(op: str, reduction: Op, input: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    """The smallest index whose element equals the extremum; the first NaN, if there is one."""
    v = value_of(op, input)
    if dim is None:
        v = bc.reshape(v, (elements(v.shape),))
    if not v.shape:
        return wrap(bc.scalar(0, int64, ()))
    k = axis(op, 0 if dim is None else dim, v.shape)
    _extremum_axes(op, v, k)
    x = wrap(Value(v.node))
    found = eq(x, wrap(reduce(reduction, x.value, (k,), keepdim=True)))
    if v.dtype.is_float:
        found = logical_or(found, ne(x, x))
    kind = int32 if high(v.shape[k]) < 2**31 else int64  # narrow indices compare in more lanes
    index = where(found, wrap(positions(v.shape, k, kind)), wrap(bc.scalar(int(kind.max), kind, ())))
    out = bc.cast(apply(Op.REDUCE_MIN, (index.value,), Axes((k,))), int64)
    if not keepdim:
        return wrap(out)
    rank = len(value_of(op, input).shape)
    return wrap(bc.reshape(out, (1,) * rank if dim is None else kept(v.shape, (k,))))


@composite(rounds_once=False)
def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the first maximum along dim, or in the flattened tensor. NaN counts as the maximum."""
    return _first_match("argmax", Op.REDUCE_MAX, input, dim, keepdim)


@composite(rounds_once=False)
@needs(no_bools("input"))
def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the first minimum along dim, or in the flattened tensor. NaN counts as the minimum."""
    return _first_match("argmin", Op.REDUCE_MIN, input, dim, keepdim)


@overload
def max(input: Tensor) -> Tensor: ...
@overload
def max(input: Tensor, dim: int, keepdim: bool = False) -> Extremum: ...
@overload
def max(input: Tensor, dim: Tensor) -> Tensor: ...
def max(input: Tensor, dim: int | Tensor | None = None, keepdim: bool = False) -> Tensor | Extremum:
    """The maximum of all; along dim (values, indices); with a second tensor, maximum."""
    return _extremum("max", input, dim, keepdim)


@overload
def min(input: Tensor) -> Tensor: ...
@overload
def min(input: Tensor, dim: int, keepdim: bool = False) -> Extremum: ...
@overload
def min(input: Tensor, dim: Tensor) -> Tensor: ...
def min(input: Tensor, dim: int | Tensor | None = None, keepdim: bool = False) -> Tensor | Extremum:
    """The minimum of all; along dim (values, indices); with a second tensor, minimum."""
    return _extremum("min", input, dim, keepdim)


def shared_by_equals(g: Value, out: Value, x: Value) -> tuple[Value]:
    """The gradient of one element chosen from all of `x` by its value: the elements with that value share it evenly.
    NaNs are one value here."""
    each, chosen = wrap(x), wrap(out)
    same = eq(each, chosen)
    if x.dtype.is_float:
        same = logical_or(same, logical_and(isnan(each), isnan(chosen)))
    return (where(same, wrap(g) / sum(same), 0.0).value,)


@composite(rounds_once=False)
def _extremum(name: str, input: Tensor, dim: object, keepdim: bool) -> Tensor | Extremum:
    op, pairwise = (Op.REDUCE_MAX, maximum) if name == "max" else (Op.REDUCE_MIN, minimum)
    v = value_of(name, input)
    if dim is None:
        out = reduce(op, Value(v.node), _extremum_axes(name, v, None), keepdim)
        return wrap(composed(out.node, (v,), shared_by_equals))
    if isinstance(dim, Handle):
        return pairwise(input, wrap(dim.value))
    k = axis(name, dim, v.shape)
    over = _extremum_axes(name, v, k)
    found = _first_match(name, op, input, k, keepdim)
    if not over or not v.needs_grad:
        return Extremum(wrap(reduce(op, v, over, keepdim)), found)

    def chosen(g: Value, out: Value, x: Value) -> tuple[Value]:
        """All of the gradient is that of the element at the index, where that of amax is shared among equals."""
        whole = kept(x.shape, over)
        first = _first_match(
            name, op, wrap(x), k, keepdim
        ).value  # of x: what surrounds the rule may be batched
        here = eq(wrap(positions(x.shape, k, int64)), wrap(bc.reshape(first, whole)))
        return (where(here, wrap(bc.reshape(g, whole)), 0.0).value,)

    out = reduce(op, Value(v.node), over, keepdim)
    return Extremum(wrap(composed(out.node, (v,), chosen)), found)


# ---------------------------------------------------------------------------------------------- truth


def _truth(op: str, input: Tensor, dim: Dims | None, keepdim: bool, reduction: Op, empty: bool) -> Tensor:
    v = value_of(op, input)
    if v.dtype is uint8:  # torch's one exception
        return wrap(bc.cast(_truth(op, ne(input, 0), dim, keepdim, reduction, empty).value, uint8))
    over = axes(op, dim, v.shape) if dim != () else ()  # no axes here, where sums mean all by that
    if v.dtype is not bool_:
        v = ne(input, 0).value
    if builtins.any(v.shape[k] == 0 for k in over):
        shape = kept(v.shape, over) if keepdim else tuple(n for k, n in enumerate(v.shape) if k not in over)
        return wrap(bc.scalar(empty, bool_, shape))
    return wrap(reduce(reduction, v, over, keepdim))


def any(input: Tensor, dim: Dims | None = None, keepdim: bool = False) -> Tensor:
    """True where any element along dim (all by default) is nonzero."""
    return _truth("any", input, dim, keepdim, Op.REDUCE_MAX, empty=False)


def all(input: Tensor, dim: Dims | None = None, keepdim: bool = False) -> Tensor:
    """True where every element along dim (all by default) is nonzero."""
    return _truth("all", input, dim, keepdim, Op.REDUCE_MIN, empty=True)


@composite(rounds_once=False)
def count_nonzero(input: Tensor, dim: Dims | None = None) -> Tensor:
    """The number of nonzero elements."""
    return sum(ne(input, 0), dim)


@needs(one_dtype("input", "other"), at_least("rtol", 0), at_least("atol", 0))
def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """True if all elements are close (see isclose). Computes."""
    from weft.core.pointwise.elementwise import isclose

    return bool(all(isclose(input, other, rtol, atol, equal_nan)).item())


def equal(input: Tensor, other: Tensor) -> bool:
    """True if shapes and all elements are equal. Computes."""
    if value_of("equal", input).shape != value_of("equal", other).shape:
        return False
    return bool(all(eq(input, other)).item())


# ---------------------------------------------------------------------------------------------- sums of exp, norms


@composite
def logsumexp(input: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))), with the maximum taken out first so that nothing overflows; -inf over nothing."""
    v = value_of("logsumexp", input)
    v = v if v.dtype.is_float else bc.cast(v, get_default_dtype())
    over = axes("logsumexp", dim, v.shape)
    x = wrap(widened(v))
    if count(v, over) == 0:
        return wrap(bc.cast(log(sum(exp(x), over, keepdim)).value, v.dtype))
    top = wrap(Value(reduce(Op.REDUCE_MAX, x.value, over, keepdim=True).node))  # a constant: it cancels
    top = where(eq(abs(top), math.inf), 0.0, top)
    out = log(sum(exp(x - top), over, keepdim=True)) + top
    shape = kept(v.shape, over) if keepdim else tuple(n for k, n in enumerate(v.shape) if k not in over)
    return wrap(bc.cast(bc.reshape(out.value, shape), v.dtype))


@composite
def nansum(
    input: Tensor, dim: Dims | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The sum of the elements that are not NaN."""
    v = value_of("nansum", input)
    return sum(where(ne(input, input), 0, input) if v.dtype.is_float else input, dim, keepdim, dtype=dtype)


@composite
def nanmean(
    input: Tensor, dim: Dims | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The mean of the elements that are not NaN."""
    v = _float_input("nanmean", input, dtype)
    x = wrap(v)
    wide = wrap(widened(v))
    seen = sum(wrap(bc.cast(eq(x, x).value, wide.value.dtype)), dim, keepdim)
    total = sum(where(ne(wide, wide), 0, wide), dim, keepdim)
    return wrap(bc.cast((total / seen).value, v.dtype))
