"""Losses with the linear map of a vocabulary inside, beside torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import nn

torch: Any = pytest.importorskip("torch")


def test_adaptive_log_softmax() -> None:
    options: dict[str, Any] = {"cutoffs": [5, 12], "div_value": 2.0, "head_bias": True}
    theirs, ours = (
        torch.nn.AdaptiveLogSoftmaxWithLoss(16, 30, **options),
        nn.AdaptiveLogSoftmaxWithLoss(16, 30, **options),
    )
    ours.load_state_dict({k: weft.from_torch(v.detach()) for k, v in theirs.state_dict().items()})
    x, t = torch.randn(20, 16), torch.randint(0, 30, (20,))
    want, got = theirs(x, t), ours(weft.from_torch(x), weft.from_torch(t))
    want.loss.backward()
    got.loss.backward()
    np.testing.assert_allclose(got.output.detach().numpy(), want.output.detach().numpy(), rtol=1e-5)
    for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert q.grad is not None
        np.testing.assert_allclose(q.grad.numpy(), p.grad.numpy(), rtol=1e-4, atol=1e-6)
    whole = ours.log_prob(weft.from_torch(x)).detach()
    np.testing.assert_allclose(whole.numpy(), theirs.log_prob(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(ours.predict(weft.from_torch(x)).numpy(), theirs.predict(x).numpy())
    assert ours(weft.from_torch(x[0]), weft.from_torch(t[0])).output.shape == ()
    with pytest.raises(weft.ArgumentError, match="cutoffs must be ascending"):
        nn.AdaptiveLogSoftmaxWithLoss(4, 10, [5, 3])
    with pytest.raises(weft.ShapeError, match="input must be"):
        ours(weft.ones(16), weft.from_torch(t))


def test_linear_cross_entropy() -> None:
    options: dict[str, Any] = {"out_features": (4, 3), "bias": True, "label_smoothing": 0.1}
    theirs, ours = (
        torch.nn.LinearCrossEntropyLoss(5, 10, **options),
        nn.LinearCrossEntropyLoss(5, 10, **options),
    )
    ours.load_state_dict({k: weft.from_torch(v.detach()) for k, v in theirs.state_dict().items()})
    x, t = torch.randn(2, 5), torch.randint(0, 10, (2, 4, 3))
    got = ours(weft.from_torch(x), weft.from_torch(t))
    assert got.item() == pytest.approx(theirs(x, t).item(), rel=1e-5)
