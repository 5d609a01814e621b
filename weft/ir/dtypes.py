"""Element types, and how they promote. The rules are torch's (its "type promotion" page)."""
# Tests: tests/ir/test_ops.py, tests/core/test_dtypes.py

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any

from weft.errors import DTypeError
from weft.lazy_dataclass import dataclass
from weft.naming import package

if TYPE_CHECKING:
    import numpy as np


class Kind(IntEnum):
    """Category of a dtype; a higher category wins a promotion."""

    BOOL = 0
    UINT = 1
    INT = 2
    FLOAT = 3

    __hash__ = int.__hash__  # as fast as an integer's, where Enum's own is a Python function


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type. There is one object per type: compare with `is` or `==`."""

    name: str
    short: str
    kind: Kind
    bits: int

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes (a bool takes one)."""
        return self.bits // 8 or 1

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    @property
    def is_floating_point(self) -> bool:
        """True for floats: torch's name of `is_float`."""
        return self.kind is Kind.FLOAT

    @property
    def is_complex(self) -> bool:
        """False but for names of complex dtypes: weft has real numbers only."""
        return False

    def to_complex(self) -> DType:
        """The name of the complex dtype whose parts are of this one."""
        return NAMED[
            {16: "complex32", 64: "complex128"}.get(self.bits, "complex64") if self.is_float else "complex64"
        ]

    def to_real(self) -> DType:
        """The dtype itself; of a complex name, that of its parts."""
        return self

    @property
    def is_signed(self) -> bool:
        """True for floats and signed integers."""
        return self.kind is Kind.FLOAT or self.kind is Kind.INT

    @property
    def is_int(self) -> bool:
        """True for signed and unsigned integers, not for bool."""
        return self.kind is Kind.INT or self.kind is Kind.UINT

    @property
    def is_narrow(self) -> bool:
        """True for floats of 8 and 16 bits, which kernels load and store, but compute with in f32."""
        return self.kind is Kind.FLOAT and self.bits < 32

    @property
    def is_float8(self) -> bool:
        """True for the floats of 8 bits, which store numbers: there is next to no arithmetic on them."""
        return self.kind is Kind.FLOAT and self.bits == 8

    @property
    def min(self) -> int | float | bool:
        """Smallest value; -inf for floats."""
        match self.kind:
            case Kind.FLOAT:
                return float("-inf")
            case Kind.INT:
                return -(1 << (self.bits - 1))
            case Kind.UINT:
                return 0
            case Kind.BOOL:
                return False

    @property
    def max(self) -> int | float | bool:
        """Largest value; +inf for floats."""
        match self.kind:
            case Kind.FLOAT:
                return float("inf")
            case Kind.INT:
                return (1 << (self.bits - 1)) - 1
            case Kind.UINT:
                return (1 << self.bits) - 1
            case Kind.BOOL:
                return True

    def __repr__(self) -> str:
        return f"{package()}.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (by_name, (self.name,))


bool_ = DType("bool", "b1", Kind.BOOL, 1)
uint8 = DType("uint8", "u8", Kind.UINT, 8)
uint16 = DType("uint16", "u16", Kind.UINT, 16)
uint32 = DType("uint32", "u32", Kind.UINT, 32)
uint64 = DType("uint64", "u64", Kind.UINT, 64)
int8 = DType("int8", "i8", Kind.INT, 8)
int16 = DType("int16", "i16", Kind.INT, 16)
int32 = DType("int32", "i32", Kind.INT, 32)
int64 = DType("int64", "i64", Kind.INT, 64)
float8_e4m3fn = DType("float8_e4m3fn", "f8e4m3", Kind.FLOAT, 8)
float8_e5m2 = DType("float8_e5m2", "f8e5m2", Kind.FLOAT, 8)
float16 = DType("float16", "f16", Kind.FLOAT, 16)
bfloat16 = DType("bfloat16", "bf16", Kind.FLOAT, 16)
float32 = DType("float32", "f32", Kind.FLOAT, 32)
float64 = DType("float64", "f64", Kind.FLOAT, 64)

LARGEST: dict[DType, float] = {float32: 3.4028234663852886e38, float64: 1.7976931348623157e308}
"""The largest finite number of the dtypes that maxima are accumulated in."""

DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        bool_,
        uint8,
        uint16,
        uint32,
        uint64,
        int8,
        int16,
        int32,
        int64,
        float8_e4m3fn,
        float8_e5m2,
        float16,
        bfloat16,
        float32,
        float64,
    )
}


class NamedDType(DType):
    """An element type that weft only knows the name and size of, for programs that have it in a table.

    No tensor has such elements: whatever needs them asks for `kind`, which is a DTypeError that says what to do.
    """

    __slots__ = ("family",)
    family: str

    def __init__(self, name: str, family: str, bits: int) -> None:
        for field, value in (("name", name), ("short", name), ("bits", bits), ("family", family)):
            object.__setattr__(self, field, value)

    @property
    def kind(self) -> Kind:  # pyright: ignore[reportIncompatibleVariableOverride]  (there is none)
        raise DTypeError(f"{self.name} is a name only: weft has no {_FAMILIES[self.family]}")

    @property
    def is_complex(self) -> bool:
        return self.family == "complex"

    @property
    def is_floating_point(self) -> bool:
        return self.family == "float"

    @property
    def is_signed(self) -> bool:
        return self.name not in (
            "float8_e8m0fnu",
            "quint8",
            "quint4x2",
            "quint2x4",
        ) and not self.name.startswith(("uint", "bits"))

    def to_complex(self) -> DType:
        return self if self.is_complex else NAMED["complex64"]

    def to_real(self) -> DType:
        return {"complex32": float16, "complex64": float32, "complex128": float64}.get(self.name, self)


