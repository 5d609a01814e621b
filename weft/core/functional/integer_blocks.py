"""Products with weights in block formats of ggml, computed in integers: blocks of 32 activations rounded to int8.

    x ~ dx * qx          dx = max |x| / 127 of each 32 elements, qx = round(x / dx)          per row and block
    w = s * (q - z) + f                                                                      as in the file
    y = sum over blocks of dx * (s * (sum qx * q - z * sum qx) + f * sum qx)

The inner sums are of products of bytes, in int32, and exact; processors have instructions for four of them at once. So
the only error, beside float32's, is that of rounding x: |x - dx * qx| <= max |x| / 254 in each block, and

    |y - x @ w.T| <= sum over blocks of max |x| / 254 * sum |w|

For that the numbers of 16 rows lie in lanes: planes of bytes (rows / 16, blocks, groups, 16, 4), where each lane
of 32 bits has four neighbours of a row. Numbers of fewer bits share bytes: 4, 5 and 6 bits are planes of 4, 4 + 1 and
4 + 2 bits. That takes as many bytes as the file, but for scales of 6 bits, which become bytes (Q4_K: 148 for 144).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.core.execute.realization import realize
from weft.core.functional.ggml import BlockTensor, numbers_of
from weft.core.functional.quantization import known
from weft.core.functions.reductions import amax
from weft.core.functions.reductions import sum as total
from weft.core.layout.creation import arange
from weft.core.layout.movement import constant_pad, contiguous, narrow, permute, reshape
from weft.core.pointwise.elementwise import round, where
from weft.errors import ShapeError
from weft.ir.dtypes import float16, float32, int8, int32, uint8
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

BLOCK = 32
"""Activations that share a scale."""

LANES = 16
"""Rows of a weight that lie in lanes."""

_TINY = 2.0**-126
"""The smallest normal number of float32."""

_GROUPS = BLOCK // 4
"""Groups of four neighbours in a block."""

_PLANES = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}
"""The widths of the planes that numbers of so many bits are kept in."""


@dataclass(frozen=True, slots=True, eq=False)
class Activations:
    """Rows of activations in blocks: `numbers` int8 (rows, blocks, 32), and `scale` float32 (rows, blocks)."""

    numbers: Tensor
    scale: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Activations:
        """(rows, columns) of float32, whose columns are a multiple of 32."""
        blocks = reshape(x, (x.shape[0], -1, BLOCK))
        # of what is scaled, so that the largest is stored as it is multiplied with: lanes read it for nothing more
        scale = amax(blocks.abs() * (1 / 127), -1, keepdim=True)
        small = scale < _TINY  # whose inverse is beyond float32
        inverse = where(small, 0.0, 1 / where(small, 1.0, scale))
        numbers = contiguous(round(blocks * inverse).to(int8))  # by no product anew for each of its rows
        return cls(numbers, reshape(scale, (x.shape[0], -1)))

    def zeros(self, parts: int, zero: int) -> Tensor:
        """`zero` times the sums of the numbers of equal parts of blocks, int32 (rows, blocks, parts)."""
        return contiguous(self._sums(parts) * zero)  # not once more for each row of a weight

    def floors(self, parts: int) -> Tensor:
        """The sums of equal parts of blocks, float32 (rows, blocks, parts)."""
        return contiguous(self._sums(parts).to(float32) * reshape(self.scale, (*self.scale.shape, 1)))

    def _sums(self, parts: int) -> Tensor:
        n = self.numbers
        return total(reshape(n, (*n.shape[:-1], parts, -1)).to(int32), -1, dtype=int32)


@dataclass(frozen=True, slots=True, eq=False)
class IntegerBlocks:
    """A (rows, columns) weight in planes of bytes for products in integers.

    `planes`: uint8 (rows / 16, blocks of 32, groups, 16, 4) each, the low bits first. `scale` and `floor`: float16
    (rows / 16, blocks of the format, 16); `steps` and `floor_steps`: the whole numbers that they are multiplied by for
    each part of a block that has its own, (rows / 16, blocks of 32, parts, 16).
    """

    planes: tuple[Tensor, ...]
    scale: Tensor
    steps: Tensor | None
    floor: Tensor | None
    floor_steps: Tensor | None
    bits: int
    zero: int
    shape: tuple[int, int]

    @classmethod
    def of(cls, weight: BlockTensor) -> IntegerBlocks:
        """The planes of a weight in a block format, computed now. ArgumentError for formats whose numbers are no steps
        of equal size; ShapeError where it has not 2 dimensions."""
        if len(weight.shape) != 2:
            raise ShapeError(f"IntegerBlocks: needs a weight of 2 dimensions, got {weight}")
        rows, columns = weight.shape
        data = weight.data
        if rows % LANES:
            data = constant_pad(data, (0, 0, 0, 0, 0, -rows % LANES), 0)
        padded = rows + -rows % LANES
        n = numbers_of(reshape(data, (-1, weight.format.nbytes)), weight.format)
        groups, blocks, own = padded // LANES, columns // BLOCK, columns // weight.format.elements
        q = permute(reshape(n.q, (groups, LANES, blocks, _GROUPS, 4)), (0, 2, 3, 1, 4))
        zero = n.zero
        if n.signed:
            q, zero = q + 128, 128

        def lanes(x: Tensor | None, count: int) -> Tensor | None:
            if x is None:
                return None
            return permute(reshape(x, (groups, LANES, count, -1)), (0, 2, 3, 1))

        scale, floor = lanes(n.scale, own), lanes(n.floor, own)
        steps, floor_steps = lanes(n.steps, blocks), lanes(n.floor_steps, blocks)
        assert scale is not None
        made = cls(
            _planes(q, n.bits),
            reshape(scale, (groups, own, LANES)).to(float16),
            None if steps is None else steps.to(int8 if n.signed_steps else uint8),
            None if floor is None else reshape(floor, (groups, own, LANES)).to(float16),
            None if floor_steps is None else floor_steps.to(uint8),
            n.bits, zero, (rows, columns),
        )  # fmt: skip
        realize(*made.tensors().values())
        return made

    def tensors(self) -> dict[str, Tensor]:
        """All that is stored, by name."""
        named = {f"plane{k}": p for k, p in enumerate(self.planes)} | {"scale": self.scale}
        rest = {"steps": self.steps, "floor": self.floor, "floor_steps": self.floor_steps}
        return named | {k: t for k, t in rest.items() if t is not None}

    def with_tensors(self, named: Mapping[str, Tensor]) -> IntegerBlocks:
        """The same with other tensors, by the names that `tensors` gives them."""
        planes = tuple([named[f"plane{k}"] for k in range(len(self.planes))])
        rest = {k: named.get(k) for k in ("steps", "floor", "floor_steps")}
        return replace(self, planes=planes, scale=named["scale"], **rest)

    def linear(self, x: Activations) -> Tensor:
        """x @ weight.T: (rows of x, rows of the weight), float32."""
        t, (rows, columns) = x.numbers.shape[0], self.shape
        groups, blocks, own = known(self.scale.shape)[0], columns // BLOCK, known(self.scale.shape)[1]
        parts = 1 if self.steps is None else known(self.steps.shape)[2]
        q = reshape(self._numbers(), (1, groups, blocks, parts, _GROUPS // parts, LANES, 4))
        a = reshape(x.numbers, (t, 1, blocks, parts, _GROUPS // parts, 1, 4))
        dots = total(q.to(int32) * a.to(int32), (4, 6), dtype=int32)  # (t, groups, blocks, parts, 16)
        per = reshape(x.scale, (t, 1, blocks, 1, 1))

        def of_blocks(scale: Tensor, steps: Tensor | None) -> Tensor:
            wide = reshape(scale.to(float32), (1, groups, own, 1, LANES))
            if own != blocks:
                wide = reshape(
                    wide.expand(1, groups, own, blocks // own, LANES), (1, groups, blocks, 1, LANES)
                )
            return (
                wide
                if steps is None
                else wide * reshape(steps.to(float32), (1, groups, blocks, parts, LANES))
            )

        whole = dots
        if self.zero:
            whole = dots - reshape(x.zeros(parts, self.zero), (t, 1, blocks, parts, 1))
        terms = whole.to(float32) * (per * of_blocks(self.scale, self.steps))
        if self.floor is not None:
            floors = reshape(x.floors(parts), (t, 1, blocks, parts, 1))
            terms = terms + floors * of_blocks(self.floor, self.floor_steps)
        # what follows counts rows, not groups and lanes: in loops of its own it would split the sums
        out = reshape(contiguous(total(terms, (2, 3))), (t, groups * LANES))
        return out if rows == groups * LANES else narrow(out, 1, 0, rows)

    def _numbers(self) -> Tensor:
        """All numbers in bytes: (groups, blocks, 8, 16, 4)."""
        found: Tensor | None = None
        low = 0
        for width, plane in zip(_PLANES[self.bits], self.planes, strict=True):
            if width == 8:
                return plane
            groups, blocks = known(plane.shape)[:2]
            fields = 8 // width
            shift = reshape(arange(fields, dtype=int32, device=plane.device) * width, (fields, 1, 1, 1)).to(
                uint8
            )
            part = (reshape(plane, (groups, blocks, 1, -1, LANES, 4)) >> shift) & ((1 << width) - 1)
            part = reshape(part, (groups, blocks, _GROUPS, LANES, 4))
            found = part if found is None else found | (part << low)
            low += width
        assert found is not None
        return found


def _planes(q: Tensor, bits: int) -> tuple[Tensor, ...]:
    """Numbers as planes: field h of byte p of a plane is that of group `groups of the plane * h + p`."""
    made: list[Tensor] = []
    for width in _PLANES[bits]:
        count, fields = width, 8 // width
        part = q & ((1 << width) - 1)
        plane = narrow(part, 2, 0, count)
        for h in range(1, fields):
            plane = plane | (narrow(part, 2, count * h, count) << (width * h))
        made.append(contiguous(plane.to(uint8)))
        q = q >> width
    return tuple(made)
