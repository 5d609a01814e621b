"""The transformer of Flux 2: which way noise becomes an image, given a text.

    two streams:  x += gate * attention(mod(norm(x)), with the text's);  x += gate * mlp(mod(norm(x)))
    then one:     x += gate * out([attention(h), swiglu(h)]),  h = mod(norm([text, image]))

Shift, scale and gate of `mod` follow from the time alone and are shared by all blocks of a kind. Queries and keys are
turned by four coordinates of a token: of an image's its row and column, of a text's its place.
Source: Black Forest Labs 2025; names as in diffusers' Flux2Transformer2DModel.
"""
# Tests: tests/models/test_klein.py

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

import weft
import weft.nn.functional as F
from weft import Tensor, nn
from weft.lazy_dataclass import dataclass
from weft.models.attention import heads, mix
from weft.models.config import Config
from weft.models.decoder import RMSNorm
from weft.models.pretrained_module import PretrainedModule

Turn = tuple[Tensor, Tensor]
"""Cosines and sines of the angles that pairs of features are turned by, (t, e / 2)."""


@dataclass(frozen=True)
class Flux2Config(Config):
    """The sizes of a Flux 2 transformer."""

    in_channels: int = 128
    out_channels: int | None = None
    num_layers: int = 8
    num_single_layers: int = 48
    attention_head_dim: int = 128
    num_attention_heads: int = 48
    joint_attention_dim: int = 15360
    timestep_guidance_channels: int = 256
    mlp_ratio: float = 3.0
    axes_dims_rope: Sequence[int] = (32, 32, 32, 32)
    rope_theta: float = 2000
    eps: float = 1e-6

    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {"guidance_embeds": (False,), "patch_size": (1,)}
    neutral: ClassVar[frozenset[str]] = frozenset({"_class_name", "_diffusers_version"})

    @property
    def width(self) -> int:
        """Features of a token."""
        return self.num_attention_heads * self.attention_head_dim


def linear(inputs: int, outputs: int) -> nn.Linear:
    """x @ weight.T: nothing in this transformer has a bias."""
    return nn.Linear(inputs, outputs, bias=False)


def swiglu(x: Tensor) -> Tensor:
    """silu(a) * b, (a, b) = x.   Shapes: (..., 2 e) -> (..., e)."""
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def turns(c: Flux2Config, at: np.ndarray[Any, Any], device: Any) -> Turn:
    """The turn of tokens at these coordinates, (t, axes); angles are computed in float64, as it was trained."""
    angles = [
        at[:, k, None] / c.rope_theta ** (np.arange(0, size, 2) / size)
        for k, size in enumerate(c.axes_dims_rope)
    ]
    whole = np.concatenate(angles, 1)
    cos, sin = (weft.tensor(f(whole).astype(np.float32), device=device) for f in (np.cos, np.sin))
    return cos, sin


def turned(x: Tensor, by: Turn) -> Tensor:
    """x with the pairs (2 i, 2 i + 1) of features turned.   Shapes: (b, h, t, e) -> same."""
    wide = x.float().unflatten(-1, (-1, 2))
    a, b = wide[..., 0], wide[..., 1]
    cos, sin = by
    return weft.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(x.dtype)


