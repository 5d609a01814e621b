"""Log-mel spectrograms as Whisper hears them.

    log10(mel @ |fft(window * frame)|^2), no less than its largest - 8, (. + 4) / 4

Source: Radford et al. 2022, arXiv:2212.04356, section 2.2; filters by Slaney 1998, Auditory Toolbox.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import weft
import weft.nn.functional as F
from weft import Tensor
from weft.errors import ShapeError
from weft.models.pretrained_module import sizes

RATE = 16000
_WINDOW, _HOP = 400, 160  # samples: 25 ms, every 10 ms


def log_mel(samples: Tensor, bins: int = 80, seconds: float = 30.0) -> Tensor:
    """The spectrograms of sounds of 16,000 samples a second, cut or filled up with silence to `seconds`.

    Shapes: (b, samples) or (samples,), float -> (b, bins, 100 * seconds). ShapeError for others.
    """
    if samples.ndim not in (1, 2):
        raise ShapeError(f"log_mel: needs sounds of shape (batch, samples), got {tuple(samples.shape)}")
    length = round(seconds * RATE)
    x = samples.reshape(-1, samples.shape[-1]).float()[:, :length]
    x = F.pad(F.pad(x, (0, length - sizes(x)[-1]))[:, None], (_WINDOW // 2, _WINDOW // 2), mode="reflect")[
        :, 0
    ]
    frames = x.unfold(-1, _WINDOW, _HOP)[:, : length // _HOP]
    waves = weft.tensor(_waves(), device=x.device)
    parts = (frames @ waves).square()
    half = _WINDOW // 2 + 1
    power = parts[..., :half] + parts[..., half:]
    mel = power @ weft.tensor(mel_filters(bins), device=x.device)
    log = mel.clamp(min=1e-10).log10().transpose(1, 2)
    log = weft.maximum(log, log.amax((1, 2), keepdim=True) - 8)
    return (log + 4) / 4


def _waves() -> np.ndarray[Any, Any]:
    """The window times cosines and sines of all frequencies: (window, 2 * frequencies)."""
    n = np.arange(_WINDOW)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * n / _WINDOW)
    angle = 2 * np.pi / _WINDOW * n[:, None] * np.arange(_WINDOW // 2 + 1)
    return np.concatenate([hann[:, None] * np.cos(angle), hann[:, None] * np.sin(angle)], 1).astype(
        np.float32
    )


def mel_filters(bins: int) -> np.ndarray[Any, Any]:
    """Triangles of equal area, evenly spaced in mel, which is linear up to 1 kHz: (frequencies, bins)."""
    top = _mel(np.array(RATE / 2))
    edges = _hertz(np.linspace(0, float(top), bins + 2))
    at = np.linspace(0, RATE / 2, _WINDOW // 2 + 1)[:, None]
    up = (at - edges[:-2]) / (edges[1:-1] - edges[:-2])
    down = (edges[2:] - at) / (edges[2:] - edges[1:-1])
    area = 2 / (edges[2:] - edges[:-2])
    return (np.maximum(0, np.minimum(up, down)) * area).astype(np.float32)


_LINEAR, _KNEE = 200 / 3, 1000.0  # hertz a mel below the knee, and the knee
_STEP = np.log(6.4) / 27  # of the logarithm, a mel above it


def _mel(hertz: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    above = _KNEE / _LINEAR + np.log(np.maximum(hertz, _KNEE) / _KNEE) / _STEP
    return np.where(hertz < _KNEE, hertz / _LINEAR, above)


def _hertz(mel: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    knee = _KNEE / _LINEAR
    return np.where(mel < knee, mel * _LINEAR, _KNEE * np.exp(_STEP * (mel - knee)))
