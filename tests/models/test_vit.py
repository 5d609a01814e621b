"""ViT beside its formula in NumPy. (`make models` compares it with transformers.)"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.models.formulas import attention, gelu, linear, norm, weights_of
from weft import models
from weft.errors import ShapeError
from weft.models.vit import ViTConfig

SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "image_size": [8, 12], "patch_size": 4, "id2label": {"0": "cat", "1": "dog", "2": "owl"},
}  # fmt: skip


def test_logits_are_the_formulas() -> None:
    model = models.ViT(ViTConfig(**SIZES, layer_norm_eps=1e-6)).eval()
    w = weights_of(model)
    image = np.random.default_rng(0).normal(size=(2, 3, 8, 12)).astype(np.float32)
    patches = image.reshape(2, 3, 2, 4, 3, 4).transpose(0, 2, 4, 1, 3, 5).reshape(2, 6, 48)
    at = "vit.embeddings.patch_embeddings.projection"
    x = patches @ w[f"{at}.weight"].reshape(16, 48).T + w[f"{at}.bias"]
    first = np.broadcast_to(w["vit.embeddings.cls_token"], (2, 1, 16))
    x = np.concatenate([first, x], 1) + w["vit.embeddings.position_embeddings"]
    for k in range(2):
        at = f"vit.encoder.layer.{k}"
        h = norm(w, f"{at}.layernorm_before", x, 1e-6)
        q, k_, v = (linear(w, f"{at}.attention.attention.{n}", h) for n in ("query", "key", "value"))
        x = x + linear(w, f"{at}.attention.output.dense", attention(q, k_, v, 4))
        h = gelu(linear(w, f"{at}.intermediate.dense", norm(w, f"{at}.layernorm_after", x, 1e-6)))
        x = x + linear(w, f"{at}.output.dense", h)
    expected = linear(w, "classifier", norm(w, "vit.layernorm", x, 1e-6)[:, 0])
    with weft.no_grad():
        found = model(weft.tensor(image)).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-5 * abs(expected).max())
    with pytest.raises(ShapeError, match=r"\(3, 8, 12\)"):
        model(weft.zeros(1, 3, 12, 8))


def test_a_folder_gives_the_model_back_with_its_names(tmp_path: Path) -> None:
    model = models.ViT(ViTConfig(**SIZES)).eval()
    (tmp_path / "config.json").write_text(json.dumps(SIZES | {"model_type": "vit", "encoder_stride": 16}))
    weft.io.save_safetensors(model.state_dict(), tmp_path / "model.safetensors")
    found = models.from_pretrained(tmp_path)
    x = weft.rand(1, 3, 8, 12)
    with weft.no_grad():
        np.testing.assert_array_equal(found(x).numpy(), model(x).numpy())
    assert found.names == ["cat", "dog", "owl"]
