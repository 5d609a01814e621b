"""Staged rows, stores past the caches and prefetched rows: machine code of their schedules computes what NumPy does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from weft.backends.llvm.scalar import NATIVE
from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir.index import high
from weft.ir.kernel.algorithm import Algorithm, ItemValue, Output, Param, Reduce, StoreTo
from weft.ir.loops import Loop, LoopKind, Prefetch, Store
from weft.ir.loops_names import every
from weft.ir.ops import Op
from weft.scheduler.lowering import lowered
from weft.scheduler.optimize.rules import schedule
from weft.testing.kernels import Case, F, axis, columns, mul, softmax, total


def activated(n: int, k: int, inner: bool) -> Case:
    """y(j) = sum l: tanh(h[l]) * w, with w[j, l] (`inner`) or w[l, j]."""
    j, l, j2 = axis("j", n), axis("l", k), axis("j2", n)
    at = (j.var, l.var) if inner else (l.var, j.var)
    e = mul(ex.call(Op.TANH, ex.Load(F, "h", (l.var,))), ex.Load(F, "w", at))
    s = ItemValue("s", (j,), e, Reduce(Op.ADD, (l,)))
    out = Output("out", (j2,), (StoreTo("r", (j2.var,), ex.Load(F, "s", (j2.var,))),))
    params = (Param("h", F, (k,)), Param("w", F, (n, k) if inner else (k, n)), Param("r", F, (n,), True))

    def reference(t: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        h, w = np.tanh(t["h"].astype(np.float64)), t["w"] if inner else t["w"].T
        return {"r": w.astype(np.float64) @ h}

    return Case(Algorithm("activated", params, (), (s, out)), reference)


def region(shape: tuple[int, ...], inside: tuple[int, ...], over: tuple[int, ...]) -> Case:
    """Sums over the axes `over` of the first `inside` elements of each axis, so that no two axes are one."""
    axes = [axis(f"a{n}", size) for n, size in enumerate(inside)]
    kept = tuple(a for n, a in enumerate(axes) if n not in over)
    read = ex.Load(F, "x", tuple(a.var for a in axes))
    s = ItemValue("s", kept, read, Reduce(Op.ADD, tuple(axes[n] for n in over)))
    outer = tuple(axis(f"{a.var.name}_out", high(a.extent)) for a in kept)
    at = tuple(a.var for a in outer)
    out = Output("out", outer, (StoreTo("r", at, ex.Load(F, "s", at)),))
    params = (Param("x", F, shape), Param("r", F, tuple(a.extent for a in kept), True))
    cut = tuple(slice(0, n) for n in inside)
    return Case(
        Algorithm("region", params, (), (s, out)),
        lambda t: {"r": np.asarray(t["x"][cut].sum(over, dtype=np.float64))},
    )


REGIONS: dict[str, Case] = {
    f"region{'x'.join(map(str, inside))}_over{''.join(map(str, over))}": region(shape, inside, over)
    for shape, inside, over in [
        ((40, 8, 30, 90), (40, 8, 29, 65), (0, 2, 3)),
        ((9, 20, 30, 9), (9, 20, 29, 7), (1, 2)),
        ((300, 70), (300, 66), (0, 1)),
        ((20000, 4), (20000, 3), (0, 1)),
        ((20000, 4), (20000, 3), (0,)),
        ((5, 40, 7, 50), (5, 39, 7, 50), (0, 1, 2, 3)),
        ((3, 150, 40, 40), (3, 150, 39, 38), (1, 3)),
        ((64, 3, 33), (64, 3, 31), (0, 2)),
        ((3, 40000), (3, 39999), (1,)),
    ]
}
"""Sums over several axes, and long ones."""

SIZES = [(1, 1), (3, 5), (2, 40), (5, 64), (9, 100), (4, 1000), (3, 4096), (2, 9000), (70, 33)]
CASES: dict[str, Case] = {
    **REGIONS,
    **{f"softmax_{m}x{n}": softmax(m, n) for m, n in SIZES},
    **{f"columns_{m}x{n}": columns(m, n) for m, n in SIZES[:6]},
    **{
        f"total{over}_{m}x{n}": total(m, n, over)
        for over in ("i", "j", "ij")
        for m, n in [*SIZES[::2], (200, 7), (300, 100), (97, 513)]
    },
    **{f"activated{i:d}_{n}x{k}": activated(n, k, i) for i in (False, True) for n, k in [(9, 40), (70, 300)]},
}


def device(vector_bytes: int, tiny: bool, slow: bool = False, l2_bytes: int = 1 << 20) -> DeviceInfo:
    """With a `tiny` last cache every output is larger; on a `slow` device all work is worth spreading."""
    cores, bandwidth = (3, 1e5) if slow else (2, 4e10)
    return DeviceInfo(
        name="test:0", kind="test", description="", cores=cores, vector_bytes=vector_bytes, vector_registers=32,
        l1_bytes=32 << 10, l2_bytes=l2_bytes, l3_bytes=1 if tiny else 32 << 20, memory_bytes=1 << 34,
        local_bytes=1 << 20, bandwidth=bandwidth, flops=2e11, launch_ns=20.0, native=NATIVE,
    )  # fmt: skip


DEVICES = {
    "large": device(64, False),
    "tiny": device(64, True),
    "narrow": device(16, True),
    "slow": device(32, True, True, 4 << 10),  # whose second-level cache holds few parameters
}


@pytest.fixture(scope="module")
def programs() -> dict[str, Any]:
    out: dict[str, Any] = {}
    for d, info in DEVICES.items():
        for name, case in CASES.items():
            key = f"{name}_{d}"
            out[key] = replace(lowered(case.algorithm, info), name=key)
    return out


def test_machine_code_computes_what_numpy_does(
    compile_all: Callable[..., Any], programs: dict[str, Any]
) -> None:
    compiled = compile_all(list(programs.values()))
    for key in programs:
        name = key.rsplit("_", 1)[0]
        case = CASES[name]
        inputs = case.inputs(3)
        expected = case.reference(inputs)
        arrays = {n: a.reshape(-1) for n, a in inputs.items()}
        for p in case.algorithm.params:
            if p.written:
                arrays[p.name] = np.full(expected[p.name].size, np.nan, np.float32)
        got = compiled.run(key, arrays)
        for n, value in expected.items():
            np.testing.assert_allclose(got[n], value.reshape(-1), rtol=2e-5, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", ["softmax_5x64", "softmax_4x1000"])
def test_rows_with_special_values(
    name: str, compile_all: Callable[..., Any], programs: dict[str, Any]
) -> None:
    """A row of -inf, or with NaN or +inf in it, is NaN; -inf beside numbers is 0."""
    case = CASES[name]
    compiled = compile_all([programs[f"{name}_tiny"]])
    x = case.inputs(4)["x"]
    x[0] = -np.inf
    x[1, 3] = np.nan
    x[2, ::2] = -np.inf
    x[3, 1] = np.inf
    with np.errstate(all="ignore"):
        expected = case.reference({"x": x})["r"]
    got = compiled.run(f"{name}_tiny", {"x": x.reshape(-1), "r": np.full(x.size, 7, np.float32)})[
        "r"
    ].reshape(x.shape)
    assert np.isnan(got[0]).all() and np.isnan(got[1]).all() and (got[2, ::2] == 0).all()
    np.testing.assert_allclose(got, expected, rtol=2e-5)


def test_what_the_rules_do_depends_on_the_caches() -> None:
    big, case = softmax(4096, 4096).algorithm, DEVICES["large"]
    plain = schedule(big, case)
    assert plain.nests["staged"].prefetch and plain.nests["out"].stream
    statements = list(every(lowered(big, case).body))
    assert any(isinstance(s, Prefetch) for s in statements)
    assert any(isinstance(s, Store) and s.stream for s in statements)
    small = schedule(softmax(64, 64).algorithm, case)
    assert "staged" in small.nests and not small.nests["staged"].prefetch and not small.nests["out"].stream
    long = schedule(softmax(16, 1 << 20).algorithm, case)
    assert "staged" not in long.nests, "a row that no cache holds is computed twice"


@pytest.mark.parametrize(("over", "count"), [("ij", 16), ("j", 16), ("i", 8)])
def test_tasks_are_more_than_cores(over: str, count: int) -> None:
    body = lowered(total(4096, 4096, over).algorithm, DEVICES["large"]).body
    assert [s.extent for s in every(body) if isinstance(s, Loop) and s.kind is LoopKind.PARALLEL] == [count]


def test_long_sums_are_accurate(compile_all: Callable[..., Any], programs: dict[str, Any]) -> None:
    """Of equal numbers, whose errors all go one way: 20,000 of them one after the other would be off by 1e-4."""
    some = {key: p for key, p in programs.items() if key.rsplit("_", 1)[0] in REGIONS}
    compiled = compile_all(list(some.values()))
    for key in some:
        case = REGIONS[key.rsplit("_", 1)[0]]
        inputs = {"x": np.full_like(case.inputs(0)["x"], 0.1)}
        expected = case.reference(inputs)["r"].reshape(-1)
        got = compiled.run(key, {"x": inputs["x"].reshape(-1), "r": np.empty(expected.size, np.float32)})["r"]
        np.testing.assert_allclose(got, expected, rtol=2e-6, err_msg=key)


def asked_ahead(case: Case, info: DeviceInfo) -> list[Prefetch]:
    return [s for s in every(lowered(case.algorithm, info).body) if isinstance(s, Prefetch)]


def test_large_parameters_are_asked_for_ahead_in_each_stream() -> None:
    large = DEVICES["large"]
    streams = softmax(16, 1 << 20)
    assert {a.buffer for a in asked_ahead(streams, large)} == {"x"}
    k = schedule(streams.algorithm, large)
    asked = [
        spec for n in ("top_block_lanes", "total_block_lanes") if (spec := k.nests[n].prefetch) is not None
    ]
    assert [spec.steps for spec in asked] == [2048 // 256] * 2
    assert not asked_ahead(total(4096, 4096, "i"), large), "rows are read side by side"
    assert not asked_ahead(total(256, 256, "ij"), large), "a cache holds it"
    assert not asked_ahead(total(1 << 16, 64, "i"), large), "short runs"
    near = total(256, 256, "ij").algorithm
    far = replace(near, params=tuple(replace(p, far=not p.written) for p in near.params))
    assert asked_ahead(Case(far, total(256, 256, "ij").reference), large), (
        "its plan reads too much for caches"
    )


@pytest.mark.parametrize("over", ["ij", "j"])
def test_rows_are_read_in_several_places_at_once_and_not_asked_for(over: str) -> None:
    large, case = DEVICES["large"], total(4096, 4096, over)
    (lanes,) = [n for name, n in schedule(case.algorithm, large).nests.items() if name.endswith("_lanes")]
    assert [(s.extent, s.kind) for s in lanes.loops[1:]] == [(4, LoopKind.UNROLL), (32, LoopKind.VECTOR)]
    assert not asked_ahead(case, large)


@pytest.mark.parametrize("inner", [False, True])
def test_what_all_results_need_alike_is_computed_once(inner: bool) -> None:
    k = schedule(activated(768, 3072, inner).algorithm, DEVICES["large"])
    assert k.nests["once"].at is None and k.nests["once"].size == (3072,)


@pytest.mark.parametrize("over", ["i", "ij"])
def test_large_sums_run_on_all_cores(over: str) -> None:
    body = lowered(total(4096, 4096, over).algorithm, DEVICES["large"]).body
    tasks = [s for s in every(body) if isinstance(s, Loop) and s.kind is LoopKind.PARALLEL]
    assert len(tasks) == 1 and any(isinstance(s, Loop) for s in tasks[0].body)
