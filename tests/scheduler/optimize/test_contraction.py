"""Sums of products: every form of the schedule, at sizes where tiles, blocks and lanes do not come out even."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.scheduler.optimize.test_refusals import leaf
from weft.backends.dummy.interpreter import interpret
from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir.dtypes import to_numpy
from weft.ir.index import high
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import Kernel, initial
from weft.ir.loops import LoopKind, Scope
from weft.ir.loops_verify import verify
from weft.scheduler.kernelize.kernels import kernelize
from weft.scheduler.optimize.contraction_form import found
from weft.scheduler.optimize.levels import PRODUCT_CHAIN
from weft.scheduler.optimize.operands import clash, run_bytes
from weft.scheduler.optimize.rules import schedule
from weft.testing.kernels import matmul


def info(vector_bytes: int, registers: int, l2_bytes: int = 1 << 20, cores: int = 2) -> DeviceInfo:
    return DeviceInfo(
        name="test:0", kind="test", description="", cores=cores, vector_bytes=vector_bytes, vector_registers=registers,
        l1_bytes=32 << 10, l2_bytes=l2_bytes, l3_bytes=32 << 20, memory_bytes=1 << 34, local_bytes=1 << 20,
        bandwidth=4e10, flops=2e11, launch_ns=20.0,
    )  # fmt: skip


DEVICES = {"avx512": info(64, 32), "avx2": info(32, 16), "small caches": info(32, 16, l2_bytes=4 << 10)}


Build = Callable[..., weft.Tensor]


def scheduled(
    f: Build, arrays: list[np.ndarray], device: DeviceInfo, record: Mapping[str, str] | None = None
) -> tuple[Kernel, np.ndarray]:
    """The only kernel of f(*arrays), and what the interpreter says that it computes."""
    leaves = [weft.tensor(a).realize() for a in arrays]
    y = f(*leaves)
    (spec,) = kernelize([y.value.node])
    kernel = schedule(spec.algorithm, device, record)
    program = lower(kernel)
    verify(program)
    data = {t.value.node: a for t, a in zip(leaves, arrays, strict=True)}
    buffers: dict[str, np.ndarray] = {}
    for p, node in zip(kernel.algorithm.params, (*spec.reads, *spec.writes), strict=True):
        fresh = np.full(int(np.prod(node.shape)), 77, to_numpy(p.dtype))
        buffers[p.name] = fresh if p.written else data[node].reshape(-1).copy()
    interpret(program, buffers, {})
    (written,) = (p.name for p in kernel.algorithm.params if p.written)
    return kernel, buffers[written].reshape(y.shape)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def conv(x: weft.Tensor, w: weft.Tensor, stride: int = 1) -> weft.Tensor:
    return F.conv2d(x, w, padding=1, stride=stride)


def conv_nhwc(x: weft.Tensor, w: weft.Tensor) -> weft.Tensor:
    return F.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), padding=1).permute(0, 2, 3, 1)


def weight_gradient(x: weft.Tensor, g: weft.Tensor, kernel: int) -> weft.Tensor:
    """Of conv's sum of products with g; the weight itself does not matter."""
    w = weft.zeros(g.shape[1], x.shape[1], kernel, kernel).realize()
    return weft.grad(lambda w: (conv(x, w) * g).sum())(w)


def reference_conv(x: np.ndarray, w: np.ndarray, stride: int = 1) -> np.ndarray:
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (2, 3))
    return np.einsum("ncyxuv,ocuv->noyx", windows[:, :, ::stride, ::stride], w)


