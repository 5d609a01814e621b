"""Layers as NumPy computes them, in float64, from a state dict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

import weft

Array = np.ndarray[Any, Any]
Weights = Mapping[str, Array]


def weights_of(model: Any) -> dict[str, Array]:
    """A model's weights after they were made larger, so that it is far from linear."""
    rng = np.random.default_rng(1)
    larger = {
        k: weft.tensor((t.numpy() * 3 + rng.normal(size=tuple(t.shape)) * 0.1).astype(np.float32))
        for k, t in model.state_dict().items()
    }
    model.load_state_dict(larger)
    return {k: t.numpy().astype(np.float64) for k, t in model.state_dict().items()}


def linear(w: Weights, name: str, x: Array) -> Array:
    out = x @ w[f"{name}.weight"].T
    return out + w[f"{name}.bias"] if f"{name}.bias" in w else out


def norm(w: Weights, name: str, x: Array, eps: float) -> Array:
    return plain_norm(x, eps) * w[f"{name}.weight"] + w[f"{name}.bias"]


def plain_norm(x: Array, eps: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)


def rms_norm(w: Weights, name: str, x: Array, eps: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"]


erf = np.vectorize(math.erf)


def gelu(x: Array) -> Array:
    return x / 2 * (1 + erf(x / math.sqrt(2)))


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def attention(q: Array, k: Array, v: Array, count: int, mask: Array | None = None) -> Array:
    """Of (b, t, e) in heads; `mask`: True where a query sees a key."""
    q, k, v = (x.reshape(*x.shape[:2], count, -1).transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    out = p / p.sum(-1, keepdims=True) @ v
    return out.transpose(0, 2, 1, 3).reshape(out.shape[0], out.shape[2], -1)
