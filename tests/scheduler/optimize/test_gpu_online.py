"""Attention in one pass on thread blocks: loops that compute the same, with and without matrix units."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends.dummy.interpreter import interpret
from weft.backends.protocol import DeviceInfo
from weft.ir import dtypes
from weft.ir.calls import expand_calls
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import Kernel, initial
from weft.ir.kernel.transforms.extend import Extend
from weft.ir.loops import Loop, LoopKind, Program
from weft.ir.loops_names import every
from weft.ir.matrix import LayoutFactor, MatrixUnit, Role
from weft.ir.ops import ELEMENTWISE
from weft.ir.passes.grid import launches
from weft.scheduler.kernelize.kernels import kernelize
from weft.scheduler.lowering import optimized
from weft.scheduler.optimize import gpu_online, online
from weft.scheduler.optimize.rules import schedule
from weft.testing.kernels import Case, attention

E, L = LayoutFactor(Role.ELEMENT, 2), LayoutFactor(Role.LANE, 2)
SMALL = MatrixUnit(4, 4, 4, dtypes.float16, dtypes.float32, (E, L), (L, E))
INFO = DeviceInfo(
    name="gpu:0", kind="gpu", description="", cores=2, vector_bytes=16, vector_registers=255, l1_bytes=1 << 17,
    l2_bytes=1 << 22, l3_bytes=0, memory_bytes=1 << 34, local_bytes=1 << 16, bandwidth=1e12, flops=1e13,
    launch_ns=2500.0, task_kind=LoopKind.BLOCK, native=ELEMENTWISE, warp=32,
)  # fmt: skip


def run(p: Program, arrays: dict[str, Any]) -> None:
    """Fills the arrays that the program writes."""
    interpret(p, {b.name: arrays[b.name].reshape(-1) for b in p.params}, {})


def check(case: Case, info: DeviceInfo = INFO) -> Program:
    inputs = case.inputs(0)
    expected = case.reference(inputs)
    arrays = {**inputs, **{n: np.full(v.shape, np.nan, np.float32) for n, v in expected.items()}}
    p = optimized(lower(schedule(case.algorithm, info)), info)
    run(p, arrays)
    for n, want in expected.items():
        np.testing.assert_allclose(arrays[n], want, rtol=1e-5, atol=1e-6)
    return p


def steps(p: Program) -> list[Loop]:
    """Loops of one block's threads that run in order, outermost."""
    return [s for s in every(p.body) if isinstance(s, Loop) and s.var.name.startswith("j1o")]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows and columns make several steps."""
    for name, value in (
        ("ROWS", (8, 4)),
        ("COLUMNS", (8, 4)),
        ("LANES", 4),
        ("OWN_RESULTS", 2),
        ("UNROLLED_TERMS", 4),
    ):
        monkeypatch.setattr(gpu_online, name, value)


@pytest.mark.parametrize("t, causal", [(5, False), (16, False), (18, True)])
def test_threads_with_tiles_of_their_own(t: int, causal: bool) -> None:
    p = check(attention(1, t, 4, causal))
    assert len(launches(p, INFO.local_bytes).grids) == 1
    assert any(not isinstance(s.extent, int) for s in steps(p)) is causal


def test_steps_that_a_mask_leaves_are_whole() -> None:
    """Fewer rows than columns: the last step's guard always holds where the loop ends before it."""
    r = np.random.default_rng(0)
    q, k, v = (r.standard_normal((1, n, 4)).astype(np.float32) for n in (6, 21, 21))
    y = weft.nn.functional.scaled_dot_product_attention(
        weft.tensor(q), weft.tensor(k), weft.tensor(v), is_causal=True
    )
    (spec,) = kernelize([y.value.node])
    p = optimized(lower(schedule(spec.algorithm, INFO)), INFO)
    arrays = dict(zip((b.name for b in p.params), (q, k, v, np.zeros((1, 6, 4), np.float32)), strict=True))
    run(p, arrays)
    np.testing.assert_allclose(arrays[p.params[-1].name], y.numpy(), rtol=1e-5, atol=1e-6)


