"""ViT: an image as a sequence of patches, classified by the features of a token put before them.

    x = x + attention(norm(x));  x = x + mlp(norm(x))

Source: Dosovitskiy et al. 2020, arXiv:2010.11929; names as in the files of transformers' ViTForImageClassification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import weft
from weft import Tensor, nn
from weft.errors import ShapeError
from weft.lazy_dataclass import dataclass
from weft.models.attention import heads, mix
from weft.models.bert import Intermediate, Layers
from weft.models.config import Config
from weft.models.pretrained_module import PretrainedModule


@dataclass(frozen=True)
class ViTConfig(Config):
    """The sizes of a ViT."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    image_size: int | Sequence[int] = 224
    patch_size: int | Sequence[int] = 16
    num_channels: int = 3
    qkv_bias: bool = True
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    num_labels: int | None = None
    id2label: Mapping[str, str] | None = None

    neutral: ClassVar[frozenset[str]] = frozenset({
        "attention_probs_dropout_prob", "encoder_stride", "hidden_dropout_prob", "pooler_act", "pooler_output_size",
    })  # fmt: skip

    @property
    def labels(self) -> int:
        """The number of classes: two where nothing says so, as in transformers."""
        return self.num_labels or len(self.id2label or ()) or 2


def pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


class Patches(nn.Module):
    """projection(patch) of each patch.   Shapes: (b, c, h, w) -> (b, t, e)."""

    def __init__(self, c: ViTConfig) -> None:
        super().__init__()
        size = pair(c.patch_size)
        self.projection = nn.Conv2d(c.num_channels, c.hidden_size, size, stride=size)

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(x).flatten(2).transpose(1, 2)


class Embeddings(nn.Module):
    """[first, patches] + position.   Shapes: (b, c, h, w) -> (b, 1 + t, e)."""

    def __init__(self, c: ViTConfig) -> None:
        super().__init__()
        (h, w), (p, q) = pair(c.image_size), pair(c.patch_size)
        self.cls_token = nn.Parameter(weft.zeros(1, 1, c.hidden_size))
        self.position_embeddings = nn.Parameter(weft.randn(1, (h // p) * (w // q) + 1, c.hidden_size) * 0.02)
        self.patch_embeddings = Patches(c)

    def forward(self, x: Tensor) -> Tensor:
        first = self.cls_token.expand(x.shape[0], -1, -1)
        return weft.cat([first, self.patch_embeddings(x)], 1) + self.position_embeddings


class SelfAttention(nn.Module):
    """attention(query(x), key(x), value(x)).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: ViTConfig) -> None:
        super().__init__()
        self.count = c.num_attention_heads
        self.query = nn.Linear(c.hidden_size, c.hidden_size, bias=c.qkv_bias)
        self.key = nn.Linear(c.hidden_size, c.hidden_size, bias=c.qkv_bias)
        self.value = nn.Linear(c.hidden_size, c.hidden_size, bias=c.qkv_bias)

    def forward(self, x: Tensor) -> Tensor:
        return mix(*(heads(layer(x), self.count) for layer in (self.query, self.key, self.value)))


class Output(nn.Module):
    """dense(x).   Shapes: (..., i) -> (..., e)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x)


class Attention(nn.Module):
    """output(attention(x)).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: ViTConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(c)
        self.output = Output(c.hidden_size, c.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.attention(x))


class Layer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: ViTConfig) -> None:
        super().__init__()
        self.layernorm_before = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)
        self.attention = Attention(c)
        self.layernorm_after = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)
        self.intermediate = Intermediate(c.hidden_size, c.intermediate_size, c.hidden_act)
        self.output = Output(c.intermediate_size, c.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.layernorm_before(x))
        return x + self.output(self.intermediate(self.layernorm_after(x)))


class Trunk(nn.Module):
    """norm(layers(embeddings(x))).   Shapes: (b, c, h, w) -> (b, 1 + t, e)."""

    def __init__(self, c: ViTConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(c)
        self.encoder = Layers([Layer(c) for _ in range(c.num_hidden_layers)])
        self.layernorm = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.layernorm(self.encoder(self.embeddings(x)))


class ViT(PretrainedModule):
    """Logits of an image's class: (b, c, h, w), of the height and width of config.json -> (b, labels).

    `names`: the classes, where config.json tells them.
    """

    kinds = ("vit",)
    config = ViTConfig

    def __init__(self, c: ViTConfig) -> None:
        super().__init__()
        self.size = (c.num_channels, *pair(c.image_size))
        self.names = [name for _, name in sorted((c.id2label or {}).items(), key=lambda item: int(item[0]))]
        self.vit = Trunk(c)
        self.classifier = nn.Linear(c.hidden_size, c.labels)

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.size:
            raise ShapeError(f"ViT: needs images of shape {self.size}, got {tuple(x.shape)}")
        return self.classifier(self.vit(x)[:, 0])