def close(have: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(have, want, rtol=2e-4, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize("device", DEVICES)
def test_convolutions_of_every_layout(device: str) -> None:
    x, w = normal(2, 5, 9, 11), normal(7, 5, 3, 3, seed=1)
    want = reference_conv(x, w)
    close(scheduled(conv, [x, w], DEVICES[device])[1], want)
    close(scheduled(lambda x, w: conv(x, w, 2), [x, w], DEVICES[device])[1], reference_conv(x, w, 2))
    turned = [np.ascontiguousarray(a.transpose(0, 2, 3, 1)) for a in (x, w)]
    close(scheduled(conv_nhwc, turned, DEVICES[device])[1], want.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_a_convolution(device: str) -> None:
    x, g = normal(3, 2, 20, 21), normal(3, 3, 20, 21, seed=1)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (20, 21), (2, 3))
    want = np.einsum("ncuvyx,noyx->ocuv", windows, g)
    _, got = scheduled(lambda x, g: weight_gradient(x, g, 3), [x, g], DEVICES[device])
    close(got, want)
    w, g = normal(6, 4, 3, 3, seed=2), normal(2, 6, 9, 11, seed=3)
    flipped = w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
    x = weft.zeros(2, 4, 9, 11).realize()
    _, got = scheduled(lambda w, g: weft.grad(lambda x: (conv(x, w) * g).sum())(x), [w, g], DEVICES[device])
    close(got, reference_conv(g, flipped))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("m", "n", "k"), [(3, 20, 35), (20, 2, 35), (2, 5, 1030)])
def test_products_of_all_four_layouts(m: int, n: int, k: int, device: str) -> None:
    a, b = normal(m, k), normal(k, n, seed=1)
    want = a.astype(np.float64) @ b
    for turned_a, turned_b in ((False, False), (False, True), (True, False), (True, True)):
        arrays = [np.ascontiguousarray(a.T) if turned_a else a, np.ascontiguousarray(b.T) if turned_b else b]

        def product(x: weft.Tensor, y: weft.Tensor, ta: bool = turned_a, tb: bool = turned_b) -> weft.Tensor:
            return ((x.T if ta else x) @ (y.T if tb else y)).relu()

        close(scheduled(product, arrays, DEVICES[device])[1], np.maximum(want, 0))


def test_a_window_of_the_image_is_copied_once_for_all_taps() -> None:
    kernel, _ = scheduled(conv_nhwc, [normal(1, 9, 11, 32), normal(32, 3, 3, 32)], DEVICES["avx512"])
    assert kernel.nests["window"].size[1:] == (3, 14, 32) or kernel.nests["window"].size[3] == 32
    assert all(c.guard == () for e in kernel.algorithm.item("sum").exprs() for c in _loads(e))


def test_a_window_of_what_is_computed_of_the_image_is_copied_once() -> None:
    """An activation in front of a convolution, with channels last: edges and activation belong to the copy."""
    x, w = normal(1, 9, 11, 32), normal(32, 3, 3, 32, seed=1)
    kernel, got = scheduled(lambda x, w: conv_nhwc(x.relu(), w), [x, w], DEVICES["avx512"])
    first = [a.transpose(0, 3, 1, 2) for a in (np.maximum(x, 0), w)]
    close(got, reference_conv(*first).transpose(0, 2, 3, 1))
    assert "window" in kernel.nests
    assert {load.source for e in kernel.algorithm.item("sum").exprs() for load in _loads(e)} >= {"window"}


def test_rows_at_awkward_places_are_found_once_for_all_steps() -> None:
    """Windows of an image that was shifted, by a weight: the place of a row is no sum of axes, its steps are."""

    def product(x: weft.Tensor, w: weft.Tensor) -> weft.Tensor:
        parts = x.reshape(2, 7, 2, 7, 64).permute(0, 2, 1, 3, 4).reshape(4, 49, 64)
        return parts @ w

    x, w = normal(196, 64), normal(64, 96, seed=1)
    kernel, got = scheduled(product, [x, w], DEVICES["avx512"])
    parts = x.reshape(2, 7, 2, 7, 64).transpose(0, 2, 1, 3, 4).reshape(4, 49, 64)
    close(got, parts @ w)
    assert kernel.nests["sum"].scope is Scope.REGISTER and "sum_lanes" not in kernel.nests


def test_rows_of_a_tile_lie_close_where_runs_are_short() -> None:
    """Heads of many windows from memory, summed: rows of a window are neighbours, those of several are pages apart."""
    a, w = normal(3, 12, 2, 18, 32), normal(3, 2, 32, 24, seed=1)
    kernel, got = scheduled(lambda a, w: weft.einsum("cbhtd,chdn->btn", a, w), [a, w], info(32, 16, 8 << 10))
    close(got, np.einsum("cbhtd,chdn->btn", a, w))
    axes = next(p for p in kernel.decisions.picks if p.name == "contraction.axes")
    assert axes.option == "lanes k1, rows j1"


def test_runs_go_on_over_axes_that_lie_in_each_other() -> None:
    """Heads that the weight has in another order are two axes, and one run."""
    w = leaf(32, 2, 24)
    for formula, a, run in (
        ("bthd,dhn->btn", leaf(12, 18, 2, 32), 256),
        ("hbtd,dhn->btn", leaf(2, 12, 18, 32), 128),
    ):
        (spec,) = kernelize([weft.einsum(formula, a, w).value.node])
        k = initial(spec.algorithm)
        c = found(k)
        side = next(n for n, f in enumerate(c.factors) if isinstance(f, ex.Load) and f.source == "p0")
        assert run_bytes(k, c, side) == run


def test_windows_are_of_blocks_that_share_little() -> None:
    """Three by three taps of 8 x 8 places: windows of one place copy each element nine times, of blocks hardly once."""
    x, w = normal(1, 4, 8, 8), normal(16, 4, 3, 3, seed=1)
    turned = [np.ascontiguousarray(a.transpose(0, 2, 3, 1)) for a in (x, w)]
    k, got = scheduled(conv_nhwc, turned, info(64, 32, l2_bytes=8 << 10, cores=1))
    close(got, reference_conv(x, w).transpose(0, 2, 3, 1))
    size = np.prod([int(a.extent) for a in k.algorithm.item("window").axes])
    loops = [*k.nests["window"].loops, *k.enclosing("window")]
    copied = np.prod([int(s.extent) for s in loops])
    assert size <= copied <= 2 * size


@pytest.mark.parametrize(
    ("depth", "columns", "asked"), [(64, 20, False), (130, 20, True), (700, 20, False), (130, 16, False)]
)
def test_short_rows_from_memory_are_asked_for(depth: int, columns: int, asked: bool) -> None:
    """The hardware follows long rows, and short ones are one run; those between are asked for a tile early, unless one
    vector of results is all that is multiplied meanwhile."""
    a, b = normal(12, depth), normal(depth, columns, seed=1)
    k, got = scheduled(lambda x, y: x @ y, [a, b], info(64, 32, l2_bytes=1 << 10))
    assert any(n.prefetch is not None for n in k.nests.values()) is asked
    close(got, a.astype(np.float64) @ b)


@pytest.mark.parametrize(("cache", "output"), [(1 << 14, "out"), (1 << 20, "")])
def test_large_operands_of_an_epilogue_are_asked_for_while_the_tile_is_summed(
    cache: int, output: str
) -> None:
    a, b, w = normal(64, 70), normal(64, 90, seed=1), normal(70, 90, seed=2)
    k, got = scheduled(lambda x, y, z: z - 0.1 * (x.T @ y), [a, b, w], info(64, 32, cache))
    asked = {name: n.prefetch for name, n in k.nests.items() if n.prefetch is not None}
    assert [h.output for h in asked.values()] == [output] and ("out" in asked) is not bool(output)
    assert [h.steps > 1 for h in asked.values()] == [bool(output)], "some steps ask for a line, not all"
    close(got, w - 0.1 * (a.T.astype(np.float64) @ b))


@pytest.mark.parametrize(("depth", "output"), [("whole", "out"), ("in blocks", "")])
def test_sums_in_blocks_wait_for_their_epilogue(depth: str, output: str) -> None:
    """What it needs is asked for a tile ahead then: asked for along the sums, it would leave the cache meanwhile."""
    n = PRODUCT_CHAIN + 8
    x, y, z = (weft.tensor(normal(*shape)).realize() for shape in ((n, 160), (n, 160), (160, 160)))
    (spec,) = kernelize([(z - 0.1 * (x.T @ y)).value.node])
    record = {"contraction.method": "tiles", "contraction.depth": depth}
    k = schedule(spec.algorithm, info(16, 16, 90 << 10, 1), record)
    assert {h.output for n in k.nests.values() if (h := n.prefetch) is not None} == {output}


def test_a_stream_whose_lines_share_few_sets_is_packed_in_blocks() -> None:
    """Steps 256 bytes apart: a quarter of the sets of the second cache, which have room for 32 lines, not for 70."""
    a, b = normal(70, 64), normal(70, 64, seed=1)
    caches = replace(info(64, 32, l2_bytes=8 << 10), l1_bytes=2 << 10)
    k, got = scheduled(lambda x, y: x.T @ y, [a, b], caches)
    rows = k.nests["stream"].size[1]
    assert rows > 1 and 64 % rows == 0
    close(got, a.T.astype(np.float64) @ b)


def test_as_many_tasks_as_cores_have_alike() -> None:
    """192 columns: three panels of 64 would keep one of two cores waiting."""
    a, b = normal(8, 3), normal(3, 192, seed=1)
    k, got = scheduled(lambda x, y: x @ y, [a, b], replace(info(64, 32), flops=1e7))
    (tasks,) = [s.extent for n in k.nests.values() for s in n.loops if s.kind is LoopKind.PARALLEL]
    assert isinstance(tasks, int) and tasks % 2 == 0
    close(got, a.astype(np.float64) @ b)


def test_a_few_rows_are_inner_products_and_pack_nothing() -> None:
    kernel, _ = scheduled(lambda x, w: x @ w.T, [normal(4, 256), normal(64, 256)], DEVICES["avx512"])
    assert set(kernel.nests) == {"sum", "sum_lanes", "out"}
    assert kernel.nests["sum_lanes"].loops[-1].kind is LoopKind.VECTOR
    assert kernel.nests["sum_lanes"].scope is Scope.REGISTER


@pytest.mark.parametrize("device", ["avx512", "avx2"])
@pytest.mark.parametrize("rows", [2, 9, 17])
def test_weights_in_blocks_are_widened_a_tile_at_a_time(rows: int, device: str) -> None:
    """Blocks of 34 bytes, of which 32 are numbers: no vector reaches into two, though three would divide a row."""
    rng = np.random.default_rng(1)
    x, scale = normal(rows, 96), normal(20, 3, 1)
    blocks = rng.integers(-128, 128, (20, 3, 34)).astype(np.int8)

    def product(x: weft.Tensor, blocks: weft.Tensor, scale: weft.Tensor) -> weft.Tensor:
        return x @ (blocks[:, :, 2:].float() * scale).reshape(20, 96).T

    want = x.astype(np.float64) @ (blocks[:, :, 2:] * scale).reshape(20, 96).T
    kernel, got = scheduled(product, [x, blocks, scale], DEVICES[device])
    close(got, want)
    ways = {p.name: p.options for p in kernel.decisions.picks}
    close(scheduled(product, [x, blocks, scale], DEVICES[device], {"contraction.method": "tiles"})[1], want)
    assert ["packed" in str(way) for way in ways["dots.axes"]] == [True, False]
    for way in ways["dots.axes"]:
        record = {"contraction.method": "inner products", "dots.axes": str(way)}
        kernel, got = scheduled(product, [x, blocks, scale], DEVICES[device], record)
        close(got, want)
        packed = kernel.nests.get("packed1")
        assert (packed is not None) == ("packed" in str(way))
        assert packed is None or (packed.at is not None and packed.loops[-1].extent == 32)


def test_factors_whose_neighbours_are_other_results_are_packed_as_a_whole() -> None:
    x, w = normal(2, 96), normal(96, 20, seed=1)
    record = {"contraction.method": "inner products"}
    kernel, got = scheduled(lambda x, w: x @ w, [x, w], DEVICES["avx512"], record)
    close(got, x.astype(np.float64) @ w)
    assert kernel.nests["packed1"].at is None


@pytest.mark.parametrize("depth", [64, 72, 130])
def test_a_panel_that_is_used_once_is_transposed_in_registers(depth: int) -> None:
    """Nine rows are too many for inner products; in the same order as ever, and nothing is packed."""
    a, b = normal(9, depth), normal(40, depth, seed=1)
    with weft.numerics("same"):
        kernel, got = scheduled(lambda x, w: x @ w.T, [a, b], DEVICES["avx512"])
        close(got, a.astype(np.float64) @ b.T)
        _, whole = scheduled(lambda x, w: x @ w.T, [np.tile(a, (4, 1)), b], DEVICES["avx512"])
    assert "panel" not in kernel.nests
    assert got.tobytes() == whole[:9].tobytes()


def test_one_panel_is_shared_by_tasks_that_cut_another_axis() -> None:
    """All output channels of a weight gradient are one panel, the kernel's columns one tile: input channels are cut."""
    x, g = normal(2, 6, 8, 8), normal(2, 8, 8, 8, seed=1)
    slow = replace(info(64, 32, cores=3), flops=1e9)  # even this little work is worth three tasks
    k, got = scheduled(lambda x, g: weight_gradient(x, g, 3), [x, g], slow)
    (parallel,) = [s.extent for n in k.nests.values() for s in n.loops if s.kind is LoopKind.PARALLEL]
    assert parallel == 3
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (8, 8), (2, 3))
    close(got, np.einsum("ncuvyx,noyx->ocuv", windows, g))


