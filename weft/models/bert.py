"""BERT: an encoder whose tokens see each other; MiniLM and most models of sentence embeddings are such.

    x = norm(x + attention(x));  x = norm(x + mlp(x))

Source: Devlin et al. 2019, arXiv:1810.04805; names as in transformers' BertModel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Self

import weft
import weft.nn.functional as F
from weft import Tensor, nn
from weft.errors import ArgumentError
from weft.lazy_dataclass import dataclass
from weft.models.attention import heads, mix
from weft.models.cache import tokens
from weft.models.config import Config, activation
from weft.models.pretrained_module import PretrainedModule


@dataclass(frozen=True)
class BertConfig(Config):
    """The sizes of a BERT."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"

    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "position_embedding_type": ("absolute",), "is_decoder": (False,), "add_cross_attention": (False,),
    }  # fmt: skip
    neutral: ClassVar[frozenset[str]] = frozenset({
        "attention_probs_dropout_prob", "classifier_dropout", "hidden_dropout_prob", "tie_word_embeddings",
    })  # fmt: skip


class Embeddings(nn.Module):
    """norm(word[ids] + position[0 .. t] + kind[kinds]).   Shapes: (b, t) of int -> (b, t, e)."""

    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(c.vocab_size, c.hidden_size)
        self.position_embeddings = nn.Embedding(c.max_position_embeddings, c.hidden_size)
        self.token_type_embeddings = nn.Embedding(c.type_vocab_size, c.hidden_size)
        self.LayerNorm = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)

    def forward(self, ids: Tensor, kinds: Tensor | None) -> Tensor:
        table = self.token_type_embeddings
        kind = table.weight[0] if kinds is None else table(kinds)
        position = self.position_embeddings.weight[: tokens(ids)]
        return self.LayerNorm(self.word_embeddings(ids) + position + kind)


class SelfAttention(nn.Module):
    """attention(query(x), key(x), value(x)).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        self.count = c.num_attention_heads
        self.query = nn.Linear(c.hidden_size, c.hidden_size)
        self.key = nn.Linear(c.hidden_size, c.hidden_size)
        self.value = nn.Linear(c.hidden_size, c.hidden_size)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (heads(layer(x), self.count) for layer in (self.query, self.key, self.value))
        return mix(q, k, v, mask)


class Output(nn.Module):
    """norm(dense(h) + x): the end of each half of a layer.   Shapes: h (b, t, i), x (b, t, e) -> (b, t, e)."""

    def __init__(self, inputs: int, c: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, c.hidden_size)
        self.LayerNorm = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(h) + x)


class Attention(nn.Module):
    """norm(dense(attention(x)) + x).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        self.self = SelfAttention(c)
        self.output = Output(c.hidden_size, c)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.output(self.self(x, mask), x)


class Intermediate(nn.Module):
    """act(dense(x)).   Shapes: (..., e) -> (..., i)."""

    def __init__(self, inputs: int, outputs: int, act: str) -> None:
        super().__init__()
        self.dense, self.act = nn.Linear(inputs, outputs), activation(act)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.dense(x))


class Layer(nn.Module):
    """norm(x + attention(x)), then norm(x + mlp(x)).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        self.attention = Attention(c)
        self.intermediate = Intermediate(c.hidden_size, c.intermediate_size, c.hidden_act)
        self.output = Output(c.intermediate_size, c)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class Layers(nn.Module):
    """Layers one after the other."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layer = nn.ModuleList(layers)

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        for layer in self.layer:
            x = layer(x, *more)
        return x


class Pooler(nn.Module):
    """tanh(dense(x[0])): the first token's features, for a classifier.   Shapes: (b, t, e) -> (b, e)."""

    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(c.hidden_size, c.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return weft.tanh(self.dense(x[:, 0]))


class Bert(PretrainedModule):
    """Features of tokens that see each other: (b, t) of int -> (b, t, e).

    `pooler(features)` is what it was trained to classify pairs of sentences by, where a file has it. Heads that a file
    has for other tasks are left out.
    """

    kinds = ("bert",)
    config = BertConfig
    left_out = ("cls.", "classifier.", "qa_outputs.", "embeddings.position_ids")

    @classmethod
    def of(cls, config: BertConfig, names: Collection[str]) -> Self:
        return cls(config, any(n.endswith("pooler.dense.weight") for n in names))

    def __init__(self, c: BertConfig, pooler: bool = True) -> None:
        super().__init__()
        self.embeddings = Embeddings(c)
        self.encoder = Layers([Layer(c) for _ in range(c.num_hidden_layers)])
        self.longest = c.max_position_embeddings
        if pooler:
            self.pooler = Pooler(c)

    def forward(self, ids: Tensor, mask: Tensor | None = None, kinds: Tensor | None = None) -> Tensor:
        """The features. `mask`, (b, t) of bool: which are tokens, and no padding. `kinds`, (b, t): of which sentence
        they are, all of the first one by default. ArgumentError for more tokens than the model has places for."""
        if tokens(ids) > self.longest:
            raise ArgumentError(
                f"Bert: {tokens(ids)} tokens are beyond the {self.longest} that the model knows"
            )
        return self.encoder(self.embeddings(ids, kinds), None if mask is None else mask[:, None, None])

    def embed(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Sentences as vectors of length 1, the mean of their tokens' features, so that dot products are cosines:
        (b, t) -> (b, e). Source: Reimers & Gurevych 2019, arXiv:1908.10084."""
        x, weight = self(ids, mask), mask[..., None]
        return F.normalize((x * weight).sum(1) / weight.sum(1), dim=-1)
