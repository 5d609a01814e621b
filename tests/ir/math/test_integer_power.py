"""Integer powers, expanded, against Python's."""

from __future__ import annotations

import itertools

import pytest

from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.expr import Const, ScalarCall, const
from weft.ir.math.expand import expand_expr
from weft.ir.ops import Op

INTEGERS = [d for d in dtypes.DTYPES.values() if d.is_int]


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_against_python(dtype: DType) -> None:
    low, high = int(dtype.min), int(dtype.max)
    bases = [b for b in (-3, -2, -1, 0, 1, 2, 3, 10, low, high, low + 1) if low <= b <= high]
    exponents = [e for e in (-5, -2, -1, 0, 1, 2, 3, 7, 40, low, high) if low <= e <= high]
    for b, e in itertools.product(bases, exponents):
        # constants fold while it is expanded, so this is the whole computation
        got = expand_expr(ScalarCall(dtype, Op.POW, (const(dtype, b), const(dtype, e))), frozenset())
        assert isinstance(got, Const)
        if e >= 0:
            want = (pow(b, e, high - low + 1) - low) % (high - low + 1) + low
        else:
            want = {1: 1, -1: -1 if e % 2 else 1}.get(b, 0)
        assert got.value == want, (b, e)
