"""The expansions of elementary functions, evaluated in NumPy by the definition of the IR and held against references.

Each test prints the worst error it saw (`pytest -s`). An error is counted in units in the last place of the true value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from weft.ir import dtypes
from weft.ir.dtypes import DType, to_numpy
from weft.ir.expr import Const, Expr, Load, ScalarCall, Temp, call, cast, transform, walk
from weft.ir.index import Var
from weft.ir.loops import Buffer, Let, Loop, Program, Scope, Store
from weft.ir.loops_names import every, roots
from weft.ir.math.expand import EXPANSIONS, WITHOUT_UINT64, expand, expand_expr
from weft.ir.ops import Op
from weft.ir.reference_ops import FUNCTIONS, apply, threefry

BOUND = 4.0
UNARY = [op for op in EXPANSIONS if op is not Op.POW]
EXACT: dict[Op, Callable[..., Any]] = {
    Op.EXP: mpmath.exp, Op.EXP2: lambda x: mpmath.mpf(2) ** x, Op.EXPM1: mpmath.expm1, Op.LOG: mpmath.log,
    Op.LOG2: lambda x: mpmath.log(x) / mpmath.ln2, Op.SIN: mpmath.sin, Op.COS: mpmath.cos, Op.TANH: mpmath.tanh,
    Op.ERF: mpmath.erf, Op.POW: lambda x, y: x**y,
}  # fmt: skip


def expansion(op: Op, dtype: DType, table: dict[Op, Any] = EXPANSIONS) -> Expr:
    args = tuple(Load(dtype, name, ()) for name in ("x", "y")[: 2 if op is Op.POW else 1])
    return expand_expr(ScalarCall(dtype, op, args), frozenset(), table)


def contracted(e: Expr) -> Expr:
    """Every product that feeds a sum fused with it, as the `fma` pass or a device's compiler may do."""

    def leaf(x: Expr) -> Expr | None:
        if not (isinstance(x, ScalarCall) and x.dtype.is_float and x.op in (Op.ADD, Op.SUB)):
            return None
        a, b = x.args
        if isinstance(a, ScalarCall) and a.op is Op.MUL:
            return ScalarCall(x.dtype, Op.FMA, (*a.args, b if x.op is Op.ADD else call(Op.NEG, b)))
        if isinstance(b, ScalarCall) and b.op is Op.MUL:
            m, n = b.args
            return ScalarCall(x.dtype, Op.FMA, (m if x.op is Op.ADD else call(Op.NEG, m), n, a))
        return None

    return transform(e, leaf)


def evaluate(e: Expr, *inputs: np.ndarray) -> np.ndarray:
    order = list(walk([e]))
    chunks = []
    for start in range(0, len(inputs[0]), 1 << 15):
        named = dict(zip(("x", "y"), (i[start : start + (1 << 15)] for i in inputs), strict=False))
        values: dict[Expr, Any] = {}
        with np.errstate(all="ignore"):
            for x in order:
                match x:
                    case Load():
                        values[x] = named[x.source]
                    case Const():
                        values[x] = to_numpy(x.dtype).type(x.value)
                    case ScalarCall():
                        values[x] = apply(x.op, x.dtype, *(values[a] for a in x.args))
                    case _:
                        raise AssertionError(type(x))
        chunks.append(np.broadcast_to(values[e], named["x"].shape))
    return np.concatenate(chunks)


