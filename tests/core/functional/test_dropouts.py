"""Dropout: what is dropped, what that leaves on average, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F

KINDS: dict[str, tuple[int, ...]] = {
    "dropout": (64, 500), "dropout1d": (64, 500, 3), "dropout2d": (64, 500, 2, 2), "dropout3d": (64, 500, 1, 2, 2),
    "alpha_dropout": (64, 500), "feature_alpha_dropout": (64, 500, 2, 2),
}  # fmt: skip
CHANNELS = ("dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")


@pytest.fixture(autouse=True)
def seed() -> None:
    weft.manual_seed(0)


@pytest.mark.parametrize("kind", KINDS)
def test_means_and_variances(kind: str) -> None:
    shape, alpha = KINDS[kind], "alpha" in kind
    f: Callable[..., Any] = getattr(F, kind)
    x = np.random.default_rng(0).normal(size=shape)
    out = f(weft.tensor(x), 0.3, True).numpy()
    assert abs(out.mean() - x.mean()) < 0.03
    if alpha:
        assert abs(out.var() - 1) < 0.04  # what is dropped is at the floor of selu, scaled and moved
    else:
        kept = out != 0
        np.testing.assert_allclose(out[kept], x[kept] / 0.7)
        assert abs(kept.mean() - 0.7) < 0.02
    if kind in CHANNELS:
        rows = out.reshape(*shape[:2], -1)
        dropped = np.isclose(rows, rows[..., :1]).all(-1)  # numbers that are kept differ
        assert abs(dropped.mean() - 0.3) < 0.03
        assert alpha or ((rows == 0).all(-1) == (rows == 0).any(-1)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_all_or_nothing(kind: str) -> None:
    f: Callable[..., Any] = getattr(F, kind)
    x = weft.ones(*KINDS[kind][:2], *[2] * (len(KINDS[kind]) - 2))
    assert f(x, 1.0, True).abs().sum().item() == 0
    assert f(x, 0.0, True).sum().item() == f(x, 0.5, False).sum().item() == x.numel()


@pytest.mark.parametrize("kind", KINDS)
def test_in_place(kind: str) -> None:
    f: Callable[..., Any] = getattr(F, kind)
    for p in (0.5, 1.0):
        x = weft.ones(*KINDS[kind][:2], *[2] * (len(KINDS[kind]) - 2))
        assert f(x, p, True, True) is x and (x == 1).sum().item() < x.numel()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_refused(kind: str) -> None:
    f: Callable[..., Any] = getattr(F, kind)
    for p in (-0.1, 1.1, float("nan")):
        for training in (True, False):
            with pytest.raises(weft.WeftError, match=r"p must be|probability"):
                f(weft.ones(2, 3, 4), p, training)


def test_channels_need_two_dimensions() -> None:
    with pytest.raises(weft.ShapeError, match="feature_alpha_dropout: needs input"):
        F.feature_alpha_dropout(weft.ones(3), 0.5, True)
    assert F.feature_alpha_dropout(weft.ones(2, 3), 0.5, True).shape == (2, 3)
