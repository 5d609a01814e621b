"""Elementwise functions: what each element becomes by itself, or together with its partner after broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, overload

from weft.autograd.context import context
from weft.autograd.value import (
    FLOAT8_OPS,
    Value,
    apply,
    composed,
    no_arithmetic,
    number_node,
    record,
    zero_gradient,
)
from weft.core.args.broadcast import (
    Operand,
    broadcast,
    broadcast_shape,
    cast,
    expand,
    on_one_device,
    operand,
    result_dtype,
    scalar,
    values_on_one_device,
)  # fmt: skip
from weft.core.args.defaults import check_dtype, get_default_dtype
from weft.core.args.handle import Handle, Number, TensorLike, own, value_of, wrap, wrap_constant
from weft.core.args.requirements import at_least, floats, needs, one_dtype
from weft.core.composed.autocast import widens_on_gpus
from weft.core.composed.composite import composite
from weft.core.composed.precision import rounded_once
from weft.core.composed.smooth import smooth
from weft.core.pointwise.nonzeros import nonzero
from weft.errors import ArgumentError, DTypeError
from weft.ir.dtypes import DTYPES, DType, Kind, bool_, float32
from weft.ir.expr import normalize
from weft.ir.graph import intern
from weft.ir.index import Index
from weft.ir.ops import ANY, BITS, FLOATS, Op
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


# ---------------------------------------------------------------------------------------------- binary


@dataclass(frozen=True, slots=True, eq=False)
class Binary:
    """A binary function over one graph op. Integers become floats where the op takes only these.

    `on_bool` replaces the op on bools; `kinds` are those of the op's dtypes, and bool where it is replaced. `direct`
    holds the (dtype, Python type) pairs with no promotion to do, `wide` those where the number may have to be met in
    float32. `scales`: 16-bit floats are combined with numbers in float32, as in torch; elsewhere numbers are rounded
    first.
    """

    name: str
    op: Op
    on_bool: Op | None = None
    swap: bool = False
    scales: bool = False
    compares: bool = field(init=False)
    kinds: frozenset[Kind] = field(init=False)
    direct: frozenset[tuple[DType, type]] = field(init=False)
    plain: frozenset[DType] = field(init=False)
    wide: frozenset[tuple[DType, type]] = field(init=False)

    def __post_init__(self) -> None:
        kinds = self.op.info.kinds if self.on_bool is None else ANY
        plain = {
            d
            for d in DTYPES.values()
            if d.kind in kinds
            and (d is not bool_ or self.on_bool is None)
            and (not d.is_float8 or self.op in FLOAT8_OPS)
        }
        pairs = {
            (d, t)
            for d in plain
            for t in (int, float)
            if (d.is_float and not (self.scales and d.is_narrow)) or (d.is_int and t is int)
        }
        object.__setattr__(self, "compares", self.op.info.compares)
        object.__setattr__(self, "kinds", kinds)
        object.__setattr__(self, "plain", frozenset(plain))
        object.__setattr__(self, "direct", frozenset(pairs))
        narrow = {d for d in plain if d.is_narrow and not d.is_float8} if self.scales else set[DType]()
        object.__setattr__(self, "wide", frozenset((d, t) for d in narrow for t in (int, float)))

    def dtype(self, found: DType) -> DType:
        """The dtype to compute in for operands that promote to `found`; DTypeError where there is none."""
        if found.is_float8 and self.op not in FLOAT8_OPS:
            raise no_arithmetic(self.name, found)
        if found.kind in self.kinds:
            return found
        if self.kinds == FLOATS:
            return get_default_dtype()
        raise DTypeError(f"{self.name}: not defined on {found.name}; {_advice(self.kinds)}")


def _advice(kinds: frozenset[Kind]) -> str:
    if Kind.FLOAT not in kinds:
        names = "bool or integer" if Kind.BOOL in kinds else "integer"
        return f"it needs {names} tensors, so convert with .to(weft.int64) or another such dtype"
    return "convert with .to(...) to a number dtype first (for bools, logical_xor or ^ may be meant)"


_ADD = Binary("add", Op.ADD, on_bool=Op.OR)
_SUB = Binary("sub", Op.SUB)
_MUL = Binary("mul", Op.MUL, on_bool=Op.AND, scales=True)
_DIV = Binary("div", Op.DIV, scales=True)
_MOD = Binary("fmod", Op.MOD)
_FLOORDIV = Binary("floor_divide", Op.FLOORDIV)
_POW = Binary("pow", Op.POW)
_MAX = Binary("maximum", Op.MAX, on_bool=Op.OR)
_MIN = Binary("minimum", Op.MIN, on_bool=Op.AND)
_AND = Binary("bitwise_and", Op.AND)
_OR = Binary("bitwise_or", Op.OR)
_XOR = Binary("bitwise_xor", Op.XOR)
_SHL = Binary("bitwise_left_shift", Op.SHL)
_SHR = Binary("bitwise_right_shift", Op.SHR)
_LT = Binary("lt", Op.LT)
_LE = Binary("le", Op.LE)
_GT = Binary("gt", Op.LT, swap=True)
_GE = Binary("ge", Op.LE, swap=True)
_EQ = Binary("eq", Op.EQ)
_NE = Binary("ne", Op.NE)


def _binary(spec: Binary, x: TensorLike, y: TensorLike) -> Tensor:
    """The one way of a binary function: first the two cases that need no promotion, then the general one."""
    if isinstance(x, Handle):
        a = x.value
        node = a.node
        dtype = node.dtype
        if isinstance(y, Handle):
            b = y.value
            other = b.node
            if dtype is other.dtype and dtype in spec.plain:
                device = node.device
                if device is not other.device and device != other.device:
                    a, b = values_on_one_device(spec.name, (a, b))
                    node, other = a.node, b.node
                    device = node.device
                if node.shape != other.shape:
                    shape = broadcast_shape(spec.name, (node.shape, other.shape))
                    return wrap(_fitting(spec, expand(a, shape), expand(b, shape)))
                if device is None or a.needs_grad or b.needs_grad:
                    return wrap(_fitting(spec, a, b))
                pair = (other, node) if spec.swap else (node, other)
                made = intern(spec.op, pair, None, node.shape, bool_ if spec.compares else dtype, device)
                return wrap_constant(made)
        elif (dtype, y.__class__) in spec.direct:
            device, shape = node.device, node.shape
            if device is None or a.needs_grad or context().lifted is not None:
                return wrap(_fitting(spec, a, scalar(y, dtype, shape, device)))
            other = number_node(y, dtype, shape)
            pair = (other, node) if spec.swap else (node, other)
            made = intern(spec.op, pair, None, shape, bool_ if spec.compares else dtype, device)
            return wrap_constant(made)
        elif (dtype, type(y)) in spec.wide and node.device is not None:
            return wrap(_rounded(spec, a, y))
    return wrap(_general(spec, operand(spec.name, x), operand(spec.name, y)))


def _fitting(spec: Binary, a: Value, b: Value) -> Value:
    """The op on operands known to fit. Constants go the long way, where they fold; the rest need no further checks."""
    pair = (b, a) if spec.swap else (a, b)
    x, y = pair[0].node, pair[1].node
    if a.node.op is _CONST:
        return apply(spec.op, pair)
    dtype = bool_ if spec.compares else x.dtype
    home = x.device or y.device
    if home is None:  # constants, or leaves in files
        return apply(spec.op, pair)
    return record(intern(spec.op, (x, y), None, x.shape, dtype, home), spec.op, None, pair)


@lru_cache(1024)
def _holds(dtype: DType, number: Any) -> bool:
    """True where a dtype has a number exactly."""
    return bool(normalize(dtype, number) == number)


def _rounded(spec: Binary, a: Value, y: Any) -> Value:
    """The op on a 16-bit tensor and a number, which scales it: in float32 where 16 bits do not hold the number."""
    node = a.node
    shape, dtype, device = node.shape, node.dtype, node.device
    if y != y or _holds(dtype, y):
        return _fitting(spec, a, scalar(y, dtype, shape, device))
    wide = Value(intern(_CAST, (node,), None, shape, float32, device))
    if a.needs_grad:
        wide = record(wide.node, _CAST, None, (a,))
    made = _fitting(spec, wide, scalar(y, float32, shape, device))
    back = intern(_CAST, (made.node,), None, shape, dtype, device)
    return record(back, _CAST, None, (made,)) if a.needs_grad else Value(back)


_CAST, _CONST, _WHERE = Op.CAST, Op.CONST, Op.WHERE


def _general(spec: Binary, x: Operand, y: Operand) -> Value:
    dtype = spec.dtype(result_dtype((x, y)))
    if spec.scales and dtype.is_narrow and not dtype.is_float8 and _scaled(x, y, dtype):
        a, b = broadcast(spec.name, (x, y), float32)
        return cast(apply(spec.op, (a, b)), dtype)
    a, b = broadcast(spec.name, (x, y), dtype)
    op = spec.on_bool if dtype is bool_ and spec.on_bool is not None else spec.op
    return apply(op, (b, a) if spec.swap else (a, b))


def _scaled(x: Operand, y: Operand, dtype: DType) -> bool:
    """True where one side is a number that the dtype may not hold."""
    return any(
        side.dtype.is_float and not side.shape and not side.dtype.is_narrow
        if isinstance(side, Value)
        else not isinstance(side, bool) and normalize(dtype, side) != side
        for side in (x, y)
    )


def _number_first(op: str, number: Any, others: Sequence[Any], count: int) -> Any:
    """The arguments of torch's older order, in which the factor came before what it is a factor of."""
    if isinstance(number, Handle) or len(others) != count:
        raise DTypeError(f"{op}: takes {count + 1} operands and then keywords; got {count + 1 + len(others)}")
    return (number, *others)


