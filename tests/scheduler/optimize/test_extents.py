"""Sizes that are only known at run time: how they are judged, and schedules as good as those for known sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.scheduler.optimize.test_refusals import WIDE, leaf
from weft import Tensor
from weft.ir.index import Var, ceildiv, maximum, minimum
from weft.ir.kernel.algorithm import ItemValue
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import Kernel
from weft.ir.loops import LoopKind, Scope
from weft.ir.loops_verify import verify
from weft.scheduler.kernelize.cost import NO_LIMIT
from weft.scheduler.kernelize.kernels import kernelize_all, kernels
from weft.scheduler.optimize.extents import blocks_of, divides, typical, typical_elements
from weft.scheduler.optimize.rules import decide

N = weft.Variable("n", 2, 256)


def test_a_typical_size_is_a_quarter_of_the_largest() -> None:
    n, few, block = Var("n", 2, 256), Var("m", 100, 120), Var("b", 0, 15)
    assert (typical(48), typical(n), typical(few), typical(3 * n)) == (48, 64, 100, 192)
    assert typical(minimum(16, maximum(ceildiv(n, 4) - 16 * block, 0))) == 16, "that of the first block"


def test_of_several_sizes_of_any_length_few_are_long() -> None:
    n, m = Var("n", 2, 1 << 24), Var("m", 2, 1 << 24)
    assert typical_elements((3, 5)) == 15 and typical_elements((64, Var("n", 2, 256))) == 64 * 64
    assert typical_elements((n, m)) == typical_elements((n,)) == 1024


def test_half_a_block_more_is_computed_of_sizes_known_at_run_time() -> None:
    n = Var("n", 2, 256)
    assert (blocks_of(48, 32), blocks_of(n, 32)) == (2, 2.5)
    assert divides(16, 48) and divides(16, 16 * ceildiv(n, 16)) and divides(64, 64 * n)
    assert not divides(16, n) and not divides(16, 40)


def scheduled(*tensors: Tensor) -> list[Kernel]:
    nodes = [t.value.node for t in tensors]
    return [decide(k.algorithm, WIDE).kernel for k in kernels(kernelize_all(nodes, NO_LIMIT))]


def convolution_weights(x: Tensor) -> Tensor:
    w = weft.zeros(32, 16, 3, requires_grad=True)
    (found,) = weft.autograd.grad(F.conv1d(x, w, padding=1).sum(), [w])
    return found


ALONG: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: leaf(64, N).softmax(-1),
    "columns": lambda: leaf(64, N).amax(0),
    "elements": lambda: leaf(64, N).tanh(),
    "log softmax": lambda: leaf(64, N).log_softmax(-1),
    "windows": lambda: F.max_pool1d(leaf(1, 8, 2 * N), 2),  # pyright: ignore[reportOperatorIssue]
}


@pytest.mark.parametrize("name", ALONG)
def test_every_item_has_lanes_along_a_runtime_size(name: str) -> None:
    (k,) = scheduled(ALONG[name]())
    for item in k.algorithm.items:
        loops = k.nests[item.name].loops
        assert not loops or any(s.kind is LoopKind.VECTOR for s in loops), item.name


@pytest.mark.parametrize("causal", [False, True])
def test_attention_over_a_runtime_length_runs_in_one_pass(causal: bool) -> None:
    q, k, v = (leaf(16, N, 64) for _ in range(3))
    (made,) = scheduled(F.scaled_dot_product_attention(q, k, v, is_causal=causal))
    assert sum(n.online is not None for n in made.nests.values()) == 2
    rows = next(s for s in made.nests["out"].loops if s.var.name == "it")
    assert not isinstance(rows.extent, int), "the last block of rows is as short as what is left"


PRODUCTS: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: leaf(N, 64) @ leaf(64, 128),
    "weights": lambda: leaf(N, 64).mT @ leaf(N, 128),
    "weights of many rows": lambda: leaf(4 * N, 64).mT @ leaf(4 * N, 128),  # pyright: ignore[reportOperatorIssue]
    "pairs": lambda: leaf(N, 64) @ leaf(N, 64).mT,
    "convolution": lambda: F.conv1d(leaf(8, 16, N), leaf(32, 16, 3), padding=1),
    "images": lambda: F.conv2d(leaf(4, 8, N, N), leaf(16, 8, 3, 3), padding=1),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_runtime_sizes_keep_tiles_in_registers(name: str) -> None:
    (k,) = scheduled(PRODUCTS[name]())
    sums = [i.name for i in k.algorithm.items if isinstance(i, ItemValue) and i.reduce is not None]
    assert any(k.nests[n].scope is Scope.REGISTER and len(k.nests[n].size) >= 2 for n in sums)


def test_a_panel_of_windows_is_read_up_to_what_the_loops_around_it_leave() -> None:
    """Where the panel ends depends on its number, and on that of the lanes in which it was made: these are gone."""
    n = weft.Variable("n", 1176, 1210)
    x = leaf(n, 5)
    (made,) = scheduled(F.avg_pool1d(x.T[None], 3, 2))
    verify(lower(made))


def lanes_of(k: Kernel, item: str) -> int:
    """The lanes of an item's vector loop."""
    (found,) = (s.extent for s in k.nests[item].loops if s.kind is LoopKind.VECTOR)
    assert isinstance(found, int)
    return found


