"""examples/finetune.py: adapters learn within a limit, and a run goes on bit for bit where it was stopped."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.backends import registry
from weft.errors import MemoryPlanError
from weft.models.qwen3 import Qwen3Config

finetune = pytest.importorskip("finetune")

SHAPE = Qwen3Config(vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                    num_key_value_heads=1, head_dim=16, tie_word_embeddings=True)  # fmt: skip
TINY = finetune.Config(rank=4, rate=1e-2, steps=24, batch=2, context=16, memory=8_000_000, save_every=8)
WORDS = "the wise in heart will receive commandments " * 20


def test_a_run_learns_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    gc.collect()
    tiny = replace(TINY, memory=TINY.memory + registry.open_device("cpu:0").used_bytes())
    whole = finetune.Run.start(tiny, WORDS, SHAPE)
    base = {k: t.numpy() for k, t in whole.model.state_dict().items() if "lora" not in k}
    whole.train(tmp_path / "whole.safetensors")
    assert np.mean(whole.losses[-4:]) < np.mean(whole.losses[:4]) - 0.1
    for k, t in whole.model.state_dict().items():
        if "lora" not in k:
            np.testing.assert_array_equal(t.numpy(), base[k])
    stopped = tmp_path / "stopped.safetensors"
    finetune.Run.start(tiny, WORDS, SHAPE).train(stopped, until=19)  # saved at 16: three steps are lost
    again = finetune.Run.resume(stopped, tiny, WORDS, SHAPE)
    assert len(again.losses) == 16
    again.train(stopped)
    assert again.losses == whole.losses
    assert again.write("the ", 8) == whole.write("the ", 8)
    with pytest.raises(SystemExit, match="other settings"):
        finetune.Run.resume(stopped, replace(tiny, rank=2), WORDS, SHAPE)


def test_a_limit_holds() -> None:
    run = finetune.Run.start(replace(TINY, memory=1_000), WORDS, SHAPE)
    with pytest.raises(MemoryPlanError):
        run.train(Path("nowhere"))
    assert finetune.size("1.5G") == 1_500_000_000 and finetune.size("42") == 42
    with pytest.raises(SystemExit, match="needs more than"):
        finetune.Run.start(TINY, "short", SHAPE)
    assert weft.tensor(1.0).item() == 1  # no limit is left behind
