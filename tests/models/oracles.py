"""Models beside transformers and diffusers, which build tiny random ones: `make models`, since they take a minute to
install."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from klein import tiny as tiny_klein

import weft
from weft import models

SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "pad_token_id": 0, "eos_token_id": None, "bos_token_id": None,
}  # fmt: skip
SEVEN = SIZES | {"num_hidden_layers": 7}  # of Gemma's layers, one in six is full
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}
MADE = {
    "llama": lambda: tf.LlamaForCausalLM(
        tf.LlamaConfig(**SIZES, num_key_value_heads=2, rope_parameters=LLAMA3)
    ),
    "llama, biases": lambda: tf.LlamaForCausalLM(
        tf.LlamaConfig(
            **SIZES, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, rope_parameters=LINEAR
        )
    ),
    "mistral": lambda: tf.MistralForCausalLM(
        tf.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=None)
    ),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=32)),
    "gemma3": lambda: tf.Gemma3ForCausalLM(
        tf.Gemma3TextConfig(
            **SEVEN, num_key_value_heads=2, head_dim=32, sliding_window=5, query_pre_attn_scalar=24
        )
    ),
    "phi": lambda: tf.PhiForCausalLM(tf.PhiConfig(**SIZES, qk_layernorm=True)),
    "phi3": lambda: tf.Phi3ForCausalLM(tf.Phi3Config(**SIZES, num_key_value_heads=2, sliding_window=6)),
    "gpt2": lambda: tf.GPT2LMHeadModel(
        tf.GPT2Config(vocab_size=97, n_embd=64, n_layer=3, n_head=4, eos_token_id=None, bos_token_id=None)
    ),
}


def relative(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    return float(abs(a - b).max() / abs(b).max())


def bent(oracle: Any, by: float = 3) -> Any:
    """A random model, which is nearly linear, made less so."""
    for p in oracle.parameters():
        p.data = p.data + torch.randn_like(p) * 0.1 if p.ndim == 1 else p.data * by
    return oracle.eval()


def both(oracle: Any, folder: Path) -> tuple[Any, Any]:
    """The oracle, and the model that weft reads from its folder."""
    bent(oracle).save_pretrained(folder)
    return oracle, models.from_pretrained(folder)


@pytest.mark.parametrize("kind", MADE)
def test_a_decoder_computes_what_transformers_does(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    oracle, model = both(MADE[kind](), tmp_path)
    ids = torch.randint(0, 97, (2, 17))
    with torch.no_grad():
        expected = oracle(ids).logits.numpy()
        text = oracle.generate(ids[:1], max_new_tokens=64, do_sample=False)[0, 17:].tolist()
    with weft.no_grad():
        found = model(weft.tensor(ids.numpy())).numpy()
        cache = model.cache(2, 32)
        steps = [
            model(weft.tensor(ids.numpy()[:, a:b]), cache).numpy() for a, b in ((0, 9), (9, 10), (10, 17))
        ]
    assert relative(found, expected) < 2e-5
    assert relative(np.concatenate(steps, 1), found) < 1e-5
    assert [t for (t,) in models.generate(model, ids[:1].tolist(), 64)] == text


@pytest.mark.parametrize("cls", [tf.BertModel, tf.BertForMaskedLM])
def test_bert_computes_what_transformers_does(cls: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    oracle, model = both(
        cls(tf.BertConfig(**SIZES | {"bos_token_id": None}, max_position_embeddings=20)), tmp_path
    )
    ids, kinds, mask = torch.randint(0, 97, (2, 17)), torch.randint(0, 2, (2, 17)), torch.ones(2, 17)
    mask[1, 9:] = 0
    encoder = oracle if cls is tf.BertModel else oracle.bert
    with torch.no_grad(), weft.no_grad():
        expected = encoder(ids, attention_mask=mask, token_type_ids=kinds)
        found = model(weft.tensor(ids.numpy()), weft.tensor(mask.bool().numpy()), weft.tensor(kinds.numpy()))
        assert relative(found.numpy(), expected.last_hidden_state.numpy()) < 2e-5
        if cls is tf.BertModel:
            assert relative(model.pooler(found).numpy(), expected.pooler_output.numpy()) < 2e-5


def test_vit_computes_what_transformers_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {k: v for k, v in SIZES.items() if not k.endswith("_id") and k != "vocab_size"}
    config = tf.ViTConfig(**sizes, image_size=(16, 24), patch_size=4, num_labels=7)
    oracle, model = both(tf.ViTForImageClassification(config), tmp_path)
    x = torch.randn(2, 3, 16, 24)
    with torch.no_grad(), weft.no_grad():
        assert relative(model(weft.tensor(x.numpy())).numpy(), oracle(x).logits.numpy()) < 2e-5


def test_whisper_hears_and_says_what_transformers_does(tmp_path: Path) -> None:
    torch.manual_seed(1)
    half = {
        f"{p}_{k}": n
        for p in ("encoder", "decoder")
        for k, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 96))
    }
    config = tf.WhisperConfig(
        **half, vocab_size=97, d_model=64, num_mel_bins=80, max_source_positions=100, max_target_positions=80,
        decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        tie_word_embeddings=False,
    )  # fmt: skip
    oracle = tf.WhisperForConditionalGeneration(config)
    oracle.generation_config.suppress_tokens = config.suppress_tokens = [2, 5]  # it never ends
    oracle.generation_config.begin_suppress_tokens = config.begin_suppress_tokens = [7, 8]
    oracle, model = both(oracle, tmp_path)
    sounds = np.random.default_rng(0).normal(size=(2, 30000)).astype(np.float32)
    sounds[1, 20000:] = 0
    hears = tf.WhisperFeatureExtractor(chunk_length=2)
    features = hears(list(sounds), sampling_rate=16000, return_tensors="np")["input_features"]
    np.testing.assert_allclose(models.log_mel(weft.tensor(sounds), seconds=2).numpy(), features, atol=1e-5)
    ids = torch.randint(0, 97, (2, 9))
    with torch.no_grad(), weft.no_grad():
        expected = oracle(torch.tensor(features), decoder_input_ids=ids).logits.numpy()
        said = oracle.generate(torch.tensor(features), max_new_tokens=64, do_sample=False).tolist()
        assert relative(model(weft.tensor(features), weft.tensor(ids.numpy())).numpy(), expected) < 2e-5
        hearing = model.hearing(weft.tensor(features))
    found = [list(t) for t in zip(*models.generate(hearing, [[1], [1]], 64), strict=True)]
    assert found == [row[-64:] for row in said]
    assert len(set(found[0])) > 4


def test_klein_draws_what_diffusers_does(tmp_path: Path) -> None:
    oracle = tiny_klein()
    reader = oracle.text_encoder
    oracle.save_pretrained(tmp_path)
    klein = models.Klein.from_pretrained(tmp_path)
    klein.layers = (1, 2, 3)
    ids, lengths = torch.randint(0, 97, (2, 9)), torch.tensor([9, 6])
    mask = (torch.arange(9) < lengths[:, None]).long()
    with torch.no_grad():
        states = reader(ids, attention_mask=mask, output_hidden_states=True).hidden_states
    text = torch.cat([states[k] for k in (1, 2, 3)], -1)
    assert relative(klein.features(ids.tolist(), lengths.tolist()).numpy(), text.numpy()) < 2e-5
    noise, size = torch.randn(2, 16, 8, 6), {"height": 32, "width": 24}
    for guided in (False, True):
        oracle.register_to_config(is_distilled=not guided)
        klein.distilled = not guided
        against = text.flip(0) if guided else None
        expected = oracle(prompt_embeds=text, negative_prompt_embeds=against, num_inference_steps=4, latents=noise,
                          guidance_scale=3.0, output_type="pt", **size).images.numpy()  # fmt: skip
        negative = "" if against is None else weft.tensor(against.numpy().copy())
        found = klein(weft.tensor(text.numpy()), steps=4, noise=weft.tensor(noise.numpy()), guidance=3.0,
                      negative=negative, **size).numpy()  # fmt: skip
        assert abs(found - expected).max() < 1e-4 and expected.std() > 0.1


@pytest.mark.parametrize(
    "how",
    [{"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 20, "top_p": 0.8}, {"repetition_penalty": 1.7}],
)
def test_the_tokens_that_can_come_are_those_of_transformers(how: dict[str, Any]) -> None:
    p = tf.generation.logits_process
    kinds = {
        "repetition_penalty": p.RepetitionPenaltyLogitsProcessor, "top_k": p.TopKLogitsWarper,
        "top_p": p.TopPLogitsWarper, "min_p": p.MinPLogitsWarper,
    }  # fmt: skip
    logits, ids = torch.randn(3, 97) * 3, torch.randint(0, 97, (3, 12))
    expected = logits
    for name, kind in kinds.items():
        if name in how:
            expected = kind(how[name])(ids, expected)
    seen = torch.zeros(3, 97, dtype=torch.bool).scatter_(1, ids, True)
    found = models.Sampling(temperature=1.0, **how).logits(
        weft.tensor(logits.numpy()), weft.tensor(seen.numpy())
    )
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6)
