"""Whisper beside its formula in NumPy, and generating. (`make models` compares it with transformers.)"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.models.formulas import Array, Weights, attention, gelu, linear, norm, weights_of
from weft import models
from weft.errors import ShapeError
from weft.models.whisper import WhisperConfig

SIZES: dict[str, Any] = {
    "vocab_size": 31, "d_model": 16, "num_mel_bins": 5, "max_source_positions": 6, "max_target_positions": 20,
    **{f"{part}_{what}": n for part in ("encoder", "decoder")
       for what, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 24))},
    "suppress_tokens": [3], "begin_suppress_tokens": [4, 50256],
}  # fmt: skip
CONFIG = WhisperConfig(**SIZES)
SOUND = np.random.default_rng(0).normal(size=(2, 5, 12)).astype(np.float32)
IDS = np.random.default_rng(1).integers(0, 31, (2, 7))


def made() -> tuple[Any, Weights]:
    weft.manual_seed(0)
    model = models.Whisper(CONFIG).eval()
    return model, weights_of(model)


def convolved(w: Weights, name: str, x: Array, stride: int) -> Array:
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, 3, 2)[:, :, ::stride]
    return np.einsum("bitk,oik->bot", windows, w[f"{name}.weight"]) + w[f"{name}.bias"][:, None]


def attended(w: Weights, name: str, x: Array, y: Array, mask: Array | None = None) -> Array:
    q, k, v = (linear(w, f"{name}.{n}_proj", z) for n, z in (("q", x), ("k", y), ("v", y)))
    return linear(w, f"{name}.out_proj", attention(q, k, v, 4, mask))


def mlp(w: Weights, at: str, x: Array) -> Array:
    h = norm(w, f"{at}.final_layer_norm", x, 1e-5)
    return x + linear(w, f"{at}.fc2", gelu(linear(w, f"{at}.fc1", h)))


def formula(w: Weights) -> Array:
    x = gelu(convolved(w, "model.encoder.conv1", SOUND.astype(np.float64), 1))
    x = gelu(convolved(w, "model.encoder.conv2", x, 2)).transpose(0, 2, 1)
    x = x + w["model.encoder.embed_positions.weight"]
    for k in range(2):
        at = f"model.encoder.layers.{k}"
        h = norm(w, f"{at}.self_attn_layer_norm", x, 1e-5)
        x = mlp(w, at, x + attended(w, f"{at}.self_attn", h, h))
    sound = norm(w, "model.encoder.layer_norm", x, 1e-5)
    x = w["model.decoder.embed_tokens.weight"][IDS] + w["model.decoder.embed_positions.weight"][:7]
    for k in range(2):
        at = f"model.decoder.layers.{k}"
        h = norm(w, f"{at}.self_attn_layer_norm", x, 1e-5)
        x = x + attended(w, f"{at}.self_attn", h, h, np.tri(7, dtype=bool))
        h = norm(w, f"{at}.encoder_attn_layer_norm", x, 1e-5)
        x = mlp(w, at, x + attended(w, f"{at}.encoder_attn", h, sound))
    return norm(w, "model.decoder.layer_norm", x, 1e-5) @ w["proj_out.weight"].T


def test_logits_are_the_formulas() -> None:
    model, w = made()
    expected = formula(w)
    with weft.no_grad():
        found = model(weft.tensor(SOUND), weft.tensor(IDS)).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-5 * abs(expected).max())
    with pytest.raises(ShapeError, match=r"\(batch, 5, 12\)"):
        model.encode(weft.tensor(SOUND[:, :, :10]))


def test_generated_tokens_are_those_of_whole_passes_without_what_is_suppressed() -> None:
    model, _ = made()
    with weft.no_grad():
        hearing = model.hearing(weft.tensor(SOUND))
        rows = [[1, 2], [1, 5]]
        for k in range(8):
            logits = model(weft.tensor(SOUND), weft.tensor(rows))[:, -1].numpy()
            logits[:, 3] = -np.inf
            if k == 0:
                logits[:, 4] = -np.inf
            rows = [[*row, int(t)] for row, t in zip(rows, logits.argmax(1), strict=True)]
    found = list(models.generate(hearing, [[1, 2], [1, 5]], 8))
    assert [list(t) for t in zip(*found, strict=True)] == [row[2:] for row in rows]
    weft.compiler.reset()
    (alone,) = zip(*models.generate(model.hearing(weft.tensor(SOUND[:1])), [[1, 2]], 8), strict=True)
    assert list(alone) == rows[0][2:]


def test_a_folder_gives_the_model_back(tmp_path: Path) -> None:
    model, _ = made()
    values = asdict(CONFIG) | {"model_type": "whisper", "scale_embedding": False, "dropout": 0.0}
    (tmp_path / "config.json").write_text(json.dumps(values))
    weights = {k: t for k, t in model.state_dict().items() if k != "proj_out.weight"}
    weft.io.save_safetensors(weights, tmp_path / "model.safetensors")
    found = models.from_pretrained(tmp_path)
    assert found.proj_out.weight is found.model.decoder.embed_tokens.weight
    with weft.no_grad():
        args = weft.tensor(SOUND), weft.tensor(IDS)
        np.testing.assert_array_equal(found(*args).numpy(), model(*args).numpy())


def test_what_is_suppressed_cannot_be_chosen() -> None:
    """Token 3 never, token 4 not at first; also where several tokens are looked at, as guesses are."""
    model, _ = made()
    with weft.no_grad():
        hearing = model.hearing(weft.tensor(SOUND))
        cache = hearing.cache(2, 12)
        seen = [
            hearing(weft.tensor(IDS[:, :2]), cache, first=True, last=True),
            hearing(weft.tensor(IDS[:, 2:3]), cache, last=True),
            hearing(weft.tensor(IDS[:, 3:6]), cache),
        ]
        plain = hearing(weft.tensor(IDS[:, :6]))
    values = [x.numpy() for x in seen]
    assert [np.isneginf(x[..., 3]).all() for x in values] == [True, True, True]
    assert [np.isneginf(x[..., 4]).all() for x in values] == [True, False, False]
    assert (
        np.isfinite(np.delete(np.concatenate(values[1:], 1), 3, -1)).all()
        and np.isfinite(plain.numpy()).all()
    )
    guessed, one_by_one = (
        [list(t) for t in models.generate(hearing, [[1], [5]], 12, draft=draft)] for draft in ("lookup", None)
    )
    assert guessed == one_by_one
