"""The decoder of Flux 2's autoencoder: latents as an image, by convolutions.

    block: x + conv2(silu(norm2(conv1(silu(norm1(x))))))

Source: Rombach et al. 2021, arXiv:2112.10752; names as in diffusers' AutoencoderKLFlux2, whose encoder is left out.
"""
# Tests: tests/models/test_klein.py

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import weft.nn.functional as F
from weft import Tensor, nn
from weft.lazy_dataclass import dataclass
from weft.models.attention import mix
from weft.models.config import Config
from weft.models.pretrained_module import PretrainedModule


@dataclass(frozen=True)
class Flux2VAEConfig(Config):
    """The sizes of a decoder."""

    latent_channels: int = 32
    out_channels: int = 3
    block_out_channels: Sequence[int] = (128, 256, 512, 512)
    decoder_block_out_channels: Sequence[int] | None = None
    layers_per_block: int = 2
    norm_num_groups: int = 32
    use_post_quant_conv: bool = True
    mid_block_add_attention: bool = True
    batch_norm_eps: float = 1e-4
    up_block_types: Sequence[str] = ()

    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {"act_fn": ("silu",), "patch_size": ([2, 2], (2, 2))}
    neutral: ClassVar[frozenset[str]] = frozenset({
        "_class_name", "_diffusers_version", "batch_norm_momentum", "down_block_types", "force_upcast", "in_channels",
        "sample_size", "use_quant_conv",
    })  # fmt: skip

    def __post_init__(self) -> None:
        self.refuse("up_block_types", set(self.up_block_types) - {"UpDecoderBlock2D"})

    @property
    def widths(self) -> list[int]:
        """Channels of the decoder's blocks, from the latents to the image."""
        return list(self.decoder_block_out_channels or self.block_out_channels)[::-1]


EPS = 1e-6  # of the decoder's norms


class Residual(nn.Module):
    """x + conv2(silu(norm2(conv1(silu(norm1(x)))))).   Shapes: (b, i, h, w) -> (b, o, h, w)."""

    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, inputs, eps=EPS)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2 = nn.GroupNorm(groups, outputs, eps=EPS)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))
        return h + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Attention(nn.Module):
    """x + out(attention(norm(x))), of one head over the pixels.   Shapes: (b, c, h, w) -> same."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(groups, width, eps=EPS)
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def forward(self, x: Tensor) -> Tensor:
        flat = self.group_norm(x).flatten(2).transpose(1, 2)
        out = self.to_out[0](mix(*(layer(flat)[:, None] for layer in (self.to_q, self.to_k, self.to_v))))
        return x + out.transpose(1, 2).reshape(x.shape)


class Middle(nn.Module):
    """Residuals around attention.   Shapes: (b, c, h, w) -> same."""

    def __init__(self, width: int, c: Flux2VAEConfig) -> None:
        super().__init__()
        groups = c.norm_num_groups
        self.attentions = nn.ModuleList([Attention(width, groups)] if c.mid_block_add_attention else [])
        self.resnets = nn.ModuleList([Residual(width, width, groups) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.resnets[0](x)
        for attention in self.attentions:
            x = attention(x)
        return self.resnets[1](x)


class Upsampler(nn.Module):
    """conv(each pixel four times).   Shapes: (b, c, h, w) -> (b, c, 2 h, 2 w)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class UpBlock(nn.Module):
    """Residuals, then, but for the last block, twice the size.   Shapes: (b, i, h, w) -> (b, o, 2 h, 2 w)."""

    def __init__(self, inputs: int, outputs: int, layers: int, groups: int, grows: bool) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(
            [Residual(outputs if k else inputs, outputs, groups) for k in range(layers)]
        )
        self.upsamplers = nn.ModuleList([Upsampler(outputs)] if grows else [])

    def forward(self, x: Tensor) -> Tensor:
        for layer in (*self.resnets, *self.upsamplers):
            x = layer(x)
        return x


class ImageDecoder(nn.Module):
    """conv_out(silu(norm(blocks(middle(conv_in(x)))))).   Shapes: (b, latent, h, w) -> (b, 3, n h, n w)."""

    def __init__(self, c: Flux2VAEConfig) -> None:
        super().__init__()
        widths, groups = c.widths, c.norm_num_groups
        self.conv_in = nn.Conv2d(c.latent_channels, widths[0], 3, padding=1)
        self.mid_block = Middle(widths[0], c)
        self.up_blocks = nn.ModuleList(
            [
                UpBlock(i, o, c.layers_per_block + 1, groups, k < len(widths) - 1)
                for k, (i, o) in enumerate(zip([widths[0], *widths], widths, strict=False))
            ]
        )
        self.conv_norm_out = nn.GroupNorm(groups, widths[-1], eps=EPS)
        self.conv_out = nn.Conv2d(widths[-1], c.out_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mid_block(self.conv_in(x))
        for block in self.up_blocks:
            x = block(x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


class Flux2VAE(PretrainedModule):
    """An image of latents in patches of 2 x 2, normalized: (b, 4 c, h, w) -> (b, 3, 2 n h, 2 n w), about -1 to 1."""

    kinds = ("AutoencoderKLFlux2",)
    config = Flux2VAEConfig
    left_out = ("encoder.", "quant_conv.")

    def __init__(self, c: Flux2VAEConfig) -> None:
        super().__init__()
        self.scale = 2 ** len(c.widths)  # pixels along a side of a patch
        self.decoder = ImageDecoder(c)
        self.post_quant_conv = (
            nn.Conv2d(c.latent_channels, c.latent_channels, 1) if c.use_post_quant_conv else None
        )
        self.bn = nn.BatchNorm2d(4 * c.latent_channels, eps=c.batch_norm_eps, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        assert self.bn.running_mean is not None and self.bn.running_var is not None
        mean, var = (t.reshape(1, -1, 1, 1).to(x.dtype) for t in (self.bn.running_mean, self.bn.running_var))
        x = x * (var + self.bn.eps).sqrt() + mean
        b, c, h, w = x.shape
        x = x.reshape(b, c // 4, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3).reshape(b, c // 4, 2 * h, 2 * w)
        return self.decoder(x if self.post_quant_conv is None else self.post_quant_conv(x))
