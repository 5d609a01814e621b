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
from weft.scheduler.convolutions import convolutions, gradients
from weft.scheduler.invariants import split
from weft.scheduler.layouts import channels_innermost, laid_out
from weft.scheduler.winograd import TiledConvolution
from weft.testing.reference import evaluate

INFO = open_device("dummy:0").info
C = INFO.lanes(weft.float32)
EPS = float(np.finfo(np.float32).eps)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """TiledConvolution wherever they can be, whatever they take."""
    monkeypatch.setattr("weft.scheduler.convolutions.GAIN", float("inf"))
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
def test_transposed_convolutions_are_convolutions_by_the_last_tap_first() -> None:
    for shape, padding in (((2, 3, 5, 6), 0), ((1, 4, 4, 3), 1), ((1, 2, 7, 2), (1, 0)), ((2, 5, 6, 6), 2)):
        x, w = _leaf(*shape), _leaf(shape[1], C, 3, 3, seed=1)
        got, want, count = _both(F.conv_transpose2d(x, w, padding=padding), w)
        assert count == 1
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * _scale(want))


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
        (F.conv_transpose2d(x, up := _leaf(4, C, 3, 3), stride=2), up),
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
        patch.setattr("weft.scheduler.convolutions.GAIN", float("inf"))
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
    np.testing.assert_array_equal(evaluate([tiles.weight()])[0], exact.reshape(1, 16, 3, C))


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
        patch.setattr("weft.scheduler.convolutions.GAIN", float("inf"))
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
    sizes = [(1, 16, 3, C), (1, 16, C, C)]
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
    monkeypatch.setattr("weft.scheduler.convolutions.GAIN", float("inf"))
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
        patch.setattr("weft.scheduler.convolutions.GAIN", float("inf"))
        found = _found(y, w)
    (tiles,) = found.values()
    ops = {n.op for n in toposort([tiles.weight()])}
    assert Op.REDUCE_MAX not in ops and tiles.weight().dtype is weft.float32
    assert tiles.nbytes == 4 * int(np.prod(tiles.weight().shape))


# training steps ------------------------------------------------------------------------------------------------------


def _step(net: list[tuple[Tensor, int]], x: Tensor) -> list[Node]:
    """The loss of a chain of convolutions, and their weights after a step down its gradient."""
    y = x
    for w, padding in net:
        y = F.conv2d(y, w, padding=padding).tanh()
    loss = (y * y).sum()
    weights = [w for w, _ in net]
    new = [w.detach() - 0.1 * g for w, g in zip(weights, weft.gradients(loss, weights), strict=True)]
    return expand_calls([t.value.node for t in (loss, *new)])


def _trained(*shape: int, seed: int = 0) -> Tensor:
    return (_leaf(*shape, seed=seed) * 0.1).realize().requires_grad_()


def _scale(x: Any) -> float:
    return float(np.abs(x).max(initial=0)) or 1.0


