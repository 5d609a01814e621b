"""Folding agrees with the reference on every op and dtype."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from weft.ir import dtypes, numerics
from weft.ir.dtypes import DType, Kind, to_numpy
from weft.ir.expr import Const, ScalarCall
from weft.ir.fold import fold
from weft.ir.loops_verify import call_error
from weft.ir.math.expand import EXPANSIONS, expand_expr
from weft.ir.ops import COMPARE, ELEMENTWISE, TRANSCENDENTAL, Op
from weft.ir.passes.pinned import fused
from weft.ir.reference_ops import FUNCTIONS, apply, threefry_block

ALL = list(dtypes.DTYPES.values())


def samples(d: DType) -> list[Any]:
    """Values at the edges of `d`."""
    match d.kind:
        case Kind.BOOL:
            return [False, True]
        case Kind.FLOAT:
            tiny = 2.0**-149
            return [0.0, -0.0, 1.0, -1.0, 2.0, -2.5, 0.1, 3.7, -7.0, 88.8, 1e30, -1e30, 1e-40, tiny, math.inf,
                    -math.inf, math.nan, 255.5, 2147483648.0, -9.3e18, 1.8446744073709552e19, 0.5, 1.5]  # fmt: skip
        case _:
            lo, hi = int(d.min), int(d.max)
            some = {
                lo,
                lo + 1,
                hi,
                hi - 1,
                0,
                1,
                2,
                3,
                7,
                -1,
                -2,
                -3,
                63,
                64,
                31,
                100,
                (1 << 24) + 1,
                (1 << 53) + 1,
            }
            return sorted(x for x in some if lo <= x <= hi)


def same(op: Op, d: DType, a: Any, b: Any) -> bool:
    if not d.is_float:
        return bool(a == b)
    x, y = float(a), float(b)
    if math.isnan(x) or math.isnan(y):
        return math.isnan(x) and math.isnan(y)
    if (
        op in TRANSCENDENTAL and d is dtypes.float64
    ):  # the C library's and NumPy's functions differ in the last bit
        return x == y or abs(x - y) <= 2 * math.ulp(y)
    return x == y and math.copysign(1, x) == math.copysign(1, y)


def column(d: DType, values: list[Any]) -> Any:
    return np.array(values, np.float64).astype(to_numpy(d)) if d.is_float else np.array(values, to_numpy(d))


def check(op: Op, out: DType, given: list[DType], values: list[tuple[Any, ...]]) -> None:
    args = [tuple(Const(d, v) for d, v in zip(given, vs, strict=True)) for vs in values]
    with np.errstate(all="ignore"):
        arrays = [column(d, [a[k].value for a in args]) for k, d in enumerate(given)]
        expected = apply(op, out, *arrays)
    assert expected.dtype == to_numpy(out)
    for a, e in zip(args, expected, strict=True):
        got = fold(op, out, a)
        if got is None:
            assert op is Op.THREEFRY or op is Op.FMA or op is Op.BITCAST, (op, a)
        else:
            assert same(op, out, got, e), f"{op.symbol}{a}: folded {got}, reference {e}"


@pytest.mark.parametrize("op", sorted(ELEMENTWISE - {Op.CAST, Op.BITCAST, Op.WHERE}, key=lambda o: o.name))
@pytest.mark.parametrize("d", ALL, ids=lambda d: d.name)
def test_fold_agrees_with_the_reference(op: Op, d: DType) -> None:
    arity = op.info.arity or 0
    out = dtypes.bool_ if op in COMPARE else d
    probe = ScalarCall(out, op, tuple(Const(d, 1) for _ in range(arity)))
    if call_error(probe) is not None and not d.is_narrow:
        return
    if d.is_narrow and call_error(
        ScalarCall(dtypes.float32, op, tuple(Const(dtypes.float32, 1) for _ in range(arity)))
    ):
        return
    if d.is_narrow and op is Op.FMA:
        return
    some = samples(d)[:: 2 if arity == 3 else 1]
    check(op, out, [d] * arity, list(product(some, repeat=arity)))


def test_powers_of_one_half_have_the_zeros_and_infinities_of_ieee_754() -> None:
    bases = np.array([-0.0, 0.0, -math.inf, math.inf, 4.0], np.float32)
    with np.errstate(all="ignore"):  # NumPy has a case of its own for an exponent without axes
        found = apply(Op.POW, dtypes.float32, bases, np.float32(0.5))
    assert found.tolist() == [0.0, 0.0, math.inf, math.inf, 2.0] and not np.signbit(found).any()


@pytest.mark.parametrize("source", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("target", ALL, ids=lambda d: d.name)
def test_casts(source: DType, target: DType) -> None:
    check(Op.CAST, target, [source], [(v,) for v in samples(source)])
    if source.bits == target.bits and Kind.BOOL not in (source.kind, target.kind):
        check(Op.BITCAST, target, [source], [(v,) for v in samples(source) if v == v])


def test_integers_round_once_to_f32() -> None:
    n = (1 << 60) + (1 << 36) + 1  # just above a tie in f32, a tie after rounding to f64
    assert fold(Op.CAST, dtypes.float32, (Const(dtypes.int64, n),)) == float(np.int64(n).astype(np.float32))


def test_fma_rounds_once() -> None:
    a = 1 + 2.0**-23
    exact = (Const(dtypes.float32, a), Const(dtypes.float32, a), Const(dtypes.float32, -1 - 2.0**-22))
    assert fold(Op.FMA, dtypes.float32, exact) == 2.0**-46


def test_threefry_known_answers() -> None:
    """Random123's kat_vectors for threefry2x32-20."""
    cases = [
        ((0, 0, 0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 4, (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ]
    with np.errstate(all="ignore"):
        for given, expected in cases:
            assert tuple(map(int, threefry_block(*(np.uint32(x) for x in given)))) == expected


@pytest.mark.parametrize("op", sorted(FUNCTIONS, key=lambda o: o.name))
@pytest.mark.parametrize(
    "d", [dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16], ids=lambda d: d.name
)
def test_in_same_a_function_is_folded_only_where_kernels_give_the_same_bits(op: Op, d: DType) -> None:
    special = (0.0, -0.0, math.inf, -math.inf, math.nan)
    with numerics.switched(same=True):
        for values in product((*special, 1.0, -0.75, 3.0), repeat=op.info.arity or 1):
            args = tuple(Const(d, v) for v in values)
            got = fold(op, d, args)
            assert (got is not None) == all(any(v is s for s in special) for v in values)
            if got is not None:
                kernel = expand_expr(ScalarCall(d, op, args), {Op.FMA}, fused(EXPANSIONS))
                assert isinstance(kernel, Const)
                assert kernel.value == got or (kernel.value != kernel.value and got != got), values
                assert math.copysign(1, kernel.value) == math.copysign(1, got) or got != got, values
