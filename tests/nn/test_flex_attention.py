"""torch.nn.attention: flex_attention and its masks beside torch's, and the choice of backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.nn.attention import SDPBackend, sdpa_kernel
from weft.nn.attention import flex_attention as flex
from weft.nn.functional import scaled_dot_product_attention

B, H, L, S, E = 2, 4, 5, 7, 8
RNG = np.random.default_rng(0)
Q, K, V = (RNG.standard_normal(s).astype(np.float32) for s in ((B, H, L, E), (B, H, S, E), (B, H, S, E)))
SLOPES = RNG.standard_normal(H).astype(np.float32)
DOCUMENTS = np.array([0, 0, 1, 1, 2, 2, 2])


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


def window(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q - kv).abs() <= 1


def blind(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return (q > 1) & (kv != h)


SCORES: dict[str, Callable[[Any], Any]] = {
    "none": lambda m: None,
    "relative": lambda m: lambda s, b, h, q, kv: s + (q - kv),
    "alibi": lambda m: lambda s, b, h, q, kv, slopes=m.tensor(SLOPES): s + slopes[h] * (kv - q),
    "softcap": lambda m: lambda s, b, h, q, kv: m.tanh(s / 2) * 2,
    "causal": lambda m: lambda s, b, h, q, kv: m.where(q >= kv, s, -float("inf")),
}
MASKS: dict[str, Callable[[Any], Any]] = {
    "none": lambda m: None,
    "causal": lambda m: causal,
    "blind": lambda m: blind,
    "documents": lambda m: lambda b, h, q, kv, d=m.tensor(DOCUMENTS): d[q] == d[kv],
}


@pytest.mark.parametrize(
    ("score", "mask"), [*((s, "causal") for s in SCORES), *(("alibi", k) for k in MASKS)]
)
def test_as_torch_computes_it(score: str, mask: str) -> None:
    torch = pytest.importorskip("torch")
    import torch.nn.attention.flex_attention as theirs

    q, k, v = (weft.tensor(a, requires_grad=True) for a in (Q, K, V))
    mod = MASKS[mask](weft)
    block = None if mod is None else flex.create_block_mask(mod, None, H, L, S, device="cpu", BLOCK_SIZE=2)
    out, aux = flex.flex_attention(q, k, v, SCORES[score](weft), block, return_aux=flex.AuxRequest(lse=True))
    (out * weft.tensor(V[:, :, :L])).sum().backward()
    a, b, c = (torch.tensor(x) for x in (Q, K, V))
    mod = MASKS[mask](torch)
    block = None if mod is None else theirs.create_block_mask(mod, None, H, L, S, device="cpu", BLOCK_SIZE=2)
    wanted, other = theirs.flex_attention(
        a, b, c, SCORES[score](torch), block, return_aux=theirs.AuxRequest(lse=True)
    )
    np.testing.assert_allclose(out.tolist(), wanted.tolist(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(aux.lse.tolist(), other.lse.tolist(), rtol=1e-4, atol=1e-5)
    # torch has no gradients of it on the CPU: those of the formula
    leaves = [x.requires_grad_() for x in (a, b, c)]
    at = [
        torch.arange(n).reshape([-1 if i == j else 1 for j in range(4)]) for i, n in enumerate((B, H, L, S))
    ]
    scores = a @ b.mT / E**0.5
    scores = scores if score == "none" else SCORES[score](torch)(scores, *at)
    scores = scores if mod is None else torch.where(mod(*at), scores, -float("inf"))
    dead = (scores == -float("inf")).all(-1, keepdim=True)
    dense = torch.where(dead, 0.0, torch.where(dead, 0.0, scores).softmax(-1)) @ c
    (dense * torch.tensor(V[:, :, :L])).sum().backward()
    for ours, leaf in zip((q, k, v), leaves, strict=True):
        np.testing.assert_allclose(ours.grad.tolist(), leaf.grad.tolist(), rtol=1e-4, atol=1e-5)


def test_blocks_as_torch_lists_them() -> None:
    pytest.importorskip("torch")
    import torch.nn.attention.flex_attention as theirs

    for mod in (causal, window, blind):
        ours, wanted = (
            f.create_block_mask(mod, B, H, 6, 8, device="cpu", BLOCK_SIZE=(2, 4)) for f in (flex, theirs)
        )
        assert ours.to_dense().tolist() == wanted.to_dense().tolist() and ours.shape == wanted.shape
        assert abs(ours.sparsity() - wanted.sparsity()) < 1e-4
        for name in ("kv_num_blocks", "full_kv_num_blocks"):
            assert getattr(ours, name).tolist() == getattr(wanted, name).tolist(), name
        for name, count in (("kv_indices", "kv_num_blocks"), ("full_kv_indices", "full_kv_num_blocks")):
            a, b, n = (
                np.array(getattr(m, k).tolist()) for m, k in ((ours, name), (wanted, name), (ours, count))
            )
            used = np.arange(a.shape[-1]) < n[..., None]
            assert (a[used] == b[used]).all()


def test_combined_masks_shared_heads_and_slices() -> None:
    q, k, v = (weft.tensor(a) for a in (Q, K[:, :2], V[:, :2]))
    both = flex.create_block_mask(flex.and_masks(causal, window), None, None, L, S, BLOCK_SIZE=2)
    got = flex.flex_attention(q, k, v, block_mask=both, enable_gqa=True)
    want = scaled_dot_product_attention(q, k, v, attn_mask=both.to_mask(), enable_gqa=True)
    np.testing.assert_allclose(got.tolist(), want.tolist(), rtol=1e-4, atol=1e-5)
    assert flex.create_mask(flex.or_masks(causal, window), None, None, 3, 3).tolist() == [
        [[[True, True, False], [True, True, True], [True, True, True]]]
    ]
    assert flex.create_mask(flex.noop_mask, 2, None, 2, 3).all().item()
    last = flex.create_block_mask(causal, None, None, S, S, BLOCK_SIZE=1)[:, :, S - 1]
    one = flex.flex_attention(q[:, :, :1], k, v, block_mask=last, enable_gqa=True)
    want = scaled_dot_product_attention(q[:, :, :1], k, v, enable_gqa=True)
    np.testing.assert_allclose(one.tolist(), want.tolist(), rtol=1e-4, atol=1e-5)
    half = flex.flex_attention(q.half(), k.half(), v.half(), enable_gqa=True)
    assert half.dtype is weft.float16


def test_mistakes_and_backends() -> None:
    q, k, v = (weft.tensor(a) for a in (Q, K, V))
    with pytest.raises(weft.ShapeError, match="do not fit"):
        flex.flex_attention(q[:, :3], k, v)
    with pytest.raises(weft.ShapeError, match="block mask is for"):
        flex.flex_attention(q, k, v, block_mask=flex.create_block_mask(causal, None, None, 2, 2))
    with pytest.raises(weft.ShapeError, match="element by element"):
        flex.flex_attention(q, k, v, lambda s, b, h, q, kv: s.sum(-1))
    with pytest.raises(weft.DTypeError, match="and_masks: expected functions"):
        flex.and_masks(causal, 3)  # type: ignore[arg-type]
    with (
        sdpa_kernel(SDPBackend.MATH),
        sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True),
    ):
        assert scaled_dot_product_attention(q, k, v).shape == (B, H, L, E)
    with pytest.raises(weft.DTypeError, match="expected SDPBackend"):
        sdpa_kernel(["math"])  # type: ignore[list-item]
    assert (
        isinstance(weft.nn.MultiheadAttention(4, 2), weft.nn.Module)
        and weft.nn.attention.SDPBackend is SDPBackend
    )
