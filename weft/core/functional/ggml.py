"""Tensors in the block formats of ggml (llama.cpp's): bytes as they stand in a file, widened by what reads them.

    Q8_0   d, q[32]                w = d * q                        q: int8
    Q4_0   d, q[32]                w = d * (q - 8)                  q: 4 bits; Q5_0: 5 bits and - 16
    Q4_1   d, m, q[32]             w = d * q + m                    q: 4 bits; Q5_1: 5 bits
    Q4_K   d, e, 8 x (s, m, q[32]) w = (d * s) * q - e * m          q: 4 bits; s, m: 6 bits; Q5_K: q of 5 bits
    Q2_K   d, e, 16 x (s, m, q[16])  as Q4_K                        q: 2 bits; s, m: 4 bits
    Q3_K   d, 16 x (s, q[16])      w = (d * (s - 32)) * (q - 4)     q: 3 bits; s: 6 bits
    Q6_K   d, 16 x (s, q[16])      w = (d * s) * (q - 32)           q: 6 bits; s: int8
    IQ4_NL d, q[32]                w = d * table[q]                 q: 4 bits; IQ4_XS: 8 such with 6-bit scales
    MXFP4  e, q[32]                w = 2^(e - 128) * table[q]       q: 4 bits
    TQ2_0  d, q[256]               w = d * (q - 1)                  q: 2 bits; TQ1_0: 5 numbers of 0, 1, 2 in a byte

d, e and m in front of blocks are float16. A block is a run of elements of a tensor's last axis. Widening is arithmetic
like any other: a product computes it as it loads the bytes, and holds no more than a panel of the floats.

Source: the layouts of ggml-common.h of llama.cpp, as of 2026.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from math import prod
from typing import TYPE_CHECKING

from weft.core.args.handle import value_of
from weft.core.execute.realization import realize
from weft.core.functional.k_quants import to_q4_k, to_q5_k, to_q6_k
from weft.core.functional.quantization import known
from weft.core.functions.reductions import amax, amin, argmax
from weft.core.layout.creation import arange
from weft.core.layout.creation import tensor as constant
from weft.core.layout.gather import take_along_dim
from weft.core.layout.movement import bitcast, cat, flatten, narrow, reshape
from weft.core.pointwise.elementwise import where
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import DType, float16, float32, float64, int8, int16, int32, uint8
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


# bits ---------------------------------------------------------------------------------------------------------------


def _bytes(blocks: Tensor, at: int, count: int) -> Tensor:
    """Bytes of every block as int32: (n, count)."""
    return narrow(blocks, -1, at, count).to(int32)


def _signed(blocks: Tensor, at: int, count: int) -> Tensor:
    """Bytes of every block as the int8 that they are: (n, count)."""
    return bitcast(narrow(blocks, -1, at, count), int8).to(int32)


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at a byte of every block, as float32: (n, 1)."""
    low, high = _bytes(blocks, at, 1), _bytes(blocks, at + 1, 1)
    return bitcast((low | (high << 8)).to(int16), float16).to(float32)


def _fields(x: Tensor, groups: int, width: int, bits: int) -> Tensor:
    """Fields of `bits` bits that lie over each other: of each of `groups` runs of `width` bytes first the lowest field
    of all bytes, then the next: (n, groups * width) -> (n, groups * fields * width)."""
    count = 8 // bits
    shift = reshape(arange(count, dtype=int32, device=x.device) * bits, (count, 1))
    runs = reshape(x, (-1, groups, 1, width))
    return flatten((runs >> shift) & ((1 << bits) - 1), 1)


def _flags(x: Tensor, width: int) -> Tensor:
    """The bits of `width` bytes, the lowest of all of them first: (n, width) -> (n, 8 * width)."""
    return _fields(x, 1, width, 1)


def _bits_of(blocks: Tensor, at: int) -> Tensor:
    """The bits of four bytes of every block, one byte after the other: (n, 32). They are one word, which all numbers
    of a block are shifted from: no number has a byte of its own to read."""
    first, *others = [_bytes(blocks, at + k, 1) for k in range(4)]
    word = first | (others[0] << 8) | (others[1] << 16) | (others[2] << 24)
    return (word >> arange(32, dtype=int32, device=blocks.device)) & 1


