"""Schedules for thread blocks: right for every size, without races, and of the form that the rules promise."""

from __future__ import annotations

import numpy as np
import pytest

from weft.backends.dummy.interpreter import interpret
from weft.backends.llvm import scalar
from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir.expr import Const, Load
from weft.ir.kernel.algorithm import Algorithm, ItemValue, Output, Param, Reduce, StoreTo
from weft.ir.loops import Barrier, Combine, LoopKind
from weft.ir.loops_names import every
from weft.ir.loops_text import show_program
from weft.ir.loops_verify import verify
from weft.ir.ops import ELEMENTWISE, Op
from weft.ir.passes.grid import Launches, grid_parts, launches
from weft.scheduler.lowering import lowered
from weft.scheduler.optimize import gpu_shared_tiles
from weft.scheduler.optimize.gpu_shared_tiles import Tile
from weft.testing.kernels import CASES, Case, F, attention, axis, columns, convolution, matmul, mul, softmax


def info(cores: int, scratchpad: bool = True, shuffles: bool = False) -> DeviceInfo:
    return DeviceInfo(
        name="test:0", kind="test", description="", cores=cores, vector_bytes=16, vector_registers=255,
        l1_bytes=228 << 10, l2_bytes=50 << 20, l3_bytes=0, memory_bytes=1 << 34, local_bytes=227 << 10,
        bandwidth=4e12, flops=6e13, launch_ns=2000.0, task_kind=LoopKind.BLOCK, native=ELEMENTWISE & scalar.NATIVE,
        scratchpad=scratchpad, warp=32 if shuffles else 8, shuffles=shuffles,
    )  # fmt: skip


def elementwise(*shape: int) -> Case:
    """x * z + 1, z along the last axis."""
    axes = tuple(axis(f"i{k}", n) for k, n in enumerate(shape))
    at = tuple(a.var for a in axes)
    e = ex.call(Op.ADD, mul(Load(F, "x", at), Load(F, "z", at[-1:])), Const(F, 1))
    params = (Param("x", F, shape), Param("z", F, shape[-1:]), Param("r", F, shape, True))
    out = Output("out", axes, (StoreTo("r", at, e),))
    return Case(Algorithm("elementwise", params, (), (out,)), lambda t: {"r": t["x"] * t["z"] + 1})


def sums(shape: tuple[int, ...], over: tuple[int, ...]) -> Case:
    """Sums over some axes."""
    axes = tuple(axis(f"i{k}", n) for k, n in enumerate(shape))
    kept = tuple(a for k, a in enumerate(axes) if k not in over)
    s = ItemValue(
        "s", kept, Load(F, "x", tuple(a.var for a in axes)), Reduce(Op.ADD, tuple(axes[k] for k in over))
    )
    outer = tuple(axis(f"o{k}", a.var.hi + 1) for k, a in enumerate(kept))
    at = tuple(a.var for a in outer)
    params = (Param("x", F, shape), Param("r", F, tuple(a.extent for a in kept), True))
    out = Output("out", outer, (StoreTo("r", at, Load(F, "s", at)),))
    reference = lambda t: {"r": np.asarray(t["x"].astype(np.float64).sum(over))}  # noqa: E731
    return Case(Algorithm("sums", params, (), (s, out)), reference)


SMALL: dict[str, Case] = {
    **CASES,
    **{f"matmul {m}x{n}x{k}": matmul(m, n, k) for m, n, k in [(1, 1, 1), (1, 5, 7), (5, 1, 7), (2, 33, 3)]},
    **{f"softmax {m}x{n}": softmax(m, n) for m, n in [(1, 1), (3, 5), (1, 300), (17, 64), (64, 1), (2, 512)]},
    **{f"columns {m}x{n}": columns(m, n) for m, n in [(1, 1), (3, 5), (1, 300), (17, 64), (64, 1), (200, 7)]},
    **{f"attention {b}x{t}x{d}": attention(b, t, d, c) for b, t, d, c in [(1, 11, 3, True), (5, 3, 1, True)]},
    "convolution 2x3x9": convolution(2, 3, 9, 5),
    **{
        f"elementwise {s}": elementwise(*s)
        for s in [(1,), (3, 5), (4, 64), (100_003,), (20, 1001), (6, 3, 32)]
    },
    **{
        f"sums {s} {o}": sums(s, o)
        for s, o in [
            ((20_000,), (0,)),
            ((3000, 7), (0,)),
            ((5, 1000), (1,)),
            ((1, 17_000), (1,)),
            ((5, 90, 8), (1,)),
        ]
    },
}


def split(case: Case, cores: int, scratchpad: bool = True, shuffles: bool = False) -> Launches:
    device = info(cores, scratchpad, shuffles)
    return launches(lowered(case.algorithm, device), device.local_bytes, warp=32 if shuffles else 1)