def add(input: TensorLike, other: TensorLike, *older: TensorLike, alpha: Number = 1) -> Tensor:
    """input + alpha * other. On bools: or. Also in torch's older order (input, alpha, other)."""
    if older:
        alpha, other = _number_first("add", other, older, 1)
    return _binary(_ADD, input, other) if alpha == 1 else _sum_scaled(_ADD, input, other, alpha)


def sub(input: TensorLike, other: TensorLike, *older: TensorLike, alpha: Number = 1) -> Tensor:
    """input - alpha * other. Not defined on bools. Also in torch's older order (input, alpha, other)."""
    if older:
        alpha, other = _number_first("sub", other, older, 1)
    _no_bools(input, other)
    return _binary(_SUB, input, other) if alpha == 1 else _sum_scaled(_SUB, input, other, alpha)


@rounded_once
def _sum_scaled(spec: Binary, input: TensorLike, other: TensorLike, alpha: Number) -> Tensor:
    dtype = result_dtype((operand(spec.name, input), operand(spec.name, other)))
    return _binary(spec, input, mul(other, alpha if dtype is not bool_ else bool(alpha)))


def _no_bools(*operands: object) -> None:
    """torch refuses to subtract where either side is bool: it is mostly a mask meant to be inverted."""
    for x in operands:
        if isinstance(x, bool) or (isinstance(x, Handle) and x.value.node.dtype is bool_):
            raise DTypeError(
                "sub: not defined on bool; invert a mask with ~ or logical_not, or convert it with .to(...)"
            )