# formats ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class BlockNumbers:
    """Numbers of n blocks, in steps of equal size: value = scale * steps * (q - zero) + floor * floor_steps.

    `q`: int32 (n, elements), of `bits`, from 0 on or `signed`. `scale`, `floor`: float32 (n, 1), exact in float16.
    `steps`, `floor_steps`: int32 (n, parts), for equal parts of a block.
    """

    q: Tensor
    bits: int
    scale: Tensor
    zero: int = 0
    steps: Tensor | None = None
    floor: Tensor | None = None
    floor_steps: Tensor | None = None
    signed: bool = False
    signed_steps: bool = False

    def widen(self) -> Tensor:
        """The values as float32, (n, elements) or in parts (n, parts, elements of a part)."""
        q = (self.q - self.zero if self.zero else self.q).to(float32)
        scale, floor = self.scale, self.floor
        if self.steps is not None:
            q = reshape(q, (*self.steps.shape, -1))
            scale = _of_parts(scale, self.steps)
            floor = None if floor is None or self.floor_steps is None else _of_parts(floor, self.floor_steps)
        return scale * q if floor is None else scale * q + floor


def _of_parts(x: Tensor, steps: Tensor) -> Tensor:
    """(n, 1), (n, parts) -> (n, parts, 1)"""
    return reshape(x * steps.to(float32), (*steps.shape, 1))


def _q4_0(b: Tensor) -> BlockNumbers:
    return BlockNumbers(_fields(_bytes(b, 2, 16), 1, 16, 4), 4, _half(b, 0), zero=8)


def _q4_1(b: Tensor) -> BlockNumbers:
    return BlockNumbers(_fields(_bytes(b, 4, 16), 1, 16, 4), 4, _half(b, 0), floor=_half(b, 2))


def _q5_0(b: Tensor) -> BlockNumbers:
    q = _fields(_bytes(b, 6, 16), 1, 16, 4) | (_bits_of(b, 2) << 4)
    return BlockNumbers(q, 5, _half(b, 0), zero=16)


def _q5_1(b: Tensor) -> BlockNumbers:
    q = _fields(_bytes(b, 8, 16), 1, 16, 4) | (_bits_of(b, 4) << 4)
    return BlockNumbers(q, 5, _half(b, 0), floor=_half(b, 2))


def _q8_0(b: Tensor) -> BlockNumbers:
    return BlockNumbers(_signed(b, 2, 32), 8, _half(b, 0), signed=True)


def _q2_k(b: Tensor) -> BlockNumbers:
    scales, q = _bytes(b, 0, 16), _fields(_bytes(b, 16, 64), 2, 32, 2)
    return BlockNumbers(
        q, 2, _half(b, 80), steps=scales & 15, floor=_half(b, 82) * -1, floor_steps=scales >> 4
    )


def _q3_k(b: Tensor) -> BlockNumbers:
    low = _fields(_bytes(b, 96, 8), 1, 8, 4)
    high = _fields(_bytes(b, 104, 4), 1, 4, 2)
    q = _fields(_bytes(b, 32, 64), 2, 32, 2) | (_flags(_bytes(b, 0, 32), 32) << 2)
    return BlockNumbers(q, 3, _half(b, 108), zero=4, steps=(low | (high << 4)) - 32, signed_steps=True)


def _k_numbers(b: Tensor, q: Tensor, bits: int) -> BlockNumbers:
    """Q4_K and Q5_K: eight scales and eight minima of 6 bits in 12 bytes after the two halves."""
    first, second, rest = _bytes(b, 4, 4), _bytes(b, 8, 4), _bytes(b, 12, 4)
    scale = cat([first & 63, (rest & 15) | ((first >> 6) << 4)], 1)
    low = cat([second & 63, (rest >> 4) | ((second >> 6) << 4)], 1)
    return BlockNumbers(q, bits, _half(b, 0), steps=scale, floor=_half(b, 2) * -1, floor_steps=low)


