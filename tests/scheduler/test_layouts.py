"""Values from convolutions on lie with channels innermost, and are what they were."""

from __future__ import annotations

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
from weft.ir.graph import Axes, Node, toposort
from weft.ir.loops import LoopKind
from weft.ir.ops import MOVEMENT, Op
from weft.scheduler.invariants import split
from weft.scheduler.layouts import channels_innermost, laid_out
from weft.testing.reference import evaluate

INFO = open_device("dummy:0").info
LANES = INFO.lanes(weft.float32)
C = LANES


def _leaf(*shape: int, seed: int = 0) -> Tensor:
    return weft.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).realize()


def _turned(result: Tensor, *weights: Tensor) -> tuple[list[Node], list[Node]]:
    """The graph before and after."""
    before = expand_calls([result.value.node])
    return list(before), list(channels_innermost(before, {w.value.node for w in weights}, INFO))


def _shapes(nodes: list[Node], op: Op) -> list[tuple[object, ...]]:
    return [n.shape for n in toposort(nodes) if n.op is op]


def test_a_chain_of_convolutions_keeps_channels_innermost() -> None:
    x, w, v, b = _leaf(2, 3, 8, 6), _leaf(C, 3, 3, 3), _leaf(2 * C, C, 3, 3), _leaf(C, 1, 1)
    y = F.max_pool2d((F.conv2d(x, w, padding=1) + b).relu(), 2)
    before, after = _turned(F.conv2d(y, v, padding=1).tanh(), w, v)
    assert _shapes(before, Op.TANH) == [(2, 2 * C, 4, 3)]
    assert _shapes(after, Op.TANH) == [(2, 4, 3, 2 * C)]
    assert _shapes(after, Op.REDUCE_MAX) == [(2, 4, 3, C)]
    assert [s[-1] for s in _shapes(after, Op.SUM)] == [C, 2 * C]
    assert after[0].shape == before[0].shape, "a view of it is what it was"


def test_depthwise_convolutions_means_and_concatenations_follow() -> None:
    x, w, d = _leaf(1, 3, 8, 6), _leaf(C, 3, 1, 1), _leaf(C, 1, 3, 3)
    y = F.conv2d(x, w)
    z = weft.cat([y, F.conv2d(y, d, padding=1, groups=C)], 1)
    _, after = _turned(z * z.mean((2, 3), keepdim=True).sigmoid(), w, d)
    assert _shapes(after, Op.CONCAT) == [(1, 8, 6, 2 * C)]
    (concat,) = [n for n in toposort(after) if n.op is Op.CONCAT]
    assert getattr(concat.attrs, "axis", None) == 3
    assert after[0].inputs[0].shape == (1, 8, 6, 2 * C)


def test_a_view_in_between_is_read_through() -> None:
    x, w = _leaf(1, 3, 8, 8), _leaf(C, 3, 2, 2)
    y = F.conv2d(x, w, stride=2).flatten(2).exp()
    assert _shapes(_turned(y, w)[1], Op.EXP) == [(1, 16, C)]


def test_an_activation_is_stored_with_the_sum_that_it_is_of() -> None:
    x, w, v = _leaf(1, 3, 8, 6), _leaf(C, 3, 3, 3), _leaf(C, C, 3, 3)
    y = F.conv2d(x, w).relu()
    _, after = _turned(F.conv2d(y, v) + y[:, :, 1:-1, 1:-1], w, v)
    assert _shapes(after, Op.CONTIGUOUS) == [(1, 6, 4, C)], "once, for both readers"
    _, after = _turned(F.conv2d(x.exp(), w), w)
    assert _shapes(after, Op.CONTIGUOUS) == [], "no sum's kernel would compute it"
    joined = weft.cat([F.conv2d(x, w), F.conv2d(x, w).exp()], 1)
    _, after = _turned(F.conv2d(joined.relu(), _leaf(C, 2 * C, 1, 1)), w)
    assert _shapes(after, Op.CONTIGUOUS) == []


