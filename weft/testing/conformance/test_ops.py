"""Every elementwise op on every dtype, as scalars and as vectors, where things go wrong; refusals of the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from weft.backends.protocol import Device, DeviceInfo
from weft.errors import DeviceError, DTypeError
from weft.ir import dtypes
from weft.ir.dtypes import DTYPES, DType, Kind, to_numpy
from weft.ir.expr import Load, ScalarCall, Temp
from weft.ir.index import Var, in_range
from weft.ir.loops import Block, Buffer, Loop, LoopKind, Program, Scope, Store
from weft.ir.loops_verify import call_error
from weft.ir.ops import COMPARE, ELEMENTWISE, EXPANDED, TERNARY, TRANSCENDENTAL, Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.lowering import optimized
from weft.testing.conformance.harness import ULP, Array, Harness

LANES = 8
PAIRS = 1200
"""Elements of each operand: all pairs of special values, and random bits."""

SIGNED = ELEMENTWISE - {Op.MAX, Op.MIN}
"""Ops whose zeros have the sign that IEEE 754 says: all but those that may give either of two zeros."""


@dataclass(frozen=True, slots=True)
class Case:
    """An op on operands of these dtypes."""

    op: Op
    source: tuple[DType, ...]
    target: DType


def cases() -> Iterator[Case]:
    """All that the verifier of loops allows."""
    every = tuple(DTYPES.values())
    for op in sorted(ELEMENTWISE - {Op.CAST, Op.BITCAST, Op.WHERE, Op.FMA}, key=lambda o: o.name):
        for d in every:
            yield Case(op, (d,) * (op.info.arity or 0), dtypes.bool_ if op in COMPARE else d)
    for d in every:
        yield Case(Op.WHERE, (dtypes.bool_, d, d), d)
        for e in every:
            yield Case(Op.CAST, (d,), e)
            if e is not dtypes.bool_:  # a byte that is neither 0 nor 1 is no bool
                yield Case(Op.BITCAST, (d,), e)


def legal(c: Case) -> bool:
    """True where loops may have it."""
    return (
        call_error(ScalarCall(c.target, c.op, tuple(Temp(d, f"t{k}") for k, d in enumerate(c.source))))
        is None
    )


CASES = tuple(c for c in cases() if legal(c))
BY_SOURCE: dict[str, list[Case]] = {}
for _case in CASES:
    BY_SOURCE.setdefault(",".join(d.name for d in _case.source), []).append(_case)


def program(group: Sequence[Case], lanes: int, wide: DType | None = None) -> Program:
    """One program for cases with the same operands: one output each, of dtype `wide` if that is given."""
    source = group[0].source
    params = [Buffer(f"x{k}", d, PAIRS, Scope.GLOBAL) for k, d in enumerate(source)]
    outs = [Buffer(f"y{k}", wide or c.target, PAIRS, Scope.GLOBAL) for k, c in enumerate(group)]
    count = -(-PAIRS // LANES)
    i, v = Var("i", 0, count - 1 if lanes else PAIRS - 1), Var("v", 0, LANES - 1)
    at = i * LANES + v if lanes else i
    guard = in_range(at, None, PAIRS) if lanes else ()
    args = tuple(Load(b.dtype, b.name, (at,), guard) for b in params)
    stores: Block = tuple(
        Store(b.name, at, widened(ScalarCall(c.target, c.op, args), wide), guard)
        for b, c in zip(outs, group, strict=True)
    )
    if lanes:
        stores = (Loop(v, LANES, stores, LoopKind.VECTOR),)
    body: Block = (Loop(i, count if lanes else PAIRS, stores),)
    name = f"{'_'.join(d.short for d in source)}_{'vector' if lanes else 'scalar'}"
    return Program(name, (*params, *outs), frozenset(b.name for b in outs), (), body)


def widened(x: ScalarCall, wide: DType | None) -> ScalarCall:
    """The result, converted where that is asked for."""
    return x if wide is None else ScalarCall(wide, Op.CAST, (x,))


def special(d: DType) -> Array:
    """Values where things go wrong."""
    if d.kind is Kind.BOOL:
        return np.array([False, True])
    if d.is_int:
        near = [0, 1, 2, 3, 5, 7, d.bits - 1, d.bits, d.bits + 1, int(d.max), int(d.max) - 1, int(d.min)]
        near += [-1, -2, -3, int(d.min) + 1] if d.kind is Kind.INT else []
        return np.array(near, to_numpy(d))
    finite = [0.0, 1.0, 0.5, 1.5, 2.5, 3.0, 127.5, 256.0, 65504.0, 2.0**31, 2.0**32, 2.0**63, 1e-3, 1e30]
    positive = np.array([*finite, np.inf, np.nan])
    with np.errstate(all="ignore"):
        return np.concatenate([positive, -positive]).astype(to_numpy(d))


def between(d: DType) -> Array:
    """Values in the middle between two of a narrower dtype, and just beside: what a cast rounds, once and to even."""
    if d.kind is Kind.BOOL:
        return np.zeros(0, bool)
    if d.is_int:
        wide = [(1 << b) + (1 << low) * odd + off for b in (24, 31, 52, 60, 62) for low in range(b - 24, b - 22)
                for odd in (0, 1, 3) for off in (-1, 0, 1) if low >= 0]  # fmt: skip
        wide += [(1 << b) + off for b in (53, 54) for off in range(-2, 4)]
        return np.array([v for v in wide if v <= int(d.max)], to_numpy(d))
    near = [
        m * (1 + k * 2.0**-b + e)
        for b in (4, 8, 9, 11, 12, 24)
        for k in (1, 3)
        for e in (0, 2.0**-40, -(2.0**-40))
        for m in (1, -2)
    ]
    return np.array(near).astype(to_numpy(d))


def operands(source: Sequence[DType]) -> list[Array]:
    """All pairs of special values of the last two operands, then random bits; conditions are random."""
    rng = np.random.default_rng(len(source))
    out: list[Array] = []
    for k, d in enumerate(source):
        values = special(d)
        index = np.arange(PAIRS)
        paired = values[index % values.size if k % 2 else index // values.size % values.size]
        if d.kind is Kind.BOOL:
            out.append(rng.integers(0, 2, PAIRS).astype(bool) if len(source) == 3 else paired)
            continue
        if d.is_float:
            rest = (rng.standard_normal(PAIRS) * 2.0 ** rng.integers(-6, 7, PAIRS)).astype(to_numpy(d))
        else:
            rest = rng.integers(0, 256, PAIRS * d.itemsize, np.uint8).view(to_numpy(d))
        values = np.where(index < values.size**2, paired, rest).astype(to_numpy(d))
        if len(source) == 1:
            ties = between(d)
            values[PAIRS - ties.size :] = ties
        out.append(values)
    return out


def supported(info: DeviceInfo, c: Case) -> bool:
    """True where a device has to compute it."""
    return {*c.source, c.target} <= info.dtypes and c.op in info.native | EXPANDED


@pytest.mark.parametrize("source", BY_SOURCE)
def test_ops(harness: Harness, source: str) -> None:
    """The value of every op, within 4 ULP for functions and to the bit else."""
    info = harness.device.info
    group = [c for c in BY_SOURCE[source] if supported(info, c)]
    if not group:
        return  # test_the_rest_is_refused has them
    xs = operands(group[0].source)
    arrays = {f"x{k}": x for k, x in enumerate(xs)}
    room = min(8, info.bounds.parameters) - len(xs)
    parts = [group[k : k + room] for k in range(0, len(group), room)]
    runs = harness.compile([program(part, lanes) for part in parts for lanes in (0, LANES)])
    for run, part in zip(runs, [part for part in parts for _ in range(2)], strict=True):
        outs = {f"y{k}": np.zeros(PAIRS, to_numpy(c.target)) for k, c in enumerate(part)}
        got = run.run({**arrays, **outs})
        for k, c in enumerate(part):
            check(run.program.name, c, got[f"y{k}"], xs)


WRAP = (Op.ADD, Op.SUB, Op.MUL, Op.SHL, Op.DIV)


@pytest.mark.parametrize("kind", (Kind.INT, Kind.UINT, Kind.FLOAT))
def test_results_fit_their_dtype_before_they_are_stored(harness: Harness, kind: Kind) -> None:
    """The results of narrow numbers are narrow when the next op reads them, in whatever they were computed."""
    info = harness.device.info
    wide = (
        dtypes.float32
        if kind is Kind.FLOAT
        else dtypes.int64
        if dtypes.int64 in info.dtypes
        else dtypes.int32
    )
    narrow = [d for d in DTYPES.values() if d.kind is kind and d.itemsize < wide.itemsize and d.itemsize < 8]
    groups = [[c for op in WRAP if legal(c := Case(op, (d, d), d)) and supported(info, c)] for d in narrow]
    groups = [g for g in groups if g]
    runs = harness.compile([program(g, lanes, wide) for g in groups for lanes in (0, LANES)])
    for run, group in zip(runs, [g for g in groups for _ in range(2)], strict=True):
        xs = operands(group[0].source)
        arrays = {f"x{k}": x for k, x in enumerate(xs)}
        got = run.run(arrays | {f"y{k}": np.zeros(PAIRS, to_numpy(wide)) for k in range(len(group))})
        for k, c in enumerate(group):
            check(f"{run.program.name}, converted", c, got[f"y{k}"].astype(to_numpy(c.target)), xs)
            whole = got[f"y{k}"] == got[f"y{k}"].astype(to_numpy(c.target))
            assert np.all(whole | np.isnan(got[f"y{k}"])), (
                f"{run.program.name}: {c.op.symbol} is more than {c.target.name}"
            )


def check(name: str, c: Case, got: Array, xs: Sequence[Array]) -> None:
    """Compare one op's results with the definition of the op."""
    from weft.ir.reference_ops import apply
    from weft.testing.conformance.harness import difference

    with np.errstate(all="ignore"):
        want = np.asarray(apply(c.op, c.target, *xs))
    ulp = ULP if c.op in TRANSCENDENTAL and c.target.is_float else 0
    wrong = difference(got, want, ulp)
    if wrong is None and c.op in SIGNED and c.target.is_float:
        wrong = difference(np.signbit(got) & (want == 0), np.signbit(want) & (want == 0))
    if wrong is not None:
        k = int(wrong[1 : wrong.index("]")])
        args = ", ".join(repr(x[k]) for x in xs)
        pytest.fail(f"{name}: {c.op.symbol}({args}) -> {c.target.name}: element {wrong}", pytrace=False)


