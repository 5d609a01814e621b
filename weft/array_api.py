"""The Python array API standard, version 2024.12: `xp = weft.array_api`, or `xp = x.__array_namespace__()`.

The arrays are weft's Tensors, the dtypes weft's. Unlike weft's own functions, which promote as torch does, arrays
without dimensions promote like all others here, results keep the kind of their operands, and reductions of unsigned
integers are unsigned. Source: https://data-apis.org/array-api/2024.12.

Left out: complex64, complex128, `conj` of anything but itself, `imag` and the extension `fft`, since weft has real
numbers only; `linalg.eig` and `eigvals` for the same reason. `Tensor.size` is torch's method; the standard's number of
elements is `x.numel()`. Operators on Tensors promote as torch's do where one side has no dimensions. `nonzero`,
`unique_*` and boolean indexing compute their input when called, since their results' sizes depend on it.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import weft
from weft.core import broadcast as _bc
from weft.core import creation as _creation
from weft.core import devices as _devices
from weft.core import elementwise as _elementwise
from weft.core import float_format as _float_format
from weft.core import interchange as _interchange
from weft.core import linear_algebra as _linalg
from weft.core import matmul as _matmul
from weft.core import movement as _movement
from weft.core import reductions as _reductions
from weft.core import run as _run
from weft.core import scans as _scans
from weft.core import sorting as _sorting
from weft.core import special_functions as _special
from weft.core import trigonometry as _trigonometry
from weft.core.defaults import get_default_dtype as _default_float
from weft.core.gather import argwhere as _argwhere
from weft.core.gather import index_select as _index_select
from weft.core.gather import take_along_dim as _take_along_dim
from weft.core.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir import dtypes as _dtypes
from weft.ir.dtypes import (
    DType,
    Kind,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)  # fmt: skip
from weft.ir.dtypes import bool_ as bool

__array_api_version__ = "2024.12"

Scalar: TypeAlias = builtins.bool | int | float
Operand: TypeAlias = Tensor | Scalar
Axes: TypeAlias = int | tuple[int, ...] | None
Reduce: TypeAlias = Callable[[Tensor, Axes, builtins.bool], Tensor]

e, inf, nan, pi, newaxis = math.e, math.inf, math.nan, math.pi, None

# ---------------------------------------------------------------------------------------------- promotion


def _array(op: str, x: object) -> Tensor:
    if not isinstance(x, Tensor):
        raise DTypeError(f"{op}: expected an array, got {type(x).__name__}; make one with asarray")
    return x


def _together(op: str, *xs: Operand) -> list[Tensor]:
    """The operands in one dtype: arrays by their dtypes alone, Python numbers in that of the arrays."""
    dtype = result_type(*xs)
    if not builtins.any(isinstance(x, Tensor) for x in xs):
        raise DTypeError(f"{op}: at least one operand must be an array")
    return [x.to(dtype) if isinstance(x, Tensor) else _creation.full((), x, dtype=dtype) for x in xs]


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype that arrays, dtypes and Python numbers combine in."""
    found: DType | None = None
    numbers: list[Scalar] = []
    for x in arrays_and_dtypes:
        if isinstance(x, (builtins.bool, int, float)):
            numbers.append(x)
            continue
        dtype = x if isinstance(x, DType) else _array("result_type", x).dtype
        found = dtype if found is None else _dtypes.promote(found, dtype)
    for n in numbers:
        kind = _bc.number_dtype(n)
        higher = found is None or (kind.is_float and not found.is_float) or (kind.is_int and found is bool)
        found = kind if higher else found
    if found is None:
        raise ArgumentError("result_type: needs at least one array, dtype or number")
    return found


def can_cast(from_: DType | Tensor, to: DType, /) -> builtins.bool:
    """True where every value of one dtype is kept by promotion to another."""
    have = from_ if isinstance(from_, DType) else from_.dtype
    if have is uint64 and to.kind is Kind.INT:
        return False
    return _dtypes.promote(have, to) is to


def astype(x: Tensor, dtype: DType, /, *, copy: builtins.bool = True, device: str | None = None) -> Tensor:
    """The array in another dtype."""
    out = _array("astype", x).to(dtype)
    out = out if device is None else out.to(device)
    return out.clone() if copy and out is x else out


_KINDS: dict[str, tuple[Kind, ...]] = {
    "bool": (Kind.BOOL,),
    "signed integer": (Kind.INT,),
    "unsigned integer": (Kind.UINT,),
    "integral": (Kind.INT, Kind.UINT),
    "real floating": (Kind.FLOAT,),
    "complex floating": (),
    "numeric": (Kind.INT, Kind.UINT, Kind.FLOAT),
}


