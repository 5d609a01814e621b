"""Making tensors: from data, and from a rule (zeros, ranges, identity)."""
# Tests: tests/core/tensor/test_tensor.py, tests/core/layout/test_number_ranges.py

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from weft.autograd.context import configured_device, default_device
from weft.autograd.value import Value, apply, number_node
from weft.core.args import broadcast as bc
from weft.core.args.axes import Sizes, new_shape
from weft.core.args.defaults import check_dtype, get_default_dtype
from weft.core.args.handle import Handle, Number, describe, value_of, wrap
from weft.core.execute import run
from weft.core.layout.movement import positions
from weft.core.pointwise.elementwise import eq, pow, where
from weft.errors import ArgumentError, DeviceError, DTypeError, GradError, ShapeError
from weft.ir import dtypes, graph
from weft.ir.dtypes import DTYPES, DType, int32, int64
from weft.ir.graph import Shape, Target
from weft.ir.index import Index, Int
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

Data: TypeAlias = Any
"""A number, a NumPy array, a Tensor, or nested sequences of them."""


def tensor(
    data: Data, dtype: DType | None = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """A new tensor holding a copy of `data`: a number, nested lists of numbers, a NumPy array or a Tensor.

    Python floats become the default dtype (float32), integers int64; NumPy arrays keep theirs unless dtype is given.
    ShapeError for ragged lists; DTypeError for what is no number.
    """
    if dtype is not None:
        check_dtype("tensor", dtype)
    if isinstance(data, Handle):
        v = Value(data.value.node)
        v = bc.cast(v, dtype) if dtype is not None else v
        return leaf(Value(place(v, device).node) if device is not None else v, requires_grad)
    array = to_array("tensor", data, dtype)
    home = default_device() if device is None else run.device_name(device)
    return leaf(Value(run.from_numpy(array, home)), requires_grad)


def to_array(op: str, data: Data, dtype: DType | None) -> np.ndarray[Any, Any]:
    """`data` as an array of one of weft's dtypes."""
    if bc.is_array(data):
        given = data
    else:
        given = np.asarray(data) if _is_numpy_scalar(data) else _from_python(op, data, dtype)
    try:
        found = dtypes.from_numpy(given.dtype)
    except KeyError:
        raise DTypeError(f"{op}: cannot hold {given.dtype} elements; weft has {', '.join(DTYPES)}") from None
    array = given
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if dtype is None or dtype is found:
        return array
    with np.errstate(all="ignore"):
        return dtypes.convert_array(array, dtype)


def _is_numpy_scalar(x: Any) -> bool:
    return isinstance(x, np.generic)


def _from_python(op: str, data: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    data = _plain(data)
    if isinstance(data, str) or data is None:
        raise DTypeError(f"{op}: cannot make a tensor from {describe(data)}; expected numbers")
    try:
        array = np.asarray(data)
    except ValueError:
        raise ShapeError(
            f"{op}: the nested lists do not all have the same lengths; a tensor is a full grid"
        ) from None
    except OverflowError:
        raise ArgumentError(f"{op}: an integer does not fit in 64 bits") from None
    if array.dtype == object or array.dtype.kind in "USOcMmV":
        what = (
            "integers of more than 64 bits"
            if _all_int(data)
            else f"elements such as {describe(_first(data))}"
        )
        raise DTypeError(f"{op}: cannot make a tensor from {what}; expected numbers")
    if _has_numpy(data):
        return array
    if _beyond_int64(array) and _only_ints(data):
        array = _wide_ints(op, data, dtype)
    if dtype is None and (array.dtype.kind == "f" or array.size == 0):
        return array.astype(dtypes.to_numpy(get_default_dtype()))
    if dtype is not None and dtype.is_int and array.size and array.dtype.kind != "b":
        bc.check_fits(op, array.min().item(), dtype)
        bc.check_fits(op, array.max().item(), dtype)
    return array


def _beyond_int64(array: np.ndarray[Any, Any]) -> bool:
    """True where NumPy had to leave int64, for uint64 or, if there are negative integers too, for float64."""
    kind = array.dtype.kind
    return kind == "u" or (kind == "f" and array.size > 0 and np.abs(array).max() >= 2.0**63)


def _only_ints(data: Any) -> bool:
    if isinstance(data, (list, tuple)):
        return all(_only_ints(x) for x in cast("Sequence[Any]", data))
    return isinstance(data, int)


def _wide_ints(op: str, data: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    """Integers of which some do not fit in int64."""
    if dtype is not None and dtype.is_float:
        return np.asarray(data, np.float64)
    try:
        if dtype is dtypes.uint64:
            return np.asarray(data, np.uint64)
    except OverflowError:
        pass
    wanted = "int64; give dtype=weft.uint64 or a float" if dtype is None else dtype.name
    raise ArgumentError(f"{op}: an integer does not fit in {wanted}")


def _plain(data: Any) -> Any:
    """Tensors inside sequences as NumPy arrays."""
    if isinstance(data, Handle):
        return run.to_numpy(data.value.node)
    if isinstance(data, (list, tuple)):
        items = list(cast("Sequence[Any]", data))
        return (
            [_plain(x) for x in items] if any(isinstance(x, (Handle, list, tuple)) for x in items) else items
        )
    return data


def _first(data: Any) -> Any:
    while isinstance(data, (list, tuple)) and data:
        items = cast("Sequence[Any]", data)
        data = next((x for x in items if not isinstance(x, (bool, int, float))), items[0])
    return cast("Any", data)


def _has_numpy(data: Any) -> bool:
    while isinstance(data, (list, tuple)) and data:
        data = cast("Sequence[Any]", data)[0]
    return isinstance(data, (np.ndarray, np.generic))


def _all_int(data: Any) -> bool:
    return isinstance(_first(data), int)


def leaf(v: Value, requires_grad: bool) -> Tensor:
    """A tensor over `v`; if it requires grad, a leaf under which gradients accumulate."""
    out = wrap(v)
    return out.requires_grad_() if requires_grad else out


def as_tensor(data: Data, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """`data` itself if it is a fitting Tensor (converted with its history if need be), else as `tensor`."""
    if isinstance(data, Handle):
        given = cast("Tensor", data)
        return given.to(*(x for x in (dtype, device) if x is not None)) if dtype or device else given
    return tensor(data, dtype, device)


asarray = as_tensor


def from_numpy(ndarray: np.ndarray[Any, Any]) -> Tensor:
    """A tensor with a copy of the array."""
    if not bc.is_array(ndarray):
        raise DTypeError(f"from_numpy: expected a NumPy array, got {describe(ndarray)}")
    return tensor(ndarray)


def place(v: Value, device: str | None) -> Value:
    """`v` on a device. Constants are at home on the default device without a copy."""
    target = default_device() if device is None else run.device_name(device)
    have = v.node.device
    if have == target or (have is None and target == configured_device()):
        return v
    return copied("copy", v, target)


def copied(op: str, v: Value, target: str) -> Value:
    """`v` in the memory of another device. DeviceError for a tensor on "meta", which has no values."""
    if target == run.META:
        return Value(run.valueless(v.shape, v.dtype))
    if v.node.device == run.META:
        raise DeviceError(
            f"{op}: a tensor on the device 'meta' has no values to copy to {target}; use empty_like, and for a module "
            f".to_empty(device={target.partition(':')[0]!r}) instead of .to(...)"
        )
    return apply(Op.COPY, (v,), Target(target))


def _made(v: Value, device: str | None, requires_grad: bool) -> Tensor:
    if requires_grad and not v.dtype.is_float:
        raise GradError(f"only float tensors can require grad, got {v.dtype.name}")
    return leaf(place(v, device), requires_grad)


def number(op: str, x: object) -> Number:
    """`x` if it is a Python number, or the one that a tensor of one element holds; DTypeError otherwise."""
    if isinstance(x, Handle):
        x = wrap(x.value).item()
    if isinstance(x, (bool, int, float)):
        return x
    raise DTypeError(f"{op}: expected a number, got {describe(x)}")


def full(
    size: Sizes,
    fill_value: Number,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """`fill_value` in every element. The dtype follows from the value unless given."""
    value = number("full", fill_value)
    kind = bc.number_dtype(value) if dtype is None else check_dtype("full", dtype)
    return _made(
        Value(graph.const(bc.fitting("full", value, kind), kind, new_shape("full", (size,)))),
        device,
        requires_grad,
    )


def _filled(
    op: str,
    value: Number,
    size: Sequence[Sizes],
    dtype: DType | None,
    device: str | None,
    requires_grad: bool,
) -> Tensor:
    kind = get_default_dtype() if dtype is None else check_dtype(op, dtype)
    return _made(Value(number_node(value, kind, new_shape(op, size))), device, requires_grad)


def zeros(
    *size: Sizes, dtype: DType | None = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """Zeros of shape `size`."""
    return _filled("zeros", 0, size, dtype, device, requires_grad)


def ones(
    *size: Sizes, dtype: DType | None = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """Ones of shape `size`."""
    return _filled("ones", 1, size, dtype, device, requires_grad)


def empty(
    *size: Sizes, dtype: DType | None = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """As zeros: weft shows nobody memory that was not written."""
    return _filled("empty", 0, size, dtype, device, requires_grad)


def full_like(
    input: Tensor,
    fill_value: Number,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """`fill_value` in the shape, dtype and device of input."""
    v = value_of("full_like", input)
    kind = v.dtype if dtype is None else check_dtype("full_like", dtype)
    home = device if device is not None else v.node.device
    value = bc.fitting("full_like", number("full_like", fill_value), kind)
    return _made(Value(graph.const(value, kind, v.shape)), home, requires_grad)


def zeros_like(
    input: Tensor, *, dtype: DType | None = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """Zeros in the shape, dtype and device of input."""
    return full_like(input, 0, dtype=dtype, device=device, requires_grad=requires_grad)


def ones_like(
    input: Tensor, *, dtype: DType | None = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """Ones in the shape, dtype and device of input."""
    return full_like(input, 1, dtype=dtype, device=device, requires_grad=requires_grad)


empty_like = zeros_like


def arange(
    start: Number | Int,
    end: Number | Int | None = None,
    step: Number = 1,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """start, start + step, ... up to but without end; arange(n) is 0 ... n - 1. int64 unless a float is given."""
    if end is None:
        start, end = 0, start
    is_float = isinstance(start, float) or isinstance(end, float) or isinstance(step, float)
    kind = (get_default_dtype() if is_float else int64) if dtype is None else check_dtype("arange", dtype)
    if kind is dtypes.bool_:
        raise DTypeError("arange: bool has no range; use int64 and compare")
    if isinstance(start, Index) or isinstance(end, Index):
        if start != 0 or step != 1 or isinstance(end, float):
            raise ArgumentError("arange: a size known only at run time needs start 0 and step 1")
        return _made(_line(end, 0, 1, kind), device, requires_grad)
    if (
        kind is int64 and is_float and all(map(math.isfinite, (start, end, step)))
    ):  # as torch: in int64 throughout
        start, end, step = int(start), int(end), int(step)
    if step == 0:
        raise ArgumentError("arange: step must not be 0")
    if not (math.isfinite(start) and math.isfinite(end) and math.isfinite(step)):
        raise ArgumentError(f"arange: start, end and step must be finite, got {start}, {end}, {step}")
    if (end - start) * (1 if step > 0 else -1) < 0:
        raise ArgumentError(f"arange: a step of {step} does not lead from {start} to {end}")
    n = math.ceil((end - start) / step) if is_float else int(-((start - end) // step))
    if kind.is_int and is_float:  # as torch: the size by the numbers, the elements by their whole parts
        start, step = int(start), int(step)
    return _made(_line(n, start, step, kind), device, requires_grad)


def _line(n: Int, start: Number, step: Number, dtype: DType) -> Value:
    """start + step * (0 ... n - 1), computed in float64 where the numbers are floats and float32 would be inexact."""
    wide = dtype
    if dtype.is_float and not (float(start).is_integer() and float(step).is_integer()):
        wide = dtypes.float64
    elif dtype.is_float and dtype.bits < 32:
        wide = dtypes.float32
    out = wrap(Value(graph.arange(n, wide)))
    if step != 1:
        out = out * step
    if start != 0:
        out = out + start
    return bc.cast(out.value, dtype)


def _number(op: str, x: Number | Tensor) -> Number:
    """A number; of a tensor without dimensions its value, which is computed."""
    if not isinstance(x, Handle):
        return x
    if x.value.shape:
        raise ShapeError(
            f"{op}: start and end must be numbers or tensors without dimensions, got {describe(x)}"
        )
    return wrap(x.value).item()


def linspace(
    start: Number | Tensor,
    end: Number | Tensor,
    steps: int,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """`steps` numbers from start to end, both included, at equal distances."""
    kind = get_default_dtype() if dtype is None else check_dtype("linspace", dtype)
    if kind is dtypes.bool_:
        raise DTypeError("linspace: not defined on bool; compare numbers instead")
    if not isinstance(steps, int) or isinstance(steps, bool):  # pyright: ignore[reportUnnecessaryIsInstance]  (users)
        raise DTypeError(f"linspace: steps must be an int, got {describe(steps)}")
    if steps < 0:
        raise ArgumentError(f"linspace: steps must not be negative, got {steps}")
    start, end = _number("linspace", start), _number("linspace", end)
    if kind.is_int:
        start, end = int(start), int(end)
    if steps < 2:
        return _made(Value(graph.const(start, kind, (steps,))), device, requires_grad)
    i = wrap(Value(graph.arange(steps, dtypes.float64)))
    by = (end - start) / (steps - 1)
    # counted from the nearer end, so that both ends are exact
    out = where(i < steps // 2, i * by + start, end - (steps - 1 - i) * by)
    return _made(bc.cast(out.value, kind), device, requires_grad)


def eye(
    n: Int,
    m: Int | None = None,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Ones on the diagonal of an n x m matrix (m = n unless given), zeros elsewhere."""
    kind = get_default_dtype() if dtype is None else check_dtype("eye", dtype)
    shape: Shape = new_shape("eye", ((n, n if m is None else m),))
    diagonal = eq(wrap(positions(shape, 0)), wrap(positions(shape, 1)))
    return _made(bc.cast(diagonal.value, kind), device, requires_grad)


def _check_grid(op: str, row: int, col: int, dtype: DType) -> None:
    if row < 0 or col < 0:
        raise ArgumentError(f"{op}: row and col must not be negative, got {row} and {col}")
    if dtype not in (int32, int64):
        raise DTypeError(f"{op}: dtype must be int32 or int64, got {dtype.name}")


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: DType = int64, device: str | None = None
) -> Tensor:
    """Rows and columns of the lower triangle of a row x col matrix, as a 2 x n int64 tensor."""
    _check_grid("tril_indices", row, col, dtype)
    return tensor(np.stack(np.tril_indices(row, offset, col)), dtype, device)


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: DType = int64, device: str | None = None
) -> Tensor:
    """Rows and columns of the upper triangle of a row x col matrix, as a 2 x n int64 tensor."""
    _check_grid("triu_indices", row, col, dtype)
    return tensor(np.stack(np.triu_indices(row, offset, col)), dtype, device)


def logspace(
    start: Number | Tensor,
    end: Number | Tensor,
    steps: int,
    base: float = 10.0,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """`steps` numbers from base**start to base**end at equal ratios."""
    kind = get_default_dtype() if dtype is None else check_dtype("logspace", dtype)
    start, end = _number("logspace", start), _number("logspace", end)
    if kind.is_int:
        start, end = int(start), int(end)
    exponents = linspace(
        start, end, steps, dtype=dtypes.float64 if kind.bits > 16 or kind.is_int else dtypes.float32
    )
    out = pow(full_like(exponents, float(base)), exponents)
    return _made(bc.cast(out.value, kind), device, requires_grad)


def range_(
    start: Number = 0,
    end: Number = 0,
    step: Number = 1,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """start, start + step, ... up to and with end, in the default float dtype. torch deprecates it for arange."""
    kind = get_default_dtype() if dtype is None else check_dtype("range", dtype)
    if step == 0 or (end - start) / step < 0:
        raise ArgumentError(f"range: a step of {step} does not lead from {start} to {end}")
    return _made(_line(math.floor((end - start) / step) + 1, start, step, kind), device, requires_grad)


def scalar_tensor(
    s: Number, *, dtype: DType | None = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """A tensor without dimensions, in the default float dtype unless another is given."""
    return full(
        (),
        s,
        dtype=get_default_dtype() if dtype is None else dtype,
        device=device,
        requires_grad=requires_grad,
    )


def frombuffer(
    buffer: Any, *, dtype: DType, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:
    """A tensor with a copy of the numbers in a buffer, such as bytes."""
    check_dtype("frombuffer", dtype)
    array = np.frombuffer(buffer, dtypes.to_numpy(dtype), count, offset)
    return tensor(array, dtype=dtype, requires_grad=requires_grad)


def empty_strided(
    size: Sizes,
    stride: Sizes,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """As empty: weft has no strides."""
    return empty(size, dtype=dtype, device=device, requires_grad=requires_grad)


def _read_array(array: np.ndarray[Any, Any]) -> Value:
    return Value(run.from_numpy(to_array("tensor", array, None), default_device()))


bc.set_array_reader(_read_array)
