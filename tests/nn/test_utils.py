"""Clipping of gradients, against torch's."""

from __future__ import annotations

import math

import numpy as np
import pytest

import weft
from weft import nn
from weft.core.execute import realization

GRADIENTS = [np.array([[3.0, -4.0], [0.5, 1.0]], np.float32), np.array([-12.0], np.float32)]


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("max_norm", [1.0, 1000.0])
def test_clip_grad_norm(norm_type: float, max_norm: float) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    results = []
    for library in (weft, torch):
        params = [library.zeros(g.shape, requires_grad=True) for g in GRADIENTS]
        for p, g in zip(params, GRADIENTS, strict=True):
            p.grad = library.tensor(g)
        total = library.nn.utils.clip_grad_norm_(params, max_norm, norm_type)
        results.append([total.numpy(), *(p.grad.numpy() for p in params)])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("large", [0, 1 << 60])
def test_gradients_without_values_are_clipped(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realization, "LARGE_BYTES", large)
    with weft.device("meta"):
        layer = nn.Linear(8, 8)
    layer(weft.empty(2, 8, device="meta")).sum().backward()
    assert nn.utils.clip_grad_norm_(layer.parameters(), 1.0).shape == ()

    def clipped(x: weft.Tensor) -> weft.Tensor:
        p = weft.zeros(2, requires_grad=True)
        p.grad = x * 1.0
        nn.utils.clip_grad_norm_([p], 5.0)
        return p.grad

    x = weft.tensor([[3.0, 4.0], [30.0, 40.0]])
    for found in (weft.vmap(clipped)(x), weft.stack([weft.compile(clipped)(row) for row in x])):
        np.testing.assert_allclose(found.numpy(), [[3, 4], [3, 4]], rtol=1e-5)


def test_clip_grad_value() -> None:
    p = weft.zeros(4, requires_grad=True)
    p.grad = weft.tensor([-3.0, 0.5, 2.0, 7.0])
    nn.utils.clip_grad_value_(p, 2.0)
    assert p.grad.tolist() == [-2.0, 0.5, 2.0, 2.0]


@pytest.mark.parametrize("large", [0, 1 << 60])
def test_mistakes(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realization, "LARGE_BYTES", large)
    p = weft.zeros(1, requires_grad=True)
    (p * 2).sum().backward()
    with pytest.raises(weft.DTypeError, match=r"clip_grads_with_norm_: .*expected a Tensor, got 0.33"):
        nn.utils.clip_grads_with_norm_([p], 1.0, 3.0)
    assert p.grad.tolist() == [2.0]
    with pytest.raises(weft.ArgumentError, match="no parameter has a gradient"):
        nn.utils.clip_grad_norm_([weft.zeros(1, requires_grad=True)], 1.0)
    with pytest.raises(weft.ArgumentError, match="norm_type must be positive"):
        nn.utils.clip_grad_norm_([], 1.0, 0.0)


def test_packed_integers_stay_integers() -> None:
    tools = weft.nn.utils.rnn
    seq = weft.tensor([[1, 2, 0], [3, 0, 0], [4, 5, 6]])
    packed = tools.pack_padded_sequence(seq, [2, 1, 3], batch_first=True, enforce_sorted=False)
    padded, sizes = tools.pad_packed_sequence(packed, batch_first=True)
    assert padded.dtype is weft.int64 and padded.tolist() == seq.tolist() and sizes.tolist() == [2, 1, 3]
    assert [t.tolist() for t in tools.unpack_sequence(packed)] == [[1, 2], [3], [4, 5, 6]]
