"""The default float dtype: what Python floats and divided integers become."""

from __future__ import annotations

from weft.errors import DTypeError
from weft.ir.dtypes import DType, float32


class _Defaults:
    dtype: DType = float32


_defaults = _Defaults()


def get_default_dtype() -> DType:
    """The dtype of tensors made from Python floats; float32 unless changed."""
    return _defaults.dtype


def set_default_dtype(dtype: DType) -> None:
    """Change the dtype of tensors made from Python floats. DTypeError unless `dtype` is a float dtype."""
    if not isinstance(dtype, DType) or not dtype.is_float:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DTypeError(f"set_default_dtype: needs a float dtype, got {dtype!r}")
    _defaults.dtype = dtype