def test_the_rest_is_refused(device: Device) -> None:
    """Cases that the description leaves out are errors with the device's name, before anything is compiled."""
    for c in CASES:
        if supported(device.info, c):
            continue
        error = DTypeError if not {*c.source, c.target} <= device.info.dtypes else DeviceError
        with pytest.raises(error, match=f"{device.info.name} has no "):
            optimized(program([c], 0), device.info)


def test_fused_multiply_add(harness: Harness) -> None:
    """fma(a, b, c) is rounded once, where the device says that it has it."""
    for d in (dtypes.float32, dtypes.float64):
        c = Case(Op.FMA, (d, d, d), d)
        if Op.FMA in harness.device.info.native and d in harness.device.info.dtypes:
            rng = np.random.default_rng(0)
            xs = [rng.standard_normal(PAIRS).astype(to_numpy(d)) for _ in range(2)]
            xs.append(-(xs[0] * xs[1]))  # what is left is the rounding of the product
            arrays = {f"x{k}": x for k, x in enumerate(xs)} | {"y0": np.zeros(PAIRS, to_numpy(d))}
            for run in harness.compile([program([c], lanes) for lanes in (0, LANES)]):
                check(run.program.name, c, run.run(arrays)["y0"], xs)


assert set(TERNARY) == {Op.WHERE, Op.THREEFRY, Op.FMA}