@pytest.fixture
def any_step(always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training steps in tiles, whatever is read again."""
    monkeypatch.setattr("weft.scheduler.layouts.COLUMN_LINE_CYCLES", 0.0)


@pytest.mark.usefixtures("any_step")
def test_a_step_has_its_convolutions_and_all_gradients_in_tiles() -> None:
    net = [(_trained(C, C, 3, 3, seed=k), 1) for k in range(3)]
    nodes = _step(net, _leaf(2, C, 8, 6))
    weights = {w.value.node for w, _ in net}
    found = dict(convolutions(nodes, weights, INFO, stay=False))
    assert [t.rows.back for t in found.values()].count(True) == 2, "the gradients of two images"
    assert [t.results for t in found.values()] == [(8, 6)] * 5, (
        "of the padded image's gradient the image's alone"
    )
    of_weights = dict(gradients(nodes, INFO))
    assert len(of_weights) == 3
    made = laid_out(nodes, INFO)
    for got, want in zip(evaluate(made), evaluate(nodes), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * _scale(want))
    spread = [n for n in toposort(made) if n.op is Op.CONCAT and n.shape[0] == 16]
    assert len(spread) == 5 + 2 * 3, "what a gradient reads is not kept from the convolution on"


@settings(
    max_examples=40, derandomize=True, suppress_health_check=list(HealthCheck), deadline=None, database=None
)
@given(st.data())
def test_random_steps(data: st.DataObject) -> None:
    of = st.integers
    n, h, w = (data.draw(of(1, hi)) for hi in (3, 9, 9))
    channels = [data.draw(st.sampled_from([16, 32])) for _ in range(data.draw(of(2, 4)))]
    pads = [data.draw(of(0, 3)) for _ in channels[1:]]
    if min(h, w) + 2 * min(0, *pads) + 2 * sum(pads) - 2 * len(pads) < 1 or min(h, w) + 2 * pads[0] < 3:
        return
    sides = [min(h, w)]
    for p in pads:
        sides.append(sides[-1] + 2 * p - 2)
    if min(sides) < 1:
        return
    net = [
        (_trained(b, a, 3, 3, seed=k), p)
        for k, (a, b, p) in enumerate(zip(channels, channels[1:], pads, strict=False))
    ]
    nodes = _step(net, _leaf(n, channels[0], h, w))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.scheduler.convolutions.GAIN", float("inf"))
        patch.setattr("weft.scheduler.layouts.COLUMN_LINE_CYCLES", 0.0)
        made = laid_out(nodes, INFO)
    for k, (got, want) in enumerate(zip(evaluate(made), evaluate(nodes), strict=True)):
        old = net[k - 1][0].numpy() if k else np.float32(0)
        assert np.all(np.abs(got - want) <= 2e-5 * _scale(want - old)), "as far as the step goes"


def test_a_step_stays_as_it_is_where_tiles_do_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    net = [(_trained(64, 64, 3, 3, seed=k), 1) for k in range(2)]
    nodes = _step(net, _leaf(4, 64, 16, 16))
    assert laid_out(nodes, INFO) is not nodes
    assert laid_out(nodes, replace(INFO, task_kind=LoopKind.BLOCK)) is nodes, (
        "threads of blocks sum as they did"
    )
    assert laid_out(nodes[:1], INFO) == nodes[:1], "no weight is changed"
    with weft.numerics("same"):
        pinned = _step(net, _leaf(4, 64, 16, 16))
        assert laid_out(pinned, INFO) is pinned
    few = _step([(_trained(16, 16, 3, 3), 1)], _leaf(1, 16, 8, 8))
    assert laid_out(few, INFO) is few, "of few channels the additions are most"
    y = _leaf(4, 64, 16, 16).exp()
    for w, _ in net:
        y = F.conv2d(y, w, padding=1)
        y = y - y.mean((0, 2, 3), keepdim=True)
    weights = [w for w, _ in net]
    grads = weft.gradients((y * y).sum(), weights)
    normed = expand_calls([(w.detach() - g).value.node for w, g in zip(weights, grads, strict=True)])
    assert laid_out(normed, INFO) is not normed, "what is of a channel is in the second cache"
    small = replace(INFO, l2_bytes=(1 << 18) - 1)
    monkeypatch.setattr("weft.scheduler.convolutions.GAIN", 10.0)
    monkeypatch.setattr("weft.scheduler.layouts.COLUMN_LINE_CYCLES", 0.0)
    assert laid_out(normed, small) is not normed
    monkeypatch.setattr("weft.scheduler.layouts.COLUMN_LINE_CYCLES", 1e9)
    assert laid_out(normed, INFO) is not normed
    assert laid_out(normed, small) is normed, "it would be read again, from further away"


@pytest.mark.usefixtures("any_step")
@pytest.mark.parametrize("threads", [1, 2])
def test_compiled_steps_in_tiles_train_alike(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_NUM_THREADS", str(threads))

    def trained(compiled: bool) -> list[Any]:
        weft.manual_seed(0)
        layers = [weft.nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in ((16, 32), (32, 48), (48, 16))]
        net = weft.nn.Sequential(layers[0], weft.nn.BatchNorm2d(32), weft.nn.ReLU(), *layers[1:])
        optimizer = weft.optim.Adam(net.parameters(), lr=1e-3)
        x = _leaf(2, 16, 9, 10)

        def step() -> Tensor:
            optimizer.zero_grad()
            loss = (net(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        run = weft.compile(step) if compiled else step
        found = [[run().item() for _ in range(4)], *[p.numpy().copy() for p in net.parameters()]]
        if compiled:
            kernels = weft.compile(step).explain()
            assert sum("16, " in str(k.algorithm) for k in kernels) > 3 and str(kernels)
        return found

    with weft.numerics("same"):
        want = trained(False)
    for got, expected in zip(trained(True), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-4)


@pytest.mark.usefixtures("any_step")
def test_gradients_in_tiles_are_as_exact_as_sums() -> None:
    """Of 2,048 terms each; errors to doubles relative to the largest, where a sum of all terms has 1e-6."""
    net = [(_trained(64, 64, 3, 3), 1)]
    x = _leaf(2, 64, 32, 32, seed=3)
    nodes = _step(net, x)
    (_, got), (_, plain) = evaluate(laid_out(nodes, INFO)), evaluate(nodes)
    w = net[0][0].numpy()
    wide = weft.tensor(w.astype(float)).requires_grad_()
    y = F.conv2d(weft.tensor(x.numpy().astype(float)), wide, padding=1).tanh()
    (exact,) = weft.gradients((y * y).sum(), [wide])
    step, scale = 0.1 * exact.numpy(), _scale(0.1 * exact.numpy())
    errors = [float(np.abs((w - new) - step).max()) / scale for new in (got, plain)]
    assert errors[0] < 4e-6, errors
