"""weft in torch's place: imports, what is absent, stand-ins of each kind, and that weft's own names stay clean."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import pickle
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import weft

PATHS = [
    "utils.data:DataLoader", "utils.data.dataset:Dataset", "utils.data.dataloader:default_collate",
    "utils.data.sampler:Sampler", "utils.checkpoint:checkpoint", "utils.dlpack:from_dlpack",
    "optim.lr_scheduler:StepLR", "optim.lr_scheduler:_LRScheduler", "optim.optimizer:Optimizer", "optim.adamw:AdamW",
    "nn.init:xavier_uniform_", "nn.init:_calculate_fan_in_and_fan_out", "nn.parameter:Parameter", "nn.modules:Linear",
    "nn.modules.module:Module", "nn.modules.utils:_pair", "nn.modules.conv:Conv2d", "nn.modules.batchnorm:_BatchNorm",
    "nn.modules.loss:_Loss", "nn.modules.container:Sequential", "nn.modules.rnn:LSTM", "nn.parallel:DataParallel",
    "nn.utils.rnn:pad_sequence", "nn.utils.fusion:fuse_conv_bn_eval", "nn.attention:SDPBackend",
    "distributions.normal:Normal", "distributions.constraints:positive", "cuda:is_available", "cuda.amp:GradScaler",
    "cuda:CUDAGraph", "amp:autocast", "autograd:Variable", "autograd.graph:saved_tensors_hooks", "jit:script",
    "compiler:disable", "distributed:is_initialized", "accelerator:current_accelerator", "backends.cudnn:benchmark",
    "backends.mps:is_available", "hub:urlparse", "utils.model_zoo:load_url", "utils._pytree:tree_map", "fx:wrap",
    "fx.node:Target", "jit:Final", "jit.annotations:List", "_dynamo:disable", "_dynamo.config:cache_size_limit",
    "_C:DisableTorchFunctionSubclass", "onnx.symbolic_opset11:select", "nn.quantized:FloatFunctional",
    "ao.quantization:QuantStub", "distributed.device_mesh:DeviceMesh", "distributed.tensor:Shard", "profiler:profile",
    "multiprocessing:spawn", "library:custom_op", "types:Number", "overrides:TorchFunctionMode", "fft:fftshift",
    "_dynamo._trace_wrapped_higher_order_op:TransformGetItemToIndex", "serialization:safe_globals", "export:Dim",
]  # fmt: skip


@pytest.mark.usefixtures("torch")
def test_paths_of_torch_are_found() -> None:
    for path in PATHS:
        module, _, name = path.partition(":")
        assert hasattr(importlib.import_module(f"torch.{module}"), name), path


def test_torchs_modules_are_objects_of_their_own_with_wefts_functions(torch: Any) -> None:
    import torch.nn.functional as F
    from torch.utils.data.sampler import RandomSampler

    assert torch is not weft and torch.nn is not weft.nn and torch.nn.Linear is weft.nn.Linear
    assert (
        F is torch.nn.functional
        and F.relu is weft.nn.functional.relu
        and RandomSampler is weft.data.RandomSampler
    )
    assert callable(torch.nn.utils.weight_norm) and "Linear" in dir(torch.nn) and "fx" in dir(torch)
    importlib.import_module("torch.nn.utils.weight_norm")
    assert not isinstance(torch.nn.utils.weight_norm, type(torch))
    torch.load = 3
    assert weft.load != 3
    with mock.patch("torch.cuda.is_available", lambda: True):
        assert torch.cuda.is_available() and not weft.cuda.is_available()
    assert str(torch.float32) == repr(torch.float32) == "torch.float32"
    assert pickle.loads(pickle.dumps(torch.nn.Linear)) is weft.nn.Linear


def test_torch_counts_as_installed(torch: Any) -> None:
    assert importlib.metadata.version("torch") == torch.__version__ == torch.version.__version__ == "2.13.0"
    assert importlib.util.find_spec("torch") is not None and Path(torch.__file__).exists()
    assert torch.__version__ >= "2.4" and torch.__version__ > (2, 12) and not torch.__version__ < "2.13"
    assert torch.__version__.split(".")[0] == "2" and torch.version.cuda is None
    assert "torch" in importlib.metadata.packages_distributions()


def test_what_is_nowhere_is_missed_and_counted_once_each_time(torch: Any) -> None:
    from weft.as_torch import record

    assert not hasattr(torch, "no_such_thing") and not hasattr(torch.nn, "NoSuchLayer")
    for statement in (
        "from torch import nowhere",
        "import torch.nowhere_at_all",
        "from torch.no.way import x",
    ):
        with pytest.raises(ImportError, match=r"nowhere|torch\.no"):
            exec(statement)
    assert not hasattr(torch, "__no_dunder__") and not hasattr(torch.ops.mine, "op")
    assert record.missing == {
        "torch.no_such_thing": 1, "torch.nn.NoSuchLayer": 1, "torch.nowhere": 1, "torch.nowhere_at_all": 1,
        "torch.no": 1, "torch.ops.mine.op": 1,
    }  # fmt: skip


def test_all_names_that_a_module_lists_are_there(torch: Any) -> None:
    from weft.as_torch import record

    for module in (
        torch,
        torch.nn,
        torch.nn.functional,
        torch.utils.data,
        torch.jit,
        torch.cuda,
        torch.utils._pytree,
    ):
        assert all(hasattr(module, name) for name in dir(module)), module
        space: dict[str, Any] = {}
        exec(f"from {module.__name__} import *", space)
        assert not any(name.startswith("_") for name in space if name != "__builtins__") and len(space) > 10
    assert not record.missing and importlib.util.find_spec("torch.nowhere") is None
    assert torch.float32 in vars(torch).values() and not hasattr(torch, "scheduler")


def test_uninstalled_nothing_is_left() -> None:
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "torch"}
    for name in before:
        del sys.modules[name]
    as_torch, finder = (importlib.import_module(f"weft.as_torch{name}") for name in ("", ".finder"))
    try:
        with as_torch.in_place():
            importlib.import_module("torch.nn")
            as_torch.install()
        assert not finder.loaded() and finder.FINDER not in sys.meta_path
        assert str(weft.float32) == "weft.float32"
    finally:
        sys.modules.update(before)


@pytest.mark.usefixtures("torch")
def test_wefts_own_namespace_is_clean() -> None:
    for name in (
        "torch.hub",
        "torch.onnx",
        "torch.fx",
        "torch.jit",
        "torch._C",
        "torch.xpu",
        "torch.utils._pytree",
    ):
        importlib.import_module(name)
    for name in ("hub", "onnx", "fx", "jit", "_C", "xpu", "accelerator", "version", "library", "ops", "mps"):
        assert not hasattr(weft, name), name
    assert not hasattr(weft.cuda, "Stream") and not hasattr(weft.utils, "_pytree")


def test_stand_ins_do_nothing_or_say_what_they_are(torch: Any) -> None:
    from weft.as_torch import NotOffered, record

    def f(x: int) -> int:
        return x + 1

    assert torch.jit.script(f) is f and torch.fx.wrap(f) is f and torch._dynamo.disable(f) is f
    assert (
        torch.jit.ignore(drop=True)(f) is f
        and torch.jit.unused(f) is f
        and torch.compiler.disable()(f).__wrapped__ is f
    )
    assert torch.fx.wrap("f")(f) is f and torch._dynamo.disable(recursive=False)(f) is f
    with (
        torch.cuda.nvtx.range("x"),
        torch._inductor.config.patch(max_autotune=True),
        torch.profiler.profile() as p,
    ):
        p.step()
    assert torch.cuda.nvtx.range("x")(f)(1) == 2
    assert torch.onnx.is_in_onnx_export() is False and torch.jit.is_scripting() is False
    assert record.unused["torch.fx.wrap"] == 2 and record.unused["torch.cuda.nvtx.range"] == 2
    assert torch.backends.mps.is_available() is False and torch.xpu.device_count() == 0

    class Tracer(torch.fx.Tracer):
        pass

    assert not isinstance(f, torch.fx.Proxy) and torch.fx.Node | None and issubclass(Tracer, torch.fx.Tracer)
    refusing = [
        lambda: torch.fx.symbolic_trace(f), Tracer, lambda: torch.onnx.export(f, ()), lambda: p.key_averages(),
        lambda: torch.hub.load("a", "b"), lambda: torch.fft.rfft(torch.ones(2)), torch.xpu.synchronize,
        lambda: torch.hub.load_state_dict_from_url("https://example.org/no-such-weights.pth"),
        lambda: torch.utils.cpp_extension.load("x", []), lambda: torch.distributed.fsdp.FullyShardedDataParallel(f),
    ]  # fmt: skip
    for call in refusing:
        with pytest.raises(NotOffered, match="for programs that never call it; "):
            call()
    assert sum(record.refused.values()) == len(refusing)
    with pytest.raises(OSError, match="C\\+\\+"):
        torch.ops.load_library("x.so")
    assert torch.distributed.tensor.Shard(1).dim == 1 and torch.onnx.TrainingMode.EVAL.name == "EVAL"


def test_questions_about_gpus_and_switches_have_answers_without_one(torch: Any) -> None:
    torch.cuda.empty_cache()
    torch.cuda.manual_seed_all(1)
    torch.backends.cudnn.benchmark = True
    stream, start, end = (
        torch.cuda.Stream(),
        torch.cuda.Event(enable_timing=True),
        torch.cuda.Event(enable_timing=True),
    )
    with torch.cuda.stream(stream), torch.cuda.amp.autocast(enabled=False), torch.cuda.device(0):
        start.record()
        end.record()
    assert start.elapsed_time(end) >= 0 and torch.cuda.amp.GradScaler is weft.amp.GradScaler
    assert torch.get_device_module("cuda") is torch.cuda and torch.cuda.FloatTensor is torch.FloatTensor
    if not weft.cuda.is_available():
        assert torch.accelerator.current_accelerator() is None and torch.cuda.get_rng_state_all() == []


def test_every_name_of_the_tables_can_be_made(torch: Any) -> None:
    from weft.as_torch.tables import TABLE

    needs_other_packages = {"torch.utils.tensorboard"}
    count = 0
    for path, names in TABLE.items():
        module = importlib.import_module(path)
        for name in names.listed() if path not in needs_other_packages else ():
            getattr(module, name)
            count += 1
    assert count > 1000
    assert importlib.import_module("weft.as_torch").record.missing == {}


def test_the_tables_name_only_what_torch_has(torch: Any) -> None:
    """Against torch's names as recorded where it was installed: a stand-in for what torch lacks would mislead."""
    from weft.as_torch.tables import TABLE

    recorded = json.loads((Path(__file__).parents[1] / "data" / "torch_modules.json").read_text())
    wrong = {
        path: sorted(extra)
        for path, names in TABLE.items()
        if path in recorded and (extra := names.listed() - set(recorded[path]))
    }
    assert wrong == {}