def _loads(e: ex.Expr) -> list[ex.Load]:
    return [x for x in ex.walk([e]) if isinstance(x, ex.Load)]


def test_a_counter_beside_a_product_does_not_cost_its_tiles() -> None:
    count = weft.tensor(3).realize()
    a, b = weft.tensor(normal(40, 30)).realize(), weft.tensor(normal(30, 50)).realize()
    step = count + 1
    (spec,) = kernelize([(a @ b + step).value.node, step.value.node])
    assert schedule(spec.algorithm, DEVICES["avx512"]).nests["sum"].scope is Scope.REGISTER


def test_a_deep_product_packs_its_panel_in_blocks() -> None:
    nests = schedule(matmul(1500, 64, 5000).algorithm, DEVICES["small caches"]).nests
    steps = [x.var.name for x in nests["c"].loops if x.reduce]
    panel = nests["panel"]
    assert steps and panel.at is not None and panel.at.loop == steps[-1]
    assert int(np.prod(panel.size)) < 5000 * 16 and nests["c_chain"].scope is Scope.REGISTER


def test_the_depth_is_shared_out_where_there_is_much_of_it() -> None:
    """Each task adds up a part of the depth for all results; sizes come out uneven. On this machine: the interpreter
    would take long."""
    for k, m, n in ((40000, 7, 20), (40009, 9, 70)):
        x, y = normal(k, m), normal(k, n, seed=1)
        a, b = weft.tensor(x).realize(), weft.tensor(y).realize()
        for cores in (1, 2):
            device = info(64, 32, l2_bytes=64 << 10, cores=cores)
            (spec,) = kernelize([(a.T @ b).value.node])
            kernel = schedule(spec.algorithm, device)
            verify(lower(kernel))
            tasks = [s.extent for x in kernel.nests.values() for s in x.loops if s.kind is LoopKind.PARALLEL]
            assert tasks == ([8] if cores == 2 else [])
        close((a.T @ b).numpy(), x.T.astype(np.float64) @ y)
        want = (np.maximum(y, 0).astype(np.float64).T @ np.abs(x)) * 2 + 1
        close(((b.relu().T @ a.abs()) * 2 + 1).numpy(), want)


