"""Flux 2 klein: its parts beside formulas in NumPy, and the pipeline. (`make models` compares it with diffusers.)"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.models.formulas import Array, Weights, attention, linear, plain_norm, rms_norm, silu, weights_of
from weft import models
from weft.errors import ArgumentError, FileError, ShapeError
from weft.models.flux2 import Flux2, Flux2Config, turned, turns
from weft.models.flux2_vae import Flux2VAE, Flux2VAEConfig
from weft.models.klein import Schedule
from weft.models.qwen3 import Qwen3, Qwen3Config

FLUX = Flux2Config(in_channels=8, num_layers=1, num_single_layers=2, attention_head_dim=8, num_attention_heads=2,
                   joint_attention_dim=24, timestep_guidance_channels=6, axes_dims_rope=(2, 2, 2, 2))  # fmt: skip
VAE = Flux2VAEConfig(latent_channels=2, block_out_channels=(4, 8), layers_per_block=1, norm_num_groups=2)
QWEN = Qwen3Config(vocab_size=29, hidden_size=8, intermediate_size=12, num_hidden_layers=4, num_attention_heads=2,
                   num_key_value_heads=1, head_dim=4, max_position_embeddings=64)  # fmt: skip


def made() -> models.Klein:
    weft.manual_seed(0)
    parts = Flux2(FLUX).eval(), Flux2VAE(VAE).eval(), Qwen3(QWEN).eval()
    return models.Klein(*parts, Schedule(use_dynamic_shifting=True), layers=(1, 2, 3))


def rotated(x: Array, at: Array) -> Array:
    """(b, t, e) in two heads, turned as complex numbers."""
    angles = np.concatenate([at[:, k : k + 1] / 2000.0 ** (np.arange(0, 2, 2) / 2) for k in range(4)], 1)
    pairs = x.reshape(*x.shape[:2], 2, -1, 2)
    z = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)[None, :, None]
    return np.stack([z.real, z.imag], -1).reshape(x.shape)


def headed(w: Weights, name: str, x: Array) -> Array:
    return rms_norm(w, name, x.reshape(*x.shape[:2], 2, -1), 1e-6).reshape(x.shape)


def swiglu(x: Array) -> Array:
    a, b = np.split(x, 2, -1)
    return silu(a) * b


def formula(w: Weights, x: Array, text: Array, time: Array, at: Array) -> Array:
    f = np.exp(-math.log(10000) * np.arange(3) / 3)
    waves = np.concatenate([np.cos(time[:, None] * f), np.sin(time[:, None] * f)], 1)
    at_time = "time_guidance_embed.timestep_embedder"
    now = linear(w, f"{at_time}.linear_2", silu(linear(w, f"{at_time}.linear_1", waves)))

    def parts(name: str, count: int) -> list[Array]:
        return np.split(linear(w, f"{name}.linear", silu(now))[:, None], count, -1)

    def shifted(x: Array, shift: Array, scale: Array) -> Array:
        return (1 + scale) * plain_norm(x, 1e-6) + shift

    x, text = linear(w, "x_embedder", x), linear(w, "context_embedder", text)
    i, t = parts("double_stream_modulation_img", 6), parts("double_stream_modulation_txt", 6)
    a, b, n = shifted(x, *i[:2]), shifted(text, *t[:2]), text.shape[1]
    name = "transformer_blocks.0.attn"
    q = np.concatenate([headed(w, f"{name}.norm_added_q", linear(w, f"{name}.add_q_proj", b)),
                        headed(w, f"{name}.norm_q", linear(w, f"{name}.to_q", a))], 1)  # fmt: skip
    k = np.concatenate([headed(w, f"{name}.norm_added_k", linear(w, f"{name}.add_k_proj", b)),
                        headed(w, f"{name}.norm_k", linear(w, f"{name}.to_k", a))], 1)  # fmt: skip
    v = np.concatenate([linear(w, f"{name}.add_v_proj", b), linear(w, f"{name}.to_v", a)], 1)
    out = attention(rotated(q, at), rotated(k, at), v, 2)
    x = x + i[2] * linear(w, f"{name}.to_out.0", out[:, n:])
    text = text + t[2] * linear(w, f"{name}.to_add_out", out[:, :n])
    for part, mod in (("ff", i), ("ff_context", t)):
        y, at_ff = (x if mod is i else text), f"transformer_blocks.0.{part}"
        h = swiglu(linear(w, f"{at_ff}.linear_in", shifted(y, *mod[3:5])))
        y = y + mod[5] * linear(w, f"{at_ff}.linear_out", h)
        x, text = (y, text) if mod is i else (x, y)
    x = np.concatenate([text, x], 1)
    shift, scale, gate = parts("single_stream_modulation", 3)
    for b_ in range(2):
        name = f"single_transformer_blocks.{b_}.attn"
        h = linear(w, f"{name}.to_qkv_mlp_proj", shifted(x, shift, scale))
        q, k, v = np.split(h[..., :48], 3, -1)
        q, k = headed(w, f"{name}.norm_q", q), headed(w, f"{name}.norm_k", k)
        out = np.concatenate([attention(rotated(q, at), rotated(k, at), v, 2), swiglu(h[..., 48:])], -1)
        x = x + gate * linear(w, f"{name}.to_out", out)
    scale, shift = parts("norm_out", 2)
    return linear(w, "proj_out", shifted(x[:, n:], shift, scale))


def test_velocities_are_the_formulas() -> None:
    weft.manual_seed(0)
    model = Flux2(FLUX).eval()
    w, rng = weights_of(model), np.random.default_rng(0)
    x, text = (rng.normal(size=(2, t, e)).astype(np.float32) for t, e in ((6, 8), (3, 24)))
    time, at = np.array([1000, 731], np.float32), rng.integers(0, 5, (9, 4)).astype(np.float64)
    expected = formula(w, x.astype(np.float64), text.astype(np.float64), time.astype(np.float64), at)
    with weft.no_grad():
        given = (weft.tensor(v) for v in (x, text, time))
        found = model(*given, turns(FLUX, at, None)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4 * abs(expected).max())


def test_a_turn_keeps_lengths_and_adds_up() -> None:
    weft.manual_seed(0)
    x, at = weft.randn(1, 1, 3, 8), np.arange(12.0).reshape(3, 4)
    once = turned(x, turns(FLUX, at, None))
    np.testing.assert_allclose(once.square().sum().item(), x.square().sum().item(), rtol=1e-5)
    np.testing.assert_allclose(
        turned(once, turns(FLUX, at, None)).numpy(), turned(x, turns(FLUX, 2 * at, None)).numpy(), atol=1e-5
    )


def test_times_fall_from_one_to_nothing_and_are_shifted() -> None:
    np.testing.assert_allclose(Schedule().times(4, 16), [1, 0.75, 0.5, 0.25, 0])
    np.testing.assert_allclose(Schedule(shift=3.0).times(2, 16), [1, 1.5 / 2, 0])
    mu = 0.00016927 * 5000 + 0.45666666
    by = math.exp(mu)
    times = Schedule(use_dynamic_shifting=True).times(2, 5000)
    np.testing.assert_allclose(times, [1, by / (by + 1), 0], rtol=1e-6)
    few = 8.73809524e-05 * 64 + 1.89833333  # at ten steps
    times = Schedule(use_dynamic_shifting=True, time_shift_type="linear").times(10, 64)
    np.testing.assert_allclose(times[5], few / (few + 1), rtol=1e-5)
    np.testing.assert_allclose(Schedule(shift_terminal=0.1).times(4, 16)[[0, 3, 4]], [1, 0.1, 0], rtol=1e-6)
    with pytest.raises(ArgumentError, match="time_shift_type"):
        Schedule(time_shift_type="cubic")


def test_latents_are_patches_of_pixels_to_be_decoded() -> None:
    vae = Flux2VAE(VAE).eval()
    seen: list[Any] = []
    vae.decoder.register_forward_hook(lambda _m, given, _out: seen.append(given[0].numpy()))
    vae.post_quant_conv = None
    vae.bn.running_mean = weft.arange(8, dtype=weft.float32)
    x = np.random.default_rng(0).normal(size=(1, 8, 2, 3)).astype(np.float32)
    with weft.no_grad():
        image = vae(weft.tensor(x))
    assert image.shape == (1, 3, 8, 12)
    wide = x * np.sqrt(1 + 1e-4) + np.arange(8)[:, None, None]
    for c in range(2):
        for i in range(2):
            for j in range(2):
                np.testing.assert_allclose(seen[0][0, c, i::2, j::2], wide[0, 4 * c + 2 * i + j], rtol=1e-5)


def test_features_of_texts_are_not_moved_by_what_fills_them_up() -> None:
    klein = made()
    ids = np.random.default_rng(0).integers(0, 29, (2, 6)).tolist()
    whole = klein.features(ids, [6, 4]).numpy()
    assert whole.shape == (2, 6, 24)
    np.testing.assert_allclose(klein.features([ids[1][:4]], [4]).numpy()[0], whole[1, :4], atol=1e-5)
    other = [ids[0], [*ids[1][:4], ids[1][4] + 1, ids[1][5]]]  # what fills a text up is seen by nobody
    np.testing.assert_allclose(klein.features(other, [6, 4]).numpy()[1, 5], whole[1, 5], atol=1e-5)
    with pytest.raises(ArgumentError, match="no tokenizer"):
        klein("a cat")


def test_an_image_follows_its_seed_and_is_what_its_steps_give() -> None:
    klein = made()
    text = weft.randn(1, 5, 24)
    told: list[tuple[int, int]] = []
    first = klein(text, height=16, width=8, steps=3, seed=1, progress=lambda *k: told.append(k)).numpy()
    assert first.shape == (1, 3, 16, 8) and told == [(1, 3), (2, 3), (3, 3)]
    assert 0 <= first.min() < first.max() <= 1
    np.testing.assert_array_equal(klein(text, height=16, width=8, steps=3, seed=1).numpy(), first)
    assert abs(klein(text, height=16, width=8, steps=3, seed=2).numpy() - first).max() > 1e-3
    noise = np.random.default_rng(0).normal(size=(1, 8, 4, 2)).astype(np.float32)
    at = np.array([[0, 0, 0, k] for k in range(5)] + [[0, k // 2, k % 2, 0] for k in range(8)], float)
    x, times = noise.reshape(1, 8, 8).transpose(0, 2, 1), klein.schedule.times(3, 8)
    with weft.no_grad():
        for now, then in pairwise(times):
            v = klein.transformer(
                weft.tensor(x), text, weft.tensor([now * 1000]), turns(FLUX, at, None)
            ).numpy()
            x = x + (then - now) * v
        image = klein.vae(weft.tensor(x.transpose(0, 2, 1).reshape(1, 8, 4, 2))).numpy()
    found = klein(text, height=16, width=8, steps=3, noise=weft.tensor(noise)).numpy()
    np.testing.assert_allclose(found, (image / 2 + 0.5).clip(0, 1), atol=1e-4)
    klein.distilled = False
    far = klein(
        text, height=16, width=8, steps=3, noise=weft.tensor(noise), guidance=3.0, negative=text
    ).numpy()
    np.testing.assert_allclose(far, found, atol=1e-4)  # further from itself is nowhere else
    with pytest.raises(ArgumentError, match="multiples of 4"):
        klein(text, height=18, width=8)
    with pytest.raises(ShapeError, match="noise of shape"):
        klein(text, height=8, width=8, noise=weft.tensor(noise))


def test_a_folder_gives_the_pipeline_back(tmp_path: Path) -> None:
    klein = made()
    described = {
        "transformer": (klein.transformer, asdict(FLUX) | {"_class_name": "Flux2Transformer2DModel"}),
        "vae": (klein.vae, asdict(VAE) | {"_class_name": "AutoencoderKLFlux2"}),
        "text_encoder": (
            klein.text_encoder,
            {k: v for k, v in asdict(QWEN).items() if v} | {"model_type": "qwen3"},
        ),
    }
    for name, (model, values) in described.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(values))
        weft.io.save_safetensors(model.state_dict(), tmp_path / name / "model.safetensors")
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "scheduler_config.json").write_text(json.dumps(asdict(klein.schedule)))
    index = {"_class_name": "Flux2KleinPipeline", "is_distilled": True}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    found = models.Klein.from_pretrained(tmp_path)
    assert found.schedule == klein.schedule and found.distilled
    for name, (model, _) in described.items():
        again = getattr(found, name).state_dict()
        assert all((again[k] == t).all().item() for k, t in model.state_dict().items())
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}))
    with pytest.raises(FileError, match="'FluxPipeline', not Flux2KleinPipeline"):
        models.Klein.from_pretrained(tmp_path)
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    values = described["transformer"][1] | {"guidance_embeds": True}
    (tmp_path / "transformer" / "config.json").write_text(json.dumps(values))
    with pytest.raises(ArgumentError, match="guidance_embeds=True"):
        models.Klein.from_pretrained(tmp_path)
