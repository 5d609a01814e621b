"""The examples' pretrained models beside what torch computes with their weights (tests/data/record_pretrained.py)."""

from __future__ import annotations

import wave
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import weft

RECORDED = np.load(Path(__file__).parents[1] / "data" / "pretrained.npz")
TOLERANCE = 1e-4


def installed(example: str) -> None:
    """Skips the test where the example's packages are not installed."""
    module = pytest.importorskip(example)
    if find_spec(module.PACKAGE) is None:
        pytest.skip("the weights are not installed: `make pretrained`")


def test_pitches_are_as_recorded() -> None:
    installed("pitch")
    import pitch

    with weft.no_grad():
        likely = pitch.load_model(pitch.checkpoint())(weft.tensor(RECORDED["frames"])).numpy()
    assert np.abs(likely - RECORDED["likely"]).max() <= TOLERANCE


def test_a_scale_is_heard_as_it_is_played() -> None:
    installed("pitch")
    import pitch

    hertz, sure = pitch.track(pitch.load_model(pitch.checkpoint()), pitch.scale())
    middles = np.arange(12, 200, 25)
    assert np.abs(np.log2(hertz[middles] / np.array(pitch.SCALE))).max() < 1 / 120, "a tenth of a semitone"
    assert sure[middles].min() > 0.5


@pytest.mark.parametrize(("hertz", "name"), [(440, "A4"), (261.63, "C4"), (27.5, "A0"), (466.2, "A#4")])
def test_notes(hertz: float, name: str) -> None:
    assert pytest.importorskip("pitch").note(hertz) == name


def test_logits_of_pictures_are_as_recorded() -> None:
    installed("image")
    import image

    pixels = (RECORDED["pictures"].astype(np.float32) - 127) / 128
    with weft.no_grad():
        logits = image.load_model(image.checkpoint())(weft.tensor(pixels.transpose(0, 3, 1, 2))).numpy()
    assert np.abs(logits - RECORDED["logits"]).max() <= TOLERANCE


def test_a_daisy_is_found() -> None:
    installed("image")
    import image

    best = image.classify(image.load_model(image.checkpoint()), [image.samples()["flower.jpg"]])[0][0]
    assert best[0] == "daisy"


def test_vectors_of_voices_are_as_recorded() -> None:
    installed("voices")
    import voices

    with weft.no_grad():
        vectors = voices.load_model(voices.checkpoint())(weft.tensor(RECORDED["spectra"])).numpy()
    assert np.abs(vectors - RECORDED["vectors"]).max() <= TOLERANCE
    alike = vectors @ vectors.T
    assert min(alike[0, 1], alike[2, 3]) > max(alike[:2, 2:].flat), "a voice is most like itself"


def test_the_spectrum_is_as_recorded() -> None:
    voices = pytest.importorskip("voices")
    mel = voices.spectrum(RECORDED["sound"])
    np.testing.assert_allclose(mel, RECORDED["mel"], rtol=1e-3, atol=1e-5 * RECORDED["mel"].max())


def test_wav_files(tmp_path: Path) -> None:
    sound = pytest.importorskip("sound")
    path = tmp_path / "a.wav"
    samples = np.sin(2 * np.pi * 440 * np.arange(8000) / 8000)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(np.repeat((samples * 2**14).astype("<i2"), 2).tobytes())
    read = sound.read_wav(path, 16000)
    assert read.shape == (16000,)
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    np.testing.assert_allclose(read[1000:-1000], expected[1000:-1000], atol=1e-2)
    path.write_bytes(b"not a WAV file")
    with pytest.raises(SystemExit, match="cannot be read as a WAV file"):
        sound.read_wav(path, 16000)
