"""Sound as arrays, for the examples that listen: files read, and voices made of nothing but pulses and resonances."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from math import gcd
from pathlib import Path

import numpy as np
from scipy.signal import lfilter, resample_poly


def read_wav(path: Path, rate: int) -> np.ndarray:
    """The sound in a WAV file with 16-bit samples: the mean of its channels, `rate` samples a second, in -1 .. 1.

    Raises SystemExit, saying what is wrong, for a file of another kind.
    """
    try:
        with wave.open(str(path)) as file:
            width, channels, theirs = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise SystemExit(f"{path} cannot be read as a WAV file: {error}") from None
    if width != 2:
        raise SystemExit(f"{path} has samples of {8 * width} bits: 16 are needed")
    sound = np.frombuffer(data, "<i2").reshape(-1, channels).mean(1) / 2**15
    common = gcd(rate, theirs)
    return resample_poly(sound, rate // common, theirs // common).astype(np.float32)


def voice(
    pitch: Sequence[float], tract: float, rate: int, rng: np.random.Generator, seconds: float = 0.2
) -> np.ndarray:
    """A voice that says random vowels: pulses at each `pitch` (Hz) through three resonances of a tract of that length.

    Source: Fant 1960, Acoustic Theory of Speech Production.
    """
    syllables: list[np.ndarray] = []
    for f in pitch:
        t = np.arange(int(seconds * rate)) / rate
        phase = np.cumsum(f * (1 + 0.02 * np.sin(2 * np.pi * 5 * t))) / rate
        x = np.diff(np.floor(phase), prepend=0) + 0.002 * rng.standard_normal(len(t))
        for formant, width in zip(
            rng.uniform((300, 900, 2300), (850, 2200, 3000)) / tract, (80, 110, 160), strict=True
        ):
            radius = np.exp(-np.pi * width / rate)
            x = lfilter([1.0], [1, -2 * radius * np.cos(2 * np.pi * formant / rate), radius**2], x)
        syllables.append(x / np.abs(x).max() * np.sin(np.pi * t / seconds) ** 0.5)
    return (0.5 * np.concatenate(syllables)).astype(np.float32)