def results(case: Case, grids: Launches, races: bool) -> dict[str, np.ndarray]:
    inputs = case.inputs(2)
    buffers = {n: a.reshape(-1).copy() for n, a in inputs.items()}
    shapes = {p.name: tuple(int(s) for s in p.shape) for p in case.algorithm.params if p.written}
    buffers |= {n: np.full(int(np.prod(s)), np.nan, np.float32) for n, s in shapes.items()}
    buffers |= {b.name: np.full(b.size, np.nan, np.float32) for b in grids.scratch}
    for g in grids.grids:
        verify(g)
        interpret(g, {b.name: buffers[b.name] for b in g.params}, {}, races=races)
    return {n: buffers[n].reshape(s) for n, s in shapes.items()}


@pytest.mark.parametrize(("name", "cores"), [*((n, 132) for n in SMALL), *((n, 2) for n in CASES)])
def test_right_for_every_size(name: str, cores: int) -> None:
    case = SMALL[name]
    small = sum(int(np.prod(p.shape)) for p in case.algorithm.params) < 1000
    out = results(case, split(case, cores), races=small)
    expected = case.reference(case.inputs(2))
    for k, v in out.items():
        np.testing.assert_allclose(v, expected[k], rtol=1e-4, atol=1e-4)


ROWS = {
    **{
        f"softmax {m}x{n}": softmax(m, n)
        for m, n in [(1, 4), (3, 8), (5, 64), (9, 128), (2, 512), (3, 260), (2, 1023)]
    },
    **{
        f"sums {s} {o}": sums(s, o)
        for s, o in [((5, 1000), (1,)), ((7, 96), (1,)), ((20_000,), (0,)), ((4096,), (0,))]
    },
}


@pytest.mark.parametrize(("name", "cores"), [(n, c) for n in ROWS for c in (132, 2)])
def test_threads_of_a_warp_combine_in_registers(name: str, cores: int) -> None:
    case = ROWS[name]
    small = sum(int(np.prod(p.shape)) for p in case.algorithm.params) < 3000
    expected = case.reference(case.inputs(2))
    for k, v in results(case, split(case, cores, shuffles=True), races=small).items():
        np.testing.assert_allclose(v, expected[k], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("n", "barriers", "buffers"), [(8, 0, 0), (64, 0, 0), (128, 0, 0), (1024, 0, 0), (2048, 2, 2)]
)
def test_rows_that_a_warp_reduces_need_no_barriers(n: int, barriers: int, buffers: int) -> None:
    """The warps of a longer row exchange one result each, once for each of softmax's two reductions."""
    (grid,) = split(softmax(400, n), 2, shuffles=True).grids
    statements = list(every(grid.body))
    assert sum(isinstance(s, Barrier) for s in statements) == barriers
    assert len(grid_parts(grid)[1]) == buffers
    assert sum(isinstance(s, Combine) for s in statements) == 2


@pytest.mark.parametrize("name", SMALL)
def test_without_a_scratchpad_threads_share_nothing(name: str) -> None:
    case = SMALL[name]
    grids = split(case, 2, scratchpad=False)
    wide = [g for g in grids.grids if grid_parts(g)[0].extent != 1]  # what is small is one block
    assert not any(grid_parts(g)[1] for g in wide)
    assert not any(isinstance(s, Barrier) for g in wide for s in every(g.body))
    small = sum(int(np.prod(p.shape)) for p in case.algorithm.params) < 1000
    expected = case.reference(case.inputs(2))
    for k, v in results(case, grids, races=small).items():
        np.testing.assert_allclose(v, expected[k], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(9, 17, 5), (8, 8, 4), (30, 3, 33), (2, 40, 8)])
@pytest.mark.parametrize("tile", [Tile(8, 32, 4, 2, 4), Tile(32, 64, 8, 8, 8)])
def test_tiles(shape: tuple[int, int, int], tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_shared_tiles, "TILES", (tile,))
    case = matmul(*shape)
    out = results(case, split(case, 2), races=True)
    np.testing.assert_allclose(out["r"], case.reference(case.inputs(2))["r"], rtol=1e-4, atol=1e-4)


def test_a_matmul_keeps_its_tile_in_registers_and_its_panels_in_shared_memory() -> None:
    (grid,) = split(matmul(2048, 2048, 64), 132).grids
    block, local, thread = grid_parts(grid)
    assert (block.extent, thread.extent) == (256, 256)
    assert {b.name for b in local} == {"rows_panel", "columns_panel"}
    assert "alloc c: f32[64]" in show_program(grid)
    assert show_program(grid).count("barrier") == 2


@pytest.mark.parametrize("rows", [4096, 100])
def test_a_row_is_read_once(rows: int) -> None:
    (grid,) = split(softmax(rows, 1024), 16).grids
    text = show_program(grid)
    assert text.count("= x[") == 1
    assert "alloc row: f32[4]" in text


def test_a_large_sum_uses_every_core() -> None:
    first, last = split(sums((1 << 24,), (0,)), 132).grids
    assert grid_parts(first)[0].extent >= 132
    assert grid_parts(last)[0].extent == 1


def test_neighbours_go_to_neighbouring_threads_in_wide_accesses() -> None:
    (grid,) = split(elementwise(1024, 1024), 132).grids
    assert grid_parts(grid)[2].extent == 256
    assert "r[1024*block0 + 4*thread0 + i1w]" in show_program(grid)