def test_rows_of_a_runtime_length_have_few_lanes() -> None:
    """Most of four vectors were masked out in rows of 16."""
    m = weft.Variable("m", 2, 1 << 24)
    (rows,) = scheduled(leaf(m, N) + leaf(N))
    assert lanes_of(rows, "out") == WIDE.lanes(weft.float32)
    (one,) = scheduled(leaf(m) + 1)
    assert lanes_of(one, "out") == 4 * WIDE.lanes(weft.float32)
    (known,) = scheduled(leaf(300, 500) + leaf(500))
    assert lanes_of(known, "out") == 4 * WIDE.lanes(weft.float32)


def test_what_may_be_large_is_not_stored_past_the_caches() -> None:
    m = weft.Variable("m", 2, 1 << 24)
    for small, large in (
        (leaf(m) + 1, leaf(1 << 26) + 1),
        (leaf(m, N) + leaf(N), leaf(1 << 17, 500) + leaf(500)),
    ):
        ((a,), (b,)) = scheduled(small), scheduled(large)
        assert not a.nests["out"].stream and b.nests["out"].stream


def test_a_sum_of_a_runtime_length_is_not_of_parts_far_apart() -> None:
    """Of four rows of 131,072 that were summed at a time, three were empty."""
    m = weft.Variable("m", 2, 1 << 24)
    (made,) = scheduled(leaf(m).sum())
    names = {s.var.name for nest in made.nests.values() for s in nest.loops}
    assert not any("group" in n or "row" in n for n in names)


def test_running_sums_of_blocks_take_many_rows() -> None:
    m = weft.Variable("m", 2, 1 << 20)
    (made,) = scheduled(leaf(m, 32).cumsum(1))
    (value,) = (i.name for i in made.algorithm.items if isinstance(i, ItemValue))
    assert made.nests[value].scope is Scope.REGISTER and lanes_of(made, value) == 32


@pytest.mark.parametrize("columns", [1, 5, 16, 33])
def test_rows_added_at_places_have_lanes(columns: int) -> None:
    """Gradients of embeddings: element by element, rows of a runtime length took four times as long."""
    m = weft.Variable("m", 2, 1 << 20)
    at = weft.zeros(7, dtype=weft.int64).realize()
    made = scheduled(leaf(9, m).index_add(0, at, leaf(7, m)))[-1]
    assert lanes_of(made, "out") == WIDE.lanes(weft.float32)
    rng = np.random.default_rng(0)
    x, u, places = rng.integers(-9, 9, (9, columns)), rng.integers(-9, 9, (7, columns)), rng.integers(0, 9, 7)
    want = x.astype(np.float32)
    np.add.at(want, places, u)
    for n in (columns, columns + 1):  # the second one makes the plan for all
        a, b = (weft.tensor(np.resize(t, (len(t), n)).astype(np.float32)) for t in (x, u))
        got = a.index_add(0, weft.tensor(places), b).numpy()
        if n == columns:
            np.testing.assert_array_equal(got, want)
        else:
            own = np.resize(x, (9, n)).astype(np.float32)
            np.add.at(own, places, np.resize(u, (7, n)))
            np.testing.assert_array_equal(got, own)


def test_elements_added_at_places_of_their_own_have_no_lanes() -> None:
    m = weft.Variable("m", 2, 1 << 20)
    at = weft.zeros(9, m, dtype=weft.int64)
    made = scheduled(leaf(9, m).scatter_add(1, at + leaf(9, m).long(), leaf(9, m)))[-1]
    assert all(s.kind is not LoopKind.VECTOR for s in made.nests["out"].loops)


def test_sums_along_rows_of_a_runtime_length_have_few_lanes() -> None:
    m, n, wide = weft.Variable("m", 2, 1 << 20), weft.Variable("n", 2, 1 << 20), WIDE.lanes(weft.float32)
    (sums,) = scheduled(leaf(m, n).sum(1))
    (kept,) = scheduled(leaf(m, N).softmax(1))
    assert lanes_of(sums, next(i for i in sums.nests if i.endswith("_lanes"))) == wide, "four rows at a time"
    assert (
        lanes_of(kept, next(i for i in kept.nests if i.startswith("sum") and i.endswith("_lanes")))
        <= 2 * wide
    )