def isdtype(dtype: DType, kind: DType | str | tuple[DType | str, ...]) -> builtins.bool:
    """True for a dtype of a kind, or of one of several kinds or dtypes."""
    if isinstance(kind, tuple):
        return builtins.any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, DType):
        return dtype is kind
    if kind not in _KINDS:
        raise ArgumentError(f"isdtype: kind must be a dtype or one of {', '.join(_KINDS)}, got {kind!r}")
    return dtype.kind in _KINDS[kind]


@dataclass(frozen=True, slots=True)
class finfo_object:  # noqa: N801  (the standard's name)
    """Limits of a float dtype."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True, slots=True)
class iinfo_object:  # noqa: N801
    """Limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: DType | Tensor, /) -> finfo_object:
    """Limits of a float dtype."""
    kind = type if isinstance(type, DType) else type.dtype
    found = weft.finfo(kind)
    return finfo_object(found.bits, found.eps, found.max, found.min, found.smallest_normal, kind)


def iinfo(type: DType | Tensor, /) -> iinfo_object:
    """Limits of an integer dtype."""
    kind = type if isinstance(type, DType) else type.dtype
    found = weft.iinfo(kind)
    return iinfo_object(found.bits, found.max, found.min, kind)


# ---------------------------------------------------------------------------------------------- creation


def asarray(
    obj: Any, /, *, dtype: DType | None = None, device: str | None = None, copy: builtins.bool | None = None
) -> Tensor:
    """Numbers, nested sequences, buffers or arrays as an array; an array itself unless a copy is needed."""
    if isinstance(obj, Tensor):
        if copy is False and (
            (dtype is not None and dtype is not obj.dtype) or (device is not None and device != obj.device)
        ):
            raise ArgumentError("asarray: copy=False, but the dtype or device asked for needs a copy")
        out = obj if dtype is None else obj.to(dtype)
        out = out if device is None else out.to(device)
        return out.clone() if copy and out is obj else out
    if copy is False:
        raise ArgumentError("asarray: copy=False is only possible for an array of weft")
    if isinstance(obj, complex):
        raise DTypeError("asarray: weft has no complex numbers")
    if hasattr(obj, "__dlpack__") and not isinstance(obj, np.ndarray):
        found = _interchange.from_dlpack(obj, device=device)
        return found if dtype is None else found.to(dtype)
    if isinstance(obj, (bytes, bytearray, memoryview)) or (
        not isinstance(obj, (builtins.bool, int, float, list, tuple, np.ndarray, np.generic))
        and _has_buffer(obj)
    ):
        return asarray(
            np.frombuffer(obj, np.uint8) if isinstance(obj, (bytes, bytearray)) else _of_buffer(obj),
            dtype=dtype,
        )
    if (
        isinstance(obj, int)
        and not isinstance(obj, builtins.bool)
        and dtype is None
        and not -(2**63) <= obj < 2**63
    ):
        raise ArgumentError("asarray: the integer does not fit in int64")
    return _creation.tensor(obj, dtype, device)


def _of_buffer(obj: Any) -> np.ndarray[Any, Any]:
    return np.asarray(memoryview(obj))


def _has_buffer(obj: Any) -> builtins.bool:
    try:
        memoryview(obj)
    except TypeError:
        return False
    return True


def from_dlpack(x: Any, /, *, device: str | None = None, copy: builtins.bool | None = None) -> Tensor:
    """An array of another library, through DLPack. Arrays of weft are returned as they are unless copied."""
    if isinstance(x, Tensor):
        return asarray(x, device=device, copy=copy)
    return _interchange.from_dlpack(x, device=device, copy=copy)