def mul(input: TensorLike, other: TensorLike) -> Tensor:
    """input * other. On bools: and."""
    return _binary(_MUL, input, other)


def div(input: TensorLike, other: TensorLike, *, rounding_mode: str | None = None) -> Tensor:
    """input / other, a float result also for integers; rounding_mode "trunc" or "floor" rounds it, keeping integers."""
    match rounding_mode:
        case None:
            return _binary(_DIV, input, other)
        case "floor":
            return floor_divide(input, other)
        case "trunc":
            dtype = result_dtype((operand("div", input), operand("div", other)))
            if dtype.is_float:
                whole = trunc(_binary(_DIV, input, other)).value
                # its derivative is 0 also where that of the quotient is infinite
                return wrap(zero_gradient(Value(whole.node), *_values(input, other)))
            _no_zero_divisor("div", other, dtype)
            other = other if isinstance(other, Handle) else normalize(dtype, other)  # uint8: -1 is 255
            rest = _binary(_MOD, input, other)
            quotient = _binary(_FLOORDIV, input, other)
            return where(logical_and(rest != 0, xor_sign(input, other)), quotient + 1, quotient)
        case _:
            raise ArgumentError(f"div: rounding_mode must be None, 'trunc' or 'floor', got {rounding_mode!r}")


def _values(*operands: TensorLike) -> tuple[Value, ...]:
    return tuple([x.value for x in operands if isinstance(x, Handle)])


def xor_sign(x: TensorLike, y: TensorLike) -> Tensor:
    """True where exactly one of x and y is negative."""
    return ne(lt(x, 0), lt(y, 0)) if isinstance(y, Handle) else (ge(x, 0) if y < 0 else lt(x, 0))


def _no_zero_divisor(name: str, other: object, dtype: DType) -> None:
    if not dtype.is_float and isinstance(other, (bool, int)) and other == 0:
        raise ArgumentError(f"{name}: division of an integer tensor by zero")


@composite
def floor_divide(input: TensorLike, other: TensorLike) -> Tensor:
    """The quotient rounded toward -inf (Python's //). Integers by zero give 0 where torch raises."""
    x, y = operand("floor_divide", input), operand("floor_divide", other)
    dtype = result_dtype((x, y))
    _no_zero_divisor("floor_divide", other, dtype)
    if not dtype.is_float:
        return wrap(_general(_FLOORDIV, x, y))
    a, b = (wrap(v) for v in broadcast("floor_divide", (x, y), dtype))
    rest = _binary(_MOD, a, b)
    quotient = (a - rest) / b
    quotient = where(logical_and(rest != 0, xor_sign(rest, b)), quotient - 1, quotient)
    down = floor(quotient)  # the division above may land just beside an integer
    down = where(quotient - down > 0.5, down + 1, down)
    # a zero has the quotient's sign
    whole = where(eq(b, 0), a / b, where(eq(down, 0), (a / b) * 0.0, down)).value
    return wrap(zero_gradient(Value(whole.node), a.value, b.value))


@composite(rounds_once=False)
def remainder(input: TensorLike, other: TensorLike) -> Tensor:
    """input modulo other with the divisor's sign (Python's %). Integers by zero give 0 where torch raises."""
    x, y = operand("remainder", input), operand("remainder", other)
    dtype = result_dtype((x, y))
    _no_zero_divisor("remainder", other, dtype)
    if not dtype.is_float:
        return wrap(_general(_MOD, x, y))
    a, b = broadcast("remainder", (x, y), dtype)
    return _remainder(wrap(a), wrap(b))


