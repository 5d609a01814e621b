"""What programs written for torch import, ask for and switch at their start."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

import weft

PATHS = [
    "utils.data:DataLoader", "utils.data.dataset:Dataset", "utils.data.dataloader:default_collate",
    "utils.data.sampler:Sampler", "utils.checkpoint:checkpoint", "utils.dlpack:from_dlpack",
    "optim.lr_scheduler:StepLR", "optim.lr_scheduler:_LRScheduler", "optim.optimizer:Optimizer",
    "nn.init:xavier_uniform_", "nn.parameter:Parameter", "nn.modules:Module", "nn.modules:Linear",
    "nn.modules.module:Module", "nn.modules.utils:_pair", "nn.modules.conv:Conv2d",
    "nn.modules.batchnorm:_BatchNorm", "nn.modules.loss:_Loss", "nn.modules.container:Sequential",
    "nn.modules.rnn:LSTM", "nn.parallel:DataParallel", "nn.utils.rnn:pad_sequence",
    "distributions.normal:Normal", "distributions.categorical:Categorical", "cuda:is_available",
    "amp:autocast", "autograd:Variable", "compiler:disable", "distributed:is_initialized",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_paths_of_torch_are_found(path: str) -> None:
    module, _, name = path.partition(":")
    assert hasattr(importlib.import_module(f"weft.{module}"), name)


def test_classes_exist_once() -> None:
    from weft.nn.modules.batchnorm import BatchNorm2d
    from weft.utils.data.sampler import RandomSampler

    assert BatchNorm2d is weft.nn.BatchNorm2d and RandomSampler is weft.data.RandomSampler


def test_questions_about_gpus_have_answers_without_one() -> None:
    cuda = weft.cuda
    device = weft.device("cuda" if cuda.is_available() else "cpu")
    assert weft.ones(2, device=device).sum().item() == 2
    assert cuda.device_count() >= 0 and cuda.memory_allocated() >= 0 and cuda.max_memory_allocated() >= 0
    if not cuda.is_available():
        with pytest.raises(weft.DeviceError, match=r"driver|bindings"):
            cuda.synchronize()


def test_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_TF32", "0")
    assert weft.get_float32_matmul_precision() == "highest"
    weft.set_float32_matmul_precision("high")
    assert os.environ["WEFT_TF32"] == "1" and weft.backends.cuda.matmul.allow_tf32
    weft.backends.cuda.matmul.allow_tf32 = False
    assert os.environ["WEFT_TF32"] == "0"
    with pytest.raises(weft.ArgumentError, match="highest"):
        weft.set_float32_matmul_precision("low")
    monkeypatch.setenv("WEFT_DETERMINISTIC", "0")
    weft.use_deterministic_algorithms(True)
    assert os.environ["WEFT_DETERMINISTIC"] == "1"
    weft.set_num_interop_threads(1)


def test_constructors_by_type() -> None:
    assert weft.FloatTensor([1, 2]).dtype is weft.float32 and weft.LongTensor(2, 3).shape == (2, 3)
    assert weft.Tensor([1, 2]).dtype is weft.float32 and weft.Tensor(2, 3).tolist() == [[0.0] * 3] * 2
    assert isinstance(weft.ones(1), weft.FloatTensor) and not isinstance(weft.ones(1), weft.LongTensor)
    assert (
        weft.ones(1).type(weft.LongTensor).dtype is weft.ones(1).type("torch.LongTensor").dtype is weft.int64
    )
    assert weft.ones(1, 2, 3, 4).to(memory_format=weft.channels_last).shape == (1, 2, 3, 4)


def test_compile_takes_torchs_arguments_and_modules() -> None:
    @weft.compile(mode="reduce-overhead", fullgraph=True)
    def twice(x: weft.Tensor) -> weft.Tensor:
        return x * 2

    assert twice(weft.ones(1)).item() == 2
    layer = weft.nn.Linear(2, 1)
    model = weft.compile(weft.nn.DataParallel(layer), dynamic=False)
    assert model(weft.zeros(1, 2)).tolist() == [layer.bias.tolist()]
    assert list(model.state_dict()) == ["_orig_mod.module.weight", "_orig_mod.module.bias"]
    unknown: dict[str, Any] = {"modus": "x"}
    with pytest.raises(TypeError, match="modus"):
        weft.compile(twice, **unknown)


def test_load_takes_torchs_arguments(tmp_path: Path) -> None:
    weft.save({"a": weft.ones(2)}, tmp_path / "a.pt")
    for where in (None, "cpu", weft.device("cpu"), {"cuda:0": "cpu"}, lambda storage, place: storage):
        assert weft.load(tmp_path / "a.pt", map_location=where, weights_only=True)["a"].tolist() == [1, 1]


def test_numbers_drawn_in_a_fork_leave_no_trace() -> None:
    weft.manual_seed(3)
    with weft.random.fork_rng():
        weft.rand(5)
    a = weft.rand(3)
    weft.manual_seed(3)
    assert weft.rand(3).tolist() == a.tolist()
    assert weft.Generator(device="cpu").manual_seed(1).initial_seed() == 1
