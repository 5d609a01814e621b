"""Dtypes as arguments, and the default one: what Python floats and divided integers become."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from weft.core.args.handle import describe
from weft.errors import DTypeError
from weft.ir.dtypes import DType, NamedDType, float32

T = TypeVar("T")


class ThreadDefault(threading.local, Generic[T]):
    """A setting of each thread's own: what the main thread sets also holds in the threads that have set nothing."""

    own: T | None = None

    def __init__(self, process: list[T]) -> None:
        self._process = process  # one list for all threads: what the main thread set

    def get(self) -> T:
        """The setting in this thread."""
        return self._process[0] if self.own is None else self.own

    def set(self, value: T) -> None:
        """Change it, for this thread or, in the main thread, for all."""
        if threading.current_thread() is threading.main_thread():
            self._process[0] = value
        else:
            self.own = value


_main_dtype = [float32]
_dtype: ThreadDefault[DType] = ThreadDefault(_main_dtype)


def get_default_dtype() -> DType:
    """The dtype of tensors made from Python floats; float32 unless changed."""
    own = _dtype.own
    return _main_dtype[0] if own is None else own


def check_dtype(op: str, dtype: object) -> DType:
    """`dtype` if it is one of weft's; DTypeError otherwise."""
    if not isinstance(dtype, DType):
        raise DTypeError(f"{op}: dtype must be one of weft's, such as weft.float32, got {describe(dtype)}")
    if isinstance(dtype, NamedDType):
        _ = dtype.kind  # says what it is
    return dtype


def set_default_dtype(dtype: DType) -> None:
    """Change the dtype of tensors made from Python floats: in this thread; from the main thread, in all that set none
    of their own. DTypeError unless `dtype` is a float dtype."""
    if not check_dtype("set_default_dtype", dtype).is_float:
        raise DTypeError(f"set_default_dtype: needs a float dtype, got {dtype!r}")
    _dtype.set(dtype)
