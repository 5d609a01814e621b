"""Named decisions: without a record today's option is taken, and every other option is right as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from weft.backends.dummy.interpreter import interpret
from weft.backends.llvm import scalar
from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir.expr import Load
from weft.ir.index import floordiv
from weft.ir.kernel.algorithm import Algorithm, ItemValue, Output, Param, Reduce, StoreTo
from weft.ir.kernel.decisions import Pick, pick
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import initial
from weft.ir.loops import LoopKind
from weft.ir.loops_verify import verify
from weft.ir.ops import ELEMENTWISE, Op
from weft.scheduler.optimize.rules import decide, schedule
from weft.testing.kernels import (
    Case,
    F,
    attention,
    axis,
    byte_sums,
    columns,
    convolution,
    depthwise,
    depthwise_last,
    depthwise_taps,
    depthwise_taps_last,
    gated,
    matmul,
    mul,
    scaled_blocks,
    softmax,
    total,
)

CORES = DeviceInfo(
    name="test:0", kind="test", description="", cores=2, vector_bytes=16, vector_registers=16,
    l1_bytes=2 << 10, l2_bytes=8 << 10, l3_bytes=1 << 20, memory_bytes=1 << 34, local_bytes=1 << 20,
    bandwidth=4e5, flops=2e6, launch_ns=20.0,
)  # fmt: skip
"""Slow cores with small caches: work of a few hundred operations is worth tasks, and panels do not fit."""

BLOCKS = replace(
    CORES, task_kind=LoopKind.BLOCK, cores=4, l1_bytes=228 << 10, local_bytes=227 << 10, vector_registers=255,
    native=ELEMENTWISE & scalar.NATIVE, warp=32, shuffles=True,
)  # fmt: skip
NOT_SHARED = replace(BLOCKS, scratchpad=False, warp=8, shuffles=False)


def linear(m: int, n: int, k: int) -> Case:
    """x @ w.T: both operands lie along the sum."""
    i, j, l = axis("i", m), axis("j", n), axis("l", k)
    product = mul(Load(F, "x", (i.var, l.var)), Load(F, "w", (j.var, l.var)))
    y, x = axis("y", m), axis("x", n)
    out = Output("out", (y, x), (StoreTo("r", (y.var, x.var), Load(F, "c", (y.var, x.var))),))
    params = (Param("x", F, (m, k)), Param("w", F, (n, k)), Param("r", F, (m, n), True))
    algorithm = Algorithm("linear", params, (), (ItemValue("c", (i, j), product, Reduce(Op.ADD, (l,))), out))
    return Case(algorithm, lambda t: {"r": t["x"] @ t["w"].T})


def in_blocks(m: int, n: int, k: int, block: int) -> Case:
    """The same, each `block` of a row of w with a scale."""
    i, j, l = axis("i", m), axis("j", n), axis("l", k)
    w = mul(Load(F, "w", (j.var, l.var)), Load(F, "scale", (j.var, floordiv(l.var, block))))
    c = ItemValue("c", (i, j), mul(Load(F, "x", (i.var, l.var)), w), Reduce(Op.ADD, (l,)))
    case = linear(m, n, k)
    params = (*case.algorithm.params, Param("scale", F, (n, k // block)))
    algorithm = replace(case.algorithm, params=params, items=(c, case.algorithm.items[1]))
    return Case(algorithm, lambda t: {"r": t["x"] @ (t["w"] * np.repeat(t["scale"], block, 1)).T})


def update(m: int, n: int, k: int) -> Case:
    """w and a running mean of its gradient, a product, one step later."""
    i, j, l = axis("i", m), axis("j", n), axis("l", k)
    product = mul(Load(F, "g", (l.var, i.var)), Load(F, "x", (l.var, j.var)))
    y, x = axis("y", m), axis("x", n)
    at = (y.var, x.var)
    mean = ex.call(Op.ADD, mul(Load(F, "mean", at), ex.Const(F, 0.5)), Load(F, "c", at))
    new = ex.call(Op.SUB, Load(F, "w", at), mean)
    out = Output("out", (y, x), (StoreTo("w1", at, new), StoreTo("mean1", at, mean)))
    shapes = {"g": (k, m), "x": (k, n), "w": (m, n), "mean": (m, n)}
    params = (
        *(Param(p, F, s) for p, s in shapes.items()),
        *(Param(p, F, (m, n), True) for p in ("w1", "mean1")),
    )
    algorithm = Algorithm("update", params, (), (ItemValue("c", (i, j), product, Reduce(Op.ADD, (l,))), out))

    def expected(t: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        mean = t["mean"] * 0.5 + t["g"].T @ t["x"]
        return {"w1": t["w"] - mean, "mean1": mean}

    return Case(algorithm, expected)


KERNELS: dict[str, tuple[Case, DeviceInfo]] = {
    "matmul": (matmul(19, 13, 11), CORES),
    "long products": (matmul(4, 5, 800), CORES),
    "a deep product": (matmul(3, 4, 3100), replace(CORES, l3_bytes=32 << 20)),
    "an update": (update(37, 45, 70), replace(CORES, l2_bytes=4 << 10)),
    "a few rows": (linear(2, 24, 64), CORES),
    "a few rows times blocks": (in_blocks(3, 20, 96, 32), CORES),
    "a sum from memory": (total(2, 1200, "j"), replace(CORES, l2_bytes=4 << 10)),
    "convolution": (convolution(1, 3, 8, 5), CORES),
    "attention": (attention(1, 21, 6, True), CORES),
    "softmax": (softmax(9, 70), CORES),
    "columns": (columns(70, 12), CORES),
    "a sum": (total(40, 30, "ij"), CORES),
    "depthwise": (depthwise(1, 2, 20, 3, 1), replace(CORES, l2_bytes=1 << 20)),
    "depthwise, channels last": (
        depthwise_last(1, 18, 9, 3, 2, clipped=True),
        replace(CORES, l2_bytes=1 << 20),
    ),
    "gated columns": (gated(21, 40, 12), CORES),
    "depthwise taps": (depthwise_taps(2, 2, 12, 3, 1), replace(CORES, l2_bytes=1 << 20)),
    "taps by channels": (depthwise_taps_last(2, 11, 9, 3, 1), CORES),
    "taps by channels, apart": (depthwise_taps_last(1, 5, 12, 7, 2), CORES),
    "scaled blocks": (scaled_blocks(9, 96, 8), CORES),
    "byte sums": (byte_sums(13, 3, 3, 8, 16), CORES),
    "matmul on blocks": (matmul(10, 9, 5), BLOCKS),
    "softmax on blocks": (softmax(9, 70), BLOCKS),
    "attention on blocks": (attention(1, 17, 4, True), BLOCKS),
    "matmul without a scratchpad": (matmul(19, 13, 11), NOT_SHARED),
}

MUST_BE_DECIDED = {
    "blocks.at_once", "contraction.axes", "contraction.chain", "contraction.depth", "contraction.method",
    "contraction.panel", "contraction.tasks", "contraction.tile", "depth.tasks", "dots.axes", "dots.tile",
    "gpu_contraction.tile", "gpu_online.tile", "gpu_rows.threads", "gpu_shared_tiles.tile", "online.columns",
    "online.rows", "prefetch.bytes", "prefetch.output", "rows.abreast", "rows.lanes", "rows.staging", "rows.vectors",
    "scaled_sums.ahead", "scaled_sums.rows", "small_outputs.lanes", "taps.together", "tasks",
    "windows.reads", "windows.tile",
}  # fmt: skip


def check(case: Case, info: DeviceInfo, record: dict[str, str]) -> None:
    """The kernel scheduled by a record gives what NumPy says."""
    program = lower(schedule(case.algorithm, info, record))
    verify(program)
    inputs = case.inputs(2)
    buffers = {n: a.reshape(-1).copy() for n, a in inputs.items()}
    shapes = {p.name: tuple(int(s) for s in p.shape) for p in case.algorithm.params if p.written}
    for name, shape in shapes.items():
        buffers[name] = np.full(int(np.prod(shape)), np.nan, np.float32)
    interpret(program, buffers, {})
    for name, expected in case.reference(inputs).items():
        np.testing.assert_allclose(
            buffers[name].reshape(shapes[name]), expected, rtol=2e-4, atol=2e-4, err_msg=str(record)
        )


def others(p: Pick) -> list[str]:
    """Some of the options that were not taken: the next, the last, and one in the middle."""
    rest = [str(o) for o in p.options if str(o) != p.option]
    return list(dict.fromkeys([rest[0], rest[-1], rest[len(rest) // 2]])) if rest else []


@pytest.mark.parametrize("name", KERNELS)
def test_every_decision_may_be_another(name: str) -> None:
    case, info = KERNELS[name]
    for p in decide(case.algorithm, info).kernel.decisions.picks:
        for option in others(p):
            check(case, info, {p.name: option})


def test_every_decision_is_made_by_some_kernel() -> None:
    made = {p.name for c, info in KERNELS.values() for p in decide(c.algorithm, info).kernel.decisions.picks}
    assert made == MUST_BE_DECIDED


@pytest.mark.parametrize("name", KERNELS)
def test_a_record_of_what_was_taken_changes_nothing(name: str) -> None:
    case, info = KERNELS[name]
    kernel = schedule(case.algorithm, info)
    record = {p.name: p.option for p in kernel.decisions.picks}
    again = schedule(case.algorithm, info, record)
    assert again.history == kernel.history and again.decisions.picks == kernel.decisions.picks


def test_a_record_is_followed_and_what_follows_from_it_is_decided_anew() -> None:
    case = matmul(64, 64, 64)
    kernel = schedule(
        case.algorithm, CORES, {"contraction.tile": "3x2", "contraction.panel": "read where it lies"}
    )
    assert kernel.nests["c"].size == (3, 2 * 4) and "panel" not in kernel.nests
    inner = schedule(case.algorithm, CORES, {"contraction.method": "inner products"})
    assert any(p.name == "dots.tile" for p in inner.decisions.picks)


@pytest.mark.parametrize("record", [{"contraction.tile": "99x99"}, {"no.such": "decision"}], ids=str)
def test_what_is_not_offered_is_not_taken(record: dict[str, str]) -> None:
    algorithm = matmul(64, 64, 64).algorithm
    assert schedule(algorithm, CORES, record).history == schedule(algorithm, CORES).history


@pytest.mark.parametrize(
    "options, costs, text",
    [
        (["a"], [], "a"),
        (["a", "b"], [], "a (2 options; next: b)"),
        (["a", "b", "c"], [3.0, 2.0, 2.5], "b, 2 cycles (3 options; next: c, +25 %)"),
        (["a", "b"], [1000.0, 1001.2], "a, 1.0 k cycles (2 options; next: b, +0.1 %)"),
        (["a", "b"], [2.0, 2.0], "a, 2 cycles (2 options; next: b, +0.0 %)"),
    ],
)
def test_the_cheapest_option_is_taken(options: list[str], costs: list[float], text: str) -> None:
    """The first of those that cost the same, or of all, where nothing is said of costs."""
    k = initial(matmul(2, 2, 2).algorithm)
    k, taken = pick(k, "test.option", options, costs, "cycles" if costs else "")
    (found,) = k.decisions.picks
    assert str(found) == text and found.option == taken == text[0]


def test_decisions_stay_with_a_kernel_through_transforms() -> None:
    from weft.ir.kernel.transforms.base import run
    from weft.ir.kernel.transforms.split import Split

    k, _ = pick(initial(matmul(8, 8, 8).algorithm), "test.option", ["a"])
    assert run(k, Split("i", 2, "io", "ii")).decisions == k.decisions
