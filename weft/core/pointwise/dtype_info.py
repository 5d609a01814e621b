"""The limits of dtypes: finfo and iinfo."""
# Tests: tests/core/tensor/test_types.py

from __future__ import annotations

from weft.core.args.defaults import get_default_dtype
from weft.core.pointwise.elementwise import finite_max
from weft.core.pointwise.float_format import MANTISSA
from weft.errors import DTypeError
from weft.ir.dtypes import DType, NamedDType
from weft.lazy_dataclass import dataclass

_NAMED = {
    "float8_e4m3fnuz": (240.0, 0.125, 2.0**-7),
    "float8_e5m2fnuz": (57344.0, 0.125, 2.0**-15),
    "float8_e8m0fnu": (2.0**127, 1.0, 2.0**-127),
}
"""The largest number, eps and the smallest normal number of float formats that are names only, as torch has them."""


@dataclass(frozen=True, slots=True)
class finfo:  # noqa: N801  (torch's name)
    """Limits of a float dtype: bits, eps, largest and smallest numbers, decimal resolution."""

    type: DType | None = None

    def __post_init__(self) -> None:
        kind = self.type if self.type is not None else get_default_dtype()
        if kind.is_complex:  # that of its parts, as in torch
            kind = kind.to_real()
        if not kind.is_floating_point or kind.name == "float4_e2m1fn_x2":
            raise DTypeError(f"finfo: needs a float dtype, got {kind.name}; iinfo describes integers")
        object.__setattr__(self, "type", kind)

    @property
    def _kind(self) -> DType:
        assert self.type is not None
        return self.type

    @property
    def dtype(self) -> str:
        """The name of the dtype."""
        return self._kind.name

    @property
    def bits(self) -> int:
        """The width."""
        return self._kind.bits

    @property
    def eps(self) -> float:
        """The distance from 1 to the next number."""
        return _NAMED[self.dtype][1] if self.dtype in _NAMED else 2.0 ** -MANTISSA[self._kind.name]

    @property
    def max(self) -> float:
        """The largest finite number."""
        return _NAMED[self.dtype][0] if self.dtype in _NAMED else finite_max(self._kind)

    @property
    def min(self) -> float:
        """The smallest finite number."""
        return self.tiny if self.dtype == "float8_e8m0fnu" else -self.max

    @property
    def tiny(self) -> float:
        """The smallest positive normal number."""
        if self.dtype in _NAMED:
            return _NAMED[self.dtype][2]
        return 2.0 ** (2 - (1 << (self.bits - MANTISSA[self._kind.name] - 2)))

    smallest_normal = tiny

    @property
    def resolution(self) -> float:
        """The decimal resolution."""
        if self.dtype in _NAMED:
            return 1.0
        return {3: 1.0, 2: 1.0, 10: 1e-3, 7: 1e-2, 23: 1e-6, 52: 1e-15}[MANTISSA[self._kind.name]]


@dataclass(frozen=True, slots=True)
class iinfo:  # noqa: N801  (torch's name)
    """Limits of an integer dtype."""

    type: DType

    def __post_init__(self) -> None:
        if isinstance(self.type, NamedDType) or not self.type.is_int:
            raise DTypeError(f"iinfo: needs an integer dtype, got {self.type.name}; finfo describes floats")

    @property
    def dtype(self) -> str:
        """The name of the dtype."""
        return self.type.name

    @property
    def bits(self) -> int:
        """The width."""
        return self.type.bits

    @property
    def max(self) -> int:
        """The largest number."""
        return int(self.type.max)

    @property
    def min(self) -> int:
        """The smallest number."""
        return int(self.type.min)
