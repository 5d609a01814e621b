"""Conversions of float16 that LLVM calls by name where the processor has no instruction for them.

We convert float64 to float16 by way of float32 and write the steps out, but LLVM may find that two conversions are one
(for a copied sign, say) and then expects a compiler's run-time library in the process: there is none. So here it is.
Each rounds once, to nearest even; a NaN stays one, with its sign.

Normal numbers are shifted into place after adding half a unit of the last place that is kept, less one where that place
is even. Below float16's smallest normal number, adding a power of two whose unit is 2**-24 does the rounding.
"""

from __future__ import annotations

EXPORTS = ("__truncdfhf2", "__truncsfhf2", "__extendhfsf2")

_NARROW = """
define half @NAME(FLOAT %x) nounwind {
  %bits = bitcast FLOAT %x to INT
  %size = and INT %bits, ABS
  %odd_at = lshr INT %size, CUT
  %odd = and INT %odd_at, 1
  %rebased = sub INT %size, REBASE
  %nearly = add INT %rebased, ALMOST_HALF
  %carried = add INT %nearly, %odd
  %normal = lshr INT %carried, CUT
  %wide = bitcast INT %size to FLOAT
  %magic = bitcast INT MAGIC to FLOAT
  %aligned = fadd FLOAT %wide, %magic
  %aligned_bits = bitcast FLOAT %aligned to INT
  %tiny = sub INT %aligned_bits, MAGIC
  %is_tiny = icmp ult INT %size, SMALLEST
  %finite = select i1 %is_tiny, INT %tiny, INT %normal
  %is_large = icmp uge INT %size, LIMIT
  %number = select i1 %is_large, INT 31744, INT %finite
  %is_nan = icmp ugt INT %size, INFINITY
  %magnitude = select i1 %is_nan, INT 32256, INT %number
  %sign_at = lshr INT %bits, SIGN
  %sign = and INT %sign_at, 32768
  %whole = or INT %magnitude, %sign
  %word = trunc INT %whole to i16
  %out = bitcast i16 %word to half
  ret half %out
}
"""

_WIDEN = """
define float @__extendhfsf2(half %x) nounwind {
  %bits = bitcast half %x to i16
  %word = zext i16 %bits to i32
  %size = and i32 %word, 32767
  %shifted = shl i32 %size, 13
  %small = bitcast i32 %shifted to float
  %scaled = fmul float %small, 0x46F0000000000000 ; 2**112, between the biases
  %number = bitcast float %scaled to i32
  %odd = icmp uge i32 %size, 31744
  %all = or i32 %number, 2139095040
  %magnitude = select i1 %odd, i32 %all, i32 %number
  %sign_at = and i32 %word, 32768
  %sign = shl i32 %sign_at, 16
  %whole = or i32 %magnitude, %sign
  %out = bitcast i32 %whole to float
  ret float %out
}
"""


def _narrow(name: str, real: str, bits: int, fraction: int, bias: int) -> str:
    cut = fraction - 10
    values = {
        "ALMOST_HALF": (1 << (cut - 1)) - 1,
        "REBASE": (bias - 15) << fraction,
        "SMALLEST": (bias - 14) << fraction,
        "INFINITY": (2 * bias + 1) << fraction,
        "LIMIT": (bias + 16) << fraction,
        "MAGIC": (bias + fraction - 24) << fraction,
        "SIGN": bits - 16,
        "ABS": (1 << (bits - 1)) - 1,
        "CUT": cut,
    }
    text = _NARROW.replace("NAME", name).replace("FLOAT", real)
    for key, value in values.items():
        text = text.replace(key, str(value))
    return text.replace("INT", f"i{bits}")


CONVERSIONS = (
    _narrow("__truncdfhf2", "double", 64, 52, 1023) + _narrow("__truncsfhf2", "float", 32, 23, 127) + _WIDEN
)
"""LLVM IR that defines them."""
