"""Convolutions in tiles are those convolutions, as exactly as a sum of all taps may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
import weft.nn.functional as F
from weft import Tensor
from weft.backends.registry import open_device
from weft.ir.calls import expand_calls
from weft.ir.graph import Node, toposort
from weft.ir.loops import LoopKind
from weft.ir.ops import Op
from weft.scheduler.invariants import split
from weft.scheduler.layouts import channels_innermost
from weft.scheduler.winograd import TiledConvolution, convolutions
from weft.testing.reference import evaluate

INFO = open_device("dummy:0").info
C = INFO.lanes(weft.float32)
EPS = float(np.finfo(np.float32).eps)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """TiledConvolution wherever they can be, whatever they take."""
    monkeypatch.setattr("weft.scheduler.winograd.GAIN", float("inf"))
    yield


def _leaf(*shape: int, seed: int = 0, dtype: weft.DType = weft.float32) -> Tensor:
    drawn = np.random.default_rng(seed).standard_normal(shape)
    return weft.tensor(drawn, dtype=dtype).realize()


def _found(result: Tensor, *weights: Tensor) -> dict[Node, TiledConvolution]:
    return dict(convolutions(expand_calls([result.value.node]), {w.value.node for w in weights}, INFO))


def _both(result: Tensor, *weights: Tensor) -> tuple[Any, Any, int]:
    """The results in tiles, and without; and how many convolutions are in tiles."""
    nodes = expand_calls([result.value.node])
    found = _found(result, *weights)
    in_tiles = {n: (t, t.weight()) for n, t in found.items()}
    (after,) = channels_innermost(nodes, {w.value.node for w in weights}, INFO, in_tiles)
    return evaluate([after])[0], evaluate(nodes)[0], len(found)


def _bound(x: Tensor, w: Tensor, **kwargs: Any) -> Any:
    """What a sum of all taps in sequence may be off by, were each as large as the largest of its channel: roundings,
    times the magnitudes of the elements that a result is of, and no others."""
    largest = w.abs().amax((2, 3), keepdim=True).expand(w.shape)
    return float(np.prod(w.shape[1:])) * EPS * F.conv2d(x.abs(), largest, **kwargs).numpy()


CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "padded": ((1, 3, 6, 8), {"padding": 1}),
    "not padded": ((1, 3, 6, 8), {}),
    "odd sizes": ((1, 3, 7, 5), {"padding": 1}),
    "a batch": ((3, 2, 5, 6), {"padding": 1}),
    "much padding": ((2, 2, 3, 4), {"padding": 3}),
    "unequal padding": ((1, 2, 5, 4), {"padding": (0, 2)}),
    "one tile": ((1, 2, 4, 4), {}),
}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_sum_of_all_taps(name: str) -> None:
    shape, how = CASES[name]
    x, w = _leaf(*shape), _leaf(C, shape[1], 3, 3, seed=1)
    got, want, count = _both(F.conv2d(x, w, **how), w)
    assert count == 1
    assert np.all(np.abs(got - want) <= _bound(x, w, **how))


@pytest.mark.usefixtures("always")
def test_images_that_lie_in_another_way_are_read_where_they_are() -> None:
    w = _leaf(C, 3, 3, 3)
    last = _leaf(2, 5, 7, 3).permute(0, 3, 1, 2)
    turned, flipped, strided = _leaf(1, 3, 7, 5).transpose(2, 3), _leaf(1, 3, 5, 7).flip(3), _leaf(1, 3, 9, 8)
    for x in (
        last,
        turned,
        flipped,
        strided[:, :, ::2],
        strided[:, :, 1:7],
        F.pad(_leaf(1, 3, 4, 4), (1, 2), value=2.0),
    ):
        got, want, count = _both(F.conv2d(x, w, padding=1), w)
        assert count == 1
        assert np.all(np.abs(got - want) <= _bound(x, w, padding=1))


def _patches(x: Tensor, w: Tensor, taps: int = 3) -> tuple[Tensor, Tensor]:
    """Windows of an image, and a weight, as factors.   -> (batch, 1, channels, rows, columns, taps, taps), and so on"""
    return x.unfold(2, taps, 1).unfold(3, taps, 1).unsqueeze(1), w[None, :, :, None, None]


@pytest.mark.usefixtures("always")
def test_sums_of_products_are_convolutions_whoever_writes_them() -> None:
    x, w = _leaf(3, 4, 6, 7), _leaf(C, 4, 3, 3)
    windows, taps = _patches(x, w)
    every = windows.expand(3, C, 4, 4, 5, 3, 3)
    for y in (
        windows * taps,
        windows[:, :, 1:3] * taps[:, :, 1:3],
        windows[1:] * taps,
        windows[..., 1:4, :, :] * taps,
    ):
        got, want, _ = _both(y.sum((2, 5, 6)), w)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert _found((windows * taps).sum((2, 5, 6)), w)
    short, _ = _patches(x, w, 2)
    padded = F.pad(short, (0, 1, 0, 1))[..., :4, :5, :, :]
    for z in (padded * taps, every[:2] * taps, every[..., 1:, :, :] * taps):
        got, want, _ = _both(z.sum((2, 5, 6)), w)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("always")
def test_what_is_no_such_convolution_stays_a_sum() -> None:
    x, w = _leaf(1, 4, 8, 8), _leaf(C, 4, 3, 3)
    assert _found(F.conv2d(x, w), w)
    turned = w.flip(2).realize()
    with weft.numerics("same"):
        pinned = F.conv2d(x, w)
    wide = _leaf(C, 4, 3, 3, dtype=weft.float64), _leaf(1, 4, 8, 8, dtype=weft.float64)
    for y, weight in (
        (F.conv2d(x, w, stride=2), w),
        (F.conv2d(x, w, stride=(1, 2)), w),
        (F.conv2d(x, w, dilation=2), w),
        (F.conv2d(x, _leaf(C, 4, 5, 5)), w),
        (F.conv2d(x, big := _leaf(C, 4, 5, 5)), big),
        (F.conv2d(x, thin := _leaf(C, 4, 1, 3)), thin),
        (F.conv2d(x, grouped := _leaf(2 * C, 2, 3, 3), groups=2), grouped),
        (F.conv2d(wide[1], wide[0]), wide[0]),
        (F.conv2d(x, w), turned),
        (F.conv2d(x, w.flip(2)), w),
        (F.conv_transpose2d(x, up := _leaf(4, C, 3, 3)), up),
        (F.conv1d(_leaf(1, 4, 8), line := _leaf(C, 4, 3)), line),
        (pinned, w),
        (x @ (square := _leaf(8, 8)), square),
    ):
        assert not _found(y, weight)
    nodes = expand_calls([F.conv2d(x, w).value.node])
    blocks = replace(INFO, task_kind=LoopKind.BLOCK)
    assert not list(convolutions(nodes, {w.value.node}, blocks)), "threads of blocks sum as they did"


def test_tiles_are_taken_where_they_pay() -> None:
    w, few, large = _leaf(2 * C, 2 * C, 3, 3), _leaf(C, 2, 3, 3), _leaf(1, 2 * C, 256, 256)
    assert _found(F.conv2d(_leaf(1, 2 * C, 14, 14), w, padding=1), w)
    assert not _found(F.conv2d(_leaf(1, 2, 14, 14), few), few), "of few channels the additions are most"
    assert not _found(F.conv2d(_leaf(1, 2 * C, 3, 3), w), w), "of one result most of a tile is nothing"
    assert not _found(F.conv2d(large[:, :2], few), few)
    mid = _leaf(C, C, 3, 3)
    assert _found(F.conv2d(large[:, :C, :32, :32], mid), mid)
    assert not _found(F.conv2d(large[:, :C], mid), mid), "what is between the kernels comes from memory"
    deep = weft.zeros(8 * C, 8 * C, 3, 3).realize()
    assert _found(F.conv2d(weft.zeros(1, 8 * C, 32, 32), deep, padding=1), deep)
    assert not _found(F.conv2d(weft.zeros(1, 8 * C, 8, 8), deep, padding=1), deep), "weights are most of it"


def _gained(x: Any, w: Any) -> tuple[float, float]:
    """The largest error of a convolution in tiles, and of the sum of all taps: to a sum of doubles."""
    y = F.conv2d(weft.tensor(x), kept := weft.tensor(w).realize(), padding=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.scheduler.winograd.GAIN", float("inf"))
        got, want, count = _both(y, kept)
    exact = F.conv2d(weft.tensor(x.astype(float)), weft.tensor(w.astype(float)), padding=1).numpy()
    assert count == 1
    return float(np.abs(got - exact).max()), float(np.abs(want - exact).max())


@pytest.mark.usefixtures("always")
def test_weights_are_rounded_once() -> None:
    w = _leaf(C, 3, 3, 3)
    (tiles,) = _found(F.conv2d(_leaf(1, 3, 8, 8), w), w).values()
    g = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    exact = np.einsum("ar,kcrs,bs->abck", g, w.numpy().astype(float), g).astype(np.float32)
    np.testing.assert_array_equal(evaluate([tiles.weight()])[0], exact.reshape(16, 1, 3, C))


def test_errors_are_a_few_times_those_of_the_sum() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 128, 8, 8)).astype(np.float32)
    w = (rng.standard_normal((C, 128, 3, 3)) / np.sqrt(9 * 128)).astype(np.float32)
    in_tiles, _ = _gained(x, w)
    assert in_tiles < 32 * EPS


@pytest.mark.usefixtures("always")
def test_results_are_of_the_elements_that_their_taps_reach() -> None:
    x = np.zeros((1, 2, 8, 8), np.float32)
    x[0, 0, 3, 4] = np.inf
    got, want, _ = _both(F.conv2d(weft.tensor(x), w := _leaf(C, 2, 3, 3), padding=1), w)
    np.testing.assert_array_equal(
        np.isfinite(got), np.isfinite(want), "an infinity gives NaN there, not elsewhere"
    )
    x[0, 0, 3, 4] = 1e30
    got, want, _ = _both(F.conv2d(weft.tensor(x), w, padding=1), w)
    assert np.array_equal(got == 0, want == 0)


@settings(
    max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck), deadline=None, database=None
)
@given(st.data())
def test_random_convolutions(data: st.DataObject) -> None:
    of = st.integers
    n, k, h, w = (data.draw(of(lo, hi)) for lo, hi in ((1, 3), (1, 4), (1, 9), (1, 9)))
    padding = data.draw(of(0, 3)), data.draw(of(0, 3))
    if h + 2 * padding[0] < 3 or w + 2 * padding[1] < 3:
        return
    x, weight = _leaf(n, k, h, w), _leaf(data.draw(st.sampled_from([C, 2 * C])), k, 3, 3, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.scheduler.winograd.GAIN", float("inf"))
        y = F.conv2d(x, weight, padding=padding)
        got, want, count = _both(y, weight)
    assert count == (k > 1 and min(y.shape[2:]) > 1), "one row of results, or one channel, is another sum"
    assert np.all(np.abs(got - want) <= _bound(x, weight, padding=padding))


@pytest.mark.usefixtures("always")
def test_weights_are_transformed_once_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, v = _leaf(1, 3, 8, 8), _leaf(C, 3, 3, 3), _leaf(C, C, 3, 3)
    y = F.conv2d(F.conv2d(x, w, padding=1).relu(), v, padding=1)
    z = F.conv2d(F.conv2d(x.exp(), w, padding=1), v)
    staying = {w.value.node, v.value.node}
    sizes = [(16, 1, 3, C), (16, 1, C, C)]
    found = split([y.value.node, z.value.node], staying, INFO)
    assert found is not None
    assert sorted(n.shape for n in found.kept if n.shape in sizes) == sizes
    monkeypatch.setattr("weft.scheduler.invariants.FREE_TILES_BYTES", 0)
    monkeypatch.setattr("weft.scheduler.invariants.SHARE", 1)  # 4 bytes each of (3 + C) * 9 * C numbers
    found = split([y.value.node], staying, INFO)
    assert found is not None
    assert [n.shape for n in found.kept if n.shape in sizes] == sizes[:1], "room for the small one alone"


@pytest.mark.parametrize("threads", [1, 2])
def test_a_compiled_network_follows_its_weights(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.scheduler.winograd.GAIN", float("inf"))
    monkeypatch.setenv("WEFT_NUM_THREADS", str(threads))
    x, w, v = _leaf(2, 3, 9, 7), _leaf(32, 3, 3, 3), _leaf(48, 32, 3, 3, seed=2)

    def net(x: Tensor) -> Tensor:
        y = F.max_pool2d(F.conv2d(x, w, padding=1).relu(), 3, 1, 1)
        return F.conv2d(weft.cat([y, y], 1)[:, 16:48], v).sigmoid()

    compiled = weft.compile(net)
    for _ in range(3):
        np.testing.assert_allclose(compiled(x).numpy(), net(x).numpy(), rtol=1e-4, atol=1e-5)
    kept = compiled.explain(x).kept
    assert sum("16, " in line for line in kept) == 2
    w.mul_(-0.5)
    np.testing.assert_allclose(compiled(x).numpy(), net(x).numpy(), rtol=1e-4, atol=1e-5)
    v.copy_(v.flip(0))
    np.testing.assert_allclose(compiled(x).numpy(), net(x).numpy(), rtol=1e-4, atol=1e-5)


def test_only_known_ops_are_made() -> None:
    x, w = _leaf(1, 3, 8, 6), _leaf(C, 3, 3, 3)
    y = F.conv2d(x, w)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.scheduler.winograd.GAIN", float("inf"))
        found = _found(y, w)
    (tiles,) = found.values()
    ops = {n.op for n in toposort([tiles.weight()])}
    assert Op.REDUCE_MAX not in ops and tiles.weight().dtype is weft.float32
    assert tiles.nbytes == 4 * int(np.prod(tiles.weight().shape))