def test_small_local_memory_gets_small_tiles() -> None:
    small = replace(INFO, local_bytes=1800)
    p = lower(schedule(attention(1, 32, 4, False).algorithm, small))
    grids = launches(p, small.local_bytes)
    assert len(grids.grids) == 1 and not grids.scratch


@pytest.mark.parametrize("tall, long, causal", [(8, 16, False), (11, 16, True), (4, 13, False)])
def test_matrix_units_for_both_products(
    tall: int, long: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that are no whole steps, too: their weights are 0."""
    monkeypatch.setattr(gpu_online, "COLUMNS", (8,))
    r = np.random.default_rng(0)
    q, k, v = (r.standard_normal((2, n, 8)).astype(np.float16) for n in (tall, long, long))
    y = weft.nn.functional.scaled_dot_product_attention(
        weft.tensor(q), weft.tensor(k), weft.tensor(v), is_causal=causal
    )
    (spec,) = kernelize([y.value.node])
    info = replace(INFO, matrix_units=(SMALL,))
    p = optimized(lower(schedule(spec.algorithm, info)), info)
    assert sum(isinstance(s, Loop) and s.kind is LoopKind.MATRIX for s in every(p.body)) == 2
    arrays = dict(zip((b.name for b in p.params), (q, k, v, np.zeros((2, tall, 8), np.float16)), strict=True))
    run(p, arrays)
    a, b, c = (x.astype(float) for x in (q, k, v))
    s = a @ b.swapaxes(-1, -2) / np.sqrt(8)
    w = np.exp(np.where(np.tri(tall, long, dtype=bool), s, -np.inf) if causal else s)
    np.testing.assert_allclose(arrays[p.params[-1].name], w / w.sum(-1, keepdims=True) @ c, atol=4e-3)


@pytest.mark.parametrize("units", [False, True])
@pytest.mark.parametrize("tall, long, causal", [(8, 16, False), (11, 21, True), (4, 8, False)])
def test_statistics_of_rows_are_stored_beside(
    tall: int, long: int, causal: bool, units: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The maximum and the logarithm of the sum, by the kernel of both products."""
    if units:
        monkeypatch.setattr(gpu_online, "COLUMNS", (8,))
    r = np.random.default_rng(0)
    dtype = np.float16 if units else np.float32
    q, k, v = (r.standard_normal((2, n, 8)).astype(dtype) for n in (tall, long, long))
    s = weft.tensor(q).float() @ weft.tensor(k).float().mT
    if causal:
        s = weft.where(weft.arange(long) <= weft.arange(tall).reshape(-1, 1), s, -np.inf)
    top = s.amax(-1, keepdim=True)
    e = (s - top).exp()
    total = e.sum(-1, keepdim=True)
    o, statistics = (e / total).to(weft.tensor(v).dtype) @ weft.tensor(v), top + total.log()
    (spec,) = kernelize([o.value.node, statistics.value.node])
    info = replace(INFO, matrix_units=(SMALL,)) if units else INFO
    made = schedule(spec.algorithm, info)
    p = optimized(lower(made), info)
    assert len(launches(p, info.local_bytes).grids) == 1
    assert sum(isinstance(x, Loop) and x.kind is LoopKind.MATRIX for x in every(p.body)) == 2 * units
    written = [b.name for b in p.params if b.name.startswith("y")]
    shapes = [(2, tall, 8), (2, tall, 1)]
    names = dict(zip(written, sorted(shapes, key=lambda x: x[-1]), strict=True))
    arrays: dict[str, Any] = dict(zip((b.name for b in p.params), (q, k, v), strict=False))
    for name, shape in names.items():
        arrays[name] = np.full(shape, np.nan, dtype if shape[-1] == 8 else np.float32)
    run(p, arrays)
    a, b, c = (x.astype(float) for x in (q, k, v))
    s64 = a @ b.swapaxes(-1, -2)
    s64 = np.where(np.tri(tall, long, dtype=bool), s64, -np.inf) if causal else s64
    w = np.exp(s64)
    rows, results = (arrays[n] for n in written)
    np.testing.assert_allclose(rows[..., 0], np.log(w.sum(-1)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(results, w / w.sum(-1, keepdims=True) @ c, atol=4e-3 if units else 1e-5)


def test_an_axis_is_extended_in_all_values_that_share_it() -> None:
    k = initial(attention(1, 6, 4, True).algorithm)
    chain = online.find(k)
    assert isinstance(chain, online.ReductionChain)
    shared = online.shared_tiles(k, chain)
    assert isinstance(shared, Kernel)
    axes = {"s": "j", "m": "j1", "l": "j2", "o": "j3"}
    for name in ("scores", "weights"):
        axes[name] = shared.algorithm.item(name).all_axes[-1].var.name
    whole = Extend("scores", tuple(axes.items()), 8)
    assert whole.check(shared) is None
    p = lower(whole.apply(shared))
    case = attention(1, 6, 4, True)
    arrays = {**case.inputs(0), "r": np.full((1, 6, 4), np.nan, np.float32)}
    run(p, arrays)
    np.testing.assert_allclose(arrays["r"], case.reference(case.inputs(0))["r"], rtol=1e-5, atol=1e-6)
    for step, why in (
        (Extend("scores", tuple((n, a) for n, a in axes.items() if n != "l"), 8), "l reads along the axis"),
        (Extend("scores", tuple(axes.items()), 5), "has no axis"),
        (Extend("s", tuple(axes.items()), 8), "no pure value"),
    ):
        refusal = step.check(shared)
        assert refusal is not None and why in refusal.why


@pytest.mark.parametrize("tall, long, masked", [(8, 16, False), (11, 21, True), (4, 7, False)])
def test_the_state_of_a_block_is_stored_with_its_rows(tall: int, long: int, masked: bool) -> None:
    """The maximum, the sum, and the weighted sum; rows that a mask leaves nothing of have -inf, 0 and 0."""
    r = np.random.default_rng(0)
    q, k, v = (weft.tensor(r.standard_normal((1, n, 4)).astype(np.float32)) for n in (tall, long, long))
    x = q @ k.transpose(1, 2)
    if masked:
        x = weft.where(weft.tensor(np.tril(np.ones((tall, long), bool), -3)), x, float("-inf"))
    m = x.amax(2)
    lowest = weft.full(m.shape, float(np.finfo(np.float32).min))
    e = (x - weft.maximum(m, lowest).unsqueeze(2)).exp()
    state = [m, e.sum(2), e @ v]
    nodes = expand_calls([t.value.node for t in state])
    (spec,) = kernelize(nodes)
    p = optimized(lower(schedule(spec.algorithm, INFO)), INFO)
    assert len(launches(p, INFO.local_bytes).grids) == 1
    assert any(isinstance(s, Loop) and s.kind is LoopKind.THREAD for s in every(p.body))
    arrays: dict[str, Any] = {}
    for b, n in zip(p.params, (*spec.reads, *spec.writes), strict=True):
        arrays[b.name] = np.full(n.shape, np.nan, np.float32) if n.storage is None else n.storage.numpy()
    run(p, arrays)
    names = {n: b.name for n, b in zip(spec.writes, p.params[len(spec.reads) :], strict=True)}
    found = [arrays[names[n]] for n in nodes]
    weft.realize(*state)  # by the schedule for cores
    for t, got in zip(state, found, strict=True):
        np.testing.assert_allclose(got.reshape(t.shape), t.numpy(), rtol=1e-5, atol=1e-6)