_FAMILIES = {
    "complex": "complex numbers; keep the real and the imaginary part as two tensors, or as a last dimension of 2",
    "float": "floats of this format; it stores float8_e4m3fn and float8_e5m2, and computes in wider floats",
    "quantized": "quantized tensors of this kind; weft.quantization has int8 and int4 weights",
    "integer": "integers of this width; the next wider dtype holds them",
    "bits": "untyped bits; use uint8",
}
"""The families of dtypes that weft lacks, and what to use instead."""

NAMED: dict[str, NamedDType] = {
    name: NamedDType(name, family, bits)
    for family, names in {
        "complex": {"complex32": 32, "complex64": 64, "complex128": 128},
        "float": {"float8_e4m3fnuz": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8, "float4_e2m1fn_x2": 8},
        "quantized": {"qint8": 8, "quint8": 8, "qint32": 32, "quint4x2": 8, "quint2x4": 8},
        "integer": {f"{sign}int{n}": 8 for sign in ("", "u") for n in range(1, 8)},
        "bits": {"bits8": 8, "bits16": 16, "bits1x8": 8, "bits2x4": 8, "bits4x2": 8},
    }.items()
    for name, bits in names.items()
}
"""torch's dtypes that are names here."""


def by_name(name: str) -> DType:
    """The dtype called `name` ("float32"); KeyError when there is none."""
    return DTYPES.get(name) or NAMED[name]


@cache
def promote(a: DType, b: DType) -> DType:
    """The dtype of an operation on tensors of dtypes `a` and `b`, as torch.promote_types.

    The 8-bit floats meet only themselves: a DTypeError says what to do.

    >>> promote(uint8, int8), promote(int64, float16), promote(float16, bfloat16)
    (weft.int16, weft.float16, weft.float32)
    """
    if a is b:
        return a
    if a.is_complex or b.is_complex:
        return _promote_complex(a, b)
    if a.is_float8 or b.is_float8:
        small = a if a.is_float8 else b
        raise DTypeError(
            f"{a.name} and {b.name} do not combine: {small.name} only stores numbers; convert it, as in x.float()"
        )
    if a.kind is Kind.BOOL or b.kind is Kind.BOOL:
        return b if a.kind is Kind.BOOL else a
    if a.kind is Kind.FLOAT or b.kind is Kind.FLOAT:
        if a.kind is not b.kind:
            return a if a.kind is Kind.FLOAT else b
        return float32 if a.bits == b.bits else (a if a.bits > b.bits else b)
    if a.kind is b.kind:
        return a if a.bits > b.bits else b
    unsigned, signed = (a, b) if a.kind is Kind.UINT else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    # torch refuses u64 with signed; int64 is what its other unsigned rules would widen to
    return {8: int16, 16: int32, 32: int64, 64: int64}[unsigned.bits]


def _promote_complex(a: DType, b: DType) -> DType:
    """Promote a complex name and another dtype: the complex dtype whose parts hold both's."""
    x, y = (a, b) if a.is_complex else (b, a)
    parts = y.to_real() if y.is_floating_point or y.is_complex else x.to_real()
    return x if parts is bfloat16 and x.bits > 32 else promote(x.to_real(), parts).to_complex()


def accumulator(dtype: DType) -> DType:
    """The dtype in which reductions over `dtype` accumulate: f32 for the narrow floats, else `dtype` itself."""
    return float32 if dtype.is_narrow else dtype


@cache
def to_numpy(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype with the same bits; bfloat16 and the 8-bit floats come from ml_dtypes."""
    import numpy as np

    if dtype is bfloat16 or dtype.is_float8:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, dtype.name))
    return np.dtype(dtype.name)


@cache
def from_numpy(dtype: np.dtype[Any]) -> DType:
    """The weft dtype of a NumPy dtype; KeyError when weft has none."""
    return DTYPES[dtype.name]


_PACKED_AS = {
    "float64": "d", "float32": "f", "float16": "e",
    "int64": "q", "int32": "i", "int16": "h", "int8": "b", "uint64": "Q", "uint32": "I", "uint16": "H", "uint8": "B",
}  # fmt: skip


@cache
def packer(dtype: DType) -> Callable[[bool | int | float], bytes]:
    """The function that gives the bytes of a number, which the dtype has, in the machine's order."""
    code = _PACKED_AS.get(dtype.name)
    if code is not None:
        return struct.Struct(f"={code}").pack

    def packed(value: bool | int | float) -> bytes:
        import numpy as np

        return convert_array(np.asarray(value, np.float64 if dtype.is_float else None), dtype).tobytes()

    return packed


def convert_array(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """A NumPy array as `dtype`: narrow floats are reached by way of f32, as everywhere; what float8_e4m3fn cannot hold,
    infinities included, becomes its largest number (torch's rule), and float8_e5m2 has one NaN for each sign.
    """
    import numpy as np

    target = to_numpy(dtype)
    with np.errstate(all="ignore"):
        if array.dtype == target or not dtype.is_float8:
            return array.astype(target)
        wide = np.asarray(array.astype(np.float32))
        if dtype is float8_e4m3fn:
            return np.clip(wide, -448, 448).astype(target)
        word = np.asarray(wide.astype(target)).view(np.uint8)
        return (word | (np.isnan(wide) * np.uint8(0x7F))).view(target)
