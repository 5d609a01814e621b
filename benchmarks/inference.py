"""Whole models that answer, elsewhere than in weft and torch as torch exports them, or that learn, in these two.

python -m benchmarks --workloads inference --frameworks weft,torch-malloc,torch-compile-malloc,onnxruntime,openvino
python -m benchmarks --workloads "ResNet-18 inference" --frameworks weft,onnxruntime,openvino --threads 1
python -m benchmarks --workloads networks --frameworks weft,torch,torch-channels-last,torch-compile --threads 1

A model is made of the module `T`, weft or torch, with the same weights. `exported` writes it as an ONNX file in a
process of its own, so that torch is not in the memory of those that read it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import models, vision
from benchmarks.results import ROOT

Array = np.ndarray[Any, Any]

OPERATORS = 20
"""The set of ONNX operators that is written."""


@dataclass(frozen=True, slots=True)
class Net:
    """A model, inputs of so many examples for it, and about how many operations one takes. What it is to answer are
    classes (examples, *`answers`) below `classes`."""

    make: Callable[[Any], Any]
    inputs: Callable[[int], Array]
    flops: float
    classes: int = 1000
    answers: tuple[int, ...] = ()

    def labels(self, batch: int) -> Array:
        """Drawn classes for a batch; those of texts one after another, as `rows` has the answers."""
        drawn = np.random.default_rng(4).integers(0, self.classes, (batch, *self.answers))
        return drawn.reshape(-1) if len(self.answers) == 1 else drawn


def rows(answers: Any) -> Any:
    """Answers as a loss reads them: those for texts, (batch, tokens, classes), as rows."""
    return answers.reshape(-1, answers.shape[-1]) if answers.ndim == 3 else answers


def _image(side: int = 224) -> Callable[[int], Array]:
    return lambda batch: np.random.default_rng(3).standard_normal((batch, 3, side, side), np.float32)


def _tokens(vocabulary: int, length: int) -> Callable[[int], Array]:
    return lambda batch: np.random.default_rng(3).integers(0, vocabulary, (batch, length))


NETS: dict[str, Net] = {
    "ResNet-18": Net(vision.resnet18, _image(), 3.6e9),
    "ResNet-50": Net(lambda T: models.resnet(T, (3, 4, 6, 3), 64, 1000), _image(), 8.2e9),
    "MobileNetV3": Net(lambda T: models.mobilenet(T, models.MOBILE, 1000), _image(), 0.11e9),
    "EfficientNet-B0": Net(vision.efficientnet, _image(), 0.78e9),
    "GhostNet": Net(vision.ghostnet, _image(), 0.28e9),
    "RegNetY-400MF": Net(vision.regnet, _image(), 0.8e9),
    "DenseNet-121": Net(lambda T: models.densenet(T, (6, 12, 24, 16), 32, 1000), _image(), 5.7e9),
    "ViT-S": Net(lambda T: models.vit(T, 12, 384, 6, 16, 224, 1000), _image(), 9.2e9),
    "Swin-T": Net(vision.swin, _image(), 9.0e9),
    "ConvNeXt-T": Net(vision.convnext, _image(), 8.9e9),
    "U-Net": Net(vision.unet, _image(128), 3.4e9, 2, (128, 128)),
    "LSTM LM": Net(vision.word_lstm, _tokens(8000, 64), 1.1e9, 8000, (64,)),
    "GPT": Net(lambda T: models.gpt(T, 6, 384, 6, 4096, 128), _tokens(4096, 128), 3.3e9, 4096, (128,)),
}
"""Name -> a model at its published size, or as large as one (U-Net, LSTM LM, GPT)."""


LEARNED = 4
"""Examples of a training step."""


def made(T: Any, name: str) -> Any:
    """The model, ready to answer; what its batch norms have seen is not just zeros and ones."""
    net = NETS[name].make(T)
    rng = np.random.default_rng(1)
    state = net.state_dict()
    for key in sorted(k for k in state if k.endswith(("running_mean", "running_var"))):
        drawn = rng.random(tuple(state[key].shape), np.float32)
        state[key] = T.tensor(drawn + np.float32(0.5) if key.endswith("var") else np.float32(0.2) * drawn)
    net.load_state_dict(state)
    return net.eval()


def export(name: str, to: Path) -> None:
    """Write the model as torch exports it."""
    torch: Any = import_module("torch")
    x = torch.from_numpy(NETS[name].inputs(1))
    with torch.no_grad():
        torch.onnx.export(
            made(torch, name), (x,), str(to), input_names=["x"], output_names=["y"], dynamo=True, verbose=False,
            opset_version=OPERATORS, external_data=False,
        )  # fmt: skip


def exported(name: str, folder: Path) -> Path:
    """The file of the model, written there by another process."""
    to = folder / f"{name}.onnx"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.inference", name, str(to)], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"torch does not export {name}: {done.stderr[-300:]}")
    return to


if __name__ == "__main__":
    export(sys.argv[1], Path(sys.argv[2]))