def test_what_has_no_channels_along_full_lanes_stays() -> None:
    x, few, w = _leaf(1, 3, 8, 6), _leaf(LANES // 2, 3, 3, 3), _leaf(C, 3, 3, 3)
    for y, weight in ((F.conv2d(x, few), few), (x.exp(), few), (F.linear(x, _leaf(C, 6)), few)):
        before, after = _turned(y, weight)
        assert before == after
    before = expand_calls([F.conv2d(x, w).value.node])
    assert list(channels_innermost(before, set(), INFO)) == before, "weights that are given lie as they do"
    blocks = replace(INFO, task_kind=LoopKind.BLOCK)
    assert list(channels_innermost(before, {w.value.node}, blocks)) == before


@pytest.mark.parametrize("places", [False, True], ids=["images", "places"])
def test_a_step_is_turned_where_norms_of_places_would_gather(places: bool) -> None:
    """With channels first, these read what lies a channel apart; what has them last is as it should be."""
    rng = np.random.default_rng(1)
    patches, deep, scale = (
        weft.tensor(rng.standard_normal(s, np.float32) / 8, requires_grad=True)
        for s in ((C, 3, 2, 2), (C, 1, 3, 3), (C,))
    )

    def step(size: int) -> list[Node]:
        y = F.conv2d(_leaf(2, 3, size, size), patches, stride=2)
        if places:
            y = y.permute(0, 2, 3, 1) + scale
            y = y + F.layer_norm(y, (C,), scale)
            loss = (y * y).mean()
        else:
            z = F.layer_norm(F.conv2d(y, deep, padding=1, groups=C).permute(0, 2, 3, 1), (C,), scale)
            loss = (y + z.permute(0, 3, 1, 2)).square().mean()
        changed = [patches, scale] if places else [patches, deep, scale]
        grads = weft.gradients(loss, changed)
        return expand_calls([(w.detach() - g).value.node for w, g in zip(changed, grads, strict=True)])

    nodes, few = step(32), step(4)
    again = replace(INFO, l2_bytes=1 << 10)
    assert (laid_out(nodes, again) is nodes) == places, "what is of a channel is read in this order as it is"
    made = laid_out(nodes, INFO)
    assert (made is nodes) == places
    assert laid_out(few, INFO) is few, "so little is in the first cache"
    for got, want in zip(evaluate(made), evaluate(nodes), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_convolutions_of_one_tap_are_no_norms_of_places() -> None:
    first, second = (
        weft.tensor(np.full(s, 0.5, np.float32), requires_grad=True) for s in ((C, 3, 2, 2), (C, C, 1, 1))
    )
    y = F.conv2d(F.conv2d(_leaf(2, 3, 32, 32), first, stride=2), second)
    grads = weft.gradients(y.square().mean(), [first, second])
    nodes = expand_calls([(w.detach() - g).value.node for w, g in zip((first, second), grads, strict=True)])
    assert laid_out(nodes, INFO) is nodes


def test_reductions_keep_what_they_say_of_themselves() -> None:
    x, w = _leaf(1, 3, 8, 6), _leaf(C, 3, 3, 3)
    with weft.numerics("same"):
        before, after = _turned(F.conv2d(x, w), w)
    kinds = [{type(n.attrs) for n in toposort(g) if n.op is Op.SUM} for g in (before, after)]
    assert kinds[0] == kinds[1] != {Axes}


@st.composite
def _nets(draw: st.DrawFn) -> tuple[Tensor, list[Tensor]]:
    """Convolutions of all kinds, poolings and pointwise ops in some order, and the weights."""
    size, channels = draw(st.integers(3, 7)), draw(st.sampled_from([1, 3, C]))
    y = _leaf(draw(st.integers(1, 2)), channels, size, size + draw(st.integers(0, 2)))
    weights: list[Tensor] = []
    for seed in range(draw(st.integers(1, 4))):
        n = y.shape[1]
        assert isinstance(n, int)
        kind = draw(
            st.sampled_from(["dense", "point", "depthwise", "pool", "mean", "cat", "flip", "turn", "norm"])
        )
        if kind in ("dense", "point", "depthwise"):
            taps = 1 if kind == "point" else draw(st.sampled_from([2, 3]))
            out = n if kind == "depthwise" else draw(st.sampled_from([C, C + C // 2, 2 * C, 3]))
            w = _leaf(out, 1 if kind == "depthwise" else n, taps, taps, seed=seed)
            weights.append(w)
            stride, groups = draw(st.integers(1, 2)), n if kind == "depthwise" else 1
            y = F.conv2d(y, w, stride=stride, padding=taps // 2, groups=groups)
            if draw(st.booleans()):
                y = y.relu()
        elif kind == "pool":
            y = F.max_pool2d(y, 2, 1, 1)
        elif kind == "mean":
            y = y * y.mean((2, 3), keepdim=True)
        elif kind == "cat":
            y = weft.cat([y, y.exp()], draw(st.integers(1, 3)))
        elif kind == "flip":
            y = y.flip(draw(st.integers(1, 3)))
        elif kind == "turn":
            y = y.transpose(1, draw(st.integers(2, 3)))
        else:
            y = (y - y.mean(1, keepdim=True)) * _leaf(n, 1, 1)
    return y, weights


@settings(
    max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck), deadline=None, database=None
)
@given(_nets(), st.booleans(), st.booleans())
def test_random_networks_compute_what_they_did(
    net: tuple[Tensor, list[Tensor]], kept: bool, in_tiles: bool
) -> None:
    """In the reference, to the rounding of sums in another order; with weights laid out in panels, and convolutions in
    tiles, too."""
    result, weights = net
    before, after = _turned(result, *weights)
    given_: dict[Node, Any] = {}
    if kept:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("weft.scheduler.panels.MIN_BYTES", 0)
            patch.setattr("weft.scheduler.convolutions.GAIN", float("inf") if in_tiles else 0.0)
            found = split([result.value.node], {w.value.node for w in weights}, INFO)
        if found is not None:
            values = evaluate(found.kept)
            given_ = dict(zip(found.stand_ins, values, strict=True))
            after = list(found.outputs)
    assert [n.shape for n in after] == [n.shape for n in before]
    for got, want in zip(evaluate(after, given=given_), evaluate(before), strict=True):
        np.testing.assert_allclose(
            got, want, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(want).max(initial=0)))
        )


@pytest.mark.parametrize("side", [5, 12])
def test_a_compiled_network_is_that_network(side: int) -> None:
    x, w, d, v = (
        _leaf(1, 3, side, side),
        _leaf(32, 3, 3, 3),
        _leaf(32, 1, 3, 3, seed=1),
        _leaf(48, 32, 3, 3, seed=2),
    )

    def net(x: Tensor) -> Tensor:
        y = F.conv2d(x, w, padding=1).relu()
        y = F.max_pool2d(F.conv2d(y, d, padding=1, groups=32) + y, 3, 2, 1)
        return F.conv2d(y, v, padding=1, stride=2).relu()

    compiled = weft.compile(net)
    np.testing.assert_allclose(compiled(x).numpy(), net(x).numpy(), rtol=1e-4, atol=1e-3)
    w.mul_(2)
    np.testing.assert_allclose(compiled(x).numpy(), net(x).numpy(), rtol=1e-4, atol=1e-3)


def test_only_views_stand_between_what_is_computed() -> None:
    x, w = _leaf(1, 3, 8, 6), _leaf(C, 3, 3, 3)
    before, after = _turned(F.conv2d(x, w).relu(), w)
    known = {n.op for n in toposort(before)} | MOVEMENT
    assert {n.op for n in toposort(after)} <= known