def errors(got: np.ndarray, high: np.ndarray, low: np.ndarray | float) -> np.ndarray:
    """|got - (high + low)| in units in the last place; infinite where a special value is missed."""
    info = np.finfo(got.dtype)
    largest, smallest = float(info.max), float(info.smallest_subnormal)
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(high)
        unit = np.maximum(np.ldexp(1.0, np.where(np.isfinite(high), exponent, 0) - info.nmant - 1), smallest)
        error = np.abs((got.astype(np.float64) - high) - low) / unit
        over = np.abs(high) > largest
        at_edge = (
            np.isinf(got)
            & (np.abs(high) >= largest * (1 - 2.0**-info.nmant))
            & (np.sign(got) == np.sign(high))
        )
        error = np.where(over, np.where(np.abs(got) >= largest, 0.0, np.inf), np.where(at_edge, 1.0, error))
        same = (got == high) & (np.signbit(got) == np.signbit(high))
        error = np.where(high == 0, np.where((low != 0) | same, error, np.inf), error)
        error = np.where(np.isinf(high), np.where(same, 0.0, np.inf), error)
        return np.where(
            np.isnan(high) | np.isnan(got), np.where(np.isnan(high) & np.isnan(got), 0.0, np.inf), error
        )


def report(name: str, e: Expr, error: np.ndarray, *inputs: np.ndarray) -> None:
    worst = int(np.argmax(error))
    at = ", ".join(repr(i[worst].item()) for i in inputs)
    print(
        f"{name:20} worst {error[worst]:.2f} ULP at {at}; {instructions(e)} instructions, {len(error)} samples"
    )
    assert error[worst] <= BOUND, f"{name}: {error[worst]} ULP at {at}"


def instructions(e: Expr) -> int:
    """What a machine with fused multiply-add executes: reading bits as another type is free."""
    return sum(isinstance(x, ScalarCall) and x.op is not Op.BITCAST for x in walk([contracted(e)]))


def every_exponent(step: int) -> np.ndarray:
    """float32 of both signs from zero to NaN: one bit pattern in each `step`, at a random place within it."""
    rng = np.random.default_rng(1)
    starts = np.arange(0, 1 << 32, step, dtype=np.uint64)
    words = np.minimum(starts + rng.integers(0, step, len(starts), dtype=np.uint64), (1 << 32) - 1)
    return words.astype(np.uint32).view(np.float32)


SPECIAL = np.array(
    [
        0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 5e-324, 1e-45, 1.1754944e-38, 2.0**-1022, 3.4028235e38, 1.79e308,
        0.5, 2, -0.5, -2, 1 - 2.0**-24, 1 + 2.0**-23, 1 - 2.0**-53, 1 + 2.0**-52, math.pi, math.pi / 2, 1e22,
        6381956970095103 * 2.0**797, 88.72, 88.73, -87.34, -103.97, -104.1, 709.78, 709.79, -745.1, -745.2, 127.99, 128,
        -149, -149.9, -150.1, 1023.99, 1024, -1074, -1074.9, -1075.1, 9.01, 9.02, 19.06, 20, 3.92, 3.93, 5.92, 5.95,
    ]
)  # fmt: skip
INTERESTING: dict[Op, list[tuple[float, float]]] = {
    Op.EXP: [(-104, 89), (-746, 710), (-2, 2)],
    Op.EXP2: [(-150, 129), (-1076, 1025), (-2, 2)],
    Op.EXPM1: [(-20, 89), (-40, 710), (-2, 2)],
    Op.LOG: [(0.5, 2), (0, 100), (0.999, 1.001)],
    Op.LOG2: [(0.5, 2), (0, 100), (0.999, 1.001)],
    Op.SIN: [(-10, 10), (-1e4, 1e4), (-1e9, 1e9)],
    Op.COS: [(-10, 10), (-1e4, 1e4), (-1e9, 1e9)],
    Op.TANH: [(-10, 10), (-25, 25), (-0.5, 0.5)],
    Op.ERF: [(-4, 4), (-6, 6), (0.95, 1.2)],
}


def samples(op: Op, n: int) -> np.ndarray:
    """float64 samples: any bits, special values, the intervals where a function does something."""
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 1 << 64, n, dtype=np.uint64).view(np.float64)
    inside = [rng.uniform(lo, hi, n) for lo, hi in INTERESTING[op]]
    near_one = 1 + rng.standard_normal(n) * 10.0 ** rng.uniform(-16, -1, n)
    near_multiple = np.rint(10.0 ** rng.uniform(0, 9, n)) * (math.pi / 2)
    return np.concatenate([bits, *inside, near_one, near_multiple, SPECIAL, -SPECIAL])


