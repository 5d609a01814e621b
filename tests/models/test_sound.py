"""Log-mel spectrograms beside NumPy's FFT. (`make models` compares them with transformers.)"""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.errors import ShapeError
from weft.models import log_mel
from weft.models.sound import mel_filters


def formula(x: np.ndarray, bins: int, seconds: float) -> np.ndarray:
    length = round(16000 * seconds)
    x = np.pad(x[:length].astype(np.float64), (0, max(0, length - len(x))))
    x = np.pad(x, 200, mode="reflect")
    window = np.hanning(401)[:-1]
    frames = np.stack([x[k : k + 400] * window for k in range(0, length, 160)])
    mel = abs(np.fft.rfft(frames)) ** 2 @ mel_filters(bins)
    log = np.log10(np.maximum(mel, 1e-10)).T
    return (np.maximum(log, log.max() - 8) + 4) / 4


def test_spectrograms_are_those_of_ffts() -> None:
    rng = np.random.default_rng(0)
    sounds = [np.sin(np.arange(8000) * 0.3) * 0.5, rng.normal(size=3000), rng.normal(size=12000) * 1e-3]
    for x in sounds:
        found = log_mel(weft.tensor(x.astype(np.float32)), bins=20, seconds=0.5).numpy()
        np.testing.assert_allclose(found[0], formula(x.astype(np.float32), 20, 0.5), atol=5e-5)
    assert log_mel(weft.zeros(2, 100), seconds=0.2).shape == (2, 80, 20)
    with pytest.raises(ShapeError, match="batch, samples"):
        log_mel(weft.zeros(1, 1, 100))


def test_filters_are_triangles_of_equal_area_evenly_spaced_in_mel() -> None:
    filters = mel_filters(80)
    assert filters.shape == (201, 80) and (filters >= 0).all()
    peaks = filters.argmax(0) * 40.0  # hertz
    assert (np.diff(peaks) >= 0).all() and peaks[0] <= 80 and 7400 < peaks[-1] < 8000
    wide = filters[:, 60:]  # of many frequencies each
    np.testing.assert_allclose(wide.sum(0) * 40, 1, atol=0.05)
    # below 1 kHz a mel is 66.7 Hz, above it a 27th of log(6.4)
    top = 15 + np.log(8.0) / (np.log(6.4) / 27)
    assert abs(peaks[9] - 10 * top / 81 * 200 / 3) <= 40
