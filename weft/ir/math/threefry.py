"""Threefry-2x32 with 20 rounds, in additions, shifts and exclusive ors. Source: Salmon et al., SC 2011."""

from __future__ import annotations

from weft.ir.dtypes import uint32
from weft.ir.expr import Expr, ScalarCall, call, const
from weft.ir.ops import Op

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry(e: ScalarCall) -> Expr:
    """Word 0 of the cipher on the block (counter, 0); `e` is THREEFRY(counter, key0, key1), all u32."""
    counter, key0, key1 = e.args
    keys = (key0, key1, _xor(_xor(key0, key1), const(uint32, _PARITY)))
    x0, x1 = _add(counter, key0), key1
    for group in range(5):
        for r in _ROTATIONS[group % 2]:
            x0 = _add(x0, x1)
            x1 = _xor(_rotate(x1, r), x0)
        x0 = _add(x0, keys[(group + 1) % 3])
        x1 = _add(x1, _add(keys[(group + 2) % 3], const(uint32, group + 1)))
    return x0


def _add(a: Expr, b: Expr) -> Expr:
    return call(Op.ADD, a, b)


def _xor(a: Expr, b: Expr) -> Expr:
    return call(Op.XOR, a, b)


def _rotate(x: Expr, by: int) -> Expr:
    left, right = call(Op.SHL, x, const(uint32, by)), call(Op.SHR, x, const(uint32, 32 - by))
    return call(Op.OR, left, right)