def exact(op: Op, *inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The true value as an unevaluated sum of two float64; where float64's own function is exact, that."""
    with np.errstate(all="ignore"):
        high = FUNCTIONS[op](*inputs)
    low = np.zeros_like(high)
    plain = (
        np.isfinite(high) & (high != 0) if op is not Op.POW else np.isfinite(high) & np.isfinite(inputs[1])
    )
    for i in inputs:
        plain &= np.isfinite(i)
    f = EXACT[op]
    with mpmath.workprec(120):  # arguments of sine and cosine are reduced with as many bits as these take
        for i in np.flatnonzero(plain):
            if op is Op.POW and (inputs[0][i] == 0 or inputs[1][i] == 0):
                continue
            value = f(*(mpmath.mpf(float(a[i])) for a in inputs))
            high[i] = float(value)
            low[i] = float(value - mpmath.mpf(float(high[i]))) if math.isfinite(high[i]) else 0.0
    return high, low


@pytest.mark.parametrize("op", UNARY, ids=lambda op: op.symbol)
def test_float32(op: Op) -> None:
    with np.errstate(all="ignore"):
        special = np.concatenate([SPECIAL, -SPECIAL]).astype(np.float32)
    rng = np.random.default_rng(3)
    dense = [rng.uniform(lo, hi, 200_000).astype(np.float32) for lo, hi in INTERESTING[op]]
    x = np.concatenate([every_exponent(2147), *dense, special])
    with np.errstate(all="ignore"):
        truth = FUNCTIONS[op](x.astype(np.float64))
    e = expansion(op, dtypes.float32)
    report(f"{op.symbol} f32", e, errors(evaluate(e, x), truth, 0.0), x)
    some = np.arange(len(x)) % 7 == 0
    some[-len(special) :] = True
    report(f"{op.symbol} f32 fused", e, errors(evaluate(contracted(e), x[some]), truth[some], 0.0), x[some])


@pytest.mark.parametrize("op", UNARY, ids=lambda op: op.symbol)
def test_float64(op: Op) -> None:
    x = samples(op, 17_000)
    high, low = exact(op, x)
    e = expansion(op, dtypes.float64)
    report(f"{op.symbol} f64", e, errors(evaluate(e, x), high, low), x)
    fused = contracted(e)
    report(f"{op.symbol} f64 fused", e, errors(evaluate(fused, x[::100]), high[::100], low[::100]), x[::100])


def pairs(dtype: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Bases and exponents: results over the whole range, any bits, bases near 1 and below zero, all special pairs."""
    rng = np.random.default_rng(4)
    info = np.finfo(dtype)
    top = float(info.maxexp) + info.nmant
    word = np.uint32 if dtype is np.float32 else np.uint64
    with np.errstate(all="ignore"):
        wide = np.exp2(rng.uniform(info.minexp, info.maxexp, n))
        near = np.abs(
            1 + rng.standard_normal(n) * 10.0 ** rng.uniform(-7 if dtype is np.float32 else -15, -0.5, n)
        )
        near = near.astype(dtype).astype(np.float64)
        rows = [
            (b, rng.uniform(-1.02, 1.02, n) * top / np.maximum(np.abs(np.log2(b)), 1e-17))
            for b in (wide, near)
        ]
        rows.append((np.ldexp(rng.uniform(0, 1, n), info.minexp), rng.uniform(-1.2, 1.2, n)))
        rows.append((-np.exp(rng.uniform(-5, 5, n)), np.rint(rng.uniform(-9, 9, n))))
        bits = [rng.integers(0, 1 << 8 * info.dtype.itemsize, n, dtype=word).view(dtype) for _ in range(2)]
        extra = np.concatenate(
            [SPECIAL, -SPECIAL, [3, -3, 2.0**53 - 1, 1 - 2.0**53, 2.0**23 + 1, 1e30, 1.5, 1 / 3]]
        )
        grid = [a.ravel() for a in np.meshgrid(extra, extra)]
        x, y = (np.concatenate([*(r[i] for r in rows), bits[i], grid[i]]).astype(dtype) for i in range(2))
    return x, y


@pytest.mark.parametrize("fuse", [False, True], ids=["", "fused"])
def test_power_float32(fuse: bool) -> None:
    x, y = pairs(np.float32, 100_000)
    with np.errstate(all="ignore"):
        truth = np.power(x.astype(np.float64), y.astype(np.float64))
    e = expansion(Op.POW, dtypes.float32)
    report("pow f32", e, errors(evaluate(contracted(e) if fuse else e, x, y), truth, 0.0), x, y)


def test_power_float64() -> None:
    x, y = pairs(np.float64, 4_000)
    high, low = exact(Op.POW, x, y)
    e = expansion(Op.POW, dtypes.float64)
    report("pow f64", e, errors(evaluate(e, x, y), high, low), x, y)
    s = slice(None, None, 20)
    report("pow f64 fused", e, errors(evaluate(contracted(e), x[s], y[s]), high[s], low[s]), x[s], y[s])


INF, NAN = math.inf, math.nan
VALUES = [
    (Op.EXP, [(-INF, 0.0), (INF, INF), (0.0, 1.0), (-0.0, 1.0), (1e30, INF), (-1e30, 0.0)]),
    (
        Op.EXP2,
        [
            (-INF, 0.0),
            (INF, INF),
            (0.0, 1.0),
            (10, 1024),
            (-20, 2.0**-20),
            (126, 2.0**126),
            (-149, 2.0**-149),
        ],
    ),
    (Op.EXPM1, [(-INF, -1.0), (INF, INF), (0.0, 0.0), (-0.0, -0.0), (1e30, INF), (2.0**-140, 2.0**-140)]),
    (Op.LOG, [(0.0, -INF), (-0.0, -INF), (-1, NAN), (-INF, NAN), (INF, INF), (1, 0.0), (-1e-38, NAN)]),
    (Op.LOG2, [(0.0, -INF), (-0.0, -INF), (-1, NAN), (INF, INF), (1, 0.0), (8, 3), (2.0**-140, -140)]),
    (Op.SIN, [(-0.0, -0.0), (0.0, 0.0), (INF, NAN), (-INF, NAN), (2.0**-140, 2.0**-140)]),
    (Op.COS, [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (2.0**-140, 1.0)]),
    (Op.TANH, [(-0.0, -0.0), (0.0, 0.0), (INF, 1.0), (-INF, -1.0), (50, 1.0), (2.0**-140, 2.0**-140)]),
    (Op.ERF, [(-0.0, -0.0), (0.0, 0.0), (INF, 1.0), (-INF, -1.0), (7, 1.0)]),
]


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize(("op", "table"), VALUES, ids=lambda v: v.symbol if isinstance(v, Op) else "")
def test_values_are_exact(op: Op, table: list[tuple[float, float]], dtype: DType) -> None:
    x, want = np.array([*table, (NAN, NAN)], to_numpy(dtype)).T
    got = evaluate(expansion(op, dtype), x)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[:-1]), np.signbit(want[:-1]))


@pytest.mark.parametrize("op", [Op.SIN, Op.COS], ids=lambda op: op.symbol)
def test_without_64_bit_integers(op: Op) -> None:
    narrow = expansion(op, dtypes.float32, WITHOUT_UINT64)
    assert all(x.dtype.bits <= 32 for x in walk([narrow]))
    x = every_exponent(65_537)
    np.testing.assert_array_equal(evaluate(narrow, x), evaluate(expansion(op, dtypes.float32), x))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("op", [Op.TANH, Op.ERF, Op.SIN, Op.COS], ids=lambda op: op.symbol)
def test_never_beyond_one(op: Op, dtype: DType) -> None:
    x = np.linspace(-30, 30, 400_001).astype(to_numpy(dtype))
    assert np.max(np.abs(evaluate(expansion(op, dtype), x))) <= 1


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_sixteen_bits_go_through_float32(dtype: DType) -> None:
    x = np.arange(1 << 16).astype(np.uint16).view(to_numpy(dtype))
    wide = evaluate(expansion(Op.TANH, dtypes.float32), x.astype(np.float32)).astype(to_numpy(dtype))
    got = evaluate(expansion(Op.TANH, dtype), x)
    np.testing.assert_array_equal(got.astype(np.float32), wide.astype(np.float32))


COST = {
    Op.EXP: (18, 24), Op.EXP2: (17, 23), Op.EXPM1: (23, 28), Op.LOG: (30, 36), Op.LOG2: (28, 35), Op.SIN: (70, 121),
    Op.COS: (71, 122), Op.TANH: (20, 25), Op.ERF: (27, 42), Op.POW: (110, 121),
}  # fmt: skip


@pytest.mark.parametrize("op", EXPANSIONS, ids=lambda op: op.symbol)
def test_cost(op: Op) -> None:
    counts = tuple(instructions(expansion(op, d)) for d in (dtypes.float32, dtypes.float64))
    print(f"{op.symbol:5} {counts[0]} instructions in float32, {counts[1]} in float64")
    assert all(n <= most for n, most in zip(counts, COST[op], strict=True))


def test_expand_leaves_native_functions_alone() -> None:
    x, n = Load(dtypes.float32, "x", ()), Load(dtypes.int32, "n", ())
    e = call(Op.ADD, call(Op.EXP, call(Op.LOG, x)), cast(call(Op.POW, n, n), dtypes.float32))
    left = {c.op for c in walk([expand_expr(e, frozenset({Op.LOG}))]) if isinstance(c, ScalarCall)}
    assert Op.LOG in left and not left & {Op.POW, Op.EXP}


def test_expand_keeps_what_it_does_not_touch() -> None:
    x = Load(dtypes.float32, "x", ())
    e = call(Op.ADD, x, call(Op.SQRT, x))
    assert expand_expr(e, frozenset()) is e


def test_expand_rewrites_every_statement_of_a_program() -> None:
    i = Var("i", 0, 7)
    x = Load(dtypes.float32, "x", (i,))
    body = (Let("t", call(Op.EXP, x)), Store("y", i, call(Op.LOG, Temp(dtypes.float32, "t"))))
    params = tuple(Buffer(n, dtypes.float32, 8, Scope.GLOBAL) for n in "xy")
    program = Program("k", params, frozenset("y"), (), (Loop(i, 8, body),))
    ops = {
        e.op
        for s in every(expand(program, frozenset()).body)
        for e in walk(roots(s))
        if isinstance(e, ScalarCall)
    }
    assert not ops & set(EXPANSIONS)
    assert expand(program, frozenset(EXPANSIONS)) is program


def test_threefry() -> None:
    rng = np.random.default_rng(0)
    words = {n: rng.integers(0, 1 << 32, 1000, dtype=np.uint32) for n in ("counter", "key0", "key1")}
    loads = {n: Load(dtypes.uint32, n, ()) for n in words}
    expanded = expand_expr(ScalarCall(dtypes.uint32, Op.THREEFRY, tuple(loads.values())), frozenset())
    values: dict[Expr, Any] = {loads[n]: w for n, w in words.items()}
    for e in walk([expanded]):
        match e:
            case Const():
                values[e] = np.uint32(e.value)
            case ScalarCall():
                values[e] = apply(e.op, e.dtype, *(values[a] for a in e.args))
    assert all(e.op is not Op.THREEFRY for e in walk([expanded]) if isinstance(e, ScalarCall))
    np.testing.assert_array_equal(values[expanded], threefry(*words.values()))
