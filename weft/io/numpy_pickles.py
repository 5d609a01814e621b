"""Names in pickles of NumPy's arrays and numbers, made anew with every part checked; plain numbers only."""
# Tests: tests/io/test_torch_files.py

from __future__ import annotations

import math
import re
from typing import Any, cast

import numpy as np

from weft.backends.disk.format import too_large
from weft.io.unpickling import Malformed, shown
from weft.ir import dtypes

_PLAIN = re.compile(r"[<>=|]?(?:\?|[biufc]\d{1,2})")
_NARROW = {
    f"ml_dtypes.{d.name}": dtypes.to_numpy(d).type
    for d in dtypes.DTYPES.values()
    if d.is_narrow and d is not dtypes.float16
}


def known() -> dict[str, Any]:
    """The objects that the names stand for."""
    found: dict[str, Any] = {"numpy.ndarray": np.ndarray, "numpy.dtype": _dtype}
    for core in ("numpy.core.multiarray", "numpy._core.multiarray"):
        found |= {f"{core}._reconstruct": _array, f"{core}.scalar": _scalar}
    return found | _NARROW


def _dtype(name: Any, *_: Any) -> np.dtype[Any]:
    if isinstance(name, str) and _PLAIN.fullmatch(name):
        return np.dtype(name)
    if isinstance(name, type) and any(name is kind for kind in _NARROW.values()):
        return np.dtype(name)
    raise Malformed(f"an array has elements of type {shown(name)}; only numbers are read")


def _array(kind: Any, *_: Any) -> np.ndarray[Any, Any]:
    if kind is not np.ndarray:
        raise Malformed(f"an array of type {shown(kind)}")
    return np.empty(0, np.int8)


def _scalar(dtype: Any, data: Any) -> Any:
    if not isinstance(dtype, np.dtype) or not isinstance(data, bytes):
        raise Malformed("a number of NumPy's without its bytes")
    kind = cast("np.dtype[Any]", dtype)
    if len(data) != kind.itemsize:
        raise Malformed(f"a number of type {kind} of {len(data)} bytes")
    return np.frombuffer(data, kind)[0]


def build(x: Any, state: Any) -> bool:
    """Give an array or a type its state. False for anything else."""
    if isinstance(x, np.dtype):
        _build_dtype(cast("np.dtype[Any]", x), state)
    elif type(x) is np.ndarray:
        _build_array(cast("np.ndarray[Any, Any]", x), state)
    else:
        return False
    return True


def _build_dtype(x: np.dtype[Any], state: Any) -> None:
    """Nothing is left to say of a plain type but its byte order, which has to be the machine's."""
    if not isinstance(state, tuple) or len(cast("tuple[Any, ...]", state)) < 5:
        raise Malformed("a type of NumPy's without its state")
    order, *rest = cast("tuple[Any, ...]", state)[1:5]
    if order not in ("<", "|", "=") or any(r is not None for r in rest):
        raise Malformed(
            f"an array has elements of type {x} in order {shown(order)}; only little-endian numbers are read"
        )


def _build_array(x: np.ndarray[Any, Any], state: Any) -> None:
    if not isinstance(state, tuple) or len(cast("tuple[Any, ...]", state)) != 5:
        raise Malformed("an array without its state")
    version, shape, dtype, fortran, data = cast("tuple[Any, ...]", state)
    sizes = cast("tuple[Any, ...]", shape)
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in sizes):
        raise Malformed(f"an array of shape {shown(cast('Any', shape))}")
    if not isinstance(dtype, np.dtype) or not isinstance(data, bytes):
        raise Malformed("an array without its bytes")
    kind = cast("np.dtype[Any]", dtype)
    if (why := too_large(sizes, kind.itemsize)) is not None:
        raise Malformed(f"an array of shape {sizes} {why}")
    if math.prod(sizes) * kind.itemsize != len(data):
        raise Malformed(f"an array of shape {sizes} and type {kind} of {len(data)} bytes")
    setstate: Any = x.__setstate__
    setstate((version, sizes, kind, bool(fortran), data))
