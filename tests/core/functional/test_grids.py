"""Sampling at the points of a grid: on the border, and at coordinates that are no numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

import weft
from weft.nn import functional as F

IMAGE = np.arange(1.0, 7.0).reshape(1, 1, 2, 3)


def sampled(x: float, y: float, mode: str, padding: str, align: bool) -> tuple[float, list[float]]:
    """The value at a point, and its gradient with respect to the point."""
    grid = weft.tensor([[[[x, y]]]], dtype=weft.float64, requires_grad=True)
    out = F.grid_sample(weft.tensor(IMAGE), grid, mode, padding, align)
    out.sum().backward()
    return out.item(), grid.grad.flatten().tolist()


@pytest.mark.parametrize("padding", ["border", "reflection"])
@pytest.mark.parametrize("align", [True, False])
def test_a_coordinate_that_is_no_number_reads_the_start(padding: str, align: bool) -> None:
    for mode in ("bilinear", "nearest"):
        for y in (0.3, -0.8):
            expected, _ = sampled(-1.0, y, mode, "border", align)
            assert sampled(math.nan, y, mode, padding, align)[0] == expected
    if padding == "reflection":
        assert (
            sampled(math.inf, 0.3, "bilinear", padding, align)[0]
            == sampled(-1.0, 0.3, "bilinear", "border", align)[0]
        )


@pytest.mark.parametrize("padding", ["border", "reflection"])
@pytest.mark.parametrize("x", [-1.0, 1.0])
def test_gradients_end_on_the_border(padding: str, x: float) -> None:
    _, (across, down) = sampled(x, 0.2, "bilinear", padding, True)
    assert across == 0.0
    assert down == pytest.approx(1.5)
    _, (across, _) = sampled(x * 0.99, 0.2, "bilinear", padding, True)
    assert across == pytest.approx(1.0)


@pytest.mark.parametrize("align", [False, True])
def test_affine_grid_places_the_centres_or_the_corners(align: bool) -> None:
    theta = weft.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    grid = F.affine_grid(theta, (1, 1, 1, 4), align_corners=align).numpy()
    want = np.linspace(-1, 1, 4) * (1 if align else 3 / 4)
    np.testing.assert_allclose(grid[0, 0], np.stack([want, np.zeros(4)], -1), atol=1e-6)
    with pytest.raises(weft.ShapeError, match="positive"):
        F.affine_grid(theta, (1, 1, 0, 4))
