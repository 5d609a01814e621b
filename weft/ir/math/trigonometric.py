"""sin and cos of every float, by Payne and Hanek's reduction in integers.

|x| = m * 2**e with an integer m. Bits of 1/pi whose product with x is a multiple of 2 cannot matter, so a window of
1/pi that starts at weight 2**-e is enough: three words of it, times m, modulo 2. What is left is x / pi mod 2 with
more than twice the precision of a float: its first bit is the sign, the rest a signed fraction g in [-1/2, 1/2) of pi.
Then sin(x) = sign * sin(pi g), one odd polynomial on |r| <= pi/2; cos is half a turn of g further on, an exact integer
addition. Where |x| < 1 no reduction is needed and r is x, or pi/2 - |x|.

The window is found with selects and shifts, without a table in memory or a branch, so large arguments cost the same
as small ones. Source: Payne and Hanek, "Radian reduction for trigonometric functions", SIGNUM 1983.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir import dtypes
from weft.ir.math.value import ScalarExpr, flip_sign, format_of, horner, sign_of, where

_INVERSE_PI_32 = (0x51, 0x7CC1B727, 0x220A94FE, 0x13ABE8FA, 0x9A6EE06D, 0xB14ACC9E, 0x21C820FF)
_INVERSE_PI_64 = (
    0x28B, 0xE60DB9391054A7F0, 0x9D5F47D4D377036D, 0x8A5664F10E4107F9, 0x458EAF7AEF1586DC, 0x91B8E909374B8019,
    0x24BBA827464873F8, 0x77AC72C4A69CFBA2, 0x08D7D4BAED1213A6, 0x71C09AD17DF904E6, 0x4758E60D4CE7D272,
    0x117E2EF7E4A0EC7F, 0xE25FFF7816603FBC, 0xBC462D6829B47DB4, 0xD9FB3C9F2C26DD3D, 0x18FD9A797FA8B5D4,
    0x9EEB1FAF97C5ECF4, 0x1CE7DE294A4BA9AF, 0xED7EC47E35742158,
)  # fmt: skip
"""1/pi in words; the first bit has weight 2**23, or 2**52 for float64: the bit that a float in [1, 2) needs first."""

_HALF_PI = {
    dtypes.float32: (1.5707963705062866, -4.371138828673793e-08),
    dtypes.float64: (1.5707963267948966, 6.123233995736766e-17),
}
_PI = {
    dtypes.float32: (3.1415927410125732, -8.742277657347586e-08),
    dtypes.float64: (3.141592653589793, 1.2246467991473532e-16),
}
# sin(r) = r + r z (c0 + c1 z + ...) with z = r**2
_SINE = {
    dtypes.float32: (
        -0.16666659712791443, 0.008333069272339344, -0.00019809776858892292, 2.606095677037956e-06,
    ),
    dtypes.float64: (
        -0.16666666666666666, 0.008333333333333207, -0.0001984126984121248, 2.7557319211569482e-06,
        -2.505210690442305e-08, 1.60589410023488e-10, -7.643019375739624e-13, 2.7214196668247935e-15,
    ),
}  # fmt: skip


def sin(x: ScalarExpr, wide: bool = True) -> ScalarExpr:
    """The sine of x radians; NaN for infinities. `wide` says that 64-bit integers may be used for float32."""
    sign, fraction = _turn(x, wide, cosine=False)
    small = abs(x) < 1.0
    r = where(small, abs(x), fraction)
    flips = sign_of(x) ^ where(small, sign.const(0), sign)
    return _finite(x, flip_sign(_sine(r), flips))


def cos(x: ScalarExpr, wide: bool = True) -> ScalarExpr:
    """The cosine of x radians; NaN for infinities. `wide` says that 64-bit integers may be used for float32."""
    sign, fraction = _turn(x, wide, cosine=True)
    small = abs(x) < 1.0
    high, low = _HALF_PI[x.dtype]
    r = where(small, (x.const(high) - abs(x)) + low, fraction)
    return _finite(x, flip_sign(_sine(r), where(small, sign.const(0), sign)))


def _sine(r: ScalarExpr) -> ScalarExpr:
    z = r * r
    return r * (z * horner(z, _SINE[r.dtype])) + r


def _finite(x: ScalarExpr, result: ScalarExpr) -> ScalarExpr:
    return where(abs(x) < float("inf"), result, float("nan"))


def _turn(x: ScalarExpr, wide: bool, cosine: bool) -> tuple[ScalarExpr, ScalarExpr]:
    """The sign bit of sin(|x|), or of cos(x), and r in [-pi/2, pi/2) with the magnitude's sine, for finite |x| >= 1."""
    f = format_of(x)
    word = x.bits_as(f.unsigned)
    significand = (word & ((1 << f.fraction) - 1)) | (1 << f.fraction)
    position = (word >> f.fraction) + (f.bias + 2)  # the exponent, modulo the words' span
    if x.dtype is dtypes.float32:
        a, b, c = _window(_INVERSE_PI_32, position, 32, 4)
        top = significand * a
        high, low = _top_words_32(significand, b, c, wide)
        top = top + high
    else:
        a, b, c = _window(_INVERSE_PI_64, position, 64, 16)
        carry = _high_product_64(significand, c)
        low = significand * b + carry
        top = significand * a + _high_product_64(significand, b) + (low < carry).to(f.unsigned)
    bits = f.dtype.bits
    if cosine:
        top = top + (1 << (bits - 2))
    sign = (top + (1 << (bits - 2))) & f.sign_bit
    whole = ((top << 1) | (low >> (bits - 1))).bits_as(f.signed).to(f.dtype)
    rest = ((low << 1) >> 1).bits_as(f.signed).to(f.dtype)
    g = rest * 2.0 ** (1 - bits) + whole
    high, low_part = _PI[x.dtype]
    return sign, g * (low_part * 2.0**-bits) + g * (high * 2.0**-bits)


