"""Models from GGUF files: written as llama.cpp's converter does, and compared with what was written."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.models.test_decoders import IDS
from weft import models, nn
from weft.backends.deferred import DeferredStorage
from weft.errors import ArgumentError, DTypeError, FileError
from weft.io import gguf_metadata, load_gguf, save_gguf
from weft.models import gguf
from weft.models.gemma3 import Gemma3Config
from weft.models.llama import LlamaConfig
from weft.models.qwen3 import Qwen3Config
from weft.models.rotary import Rotary
from weft.quantization import BlockFormat, to_blocks

SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 128,
}  # fmt: skip
MADE: dict[str, tuple[Any, Any]] = {
    "llama": (models.Llama, LlamaConfig(**SIZES)),
    "qwen3": (models.Qwen3, Qwen3Config(**SIZES, tie_word_embeddings=True)),
    "gemma3": (models.Gemma3, Gemma3Config(**SIZES, sliding_window=4, query_pre_attn_scalar=32)),
}


def converted(name: str, w: weft.Tensor, arch: str, config: Any) -> weft.Tensor:
    """A weight as llama.cpp's converter writes it."""
    if arch == "gemma3" and name.endswith("norm.weight"):
        return w + 1
    if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config.num_attention_heads if "q_proj" in name else config.key_heads
        return w.reshape(heads, 2, -1, w.shape[1]).transpose(1, 2).reshape(w.shape)
    return w


def written(path: Path, arch: str, blocks: BlockFormat | None) -> tuple[Path, Any]:
    """A file, and the model that it holds."""
    weft.manual_seed(0)
    cls, config = MADE[arch]
    model = cls(config).eval()
    layer = {v: k for k, v in gguf._KINDS[arch].names.items()}
    outer = {v: k for k, v in gguf._NAMES.items()}
    tensors: dict[str, Any] = {}
    with weft.no_grad():
        for name, p in model.named_parameters():
            if blocks is not None and p.dim() == 2:
                p.copy_(to_blocks(p, blocks).dequantize())
            if name == "lm_head.weight" and config.tie_word_embeddings:
                continue
            stem, _, end = name.rpartition(".")
            parts = stem.split(".", 3)
            place = outer.get(stem) or f"blk.{parts[2]}.{layer[parts[3]]}"
            w = converted(name, p.detach(), arch, config)
            tensors[f"{place}.{end}"] = to_blocks(w, blocks) if blocks is not None and p.dim() == 2 else w
    about: dict[str, Any] = {
        "block_count": 2, "context_length": 128, "embedding_length": 64, "feed_forward_length": 96,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 32,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps, "rope.freq_base": config.rope_theta,
    } | ({"attention.sliding_window": 4} if arch == "gemma3" else {})  # fmt: skip
    save_gguf(tensors, path, {"general.architecture": arch} | {f"{arch}.{k}": v for k, v in about.items()})
    return path, model


@pytest.mark.parametrize("blocks", [None, BlockFormat.Q8_0])
@pytest.mark.parametrize("arch", MADE)
def test_a_file_gives_the_model_back(arch: str, blocks: BlockFormat | None, tmp_path: Path) -> None:
    path, model = written(tmp_path / "x.gguf", arch, blocks)
    found = models.from_gguf(path)
    with weft.no_grad():
        expected = model(weft.tensor(IDS)).numpy()
        np.testing.assert_allclose(found(weft.tensor(IDS)).numpy(), expected, atol=2e-5 * abs(expected).max())
    if blocks is not None:
        assert isinstance(found.lm_head, nn.BlockLinear) and isinstance(found.embedding, nn.BlockEmbedding)
        assert len(list(models.generate(found, IDS.tolist(), 2))) == 2
        assert "Q8_0" in repr(found)


