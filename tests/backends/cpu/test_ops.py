"""Every op on every dtype, as vectors, with a masked tail, and as scalars, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.extra import numpy as hnp

from weft.backends.cpu.compile import compile_programs
from weft.backends.cpu.device import describe
from weft.backends.cpu.machine import portable
from weft.backends.cpu.runtime import open_runtime
from weft.backends.cpu.targets import Target
from weft.backends.llvm.scalar import NATIVE
from weft.ir import dtypes
from weft.ir.dtypes import DType, Kind, to_numpy
from weft.ir.expr import Const, Load, ScalarCall, Temp
from weft.ir.index import Var, in_range
from weft.ir.loops import Block, Buffer, Loop, LoopKind, Program, Scope, Store
from weft.ir.loops_verify import call_error
from weft.ir.ops import COMPARE, TERNARY, Op

N = 21
LANES = 16
ALL = tuple(d for d in dtypes.DTYPES.values() if not d.is_float8)  # backends see bytes in their place


def program(name: str, op: Op, src: tuple[DType, ...], dst: DType, lanes: int) -> Program:
    params = [Buffer(f"x{k}", d, N, Scope.GLOBAL) for k, d in enumerate(src)]
    out = Buffer("out", dst, N, Scope.GLOBAL)
    i, v = Var("i", 0, (N - 1) // LANES), Var("v", 0, LANES - 1)
    at = i * LANES + v if lanes else Var("i", 0, N - 1)
    value = ScalarCall(dst, op, tuple(Load(p.dtype, p.name, (at,)) for p in params))
    if lanes:
        store = Store("out", at, value, in_range(at, None, N))
        body: Block = (Loop(i, -(-N // LANES), (Loop(v, LANES, (store,), LoopKind.VECTOR),)),)
    else:
        body = (Loop(Var("i", 0, N - 1), N, (Store("out", at, value),)),)
    return Program(name, (*params, out), frozenset({"out"}), (), body)


def cases() -> dict[str, tuple[Op, tuple[DType, ...], DType]]:
    """All that the verifier allows."""
    out: dict[str, tuple[Op, tuple[DType, ...], DType]] = {}

    def add(name: str, op: Op, src: tuple[DType, ...], dst: DType) -> None:
        if call_error(ScalarCall(dst, op, tuple(Temp(d, "x") for d in src))) is None:
            out[name] = (op, src, dst)

    for op in sorted(NATIVE - {Op.CAST, Op.BITCAST, Op.WHERE}, key=lambda o: o.name):
        for d in ALL:
            add(
                f"{op.symbol}_{d.name}", op, (d,) * (op.info.arity or 0), dtypes.bool_ if op in COMPARE else d
            )
    for d in ALL:
        add(f"where_{d.name}", Op.WHERE, (dtypes.bool_, d, d), d)
        for e in ALL:
            add(f"cast_{d.name}_{e.name}", Op.CAST, (d,), e)
            if e is not dtypes.bool_:  # a byte that is neither 0 nor 1 is no bool
                add(f"bitcast_{d.name}_{e.name}", Op.BITCAST, (d,), e)
    return out


CASES = cases()
assert {Op.THREEFRY} == TERNARY - NATIVE


def special(d: DType) -> list[Any]:
    """Values where things go wrong."""
    t = to_numpy(d)
    match d.kind:
        case Kind.BOOL:
            return [False, True]
        case Kind.INT | Kind.UINT:
            near = [0, 1, 2, 3, 5, 7, d.bits - 1, d.bits, d.bits + 1, int(d.max), int(d.max) - 1, int(d.min)]
            return near + ([-1, -2, -3, int(d.min) + 1] if d.kind is Kind.INT else [])
        case Kind.FLOAT:
            finite = [
                0.0,
                1.0,
                0.5,
                1.5,
                2.5,
                3.0,
                127.5,
                255.0,
                256.0,
                65504.0,
                65520.0,
                2.0**31,
                2.0**32,
                2.0**63,
            ]
            tiny = [float(np.ldexp(1.0, -24)), 1e-38, 1e-40, 1e-45, 6e-8, 1e30, 3e38]
            values = [*finite, *tiny, float("inf"), float("nan")]
            with np.errstate(all="ignore"):
                rounded = [float(np.float64(x).astype(t)) for x in values]
            return rounded + [-x for x in rounded]


def elements(d: DType) -> st.SearchStrategy[Any]:
    t = np.dtype(f"u{d.itemsize}")

    def bits_of(x: Any) -> int:
        with np.errstate(all="ignore"):
            return int(np.array([x]).astype(to_numpy(d)).view(t)[0])

    edges = st.sampled_from(sorted({bits_of(x) for x in special(d)}))
    return edges if d is dtypes.bool_ else st.one_of(edges, st.integers(0, (1 << d.bits) - 1))


def arrays(d: DType) -> st.SearchStrategy[Any]:
    words = hnp.arrays(np.dtype(f"u{d.itemsize}"), N, elements=elements(d))
    return words.map(lambda a: a.view(to_numpy(d)))


def with_constant(name: str, op: Op, d: DType, value: Any, first: bool) -> Program:
    x, out = (
        Buffer("x0", d, N, Scope.GLOBAL),
        Buffer("out", dtypes.bool_ if op in COMPARE else d, N, Scope.GLOBAL),
    )
    i, v = Var("i", 0, 0), Var("v", 0, N - 1)
    args = (Const(d, value), Load(d, "x0", (v,)))
    store = Store("out", v, ScalarCall(out.dtype, op, args if first else args[::-1]))
    loop = Loop(i, 1, (Loop(v, N, (store,), LoopKind.VECTOR),))
    return Program(name, (x, out), frozenset({"out"}), (), (loop,))


CONSTANT = {
    f"{op.symbol}_{d.name}_{k}_{first}": (op, d, value, first)
    for op in (Op.MAX, Op.MIN, Op.LT, Op.FLOORDIV, Op.MOD, Op.SHL, Op.SHR)
    for d in (
        dtypes.float32,
        dtypes.float64,
        dtypes.int8,
        dtypes.int32,
        dtypes.uint32,
        dtypes.int64,
        dtypes.uint64,
    )
    for k, value in enumerate(special(d))
    for first in (True, False)
    if call_error(ScalarCall(dtypes.bool_ if op in COMPARE else d, op, (Temp(d, "x"), Temp(d, "x")))) is None
}


def test_constant_operands(compile_all: Callable[..., Any]) -> None:
    compiled = compile_all([with_constant(name, *case) for name, case in CONSTANT.items()])
    for name, (op, d, _, _) in CONSTANT.items():
        with np.errstate(all="ignore"):
            x = np.resize(np.array(special(d)).astype(to_numpy(d)), N)
        compiled.check(name, {"x0": x, "out": np.zeros(N, bool if op in COMPARE else x.dtype)})


@pytest.fixture(scope="module")
def compiled(compile_all: Callable[..., Any]) -> Any:
    return compile_all([program(f"{n}_{w}", *c, w) for n, c in CASES.items() for w in (0, LANES)])


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_op(compiled: Any, name: str, data: st.DataObject) -> None:
    _, src, dst = CASES[name]
    values = {f"x{k}": data.draw(arrays(d)) for k, d in enumerate(src)}
    values["out"] = np.zeros(N, to_numpy(dst))
    for lanes in (0, LANES):
        compiled.check(f"{name}_{lanes}", values)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if len(c[1]) == 2])
def test_all_pairs_of_special_values(compiled: Any, name: str) -> None:
    _, src, dst = CASES[name]
    with np.errstate(all="ignore"):
        x = np.array(special(src[0])).astype(to_numpy(src[0]))
    a, b = (np.ravel(m) for m in np.meshgrid(x, x))
    a, b = (np.resize(m, -(-len(m) // N) * N) for m in (a, b))
    for k in range(0, len(a), N):
        out = np.zeros(N, to_numpy(dst))
        for lanes in (0, LANES):
            compiled.check(f"{name}_{lanes}", {"x0": a[k : k + N], "x1": b[k : k + N], "out": out})


@pytest.mark.parametrize("dst", [d for d in ALL if d.is_int], ids=lambda d: d.name)
@pytest.mark.parametrize("src", [dtypes.float16, dtypes.float32, dtypes.float64], ids=lambda d: d.name)
def test_floats_at_the_edges_of_integers(compiled: Any, src: DType, dst: DType) -> None:
    t = to_numpy(src)
    with np.errstate(all="ignore"):
        edges = [int(dst.min) - 1, int(dst.min), int(dst.min) + 1, int(dst.max), int(dst.max) + 1]
        near = np.array([*map(float, edges), *special(src)]).astype(t)
        x = np.concatenate([near, np.nextafter(near, t.type(np.inf)), np.nextafter(near, t.type(-np.inf))])
        x = np.concatenate([x, x + t.type(0.5), x - t.type(0.5)])
    x = np.resize(x, -(-len(x) // N) * N)
    for k in range(0, len(x), N):
        for lanes in (0, LANES):
            name = f"cast_{src.name}_{dst.name}_{lanes}"
            compiled.check(name, {"x0": x[k : k + N], "out": np.zeros(N, to_numpy(dst))})


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
def test_float_remainders_are_exact(compiled: Any, dtype: DType) -> None:
    rng, t = np.random.default_rng(0), to_numpy(dtype)
    for scale in (1, 1e-3, 1e3, 1e6, 1e9, 1e30):
        y = (rng.standard_normal(N) * rng.choice([1, 0.1, 1e-5], N)).astype(t)
        near = y * rng.integers(-5, 5, N)  # multiples, and their neighbours
        for x in ((rng.standard_normal(N) * scale).astype(t), near, np.nextafter(near, t.type(9))):
            for lanes in (0, LANES):
                compiled.check(
                    f"mod_{dtype.name}_{lanes}", {"x0": x.astype(t), "x1": y, "out": np.zeros(N, t)}
                )


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3"])
def test_older_processors(compile_all: Callable[..., Any], level: str) -> None:
    machine = open_runtime().machine
    if not machine.target.triple.startswith("x86_64"):
        pytest.skip("not an x86-64")
    names = [n for k, n in enumerate(CASES) if k % 5 == 0 or "float16" in n]
    programs = [program(f"{n}_{w}", *CASES[n], w) for n in names for w in (0, LANES)]
    compiled = compile_all(programs, portable(machine, level).target)
    rng = np.random.default_rng(0)
    for n in names:
        _, src, dst = CASES[n]
        with np.errstate(all="ignore"):
            values = {f"x{k}": rng.choice(special(d), N).astype(to_numpy(d)) for k, d in enumerate(src)}
        for lanes in (0, LANES):
            compiled.check(f"{n}_{lanes}", {**values, "out": np.zeros(N, to_numpy(dst))})


def test_the_device_names_the_ops_that_the_renderer_knows() -> None:
    assert describe(open_runtime().machine).native == NATIVE


def test_aarch64_code_is_generated() -> None:
    programs = [program(f"{n}_{w}", *CASES[n], w) for n in list(CASES)[::9] for w in (0, LANES)]
    assert compile_programs(programs, Target("aarch64-unknown-linux-gnu", "generic", "+neon"))


def test_lanes_that_are_all_outside_load_nothing() -> None:
    """A vector that lies in padding alone: every lane's guard is known to fail."""
    import weft
    from weft.core.execute import run
    from weft.ir import graph
    from weft.ir.graph import Padding
    from weft.ir.ops import Op

    x = weft.tensor([[4, 3, 2]], device="cpu").value.node
    padded = graph.apply(Op.PAD, (x,), Padding((2, 5), (0, 0), (0, 1)))
    run.realize([padded])
    assert run.to_numpy(padded).tolist() == [[0] * 10, [0] * 10, [0, 0, 0, 0, 0, 4, 0, 3, 0, 2]]
