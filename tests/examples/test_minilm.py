"""The embeddings of examples/minilm.py beside those that torch computed (tests/data/record_minilm.py)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import weft

pytest.importorskip("tokenizers")
minilm = pytest.importorskip("minilm")
if find_spec(minilm.PACKAGE) is None:
    pytest.skip("the weights are not installed: `make minilm`", allow_module_level=True)

RECORDED = np.load(Path(__file__).parents[1] / "data" / "minilm.npz")


def test_tokens_are_as_recorded() -> None:
    encoded = minilm.load_tokenizer(minilm.model_folder()).encode_batch(RECORDED["sentences"].tolist())
    np.testing.assert_array_equal([e.ids for e in encoded], RECORDED["ids"])
    np.testing.assert_array_equal([e.attention_mask for e in encoded], RECORDED["mask"])


def test_embeddings_are_as_recorded() -> None:
    model = weft.models.from_pretrained(minilm.model_folder())
    with weft.no_grad():
        ours = model.embed(weft.tensor(RECORDED["ids"]), weft.tensor(RECORDED["mask"])).numpy()
    theirs = RECORDED["embeddings"]
    cosine = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    assert ours.dtype == np.float32
    assert np.abs(ours - theirs).max() <= 1e-5
    assert cosine.min() >= 0.99999


def test_a_sentence_embeds_the_same_alone_and_in_a_padded_batch() -> None:
    folder = minilm.model_folder()
    model, tokenizer = weft.models.from_pretrained(folder), minilm.load_tokenizer(folder)
    sentences = ["short", "A man is eating a piece of bread, slowly, and enjoying every bit of it."]
    batch = minilm.embed(model, tokenizer, sentences).numpy()
    alone = np.concatenate([minilm.embed(model, tokenizer, [s]).numpy() for s in sentences])
    np.testing.assert_allclose(batch, alone, atol=1e-5)