def test_a_file_that_is_not_whole_is_refused_by_name(tmp_path: Path) -> None:
    path, _ = written(tmp_path / "x.gguf", "qwen3", None)
    metadata, tensors = dict(gguf_metadata(path)), load_gguf(path)
    for gone, told in (
        ("general.architecture", "architecture None; weft has"), ("qwen3.block_count", "lacks the entry.*block_count"),
        ("token_embd.weight", "lacks token_embd"), ("blk.1.ffn_up.weight", "lacks model.layers.1.mlp.up_proj.weight"),
    ):  # fmt: skip
        less = {k: v for k, v in metadata.items() if k != gone}
        save_gguf({k: v for k, v in tensors.items() if k != gone}, tmp_path / "y.gguf", less)
        with pytest.raises(FileError, match=told):
            models.from_gguf(tmp_path / "y.gguf")
    save_gguf(tensors | {"blk.0.strange.weight": weft.ones(2)}, tmp_path / "y.gguf", metadata)
    with pytest.raises(FileError, match="strange"):
        models.from_gguf(tmp_path / "y.gguf")
    save_gguf(tensors | {"output_norm.weight": weft.ones(2)}, tmp_path / "y.gguf", metadata)
    with pytest.raises(FileError, match=r"of shape \(2,\) in place of \(64,\)"):
        models.from_gguf(tmp_path / "y.gguf")


def test_frequencies_are_divided_by_a_files_table(tmp_path: Path) -> None:
    """Llama 3.1's scaling, of which files have the table only, is what config.json describes in numbers."""
    path, model = written(tmp_path / "x.gguf", "llama", None)
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }  # fmt: skip
    scaled = models.Llama(LlamaConfig(**SIZES, rope_scaling=scaling)).eval()
    scaled.load_state_dict(model.state_dict())
    plain = Rotary.of({}, 32, 128).frequencies
    table = np.array(plain) / np.array(Rotary.of({"rope_scaling": scaling}, 32, 128).frequencies)
    tensors = load_gguf(path) | {"rope_freqs.weight": weft.tensor(table.astype(np.float32))}
    save_gguf(tensors, tmp_path / "y.gguf", gguf_metadata(path))
    ids = weft.tensor(IDS)
    with weft.no_grad():
        expected, without = scaled(ids).numpy(), model(ids).numpy()
        found = models.from_gguf(tmp_path / "y.gguf")(ids).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-5 * abs(expected).max())
    assert abs(found - without).max() > 1e-3 * abs(expected).max()
    save_gguf(tensors | {"rope_freqs.weight": weft.ones(3)}, tmp_path / "y.gguf", gguf_metadata(path))
    with pytest.raises(FileError, match=r"rope_freqs.weight of shape \(3,\) for 16 pairs"):
        models.from_gguf(tmp_path / "y.gguf")


@pytest.mark.parametrize(("entry", "value"), [
    ("attention.sliding_window", 4), ("expert_count", 8), ("rope.dimension_count", 16), ("rope.scale_linear", 2.0),
    ("attention.value_length", 16), ("attention.causal", False), ("unheard_of", 1),
])  # fmt: skip
def test_an_entry_that_is_not_honoured_is_refused_by_name(entry: str, value: Any, tmp_path: Path) -> None:
    path, _ = written(tmp_path / "x.gguf", "llama", None)
    save_gguf(load_gguf(path), tmp_path / "y.gguf", {**gguf_metadata(path), f"llama.{entry}": value})
    with pytest.raises(FileError, match=rf"does not support: llama\.{entry}={value}"):
        models.from_gguf(tmp_path / "y.gguf")


def test_entries_that_mean_nothing_or_what_absence_means_are_read(tmp_path: Path) -> None:
    path, _ = written(tmp_path / "x.gguf", "gemma3", None)
    more = {"vocab_size": 61, "rope.dimension_count": 32, "attention.value_length": 32, "expert_count": 0}
    more["attention.sliding_window_pattern"] = 6
    caps = {"final_logit_softcapping": 30.0, "rope.freq_base_swa": 5000.0}
    metadata = {**gguf_metadata(path), **{f"gemma3.{k}": v for k, v in (more | caps).items()}}
    save_gguf(load_gguf(path), tmp_path / "y.gguf", metadata)
    model = models.from_gguf(tmp_path / "y.gguf")
    assert isinstance(model, models.Gemma3) and model.cap == 30.0
    assert model.model.layers[0].self_attn.rotary == Rotary.of({"rope_theta": 5000.0}, 32, 128)


def test_a_pattern_of_windows_is_a_number_of_layers(tmp_path: Path) -> None:
    path, _ = written(tmp_path / "x.gguf", "gemma3", None)
    entry = {"gemma3.attention.sliding_window_pattern": 0}
    save_gguf(load_gguf(path), tmp_path / "y.gguf", gguf_metadata(path) | entry)
    with pytest.raises(FileError, match="sliding_window_pattern=0 is no number of layers"):
        models.from_gguf(tmp_path / "y.gguf")