@composite
def _remainder(a: Tensor, b: Tensor) -> Tensor:
    """The rest of floats of one dtype, with the divisor's sign."""
    rest = _binary(_MOD, a, b)
    return where(logical_and(rest != 0, xor_sign(rest, b)), rest + b, rest)


@composite(rounds_once=False)
def fmod(input: TensorLike, other: TensorLike) -> Tensor:
    """input modulo other with the dividend's sign (C's fmod)."""
    x, y = operand("fmod", input), operand("fmod", other)
    dtype = result_dtype((x, y))
    _no_zero_divisor("fmod", other, dtype)
    if dtype.is_float:
        return wrap(_general(_MOD, x, y))
    a, b = (wrap(v) for v in broadcast("fmod", (x, y), dtype))
    return a - div(a, b, rounding_mode="trunc") * b


@widens_on_gpus
def pow(input: TensorLike, exponent: TensorLike) -> Tensor:
    """input ** exponent. Integers to a negative integer power are refused; small constant powers become products."""
    if isinstance(input, Handle) and isinstance(exponent, (bool, int, float)):
        found = result_dtype((input.value, exponent))
        if found is bool_:
            return logical_or(input, not exponent)
        if found.is_int and exponent < 0:
            raise DTypeError(
                f"pow: an integer tensor cannot be raised to the negative power {exponent}; convert it to a float dtype"
            )
        short = _small_power(wrap(cast(input.value, found)), exponent)
        if short is not None:
            return short
    return _binary(_POW, input, exponent)


def _small_power(x: Tensor, exponent: Number) -> Tensor | None:
    match exponent:
        case 1:
            return own(x.value)
        case 2:
            return x * x
        case 3:
            return _cube(x) if x.value.node.dtype.is_narrow else x * x * x
        case 0.5:
            return sqrt(x)
        case -1:
            return reciprocal(x)
        case -0.5:
            return rsqrt(x)
        case _:
            return None


@rounded_once
def _cube(x: Tensor) -> Tensor:
    return x * x * x


def maximum(input: TensorLike, other: TensorLike) -> Tensor:
    """The larger of both; NaN where either is. Equal operands share the gradient."""
    return _binary(_MAX, input, other)


def minimum(input: TensorLike, other: TensorLike) -> Tensor:
    """The smaller of both; NaN where either is. Equal operands share the gradient."""
    return _binary(_MIN, input, other)


def bitwise_and(input: TensorLike, other: TensorLike) -> Tensor:
    """input & other, on bools and integers."""
    return _binary(_AND, input, other)


def bitwise_or(input: TensorLike, other: TensorLike) -> Tensor:
    """input | other, on bools and integers."""
    return _binary(_OR, input, other)


def bitwise_xor(input: TensorLike, other: TensorLike) -> Tensor:
    """input ^ other, on bools and integers."""
    return _binary(_XOR, input, other)


def bitwise_left_shift(input: TensorLike, other: TensorLike) -> Tensor:
    """input << other; a shift by the width or more gives 0."""
    return _binary(_SHL, input, other)


def bitwise_right_shift(input: TensorLike, other: TensorLike) -> Tensor:
    """input >> other, arithmetic on signed integers."""
    return _binary(_SHR, input, other)


def lt(input: TensorLike, other: TensorLike) -> Tensor:
    """input < other, as bools."""
    return _binary(_LT, input, other)


def le(input: TensorLike, other: TensorLike) -> Tensor:
    """input <= other, as bools."""
    return _binary(_LE, input, other)


def gt(input: TensorLike, other: TensorLike) -> Tensor:
    """input > other, as bools."""
    return _binary(_GT, input, other)


def ge(input: TensorLike, other: TensorLike) -> Tensor:
    """input >= other, as bools."""
    return _binary(_GE, input, other)


def eq(input: TensorLike, other: TensorLike) -> Tensor:
    """input == other, as bools."""
    return _binary(_EQ, input, other)


def ne(input: TensorLike, other: TensorLike) -> Tensor:
    """input != other, as bools."""
    return _binary(_NE, input, other)


def _truth(op: str, x: TensorLike) -> TensorLike:
    if isinstance(x, Handle):
        return x if x.value.dtype is bool_ else ne(x, 0)
    given = operand(op, x)  # a number, or a NumPy array
    return ne(wrap(given), 0) if isinstance(given, Value) else bool(given)


def logical_and(input: TensorLike, other: TensorLike) -> Tensor:
    """True where both are nonzero."""
    return _binary(_AND, _truth("logical_and", input), _truth("logical_and", other))


