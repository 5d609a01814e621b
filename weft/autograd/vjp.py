"""Vector-Jacobian products: for each op, the gradients of its inputs from the gradient of its result.

A rule is written on values, so that what it builds can be differentiated again. Where a function is not
differentiable, the rule gives what torch gives: `maximum` halves the gradient between equal operands, the maximum
of a tensor shares it evenly among the elements that reach it, rounding has gradient zero. Rules of several steps
take 16-bit floats in float32 and round once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from weft.autograd.context import grad_enabled
from weft.autograd.ops import (
    arange_along,
    both,
    cast,
    cos,
    div,
    eq,
    exp,
    expand,
    full,
    gather,
    le,
    log,
    lt,
    mul,
    neg,
    pad,
    permute,
    pow_,
    reshape,
    scale,
    scatter,
    shrink,
    sin,
    spread,
    sub,
    sum_,
    sum_to,
    trunc,
    where,
    zeros,
)  # fmt: skip
from weft.autograd.value import Value, VjpRule, apply, composed, constant, zero_gradient
from weft.errors import GradError
from weft.ir import dtypes
from weft.ir.graph import Along, Axes, Box, Padding, ScatterCombine, Shape, Target, Window, elements
from weft.ir.index import Int, high, low
from weft.ir.ops import COMPARE, Op
from weft.ir.placement import Partial, Replicate

_T = TypeVar("_T")


def unary(f: Callable[[Value, Value, Value], Value]) -> VjpRule:
    """The rule of an op with one input, from its gradient as a function of (g, out, x)."""

    def rule(g: Value, out: Value, x: Value) -> tuple[Value | None, ...]:
        return (f(g, out, x),)

    return rule


def _wide(v: Value) -> Value:
    """`v` in the dtype that accumulates it."""
    dtype = dtypes.accumulator(v.dtype)
    return v if v.dtype is dtype else cast(v, dtype)


def steps(f: Callable[[Value, Value, Value], Value]) -> VjpRule:
    """As `unary`, for a gradient that takes more than one step."""

    def wide(g: Value, out: Value, x: Value) -> Value:
        return cast(f(_wide(g), _wide(out), _wide(x)), g.dtype) if g.dtype.is_narrow else f(g, out, x)

    return unary(wide)


def _steps2(
    f: Callable[[Value, Value, Value, Value], Value],
) -> Callable[[Value, Value, Value, Value], Value]:
    """The same for one side of `binary`."""

    def wide(g: Value, out: Value, x: Value, y: Value) -> Value:
        if not g.dtype.is_narrow:
            return f(g, out, x, y)
        return cast(f(_wide(g), _wide(out), _wide(x), _wide(y)), g.dtype)

    return wide


def binary(
    left: Callable[[Value, Value, Value, Value], Value], right: Callable[[Value, Value, Value, Value], Value]
) -> VjpRule:
    """The rule of an op with two inputs, from their gradients as functions of (g, out, x, y)."""

    def rule(g: Value, out: Value, x: Value, y: Value) -> tuple[Value | None, ...]:
        return (left(g, out, x, y) if x.needs_grad else None, right(g, out, x, y) if y.needs_grad else None)

    return rule


def _attrs(out: Value, kind: type[_T]) -> _T:
    assert isinstance(out.attrs, kind), out
    return out.attrs


# --- elementwise


def _abs(g: Value, out: Value, x: Value) -> Value:
    """g times the sign of x: at 0, an infinite g gives NaN."""
    zero, one = zeros(x), constant(1, x)
    sign = where(lt(x, zero), neg(one), where(lt(zero, x), one, zero))
    return mul(g, zero_gradient(sign, x))


def _tanh(g: Value, out: Value, x: Value) -> Value:
    return mul(g, sub(constant(1, out), mul(out, out)))


def _erf(g: Value, out: Value, x: Value) -> Value:
    """d/dx erf(x) = 2 / sqrt(pi) * exp(-x**2)"""
    return mul(g, scale(exp(neg(mul(x, x))), 2 / math.sqrt(math.pi)))


def _whole_times(x: Value, y: Value) -> Value:
    """The truncated quotient of x and y: a step function of both, also where y is 0 and x / y has no derivative."""
    return zero_gradient(Value(trunc(div(x, y)).node), x, y)


def _flat(g: Value, out: Value, x: Value) -> Value:
    return zeros(x)


def _cast(g: Value, out: Value, x: Value) -> Value:
    return cast(g, x.dtype)


def _larger(g: Value, x: Value, y: Value) -> Value:
    """The share of x in max(x, y)."""
    return where(lt(x, y), zeros(g), where(eq(x, y), scale(g, 0.5), g))


def _smaller(g: Value, x: Value, y: Value) -> Value:
    """The share of x in min(x, y)."""
    return where(lt(y, x), zeros(g), where(eq(x, y), scale(g, 0.5), g))


def _pow_base(g: Value, out: Value, x: Value, y: Value) -> Value:
    """y * x ** (y - 1), which is 0 where y is, even at x = 0."""
    base = where(eq(y, zeros(y)), constant(1, x), x)
    return mul(g, mul(y, pow_(base, sub(y, constant(1, y)))))


def _pow_exponent(g: Value, out: Value, x: Value, y: Value) -> Value:
    """x ** y * log(x), which is 0 at x = 0 for y >= 0."""
    at_zero = both(eq(x, zeros(x)), le(zeros(y), y))
    return mul(g, mul(out, log(where(at_zero, constant(1, x), x))))


def _where(g: Value, out: Value, condition: Value, x: Value, y: Value) -> tuple[Value | None, ...]:
    return None, where(condition, g, zeros(g)), where(condition, zeros(g), g)


# --- reductions


def _sum(g: Value, out: Value, x: Value) -> Value:
    return spread(g, _attrs(out, Axes).axes, x.shape)


def _extreme(g: Value, out: Value, x: Value) -> Value:
    """Shared evenly among the elements that equal the result."""
    axes, g = _attrs(out, Axes).axes, _wide(g)
    reached = cast(eq(x, spread(out, axes, x.shape)), g.dtype)
    return _as(x, mul(reached, spread(div(g, sum_(reached, axes)), axes, x.shape)))


def _as(like: Value, v: Value) -> Value:
    """`v` in the dtype of `like`."""
    return v if v.dtype is like.dtype else cast(v, like.dtype)


def _prod(g: Value, out: Value, x: Value) -> Value:
    """g times the product of the elements before and of those after each: right where elements are zero, too."""
    axes = _attrs(out, Axes).axes
    kept = tuple(k for k in range(len(x.shape)) if k not in axes)
    order = kept + axes
    count = elements(tuple(x.shape[a] for a in axes))
    rows = reshape(permute(_wide(x), order), (*(x.shape[k] for k in kept), count))
    others = mul(_product_before(rows), _flip_last(_product_before(_flip_last(rows))))
    back = permute(reshape(others, tuple(x.shape[k] for k in order)), _inverse(order))
    return _as(x, mul(spread(_wide(g), axes, x.shape), back))


def _product_before(x: Value) -> Value:
    """out[.., i] = product of x[.., j] for j < i, in log2(n) doubling steps."""
    out, step = _shift_last(x, 1), 1
    while step < high(x.shape[-1]):
        out = mul(out, _shift_last(out, step))
        step *= 2
    return out


def _shift_last(x: Value, by: int) -> Value:
    """out[.., i] = x[.., i - by], 1 where there is none."""
    none = (0,) * len(x.shape)
    moved = pad(x, (*none[1:], by), none, none, 1)
    return shrink(moved, none, (1,) * len(x.shape), x.shape)


def _flip_last(x: Value) -> Value:
    return apply(Op.FLIP, (x,), Axes((len(x.shape) - 1,)))


# --- movement


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def _reshape(g: Value, out: Value, x: Value) -> Value:
    return reshape(g, x.shape)


def _permute(g: Value, out: Value, x: Value) -> Value:
    return permute(g, _inverse(_attrs(out, Axes).axes))


def _expand(g: Value, out: Value, x: Value) -> Value:
    return sum_to(g, x.shape)


def _pad(g: Value, out: Value, x: Value) -> Value:
    p = _attrs(out, Padding)
    return shrink(g, p.low, tuple(gap + 1 for gap in p.interior), x.shape)


def _shrink(g: Value, out: Value, x: Value) -> Value:
    box = _attrs(out, Box)
    if box.said is not None:
        raise GradError(
            f"gradient: the bounds of a Variable do not keep a part of shape {tuple(out.shape)} within "
            f"{tuple(x.shape)}; declare it with bounds that do",
            box.said.location,
        )
    return _embed(g, box, x)


def _embed(g: Value, box: Box, x: Value) -> Value:
    """Zeros of the shape of x with g in the box: the transpose of SHRINK."""
    if high(elements(g.shape)) == 0:
        return zeros(x)
    after: list[Int] = []
    for n, start, step, size in zip(x.shape, box.start, box.step, g.shape, strict=True):
        gaps: Int = size - 1 if low(size) > 0 else 0
        after.append(n - start - size - gaps * (step - 1))
    return pad(g, box.start, tuple(after), tuple(step - 1 for step in box.step))


def _flip(g: Value, out: Value, x: Value) -> Value:
    return apply(Op.FLIP, (g,), out.attrs)


def _shear(g: Value, out: Value, x: Value) -> Value:
    return apply(Op.UNSHEAR, (g,), _attrs(out, Window), x.shape)


def _unshear(g: Value, out: Value, x: Value) -> Value:
    return apply(Op.SHEAR, (g,), _attrs(out, Window), x.shape)


# --- data-dependent and structural


def _last_index(shape: Shape, axis: int, index: Value) -> Value | None:
    """The largest index along `axis` in the shape of `index`; None where every value of its dtype is in range."""
    n = shape[axis]
    if isinstance(n, int):
        return constant(n - 1, index) if n - 1 < index.dtype.max else None
    if high(n) - 1 > index.dtype.max:
        return None
    last = apply(Op.REDUCE_MAX, (cast(arange_along(0, (n,)), index.dtype),), Axes((0,)))
    return expand(reshape(last, (1,) * len(index.shape)), index.shape)


def _in_range(shape: Shape, axis: int, index: Value) -> Value:
    """True where `index` lies within `axis` of a tensor of this shape."""
    inside = le(zeros(index), index)
    last = _last_index(shape, axis, index)
    return inside if last is None else both(inside, le(index, last))


def _clamped(shape: Shape, axis: int, index: Value) -> Value:
    last = _last_index(shape, axis, index)
    below = index if last is None else apply(Op.MIN, (index, last))
    return below if index.dtype.min == 0 else apply(Op.MAX, (below, zeros(index)))


def _gather(g: Value, out: Value, x: Value, index: Value) -> tuple[Value | None, ...]:
    axis = _attrs(out, Along).axis
    return scatter(zeros(x), _clamped(x.shape, axis, index), g, axis, Op.ADD), None


def _scatter(g: Value, out: Value, x: Value, index: Value, src: Value) -> tuple[Value | None, ...]:
    how = _attrs(out, ScatterCombine)
    if high(elements(index.shape)) == 0 or high(elements(x.shape)) == 0:
        return g, None, zeros(src)
    grad_x, grad_src = _SCATTER[how.op](g, out, x, index, src, how.axis)
    return grad_x, None, where(_in_range(x.shape, how.axis, index), grad_src, zeros(src))


def _scatter_add(g: Value, out: Value, x: Value, index: Value, src: Value, axis: int) -> tuple[Value, Value]:
    return g, gather(g, index, axis)


def _scatter_last(g: Value, out: Value, x: Value, index: Value, src: Value, axis: int) -> tuple[Value, Value]:
    """The last writer of an element gets its gradient; what was there before gets none."""
    writer = arange_along(axis, index.shape)
    last = scatter(full(-1, x.shape, dtypes.int64), index, writer, axis, Op.MAX)
    stays = eq(gather(last, index, axis), writer)
    grad_src = where(stays, gather(g, index, axis), zeros(src))
    return scatter(g, index, zeros(src), axis, None), grad_src


def _scatter_mul(g: Value, out: Value, x: Value, index: Value, src: Value, axis: int) -> tuple[Value, Value]:
    """Products of all other factors, none of which is found by dividing by zero.

    The first and the last zero of a product are left out one at a time, so what is left is again a product that knows
    its derivatives. A zero between the two has two others beside it: what is left is 0, and is not computed, but on the
    tape it is a product as well, for the first `_INNER` such zeros. Right up to the derivative of order 2 + `_INNER`.
    """
    one, is_zero = constant(1, src), eq(src, zeros(src))
    at = arange_along(axis, index.shape)

    def outermost(op: Op, none: int, among: Value) -> Value:
        """True where a zero is the first (MIN) or the last (MAX) in its product of those `among` them."""
        never = full(none, x.shape, dtypes.int64)
        found = scatter(never, index, where(among, at, full(none, at.shape, dtypes.int64)), axis, op)
        return both(among, eq(gather(found, index, axis), at))

    def product(factors: Value) -> Value:
        return gather(scatter(constant(1, x), index, factors, axis, Op.MUL), index, axis)

    others = where(is_zero, zeros(src), div(product(src), where(is_zero, one, src)))
    first, last = outermost(Op.MIN, int(dtypes.int64.max), is_zero), outermost(Op.MAX, -1, is_zero)
    for here in (first, last):
        others = where(here, product(where(here, one, src)), others)
    if src.needs_grad and grad_enabled():
        inner = both(is_zero, both(eq(first, last), eq(first, full(False, at.shape, dtypes.bool_))))
        for _ in range(_INNER):
            here = outermost(Op.MIN, int(dtypes.int64.max), inner)
            nothing = where(here, product(where(here, one, src)), zeros(src))
            others = composed(others.node, (others, nothing), _to_both)
            inner = both(inner, eq(here, full(False, at.shape, dtypes.bool_)))
    grad_x = mul(g, scatter(constant(1, x), index, src, axis, Op.MUL))
    return grad_x, mul(gather(mul(g, x), index, axis), others)


_INNER = 3


def _to_both(g: Value, out: Value, x: Value, y: Value) -> tuple[Value, Value]:
    return g, g


def _scatter_extreme(
    g: Value, out: Value, x: Value, index: Value, src: Value, axis: int
) -> tuple[Value, Value]:
    """Shared evenly among all that equal the result."""
    x_reached = cast(eq(x, out), x.dtype)
    src_reached = cast(eq(src, gather(out, index, axis)), x.dtype)
    share = div(g, scatter(x_reached, index, src_reached, axis, Op.ADD))
    return mul(share, x_reached), mul(gather(share, index, axis), src_reached)


_SCATTER: dict[Op | None, Callable[..., tuple[Value, Value]]] = {
    None: _scatter_last,
    Op.ADD: _scatter_add,
    Op.MUL: _scatter_mul,
    Op.MAX: _scatter_extreme,
    Op.MIN: _scatter_extreme,
}


def _concat(g: Value, out: Value, *xs: Value) -> tuple[Value | None, ...]:
    axis = _attrs(out, Along).axis
    grads: list[Value | None] = []
    at: Int = 0
    for x in xs:
        start = tuple(at if k == axis else 0 for k in range(len(x.shape)))
        grads.append(shrink(g, start, (1,) * len(x.shape), x.shape) if x.needs_grad else None)
        at = at + x.shape[axis]
    return tuple(grads)


def _update_whole(g: Value, out: Value, x: Value, src: Value) -> Value:
    return apply(Op.UPDATE, (g, zeros(src)), out.attrs)


def _update_part(g: Value, out: Value, x: Value, src: Value) -> Value:
    return apply(Op.SHRINK, (g,), _attrs(out, Box), src.shape)


def _copy(g: Value, out: Value, x: Value) -> Value:
    """Back to the device of x, if that is not a constant, which is at home anywhere. On a mesh it is laid out as the
    copy was; what that holds in terms, whole."""
    home, target = x.node.device, out.attrs
    if home is None:
        return g
    layout = target.layout if isinstance(target, Target) and target.device == home else None
    if layout is not None:
        layout = tuple([Replicate() if isinstance(p, Partial) else p for p in layout])
    return apply(Op.COPY, (g,), Target(home, layout))


def _pass(g: Value, out: Value, x: Value) -> Value:
    return g


VJP: dict[Op, VjpRule | None] = {
    Op.BUFFER: None,
    Op.CONST: None,
    Op.RANGE: None,
    # unary
    Op.NEG: unary(lambda g, out, x: neg(g)),
    Op.ABS: unary(_abs),
    Op.RECIP: steps(lambda g, out, x: neg(mul(g, mul(out, out)))),
    Op.SQRT: steps(lambda g, out, x: div(scale(g, 0.5), out)),
    Op.EXP: unary(lambda g, out, x: mul(g, out)),
    Op.EXP2: steps(lambda g, out, x: mul(g, scale(out, math.log(2)))),
    Op.EXPM1: steps(lambda g, out, x: mul(g, exp(x))),
    Op.LOG: unary(lambda g, out, x: div(g, x)),
    Op.LOG2: steps(lambda g, out, x: div(scale(g, 1 / math.log(2)), x)),
    Op.SIN: steps(lambda g, out, x: mul(g, cos(x))),
    Op.COS: steps(lambda g, out, x: neg(mul(g, sin(x)))),
    Op.TANH: steps(_tanh),
    Op.ERF: steps(_erf),
    Op.FLOOR: unary(_flat),
    Op.CEIL: unary(_flat),
    Op.TRUNC: unary(_flat),
    Op.ROUND: unary(_flat),
    Op.NOT: None,
    Op.CAST: unary(_cast),
    Op.BITCAST: None,
    # binary
    Op.ADD: binary(lambda g, out, x, y: g, lambda g, out, x, y: g),
    Op.SUB: binary(lambda g, out, x, y: g, lambda g, out, x, y: neg(g)),
    Op.MUL: binary(lambda g, out, x, y: mul(g, y), lambda g, out, x, y: mul(g, x)),
    Op.DIV: binary(lambda g, out, x, y: div(g, y), _steps2(lambda g, out, x, y: neg(mul(g, div(out, y))))),
    Op.FLOORDIV: None,
    Op.MOD: binary(lambda g, out, x, y: g, _steps2(lambda g, out, x, y: neg(mul(g, _whole_times(x, y))))),
    Op.MAX: binary(lambda g, out, x, y: _larger(g, x, y), lambda g, out, x, y: _larger(g, y, x)),
    Op.MIN: binary(lambda g, out, x, y: _smaller(g, x, y), lambda g, out, x, y: _smaller(g, y, x)),
    Op.POW: binary(_steps2(_pow_base), _steps2(_pow_exponent)),
    **dict.fromkeys(COMPARE, None),
    Op.AND: None,
    Op.OR: None,
    Op.XOR: None,
    Op.SHL: None,
    Op.SHR: None,
    # ternary
    Op.WHERE: _where,
    Op.THREEFRY: None,
    Op.FMA: None,
    # reductions
    Op.SUM: unary(_sum),
    Op.PROD: unary(_prod),
    Op.REDUCE_MAX: unary(_extreme),
    Op.REDUCE_MIN: unary(_extreme),
    # movement
    Op.RESHAPE: unary(_reshape),
    Op.PERMUTE: unary(_permute),
    Op.EXPAND: unary(_expand),
    Op.PAD: unary(_pad),
    Op.SHRINK: unary(_shrink),
    Op.FLIP: unary(_flip),
    Op.SHEAR: unary(_shear),
    Op.UNSHEAR: unary(_unshear),
    # data-dependent and structural
    Op.GATHER: _gather,
    Op.SCATTER: _scatter,
    Op.CONCAT: _concat,
    Op.UPDATE: binary(_update_whole, _update_part),
    Op.CONTIGUOUS: unary(_pass),
    Op.COPY: unary(_copy),
    Op.LOOP: None,  # all its results have one together: core/grad/loops.py
    Op.CALL: None,  # its value has the rule of the function that it was recorded of: core/composed/composite.py
}
"""Every op; None for those that no gradient passes."""
