"""Decisions: small graphs beside the log of what was decided about their nodes (decisions.txt), for each kind of
decision and each reason; and that the kernels compute what the graphs mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft.scheduler.kernelize.cost import NO_LIMIT
from weft.scheduler.kernelize.kernels import decision_log, kernelize
from weft.testing.kernelized import execute
from weft.testing.reference import evaluate
from weft.testing.tolerance import allowed, difference

GOLDEN = Path(__file__).with_name("decisions.txt")


@dataclass(frozen=True)
class Case:
    """A graph, and the buffers that a kernel may have."""

    graph: Callable[[], Sequence[weft.Tensor]]
    buffers: int = NO_LIMIT


def f32(*shape: int, seed: int = 0) -> weft.Tensor:
    return weft.tensor(np.random.default_rng(sum(shape) + seed).standard_normal(shape).astype(np.float32))


def sums(x: weft.Tensor) -> list[weft.Tensor]:
    """Two kernels that read x: over columns, and over rows."""
    return [x.sum(0), x.sum(1)]


def chain(x: weft.Tensor, length: int) -> weft.Tensor:
    for k in range(length):
        x = x.sin() + k
    return x


def updated(y: weft.Tensor, *index: int) -> weft.Tensor:
    return y.scatter(0, weft.tensor(index), f32(len(index)))


def in_blocks(rows: int) -> weft.Tensor:
    """A matrix of bytes in blocks, behind the float16 that each is to be multiplied with."""
    blocks = weft.tensor(np.full((rows, 2, 34), 3, np.uint8))
    low, high = blocks[..., :1].int(), blocks[..., 1:2].int()
    scale = (low | (high << 8)).to(weft.int16).view(weft.float16).float()
    return (scale * blocks[..., 2:].float()).reshape(rows, 64)


def total(parts: Iterable[weft.Tensor]) -> weft.Tensor:
    return reduce(lambda a, b: a + b, parts)


def shifted(y: weft.Tensor, count: int) -> list[weft.Tensor]:
    """One kernel that reads y at so many places."""
    return [total(y[k : k + 8] for k in range(count))]


def leaves(count: int) -> list[weft.Tensor]:
    return [f32(4, seed=k) for k in range(1, count + 1)]


def others(count: int) -> list[weft.Tensor]:
    """Sums of rows of as many tensors."""
    return [f32(8, 16, seed=k).sum(-1) for k in range(1, count + 1)]


def scanned() -> list[weft.Tensor]:
    rate = f32() + 1
    carry, rows = weft.scan(lambda c, x: (c + x * rate, c * x), f32(4), f32(3, 4) * 2)
    return [carry, rows, rate * f32(5)]


def scores(scale: weft.Tensor) -> weft.Tensor:
    return (f32(8, 4) @ f32(4, 6) * scale).softmax(-1) @ f32(6, 5)


CASES: dict[str, Case] = {
    # each decision
    "made for it": Case(lambda: [(f32(8, 16) + 1).exp()]),
    "stored by a reader": Case(lambda: [(y := f32(8, 16).tanh()), y.reshape(128) * 2]),
    "rows stored by a reader": Case(lambda: [(x := f32(8, 16)) - (s := x.sum(-1, keepdim=True)), s]),
    "stored by the reduction's kernel": Case(lambda: [(x := f32(8, 16)).mean(), x.var()]),
    "rows of a function of a reduction": Case(
        lambda: [(x := f32(8, 16)) - (s := x.sum(-1, keepdim=True)), s * 2]
    ),
    "function of a column of reductions": Case(
        lambda: [(x := f32(8, 1, 16)) - (s := x.sum(-1))[..., None], s[:, 0] * 2]
    ),
    "function, in a column, of reductions": Case(
        lambda: [(x := f32(8, 1, 16)) - (s := x.sum(-1))[..., None], s * 2]
    ),
    "function of a reduction in a piece": Case(
        lambda: [weft.cat([(x := f32(8, 1, 16)) - (s := x.sum(-1))[..., None], f32(2, 1, 16)]), s[:, 0] * 2]
    ),
    "function of a reduction that a loop reads": Case(
        lambda: [*weft.scan(lambda c, x: (c + x, c * x), f32(4), s := f32(3, 4, 5).sum(-1)), s * 2]
    ),
    "function of a reduction that a loop has read": Case(
        lambda: [(s := f32(3, 4, 5).sum(-1)) * 2, *weft.scan(lambda c, x: (c + x, c * x), f32(4), s)]
    ),
    "function of a reduction, behind a guard": Case(
        lambda: [(s := f32(8, 4).sum(-1)).exp(), f32(8) * s + F.pad(s.exp(), (1, 0))[:8]]
    ),
    "function of a reduction, reshaped": Case(
        lambda: [(x := f32(8, 4, 6)) - (s := x.sum(-1))[..., None], s.reshape(32) * 2]
    ),
    "function of pieces": Case(
        lambda: [(c := weft.cat([f32(8), f32(7)])).reshape(15, 1) * f32(15, 4), c * 2]
    ),
    "stored by a sibling": Case(lambda: [(x := f32(8, 16)).sum(-1), x.amax(-1)]),
    "sibling in a column": Case(lambda: [(x := f32(8, 1, 16)).sum(-1), x.amax(-1)]),
    "computed redundantly": Case(lambda: [(n := f32() + 1), f32(6, 4) * n, f32(9) / n]),
    "loop": Case(scanned),
    "copy": Case(lambda: [(f32(3, 4) + 1).to("dummy:0")]),
    # forced by the program
    "contiguous": Case(lambda: [(f32(3, 4) + 1).contiguous() * 2]),
    "scatter": Case(lambda: [updated(f32(5) * 2, 0, 3, 3) + 1]),
    # reductions
    "repeated": Case(lambda: [(s := f32(8, 16, 4).sum(-1)).sum(0), s.sum(1), s.exp().sum()]),
    "repeated, though it fits": Case(
        lambda: [f32(8, 16) + (s := f32(8, 4).sum(-1, keepdim=True)), f32(8, 3) * s]
    ),
    "repeated, fitting once": Case(
        lambda: [f32(8, 16) + (s := f32(8, 4).sum(-1, keepdim=True)), s @ f32(1, 8)]
    ),
    "in several ways": Case(lambda: [(s := f32(8, 8).sum(-1)).reshape(8, 1) * s]),
    "windows": Case(lambda: [f32(10, 4).sum(-1).unfold(0, 3, 1).sum(-1)]),
    "two passes": Case(lambda: [(s := f32(6, 5, 4).sum(-1)).sum(-1, keepdim=True) * s]),
    "other axes": Case(lambda: [(x := f32(4, 6)) + x.sum(1, keepdim=True) + x.sum(0, keepdim=True)]),
    "nested axes": Case(lambda: [(x := f32(4, 3, 6)) + x.sum(2, keepdim=True) + x.sum((1, 2), keepdim=True)]),
    "equal axes": Case(lambda: [(x := f32(4, 6)) + x.sum(1, keepdim=True) + x.amax(1, keepdim=True)]),
    "other axes of another piece": Case(
        lambda: [
            weft.cat([(x := f32(4, 6)) - x.sum(1, keepdim=True), (y := f32(5, 6)) - y.sum(0, keepdim=True)])
        ]
    ),
    "other axes of one piece": Case(
        lambda: [weft.cat([(x := f32(4, 6)) - x.sum(1, keepdim=True) - x.sum(0, keepdim=True), f32(5, 6)])]
    ),
    "long row, read as a whole": Case(lambda: [f32(2, 70_000).sum(1) * 2]),
    "long row": Case(lambda: [(x := f32(2, 70_000)) * x.sum(1, keepdim=True)]),
    "row that is long enough": Case(lambda: [(x := f32(2, 65_536)) * x.sum(1, keepdim=True)]),
    "long rows, enough of them": Case(lambda: [(x := f32(16, 65_537)) * x.sum(1, keepdim=True)]),
    # products
    "product in a reduction": Case(lambda: [(f32(4, 6) @ f32(6, 5)).sum(1)]),
    "product of normalized rows": Case(
        lambda: [((x := f32(64, 32)) / x.sum(-1, keepdim=True)) @ f32(32, 64)]
    ),
    "product of sums": Case(lambda: [f32(64, 32, 3).sum(-1) @ f32(32, 64)]),
    "product beside a reduction": Case(lambda: [f32(8, 4) @ f32(4, 6) + f32(8, 5).sum(-1, keepdim=True)]),
    "reduction beside a product": Case(lambda: [f32(8, 5).sum(-1, keepdim=True) + f32(8, 4) @ f32(4, 6)]),
    "product in a piece": Case(lambda: [weft.cat([f32(8, 4) @ f32(4, 6), f32(2, 6)])]),
    "function of a product, read twice": Case(lambda: sums(f32(8, 4) @ f32(4, 6) + 1)),
    "product, recomputed": Case(lambda: [(f32(8, 4) @ f32(4, 6)).reshape(8, 6, 1) * f32(3)]),
    "product, divided": Case(lambda: [(f32(8, 4) @ f32(4, 6)).reshape(16, 3).permute(1, 0) * f32(3, 16)]),
    "prologue": Case(lambda: [f32(64, 32).tanh() @ f32(32, 64)]),
    "cheap prologue": Case(lambda: [f32(64, 32).relu() @ f32(32, 64)]),
    "prologue of a small product": Case(lambda: [f32(4, 4).tanh() @ f32(4, 4)]),
    "prologue of much": Case(lambda: [(f32(64, 32) + f32(64, 32, seed=1)) @ f32(32, 64)]),
    "prologue of rows": Case(lambda: [(f32(64, 32) * f32(32)) @ f32(32, 241)]),
    "prologue of rows, of fewer columns": Case(lambda: [(f32(64, 32) * f32(32)) @ f32(32, 240)]),
    "prologue of rows of few bits": Case(
        lambda: [(weft.tensor(np.full((64, 32), 3, np.uint8)) / 3) @ f32(32, 241)]
    ),
    "prologue of columns": Case(lambda: [f32(241, 32) @ (f32(32, 64) * f32(64))]),
    "prologue of windows": Case(
        lambda: [F.conv2d(f32(2, 4, 12, 12).permute(0, 3, 1, 2) * 2, f32(64, 12, 3, 3)).permute(0, 2, 3, 1)]
    ),
    "prologue of few bits": Case(
        lambda: [f32(64, 32) @ (weft.tensor(np.full((32, 64), 3, np.uint8)) / 3 - 1)]
    ),
    "scales of blocks": Case(lambda: [f32(4, 64) @ in_blocks(256).T]),
    "scales of blocks for many rows": Case(lambda: [f32(400, 64) @ in_blocks(64).T]),
    "widened operand": Case(lambda: [f32(64, 32).half().tanh().float() @ f32(32, 64)]),
    "converted operand": Case(lambda: [f32(64, 32).half().tanh().bfloat16() @ f32(32, 64).bfloat16()]),
    "doubled operand": Case(lambda: [f32(64, 32).tanh().double() @ f32(32, 64).double()]),
    "layout": Case(
        lambda: [(f32(2, 3, 8, 4) @ f32(2, 3, 4, 4)).permute(0, 2, 1, 3).reshape(16, 12) @ f32(12, 5)]
    ),
    "layout of a reshaped product": Case(
        lambda: [
            (f32(6, 8, 4) @ f32(6, 4, 4)).reshape(2, 3, 8, 4).permute(0, 2, 1, 3).reshape(16, 12) @ f32(12, 5)
        ]
    ),
    "layout of a result": Case(
        lambda: [(p := f32(2, 3, 8, 4) @ f32(2, 3, 4, 4)), p.permute(0, 2, 1, 3).reshape(16, 12) @ f32(12, 5)]
    ),
    "layout of a reshaped result": Case(
        lambda: [
            (p := (f32(6, 8, 4) @ f32(6, 4, 4)).reshape(2, 3, 8, 4)),
            p.permute(0, 2, 1, 3).reshape(16, 12) @ f32(12, 5),
        ]
    ),
    "layout of a part": Case(
        lambda: [
            (f32(2, 3, 8, 4) @ f32(2, 3, 4, 4))[:, :, 1:5].permute(0, 2, 1, 3).reshape(8, 12) @ f32(12, 5)
        ]
    ),
    "layout without division": Case(
        lambda: [(f32(2, 3, 8, 4) @ f32(2, 3, 4, 4)).permute(0, 2, 3, 1) @ f32(3, 5)]
    ),
    "attention": Case(lambda: [scores(f32(8, 6))]),
    "attention with few buffers": Case(
        lambda: [scores(f32(8, 6)) + f32(8, 5) * f32(8, 5, seed=1)], buffers=6
    ),
    "attention that runs out of buffers": Case(
        lambda: [scores(total([f32(8, 6, seed=k) for k in range(6)]))], buffers=6
    ),
    "attention without buffers": Case(lambda: [scores(f32(8, 6))], buffers=4),
    # costs
    "pieces": Case(lambda: [weft.cat([f32(k + 1, 2) for k in range(9)]) + 1]),
    "fewer pieces": Case(lambda: [weft.cat([f32(k + 1, 2) for k in range(8)]) + 1]),
    "recomputed": Case(lambda: sums(f32(128, 64) + 1)),
    "read again": Case(lambda: sums(f32(128, 64).sin().sin().sin().sin().sin())),
    "small, and recomputed": Case(lambda: sums(f32(12, 8).sin().sin().sin())),
    "kernel size": Case(lambda: [chain(f32(4), 22)]),
    "no kernel size": Case(lambda: [chain(f32(4), 21)]),
    "reads of a kernel": Case(lambda: [total(leaves(50))]),
    "few enough reads": Case(lambda: [total(leaves(49))]),
    "trivial in a full kernel": Case(lambda: [total([f32(4) * 2, *leaves(48)])]),
    "costly in a full kernel": Case(lambda: [total([f32(4).sin(), *leaves(48)])]),
    "of two tensors in a full kernel": Case(lambda: [total([f32(4) + f32(4, seed=99), *leaves(48)])]),
    "costly windows": Case(lambda: [f32(256, 64).sin().unfold(0, 9, 1).sum(-1)]),
    "cheap windows": Case(lambda: [(f32(256, 64) + 1).unfold(0, 9, 1).sum(-1)]),
    "many places": Case(lambda: shifted(f32(40) * 2, 13)),
    "fewer places": Case(lambda: shifted(f32(40) * 2, 12)),
    "few buffers": Case(lambda: [f32(4) + f32(4, seed=1) * f32(4, seed=2) - f32(4, seed=3)], buffers=4),
    # why a reader does not store it
    "read twice": Case(lambda: [(y := f32(8).tanh()), y + y.flip(0)]),
    "updated by its reader": Case(lambda: [(y := f32(3) * 2), y.scatter(0, weft.tensor([2, 0, 1]), y.exp())]),
    "read in part": Case(lambda: [(y := f32(8, 4).tanh()), y[2:5] * 2]),
    "read behind a guard": Case(lambda: [(y := f32(8).tanh()), F.pad(y, (1, 0))[:8] * f32(8)]),
    "read by a product": Case(lambda: [(y := f32(8, 4).relu()), y @ f32(4, 6)]),
    "in other loops": Case(lambda: [(y := f32(8, 4).tanh()), y.sum(-1)]),
    "beside a product": Case(lambda: [(y := f32(8, 1).tanh()), f32(8, 4) @ f32(4, 6) + y]),
    "for each column": Case(lambda: [(y := f32(8, 1).tanh()), f32(8, 16) * y]),
    "in one of the pieces": Case(
        lambda: [(y := f32(8, 4).sum(-1, keepdim=True)), weft.cat([f32(8, 6) * y, f32(2, 6)])]
    ),
    "in a cycle": Case(lambda: [(y := f32(64, 8).tanh()), y + y.sum(0, keepdim=True).contiguous()]),
    "no buffer for a result": Case(lambda: [(y := f32(4) * f32(4, seed=1)), y + f32(4, seed=2)], buffers=4),
    "a buffer for a result": Case(lambda: [(y := f32(4) * f32(4, seed=1)), y + f32(4, seed=2)], buffers=5),
    # why a scalar is not computed by all readers
    "scalar of a reduction": Case(
        lambda: [(n := f32(7).sum()), f32(6, 4) @ f32(4, 5) * n, f32(5, 4) @ f32(4, 6) / n]
    ),
    "scalar that costs": Case(lambda: [(n := chain(f32(), 20)), *(f32(k + 2) * n for k in range(21))]),
    "scalar, updated": Case(lambda: [updated(n := f32(1) + 1, 0, 0), f32(4) * n]),
    "scalar of a product": Case(lambda: [(n := f32() + 1), (f32(32, 16) * n) @ f32(16, 8), f32(9) / n]),
    "scalar without a buffer": Case(
        lambda: [(n := f32() + f32(seed=1)), (f32(4) + f32(4, seed=1)) * n, f32(5) * n], buffers=4
    ),
    "scalar without a buffer to store it": Case(
        lambda: [(n := f32() + f32(seed=1)), (f32(4) + f32(4, seed=1)) * n, f32(5) * n], buffers=5
    ),
    "scalar with a buffer": Case(
        lambda: [(n := f32() + f32(seed=1)), (f32(4) + f32(4, seed=1)) * n, f32(5) * n], buffers=6
    ),
    # why a sibling does not store it
    "sibling of another tensor": Case(lambda: [f32(8, 16).sum(-1), f32(8, 16, seed=1).amax(-1)]),
    "sibling that depends on it": Case(
        lambda: [(y := (x := f32(8, 16)).tanh().contiguous()) + x, x.exp() * y.flip(0)]
    ),
    "siblings of a large size": Case(lambda: [chain(x := f32(4), 11), chain(x.exp(), 11)]),
    "sibling without a buffer": Case(lambda: [(x := f32(8)) + f32(8, seed=1), x * f32(8, seed=2)], buffers=4),
    "sibling with a buffer": Case(lambda: [(x := f32(8)) + f32(8, seed=1), x * f32(8, seed=2)], buffers=5),
    "siblings of no tensor": Case(lambda: [weft.arange(8) * 2, weft.arange(8) + 1]),
    "third sibling": Case(lambda: [(x := f32(8, 16)).sum(-1), x.amax(-1), x.amin(-1)]),
    "fourth newest sibling": Case(lambda: [(x := f32(8, 16)).amin(-1), *others(3), x.amax(-1)]),
    "older sibling": Case(lambda: [(x := f32(8, 16)).amin(-1), *others(4), x.amax(-1)]),
}


def log(case: Case) -> str:
    """The decisions about nodes that are stored, or fused for their costs."""
    nodes = [t.value.node for t in case.graph()]
    return "\n".join(str(d) for d in decision_log(nodes, case.buffers) if d.why or d.costs)


def golden() -> dict[str, str]:
    """The expected logs, by name of the case."""
    parts = GOLDEN.read_text().split("## ")[1:]
    return {name: text.strip() for name, text in (p.split("\n", 1) for p in parts)}


@pytest.mark.parametrize("name", CASES)
def test_the_log_of_a_small_graph(name: str) -> None:
    assert log(CASES[name]) == golden()[name]


def test_each_expected_log_has_its_graph() -> None:
    assert list(golden()) == list(CASES)


@pytest.mark.parametrize("name", [n for n in CASES if "long" not in n and "loop" not in n and n != "copy"])
def test_kernels_compute_what_the_graph_means(name: str) -> None:
    nodes = [t.value.node for t in CASES[name].graph()]
    values = execute(nodes, buffers=CASES[name].buffers)
    for value, want, bound in zip(values, evaluate(nodes), allowed(nodes), strict=True):
        assert difference(value, want, bound) is None


def test_a_kernel_has_the_decisions_about_its_nodes_where_they_are_asked_for() -> None:
    (y,) = CASES["made for it"].graph()
    (spec,) = kernelize([y.value.node])
    assert spec.decisions == ()
    (kernel,) = weft.explain(y).kernels
    assert [d.node for d in kernel.decisions] == [f"<{op} f32[8, 16]>" for op in ("exp", "add")]
    assert weft.explain(y).decisions == kernel.decisions
    assert str(kernel.decisions) == "\n".join(map(str, kernel.decisions))


def test_a_decision_about_two_kernels_is_explained_with_both() -> None:
    explained = weft.explain(*CASES["recomputed"].graph())
    first, second = ([d for d in k.decisions if d.costs] for k in explained)
    assert first == second and len(first) == 1
    assert sum(bool(d.costs) for d in explained.decisions) == 1
