"""Gradients of windows' taps with lanes along channels: which loops, and for which operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.scheduler.optimize.test_contraction import info, scheduled
from weft.ir.kernel.schedule import Kernel
from weft.ir.loops import LoopKind, Scope
from weft.scheduler.kernelize.kernels import kernelize
from weft.scheduler.optimize.rules import decide

DEVICE = info(64, 32)


def gradient(x: weft.Tensor, g: weft.Tensor, taps: int, last: tuple[bool, bool], **how: Any) -> weft.Tensor:
    """The gradient of a depthwise convolution's taps, of an image and of results with channels last or first."""
    back = (0, x.ndim - 1, *range(1, x.ndim - 1))
    image, seen = (t.permute(back) if along else t for t, along in zip((x, g), last, strict=True))
    channels, conv = image.shape[1], F.conv1d if x.ndim == 3 else F.conv2d
    w = weft.zeros(channels, 1, *(taps,) * (x.ndim - 2))
    return weft.grad(lambda w: (conv(image, w, groups=channels, **how) * seen).sum())(w)


def kernel_of(*sizes: int, channels: int, taps: int, last: tuple[bool, bool] = (True, True)) -> Kernel:
    shapes = [(*sizes, channels) if along else (sizes[0], channels, *sizes[1:]) for along in last]
    x, g = (weft.zeros(s).realize() for s in shapes)
    (spec,) = kernelize([gradient(x, g, taps, last, padding=taps // 2).value.node])
    return decide(spec.algorithm, DEVICE).kernel


@pytest.mark.parametrize(
    ("taps", "apart"), [(3, 0), (5, 0), (7, 1)], ids=["all together", "as many as fit", "rows of taps apart"]
)
def test_a_row_of_places_has_its_sums_in_registers(taps: int, apart: int) -> None:
    k = kernel_of(2, 12, 12, channels=32, taps=taps)
    whole, row = k.nests["sum"], k.nests["sum_row"]
    assert whole.scope is Scope.LOCAL and row.scope is Scope.REGISTER
    kinds = [s.kind for s in whole.loops if not s.reduce]
    together = 2 - apart
    assert kinds == [LoopKind.SERIAL] * apart + [LoopKind.UNROLL] * together + [LoopKind.VECTOR]
    assert [s.reduce for s in row.loops] == [True] + [False] * (together + 1)
    for nest, item in ((whole, "sum"), (row, "sum_row")):
        found = k.algorithm.item(item)
        lane = nest.layout.order[-1]
        assert nest.size[lane] == 16 and found.axes[lane].extent in (16, 32), "channels are side by side"


def test_a_line_of_places_has_no_rows() -> None:
    k = kernel_of(1, 40, channels=16, taps=3)
    assert "sum_row" not in k.nests and k.nests["sum"].scope is Scope.REGISTER


@pytest.mark.parametrize("last", [(True, False), (False, True), (False, False)])
def test_both_operands_lie_along_channels(last: tuple[bool, bool]) -> None:
    k = kernel_of(2, 12, 12, channels=32, taps=3, last=last)
    assert "taps.together" not in [p.name for p in k.decisions.picks]


@pytest.mark.parametrize("device", [DEVICE, info(32, 16)], ids=["avx512", "avx2"])
@pytest.mark.parametrize(
    ("shape", "taps", "how"),
    [
        ((2, 9, 7, 20), 3, {"padding": 1}), ((3, 8, 11, 16), 7, {"padding": 3}), ((3, 9, 9, 5), 3, {"stride": 2}),
        ((2, 12, 10, 17), 3, {"dilation": 2}), ((2, 7, 7, 32), 7, {"padding": 3}), ((2, 33, 18), 5, {"padding": 2}),
    ],
    ids=str,
)  # fmt: skip
def test_results(shape: tuple[int, ...], taps: int, how: dict[str, int], device: Any) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape).astype(np.float32)
    step, edge, apart = how.get("stride", 1), how.get("padding", 0), how.get("dilation", 1)
    sizes = [(n + 2 * edge - apart * (taps - 1) - 1) // step + 1 for n in shape[1:-1]]
    g = rng.standard_normal((shape[0], *sizes, shape[-1])).astype(np.float32)
    k, got = scheduled(lambda x, g: gradient(x, g, taps, (True, True), **how), [x, g], device)
    assert "taps.together" in [p.name for p in k.decisions.picks]
    padded = np.pad(x, ((0, 0), *((edge, edge),) * len(sizes), (0, 0)))
    want = np.zeros((shape[-1], 1, *(taps,) * len(sizes)))
    for at in np.ndindex(*(taps,) * len(sizes)):
        part = tuple(
            slice(apart * a, apart * a + step * (n - 1) + 1, step) for a, n in zip(at, sizes, strict=True)
        )
        seen = padded[(slice(None), *part)].astype(np.float64)
        want[(slice(None), 0, *at)] = (seen * g).sum(tuple(range(g.ndim - 1)))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
