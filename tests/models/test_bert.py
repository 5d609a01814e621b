"""BERT beside its formula in NumPy; files with heads, and with the encoder alone. (`make models`: transformers.)"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.models.formulas import Array, Weights, attention, gelu, linear, norm, weights_of
from weft import models
from weft.errors import ArgumentError, FileError
from weft.models.bert import BertConfig

CONFIG = BertConfig(vocab_size=41, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
                    max_position_embeddings=12, layer_norm_eps=1e-6)  # fmt: skip
IDS = np.random.default_rng(0).integers(0, 41, (2, 7))
MASK = np.array([[1] * 7, [1] * 4 + [0] * 3], bool)
KINDS = np.array([[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0, 0]])


def formula(w: Weights) -> Array:
    tables = (
        w["embeddings.word_embeddings.weight"][IDS],
        w["embeddings.position_embeddings.weight"][:7],
        w["embeddings.token_type_embeddings.weight"][KINDS],
    )
    x = norm(w, "embeddings.LayerNorm", sum(tables), 1e-6)
    for k in range(2):
        at = f"encoder.layer.{k}"
        q, k_, v = (linear(w, f"{at}.attention.self.{n}", x) for n in ("query", "key", "value"))
        h = attention(q, k_, v, 4, MASK[:, None, None])
        x = norm(
            w, f"{at}.attention.output.LayerNorm", linear(w, f"{at}.attention.output.dense", h) + x, 1e-6
        )
        h = gelu(linear(w, f"{at}.intermediate.dense", x))
        x = norm(w, f"{at}.output.LayerNorm", linear(w, f"{at}.output.dense", h) + x, 1e-6)
    return x


def test_features_and_embeddings_are_the_formulas() -> None:
    model = models.Bert(CONFIG).eval()
    w = weights_of(model)
    expected = formula(w)
    ids, mask = weft.tensor(IDS), weft.tensor(MASK)
    with weft.no_grad():
        found = model(ids, mask, weft.tensor(KINDS))
        pooled = model.pooler(found).numpy()
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-5 * abs(expected).max())
    np.testing.assert_allclose(pooled, np.tanh(linear(w, "pooler.dense", expected[:, 0])), atol=1e-5)
    with weft.no_grad():
        ours, plain = model.embed(ids, mask).numpy(), model(ids, mask).numpy()
    mean = (plain * MASK[..., None]).sum(1) / MASK.sum(1, keepdims=True)
    np.testing.assert_allclose(ours, mean / np.linalg.norm(mean, axis=1, keepdims=True), atol=1e-6)


def folder(path: Path, weights: dict[str, weft.Tensor], **changes: object) -> Path:
    (path / "config.json").write_text(json.dumps(asdict(CONFIG) | {"model_type": "bert"} | changes))
    weft.io.save_safetensors(weights, path / "model.safetensors")
    return path


def test_files_of_models_around_it_and_without_a_pooler_are_read(tmp_path: Path) -> None:
    model = models.Bert(CONFIG).eval()
    own = model.state_dict()
    with weft.no_grad():
        expected = model(weft.tensor(IDS)).numpy()
    around = {f"bert.{k}": t for k, t in own.items() if not k.startswith("pooler.")}
    for weights in (own, around | {"cls.predictions.bias": weft.zeros(41)}):
        found = models.from_pretrained(folder(tmp_path, weights))
        with weft.no_grad():
            np.testing.assert_array_equal(found(weft.tensor(IDS)).numpy(), expected)
        assert hasattr(found, "pooler") == (weights is own)


def test_what_cannot_be_honoured_is_told(tmp_path: Path) -> None:
    model = models.Bert(CONFIG)
    for changes, error, told in (
        ({"hidden_act": "mish"}, ArgumentError, "'mish' is not supported"),
        ({"position_embedding_type": "relative_key"}, ArgumentError, "position_embedding_type"),
        ({"num_hidden_layers": 3}, FileError, "lacks encoder.layer.2"),
    ):
        with pytest.raises(error, match=told):
            models.from_pretrained(folder(tmp_path, model.state_dict(), **changes))
    with pytest.raises(ArgumentError, match="beyond the 12"):
        model(weft.zeros(1, 13, dtype=weft.int64))
