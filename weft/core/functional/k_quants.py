"""Blocks of 256 in ggml's formats Q4_K, Q5_K and Q6_K made of floats.

    Q4_K, Q5_K   parts of 32: x ~ (d * s) * q - e * m          q from 0; s, m: 6 bits
    Q6_K         parts of 16: x ~ (d * s) * (q - 32)           s: int8

Each part's scale (and minimum) is the best of some: for steps a little longer and shorter than what the extremes ask
for, the numbers are rounded, and scale and minimum fitted to them by least squares, errors weighted by magnitude. Then
scales are rounded to the format's, and the numbers once more to these. Source: ggml-quants.c of llama.cpp, as of 2026.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.functions.reductions import amax, amin, argmax
from weft.core.functions.reductions import sum as total
from weft.core.layout.creation import arange
from weft.core.layout.gather import take_along_dim
from weft.core.layout.movement import bitcast, cat, narrow, reshape
from weft.core.pointwise.elementwise import minimum, round, where
from weft.ir.dtypes import float16, float32, int16, int32

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

BLOCK = 256

_STEPS = 21
"""Lengths of a step that are tried, a tenth of a number apart."""


def _over(a: Tensor, b: Tensor) -> Tensor:
    """a / b, 0 where b is 0."""
    return where(b == 0, 0.0, a / where(b == 0, 1.0, b))


def _sum(x: Tensor) -> Tensor:
    return total(x, -1, keepdim=True)


def _fitted(x: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Scale and minimum of each part of (n, parts, 32), for numbers from 0 to `top`: (n, parts, 1) each."""
    weight = (_sum(x * x) / 32).sqrt() + x.abs()
    low = minimum(amin(x, -1, keepdim=True), amin(x, -1, keepdim=True) * 0)
    span = amax(x, -1, keepdim=True) - low
    sum_w, sum_x = _sum(weight), _sum(weight * x)
    scale, floor = span / top, low
    best = _sum(weight * (scale * round(_over((x - low) * top, span)).clamp(0, top) + low - x).square())
    for k in range(_STEPS):
        q = round(_over((x - low) * (top - 1 + 0.1 * k), span)).clamp(0, top)
        sum_q, sum_qq, sum_xq = _sum(weight * q), _sum(weight * q * q), _sum(weight * x * q)
        det = sum_w * sum_qq - sum_q * sum_q
        own = _over(sum_w * sum_xq - sum_x * sum_q, det)
        least = _over(sum_qq * sum_x - sum_q * sum_xq, det)
        own = where(least > 0, _over(sum_xq, sum_qq), own)
        least = minimum(least, least * 0)
        error = _sum(weight * (own * q + least - x).square())
        better = (error < best) & (det > 0)
        best = where(better, error, best)
        scale, floor = where(better, own, scale), where(better, least, floor)
    return scale, -floor


def _fitted_around(x: Tensor, half: int) -> Tensor:
    """Scale of each part of (n, parts, elements), for numbers from -half to half - 1: (n, parts, 1)."""
    extreme = take_along_dim(x, argmax(x.abs(), -1, keepdim=True), -1)
    weight = x * x
    scale, best = extreme * 0, _sum(weight) * -1
    for k in range(-9, 10):
        q = round(_over(x * -(half + 0.1 * k), extreme)).clamp(-half, half - 1)
        sum_xq, sum_qq = _sum(weight * x * q), _sum(weight * q * q)
        gain = _over(sum_xq * sum_xq, sum_qq)
        better = gain > best
        best = where(better, gain, best)
        scale = where(better, _over(sum_xq, sum_qq), scale)
    return scale


def _half_bytes(x: Tensor) -> tuple[Tensor, Tensor]:
    """float32 (n, 1) as a float16: its two bytes in int32 (n, 2), and its value (n, 1, 1)."""
    rounded = x.to(float16)
    bits = bitcast(rounded, int16).to(int32)
    return cat([bits & 255, (bits >> 8) & 255], 1), reshape(rounded.to(float32), (-1, 1, 1))


def _to_k(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The front of Q4_K's and Q5_K's blocks, (n, 16), and their numbers, (n, 8, 32), in int32."""
    top = (1 << bits) - 1
    parts = reshape(x, (-1, 8, 32))
    scale, floor = _fitted(parts, top)
    (d_bytes, d), (e_bytes, e) = (_half_bytes(amax(t, 1) / 63) for t in (scale, floor))
    s, m = (round(_over(t * 63, amax(t, 1, keepdim=True))).clamp(0, 63).to(int32) for t in (scale, floor))
    q = round(_over(parts + e * m.to(float32), d * s.to(float32))).clamp(0, top).to(int32)
    s, m = reshape(s, (-1, 8)), reshape(m, (-1, 8))
    s_low, s_high, m_low, m_high = (narrow(t, 1, k, 4) for t in (s, m) for k in (0, 4))
    packed = [
        s_low | ((s_high >> 4) << 6), m_low | ((m_high >> 4) << 6), (s_high & 15) | ((m_high & 15) << 4),
    ]  # fmt: skip
    return cat([d_bytes, e_bytes, *packed], 1), q


def _nibbles(q: Tensor, width: int) -> Tensor:
    """The low four bits of numbers, of each two runs of `width` the second over the first: (n, 256) -> (n, 128)."""
    pairs = reshape(q & 15, (-1, BLOCK // (2 * width), 2, width))
    return reshape(narrow(pairs, 2, 0, 1) | (narrow(pairs, 2, 1, 1) << 4), (-1, BLOCK // 2))


def to_q4_k(x: Tensor) -> Tensor:
    """(n, 256) float32 -> (n, 144)."""
    front, q = _to_k(x, 4)
    return cat([front, _nibbles(q, 32)], 1)


def to_q5_k(x: Tensor) -> Tensor:
    """(n, 256) float32 -> (n, 176)."""
    front, q = _to_k(x, 5)
    shift = reshape(arange(8, dtype=int32, device=x.device), (8, 1))
    high = total(((q >> 4) & 1) << shift, 1, dtype=int32)
    return cat([front, high, _nibbles(q, 32)], 1)


def to_q6_k(x: Tensor) -> Tensor:
    """(n, 256) float32 -> (n, 210)."""
    parts = reshape(x, (-1, 16, 16))
    scale = _fitted_around(parts, 32)
    extreme = take_along_dim(scale, argmax(scale.abs(), 1, keepdim=True), 1)
    d_bytes, d = _half_bytes(reshape(extreme, (-1, 1)) / -128)
    s = round(_over(scale * -128, extreme)).clamp(-128, 127)
    q = round(_over(parts, d * s)).clamp(-32, 31).to(int32) + 32
    runs = reshape(q, (-1, 2, 4, 32)) >> 4
    high = narrow(runs, 2, 0, 1)
    for k in range(1, 4):
        high = high | (narrow(runs, 2, k, 1) << (2 * k))
    signed = reshape(s.to(int32), (-1, 16)) & 255
    return cat([_nibbles(q, 64), reshape(high, (-1, 64)), signed, d_bytes], 1)
