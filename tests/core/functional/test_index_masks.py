"""Attention under masks that are conditions on positions: blocks that no position needs are skipped, nothing else; so
in its gradients, whose products read weights from memory."""

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


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    i, j = weft.arange(q.shape[-2]).reshape(-1, 1), weft.arange(k.shape[-2]).reshape(1, -1)
    scores = weft.where(mask(i, j), q @ k.transpose(-2, -1) * 0.3, -float("inf"))
    return scores.softmax(-1) @ v


def gradients(arrays: list[np.ndarray], mask: Mask) -> tuple[list[Tensor], list[str]]:
    """Of the sum of the result times the last array; and the schedules of the kernels."""
    q, k, v, g = (weft.tensor(a) for a in arrays)
    for t in (q, k, v):
        t.requires_grad = True
    (attention(q, k, v, mask) * g).sum().backward()
    found = [t.grad for t in (q, k, v) if t.grad is not None]
    return found, [kernel.schedule for kernel in weft.explain(*found)]


def expected(arrays: list[np.ndarray], mask: Mask) -> list[np.ndarray]:
    q, k, v, g = (a.astype(np.float64) for a in arrays)
    seen = mask(weft.arange(q.shape[1]).reshape(-1, 1), weft.arange(k.shape[1]).reshape(1, -1)).numpy()
    s = np.where(seen, q @ k.transpose(0, 2, 1) * 0.3, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = g @ v.transpose(0, 2, 1)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * 0.3
    return [ds @ k, ds.transpose(0, 2, 1) @ q, p.transpose(0, 2, 1) @ g]


@pytest.mark.parametrize("name", [m for m in MASKS if m != "strictly causal"])
def test_gradients_under_a_mask_of_positions(name: str) -> None:
    r = np.random.default_rng(1)
    n = 190
    arrays = [r.standard_normal((2, n, 24)).astype(np.float32) for _ in range(4)]
    found, schedules = gradients(arrays, MASKS[name])
    products = [s for s in schedules if "stage(sum, p" in s]
    assert products and all("trim(" in s for s in products)
    for got, want in zip(found, expected(arrays, MASKS[name]), strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-3, atol=2e-5)


def test_what_is_masked_does_not_reach_gradients() -> None:
    arrays = [np.random.default_rng(2).standard_normal((1, 256, 32)).astype(np.float32) for _ in range(4)]
    arrays[2][:, 200:] = np.nan  # values that rows before them do not see
    found, _ = gradients(arrays, MASKS["causal"])
    want = expected([a[:, :200] for a in arrays[:4]], MASKS["causal"])
    np.testing.assert_allclose(found[0].numpy()[:, :192], want[0][:, :192], rtol=1e-3, atol=2e-5)


def test_zero_times_infinity_stays_nan_elsewhere() -> None:
    a, b = weft.ones(128, 128).realize(), np.ones((128, 64), np.float32)
    b[100] = np.inf
    got = (weft.tril(a) @ weft.tensor(b)).numpy()
    assert np.isnan(got[:100]).all() and np.isposinf(got[100:]).all()


def test_a_product_of_which_a_triangle_is_kept() -> None:
    r = np.random.default_rng(3)
    for m, n, depth in ((256, 256, 64), (130, 210, 1200)):
        a, b = (
            r.standard_normal((m, depth)).astype(np.float32),
            r.standard_normal((depth, n)).astype(np.float32),
        )
        got = weft.tril(weft.tensor(a) @ weft.tensor(b), 3)
        assert "trim(" in weft.explain(got)[0].schedule
        np.testing.assert_allclose(got.numpy(), np.tril(a.astype(np.float64) @ b, 3), rtol=1e-3, atol=1e-3)
