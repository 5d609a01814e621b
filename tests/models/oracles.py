"""Decoders beside transformers, which builds tiny random ones: `make models`, since it takes a minute to install."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

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


@pytest.mark.parametrize("kind", MADE)
def test_a_decoder_computes_what_transformers_does(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    oracle: Any = MADE[kind]().eval()
    for p in oracle.parameters():  # random models are nearly linear: make them less so
        p.data = p.data + torch.randn_like(p) * 0.1 if p.ndim == 1 else p.data * 3
    oracle.save_pretrained(tmp_path)
    model = models.from_pretrained(tmp_path)
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
