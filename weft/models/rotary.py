"""Rotary position embeddings: pairs of features of queries and keys, turned by angles that grow with the position."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

import weft
from weft import Tensor
from weft.errors import ArgumentError
from weft.lazy_dataclass import dataclass
from weft.models.cache import Positions


@dataclass(frozen=True)
class Rotary:
    """Angles position * frequency for the pairs (i, i + d / 2) of the first d features of a head.

    Source: Su et al. 2021, arXiv:2104.09864, in the layout of GPT-NeoX.
    """

    frequencies: tuple[float, ...]
    scale: float = 1.0

    @classmethod
    def of(cls, values: Mapping[str, Any], features: int, longest: int) -> Rotary:
        """The rotation that a configuration's `rope_parameters`, or its `rope_theta` and `rope_scaling`, describe.

        `features`: of a head, of which `partial_rotary_factor` are turned. `longest`: max_position_embeddings.
        """
        given = dict(
            cast("Mapping[str, Any]", values.get("rope_parameters") or values.get("rope_scaling") or {})
        )
        theta = given.pop("rope_theta", values.get("rope_theta", 10000.0))
        part = given.pop("partial_rotary_factor", values.get("partial_rotary_factor", 1.0))
        kind = given.pop("rope_type", given.pop("type", "default"))
        given.pop("type", None)
        turned = int(features * part)
        base = 1.0 / theta ** (np.arange(0, turned, 2, dtype=np.float32) / turned)
        match kind, given:
            case "default", {**rest} if not rest:
                return cls(tuple(base.tolist()))
            case "linear", {"factor": factor, **rest} if not rest:
                return cls(tuple((base / factor).tolist()))
            case "divided", {"divisors": divisors, **rest} if not rest:  # as tables in GGUF files have it
                return cls(tuple((base / np.asarray(divisors, np.float32)).tolist()))
            case "llama3", {
                "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                "original_max_position_embeddings": length, **rest,
            } if not rest:  # fmt: skip
                return cls(tuple(_llama3(base, factor, low, high, length).tolist()))
            case _:
                raise ArgumentError(
                    f"rope_parameters: {kind!r} with {given} is not supported (default, linear, llama3)"
                )

    def turned(self, x: Tensor, positions: Positions) -> Tensor:
        """x with each head's features turned.   Shapes: (b, h, t, e) -> same."""
        cos, sin = positions.once((self, x.dtype), lambda: self._waves(positions.at, x.dtype))
        half = len(self.frequencies)
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        parts = [a * cos - b * sin, b * cos + a * sin]
        return weft.cat([*parts, rest] if rest.shape[-1] else parts, -1)

    def _waves(self, at: Tensor, dtype: weft.DType) -> tuple[Tensor, Tensor]:
        """Cosines and sines of positions (b or 1, t), for all heads and layers: (b or 1, 1, t, d / 2) each."""
        frequencies = weft.tensor(self.frequencies, dtype=weft.float32, device=at.device)
        angles = at[:, None, :, None].to(weft.float32) * frequencies
        cos, sin = (f(angles) * self.scale if self.scale != 1 else f(angles) for f in (weft.cos, weft.sin))
        return cos.to(dtype), sin.to(dtype)


def _llama3(
    base: np.ndarray[Any, Any], factor: float, low: float, high: float, length: int
) -> np.ndarray[Any, Any]:
    """Frequencies of Llama 3.1: slow ones divided by `factor`, fast ones as they are, those between in between."""
    turns = length * base / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return ((1 - smooth) * base / factor + smooth * base).astype(np.float32)
