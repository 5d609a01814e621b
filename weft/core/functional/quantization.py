"""Weights of 8 or 4 bits in blocks, each with its own scale: small in memory, widened by the product that reads them.

    w = scale * q                 symmetric: q from -128 to 127, or from -8 to 7
    w = scale * q + offset        affine: q from 0 to 255, or from 0 to 15
    w = scale * f                 f: a float of 8 bits, e4m3 (to 448) or e5m2 (to 57344)

A block is `block` neighbours along one axis, the one that products sum over. Four-bit numbers lie two in a byte: the
first half of a block in the low bits, the second half in the high bits (as in ggml's Q4_0), so that vector lanes read
neighbouring bytes. Dequantizing is arithmetic like any other: what reads the weight computes it as it loads it, and a
product holds no more of it than a panel.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from weft.autograd.value import Value
from weft.core.args import broadcast as bc
from weft.core.args.axes import axis as axis_of
from weft.core.args.handle import value_of, wrap
from weft.core.execute.realization import realize
from weft.core.functional.padding import pad
from weft.core.functions.reductions import amax, amin
from weft.core.layout.movement import bitcast, movedim, narrow, reshape
from weft.core.pointwise.elementwise import clamp, eq, maximum, round, where
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir import graph
from weft.ir.dtypes import (
    DType,
    accumulator,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    int8,
    int32,
    uint8,
)  # fmt: skip
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

BITS = (8, 4)
"""The widths there are."""

CODES = {float8_e4m3fn: 448.0, float8_e5m2: 57344.0}
"""The floats of 8 bits that numbers may be, and the largest of each that is finite."""


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedTensor:
    """A tensor of few bits per element; `dequantize()` gives its values, lazily.

    `data`: (..., blocks, block) of int8 or uint8, or (..., blocks, block / 2) of uint8 for 4 bits, the quantized axis
    last. `scale` and `offset` (None: symmetric): (..., blocks, 1). `shape` and `dtype` are what was quantized. `code`:
    the floats of 8 bits whose bytes `data` has; None for integers.
    """

    data: Tensor
    scale: Tensor
    offset: Tensor | None
    bits: int
    axis: int
    shape: tuple[int, ...]
    dtype: DType
    code: DType | None = None

    @property
    def block(self) -> int:
        """Elements that share a scale."""
        return known(self.data.shape)[-1] * (8 // self.bits)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is stored."""
        parts = (self.data, self.scale, self.offset)
        return sum(prod(known(t.shape)) * t.element_size() for t in parts if t is not None)

    def dequantize(self, dtype: DType | None = None) -> Tensor:
        """The values, in `dtype` (by default that of what was quantized). Gradients do not flow into them."""
        to = self.dtype if dtype is None else dtype
        whole = unpack(self.data, self.scale, self.offset, self.bits, accumulator(to), self.code)
        flat = reshape(whole, (*whole.shape[:-2], -1))
        out = movedim(narrow(flat, -1, 0, self.shape[self.axis]), -1, self.axis)
        return wrap(bc.cast(out.value, to))

    def __repr__(self) -> str:
        kind = self.code.name if self.code else "symmetric" if self.offset is None else "affine"
        return (
            f"QuantizedTensor(shape={self.shape}, dtype={self.dtype!r}, bits={self.bits}, block={self.block}, "
            f"axis={self.axis}, {kind})"
        )


def unpack(
    data: Tensor, scale: Tensor, offset: Tensor | None, bits: int, dtype: DType, code: DType | None = None
) -> Tensor:
    """The values of all blocks in `dtype`: (..., blocks, block)."""
    numbers = Value(data.value.node)
    if code is not None:
        numbers = bitcast(wrap(numbers), code).value
    if bits == 4:
        # Four bits on top of a power of two are its low digits: 2**(23 - shift) + q needs no conversion
        shift = reshape(wrap(Value(graph.arange(2, int32))) * 4, (2, 1))  # at home on every device
        power = (shift << 23) * -1 + 0x4B000000
        halves = reshape(wrap(bc.cast(numbers, int32)), (*data.shape[:-1], 1, data.shape[-1]))
        zero = bitcast(power, float32) if offset is not None else bitcast(power, float32) + 8
        whole = bitcast((halves & (15 << shift)) | power, float32) - zero
        numbers = reshape(whole, (*data.shape[:-1], -1)).value
    out = wrap(bc.cast(numbers, dtype)) * wrap(bc.cast(Value(scale.value.node), dtype))
    return out if offset is None else out + wrap(bc.cast(Value(offset.value.node), dtype))