@pytest.mark.parametrize(("apart", "depth"), [(1, 96), (1, 800), (2, 96)])
@pytest.mark.parametrize("device", ["avx512", "small caches"])
def test_a_factor_that_lies_in_panels_is_read_there(apart: int, depth: int, device: str) -> None:
    """Steps of the sum that lie apart are no panel, and are packed."""
    rows, n, width = 9, 128, 64

    def product(x: weft.Tensor, p: weft.Tensor) -> weft.Tensor:
        return x @ p[:, :, 0].permute(0, 2, 1).reshape(n, depth).T

    arrays = [normal(rows, depth), normal(n // width, depth, apart, width, seed=1)]
    kernel, found = scheduled(product, arrays, DEVICES[device])
    assert ("panel" in kernel.nests) == (apart > 1)
    assert ("sum_chain" in kernel.nests) == (depth > 96)  # the steps in blocks, with sums of their own
    w = arrays[1][:, :, 0].transpose(0, 2, 1).reshape(n, depth)
    close(found, arrays[0].astype(np.float64) @ w.T)


@pytest.mark.parametrize(
    ("cache", "asked"), [(12 << 10, False), (24 << 10, True), (1 << 20, False)]
)  # none for two panels of 8 KiB; for three; all of them are in the cache
def test_the_next_panel_in_memory_is_asked_for(cache: int, asked: bool) -> None:
    x, w = normal(40, 64), normal(8, 64, 32, seed=1)  # w[j // 32, k, j % 32]

    def product(x: weft.Tensor, w: weft.Tensor) -> weft.Tensor:
        return x @ w.permute(1, 0, 2).reshape(64, 256)

    kernel, y = scheduled(product, [x, w], replace(info(64, 32, cache), l1_bytes=4 << 10))
    hints = [n.prefetch for n in kernel.nests.values() if n.prefetch is not None]
    assert [h.shared for h in hints] == [True] * asked
    close(y, x.astype(np.float64) @ w.transpose(1, 0, 2).reshape(64, 256))


def test_rows_that_share_a_set_are_as_many_as_its_lines() -> None:
    for ways, least in ((8, 8), (12, 12)):
        device = replace(info(64, 32), l1_bytes=ways << 12, l1_ways=ways)
        assert [clash(3 << 12, rows, device) for rows in (4, 8, 12)] == [rows >= least for rows in (4, 8, 12)]
        assert not clash(None, 20, device) and not clash((3 << 12) + 64, 12, device)


VARIED = weft.Variable("m", 1, 40_000), weft.Variable("k", 1, 40_000), weft.Variable("n", 1, 40_000)


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (8, 30, 70), (67, 9, 16), (130, 5, 3), (3, 200, 129)], ids=str)
def test_one_kernel_multiplies_matrices_of_all_sizes(sizes: tuple[int, int, int], device: DeviceInfo) -> None:
    """Where panels may be fewer than cores, chunks of the rows are tasks as well; where the whole of a panel may leave
    the cache, it is read where it lies."""
    m, k, n = VARIED
    (spec,) = kernelize([(leaf(m, k) @ leaf(k, n)).value.node])
    kernel = schedule(spec.algorithm, device)
    assert "panel" not in kernel.nests
    assert [s.kind for s in kernel.nests["out"].loops][:2] == [LoopKind.PARALLEL, LoopKind.SERIAL]
    program = lower(kernel)
    verify(program)
    a, b = (normal(*shape) for shape in (sizes[:2], sizes[1:]))
    reads = iter((a, b))
    buffers = {
        p.name: np.full(sizes[0] * sizes[2], np.nan, np.float32)
        if p.written
        else next(reads).reshape(-1).copy()
        for p in kernel.algorithm.params
    }
    interpret(program, buffers, dict(zip("mkn", sizes, strict=True)), races=True)
    (written,) = (p.name for p in kernel.algorithm.params if p.written)
    np.testing.assert_allclose(buffers[written].reshape(sizes[0], sizes[2]), a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (8, 30, 70), (67, 9, 16), (9, 401, 50), (2, 850, 3)], ids=str)
