"""Dtypes as arguments, and the default one: what Python floats and divided integers become."""
# Tests: tests/core/test_dtypes.py, tests/core/test_errors.py

from __future__ import annotations

from weft.autograd.context import context, main, set_default
from weft.core.args.handle import describe
from weft.errors import DTypeError
from weft.ir.dtypes import DType, NamedDType


def get_default_dtype() -> DType:
    """The dtype of tensors made from Python floats; float32 unless changed."""
    own = context().dtype
    return main.dtype if own is None else own


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
    set_default("dtype", dtype)