def logical_or(input: TensorLike, other: TensorLike) -> Tensor:
    """True where either is nonzero."""
    return _binary(_OR, _truth("logical_or", input), _truth("logical_or", other))


def logical_xor(input: TensorLike, other: TensorLike) -> Tensor:
    """True where exactly one is nonzero."""
    return _binary(_XOR, _truth("logical_xor", input), _truth("logical_xor", other))


def logical_not(input: Tensor) -> Tensor:
    """True where the input is zero."""
    v = value_of("logical_not", input)
    return wrap(apply(Op.NOT, (v,))) if v.dtype is bool_ else eq(input, 0)


# ---------------------------------------------------------------------------------------------- unary


def _unary(op: Op, v: Value) -> Tensor:
    """`op` on a value that needs no promotion. Constants and 8-bit floats go the long way, which folds or refuses."""
    node = v.node
    device, dtype = node.device, node.dtype
    if device is None or dtype.is_float8:
        return wrap(apply(op, (v,)))
    made = intern(op, (node,), None, node.shape, dtype, device)
    return wrap(record(made, op, None, (v,))) if v.needs_grad else wrap_constant(made)


def _float_unary(name: str, op: Op, x: Tensor) -> Tensor:
    """`op` on floats; integers and bools are converted to the default float dtype first."""
    v = x.value if isinstance(x, Handle) else value_of(name, x)  # pyright: ignore[reportUnnecessaryIsInstance]
    return _unary(op, v if v.node.dtype.is_float else cast(v, get_default_dtype()))


def _as_float(name: str, x: Tensor) -> Tensor:
    """x as floats; itself if it holds them."""
    v = value_of(name, x)
    return x if v.dtype.is_float else wrap(cast(v, get_default_dtype()))


def _number_unary(name: str, op: Op, x: Tensor) -> Tensor:
    v = value_of(name, x)
    if v.dtype is bool_:
        raise DTypeError(
            f"{name}: not defined on bool; use logical_not or ~ to invert a mask, or convert with .to(...)"
        )
    return _unary(op, v)


def _rounding(name: str, op: Op, x: Tensor) -> Tensor:
    v = value_of(name, x)
    if v.dtype is bool_:
        raise DTypeError(f"{name}: not defined on bool; convert with .to(...) first")
    return _unary(op, v) if v.dtype.is_float else wrap(Value(v.node))


def neg(input: Tensor) -> Tensor:
    """-input. Not defined on bools."""
    return _number_unary("neg", Op.NEG, input)


def abs(input: Tensor) -> Tensor:
    """The absolute value; its gradient at 0 is 0."""
    return _number_unary("abs", Op.ABS, input)


def positive(input: Tensor) -> Tensor:
    """The input itself. Not defined on bools."""
    if value_of("positive", input).dtype is bool_:
        raise DTypeError("positive: not defined on bool; convert with .to(...) first")
    return input


@widens_on_gpus
def reciprocal(input: Tensor) -> Tensor:
    """1 / input."""
    return _float_unary("reciprocal", Op.RECIP, input)


def sqrt(input: Tensor) -> Tensor:
    """The square root; NaN for negative input."""
    return _float_unary("sqrt", Op.SQRT, input)


@composite(autocast=widens_on_gpus, recorded=False)
def rsqrt(input: Tensor) -> Tensor:
    """1 / sqrt(input)."""
    return reciprocal(sqrt(input))


def square(input: Tensor) -> Tensor:
    """input * input."""
    return pow(input, 2)


@widens_on_gpus
def exp(input: Tensor) -> Tensor:
    """e ** input."""
    return _float_unary("exp", Op.EXP, input)


def exp2(input: Tensor) -> Tensor:
    """2 ** input."""
    return _float_unary("exp2", Op.EXP2, input)


@widens_on_gpus
def expm1(input: Tensor) -> Tensor:
    """exp(input) - 1, exact also near 0."""
    return _float_unary("expm1", Op.EXPM1, input)


@widens_on_gpus
def log(input: Tensor) -> Tensor:
    """The natural logarithm."""
    return _float_unary("log", Op.LOG, input)


@widens_on_gpus
def log2(input: Tensor) -> Tensor:
    """The logarithm to base 2."""
    return _float_unary("log2", Op.LOG2, input)


@composite(autocast=widens_on_gpus)
def log10(input: Tensor) -> Tensor:
    """The logarithm to base 10."""
    return log(input) * (1.0 / math.log(10.0))


@composite(autocast=widens_on_gpus)
def log1p(input: Tensor) -> Tensor:
    """log(1 + input), exact also near 0: log(u) * x / (u - 1) with u = 1 + x rounded (Kahan's correction)."""
    x = wrap(value_of("log1p", input))
    if not x.value.dtype.is_float:
        x = wrap(cast(x.value, get_default_dtype()))
    u = x + 1
    plain = log(u)
    exact = logical_or(eq(u, 1), isinf(u))
    precise = where(exact, where(isinf(u), plain, x), plain * (x / where(exact, 1.0, u - 1)))
    return with_gradient_of(precise, plain)