def _window(
    words: Sequence[int], position: ScalarExpr, bits: int, spans: int
) -> tuple[ScalarExpr, ScalarExpr, ScalarExpr]:
    """Three words of the bit string `words`, from bit `position` modulo bits * spans."""
    level: list[ScalarExpr] = [position.const(w) for w in words]
    step = spans // 2
    while step:
        later = (position & (step * bits)).differs(0)
        level = [where(later, level[i + step], level[i]) for i in range(3 + step)]
        step //= 2
    shift = position & (bits - 1)
    back = shift ^ (bits - 1)
    # (w >> 1) >> (bits - 1 - shift) is w >> (bits - shift), also for shift 0
    a, b, c = ((level[i] << shift) | ((level[i + 1] >> 1) >> back) for i in range(3))
    return a, b, c


def _top_words_32(m: ScalarExpr, b: ScalarExpr, c: ScalarExpr, wide: bool) -> tuple[ScalarExpr, ScalarExpr]:
    """m * b + (m * c >> 32), as two words."""
    if wide:
        m64 = m.to(dtypes.uint64)
        total = m64 * b.to(dtypes.uint64) + ((m64 * c.to(dtypes.uint64)) >> 32)
        return (total >> 32).to(dtypes.uint32), total.to(dtypes.uint32)
    carry = _high_product_32(m, c)
    low = m * b + carry
    return _high_product_32(m, b) + (low < carry).to(dtypes.uint32), low


def _high_product_32(m: ScalarExpr, w: ScalarExpr) -> ScalarExpr:
    """The upper word of m * w, from products of 16 bits."""
    return _high_product(m, w, 16)


def _high_product_64(m: ScalarExpr, w: ScalarExpr) -> ScalarExpr:
    """The upper word of m * w, from products of 32 bits."""
    return _high_product(m, w, 32)


def _high_product(m: ScalarExpr, w: ScalarExpr, half: int) -> ScalarExpr:
    mask = (1 << half) - 1
    m0, m1, w0, w1 = m & mask, m >> half, w & mask, w >> half
    middle = m1 * w0 + ((m0 * w0) >> half)
    return m1 * w1 + (middle >> half) + ((m0 * w1 + (middle & mask)) >> half)