def test_a_panel_of_unknown_depth_is_packed_in_blocks(
    sizes: tuple[int, int, int], device: DeviceInfo
) -> None:
    """Where the whole of it may leave the cache, and does not lie along the lanes."""
    m, k, n = VARIED
    (spec,) = kernelize([(leaf(m, k) @ leaf(n, k).T).value.node])
    kernel = schedule(spec.algorithm, device)
    assert high(kernel.nests["panel"].size[0]) <= PRODUCT_CHAIN
    program = lower(kernel)
    verify(program)
    a, b = normal(*sizes[:2]), normal(sizes[2], sizes[1])
    reads = iter((a, b))
    buffers = {
        p.name: np.full(sizes[0] * sizes[2], np.nan, np.float32)
        if p.written
        else next(reads).reshape(-1).copy()
        for p in kernel.algorithm.params
    }
    interpret(program, buffers, dict(zip("mkn", sizes, strict=True)), races=True)
    (written,) = (p.name for p in kernel.algorithm.params if p.written)
    np.testing.assert_allclose(buffers[written].reshape(sizes[0], sizes[2]), a @ b.T, rtol=1e-4, atol=1e-4)


def test_cores_share_the_rows_of_tall_products() -> None:
    """So that what a core wrote of the stream is in its caches, as kernels before and after it are shared, too."""

    def first(m: int, n: int, cores: int) -> str:
        k = schedule(matmul(m, n, 64).algorithm, info(64, 32, cores=cores))
        return next(iter(k.nests["out"].loops)).var.name

    assert first(8192, 256, 2) == "sc_po"
    assert first(1024, 1024, 2).startswith("po"), "each core would pack all panels"
    assert first(8192, 256, 1).startswith("po")


