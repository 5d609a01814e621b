"""Data type functions of the standard."""

from __future__ import annotations

import weft
from weft.array_api.promotion import as_array
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.ir import dtypes
from weft.ir.dtypes import DType, Kind, uint64
from weft.lazy_dataclass import dataclass


def can_cast(from_: DType | Tensor, to: DType, /) -> bool:
    """True where every value of one dtype is kept by promotion to another."""
    have = from_ if isinstance(from_, DType) else from_.dtype
    if have is uint64 and to.kind is Kind.INT:
        return False
    return dtypes.promote(have, to) is to


def astype(x: Tensor, dtype: DType, /, *, copy: bool = True, device: str | None = None) -> Tensor:
    """The array in another dtype."""
    out = as_array("astype", x).to(dtype)
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


def isdtype(dtype: DType, kind: DType | str | tuple[DType | str, ...]) -> bool:
    """True for a dtype of a kind, or of one of several kinds or dtypes."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
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
