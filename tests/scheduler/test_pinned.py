"""The mode "same": bits follow from values and lengths, whatever else is computed beside, by whatever schedule."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft.backends import registry
from weft.distributed import init_device_mesh
from weft.distributed.tensor import Replicate, Shard, distribute_tensor
from weft.errors import ArgumentError, DeviceError
from weft.ir import expr as ex
from weft.ir import numerics
from weft.ir.calls import expand_calls
from weft.ir.expr import Load
from weft.ir.index import in_range
from weft.ir.kernel.algorithm import Algorithm, ItemValue, KnownFill, Output, Param, Reduce, StoreTo, place
from weft.ir.kernel.schedule import initial
from weft.ir.kernel.transforms.base import Refusal
from weft.ir.loops import LoopKind
from weft.ir.numerics import Tree
from weft.ir.ops import Op
from weft.scheduler.kernelize.kernels import kernelize
from weft.scheduler.kernelize.spec import KernelSpec
from weft.scheduler.optimize import pinned_dots
from weft.scheduler.optimize.rules import schedule
from weft.testing.kernels import F as f32
from weft.testing.kernels import axis, mul

ROWS = (1, 2, 7, 16, 33, 130)
"""Rows of a slice: fewer and more than tiles and vectors have, and none that divides the next."""

Function = Callable[..., Any]


def array(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def bits(*results: Any) -> list[bytes]:
    return [r.numpy().tobytes() for r in results]


def assert_slices_agree(f: Function, arrays: Sequence[Any], rows: Sequence[int] = ROWS) -> None:
    """`f` of the last rows is to the bit what `f` of all rows has there."""
    total = len(arrays[0])
    with weft.numerics("same"):
        whole = [r.numpy() for r in f(*map(weft.tensor, arrays))]
        for m in rows:
            start = total - m
            part = f(*(weft.tensor(x[start:]) for x in arrays))
            for k, (p, w) in enumerate(zip(part, whole, strict=True)):
                assert p.numpy().tobytes() == w[start:].tobytes(), (k, m)


@pytest.mark.parametrize("k, n", [(5, 3), (100, 1), (300, 10), (784, 130)])
def test_rows_of_a_product_are_those_of_its_slices(k: int, n: int) -> None:
    w, across = weft.tensor(array(k, n)), weft.tensor(array(n, k))

    def f(x: Any) -> Any:
        return x @ w, x @ across.T

    assert_slices_agree(f, [array(130, k)])


@pytest.mark.parametrize("k, n", [(512, 96), (72, 40), (260, 33), (1024, 1024)])
def test_few_rows_of_what_lies_along_the_sum_are_those_of_many(k: int, n: int) -> None:
    """Squares that are transposed in registers, a small rest of a block, and what many results share."""
    across, bias = weft.tensor(array(n, k)), weft.tensor(array(n))

    def f(x: Any) -> Any:
        return x @ across.T + bias, F.gelu(x) @ across.T

    assert_slices_agree(f, [array(20, k)], (1, 2, 3, 8, 13, 14))


@pytest.mark.parametrize("length, heads, width", [(300, 4, 16), (1100, 8, 32)])
def test_a_query_gives_the_bits_that_it_has_among_others(length: int, heads: int, width: int) -> None:
    """Keys and values of heads that lie side by side in rows, as a session keeps them."""
    kept = weft.tensor(array(length, 3, heads, width))
    keys, values = kept[:, 1].transpose(0, 1), kept[:, 2].transpose(0, 1)

    def f(q: Any) -> Any:
        scores = q.transpose(0, 1) @ keys.transpose(1, 2) * 0.25
        return ((scores.softmax(-1) @ values).transpose(0, 1),)

    assert_slices_agree(f, [array(10, heads, width)], (1, 2, 7))


def test_parts_of_a_sum_compute_their_own_weights_in_lanes_and_read_rows_whole() -> None:
    info = replace(registry.open_device("cpu:0").info, cores=2, flops=1e7, l2_bytes=1 << 18, vector_bytes=64)
    with weft.numerics("same"):
        scores, kept = weft.tensor(array(8, 512)).realize(), weft.tensor(array(512, 8, 64)).realize()
        weighted = (scores.exp()[:, None, :] @ kept.transpose(0, 1)).value.node
        (spec,) = kernelize([weighted])
        k = schedule(spec.algorithm, info)
    part, once = k.nests["sum_part"], k.nests["once"]
    assert part.loops[0].kind is LoopKind.PARALLEL and part.prefetch is not None
    assert once.at is not None and once.at.loop == part.loops[0].var.name and once.size[-1] == 128
    assert [s.extent for s in part.loops] == [4, 128, 8, 64]


def test_one_row_reads_what_lies_along_the_sum_in_squares() -> None:
    info = replace(registry.open_device("cpu:0").info, l2_bytes=1 << 10, vector_bytes=64, vector_registers=32)
    with weft.numerics("same"):
        for rows in (1, 3):
            x = weft.tensor(array(rows, 256)).realize()
            w = weft.tensor(array(64, 256)).realize()
            (spec,) = kernelize([(x @ w.T).value.node])
            k = schedule(spec.algorithm, info)
            assert not any("panel" in n for n in k.nests)
            loops = k.nests["sum_chain"].loops
            assert [s.kind for s in loops if s.reduce] == [LoopKind.SERIAL, LoopKind.UNROLL]
            assert loops[-1].kind is LoopKind.VECTOR and loops[-1].extent == 16
            assert k.nests["sum_chain"].prefetch is not None


def test_a_factor_of_few_operations_is_computed_once_for_all_squares() -> None:
    info = replace(registry.open_device("cpu:0").info, vector_bytes=64, vector_registers=32)
    with weft.numerics("same"):
        x, m, s = (weft.tensor(array(1, n)).realize() for n in (256, 1, 1))
        w = weft.tensor(array(64, 256)).realize()
        for factor, is_kept in ((x - m, False), ((x - m) * s, True)):
            (spec,) = kernelize([(factor @ w.T).value.node])
            assert ("once" in schedule(spec.algorithm, info).nests) is is_kept


def test_what_a_reduction_makes_is_stored_before_a_row_of_it_is_multiplied() -> None:
    """Computed within, its factor would not lie in memory, and each lane would have a chain of its own."""
    norm, linear, x = weft.nn.LayerNorm(64), weft.nn.Linear(64, 96), weft.tensor(array(1, 64))
    with weft.numerics("same"):
        y = linear(norm(x))
        node = expand_calls([y.value.node])
        made = [s.algorithm for s in kernelize(node) if isinstance(s, KernelSpec)]
        expected = linear(norm(weft.cat([x, weft.tensor(array(7, 64))])))[0]
    (last,) = [a for a in made if any(_sums_products(i) for i in a.items)]
    assert len([i for i in last.items if isinstance(i, ItemValue)]) == 1
    assert y[0].numpy().tobytes() == expected.numpy().tobytes()


def _sums_products(item: object) -> bool:
    return isinstance(item, ItemValue) and item.reduce is not None and item.reduce.tree is Tree.PRODUCTS


def test_a_row_times_several_weights_reads_all_in_squares() -> None:
    """A gate and what it opens, of one row: each sum in its order, none of them gathered."""
    info = replace(registry.open_device("cpu:0").info, vector_bytes=64, vector_registers=32)
    gated = lambda x, g, u: (x @ g.T).sigmoid() * (x @ u.T) + (x @ g.T)  # noqa: E731
    with weft.numerics("same"):
        x = weft.tensor(array(1, 300)).realize()
        weights = [weft.tensor(array(77, 300)).realize() for _ in range(2)]
        (spec,) = kernelize([gated(x, *weights).value.node])
        k = schedule(spec.algorithm, info)
    chains = [n for name, n in k.nests.items() if name.endswith("chain")]
    assert len(chains) == 2
    for n in chains:
        assert n.loops[-1].kind is LoopKind.VECTOR and n.loops[-1].extent == 16
        assert [s.kind for s in n.loops if s.reduce] == [LoopKind.SERIAL, LoopKind.UNROLL]
    for depth, columns in ((300, 77), (64, 16), (1000, 33), (17, 5)):
        weights = [weft.tensor(array(columns, depth, seed=seed)) for seed in (1, 2)]
        assert_slices_agree(lambda x, weights=weights: (gated(x, *weights),), [array(9, depth)], (1, 2, 9))


@pytest.mark.parametrize(
    "columns, depths, choice",
    [
        (77, (256, 256), "squares of 16 by 16"),
        (2, (256, 256), "squares of 16 by 16"),  # the axis of two results is one to run side by side along
        (77, (256, 20), "squares of 16 by 4"),  # steps that divide both sums
        (77, (20, 256), "squares of 16 by 4"),
        (77, (256, 7), "8 chains side by side"),  # a sum shorter than a square
    ],
)
def test_sums_side_by_side_take_the_steps_that_all_have(
    columns: int, depths: tuple[int, int], choice: str
) -> None:
    info = replace(registry.open_device("cpu:0").info, vector_bytes=64, vector_registers=32)
    a, b = axis("a", columns), axis("b", columns)
    dots = [
        ItemValue(
            name,
            (i,),
            mul(Load(f32, f"{name}w", (i.var, n.var)), Load(f32, f"{name}x", (n.var,))),
            Reduce(Op.ADD, (n,), Tree.PRODUCTS),
        )
        for name, i, n in (("p", a, axis("np", depths[0])), ("q", b, axis("nq", depths[1])))
    ]
    y = axis("y", columns)
    added = ex.call(Op.ADD, *(Load(f32, d.name, (y.var,)) for d in dots))
    params = [
        p
        for d, n in zip(dots, depths, strict=True)
        for p in (Param(f"{d.name}w", f32, (columns, n)), Param(f"{d.name}x", f32, (n,)))
    ]
    out = Output("out", (y,), (StoreTo("r", (y.var,), added),))
    algorithm = Algorithm("sums", (*params, Param("r", f32, (columns,), True)), (), (*dots, out))
    form = pinned_dots.recognise(initial(algorithm), info)
    assert not isinstance(form, Refusal)
    assert str(pinned_dots.choose(form, info)) == f"{choice} along a"


def test_one_row_of_a_large_product_is_summed_in_its_blocks_by_tasks() -> None:
    info = replace(registry.open_device("cpu:0").info, cores=2, flops=1e7)
    with weft.numerics("same"):
        x, w = weft.tensor(array(1, 512)).realize(), weft.tensor(array(512, 64)).realize()
        (spec,) = kernelize([(x @ w).value.node])
        k = schedule(spec.algorithm, info)
        assert k.nests["sum_part"].loops[0].kind is LoopKind.PARALLEL
    w = weft.tensor(array(512, 512))
    assert_slices_agree(lambda x: (x @ w,), [array(20, 512)], (1, 3))


@pytest.mark.parametrize("n", [3, 1000, 9001])
def test_sums_along_rows_are_those_of_slices(n: int) -> None:
    def f(x: Any) -> Any:
        return (
            x.sum(-1),
            x.softmax(-1),
            F.layer_norm(x, (n,)),
            x.prod(-1),
            x.cumsum(-1),
            x.var(-1),
            x.logsumexp(-1),
        )

    assert_slices_agree(f, [array(130, n)])


def test_elementwise_bits_depend_on_no_tail_and_no_fusion() -> None:
    def f(x: Any, y: Any) -> Any:
        return (
            x * y - y * x.exp(), (x * y + 1).sin() * y + x.tanh() * x, F.gelu(x) * y + x, x.erf() * x + y.cos(),
            (x.abs() + 0.1).log() * y + x.sigmoid() / (y * y + 1), (x.abs() + 1).pow(2.5) * y - x,
        )  # fmt: skip

    assert_slices_agree(f, [array(130, 37), array(130, 37, seed=1)])
    with weft.numerics("same"):
        x, y = weft.tensor(array(40, 37)), weft.tensor(array(40, 37, seed=1))
        product = (x * y).realize()
        assert bits(product + x) == bits(x * y + x)
        assert bits(product.sum(0), product.sum(-1)) == bits((x * y).sum(0), (x * y).sum(-1))


def test_images_of_a_batch_are_those_of_slices() -> None:
    w, deep = weft.tensor(array(8, 4, 3, 3)), weft.tensor(array(4, 1, 3, 3))

    def f(x: Any) -> Any:
        x = x.requires_grad_()
        y = F.conv2d(x, w, stride=2, padding=1)
        z = F.conv2d(x, deep, padding=1, groups=4)
        ((y * y).sum() + (z * z.sin()).sum()).backward()
        return y.detach(), z.detach(), x.grad, F.avg_pool2d(x.detach(), 3, 2), x.detach().mean((2, 3))

    assert_slices_agree(f, [array(17, 4, 13, 13)], (1, 2, 5))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_a_batch_is_that_of_slices(causal: bool) -> None:
    def f(q: Any, k: Any, v: Any) -> Any:
        return (F.scaled_dot_product_attention(q, k, v, is_causal=causal),)

    assert_slices_agree(f, [array(17, 2, 33, 16, seed=s) for s in range(3)], (1, 5))


def test_a_transformer_block_gives_each_row_its_own_bits_forward_and_backward() -> None:
    weft.manual_seed(0)
    layer = weft.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)

    def f(x: Any) -> Any:
        x = x.requires_grad_()
        y = layer(x)
        (y * y.sin()).sum().backward()
        return y.detach(), x.grad

    assert_slices_agree(f, [array(17, 9, 32)], (1, 5))


def model(seed: int = 0) -> tuple[Any, Any]:
    weft.manual_seed(seed)
    net = weft.nn.Sequential(weft.nn.Linear(20, 33), weft.nn.Tanh(), weft.nn.Linear(33, 5))
    return net, weft.optim.Adam(net.parameters(), lr=1e-2)


def trained(parts: Sequence[slice], steps: int = 10) -> list[bytes]:
    """The parameters after some steps, each from the gradients of these parts of the batch, added in their order."""
    net, adam = model()
    x, y = array(384, 20), np.random.default_rng(3).integers(0, 5, 384)
    for _ in range(steps):
        adam.zero_grad()
        for p in parts:
            F.cross_entropy(net(weft.tensor(x[p])), weft.tensor(y[p]), reduction="sum").backward()
        adam.step()
    return bits(*net.parameters())


def test_ten_steps_from_parts_of_a_batch_cut_where_blocks_end_are_those_from_all_of_it() -> None:
    ends = [0, *numerics.cuts(384), 384]
    with weft.numerics("same"):
        whole = trained([slice(0, 384)])
        assert trained([slice(a, b) for a, b in pairwise(ends)]) == whole
        assert trained([slice(0, 100), slice(100, 384)]) != whole


@pytest.mark.parametrize("length", [300, 1024, 20000])
def test_sums_of_blocks_combine_to_the_whole(length: int) -> None:
    a, b, x = array(7, length), array(length, 19), array(length, 11)
    ends = [0, *numerics.cuts(length), length]
    pairs = list(pairwise(ends))
    with weft.numerics("same"):
        whole = bits(weft.tensor(a) @ weft.tensor(b), weft.tensor(x).sum(0))
        products = [weft.tensor(a[:, i:j]) @ weft.tensor(b[i:j]) for i, j in pairs]
        sums = [weft.tensor(x[i:j]).sum(0) for i, j in pairs]
        assert bits(weft.stack(products).realize().sum(0), weft.stack(sums).realize().sum(0)) == whole


def test_sums_of_blocks_of_rows_combine_to_the_whole() -> None:
    x = array(5, 20000)
    ends = [0, *numerics.cuts(20000, Tree.LANES), 20000]
    with weft.numerics("same"):
        parts = [weft.tensor(x[:, i:j]).sum(-1) for i, j in pairwise(ends)]
        assert bits(weft.stack(parts).realize().sum(0)) == bits(weft.tensor(x).sum(-1))


def computed(device: str) -> list[bytes]:
    def t(*shape: int) -> Any:
        return weft.tensor(array(*shape), device=device)

    a, b, c, q = t(40, 300), t(300, 33), t(33, 300), t(2, 2, 12, 16)
    return bits(
        a @ b, a @ c.T, t(1, 300) @ c.T, a.sum(0), a.sum(-1), a.softmax(-1), F.layer_norm(a, (300,)), F.gelu(a) * a + a,
        a.tanh() * a - a.exp() / (a * a + 1), F.conv2d(t(3, 4, 9, 9), t(8, 4, 3, 3), padding=1),
        F.scaled_dot_product_attention(q, q, q, is_causal=True), t(300, 260).sum(0),
    )  # fmt: skip


def test_devices_and_numbers_of_threads_give_the_same_bits() -> None:
    threads = weft.get_num_threads()
    with weft.numerics("same"):
        first = computed("cpu")
        try:
            weft.set_num_threads(1)
            assert computed("cpu") == first
            weft.set_num_threads(3)
            assert computed("cpu") == first
        finally:
            weft.set_num_threads(threads)
        assert computed("dummy") == first
        if any(s.name == "opencl:0" for s in registry.statuses()):
            assert computed("opencl") == first


def test_schedules_for_other_machines_keep_the_order() -> None:
    cpu = registry.open_device("cpu:0").info
    with weft.numerics("same"):
        (spec,) = kernelize([(weft.tensor(array(40, 300)) @ weft.tensor(array(300, 33))).value.node])
    orders: list[list[tuple[Tree, list[Any]]]] = []
    for info in (cpu, replace(cpu, cores=64), replace(cpu, vector_bytes=16, vector_registers=16)):
        items = schedule(spec.algorithm, info).algorithm.items
        sums = [i.reduce for i in items if isinstance(i, ItemValue) and i.reduce is not None]
        orders.append([(r.tree, [a.extent for a in r.axes]) for r in sums])
    assert orders == [[(Tree.PRODUCTS, [128]), (Tree.PRODUCTS, [3])]] * 3


def test_a_mode_has_plans_of_its_own() -> None:
    x, w = weft.tensor(array(40, 784)), weft.tensor(array(784, 33))
    free = bits(x @ w)
    with weft.numerics("same"):
        same = bits(x @ w)
        with weft.numerics("free"):
            assert bits(x @ w) == free
        assert bits(x @ w) == same
    assert bits(x @ w) == free != same


def test_a_compiled_function_keeps_to_its_mode() -> None:
    def f(x: Any, w: Any) -> Any:
        return x @ w

    x, w = weft.tensor(array(40, 784)), weft.tensor(array(784, 33))
    free = bits(f(x, w))
    with weft.numerics("same"):
        same = bits(f(x, w))
    plain, pinned = weft.compile(f), weft.compile(f, numerics="same")
    for _ in range(3):
        assert bits(plain(x, w)) == free
        assert bits(pinned(x, w)) == same
        with weft.numerics("same"):
            assert bits(plain(x, w)) == same


def test_a_compiled_module_keeps_to_its_mode_when_it_is_copied() -> None:
    net, _ = model()
    x = weft.tensor(array(40, 20))
    with weft.numerics("same"):
        same = bits(net(x))
    compiled: Any = weft.compile(net, numerics="same")
    assert bits(compiled(x)) == same == bits(copy.deepcopy(compiled)(x))


def test_other_modes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="'free' or 'same', not 'exact'"):
        weft.numerics("exact")  # pyright: ignore[reportArgumentType]


def test_grids_of_blocks_are_refused() -> None:
    info = replace(registry.open_device("cpu:0").info, name="grid:0", task_kind=LoopKind.BLOCK, warp=32)
    with weft.numerics("same"):
        (spec,) = kernelize([weft.tensor(array(4, 5)).sum(-1).value.node])
    with pytest.raises(DeviceError, match='grid:0: numerics="same"'):
        schedule(spec.algorithm, info)


@pytest.mark.parametrize("world", [2, 3])
def test_meshes_give_the_bits_of_one_device(world: int) -> None:
    mesh = init_device_mesh("dummy", (world,))
    x, w = weft.tensor(array(20, 300)), weft.tensor(array(300, 40))

    def f(x: Any, w: Any) -> list[Any]:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = (x @ w).softmax(-1)
        (y * y).sum().backward()
        return [y.detach(), x.grad, w.grad]

    with weft.numerics("same"):
        one = bits(*f(x, w))
        for px, pw in ((Shard(0), Replicate()), (Replicate(), Shard(1)), (Shard(1), Shard(0))):
            several = f(distribute_tensor(x, mesh, [px]), distribute_tensor(w, mesh, [pw]))
            assert bits(*(t.full_tensor() for t in several)) == one, (px, pw)


def test_a_product_that_is_summed_is_not_stored_beside_what_it_is_made_of() -> None:
    """One row times what a kernel has to store: in memory, products would be rounded."""
    a, w, row = (weft.tensor(array(*shape)) for shape in ((32, 16), (16, 16), (1, 32)))
    with weft.numerics("same"):
        from_memory = a @ w
        from_memory.numpy()
        wanted = (row @ from_memory).numpy()
        assert np.array_equal((row @ (a @ w)).numpy(), wanted)
        stored = [n for spec in kernelize([(row @ (a @ w)).value.node], 64) for n in spec.writes]
    assert not any(n.op is Op.MUL for n in stored)


FUNCTIONS_OF_POSITIONS: dict[str, Callable[[Any], Any]] = {
    "cos": lambda at: (at * 0.3).cos(),
    "sin": lambda at: (at * 0.3 - 2).sin(),
    "exp": lambda at: (at * -0.25).exp(),
    "log": lambda at: (at + 3).log(),
    "tanh": lambda at: (at * 0.11).tanh(),
    "erf": lambda at: (at * 0.07).erf(),
    "power": lambda at: 10000.0 ** (at * -0.05),
    "sigmoid": lambda at: (at * 0.2).sigmoid(),
}


@pytest.mark.parametrize("name", FUNCTIONS_OF_POSITIONS)
def test_a_function_of_a_position_has_the_same_bits_alone(name: str) -> None:
    """In a kernel of one row the position is a constant."""
    f, x = FUNCTIONS_OF_POSITIONS[name], weft.tensor(array(40, 3))
    with weft.numerics("same"):
        whole = (x * f(weft.arange(40.0))[:, None]).numpy()
        for k in (1, 4, 9, 23, 38):
            assert bits((x * f(weft.arange(40.0))[:, None])[k]) == [whole[k].tobytes()], k


@pytest.mark.parametrize(
    ("value", "count"), [(0.1, 13), (0.1, 300), (1.0, 300), (0.75, 1000), (1e38, 5), (-0.0, 3)]
)
def test_a_sum_of_constants_has_the_bits_of_one_from_memory(value: float, count: int) -> None:
    with weft.numerics("same"):
        stored = weft.full((2, count), value).contiguous().realize()
        assert bits(weft.full((2, count), value).sum(1)) == bits(stored.sum(1))
        assert bits(weft.full((count, 2), value).sum(0)) == bits(stored.T.contiguous().realize().sum(0))


@pytest.mark.parametrize(("length", "heads", "width"), [(40, 2, 8), (300, 4, 16), (600, 8, 32)])
def test_a_row_at_a_place_of_run_time_has_the_bits_of_causal_attention(
    length: int, heads: int, width: int
) -> None:
    kept = weft.tensor(array(length, 3, heads, width)).realize()
    t = weft.Variable("t", 0, length - 1)

    def f() -> Any:
        q, k, v = (kept[:, i].transpose(0, 1) for i in range(3))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1)

    with weft.numerics("same"):
        whole, row = f().numpy(), f()[t]
        for at in (0, 1, 15, 16, length // 2, length - 1):
            assert bits(weft.bind(row, t=at)) == [whole[at].tobytes()], at


def test_a_row_at_a_place_of_run_time_reads_no_keys_and_values_that_the_mask_hides() -> None:
    info = replace(registry.open_device("cpu:0").info, cores=2, flops=1e7, l2_bytes=1 << 18, vector_bytes=64)
    t = weft.Variable("t", 0, 510)
    with weft.numerics("same"):
        q, kept = weft.tensor(array(8, 1, 64)).realize(), weft.tensor(array(512, 8, 64)).realize()
        seen = weft.arange(512) <= weft.arange(512)[t]
        scores = weft.where(seen, q @ kept.permute(1, 2, 0), -float("inf"))
        (spec,) = kernelize(expand_calls([scores.value.node]))
        k = schedule(spec.algorithm, info)
        nest = k.nests["sum"]
        assert "t" in repr(nest.loops[0].extent)
        assert nest.at is not None and nest.at.loop == "block_i_in", "parts of heads are read together"

        stored, top = weft.tensor(array(8, 512)).realize(), weft.tensor(array(8, 1)).realize()
        weighted = ((stored - top).exp() / top)[:, None, :] @ kept.transpose(0, 1)
        (spec,) = kernelize([weighted.value.node])
        below = KnownFill(in_range(t - place(1, 512), 0, None), -float("inf"))
        params = tuple([replace(p, fill=below) if p.shape == (8, 512) else p for p in spec.algorithm.params])
        k = schedule(replace(spec.algorithm, params=params, variables=(t,)), info)
    loops = [s for s in k.nests["sum_part"].loops if s.reduce]
    assert repr(loops[0].extent) == "min(128, max(-128*r1o3 + t + 1, 0))"