@pytest.mark.parametrize("device", ["avx512", "avx2"])
def test_a_stream_that_steps_from_line_to_line_is_used_in_blocks(device: str) -> None:
    """x.T @ y, the gradient of a layer's weight: between two tiles of rows all lines of a stream would leave the first
    cache, which each use a part of each line alone."""
    n = PRODUCT_CHAIN + 32
    a, b = normal(n, 24), normal(n, 64, seed=1)
    k, got = scheduled(lambda x, y: x.T @ y, [a, b], DEVICES[device])
    close(got, a.T.astype(np.float64) @ b)
    (depth,) = [p for p in k.decisions.picks if p.name == "contraction.depth"]
    assert depth.option == "in blocks"
    k, _ = scheduled(lambda x, y: x @ y, [normal(24, n), b], DEVICES[device])
    (depth,) = [p for p in k.decisions.picks if p.name == "contraction.depth"]
    assert depth.option == "whole", "rows lie along the sum"


MOVING = {"avx512": info(64, 32, 16 << 10), "avx2": info(32, 16, 16 << 10)}


@pytest.mark.parametrize("device", MOVING)
@pytest.mark.parametrize(("depth", "rows"), [(70, 130), (66, 128)])
def test_a_stream_from_beyond_the_cache_is_moved_first(device: str, depth: int, rows: int) -> None:
    """Tile by tile, step by step of the sum: the last tile may have fewer rows."""
    x, g = normal(depth, rows), normal(depth, 80, seed=1)
    k, got = scheduled(lambda x, g: (x.T @ g).relu(), [x, g], MOVING[device])
    close(got, (x.T.astype(np.float64) @ g).clip(0))
    nest = k.nests["moved"]
    assert nest.at is None
    assert 1 < nest.layout.blocks[-1] == nest.loops[-1].extent
    k, got = scheduled(lambda x, g: x.T @ g, [x, g[:, :32].copy()], MOVING[device])
    close(got, x.T.astype(np.float64) @ g[:, :32])
    assert "moved" not in k.nests, "few panels read it"


