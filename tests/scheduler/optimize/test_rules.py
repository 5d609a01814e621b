"""Schedules by rule: right for every size and device description, and of the form that the rules promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
from weft.backends.dummy.interpreter import interpret
from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir.expr import Const, Load
from weft.ir.index import Var, in_range
from weft.ir.kernel.algorithm import Algorithm, Axis, ItemValue, Output, Param, Reduce, StoreTo
from weft.ir.kernel.lower import lower
from weft.ir.loops import Loop, LoopKind, Program, Scope
from weft.ir.loops_text import show_program
from weft.ir.loops_verify import verify
from weft.ir.ops import Op
from weft.ir.passes.pipeline import run as run_passes
from weft.scheduler.kernelize.kernels import kernelize
from weft.scheduler.optimize import windows
from weft.scheduler.optimize.blocks import loads_in
from weft.scheduler.optimize.rules import schedule
from weft.testing.kernels import (
    CASES,
    Case,
    F,
    attention,
    columns,
    convolution,
    depthwise,
    depthwise_last,
    depthwise_taps,
    depthwise_taps_last,
    gated,
    gated_blocks,
    matmul,
    offset_blocks,
    scaled_blocks,
    scaled_rows,
    softmax,
)


def info(vector_bytes: int, registers: int, cores: int = 2) -> DeviceInfo:
    return DeviceInfo(
        name="test:0", kind="test", description="", cores=cores, vector_bytes=vector_bytes, vector_registers=registers,
        l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20, memory_bytes=1 << 34, local_bytes=1 << 20,
        bandwidth=4e10, flops=2e11, launch_ns=20.0,
    )  # fmt: skip


DESCRIPTIONS = {"avx512": info(64, 32), "avx2": info(32, 16), "scalar": info(4, 16, 1)}
SIZES: dict[str, Case] = {
    **CASES,
    **{
        f"matmul {m}x{n}x{k}": matmul(m, n, k)
        for m, n, k in [(1, 1, 1), (1, 5, 7), (5, 1, 7), (2, 33, 3), (7, 19, 40)]
    },
    **{f"softmax {m}x{n}": softmax(m, n) for m, n in [(1, 1), (3, 5), (1, 300), (17, 64), (64, 1)]},
    **{f"columns {m}x{n}": columns(m, n) for m, n in [(1, 1), (3, 5), (1, 300), (17, 64), (64, 1)]},
    **{
        f"attention {b}x{t}x{d}": attention(b, t, d, c)
        for b, t, d, c in [
            (1, 70, 3, True),
            (2, 65, 4, False),
            (5, 3, 1, True),
            (1, 37, 64, True),
            (1, 35, 72, False),
        ]
    },
    "convolution 2x3x9": convolution(2, 3, 9, 5),
    **{
        f"scaled blocks {m}x{n}, {block}": scaled_blocks(m, n, block)
        for m, n, block in [(5, 192, 32), (40, 128, 64), (17, 160, 32), (3, 48, 32), (2, 72, 12)]
    },
    **{
        f"offset blocks {m}x{n}, {block}": offset_blocks(m, n, block)
        for m, n, block in [(5, 512, 32), (17, 256, 32), (3, 300, 32), (2, 96, 12)]
    },
    **{
        f"scaled rows {r}x{m}x{n}, {block}": scaled_rows(r, m, n, block)
        for r, m, n, block in [
            (5, 40, 128, 32),
            (2, 9, 192, 64),
            (3, 17, 160, 32),
            (9, 33, 96, 32),
            (4, 20, 96, 24),
        ]
    },
    **{
        f"gated blocks {m}x{n}, {block}": gated_blocks(m, n, block)
        for m, n, block in [(40, 192, 32), (17, 128, 64), (9, 72, 12)]
    },
    **{
        f"{case.__name__} {n}x{c}x{size}, {taps}, {stride}": case(n, c, size, taps, stride)
        for case in (depthwise, depthwise_last, depthwise_taps, depthwise_taps_last)
        for n, c, size, taps, stride in [(2, 3, 9, 3, 1), (1, 2, 20, 5, 2), (3, 1, 35, 3, 1), (4, 1, 7, 5, 1)]
    },
    **{
        f"depthwise last {n}x{c}x{size}, {taps}, {stride}": depthwise_last(n, c, size, taps, stride, clipped)
        for n, c, size, taps, stride, clipped in [
            (1, 20, 14, 3, 2, True),
            (1, 17, 9, 5, 1, True),
            (2, 16, 8, 3, 1, False),
        ]
    },
    **{f"gated {m}x{n}": gated(m, n, k) for m, n, k in [(9, 40, 12), (200, 16, 60), (33, 20, 70)]},
}


def run(program: Program, case: Case) -> dict[str, np.ndarray]:
    verify(program)
    inputs = case.inputs(2)
    buffers = {n: a.reshape(-1).copy() for n, a in inputs.items()}
    shapes = {p.name: tuple(int(s) for s in p.shape) for p in case.algorithm.params if p.written}
    for name, shape in shapes.items():
        buffers[name] = np.full(int(np.prod(shape)), np.nan, np.float32)
    interpret(program, buffers, {})
    return {n: buffers[n].reshape(s) for n, s in shapes.items()}


@pytest.mark.parametrize("device", DESCRIPTIONS)
@pytest.mark.parametrize("name", SIZES)
def test_right_for_every_size(name: str, device: str) -> None:
    case = SIZES[name]
    out = run(lower(schedule(case.algorithm, DESCRIPTIONS[device])), case)
    expected = case.reference(case.inputs(2))
    for k, v in out.items():
        np.testing.assert_allclose(v, expected[k], rtol=5e-5, atol=5e-5)


def transposed(m: int, n: int, k: int) -> Case:
    """x @ w.T with few rows: lanes along the rows, results turned on their way out."""
    from weft.ir import expr as ex
    from weft.ir.kernel.algorithm import Algorithm, ItemValue, Output, Param, Reduce, StoreTo
    from weft.ir.ops import Op
    from weft.testing.kernels import F, axis, mul

    i, j, l = axis("i", m), axis("j", n), axis("l", k)
    c = ItemValue(
        "c",
        (i, j),
        mul(ex.Load(F, "a", (i.var, l.var)), ex.Load(F, "w", (j.var, l.var))),
        Reduce(Op.ADD, (l,)),
    )
    y, x = axis("y", m), axis("x", n)
    e = ex.call(Op.TANH, ex.call(Op.ADD, ex.Load(F, "c", (y.var, x.var)), ex.Load(F, "bias", (x.var,))))
    out = Output("out", (y, x), (StoreTo("r", (y.var, x.var), e),))
    params = (
        Param("a", F, (m, k)),
        Param("w", F, (n, k)),
        Param("bias", F, (n,)),
        Param("r", F, (m, n), True),
    )
    return Case(
        Algorithm("linear", params, (), (c, out)), lambda t: {"r": np.tanh(t["a"] @ t["w"].T + t["bias"])}
    )


@pytest.mark.parametrize("shape", [(16, 40, 9), (64, 300, 8), (5, 33, 70)])
def test_results_may_be_turned(shape: tuple[int, int, int]) -> None:
    case = transposed(*shape)
    kernel = schedule(case.algorithm, DESCRIPTIONS["avx512"])
    out, expected = run(lower(kernel), case), case.reference(case.inputs(2))
    np.testing.assert_allclose(out["r"], expected["r"], rtol=5e-5, atol=5e-5)


def loops(program: Program) -> list[Loop]:
    out: list[Loop] = []

    def visit(block: tuple[object, ...]) -> None:
        for s in block:
            if isinstance(s, Loop):
                out.append(s)
                visit(s.body)

    visit(program.body)
    return out


def test_matmul_keeps_its_accumulators_in_registers() -> None:
    k = schedule(matmul(256, 256, 256).algorithm, DESCRIPTIONS["avx512"])
    nest = k.nests["c"]
    assert nest.scope is Scope.REGISTER
    assert 12 <= nest.size[0] * nest.size[1] // 16 <= 30, "a tile that fills the registers and does not spill"
    assert nest.loops[0].reduce and nest.loops[-1].kind is LoopKind.VECTOR
    assert "panel" in k.nests, "the second operand is packed"


def test_scales_are_applied_to_sums_of_blocks() -> None:
    k = schedule(scaled_blocks(64, 512, 32).algorithm, DESCRIPTIONS["avx512"])
    assert {"total_blocks", "total_several"} <= k.nests.keys()
    blocks = k.algorithm.item("total_blocks")
    assert "scale" not in {r.source for e in blocks.exprs() for r in loads_in(e)}


def test_offsets_of_blocks_are_multiplied_with_sums_of_the_vector() -> None:
    k = schedule(offset_blocks(64, 512, 32).algorithm, DESCRIPTIONS["avx512"])
    assert {"total_blocks", "total_rest_blocks"} <= k.nests.keys()
    of = {
        n: {r.source for e in k.algorithm.item(n).exprs() for r in loads_in(e)}
        for n in ("total_blocks", "total_rest_blocks")
    }
    assert of == {"total_blocks": {"x", "q"}, "total_rest_blocks": {"x"}}


def test_scales_of_blocks_are_shared_by_their_vectors_and_the_next_tile_is_asked_for() -> None:
    def sums(m: int) -> str:
        kernel = schedule(scaled_rows(5, m, 1024, 64).algorithm, DESCRIPTIONS["avx512"])
        assert kernel.nests["total_lanes"].loops[1].kind is LoopKind.UNROLL  # the four vectors of a block
        return show_program(run_passes(lower(kernel)))

    large = sums(4096)
    assert "//" not in large, "the scale's place is one for all of them"
    assert large.count("prefetch q[") == 1
    assert "prefetch" not in sums(64), "the second cache holds it"


def test_windows_are_copied_once_and_results_stay_in_registers() -> None:
    k = schedule(depthwise(1, 8, 28, 5, 1).algorithm, DESCRIPTIONS["avx512"])
    assert "window" in k.nests and k.nests["conv"].scope is Scope.REGISTER
    assert k.nests["window"].size == (1, 1, 32, 36), "a plane with its edges, for whole vectors of results"
    k = schedule(depthwise_taps(4, 8, 28, 3, 1).algorithm, DESCRIPTIONS["avx512"])
    sums = next(n for n in k.nests if n.endswith("_lanes"))
    assert k.nests[sums].scope is Scope.REGISTER and int(np.prod(k.nests[sums].size)) == 3 * 3 * 16


def test_taps_that_lie_across_the_lanes_are_turned_once() -> None:
    k = schedule(depthwise_last(2, 48, 12, 5, 1, clipped=True).algorithm, DESCRIPTIONS["avx512"])
    assert k.nests["turned"].at is None and k.nests["turned"].size == (5, 5, 48)
    assert {r.source for r in loads_in(k.algorithm.item("conv").exprs()[0])} == {"window", "turned"}
    assert k.nests["window"].size == (1, 16, 16, 16), (
        "the image's rows with their edges, a vector of channels"
    )
    assert k.nests["conv"].scope is Scope.REGISTER and k.nests["conv"].size == (1, 1, 6, 16)
    strided = schedule(depthwise_last(2, 48, 12, 5, 2).algorithm, DESCRIPTIONS["avx512"])
    assert strided.nests["turned"].size == (5, 5, 48) and "window" not in strided.nests
    few = schedule(depthwise_last(1, 48, 2, 3, 1).algorithm, DESCRIPTIONS["avx512"])
    assert few.nests["conv"].scope is Scope.REGISTER and "turned" not in few.nests, (
        "four results need each tap"
    )
    side_by_side = schedule(depthwise(2, 48, 12, 5, 1).algorithm, DESCRIPTIONS["avx512"])
    assert "turned" not in side_by_side.nests, "one tap is for a whole vector of results"


@pytest.mark.parametrize(
    "taps, stride, clipped, copied",
    [(5, 1, False, False), (3, 1, True, False), (3, 2, True, False), (5, 1, True, True), (5, 2, True, False)],
)
def test_windows_are_copied_where_much_is_done_to_their_elements(
    taps: int, stride: int, clipped: bool, copied: bool
) -> None:
    k = schedule(depthwise_last(1, 48, 28, taps, stride, clipped).algorithm, DESCRIPTIONS["avx512"])
    assert ("window" in k.nests) == copied
    assert k.nests["conv"].scope is Scope.REGISTER


def test_windows_of_large_images_are_copied_in_blocks_of_rows() -> None:
    case = depthwise_last(1, 32, 32, 5, 1, clipped=True)
    small = replace(DESCRIPTIONS["avx512"], l2_bytes=128 << 10)
    k = schedule(case.algorithm, small)
    assert k.nests["window"].size == (1, 12, 36, 16), "eight rows, with their edges"
    assert k.nests["conv"].scope is Scope.REGISTER
    inputs = case.inputs(3)
    buffers = {n: a.reshape(-1).copy() for n, a in inputs.items()} | {"r": np.zeros(32 * 32 * 32, np.float32)}
    interpret(lower(k), buffers, {})
    np.testing.assert_allclose(buffers["r"], case.reference(inputs)["r"].reshape(-1), rtol=1e-4, atol=1e-4)


def test_what_columns_need_alike_is_computed_once_in_panels_of_whole_vectors() -> None:
    for n, panel in ((16, 16), (240, 16), (20, 32)):
        case = gated(196, n, 60)
        k = schedule(case.algorithm, replace(DESCRIPTIONS["avx512"], cores=2))
        assert "column" in k.nests and {r.source for r in loads_in(k.algorithm.items[-1].exprs()[0])} == {
            "x",
            "column",
        }
        within = next(s for s in k.nests["out"].loops if s.kind is LoopKind.VECTOR)
        assert within.extent == 16
        assert k.nests["column"].size[0] % panel == 0
        inputs = case.inputs(5)
        buffers = {m: a.reshape(-1).copy() for m, a in inputs.items()} | {"r": np.zeros(196 * n, np.float32)}
        interpret(lower(k), buffers, {})
        np.testing.assert_allclose(
            buffers["r"], case.reference(inputs)["r"].reshape(-1), rtol=1e-4, atol=1e-5
        )
    for m, n in ((4, 240), (196, 4)):
        few = schedule(gated(m, n, 60).algorithm, DESCRIPTIONS["avx512"])
        assert "column" not in few.nests, "four rows need each, or four columns are no vector"


def test_panels_of_several_rows_that_cores_share_are_whole_vectors() -> None:
    """Sixteen tasks for two cores: of sixteen columns, each would be a scalar loop with a stride."""
    at_once = DESCRIPTIONS["avx512"]
    at_once = replace(at_once, cores=2, costs=replace(at_once.costs, wake_ns=0.0))
    for n in (16, 240):
        out = schedule(gated(196, n, 60).algorithm, at_once).nests["out"]
        assert out.loops[0].kind is LoopKind.PARALLEL
        assert [s.extent for s in out.loops if s.kind is LoopKind.VECTOR] == [16]


def test_operations_on_elements_of_windows_are_counted_without_their_guards() -> None:
    x = Load(F, "x", (Var("i", 0, 7),))
    clipped = ex.where(ex.call(Op.LE, x, Const(F, 0)), Const(F, 0), x)
    assert windows._operations(x) == 0
    assert windows._operations(clipped) == 2
    inside = ex.test(in_range(Var("i", 0, 7) - 1, 0, 7))
    assert windows._operations(ex.where(inside, clipped, Const(F, 0))) == 2


def test_what_a_column_is_computed_from_is_there_for_its_whole_panel() -> None:
    x = weft.tensor(np.zeros((256, 1024), np.float32)).realize()
    centred = x - x.mean(0)
    (spec,) = kernelize([(centred / (centred.square().mean(0) + 1e-5).sqrt()).value.node])
    k = schedule(spec.algorithm, DESCRIPTIONS["avx512"])
    assert "column2" not in k.nests, "a division by a constant is no part worth keeping"
    sums = [n for n in ("sum", "sum1") if n in k.nests]
    assert len(sums) == 2
    assert {k.nests[n].size for n in (*sums, "column")} == {k.nests["column"].size}
    assert len({k.nests[n].at for n in (*sums, "column")}) == 1, "in the loop over panels"


def test_columns_that_no_cache_holds_are_not_kept() -> None:
    k = schedule(gated(64, 1 << 17, 16).algorithm, DESCRIPTIONS["avx512"])
    kept = sum(int(np.prod(k.nests[n].size)) for n in k.nests if n == "column")
    assert kept * 4 <= DESCRIPTIONS["avx512"].l2_bytes // 4


def test_attention_runs_in_one_pass() -> None:
    k = schedule(attention(8, 1024, 64, False).algorithm, DESCRIPTIONS["avx512"])
    assert k.nests["l"].online is not None and k.nests["o"].online is not None
    largest = max(int(np.prod(n.size)) for n in k.nests.values() if n.size)
    assert largest <= 64 * 1024, "no buffer of 1024 x 1024 scores"


def test_results_are_cut_where_one_row_of_them_is_all_that_registers_hold() -> None:
    """Scores of one row at a time would wait for each other."""
    for device, d, tile in (
        ("avx2", 64, (2, 32)), ("avx2", 32, (2, 32)), ("avx2", 72, (2, 32)), ("avx2", 40, (2, 32)),
        ("avx512", 64, (4, 64)), ("avx512", 80, (2, 128)), ("avx512", 256, (4, 64)),
    ):  # fmt: skip
        k = schedule(attention(8, 1024, d, False).algorithm, DESCRIPTIONS[device])
        assert k.nests["part"].size[-3:-1] == tile
    k = schedule(attention(8, 80, 72, False).algorithm, DESCRIPTIONS["avx2"], {"online.columns": "8"})
    assert k.nests["part"].size[-3:-1] == (1, 96), "no whole parts of 64"
    k = schedule(attention(8, 32, 64, False).algorithm, DESCRIPTIONS["avx2"])
    assert "part" not in k.nests and k.nests["o"].size[-2:] == (1, 64), "one block of columns is not cut"


def test_a_norm_before_sums_of_blocks_is_computed_once_for_all_of_them() -> None:
    k = schedule(gated_blocks(64, 512, 32).algorithm, DESCRIPTIONS["avx512"])
    assert {"gate_blocks", "up_blocks", "gate_several", "up_several"} <= k.nests.keys()
    before = [name for name, nest in k.nests.items() if nest.at is None and name != "out"]
    assert "square" in before and {n for n in before if n.startswith("once")} == {"once", "once2"}
    for name, scale in (("gate_blocks", "a"), ("up_blocks", "b")):
        sources = {r.source for e in k.algorithm.item(name).exprs() for r in loads_in(e)}
        assert scale not in sources and not sources.isdisjoint({"once", "once2"})


def test_values_as_large_as_sums_of_blocks_are_not_computed_before_them() -> None:
    k = schedule(gated_blocks(4, 512, 32).algorithm, DESCRIPTIONS["avx512"])
    assert "gate_blocks" not in k.nests


def test_causal_attention_skips_blocks_above_the_diagonal() -> None:
    case = attention(1, 150, 4, True)
    k = schedule(case.algorithm, DESCRIPTIONS["avx2"])
    blocks = next(s for s in k.nests["m"].loops if s.reduce)
    assert not isinstance(blocks.extent, int), "the number of blocks of columns depends on the rows"
    everywhere = schedule(attention(1, 150, 4, False).algorithm, DESCRIPTIONS["avx2"])
    assert isinstance(next(s for s in everywhere.nests["m"].loops if s.reduce).extent, int)
    inputs = case.inputs(2)
    inputs["key"][0, 3] = np.nan  # seen by rows 3 and after
    program = lower(k)
    buffers = {n: a.reshape(-1).copy() for n, a in inputs.items()} | {"r": np.zeros(600, np.float32)}
    interpret(program, buffers, {})
    got, plain = buffers["r"].reshape(150, 4), case.reference(inputs)["r"][0]
    assert np.isnan(got[3:]).all()
    np.testing.assert_allclose(got[:3], plain[:3], rtol=5e-5, atol=5e-5)


def test_large_work_is_spread_over_cores_and_small_work_is_not() -> None:
    big = lower(schedule(softmax(4096, 4096).algorithm, DESCRIPTIONS["avx512"]))
    small = lower(schedule(softmax(4, 16).algorithm, DESCRIPTIONS["avx512"]))
    assert [x.kind for x in loops(big)].count(LoopKind.PARALLEL) == 1
    assert all(x.kind is not LoopKind.PARALLEL for x in loops(small))


@pytest.mark.parametrize("shape", [(9, 17, 1030), (5, 40, 2100)])
def test_long_products_are_summed_in_steps(shape: tuple[int, int, int]) -> None:
    case = matmul(*shape)
    kernel = schedule(case.algorithm, DESCRIPTIONS["avx512"])
    chain = kernel.algorithm.item("c_chain")
    assert isinstance(chain, ItemValue) and chain.reduce is not None
    assert 256 <= chain.reduce.axes[0].extent <= 1024
    out, expected = run(lower(kernel), case), case.reference(case.inputs(2))
    np.testing.assert_allclose(out["r"], expected["r"], rtol=2e-4, atol=2e-4)


def scattered(rows: int, columns: int, words: int) -> Case:
    """Rows of x added to the rows of y that data names."""
    from weft.ir import expr as ex
    from weft.ir.dtypes import int32
    from weft.ir.kernel.algorithm import Algorithm, Output, Param, StoreTo
    from weft.ir.ops import Op
    from weft.testing.kernels import F, axis

    i, j = axis("i", words), axis("j", columns)
    at = ex.as_index(ex.Load(int32, "at", (i.var,)), 0, rows - 1)
    store = StoreTo("y", (at, j.var), ex.Load(F, "x", (i.var, j.var)), combine=Op.ADD)
    params = (
        Param("at", int32, (words,)),
        Param("x", F, (words, columns)),
        Param("y", F, (rows, columns), True),
    )
    return Case(Algorithm("scatter", params, (), (Output("out", (i, j), (store,)),)), lambda t: {})


@pytest.mark.parametrize("columns", [3, 32, 40, 64])
def test_scatters_run_along_what_data_does_not_name(columns: int) -> None:
    """Lanes along columns, and a task for each half of them; rows, which may meet, stay in order."""
    case = scattered(7, columns, 40_000)
    program = lower(schedule(case.algorithm, DESCRIPTIONS["avx512"]))
    verify(program)
    kinds = {loop.kind for loop in loops(program)}
    assert LoopKind.VECTOR in kinds and (LoopKind.PARALLEL in kinds) == (columns % 32 == 0)
    rows = np.random.default_rng(0).integers(0, 7, 300).astype(np.int32)
    x = np.random.default_rng(1).standard_normal((300, columns)).astype(np.float32)
    got = weft.zeros(7, columns).index_add(0, weft.tensor(rows), weft.tensor(x)).numpy()
    want = np.zeros((7, columns))
    np.add.at(want, rows, x)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_windows_whose_results_are_spread_along_the_lanes_are_refused() -> None:
    """As of quantized blocks: the output's last loop is none of the sum's axes."""
    i, l = Var("i", 0, 7), Var("l", 0, 2)
    x = Load(F, "x", (i + l,))
    total = ItemValue("s", (Axis(i, 8),), x, Reduce(Op.ADD, (Axis(l, 3),)))
    y, z = Var("y", 0, 7), Var("z", 0, 15)
    out = Output("out", (Axis(y, 8), Axis(z, 16)), (StoreTo("r", (y, z), Load(F, "s", (y,))),))
    params = (Param("x", F, (10,)), Param("r", F, (8, 16), True))
    k = schedule(Algorithm("spread", params, (), (total, out)), DESCRIPTIONS["avx512"])
    assert "window" not in k.nests