def _q4_k(b: Tensor) -> BlockNumbers:
    return _k_numbers(b, _fields(_bytes(b, 16, 128), 4, 32, 4), 4)


def _q5_k(b: Tensor) -> BlockNumbers:
    q = _fields(_bytes(b, 48, 128), 4, 32, 4) | (_flags(_bytes(b, 16, 32), 32) << 4)
    return _k_numbers(b, q, 5)


def _q6_k(b: Tensor) -> BlockNumbers:
    q = _fields(_bytes(b, 0, 128), 2, 64, 4) | (_fields(_bytes(b, 128, 64), 2, 32, 2) << 4)
    return BlockNumbers(q, 6, _half(b, 208), zero=32, steps=_signed(b, 192, 16), signed_steps=True)


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _looked_up(table: tuple[int, ...], q: Tensor) -> Tensor:
    return constant(table, dtype=float32, device=q.device)[q]


def _iq4_nl(b: Tensor) -> Tensor:
    return _half(b, 0) * _looked_up(_IQ4, _fields(_bytes(b, 2, 16), 1, 16, 4))


def _iq4_xs(b: Tensor) -> Tensor:
    high = _bytes(b, 2, 1) | (_bytes(b, 3, 1) << 8)
    high = (high >> (arange(8, dtype=int32, device=b.device) * 2)) & 3
    low = _bytes(b, 4, 4)
    low = flatten((reshape(low, (-1, 4, 1)) >> (arange(2, dtype=int32, device=b.device) * 4)) & 15, 1)
    scale = _half(b, 0) * ((low | (high << 4)) - 32).to(float32)
    q = _looked_up(_IQ4, _fields(_bytes(b, 8, 128), 8, 16, 4))
    return reshape(scale, (*scale.shape, 1)) * reshape(q, (*scale.shape, 32))


def _mxfp4(b: Tensor) -> Tensor:
    e = _bytes(b, 0, 1)  # of 2^(e - 128): below 2^-126 a float32 has no exponent but digits
    bits = where(e < 2, 0x00200000 << e.clamp(0, 1), (e - 1).clamp(1, 255) << 23)
    return bitcast(bits.to(int32), float32) * _looked_up(_FP4, _fields(_bytes(b, 1, 16), 1, 16, 4))


def _trits(x: Tensor, count: int, width: int) -> Tensor:
    """The first `count` numbers of 0, 1, 2 of bytes, each a fraction in base 3: (n, width) -> (n, count * width)."""
    power = reshape(constant([3**k for k in range(count)], dtype=int32, device=x.device), (count, 1))
    return flatten((((reshape(x, (-1, 1, width)) * power) & 255) * 3) >> 8, 1)


def _tq1_0(b: Tensor) -> BlockNumbers:
    q = cat(
        [_trits(_bytes(b, 0, 32), 5, 32), _trits(_bytes(b, 32, 16), 5, 16), _trits(_bytes(b, 48, 4), 4, 4)], 1
    )
    return BlockNumbers(q, 2, _half(b, 52), zero=1)


def _tq2_0(b: Tensor) -> BlockNumbers:
    return BlockNumbers(_fields(_bytes(b, 0, 64), 2, 32, 2), 2, _half(b, 64), zero=1)


# quantizing ---------------------------------------------------------------------------------------------------------


def _halves(x: Tensor) -> Tensor:
    """float32 as the two bytes of a float16, in int32: (n, 1) -> (n, 2)."""
    bits = bitcast(x.to(float16), int16).to(int32)
    return cat([bits & 255, (bits >> 8) & 255], 1)


def _nibbles(q: Tensor) -> Tensor:
    """The low four bits of 32 numbers, the second 16 over the first: (n, 32) -> (n, 16)."""
    return (narrow(q, 1, 0, 16) & 15) | ((narrow(q, 1, 16, 16) & 15) << 4)