def test_a_stream_is_moved_where_a_copy_pays() -> None:
    """One that the second cache does not hold and the last one does, and whose rows are neighbours."""

    def moved(x: weft.Tensor, device: DeviceInfo) -> Kernel | None:
        (spec,) = kernelize([(x.T @ weft.zeros(x.shape[0], 384).realize()).value.node])
        k = schedule(spec.algorithm, device)
        ways = next(p.options for p in k.decisions.picks if p.name == "contraction.axes")
        return k if any(str(way).endswith("rows i1 moved") for way in ways) else None

    x, near = weft.zeros(1576, 1152).realize(), info(32, 16, 512 << 10)
    k = moved(x, near)
    assert k is not None and k.nests["moved"].loops[0].kind is LoopKind.PARALLEL
    assert moved(x, info(32, 16, 8 << 20)) is None, "the second cache holds it"
    assert moved(x, replace(near, l3_bytes=4 << 20)) is None, "no cache holds a copy"
    assert moved(weft.zeros(1576, 1152, 2).realize()[..., 0], near) is None, "its rows are apart"


@pytest.mark.parametrize("device", MOVING)
def test_all_steps_of_a_tiles_rows_lie_together(device: str) -> None:
    """A sum over two axes is one run through what was moved."""
    a, b = normal(2, 40, 128), normal(40, 2, 80, seed=1)
    k, got = scheduled(
        lambda x, g: (x.permute(1, 0, 2).unsqueeze(3) * g.unsqueeze(2)).sum((0, 1)), [a, b], MOVING[device]
    )
    close(got, np.einsum("ijk,jil->kl", a.astype(np.float64), b))
    assert k.nests["moved"].layout.order[0] == 2, "all steps of a tile's rows lie together"


@pytest.mark.parametrize(("depth", "wide", "narrow"), [(512, 2048, 256), (784, 1536, 384)])
def test_the_stream_stays_in_the_second_cache_or_is_moved(depth: int, wide: int, narrow: int) -> None:
    """Each panel's tiles read it from line to line: from beyond that cache nothing would hide it."""
    x, g = weft.zeros(depth, wide).realize(), weft.zeros(depth, narrow).realize()
    for product, lanes in ((x.T @ g, "lanes i1, rows j1"), (g.T @ x, "lanes j1, rows i1")):
        (spec,) = kernelize([product.value.node])
        picks = {p.name: p for p in schedule(spec.algorithm, info(64, 32, 2 << 20)).decisions.picks}
        assert picks["contraction.axes"].option == lanes or str(picks["contraction.axes"].option).endswith(
            " moved"
        )
        assert picks["contraction.method"].option == "tiles"


@pytest.mark.parametrize("stride", [1, 2])
def test_windows_of_a_weights_gradient_are_copied_once(stride: int) -> None:
    """A window for each tap would be copied nine times; in blocks of the depth one serves all taps, and steps are as
    short as that there is room for it."""
    x = weft.zeros(8, 16 * stride, 16 * stride, 32).realize()
    g = weft.zeros(8, 16, 16, 64).realize()
    w = weft.zeros(64, 32, 3, 3).realize()
    image, seen = (t.permute(0, 3, 1, 2) for t in (x, g))
    gradient = weft.grad(lambda w: (conv(image, w, stride) * seen).sum())(w).permute(2, 3, 1, 0)
    (spec,) = kernelize([gradient.value.node])
    device = info(64, 32, l2_bytes=256 << 10, cores=1)
    k = schedule(spec.algorithm, device)
    verify(lower(k))
    picked = {p.name: p.option for p in k.decisions.picks}
    assert picked["contraction.depth"] == "in blocks" and "window" in k.nests
    copied = np.prod([int(s.extent) for s in [*k.nests["window"].loops, *k.enclosing("window")]])
    assert copied <= 2 * int(np.prod(x.shape))


