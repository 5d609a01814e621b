"""Self-attention as one call: what its parts come to, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import Tensor, nn
from weft.core.composed import composite
from weft.core.functional import attention, attention_gradient
from weft.ir.graph import toposort
from weft.ir.ops import Op


def result(
    mha: Any, x: Tensor, masks: dict[str, Any], need: bool, average: bool
) -> list[np.ndarray[Any, Any]]:
    """Results and gradients."""
    out, weights = mha(x, x, x, need_weights=need, average_attn_weights=average, **masks)
    loss = (out * out).sum() if weights is None else (out * out).sum() + (weights * weights).sum()
    grads = weft.autograd.grad(loss, [x, *mha.parameters()])
    return [t.detach().numpy() for t in (out, *(() if weights is None else (weights,)), *grads)]


def masks_for(which: str, n: int, length: int) -> dict[str, Any]:
    rng = np.random.default_rng(length)
    causal = weft.tensor(np.triu(np.ones((length, length), bool), 1))
    match which:
        case "a mask":
            return {"attn_mask": causal}
        case "a mask of numbers":
            return {"attn_mask": weft.tensor(rng.standard_normal((length, length)).astype(np.float32))}
        case "a mask for each head":
            many = rng.standard_normal((2 * n, length, length)).astype(np.float32)
            return {"attn_mask": weft.tensor(many)}
        case "padding":
            hidden = np.zeros((n, length), bool)
            hidden[:, length - 1 :] = length > 1
            return {"key_padding_mask": weft.tensor(hidden)}
        case "both":
            return masks_for("padding", n, length) | {"attn_mask": causal, "is_causal": True}
        case _:
            return {}


@pytest.mark.parametrize(
    "which", ["none", "a mask", "a mask of numbers", "a mask for each head", "padding", "both"]
)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("need", "average"), [(False, True), (True, True), (True, False)])
def test_a_call_is_its_parts(which: str, first: bool, need: bool, average: bool) -> None:
    weft.manual_seed(1)
    mha = nn.MultiheadAttention(8, 2, bias=which != "none", batch_first=first)
    for n, length in ((3, 5), (2, 7), (3, 9), (4, 1)):
        x = weft.randn((n, length, 8) if first else (length, n, 8), requires_grad=True)
        masks = masks_for(which, n, length)
        found = result(mha, x, masks, need, average)
        want = composite.without_calls(result)(mha, x, masks, need, average)
        for a, b in zip(found, want, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def calls_in(mha: Any, x: Tensor) -> int:
    for p in mha.parameters():
        p.realize()
    out, _ = mha(x, x, x, need_weights=False)
    return sum(n.op is Op.CALL for n in toposort([out.value.node]))


@pytest.mark.parametrize("first", [True, False])
def test_self_attention_is_one_call(first: bool) -> None:
    x = weft.randn(3, 5, 8).realize()
    assert calls_in(nn.MultiheadAttention(8, 2, batch_first=first), x) == 1
    mha = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=first)
    assert calls_in(mha, x) > 1, "what is random is no call"
    assert calls_in(mha.eval(), x) == 1


def test_many_scores_have_gradients_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_gradient, "BLOCK_ROWS", 8)
    monkeypatch.setattr(attention_gradient, "limits", lambda _: attention_gradient.Limits(1, 512, True))
    calls: list[int] = []
    by_blocks = attention._attention_by_blocks
    monkeypatch.setattr(attention, "_attention_by_blocks", lambda *a: (calls.append(1), by_blocks(*a))[1])
    mha = nn.MultiheadAttention(8, 2, batch_first=True)
    x = weft.randn(2, 40, 8, requires_grad=True)
    out, _ = mha(x, x, x, need_weights=False)
    assert calls
    (g,) = weft.autograd.grad((out * out).sum(), x)
    monkeypatch.undo()
    out, _ = mha(x, x, x, need_weights=False)
    (want,) = weft.autograd.grad((out * out).sum(), x)
    np.testing.assert_allclose(g.numpy(), want.numpy(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("first", [True, False])
def test_what_does_not_fit_is_refused(first: bool) -> None:
    mha = nn.MultiheadAttention(8, 2, batch_first=first)
    x = weft.randn(3, 5, 6)
    with pytest.raises(weft.ShapeError, match="embed_dim 8"):
        mha(x, x, x)
    x = weft.randn(3, 5, 8)
    with pytest.raises(weft.ArgumentError, match="is_causal"):
        mha(x, x, x, is_causal=True)
    with pytest.raises(weft.ShapeError, match="attn_mask must have shape"):
        mha(x, x, x, attn_mask=weft.zeros(2, 2).realize())
    with pytest.raises(weft.DTypeError, match="bool or float"):
        length = 5 if first else 3
        mha(x, x, x, attn_mask=weft.zeros(length, length, dtype=weft.int32).realize())
