"""Padding and cutting beside numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F

X = np.random.default_rng(0).normal(size=(2, 3, 5))
MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@pytest.mark.parametrize("before", range(-3, 5))
@pytest.mark.parametrize("after", range(-3, 5))
@pytest.mark.parametrize("mode", MODES)
def test_one_dimension(mode: str, before: int, after: int) -> None:
    n = X.shape[-1]
    if n + before + after < 0:
        pytest.skip("less than nothing would be left")
    kept = X[..., max(-before, 0) : n - max(-after, 0)]
    if mode == "circular" and min(before, after) < 0:  # torch pads with what is left after cutting
        pads = [kept[..., kept.shape[-1] - max(before, 0) :], kept, kept[..., : max(after, 0)]]
        if max(before, after) > kept.shape[-1]:
            pytest.skip("numpy has no such case")
        want = np.concatenate(pads, -1)
    elif min(before, after) < 0:  # and with the whole row's otherwise
        row = np.pad(X, [(0, 0), (0, 0), (max(before, 0), max(after, 0))], MODES[mode])  # type: ignore[call-overload]
        want = row[..., max(-before, 0) : row.shape[-1] - max(-after, 0)]
    else:
        want = np.pad(X, [(0, 0), (0, 0), (before, after)], MODES[mode])  # type: ignore[call-overload]
    np.testing.assert_array_equal(F.pad(weft.tensor(X), (before, after), mode=mode).numpy(), want)


def test_a_value() -> None:
    want = np.pad(X, [(0, 0), (1, 0), (0, 2)], constant_values=7.0)
    np.testing.assert_array_equal(F.pad(weft.tensor(X), (0, 2, 1, 0), value=7.0).numpy(), want)


@pytest.mark.parametrize(
    ("mode", "pad"),
    [("reflect", (5, 0)), ("reflect", (0, 5)), ("circular", (6, 0)), ("circular", (0, 6)), ("replicate", (-6, 0)),
     ("constant", (-3, -3))],
)  # fmt: skip
def test_too_much(mode: str, pad: Any) -> None:
    with pytest.raises(weft.ShapeError, match="pad: "):
        F.pad(weft.tensor(X), pad, mode=mode)