@pytest.mark.parametrize(("stride", "dilation"), [(1, 2), (2, 1), (3, 1)])
def test_a_stream_with_edges_is_moved_first_as_well(stride: int, dilation: int) -> None:
    """With its zeros outside, in place of a window for each panel, of which strides leave out a part."""

    def convolved(x: weft.Tensor, w: weft.Tensor) -> weft.Tensor:
        return F.conv2d(x.permute(0, 3, 1, 2), w, padding=1, stride=stride, dilation=dilation)

    def gradient(x: weft.Tensor, g: weft.Tensor) -> weft.Tensor:
        w = weft.zeros(40, 64, 2, 2)
        found = weft.grad(lambda w: (convolved(x, w) * g.permute(0, 3, 1, 2)).sum())(w)
        return found.permute(2, 3, 0, 1)

    x, device = normal(3, 7 * stride, 7 * stride, 64), MOVING["avx2"]
    places = convolved(weft.tensor(x), weft.zeros(40, 64, 2, 2)).permute(0, 2, 3, 1).shape
    g = normal(*places, seed=2)
    (spec,) = kernelize([gradient(weft.tensor(x).realize(), weft.tensor(g).realize()).value.node])
    ways = next(
        p.options for p in schedule(spec.algorithm, device).decisions.picks if p.name == "contraction.axes"
    )
    assert "lanes i1, rows j1 moved" in map(str, ways)
    k, got = scheduled(gradient, [x, g], device, {"contraction.axes": "lanes i1, rows j1 moved"})
    assert "moved" in k.nests and "window" not in k.nests
    want, full = np.zeros((2, 2, 40, 64)), np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    h, v = g.shape[1:3]
    for r, s in np.ndindex(2, 2):
        seen = full[:, r * dilation :: stride, s * dilation :: stride][:, :h, :v]
        want[r, s] = np.einsum("nijc,nijk->kc", seen, g)
    close(got, want)


def costs(pick: str, *results: weft.Tensor) -> Mapping[str, float]:
    """What the options of a decision about the only kernel are expected to take."""
    (spec,) = kernelize([t.value.node for t in results])
    k = schedule(spec.algorithm, info(32, 16, 512 << 10))
    (found,) = (p for p in k.decisions.picks if p.name == pick)
    return dict(zip(map(str, found.options), found.costs, strict=True))


def test_a_window_of_which_strides_leave_out_a_part_counts_as_a_whole() -> None:
    def ways(stride: int, padding: int = 1) -> Mapping[str, float]:
        size = 14 * stride + 2 * (1 - padding)
        x, w = weft.zeros(4, size, size, 256).realize(), weft.zeros(256, 256, 3, 3)
        g = weft.zeros(4, 14, 14, 256).realize()

        def loss(w: weft.Tensor) -> weft.Tensor:
            y = F.conv2d(x.permute(0, 3, 1, 2), w, stride=stride, padding=padding)
            return (y * g.permute(0, 3, 1, 2)).sum()

        return costs("contraction.axes", weft.grad(loss)(w).permute(2, 3, 0, 1))

    once, apart = ways(1), ways(2)
    in_windows, moved = "lanes i1, rows j1", "lanes i1, rows j1 moved"
    assert apart[in_windows] > 1.1 * once[in_windows]
    assert min(apart, key=lambda n: apart[n]).endswith(" moved")
    assert apart[moved] == once[moved] == ways(1, padding=0)[moved], "what is moved is moved with its edges"


def test_what_is_stored_and_read_with_each_result_counts() -> None:
    """An update with moments has seven tensors, which a tile of two rows would go through two elements at a time."""
    x, g = weft.zeros(196, 512).realize(), weft.zeros(196, 2048).realize()
    tensors = [weft.zeros(512, 2048).realize() for _ in range(3)]

    def axes(*results: weft.Tensor) -> str:
        (spec,) = kernelize([t.value.node for t in results])
        k = schedule(spec.algorithm, info(32, 16, 512 << 10))
        return str(next(p.option for p in k.decisions.picks if p.name == "contraction.axes"))

    grad = x.T @ g
    p, m, _ = tensors
    m = 0.9 * m + grad
    assert axes(p - 0.1 * m, m, grad).startswith("lanes j1"), "along what lies side by side"


def test_what_is_read_with_each_result_counts_by_how_it_lies() -> None:
    x, g = weft.zeros(196, 512).realize(), weft.zeros(196, 2048).realize()
    more = [weft.zeros(512, 2048).realize() for _ in range(3)]
    alone, beside = x.T @ g, x.T @ g + more[0] * more[1] * more[2]
    across = x.T @ g + weft.zeros(2048, 512).realize().T
    device, results = info(32, 16, 512 << 10).costs, 512 * 2048

    def dearer(pick: str, option: str, what: weft.Tensor = beside) -> float:
        return (costs(pick, what)[option] - costs(pick, alone)[option]) / results

    assert dearer("contraction.axes", "lanes j1, rows i1") == pytest.approx(3 * device.copy_cycles)
    assert dearer("contraction.axes", "lanes i1, rows j1") == pytest.approx(3 * device.gather_cycles)
    assert dearer("contraction.method", "inner products") == pytest.approx(3 * device.gather_cycles)
    for way in (
        "lanes j1, rows i1",
        "lanes i1, rows j1",
    ):  # in a tile that is turned, it is read along the rows
        assert dearer("contraction.axes", way, across) == pytest.approx(device.gather_cycles)