def _fifth_bits(q: Tensor) -> Tensor:
    """The fifth bits of 32 numbers: (n, 32) -> (n, 4)."""
    return (reshape((q >> 4) & 1, (-1, 4, 8)) << arange(8, dtype=int32, device=q.device)).sum(-1).to(int32)


def _inverse(d: Tensor) -> Tensor:
    return where(d == 0, 0.0, 1 / where(d == 0, 1.0, d))


def _steps(x: Tensor, inverse: Tensor, shift: float, most: int) -> Tensor:
    """x * inverse + shift, cut to whole numbers of 0 to `most`; in float64, since a float32 would round before."""
    return (x.to(float64) * inverse.to(float64) + shift).trunc().clamp(0, most).to(int32)


def _extreme(x: Tensor) -> Tensor:
    """The number of the largest magnitude of every row, the first of several: (n, 32) -> (n, 1)."""
    return take_along_dim(x, argmax(x.abs(), 1, keepdim=True), 1)


def _to_q4_0(x: Tensor) -> Tensor:
    d = _extreme(x) / -8
    return cat([_halves(d), _nibbles(_steps(x, _inverse(d), 8.5, 15))], 1)


def _to_q5_0(x: Tensor) -> Tensor:
    d = _extreme(x) / -16
    q = _steps(x, _inverse(d), 16.5, 31)
    return cat([_halves(d), _fifth_bits(q), _nibbles(q)], 1)


def _to_q4_1(x: Tensor) -> Tensor:
    low = amin(x, 1, keepdim=True)
    d = (amax(x, 1, keepdim=True) - low) / 15
    return cat([_halves(d), _halves(low), _nibbles(_steps(x - low, _inverse(d), 0.5, 15))], 1)


def _to_q5_1(x: Tensor) -> Tensor:
    low = amin(x, 1, keepdim=True)
    d = (amax(x, 1, keepdim=True) - low) / 31
    q = _steps(x - low, _inverse(d), 0.5, 31)
    return cat([_halves(d), _halves(low), _fifth_bits(q), _nibbles(q)], 1)


def _to_q8_0(x: Tensor) -> Tensor:
    d = amax(x.abs(), 1, keepdim=True) / 127
    y = x * _inverse(d)
    size = y.abs().floor()
    away = size + ((y.abs() - size) * 2).floor()  # to the nearest, halves away from zero
    return cat([_halves(d), (y.sign() * away).to(int32) & 255], 1)


@dataclass(frozen=True, slots=True)
class _Layout:
    """`elements` in `nbytes`, at which number in files, how they are read, (n, nbytes) -> numbers or n * elements
    floats, and made, (n, elements) -> (n, nbytes)."""

    number: int
    elements: int
    nbytes: int
    read: Callable[[Tensor], BlockNumbers | Tensor]
    make: Callable[[Tensor], Tensor] | None = None


class BlockFormat(Enum):
    """A block format of ggml; `elements` share a block of `nbytes`, `number` is ggml's."""

    Q4_0 = _Layout(2, 32, 18, _q4_0, _to_q4_0)
    Q4_1 = _Layout(3, 32, 20, _q4_1, _to_q4_1)
    Q5_0 = _Layout(6, 32, 22, _q5_0, _to_q5_0)
    Q5_1 = _Layout(7, 32, 24, _q5_1, _to_q5_1)
    Q8_0 = _Layout(8, 32, 34, _q8_0, _to_q8_0)
    Q2_K = _Layout(10, 256, 84, _q2_k)
    Q3_K = _Layout(11, 256, 110, _q3_k)
    Q4_K = _Layout(12, 256, 144, _q4_k, to_q4_k)
    Q5_K = _Layout(13, 256, 176, _q5_k, to_q5_k)
    Q6_K = _Layout(14, 256, 210, _q6_k, to_q6_k)
    IQ4_NL = _Layout(20, 32, 18, _iq4_nl)
    IQ4_XS = _Layout(23, 256, 136, _iq4_xs)
    TQ1_0 = _Layout(34, 256, 54, _tq1_0)
    TQ2_0 = _Layout(35, 256, 66, _tq2_0)
    MXFP4 = _Layout(39, 32, 17, _mxfp4)

    @property
    def number(self) -> int:
        """The number that files have for it."""
        return self.value.number

    @property
    def elements(self) -> int:
        """Elements of a block."""
        return self.value.elements

    @property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return self.value.nbytes

    @property
    def even(self) -> bool:
        """True where its numbers are steps of equal size, not values in a table."""
        return self not in (BlockFormat.IQ4_NL, BlockFormat.IQ4_XS, BlockFormat.MXFP4)