def with_gradient_of(forward: Tensor, backward: Tensor) -> Tensor:
    """The value of one formula with the derivative of another: two forms of one function."""
    v = backward.value
    return wrap(Value(forward.value.node, v.needs_grad, v.op, v.attrs, v.inputs, v.rule))


def sin(input: Tensor) -> Tensor:
    """The sine."""
    return _float_unary("sin", Op.SIN, input)


def cos(input: Tensor) -> Tensor:
    """The cosine."""
    return _float_unary("cos", Op.COS, input)


@composite(autocast=widens_on_gpus)
def tan(input: Tensor) -> Tensor:
    """sin / cos."""
    return sin(input) / cos(input)


def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return _float_unary("tanh", Op.TANH, input)


@composite(autocast=widens_on_gpus)
def sinh(input: Tensor) -> Tensor:
    """(exp(x) - exp(-x)) / 2, without cancellation near 0 or early overflow."""

    def value(x: Tensor) -> Tensor:
        e = expm1(abs(x))
        size = where(isinf(e), exp(abs(x) - math.log(2.0)), (e + e / (e + 1)) * 0.5)
        return where(lt(x, 0), neg(size), where(eq(x, 0), x, size))

    return smooth("sinh", input, value, cosh)


@composite(autocast=widens_on_gpus)
def cosh(input: Tensor) -> Tensor:
    """(exp(x) + exp(-x)) / 2, without early overflow."""

    def value(x: Tensor) -> Tensor:
        e = exp(abs(x) * 0.5)
        return (e * 0.5) * e + 0.5 / (e * e)

    return smooth("cosh", input, value, sinh)


def erf(input: Tensor) -> Tensor:
    """The error function."""
    return _float_unary("erf", Op.ERF, input)


@composite
def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), without overflow in the value or its gradient, which is y (1 - y)."""
    v = value_of("sigmoid", input)
    x = v if v.dtype.is_float else cast(v, get_default_dtype())
    plain = wrap(Value(x.node))
    if not x.needs_grad:
        e = exp(neg(abs(plain)))
        return where(plain >= 0, 1.0, e) / (e + 1)
    y = reciprocal(exp(neg(plain)) + 1).value.node

    def slope(g: Value, y: Value, x: Value) -> tuple[Value]:
        return (mul(wrap(g), wrap(y) * (1 - wrap(y))).value,)

    return wrap(composed(y, (x,), slope))


@composite
def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), x first clamped to [eps, 1 - eps] if eps is given; outside of 0 to 1 there is no derivative."""
    x = _as_float("logit", input)
    return smooth(
        "logit",
        x if eps is None else clamp(x, eps, 1.0 - eps),
        # near 1/2 the quotient is near 1, of which the logarithm would be what its rounding left
        lambda x: where(lt(abs(x - 0.5), 0.25), log1p((x - 0.5) * 2.0 / (1 - x)), log(x / (1 - x))),
        lambda x: where(bitwise_or(lt(x, 0), gt(x, 1)), math.nan, reciprocal(x * (1 - x))),
    )


@composite(rounds_once=False)
def sign(input: Tensor) -> Tensor:
    """-1, 0 or 1; 0 for NaN. On bools: the input."""
    v = value_of("sign", input)
    if v.dtype is bool_:
        return wrap(Value(v.node))
    x = wrap(Value(v.node))
    negative = where(x < 0, -1, 0) if v.dtype.kind is not Kind.UINT else 0
    out = wrap(cast(where(x > 0, 1, negative).value, v.dtype))
    return wrap(zero_gradient(out.value, v))


def floor(input: Tensor) -> Tensor:
    """Rounded toward -inf."""
    return _rounding("floor", Op.FLOOR, input)


def ceil(input: Tensor) -> Tensor:
    """Rounded toward +inf."""
    return _rounding("ceil", Op.CEIL, input)


def trunc(input: Tensor) -> Tensor:
    """Rounded toward zero."""
    return _rounding("trunc", Op.TRUNC, input)


def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """Rounded to the nearest integer, ties to even; `decimals` moves the point."""
    if decimals == 0:
        return _rounding("round", Op.ROUND, input)
    dtype = value_of("round", input).dtype
    if not dtype.is_float:
        raise DTypeError(f"round: decimals are for float tensors, got {dtype.name}; convert it with .float()")
    return _rounded_at(input, decimals)


@composite
def _rounded_at(input: Tensor, decimals: int) -> Tensor:
    ten = 10.0 ** (decimals if decimals > 0 else -decimals)
    return round(input * ten) / ten if decimals > 0 else round(input / ten) * ten


@composite(rounds_once=False)
@needs(floats("input"))
def frac(input: Tensor) -> Tensor:
    """input - trunc(input)."""
    return input - trunc(input)