def quantize(
    input: Tensor,
    bits: int = 8,
    block: int = 32,
    *,
    symmetric: bool = True,
    axis: int = -1,
    scale_dtype: DType = float16,
    code: DType | None = None,
) -> QuantizedTensor:
    """`input` in blocks of `block` elements along `axis`, with `bits` (8 or 4) for each and a scale for each block.

    Symmetric, every element is within half a scale of its value, the scale being the block's largest magnitude over 127
    or 7 at most; affine, the block's range over 255 or 15. The last block is filled up with zeros. `scale_dtype`:
    float16 holds scales from 6e-8 to 65504 (below 6e-5 with fewer digits); take float32 for weights beyond.

    With `code`, weft.float8_e4m3fn or weft.float8_e5m2, numbers are floats of 8 bits, symmetric, and the scale is the
    block's largest magnitude over the largest of them: an element is within 1/16 or 1/8 of its value.

    >>> w = weft.randn(64, 256)
    >>> q = weft.quantization.quantize(w, bits=4, block=32)
    >>> x @ q.dequantize().T          # one kernel: the weight is widened as it is loaded
    """
    v = value_of("quantize", input)
    sizes = known(v.shape)
    check_layout("quantize", bits, block, scale_dtype, code, symmetric)
    if not v.dtype.is_float or v.dtype.is_float8:
        raise DTypeError(
            f"quantize: needs floats of 16 bits or more, got {v.dtype.name}; convert with .float()"
        )
    if not sizes:
        raise ShapeError("quantize: needs a tensor of at least 1 dimension, got a single number")
    at = axis_of("quantize", axis, sizes)
    wide = accumulator(v.dtype)
    rows = movedim(wrap(bc.cast(Value(v.node), wide)), at, -1)
    rows = pad(rows, (0, -sizes[at] % block))
    blocks = reshape(rows, (*rows.shape[:-1], -1, block))
    top, bottom = amax(blocks, -1, keepdim=True), amin(blocks, -1, keepdim=True)
    levels = 1 << bits
    if code is not None:
        scale, offset, low = maximum(top, -bottom) / CODES[code], None, 0
    elif symmetric:
        scale = maximum(top / (levels // 2 - 1), bottom / -(levels // 2))
        offset, low = None, -(levels // 2)
    else:
        scale, offset, low = (top - bottom) / (levels - 1), bottom, 0
    scale = wrap(bc.cast(scale.value, scale_dtype))
    offset = None if offset is None else wrap(bc.cast(offset.value, scale_dtype))
    step = wrap(bc.cast(scale.value, wide))
    shifted = blocks if offset is None else blocks - wrap(bc.cast(offset.value, wide))
    parts = shifted / where(eq(step, 0), 1.0, step)
    if code is not None:
        data = bitcast(wrap(bc.cast(parts.value, code)), uint8)
        realize(data, scale)
        return QuantizedTensor(data, scale, None, bits, at, sizes, v.dtype, code)
    numbers = clamp(round(parts), low, low + levels - 1)
    if bits == 4:
        nibbles = wrap(bc.cast((numbers + (8 if symmetric else 0)).value, uint8))
        half = block // 2
        data = narrow(nibbles, -1, 0, half) | (narrow(nibbles, -1, half, half) << 4)
    else:
        data = wrap(bc.cast(numbers.value, int8 if symmetric else uint8))
    realize(data, scale, *([] if offset is None else [offset]))
    return QuantizedTensor(data, scale, offset, bits, at, sizes, v.dtype)


def check_layout(
    op: str,
    bits: int,
    block: int,
    scale_dtype: DType = float32,
    code: DType | None = None,
    symmetric: bool = True,
) -> None:
    """ArgumentError or DTypeError for what blocks cannot be."""
    if code is not None and (code not in CODES or bits != 8 or not symmetric):
        raise ArgumentError(
            f"{op}: code is one of {' and '.join(c.name for c in CODES)}, of 8 bits and symmetric, got {code!r} with "
            f"bits={bits} and symmetric={symmetric}"
        )
    if bits not in BITS:
        raise ArgumentError(f"{op}: bits must be 8 or 4, got {bits!r}")
    if isinstance(block, bool) or block < 2 or block % 2:  # two numbers of 4 bits share a byte
        raise ArgumentError(
            f"{op}: block must be an even number of elements, such as 32, 64 or 128, got {block!r}"
        )
    if not scale_dtype.is_float or scale_dtype.is_float8:
        raise DTypeError(
            f"{op}: scale_dtype must be a float of 16 bits or more, such as weft.float16, got {scale_dtype!r}"
        )


def known(shape: Sequence[Any]) -> tuple[int, ...]:
    """A shape without runtime variables; ShapeError for others."""
    sizes = tuple(n for n in shape if isinstance(n, int))
    if len(sizes) != len(shape):
        raise ShapeError(
            f"quantize: needs known sizes, got {tuple(shape)}; quantize weights outside of a variable's range"
        )
    return sizes