def arange(
    start: int | float,
    /,
    stop: int | float | None = None,
    step: int | float = 1,
    *,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    """start, start + step, ... before stop; empty where the step leads away from it."""
    first, last = (0, start) if stop is None else (start, stop)
    if step != 0 and (last - first) / step < 0:
        last = first
    return _creation.arange(first, last, step, dtype=dtype, device=device)


def empty(shape: int | tuple[int, ...], *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """An array of any values: zeros."""
    return _creation.zeros(shape, dtype=dtype, device=device)


def zeros(shape: int | tuple[int, ...], *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Zeros."""
    return _creation.zeros(shape, dtype=dtype, device=device)


def ones(shape: int | tuple[int, ...], *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Ones."""
    return _creation.ones(shape, dtype=dtype, device=device)


def full(
    shape: int | tuple[int, ...], fill_value: Scalar, *, dtype: DType | None = None, device: str | None = None
) -> Tensor:
    """One value in every element."""
    return _creation.full(shape, fill_value, dtype=dtype, device=device)


def empty_like(x: Tensor, /, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """An array of any values in the shape of x: zeros."""
    return _creation.zeros_like(x, dtype=dtype, device=device)


def zeros_like(x: Tensor, /, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Zeros in the shape of x."""
    return _creation.zeros_like(x, dtype=dtype, device=device)


def ones_like(x: Tensor, /, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Ones in the shape of x."""
    return _creation.ones_like(x, dtype=dtype, device=device)


def full_like(
    x: Tensor, /, fill_value: Scalar, *, dtype: DType | None = None, device: str | None = None
) -> Tensor:
    """One value in the shape of x."""
    return _creation.full_like(x, fill_value, dtype=dtype, device=device)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    """Ones on diagonal k, zeros elsewhere."""
    columns = n_rows if n_cols is None else n_cols
    kind = _default_float() if dtype is None else dtype
    if not k:
        return _creation.eye(n_rows, columns, dtype=kind, device=device)
    return _creation.tensor(np.eye(n_rows, columns, k, np.bool_), device=device).to(kind)


def linspace(
    start: int | float,
    stop: int | float,
    /,
    num: int,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    endpoint: builtins.bool = True,
) -> Tensor:
    """`num` numbers from start to stop at equal distances."""
    if endpoint:
        return _creation.linspace(start, stop, num, dtype=dtype, device=device)
    return _creation.linspace(start, stop, num + 1, dtype=dtype, device=device)[:num]


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Vectors expanded over the grid of all of them."""
    if len({a.dtype for a in arrays}) > 1:
        raise ArgumentError("meshgrid: all arrays must have one dtype")
    return list(_movement.meshgrid(*arrays, indexing=indexing)) if arrays else []


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The lower triangles of matrices."""
    return _movement.tril(x, k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The upper triangles of matrices."""
    return _movement.triu(x, k)


# ---------------------------------------------------------------------------------------------- elementwise


def _floats(op: str, *xs: Operand) -> list[Tensor]:
    both = _together(op, *xs)
    if not both[0].dtype.is_float:
        raise DTypeError(f"{op}: needs floats, got {both[0].dtype.name}; convert with astype")
    return both


def _number(op: str, x: Tensor) -> Tensor:
    if _array(op, x).dtype is bool:
        raise DTypeError(f"{op}: not defined on bool; convert with astype")
    return x


def abs(x: Tensor, /) -> Tensor:
    """The absolute value."""
    return x.clone() if _number("abs", x).dtype.kind is Kind.UINT else _elementwise.abs(x)


def acos(x: Tensor, /) -> Tensor:
    """The inverse cosine."""
    return _trigonometry.acos(_floats("acos", x)[0])


def acosh(x: Tensor, /) -> Tensor:
    """The inverse hyperbolic cosine."""
    return _trigonometry.acosh(_floats("acosh", x)[0])


def add(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 + x2."""
    return _elementwise.add(*_together("add", x1, x2))


def asin(x: Tensor, /) -> Tensor:
    """The inverse sine."""
    return _trigonometry.asin(_floats("asin", x)[0])


def asinh(x: Tensor, /) -> Tensor:
    """The inverse hyperbolic sine."""
    return _trigonometry.asinh(_floats("asinh", x)[0])


def atan(x: Tensor, /) -> Tensor:
    """The inverse tangent."""
    return _trigonometry.atan(_floats("atan", x)[0])


def atan2(x1: Operand, x2: Operand, /) -> Tensor:
    """The angle of the point (x2, x1)."""
    return _trigonometry.atan2(*_floats("atan2", x1, x2))


def atanh(x: Tensor, /) -> Tensor:
    """The inverse hyperbolic tangent."""
    return _trigonometry.atanh(_floats("atanh", x)[0])


def bitwise_and(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 & x2."""
    return _elementwise.bitwise_and(*_together("bitwise_and", x1, x2))


def bitwise_or(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 | x2."""
    return _elementwise.bitwise_or(*_together("bitwise_or", x1, x2))


def bitwise_xor(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 ^ x2."""
    return _elementwise.bitwise_xor(*_together("bitwise_xor", x1, x2))


def bitwise_invert(x: Tensor, /) -> Tensor:
    """~x."""
    return _elementwise.bitwise_not(x)


def bitwise_left_shift(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 << x2."""
    return _elementwise.bitwise_left_shift(*_together("bitwise_left_shift", x1, x2))


def bitwise_right_shift(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 >> x2."""
    return _elementwise.bitwise_right_shift(*_together("bitwise_right_shift", x1, x2))


def ceil(x: Tensor, /) -> Tensor:
    """Rounded toward +inf."""
    return _elementwise.ceil(x)


def clip(x: Tensor, /, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """x limited to min..max, in the dtype of x."""
    out = _number("clip", x)
    if min is not None:
        out = _limited(out, min, _elementwise.maximum)
    if max is not None:
        out = _limited(out, max, _elementwise.minimum)
    return out.clone() if out is x else out


def _limited(x: Tensor, bound: Operand, choose: Any) -> Tensor:
    if isinstance(bound, Tensor):
        return choose(x, bound.to(x.dtype))
    if x.dtype.is_int:  # a bound beyond the dtype limits nothing, or everything
        low, high = int(x.dtype.min), int(x.dtype.max)
        bound = low if bound < low else high if bound > high else int(bound)
    return choose(x, _creation.full((), bound, dtype=x.dtype))


def conj(x: Tensor, /) -> Tensor:
    """The array itself: weft has real numbers only."""
    return _number("conj", x)


def real(x: Tensor, /) -> Tensor:
    """The array itself: weft has real numbers only."""
    return _number("real", x)


def copysign(x1: Operand, x2: Operand, /) -> Tensor:
    """The size of x1 with the sign of x2."""
    return _float_format.copysign(*_floats("copysign", x1, x2))


def cos(x: Tensor, /) -> Tensor:
    """The cosine."""
    return _elementwise.cos(_floats("cos", x)[0])


def cosh(x: Tensor, /) -> Tensor:
    """The hyperbolic cosine."""
    return _elementwise.cosh(_floats("cosh", x)[0])


def divide(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 / x2."""
    return _elementwise.div(*_together("divide", x1, x2))


def equal(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 == x2."""
    return _elementwise.eq(*_together("equal", x1, x2))


def exp(x: Tensor, /) -> Tensor:
    """e ** x."""
    return _elementwise.exp(_floats("exp", x)[0])


def expm1(x: Tensor, /) -> Tensor:
    """exp(x) - 1."""
    return _elementwise.expm1(_floats("expm1", x)[0])


def floor(x: Tensor, /) -> Tensor:
    """Rounded toward -inf."""
    return _elementwise.floor(x)


def floor_divide(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 // x2."""
    return _elementwise.floor_divide(*_together("floor_divide", x1, x2))


def greater(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 > x2."""
    return _elementwise.gt(*_together("greater", x1, x2))


def greater_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 >= x2."""
    return _elementwise.ge(*_together("greater_equal", x1, x2))


def hypot(x1: Operand, x2: Operand, /) -> Tensor:
    """sqrt(x1**2 + x2**2)."""
    return _trigonometry.hypot(*_floats("hypot", x1, x2))


def isfinite(x: Tensor, /) -> Tensor:
    """True for finite numbers."""
    return _elementwise.isfinite(x)


def isinf(x: Tensor, /) -> Tensor:
    """True for infinities."""
    return _elementwise.isinf(x)


def isnan(x: Tensor, /) -> Tensor:
    """True for NaN."""
    return _elementwise.isnan(x)


def less(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 < x2."""
    return _elementwise.lt(*_together("less", x1, x2))


def less_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 <= x2."""
    return _elementwise.le(*_together("less_equal", x1, x2))


def log(x: Tensor, /) -> Tensor:
    """The natural logarithm."""
    return _elementwise.log(_floats("log", x)[0])


def log1p(x: Tensor, /) -> Tensor:
    """log(1 + x)."""
    return _elementwise.log1p(_floats("log1p", x)[0])


def log2(x: Tensor, /) -> Tensor:
    """The logarithm to base 2."""
    return _elementwise.log2(_floats("log2", x)[0])


def log10(x: Tensor, /) -> Tensor:
    """The logarithm to base 10."""
    return _elementwise.log10(_floats("log10", x)[0])


def logaddexp(x1: Operand, x2: Operand, /) -> Tensor:
    """log(exp(x1) + exp(x2))."""
    return _special.logaddexp(*_floats("logaddexp", x1, x2))


def logical_and(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 and x2."""
    return _elementwise.logical_and(*_together("logical_and", x1, x2))


def logical_not(x: Tensor, /) -> Tensor:
    """not x."""
    return _elementwise.logical_not(x)


def logical_or(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 or x2."""
    return _elementwise.logical_or(*_together("logical_or", x1, x2))


def logical_xor(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 or x2, but not both."""
    return _elementwise.logical_xor(*_together("logical_xor", x1, x2))


def maximum(x1: Operand, x2: Operand, /) -> Tensor:
    """The larger of both."""
    return _elementwise.maximum(*_together("maximum", x1, x2))


def minimum(x1: Operand, x2: Operand, /) -> Tensor:
    """The smaller of both."""
    return _elementwise.minimum(*_together("minimum", x1, x2))


def multiply(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 * x2."""
    return _elementwise.mul(*_together("multiply", x1, x2))


def negative(x: Tensor, /) -> Tensor:
    """-x."""
    return _elementwise.neg(x)


def nextafter(x1: Operand, x2: Operand, /) -> Tensor:
    """The next float after x1 toward x2."""
    return _float_format.nextafter(*_floats("nextafter", x1, x2))


def not_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 != x2."""
    return _elementwise.ne(*_together("not_equal", x1, x2))


def positive(x: Tensor, /) -> Tensor:
    """+x."""
    return _elementwise.positive(x)


def pow(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 ** x2."""
    return _elementwise.pow(*_together("pow", x1, x2))


def reciprocal(x: Tensor, /) -> Tensor:
    """1 / x."""
    return _elementwise.reciprocal(_floats("reciprocal", x)[0])


def remainder(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 % x2, with the sign of x2, of zeros too."""
    a, b = _together("remainder", x1, x2)
    rest = _elementwise.remainder(a, b)
    if not rest.dtype.is_float:
        return rest
    return _elementwise.where(_elementwise.eq(rest, 0), _float_format.copysign(rest, b), rest)


def round(x: Tensor, /) -> Tensor:
    """Rounded to the nearest integer, ties to even."""
    return _elementwise.round(x)


def sign(x: Tensor, /) -> Tensor:
    """-1, 0 or 1; NaN for NaN."""
    out = _elementwise.sign(_number("sign", x))
    return _elementwise.where(_elementwise.isnan(x), nan, out) if x.dtype.is_float else out


def signbit(x: Tensor, /) -> Tensor:
    """True where the sign is negative."""
    return _float_format.signbit(_floats("signbit", x)[0])


def sin(x: Tensor, /) -> Tensor:
    """The sine."""
    return _elementwise.sin(_floats("sin", x)[0])


def sinh(x: Tensor, /) -> Tensor:
    """The hyperbolic sine."""
    return _elementwise.sinh(_floats("sinh", x)[0])


def sqrt(x: Tensor, /) -> Tensor:
    """The square root."""
    return _elementwise.sqrt(_floats("sqrt", x)[0])


def square(x: Tensor, /) -> Tensor:
    """x * x."""
    return _elementwise.square(_number("square", x))


def subtract(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 - x2."""
    return _elementwise.sub(*_together("subtract", x1, x2))


def tan(x: Tensor, /) -> Tensor:
    """The tangent."""
    return _elementwise.tan(_floats("tan", x)[0])


def tanh(x: Tensor, /) -> Tensor:
    """The hyperbolic tangent."""
    return _elementwise.tanh(_floats("tanh", x)[0])


def trunc(x: Tensor, /) -> Tensor:
    """Rounded toward zero."""
    return _elementwise.trunc(x)


# ---------------------------------------------------------------------------------------------- manipulation


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """All arrays in their common shape."""
    return list(_movement.broadcast_tensors(*arrays)) if arrays else []


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """The array in a larger shape."""
    return _movement.broadcast_to(x, shape)


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """The arrays one after the other along an axis, or flattened for None."""
    parts = _together("concat", *arrays)
    if axis is None:
        return _movement.cat([_movement.flatten(p) for p in parts], 0)
    for p in parts:
        if p.ndim != parts[0].ndim:
            raise ShapeError(
                f"concat: shapes {tuple(parts[0].shape)} and {tuple(p.shape)} have different numbers of axes"
            )
    return _movement.cat(parts, axis)


def expand_dims(x: Tensor, /, *, axis: int | tuple[int, ...] = 0) -> Tensor:
    """Axes of size 1 inserted."""
    rank = x.ndim + (1 if isinstance(axis, int) else len(axis))
    wanted = sorted(_index_of(a, rank) for a in ([axis] if isinstance(axis, int) else axis))
    if len(set(wanted)) != len(wanted):
        raise ArgumentError(f"expand_dims: axes {axis} must differ")
    for a in wanted:
        x = _movement.unsqueeze(x, a)
    return x


def _index_of(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise weft.IndexError(f"axis {axis} is out of range for {rank} axes")
    return axis + rank if axis < 0 else axis


def flip(x: Tensor, /, *, axis: Axes = None) -> Tensor:
    """In reverse order along axes, all by default."""
    over = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else axis
    return _movement.flip(x, over) if over else x


def moveaxis(x: Tensor, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Tensor:
    """Axes moved to other places."""
    return _movement.movedim(x, source, destination)


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """The axes in another order."""
    return _movement.permute(x, tuple(axes))


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """Each element repeated in place."""
    return _movement.repeat_interleave(x, repeats, axis)


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: builtins.bool | None = None) -> Tensor:
    """The elements in row-major order in another shape."""
    out = _movement.reshape(x, tuple(shape))
    return out.clone() if copy else out


def roll(x: Tensor, /, shift: int | tuple[int, ...], *, axis: Axes = None) -> Tensor:
    """Moved by places, what leaves at one end entering at the other."""
    if isinstance(axis, tuple) and isinstance(shift, int):
        shift = (shift,) * len(axis)
    return _movement.roll(x, shift, axis)


def squeeze(x: Tensor, /, axis: int | tuple[int, ...]) -> Tensor:
    """Axes of size 1 removed."""
    for a in [axis] if isinstance(axis, int) else axis:
        if x.shape[_index_of(a, x.ndim)] != 1:
            raise ArgumentError(f"squeeze: axis {a} of shape {tuple(x.shape)} has not size 1")
    return _movement.squeeze(x, axis)


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Arrays joined along a new axis."""
    return _movement.stack(_together("stack", *arrays), axis)


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """The array repeated along each axis."""
    times = (1,) * (x.ndim - len(repetitions)) + tuple(repetitions)
    return _movement.repeat(x, times)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """All slices along an axis."""
    return _movement.unbind(x, axis)


# ---------------------------------------------------------------------------------------------- picking, searching


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """The slices along an axis that indices name."""
    if axis is None:
        if x.ndim != 1:
            raise ArgumentError(f"take: axis must be given for an array of {x.ndim} axes")
        axis = 0
    return _index_select(x, axis, indices)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """For each line along an axis the elements that its own indices name."""
    return _take_along_dim(x, indices, axis)


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: builtins.bool = False) -> Tensor:
    """The index of the first maximum."""
    return _reductions.argmax(x, axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: builtins.bool = False) -> Tensor:
    """The index of the first minimum."""
    return _reductions.argmin(x, axis, keepdims)


def count_nonzero(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """How many elements are nonzero."""
    return _over(
        x, axis, keepdims, lambda x, d, k: _reductions.sum(_elementwise.ne(x, 0), d, k), keep_int64=True
    )


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The indices of the nonzero elements, one vector per axis. Computes the input."""
    if not x.ndim:
        raise ArgumentError("nonzero: needs at least 1 axis")
    return tuple(_movement.unbind(_argwhere(x), 1))


def searchsorted(x1: Tensor, x2: Operand, /, *, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """Where each element of x2 would be inserted into the ascending vector x1."""
    a, b = _together("searchsorted", x1, x2)
    order = None if sorter is None else sorter.to(int64)
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted: side must be 'left' or 'right', got {side!r}")
    return _sorting.searchsorted(a, b, right=side == "right", sorter=order)


def where(condition: Tensor, x1: Operand, x2: Operand, /) -> Tensor:
    """x1 where the condition is true, else x2."""
    dtype = result_type(x1, x2)
    a, b = (x.to(dtype) if isinstance(x, Tensor) else _creation.full((), x, dtype=dtype) for x in (x1, x2))
    return _elementwise.where(condition, a, b)


# ---------------------------------------------------------------------------------------------- sets, sorting


class unique_all_result(NamedTuple):  # noqa: N801
    """Distinct elements, where each was first, which each element is, and how often it occurs."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class unique_counts_result(NamedTuple):  # noqa: N801
    """Distinct elements and how often each occurs."""

    values: Tensor
    counts: Tensor


class unique_inverse_result(NamedTuple):  # noqa: N801
    """Distinct elements and which each element is."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Tensor, /) -> unique_all_result:
    """Distinct elements with their first places, inverse and counts. Computes the input."""
    array = x.numpy()
    values, first, inverse, counts = np.unique(
        array, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    made = (_creation.tensor(np.asarray(a, np.int64)) for a in (first, inverse.reshape(array.shape), counts))
    return unique_all_result(_creation.tensor(values, dtype=x.dtype), *made)


def unique_counts(x: Tensor, /) -> unique_counts_result:
    """Distinct elements and how often each occurs. Computes the input."""
    found = unique_all(x)
    return unique_counts_result(found.values, found.counts)


def unique_inverse(x: Tensor, /) -> unique_inverse_result:
    """Distinct elements and which each element is. Computes the input."""
    found = unique_all(x)
    return unique_inverse_result(found.values, found.inverse_indices)


def unique_values(x: Tensor, /) -> Tensor:
    """Distinct elements. Computes the input."""
    return unique_all(x).values


def argsort(
    x: Tensor, /, *, axis: int = -1, descending: builtins.bool = False, stable: builtins.bool = True
) -> Tensor:
    """The indices that sort along an axis."""
    return _sorting.argsort(x, axis, descending)


def sort(
    x: Tensor, /, *, axis: int = -1, descending: builtins.bool = False, stable: builtins.bool = True
) -> Tensor:
    """Sorted along an axis."""
    return _sorting.sort(x, axis, descending).values


# ---------------------------------------------------------------------------------------------- reductions


def _wide(x: Tensor, dtype: DType | None) -> DType:
    """The dtype in which a sum or product is given: of the same kind and 64 bits for integers."""
    if dtype is not None:
        return dtype
    if x.dtype.kind is Kind.UINT:
        return uint64
    return int64 if not x.dtype.is_float else x.dtype


def _over(
    x: Tensor, axis: Axes, keepdims: builtins.bool, reduce: Reduce, keep_int64: builtins.bool = False
) -> Tensor:
    """A reduction over axes, for which an empty tuple means none."""
    if isinstance(axis, tuple) and not axis:
        return _elementwise.ne(x, 0).to(int64) if keep_int64 else reduce(_movement.unsqueeze(x, 0), 0, False)
    return reduce(x, axis, keepdims)


def sum(
    x: Tensor, /, *, axis: Axes = None, dtype: DType | None = None, keepdims: builtins.bool = False
) -> Tensor:
    """The sum over axes."""
    kind = _wide(x, dtype)
    return _over(x, axis, keepdims, lambda x, d, k: _reductions.sum(x, d, k, dtype=kind))


def prod(
    x: Tensor, /, *, axis: Axes = None, dtype: DType | None = None, keepdims: builtins.bool = False
) -> Tensor:
    """The product over axes."""
    kind = _wide(x, dtype)

    def reduce(x: Tensor, d: Axes, k: builtins.bool) -> Tensor:
        over = tuple(range(x.ndim)) if d is None else (d,) if isinstance(d, int) else d
        for i in sorted((_index_of(i, x.ndim) for i in over), reverse=True):
            x = _reductions.prod(x, i, k, dtype=kind)
        return x.to(kind)

    return _over(x, axis, keepdims, reduce)


def max(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """The maximum over axes."""
    return _over(x, axis, keepdims, _reductions.amax)


def min(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """The minimum over axes."""
    return _over(x, axis, keepdims, _reductions.amin)


def mean(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """The mean over axes."""
    return _over(x, axis, keepdims, _reductions.mean)


def var(
    x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: builtins.bool = False
) -> Tensor:
    """The variance over axes."""
    return _over(x, axis, keepdims, lambda x, d, k: _reductions.var(x, d, keepdim=k, correction=correction))


def std(
    x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: builtins.bool = False
) -> Tensor:
    """The standard deviation over axes."""
    return _over(x, axis, keepdims, lambda x, d, k: _reductions.std(x, d, keepdim=k, correction=correction))


def all(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """True where all elements along axes are nonzero."""
    return _over(_elementwise.ne(x, 0), axis, keepdims, _reductions.all)


def any(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """True where any element along axes is nonzero."""
    return _over(_elementwise.ne(x, 0), axis, keepdims, _reductions.any)


def _cumulative(
    op: str,
    scan: Any,
    x: Tensor,
    axis: int | None,
    dtype: DType | None,
    include_initial: builtins.bool,
    first: int,
) -> Tensor:
    if axis is None:
        if x.ndim > 1:
            raise ArgumentError(f"{op}: axis must be given for an array of {x.ndim} axes")
        axis = 0
    kind = _wide(x, dtype)
    if not x.ndim:
        x = _movement.reshape(x, 1)
    k = _index_of(axis, x.ndim)
    out = scan(x, k, dtype=kind)
    if include_initial:
        shape = (*out.shape[:k], 1, *out.shape[k + 1 :])
        out = _movement.cat([_creation.full(shape, first, dtype=kind), out], k)
    return out


def cumulative_sum(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: DType | None = None,
    include_initial: builtins.bool = False,
) -> Tensor:
    """Running sums along an axis."""
    return _cumulative("cumulative_sum", _scans.cumsum, x, axis, dtype, include_initial, 0)


def cumulative_prod(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: DType | None = None,
    include_initial: builtins.bool = False,
) -> Tensor:
    """Running products along an axis."""
    return _cumulative("cumulative_prod", _scans.cumprod, x, axis, dtype, include_initial, 1)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """The n-th difference of neighbours along an axis."""
    return _scans.diff(x, n, axis, prepend, append)


# ---------------------------------------------------------------------------------------------- linear algebra


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The matrix product."""
    return _matmul.matmul(*_together("matmul", x1, x2))


def matrix_transpose(x: Tensor, /) -> Tensor:
    """The last two axes exchanged."""
    return _movement.matrix_transpose(x)


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """The sum over pairs of axes."""
    a, b = _together("tensordot", x1, x2)
    return _matmul.tensordot(a, b, axes)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The dot product along an axis."""
    a, b = _together("vecdot", x1, x2)
    if axis >= 0 or a.shape[axis] != b.shape[axis]:
        raise ArgumentError(
            f"vecdot: axis {axis} of shapes {tuple(a.shape)} and {tuple(b.shape)} must be negative and agree"
        )
    return _reductions.sum(a * b, axis, dtype=a.dtype)


def _matrix_rank(x: Tensor, /, *, rtol: Any = None) -> Tensor:
    return _linalg.matrix_rank(x, rtol=rtol)


def _trace(x: Tensor, /, *, offset: int = 0, dtype: DType | None = None) -> Tensor:
    return sum(_linalg.diagonal_of(x, offset=offset), axis=-1, dtype=dtype)


def _outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    return _matmul.outer(*_together("outer", x1, x2))


def _diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    return _linalg.diagonal_of(x, offset=offset)


def _cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    a, b = _together("cross", x1, x2)
    return _linalg.cross(*_movement.broadcast_tensors(a, b), dim=axis)


def _vector_norm(
    x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False, ord: float = 2
) -> Tensor:
    return _over(x, axis, keepdims, lambda x, d, k: _linalg.vector_norm(x, ord, d, k))


def _matrix_norm(x: Tensor, /, *, keepdims: builtins.bool = False, ord: float | str = "fro") -> Tensor:
    return _linalg.matrix_norm(x, ord, keepdim=keepdims)


def _solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    a, b = _together("solve", x1, x2)
    if b.ndim == 1:
        return _linalg.solve(a, _movement.unsqueeze(b, -1))[..., 0]
    rank = builtins.max(a.ndim, b.ndim)
    wide = _movement.reshape(
        a, (1,) * (rank - a.ndim) + tuple(a.shape)
    )  # matrices, also where B might be vectors
    return _linalg.solve(wide, b)


def _pinv(x: Tensor, /, *, rtol: Any = None) -> Tensor:
    return _linalg.pinv(x, rtol=rtol)


def _svd(x: Tensor, /, *, full_matrices: builtins.bool = True) -> _linalg.SVD:
    return _linalg.svd(x, full_matrices)


def _qr(x: Tensor, /, *, mode: str = "reduced") -> _linalg.QR:
    return _linalg.qr(x, mode)


linalg = SimpleNamespace(
    cholesky=_linalg.cholesky, cross=_cross, det=_linalg.det, diagonal=_diagonal, eigh=_linalg.eigh,
    eigvalsh=_linalg.eigvalsh, inv=_linalg.inv, matmul=matmul, matrix_norm=_matrix_norm,
    matrix_power=_linalg.matrix_power, matrix_rank=_matrix_rank, matrix_transpose=matrix_transpose, outer=_outer,
    pinv=_pinv, qr=_qr, slogdet=_linalg.slogdet, solve=_solve, svd=_svd, svdvals=_linalg.svdvals,
    tensordot=tensordot, trace=_trace, vecdot=vecdot, vector_norm=_vector_norm,
)  # fmt: skip
"""The standard's extension for linear algebra, less what is complex."""


# ---------------------------------------------------------------------------------------------- inspection


class _Info:
    """What the namespace offers."""

    def capabilities(self) -> dict[str, Any]:
        """Boolean indexing and data-dependent shapes work; any number of axes."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> str:
        """The device of new arrays."""
        return _run.default_device()

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType]:
        """The dtypes of Python numbers and of indices."""
        return {"real floating": _default_float(), "integral": int64, "indexing": int64}

    def devices(self) -> list[str]:
        """The devices there are."""
        return [d.name for d in _devices.devices()]

    def dtypes(
        self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The standard's dtypes of a kind, by name."""
        every = {
            "bool": bool, "int8": int8, "int16": int16, "int32": int32, "int64": int64, "uint8": uint8,
            "uint16": uint16, "uint32": uint32, "uint64": uint64, "float32": float32, "float64": float64,
        }  # fmt: skip
        return every if kind is None else {n: d for n, d in every.items() if isdtype(d, kind)}


def __array_namespace_info__() -> _Info:  # noqa: N807  (the standard's name)
    """What the namespace offers: capabilities, devices, dtypes."""
    return _Info()


__all__ = [
    "__array_namespace_info__", "abs", "acos", "acosh", "add", "all", "any", "arange", "argmax", "argmin",
    "argsort", "asarray", "asin", "asinh", "astype", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "bool",
    "broadcast_arrays", "broadcast_to", "can_cast", "ceil", "clip", "concat", "conj", "copysign", "cos",
    "cosh", "count_nonzero", "cumulative_prod", "cumulative_sum", "diff", "divide", "e", "empty",
    "empty_like", "equal", "exp", "expand_dims", "expm1", "eye", "finfo", "flip", "float32", "float64",
    "floor", "floor_divide", "from_dlpack", "full", "full_like", "greater", "greater_equal", "hypot",
    "iinfo", "inf", "int16", "int32", "int64", "int8", "isdtype", "isfinite", "isinf", "isnan", "less",
    "less_equal", "linalg", "linspace", "log", "log10", "log1p", "log2", "logaddexp", "logical_and",
    "logical_not", "logical_or", "logical_xor", "matmul", "matrix_transpose", "max", "maximum", "mean",
    "meshgrid", "min", "minimum", "moveaxis", "multiply", "nan", "negative", "newaxis", "nextafter",
    "nonzero", "not_equal", "ones", "ones_like", "permute_dims", "pi", "positive", "pow", "prod", "real",
    "reciprocal", "remainder", "repeat", "reshape", "result_type", "roll", "round", "searchsorted", "sign",
    "signbit", "sin", "sinh", "sort", "sqrt", "square", "squeeze", "stack", "std", "subtract", "sum",
    "take", "take_along_axis", "tan", "tanh", "tensordot", "tile", "tril", "triu", "trunc", "uint16",
    "uint32", "uint64", "uint8", "unique_all", "unique_counts", "unique_inverse", "unique_values",
    "unstack", "var", "vecdot", "where", "zeros", "zeros_like",
]  # fmt: skip
