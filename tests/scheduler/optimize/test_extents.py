"""Sizes that are only known at run time: how they are judged, and schedules as good as those for known sizes."""

from __future__ import annotations

from collections.abc import Callable

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
from weft.scheduler.optimize.extents import blocks_of, divides, typical
from weft.scheduler.optimize.rules import decide

N = weft.Variable("n", 2, 256)


def test_a_typical_size_is_a_quarter_of_the_largest() -> None:
    n, few, block = Var("n", 2, 256), Var("m", 100, 120), Var("b", 0, 15)
    assert (typical(48), typical(n), typical(few), typical(3 * n)) == (48, 64, 100, 192)
    assert typical(minimum(16, maximum(ceildiv(n, 4) - 16 * block, 0))) == 16, "that of the first block"


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
    x = leaf(n, 5)  # pyright: ignore[reportArgumentType]
    (made,) = scheduled(F.avg_pool1d(x.T[None], 3, 2))
    verify(lower(made))
