"""Whose voice is it: utterances as vectors, by three LSTMs over the spectrum, trained to tell speakers apart.

The weights come from the PyPI package Resemblyzer (`make pretrained` installs it), a torch checkpoint, which weft reads
without running the pickled code in it. Without files the example makes up two voices and compares what they say.

    python examples/voices.py [one.wav another.wav ...] [--device opencl]

Source: Wan et al. 2017, arXiv:1710.10467 (generalized end-to-end loss for speaker verification).
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from sound import read_wav, voice

import weft
import weft.nn.functional as F
from weft import Tensor, nn

PACKAGE = "resemblyzer"
RATE = 16_000  # samples a second
WINDOW, HOP, MELS = 400, 160, 40  # 25 ms of sound every 10 ms, as 40 bands
FRAMES, STEP = 160, 77  # 1.6 s at a time, 1.3 times a second


class VoiceEncoder(nn.Module):
    """Spectra -> unit vectors, by the last state of the last LSTM.   Shapes: (n, frames, 40) -> (n, 256), all >= 0."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(MELS, 256, num_layers=3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, spectra: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(spectra)
        return F.normalize(F.relu(self.linear(hidden[-1])), dim=1)


def checkpoint() -> Path:
    """The installed package's weights; the package itself (and torch, which it imports) is not imported."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit("The weights are missing: pip install --no-deps Resemblyzer==0.1.4")
    return Path(spec.origin).parent / "pretrained.pt"


def load_model(path: Path) -> VoiceEncoder:
    """The network with its pretrained weights; what the checkpoint holds for the training loss plays no part."""
    model = VoiceEncoder()
    weights = weft.load(path)["model_state"]
    model.load_state_dict({k: v for k, v in weights.items() if not k.startswith("similarity_")})
    return model.eval()


def mel_bands() -> np.ndarray:
    """Triangular filters of equal area, evenly spaced in mels: (40, 201).

    Slaney's mels: 3 for every 200 Hz up to 1 kHz, and from there on 27 for every factor of 6.4.
    """
    frequencies = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    top = 15 + 27 * np.log(RATE / 2 / 1000) / np.log(6.4)
    mels = np.linspace(0, top, MELS + 2)
    edges = np.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))
    low, middle, high = (e[:, None] for e in (edges[:-2], edges[1:-1], edges[2:]))
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)


def spectrum(sound: np.ndarray) -> np.ndarray:
    """Power in each mel band every 10 ms.   Shapes: (t,) -> (1 + t // HOP, 40) float32."""
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(sound, WINDOW // 2), WINDOW)[::HOP]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    power = np.abs(np.fft.rfft(frames * hann, axis=1)) ** 2
    return (power @ mel_bands().T).astype(np.float32)


def excerpts(sound: np.ndarray) -> np.ndarray:
    """Overlapping excerpts of 1.6 s, of sound brought to -30 dB where it is softer: (n, 160, 40)."""
    level = np.sqrt(np.mean(sound**2))
    bands = spectrum(sound * max(1.0, 10 ** (-30 / 20) / max(float(level), 1e-8)))
    bands = np.pad(bands, ((0, max(0, FRAMES - len(bands))), (0, 0)))
    return np.stack([bands[i : i + FRAMES] for i in range(0, len(bands) - FRAMES + 1, STEP)])


def embed(model: VoiceEncoder, sound: np.ndarray) -> np.ndarray:
    """The unit vector (256,) of an utterance: the direction of the mean of its excerpts' vectors."""
    with weft.no_grad():
        mean = model(weft.tensor(excerpts(sound))).mean(0)
        return F.normalize(mean, dim=0).numpy()


def made_up(seed: int = 0) -> dict[str, np.ndarray]:
    """Two utterances each of a low and of a high voice."""
    rng = np.random.default_rng(seed)
    speakers = {"low": (105.0, 1.1), "high": (215.0, 0.88)}
    return {
        f"{name} voice, {take}": voice(pitch * rng.uniform(0.9, 1.1, 12), tract, RATE, rng)
        for name, (pitch, tract) in speakers.items()
        for take in ("once", "again")
    }


def main() -> None:
    """Prints how alike the voices are: 1 is the same."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, help="WAV files with 16-bit samples")
    parser.add_argument("--device", default=None, help="where it is computed, such as opencl")
    args = parser.parse_args()
    sounds = {str(f): read_wav(f, RATE) for f in args.files} or made_up()
    with weft.device(args.device) if args.device else nullcontext():
        model = load_model(checkpoint())
        vectors = np.stack([embed(model, s) for s in sounds.values()])
    width = max(map(len, sounds))
    for name, row in zip(sounds, vectors @ vectors.T, strict=True):
        print(f"{name:{width}s}  " + "  ".join(f"{likeness:.2f}" for likeness in row))


if __name__ == "__main__":
    main()