def _widened(blocks: Tensor, format: BlockFormat) -> Tensor:
    found = format.value.read(blocks)
    return found.widen() if isinstance(found, BlockNumbers) else found


def numbers_of(blocks: Tensor, format: BlockFormat) -> BlockNumbers:
    """The numbers of blocks, (n, bytes of a block). ArgumentError where they stand for values in a table."""
    found = format.value.read(blocks)
    if not isinstance(found, BlockNumbers):
        raise ArgumentError(
            f"{format.name}: its numbers are no steps of equal size, but stand for values in a table"
        )
    return found


@dataclass(frozen=True, slots=True, eq=False)
class BlockTensor:
    """A tensor in a block format of ggml; `dequantize()` gives its values, lazily.

    `data`: uint8, (..., blocks, bytes of a block), as in the file. `shape`: that of the values, whose last axis lies
    in blocks.
    """

    data: Tensor
    format: BlockFormat
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        f, size = self.format, known(self.data.shape)
        if not self.shape or self.shape[-1] % f.elements or size != (
            *self.shape[:-1], self.shape[-1] // f.elements, f.nbytes
        ):  # fmt: skip
            raise ShapeError(
                f"BlockTensor: {f.name} has {f.elements} elements in {f.nbytes} bytes, so data of shape {size} is not "
                f"a tensor of shape {self.shape}"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of all that is stored."""
        return prod(known(self.data.shape))

    def dequantize(self, dtype: DType = float32) -> Tensor:
        """The values, computed in float32. Gradients do not flow into them.

        >>> y = x @ weights["blk.0.ffn_up.weight"].dequantize().T     # one kernel, which reads the blocks
        """
        blocks = reshape(self.data, (-1, self.format.nbytes))
        return reshape(_widened(blocks, self.format), self.shape).to(dtype)

    def __repr__(self) -> str:
        return f"BlockTensor(shape={self.shape}, format={self.format.name})"


def to_blocks(input: Tensor, format: BlockFormat) -> BlockTensor:
    """`input` in a block format of ggml: Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0, the same bytes as its own tools make; or Q4_K,
    Q5_K or Q6_K, whose scales are searched as its tools do, without weights of importance.

    Each block of 32 or 256 elements of the last axis is rounded to the format's steps. ArgumentError for formats that
    are read only; ShapeError where the last axis is no multiple of a block; values that are not finite give what
    ggml's arithmetic makes of them.

    >>> w = weft.quantization.to_blocks(weft.randn(64, 256), weft.quantization.BlockFormat.Q8_0)
    """
    v = value_of("to_blocks", input)
    sizes = known(v.shape)
    make = format.value.make
    if make is None:
        made = ", ".join([f.name for f in BlockFormat if f.value.make is not None])
        raise ArgumentError(f"to_blocks: {format.name} can be read only; weft makes {made}")
    if not v.dtype.is_float or v.dtype.is_float8:
        raise DTypeError(
            f"to_blocks: needs floats of 16 bits or more, got {v.dtype.name}; convert with .float()"
        )
    if not sizes or sizes[-1] % format.elements:
        raise ShapeError(
            f"to_blocks: {format.name} needs a last axis of a multiple of {format.elements}, got shape {sizes}"
        )
    rows = reshape(input.detach().to(float32), (-1, format.elements))
    blocks = (*sizes[:-1], sizes[-1] // format.elements, format.nbytes)
    data = reshape(make(rows).to(uint8), blocks)
    realize(data)
    return BlockTensor(data, format, sizes)