class TimeEmbedder(nn.Module):
    """linear_2(silu(linear_1(x))).   Shapes: (b, i) -> (b, e)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = linear(inputs, width), linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.silu(self.linear_1(x)))


class Time(nn.Module):
    """embedder([cos(t f), sin(t f)]), f falling from 1 to nearly 1 / 10,000.   Shapes: (b,) -> (b, e)."""

    def __init__(self, c: Flux2Config) -> None:
        super().__init__()
        self.waves = c.timestep_guidance_channels // 2
        self.timestep_embedder = TimeEmbedder(2 * self.waves, c.width)

    def forward(self, t: Tensor, dtype: weft.DType) -> Tensor:
        steps = np.arange(self.waves, dtype=np.float32) / np.float32(self.waves)
        falling = np.exp(np.float32(-np.log(10000.0)) * steps)
        angles = t[:, None] * weft.tensor(falling, device=t.device)
        return self.timestep_embedder(weft.cat([angles.cos(), angles.sin()], -1).to(dtype))


class Modulation(nn.Module):
    """linear(silu(time)), as shift, scale and gate for each half of a block.   Shapes: (b, e) -> (b, 1, e) each."""

    def __init__(self, width: int, parts: int) -> None:
        super().__init__()
        self.parts = parts
        self.linear = linear(width, 3 * parts * width)

    def forward(self, time: Tensor) -> list[tuple[Tensor, ...]]:
        made = self.linear(F.silu(time))[:, None].chunk(3 * self.parts, -1)
        return [tuple(made[k : k + 3]) for k in range(0, 3 * self.parts, 3)]


def modulated(x: Tensor, eps: float, shift: Tensor, scale: Tensor) -> Tensor:
    """(1 + scale) * norm(x) + shift.   Shapes: (b, t, e) -> same."""
    return (1 + scale) * F.layer_norm(x, (x.shape[-1],), eps=eps) + shift


class FeedForward(nn.Module):
    """linear_out(swiglu(linear_in(x))).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: Flux2Config) -> None:
        super().__init__()
        inner = int(c.width * c.mlp_ratio)
        self.linear_in, self.linear_out = linear(c.width, 2 * inner), linear(inner, c.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_out(swiglu(self.linear_in(x)))


class JointAttention(nn.Module):
    """Attention of image and text to each other, with projections of their own."""

    def __init__(self, c: Flux2Config) -> None:
        super().__init__()
        self.count = c.num_attention_heads
        self.to_q, self.to_k, self.to_v = (linear(c.width, c.width) for _ in range(3))
        self.add_q_proj, self.add_k_proj, self.add_v_proj = (linear(c.width, c.width) for _ in range(3))
        self.norm_q, self.norm_k, self.norm_added_q, self.norm_added_k = (
            RMSNorm(c.attention_head_dim, c.eps) for _ in range(4)
        )
        self.to_out = nn.ModuleList([linear(c.width, c.width)])
        self.to_add_out = linear(c.width, c.width)

    def forward(self, x: Tensor, text: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        q = [
            self.norm_added_q(heads(self.add_q_proj(text), self.count)),
            self.norm_q(heads(self.to_q(x), self.count)),
        ]
        k = [
            self.norm_added_k(heads(self.add_k_proj(text), self.count)),
            self.norm_k(heads(self.to_k(x), self.count)),
        ]
        v = [heads(self.add_v_proj(text), self.count), heads(self.to_v(x), self.count)]
        out = mix(turned(weft.cat(q, 2), turn), turned(weft.cat(k, 2), turn), weft.cat(v, 2))
        words = text.shape[1]
        return self.to_out[0](out[:, words:]), self.to_add_out(out[:, :words])


class DoubleBlock(nn.Module):
    """Two streams that meet in attention.   Shapes: image (b, t, e) and text (b, s, e) -> same."""

    def __init__(self, c: Flux2Config) -> None:
        super().__init__()
        self.eps = c.eps
        self.attn = JointAttention(c)
        self.ff, self.ff_context = FeedForward(c), FeedForward(c)

    def forward(
        self,
        x: Tensor,
        text: Tensor,
        of_image: list[tuple[Tensor, ...]],
        of_text: list[tuple[Tensor, ...]],
        turn: Turn,
    ) -> tuple[Tensor, Tensor]:
        (shift, scale, gate), (shift_2, scale_2, gate_2) = of_image
        (t_shift, t_scale, t_gate), (t_shift_2, t_scale_2, t_gate_2) = of_text
        a, b = self.attn(
            modulated(x, self.eps, shift, scale), modulated(text, self.eps, t_shift, t_scale), turn
        )
        x, text = x + gate * a, text + t_gate * b
        x = x + gate_2 * self.ff(modulated(x, self.eps, shift_2, scale_2))
        return x, text + t_gate_2 * self.ff_context(modulated(text, self.eps, t_shift_2, t_scale_2))


class ParallelAttention(nn.Module):
    """to_out([attention(q, k, v), swiglu(m)]), (q, k, v, m) = to_qkv_mlp_proj(x).   Shapes: (b, t, e) -> same.

    Source: Dehghani et al. 2023, arXiv:2302.05442 (a block's halves beside each other).
    """

    def __init__(self, c: Flux2Config) -> None:
        super().__init__()
        self.count, self.width, inner = c.num_attention_heads, c.width, int(c.width * c.mlp_ratio)
        self.to_qkv_mlp_proj = linear(c.width, 3 * c.width + 2 * inner)
        self.norm_q, self.norm_k = (RMSNorm(c.attention_head_dim, c.eps) for _ in range(2))
        self.to_out = linear(c.width + inner, c.width)

    def forward(self, x: Tensor, turn: Turn) -> Tensor:
        made = self.to_qkv_mlp_proj(x)
        q, k, v = (heads(part, self.count) for part in made[..., : 3 * self.width].chunk(3, -1))
        out = mix(turned(self.norm_q(q), turn), turned(self.norm_k(k), turn), v)
        return self.to_out(weft.cat([out, swiglu(made[..., 3 * self.width :])], -1))


class SingleBlock(nn.Module):
    """x + gate * attn(mod(norm(x))).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: Flux2Config) -> None:
        super().__init__()
        self.eps, self.attn = c.eps, ParallelAttention(c)

    def forward(self, x: Tensor, shift: Tensor, scale: Tensor, gate: Tensor, turn: Turn) -> Tensor:
        return x + gate * self.attn(modulated(x, self.eps, shift, scale), turn)


class LastNorm(nn.Module):
    """(1 + scale) * norm(x) + shift, (scale, shift) = linear(silu(time)).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: Flux2Config) -> None:
        super().__init__()
        self.eps, self.linear = c.eps, linear(c.width, 2 * c.width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        scale, shift = self.linear(F.silu(time))[:, None].chunk(2, -1)
        return modulated(x, self.eps, shift, scale)


class Flux2(PretrainedModule):
    """The velocity of an image's tokens at a time: (b, t, c), of text (b, s, i), at (b,) of 0 to 1000 -> same."""

    kinds = ("Flux2Transformer2DModel",)
    config = Flux2Config

    def __init__(self, c: Flux2Config) -> None:
        super().__init__()
        self.sizes = c
        self.time_guidance_embed = Time(c)
        self.double_stream_modulation_img, self.double_stream_modulation_txt = (
            Modulation(c.width, 2) for _ in range(2)
        )
        self.single_stream_modulation = Modulation(c.width, 1)
        self.x_embedder = linear(c.in_channels, c.width)
        self.context_embedder = linear(c.joint_attention_dim, c.width)
        self.transformer_blocks = nn.ModuleList([DoubleBlock(c) for _ in range(c.num_layers)])
        self.single_transformer_blocks = nn.ModuleList([SingleBlock(c) for _ in range(c.num_single_layers)])
        self.norm_out = LastNorm(c)
        self.proj_out = linear(c.width, c.out_channels or c.in_channels)

    def forward(self, x: Tensor, text: Tensor, time: Tensor, turn: Turn) -> Tensor:
        """`turn`: of the text's tokens, then of the image's, as `turns` gives it."""
        x, words = self.x_embedder(x), text.shape[1]
        text, now = self.context_embedder(text), self.time_guidance_embed(time, x.dtype)
        of_image, of_text = self.double_stream_modulation_img(now), self.double_stream_modulation_txt(now)
        for block in self.transformer_blocks:
            x, text = block(x, text, of_image, of_text, turn)
        ((shift, scale, gate),) = self.single_stream_modulation(now)
        x = weft.cat([text, x], 1)
        for block in self.single_transformer_blocks:
            x = block(x, shift, scale, gate, turn)
        return self.proj_out(self.norm_out(x[:, words:], now))
