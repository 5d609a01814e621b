"""Creation functions of the standard."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.array_api.promotion import Scalar
from weft.core.args.defaults import get_default_dtype
from weft.core.layout import creation, movement
from weft.core.tensor import interchange
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError
from weft.ir.dtypes import DType


def asarray(
    obj: Any, /, *, dtype: DType | None = None, device: str | None = None, copy: bool | None = None
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
        found = interchange.from_dlpack(obj, device=device)
        return found if dtype is None else found.to(dtype)
    if isinstance(obj, (bytes, bytearray, memoryview)) or (
        not isinstance(obj, (bool, int, float, list, tuple, np.ndarray, np.generic)) and _has_buffer(obj)
    ):
        return asarray(
            np.frombuffer(obj, np.uint8) if isinstance(obj, (bytes, bytearray)) else _of_buffer(obj),
            dtype=dtype,
        )
    if isinstance(obj, int) and not isinstance(obj, bool) and dtype is None and not -(2**63) <= obj < 2**63:
        raise ArgumentError("asarray: the integer does not fit in int64")
    return creation.tensor(obj, dtype, device)


def _of_buffer(obj: Any) -> np.ndarray[Any, Any]:
    return np.asarray(memoryview(obj))


def _has_buffer(obj: Any) -> bool:
    try:
        memoryview(obj)
    except TypeError:
        return False
    return True


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """An array of another library, through DLPack. Arrays of weft are returned as they are unless copied."""
    if isinstance(x, Tensor):
        return asarray(x, device=device, copy=copy)
    return interchange.from_dlpack(x, device=device, copy=copy)


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
    return creation.arange(first, last, step, dtype=dtype, device=device)


def empty(shape: int | tuple[int, ...], *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """An array of any values: zeros."""
    return creation.zeros(shape, dtype=dtype, device=device)


def zeros(shape: int | tuple[int, ...], *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Zeros."""
    return creation.zeros(shape, dtype=dtype, device=device)


def ones(shape: int | tuple[int, ...], *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Ones."""
    return creation.ones(shape, dtype=dtype, device=device)


def full(
    shape: int | tuple[int, ...], fill_value: Scalar, *, dtype: DType | None = None, device: str | None = None
) -> Tensor:
    """One value in every element."""
    return creation.full(shape, fill_value, dtype=dtype, device=device)


def empty_like(x: Tensor, /, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """An array of any values in the shape of x: zeros."""
    return creation.zeros_like(x, dtype=dtype, device=device)


def zeros_like(x: Tensor, /, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Zeros in the shape of x."""
    return creation.zeros_like(x, dtype=dtype, device=device)


def ones_like(x: Tensor, /, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Ones in the shape of x."""
    return creation.ones_like(x, dtype=dtype, device=device)


def full_like(
    x: Tensor, /, fill_value: Scalar, *, dtype: DType | None = None, device: str | None = None
) -> Tensor:
    """One value in the shape of x."""
    return creation.full_like(x, fill_value, dtype=dtype, device=device)


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
    kind = get_default_dtype() if dtype is None else dtype
    if not k:
        return creation.eye(n_rows, columns, dtype=kind, device=device)
    return creation.tensor(np.eye(n_rows, columns, k, np.bool_), device=device).to(kind)


def linspace(
    start: int | float,
    stop: int | float,
    /,
    num: int,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    endpoint: bool = True,
) -> Tensor:
    """`num` numbers from start to stop at equal distances."""
    if endpoint:
        return creation.linspace(start, stop, num, dtype=dtype, device=device)
    return creation.linspace(start, stop, num + 1, dtype=dtype, device=device)[:num]


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Vectors expanded over the grid of all of them."""
    if len({a.dtype for a in arrays}) > 1:
        raise ArgumentError("meshgrid: all arrays must have one dtype")
    return list(movement.meshgrid(*arrays, indexing=indexing)) if arrays else []


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The lower triangles of matrices."""
    return movement.tril(x, k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The upper triangles of matrices."""
    return movement.triu(x, k)