def bitwise_not(input: Tensor) -> Tensor:
    """~input: logical on bools, bitwise on integers."""
    v = value_of("bitwise_not", input)
    if v.dtype.is_float:
        raise DTypeError(f"bitwise_not: not defined on {v.dtype.name}; {_advice(BITS)}")
    return wrap(apply(Op.NOT, (v,)))


def isnan(input: Tensor) -> Tensor:
    """True where the input is NaN."""
    return ne(input, input)


def isinf(input: Tensor) -> Tensor:
    """True where the input is +inf or -inf."""
    return eq(abs(input), math.inf) if value_of("isinf", input).dtype.is_float else ne(input, input)


def isfinite(input: Tensor) -> Tensor:
    """True where the input is neither NaN nor infinite."""
    return lt(abs(input), math.inf) if value_of("isfinite", input).dtype.is_float else eq(input, input)


@composite(rounds_once=False)
def nan_to_num(
    input: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """NaN, +inf and -inf replaced: by `nan`, and by the dtype's largest and smallest finite numbers unless given."""
    v = value_of("nan_to_num", input)
    dtype = v.dtype
    if not dtype.is_float:
        return wrap(v)
    top = finite_max(dtype)
    x = where(isnan(input), nan, input)
    x = where(eq(x, math.inf), top if posinf is None else posinf, x)
    return where(eq(x, -math.inf), -top if neginf is None else neginf, x)


def finite_max(dtype: DType) -> float:
    """The largest finite number of a float dtype."""
    return {
        "float8_e4m3fn": 448.0,
        "float8_e5m2": 57344.0,
        "float16": 65504.0,
        "bfloat16": 2.0**128 - 2.0**120,
        "float32": 2.0**128 - 2.0**104,
        "float64": 1.7976931348623157e308,
    }[dtype.name]


# ---------------------------------------------------------------------------------------------- ternary


@overload
def where(condition: Tensor) -> tuple[Tensor, ...]: ...
@overload
def where(condition: Tensor, input: TensorLike, other: TensorLike) -> Tensor: ...
def where(
    condition: Tensor, input: TensorLike | None = None, other: TensorLike | None = None
) -> Tensor | tuple[Tensor, ...]:
    """input where condition (bool) is true, else other. All three broadcast; input and other promote.

    With the condition alone: the indices of its true elements, one vector per dimension, which computes it.
    """
    c = value_of("where", condition)
    if input is None or other is None:
        if input is not other:
            raise ArgumentError("where: give both input and other, or neither")
        return nonzero(condition, as_tuple=True)
    if c.dtype is not bool_:
        raise DTypeError(
            f"where: condition must be bool, got {c.dtype.name}; compare it with something, as in x != 0"
        )
    x, y = operand("where", input), operand("where", other)
    fitting = _where_fitting(c, x, y)
    if fitting is not None:
        return wrap(fitting)
    dtype = result_dtype((x, y))
    c, x, y = on_one_device("where", (c, x, y))
    assert isinstance(c, Value)
    values = [v for v in (c, x, y) if isinstance(v, Value)]
    shape = broadcast_shape("where", [v.node.shape for v in values])
    a, b = (
        expand(cast(v, dtype), shape) if isinstance(v, Value) else scalar(v, dtype, shape) for v in (x, y)
    )
    return wrap(apply(Op.WHERE, (expand(c, shape), a, b)))


def _where_fitting(c: Value, x: Operand, y: Operand) -> Value | None:
    """The choice between operands that need no promotion and are of the condition's shape; None for others."""
    like = x if isinstance(x, Value) else y
    if not isinstance(like, Value) or (device := c.node.device) is None:
        return None
    shape, dtype = c.node.shape, like.node.dtype
    both: list[Value] = []
    for v in (x, y):
        if isinstance(v, Value):
            node = v.node
            if node.dtype is not dtype or node.shape != shape or node.device is not device:
                return None
            both.append(v)
        elif (dtype, v.__class__) in _ADD.direct:
            both.append(Value(number_node(v, dtype, shape)))
        else:
            return None
    a, b = both
    made = intern(_WHERE, (c.node, a.node, b.node), None, shape, dtype, device)
    return record(made, _WHERE, None, (c, a, b))


def clamp(input: Tensor, min: TensorLike | None = None, max: TensorLike | None = None) -> Tensor:
    """input limited to [min, max]; where min > max, max. NaN stays. The gradient is 0 outside, 1 on the bounds."""
    v = value_of("clamp", input)
    if min is None and max is None:
        raise ArgumentError("clamp: at least one of min and max must be given")
    x = input
    if (
        not v.dtype.is_float
    ):  # both bounds decide the dtype: an integer one may wrap in that of the input alone
        x = wrap(cast(v, result_dtype([v, *(operand("clamp", b) for b in (min, max) if b is not None)])))
    if min is not None:
        x = where(_within(x, ge, min), x, min) if isinstance(min, Handle) else _limited(x, _LT, min)
    if max is not None:
        x = where(_within(x, le, max), x, max) if isinstance(max, Handle) else _limited(x, _GT, max)
    return x


def _limited(x: Tensor, beyond: Binary, bound: Number) -> Tensor:
    """The bound where x is beyond it, which is everywhere if that is NaN; x elsewhere."""
    v = x.value
    node = v.node
    device, dtype, shape = node.device, node.dtype, node.shape
    if bound != bound:
        return where(wrap(scalar(True, bool_, shape)), bound, x)
    if device is None or (dtype, bound.__class__) not in beyond.direct or context().lifted is not None:
        return where(_binary(beyond, x, bound), bound, x)
    limit = number_node(bound, dtype, shape)
    pair = (limit, node) if beyond.swap else (node, limit)
    mask = intern(beyond.op, pair, None, shape, bool_, device)
    made = intern(_WHERE, (mask, limit, node), None, shape, dtype, device)
    return wrap(record(made, _WHERE, None, (Value(mask), Value(limit), v)))


def _within(x: Tensor, within: Callable[..., Tensor], bound: TensorLike) -> Tensor:
    """True where x keeps to a bound that may be NaN, and where x itself is NaN."""
    return logical_or(within(x, bound), isnan(x)) if x.dtype.is_float else within(x, bound)


@composite
@needs(one_dtype("input", "end", "weight"))
def lerp(input: Tensor, end: Tensor, weight: TensorLike) -> Tensor:
    """input + weight * (end - input), from the nearer of both ends: a weight of 1 gives the end itself."""
    if isinstance(weight, Index):
        raise DTypeError(f"lerp: weight must be known when the op is called, got {weight}; give a number")
    if not isinstance(weight, Handle):
        nearer = (input, weight) if -0.5 < weight < 0.5 else (end, weight - 1)
    else:
        near = lt(abs(weight), 0.5)
        nearer = where(near, input, end), where(near, weight, weight - 1)
    return nearer[0] + nearer[1] * (end - input)


@composite
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *older: Tensor, value: Number = 1) -> Tensor:
    """input + value * tensor1 * tensor2. Of integers, value is truncated, as in torch. Also in torch's older order
    (input, value, tensor1, tensor2)."""
    if older:
        value, tensor1, tensor2 = _number_first("addcmul", tensor1, (tensor2, *older), 2)
    if result_dtype((input.value, tensor1.value, tensor2.value)).is_int and math.isfinite(value):
        value = int(value)
    return input + (tensor1 * tensor2 if value == 1 else tensor1 * value * tensor2)


