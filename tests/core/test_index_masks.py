"""Attention under masks that are conditions on positions: blocks that no position needs are skipped, nothing else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft
from weft import Tensor

Mask = Callable[[Tensor, Tensor], Tensor]

MASKS: dict[str, Mask] = {
    "causal": lambda i, j: j <= i,
    "strictly causal": lambda i, j: j < i,
    "window": lambda i, j: (j <= i) & (j > i - 40),
    "from here on": lambda i, j: j >= i,
    "shifted": lambda i, j: j <= i + 5,
    "half as fast": lambda i, j: 2 * j <= i,
}


@pytest.mark.parametrize("name", MASKS)
def test_attention_under_a_mask_of_positions(name: str) -> None:
    r = np.random.default_rng(0)
    for rows, columns in ((130, 257), (200, 70), (256, 512)):
        q, k, v = (r.standard_normal((2, n, 16)).astype(np.float32) for n in (rows, columns, columns))
        i, j = weft.arange(rows).reshape(rows, 1), weft.arange(columns).reshape(1, columns)
        mask = MASKS[name](i, j)
        scores = weft.where(mask, weft.tensor(q) @ weft.tensor(k).transpose(-2, -1) * 0.3, -float("inf"))
        got = scores.softmax(-1) @ weft.tensor(v)
        assert len(weft.explain(got)) == 1
        result = got.numpy()  # before the mask is: a mask in memory is no condition on positions
        s = np.where(mask.numpy(), q.astype(np.float64) @ k.transpose(0, 2, 1) * 0.3, -np.inf)
        with np.errstate(all="ignore"):  # rows that see nothing are NaN
            e = np.exp(s - s.max(-1, keepdims=True))
            want = e / e.sum(-1, keepdims=True) @ v
        np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-5)


def test_a_window_starts_and_ends_its_loop_over_blocks() -> None:
    q, k, v = (weft.zeros(1, 512, 16).realize() for _ in range(3))
    i, j = weft.arange(512).reshape(512, 1), weft.arange(512).reshape(1, 512)
    scores = weft.where(MASKS["window"](i, j), q @ k.transpose(-2, -1), -float("inf"))
    schedule = weft.explain(scores.softmax(-1) @ v)[0].schedule
    assert "trim(" in schedule