def test_weights_of_equal_steps_multiply_in_integers(tmp_path: Path) -> None:
    path, model = written(tmp_path / "x.gguf", "qwen3", BlockFormat.Q8_0)
    found = models.from_gguf(path, activations="int8")
    assert isinstance(found.lm_head, nn.IntegerLinear) and isinstance(found.embedding, nn.BlockEmbedding)
    with weft.no_grad():
        expected = model(weft.tensor(IDS)).numpy()
        error = np.abs(found(weft.tensor(IDS)).numpy() - expected).max()
    assert 0 < error < 0.03 * np.abs(expected).max()


def test_a_vocabulary_laid_out_anew_leaves_its_pages_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of the same weight reads a row of them now and then."""
    rested: list[int] = []
    monkeypatch.setattr(DeferredStorage, "rest", lambda self: rested.append(id(self)))
    path, _ = written(tmp_path / "x.gguf", "qwen3", BlockFormat.Q8_0)
    found = models.from_gguf(path, activations="int8")
    assert isinstance(found.embedding, nn.BlockEmbedding)
    assert id(found.embedding.blocks.value.node.storage) in rested


@pytest.mark.parametrize(("activations", "asked", "dtype"), [
    ("int8", None, weft.float16), ("float32", None, weft.float32), ("float32", weft.bfloat16, weft.bfloat16),
    ("int8", weft.float32, weft.float32),
])  # fmt: skip
def test_what_is_kept_of_tokens_is_as_exact_as_was_asked(
    activations: str, asked: weft.DType | None, dtype: weft.DType, tmp_path: Path
) -> None:
    path, _ = written(tmp_path / "x.gguf", "qwen3", BlockFormat.Q8_0)
    model = models.from_gguf(path, activations=activations, cache_dtype=asked)
    cache = model.cache(2, 16)
    assert cache.keys[0].dtype is cache.values[1].dtype is dtype
    ids = weft.tensor(IDS)
    with weft.no_grad():
        whole = model(ids).numpy()
        parts = [model(ids[:, k : k + 1], cache).numpy() for k in range(ids.shape[1])]
    # keys are off by half a unit in their last place, which weights of attention add up over features
    bound = {weft.float32: 2e-5, weft.float16: 2e-3, weft.bfloat16: 2e-2}[dtype] * abs(whole).max()
    if activations == "int8":  # whose blocks of 32 differ by what the last bits of float32 are, too
        bound = max(bound, 2e-2 * abs(whole).max())
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=bound)


def test_a_cache_of_integers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match="cache_dtype is a float dtype, not int8"):
        models.from_gguf(written(tmp_path / "x.gguf", "qwen3", None)[0], cache_dtype=weft.int8)


def test_other_activations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="'float32' or 'int8', not 'int4'"):
        models.from_gguf(written(tmp_path / "x.gguf", "qwen3", None)[0], activations="int4")


def test_norms_in_float32_beside_matrices_of_16_bits_are_of_their_dtype(tmp_path: Path) -> None:
    path, model = written(tmp_path / "x.gguf", "qwen3", None)
    tensors = {
        n: t.bfloat16() if t.dim() == 2 else t
        for n, t in load_gguf(path).items()
        if isinstance(t, weft.Tensor)
    }
    save_gguf(tensors, tmp_path / "y.gguf", gguf_metadata(path))
    found = models.from_gguf(tmp_path / "y.gguf")
    assert {p.dtype for p in found.parameters()} == {weft.bfloat16}
    with weft.no_grad():
        expected = model(weft.tensor(IDS)).numpy()
        error = np.abs(found(weft.tensor(IDS)).float().numpy() - expected).max()
    assert error < 0.05 * np.abs(expected).max()


def test_a_model_is_made_and_begun_without_collections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = written(tmp_path / "x.gguf", "qwen3", BlockFormat.Q8_0)
    collects: list[bool] = []
    check = models.gguf._check

    def noted(*args: Any) -> None:
        collects.append(gc.isenabled())
        check(*args)

    monkeypatch.setattr(models.gguf, "_check", noted)
    found = models.from_gguf(path)
    found.register_forward_pre_hook(lambda *args: collects.append(gc.isenabled()))
    next(models.generate(found, IDS.tolist(), 2))
    assert collects == [False, False] and gc.isenabled()