@composite
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *older: Tensor, value: Number = 1) -> Tensor:
    """input + value * tensor1 / tensor2. Not defined on integers, as in torch. Also in torch's older order
    (input, value, tensor1, tensor2)."""
    if older:
        value, tensor1, tensor2 = _number_first("addcdiv", tensor1, (tensor2, *older), 2)
    return input + (tensor1 if value == 1 else tensor1 * value) / tensor2


@composite
@needs(one_dtype("input", "other"), at_least("rtol", 0), at_least("atol", 0))
def isclose(
    input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """True where |input - other| <= atol + rtol * |other|, or both are equal."""
    if rtol < 0 or atol < 0:
        raise ArgumentError(f"isclose: rtol and atol must not be negative, got {rtol} and {atol}")
    same = eq(input, other)
    if equal_nan:
        same = logical_or(same, logical_and(isnan(input), isnan(other)))
    input, other = _as_float("isclose", input), _as_float("isclose", other)
    near = le(abs(input - other), abs(other) * rtol + atol)
    return logical_or(same, logical_and(logical_and(isfinite(input), isfinite(other)), near))


# ---------------------------------------------------------------------------------------------- operators


def rsub(input: Tensor, other: TensorLike) -> Tensor:
    """other - input."""
    _no_bools(input, other)
    return _binary(_SUB, other, input)


def rdiv(input: Tensor, other: TensorLike) -> Tensor:
    """other / input."""
    return _binary(_DIV, other, input)


def rfloor_divide(input: Tensor, other: TensorLike) -> Tensor:
    """other // input."""
    return floor_divide(other, input)


def rremainder(input: Tensor, other: TensorLike) -> Tensor:
    """other % input."""
    return remainder(other, input)


def rpow(input: Tensor, other: TensorLike) -> Tensor:
    """other ** input."""
    return _binary(_POW, other, input)


def rshl(input: Tensor, other: TensorLike) -> Tensor:
    """other << input."""
    return _binary(_SHL, other, input)


def rshr(input: Tensor, other: TensorLike) -> Tensor:
    """other >> input."""
    return _binary(_SHR, other, input)


def to_dtype(input: Tensor, dtype: DType) -> Tensor:
    """The input converted; itself if it has the dtype already."""
    v = value_of("to", input)
    check_dtype("to", dtype)
    return input if v.dtype is dtype else wrap(cast(v, dtype))
