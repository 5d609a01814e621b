"""Decoders by themselves: cached steps, batches of unequal prompts, files, what is refused. (`make models` compares
them with transformers.)"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import models
from weft.backends.registry import open_device
from weft.core.args.handle import value_of
from weft.errors import ArgumentError, FileError, ShapeError
from weft.models.gemma3 import Gemma3Config
from weft.models.gpt2 import GPT2Config
from weft.models.llama import LlamaConfig
from weft.models.phi import PhiConfig
from weft.models.phi3 import Phi3Config
from weft.models.qwen3 import Qwen3Config
from weft.scheduler.assembly import Job
from weft.scheduler.build import build
from weft.scheduler.signature import signature

SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
MADE: dict[str, tuple[Any, Any]] = {
    "llama": (models.Llama, LlamaConfig(**SIZES)),
    "qwen3": (models.Qwen3, Qwen3Config(**SIZES | {"head_dim": 16, "tie_word_embeddings": True})),
    "gemma3_text": (
        models.Gemma3,
        Gemma3Config(**SIZES, head_dim=16, sliding_window=4, sliding_window_pattern=2),
    ),
    "phi": (models.Phi, PhiConfig(**SIZES, qk_layernorm=True)),
    "phi3": (models.Phi3, Phi3Config(**SIZES, sliding_window=5)),
    "gpt2": (models.GPT2, GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4)),
}
IDS = np.random.default_rng(0).integers(0, 61, (2, 11))


def made(kind: str) -> Any:
    weft.manual_seed(0)
    cls, config = MADE[kind]
    return cls(config).eval()


@pytest.mark.parametrize("kind", MADE)
def test_steps_with_a_cache_give_what_the_whole_gives(kind: str) -> None:
    model = made(kind)
    with weft.no_grad():
        whole = model(weft.tensor(IDS)).numpy()
        cache = model.cache(2, 16)
        parts = [model(weft.tensor(IDS[:, a:b]), cache).numpy() for a, b in ((0, 7), (7, 8), (8, 11))]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=2e-5 * abs(whole).max())
    assert cache.length.tolist() == [11, 11]


@pytest.mark.parametrize("kind", ["gemma3_text", "gpt2"])
def test_prompts_of_unequal_lengths_go_on_as_alone(kind: str) -> None:
    model = made(kind)
    prompts = [IDS[0].tolist(), IDS[1, :4].tolist()]
    together = list(models.generate(model, prompts, 6))
    for k, prompt in enumerate(prompts):
        assert [t[k] for t in together] == [t for (t,) in models.generate(model, [prompt], 6)]


def test_one_step_serves_every_position() -> None:
    model = made("llama")
    with weft.no_grad():
        whole = IDS[:1].tolist()
        for _ in range(20):
            whole[0].append(int(model(weft.tensor(whole))[0, -1].argmax().item()))
    weft.compiler.reset()
    tokens = [t for (t,) in models.generate(model, IDS[:1].tolist(), 20)]
    assert tokens == whole[0][11:]


@pytest.mark.parametrize("draft", [None, "lookup"])
def test_the_first_token_comes_before_the_step_is_recorded(
    draft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = made("llama"), list[int]()
    hidden = type(model).hidden

    def counted(self: Any, ids: weft.Tensor, *rest: Any) -> weft.Tensor:
        seen.append(int(ids.shape[1]))
        return hidden(self, ids, *rest)

    monkeypatch.setattr(type(model), "hidden", counted)
    tokens = models.generate(model, IDS[:1].tolist(), 3, draft=draft)
    next(tokens)
    assert seen == [11]
    assert len(list(tokens)) == 2 and len(seen) > 1


def test_a_sequence_ends_with_its_stop_and_the_others_go_on() -> None:
    model, hot = made("gpt2"), models.Sampling(temperature=1000.0)  # nearly any token
    prompts = IDS[:, :5].tolist()
    free = [list(t) for t in models.generate(model, prompts, 8, sampling=hot, seed=0)]
    first, second = ([t[k] for t in free] for k in (0, 1))
    stop = [t for t in first[3:5] if t is not None]
    assert (
        all(first[k : k + 2] != stop and second[k : k + 2] != stop for k in range(3)) and second[3:5] != stop
    )
    found = list(models.generate(model, prompts, 8, sampling=hot, seed=0, stop=[stop]))
    assert [t[0] for t in found] == [*first[:5], None, None, None]
    assert [t[1] for t in found] == second


def test_draws_repeat_with_their_seed() -> None:
    model, hot = made("gpt2"), models.Sampling(temperature=2.0)
    first, again, other = (
        list(models.generate(model, IDS.tolist(), 8, sampling=hot, seed=s)) for s in (1, 1, 2)
    )
    assert first == again != other
    weft.manual_seed(5)
    free = list(models.generate(model, IDS.tolist(), 8, sampling=hot))
    weft.manual_seed(5)
    assert free == list(models.generate(model, IDS.tolist(), 8, sampling=hot))


def folder(path: Path, kind: str, model: Any, **changes: Any) -> Path:
    values = (
        {k: v for k, v in asdict(MADE[kind][1]).items() if v is not None} | {"model_type": kind} | changes
    )
    (path / "config.json").write_text(json.dumps(values))
    weights = model.state_dict()
    if model.lm_head.weight is model.embedding.weight:
        del weights["lm_head.weight"]
    weft.io.save_safetensors(weights, path / "model.safetensors")
    return path


@pytest.mark.parametrize("kind", MADE)
def test_a_folder_gives_the_model_back(kind: str, tmp_path: Path) -> None:
    model = made(kind)
    found = models.from_pretrained(folder(tmp_path, kind, model))
    with weft.no_grad():
        expected = model(weft.tensor(IDS)).numpy()
        np.testing.assert_allclose(found(weft.tensor(IDS)).numpy(), expected, atol=1e-5 * abs(expected).max())
    assert (found.lm_head.weight is found.embedding.weight) == (
        model.lm_head.weight is model.embedding.weight
    )
    half = models.from_pretrained(tmp_path, dtype=weft.bfloat16)
    assert {p.dtype for p in half.parameters()} == {weft.bfloat16}


def test_what_a_folder_lacks_is_told(tmp_path: Path) -> None:
    model = made("llama")
    for changes, error, told in (
        ({"hidden_act": "relu", "trick": 3}, ArgumentError, "hidden_act='relu' is not supported.*trick=3 is unknown"),
        ({"model_type": "bloom"}, FileError, "'bloom'; weft has"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ArgumentError, "'yarn'"),
        ({"num_hidden_layers": 3}, FileError, "lacks model.layers.2"),
        ({"num_hidden_layers": 1}, FileError, "has model.layers.1.*unknown"),
        ({"intermediate_size": 40}, FileError, "of shape"),
    ):  # fmt: skip
        with pytest.raises(error, match=told):
            models.from_pretrained(folder(tmp_path, "llama", model, **changes))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FileError, match="damaged"):
        models.from_pretrained(tmp_path)


def test_what_cannot_be_generated_is_refused() -> None:
    model = made("gpt2")
    for prompts, count, told in (
        ([], 4, "at least one prompt"), ([[1], []], 4, "at least one token"), ([[61]], 4, "not in the model's"),
        ([[1]], 0, "max_new_tokens"), ([[1] * 1000], 100, "beyond the 1024"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=told):
            models.generate(model, prompts, count)
    with pytest.raises(ShapeError):
        model(weft.tensor([1, 2]))
    with pytest.raises(ArgumentError, match="room for 4"):
        model(weft.tensor(IDS), model.cache(2, 4))


def test_layers_computed_again_give_the_same_gradients_from_less_memory() -> None:
    cls, config = MADE["qwen3"]
    weft.manual_seed(0)
    model = cls(replace(config, num_hidden_layers=5)).train()
    weft.realize(*model.parameters())
    ids, names, kept = weft.tensor(IDS), [n for n, _ in model.named_parameters()], []
    for on in (False, True):
        model.checkpoint_layers(on)
        loss = model(ids).square().mean()
        grads = weft.gradients(loss, list(model.parameters()))
        kept.append((needed(grads), [g.numpy() for g in grads]))
    assert kept[1][0] < 0.75 * kept[0][0]
    for name, a, b in zip(names, kept[0][1], kept[1][1], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(abs(a).max(), 1e-6), err_msg=name)


def needed(tensors: Any) -> int:
    """Bytes of the workspace of a plan for tensors."""
    nodes = tuple(value_of("test", t).node for t in tensors)
    sig = signature(nodes)
    made, _ = build(Job(nodes, sig.leaves, sig.variables, {}), open_device("cpu:0"))
    return made.plan({}).commands.workspace_bytes
