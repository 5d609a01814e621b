"""Moments of eight bits an element, in blocks that each have a scale: a quarter of what optimizers keep.

A code is a place on a scale that is fine where values are small: seven decades, each twice as finely cut as the one
below, so that the relative error is about the same over what a block has of them.

    signed    code - 127 = sign * (n + j)        value = sign * 10**(i - 6) * (0.1 + 0.9 * (j + 0.5) / n),  n = 2**i
    unsigned  code = n - 1 + j                   the same with n = 2**(i + 1)

for j from 0 below n and decades i from 0 to 6; the code of nothing is 0, and the last code is 1. Values are divided by
the largest of their block.
Source: Dettmers et al. 2022, arXiv:2110.02861 (dynamic quantization by blocks).
"""

from __future__ import annotations

import math

from weft.core.functional.padding import pad
from weft.core.functions.reductions import amax
from weft.core.layout.movement import narrow, reshape
from weft.core.pointwise.elementwise import where
from weft.core.tensor.tensor import Tensor
from weft.ir.dtypes import float32, uint8

BLOCK = 256
"""Elements that share a scale."""
LEAST = 4096
"""Parameters with fewer elements keep their moments as they are: there is nothing to save."""
_DECADES = 7


def _cuts(signed: bool, i: int) -> int:
    return 2 ** (i if signed else i + 1)


def _value(signed: bool, i: int, j: int) -> float:
    return 10.0 ** (i - 6) * (0.1 + 0.9 * (j + 0.5) / _cuts(signed, i))


def _borders(signed: bool) -> list[float]:
    """The beginnings of decades, in the middle between the values beside each other, and of the code of 1."""
    ends = [0.0] + [_value(signed, i, _cuts(signed, i) - 1) for i in range(_DECADES)]
    begins = [_value(signed, i, 0) for i in range(_DECADES)] + [1.0]
    return [(a + b) / 2 for a, b in zip(ends, begins, strict=True)]


def blocks_of(count: int) -> int:
    """The number of blocks of so many elements."""
    return -(-count // BLOCK)


def encoded(x: Tensor, signed: bool) -> tuple[Tensor, Tensor]:
    """The nearest codes and the scales of float32: any shape -> (blocks, 256) uint8, (blocks, 1) float32.

    An unsigned value that is not zero has no code of zero: steps are divided by such.
    """
    flat = reshape(x, (-1,))
    count = math.prod(n for n in x.shape if isinstance(n, int))
    rows = reshape(pad(flat, (0, blocks_of(count) * BLOCK - count)), (-1, BLOCK))
    scale = amax(rows.abs(), (1,), keepdim=True)
    y = rows / where(scale == 0, 1.0, scale)
    a, borders = y.abs(), _borders(signed)
    ten, n = 1e6, float(_cuts(signed, 0))
    factor, cuts = where(a < borders[1], ten, ten / 10), where(a < borders[1], n, 2 * n)
    for i in range(2, _DECADES):
        factor, cuts = where(a < borders[i], factor, ten / 10**i), where(a < borders[i], cuts, n * 2**i)
    j = ((a * factor - 0.1) / 0.9 * cuts).floor().clamp(min=0).minimum(cuts - 1)
    if signed:
        code = where(a < borders[0], 127, where(y < 0, 127 - cuts - j, 127 + cuts + j))
        code = where(y >= borders[-1], 255, code)
    else:
        code = where(a >= borders[-1], 255, where(a == 0, 0, cuts - 1 + j))
    return code.to(uint8), scale


def decoded(codes: Tensor, scale: Tensor, signed: bool, like: Tensor) -> Tensor:
    """The values of codes, float32, in the shape of a tensor."""
    code = codes.to(float32)
    k = (code - 127).abs() if signed else code + 1
    n = float(_cuts(signed, 0))
    factor, cuts = where(k < 2 * n, 1e-6, 1e-5), where(k < 2 * n, n, 2 * n)
    for i in range(2, _DECADES):
        factor, cuts = where(k < n * 2**i, factor, 10.0 ** (i - 6)), where(k < n * 2**i, cuts, n * 2**i)
    size = factor * (0.1 + 0.9 * (k - cuts + 0.5) / cuts)
    if signed:
        value = where(code == 127, 0.0, where(code < 127, -size, size))
    else:
        value = where(code == 0, 0.0, size)
    flat = reshape(where(code == 255, 1.0, value) * scale, (-1,))
    count = math.prod(n for n in like.shape if isinstance(n, int))
    return reshape(narrow(flat, 0, 0, count), tuple(like.shape))
