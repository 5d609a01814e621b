"""Decodes with a GPT that is nothing but full attention, through a session, beside a cache written by hand and torch.

The model has no cache: it computes all positions of the whole buffer. A session keeps what it computed, and computes
one row in each layer when a token is written; a cache of keys and values by hand is a second model that has to agree
with the first. The weights are random, the tokens the likeliest ones; all ways must give the same.

    python examples/session_gpt.py [--context 512] [--layers 8] [--width 512] [--tokens 64] [--torch]

Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners (GPT-2).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

import weft
import weft.nn.functional as F
from weft import Tensor, nn


@dataclass(frozen=True)
class Config:
    """The sizes of the model and of what is decoded."""

    context: int = 512
    layers: int = 8
    heads: int = 8
    width: int = 512
    alphabet: int = 256
    prompt: int = 16
    tokens: int = 64


class Block(nn.Module):
    """Causal attention of all positions to all before them, then two linear maps at each."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.heads = c.heads
        self.norm1, self.norm2 = nn.LayerNorm(c.width), nn.LayerNorm(c.width)
        self.qkv, self.out = nn.Linear(c.width, 3 * c.width), nn.Linear(c.width, c.width)
        self.up, self.down = nn.Linear(c.width, 4 * c.width), nn.Linear(4 * c.width, c.width)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of heads."""
        rows, width = x.shape
        q, k, v = (
            self.qkv(self.norm1(x)).reshape(rows, 3, self.heads, width // self.heads).permute(1, 2, 0, 3)
        )
        return q, k, v

    def joined(self, x: Tensor, attended: Tensor) -> Tensor:
        """The block's result, given what its heads gathered."""
        x = x + self.out(attended.transpose(0, 1).reshape(*x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.joined(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))


class GPT(nn.Module):
    """Scores of the next token, for all positions of a buffer."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(c.alphabet, c.width), nn.Embedding(c.context, c.width)
        self.blocks = nn.ModuleList([Block(c) for _ in range(c.layers)])
        self.norm, self.head = nn.LayerNorm(c.width), nn.Linear(c.width, c.alphabet, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Cached:
    """The same model with a cache of keys and values, as one writes it by hand: one token at a time."""

    def __init__(self, model: GPT, c: Config) -> None:
        self.model = model
        size = (c.heads, c.context, c.width // c.heads)
        self.keys = [weft.zeros(size) for _ in range(c.layers)]
        self.values = [weft.zeros(size) for _ in range(c.layers)]
        self.positions = weft.arange(c.context)
        self.step = weft.compile(self._step)

    def _step(self, token: Tensor, t: Tensor) -> Tensor:
        m = self.model
        x = m.tokens(token) + m.places(t)
        seen = self.positions <= t
        for n, block in enumerate(m.blocks):
            q, k, v = block.split(x)
            self.keys[n].index_copy_(1, t, k)
            self.values[n].index_copy_(1, t, v)
            attended = F.scaled_dot_product_attention(q, self.keys[n], self.values[n], attn_mask=seen[None])
            x = block.joined(x, attended)
        return m.head(m.norm(x))[0]


Decoded = tuple[list[int], float]
"""The tokens, and the median of the seconds that each took."""


def decode(c: Config, following: Callable[[list[int]], int]) -> Decoded:
    """Tokens, each from the ones before."""
    tokens, times = [7 * k % c.alphabet for k in range(c.prompt)], list[float]()
    for _ in range(c.tokens):
        start = time.perf_counter()
        tokens.append(following(tokens))
        times.append(time.perf_counter() - start)
    return tokens, sorted(times)[len(times) // 2]


def through_a_session(model: GPT, c: Config) -> Decoded:
    """The naive program: all positions, and the row of the last token."""

    def scores(ids: Tensor, t: int) -> Tensor:
        return model(ids)[t]

    ids = weft.zeros(c.context, dtype=weft.int64)
    session = weft.session(scores, ids, weft.Variable("t", 0, c.context - 1))
    written = 0

    def following(tokens: list[int]) -> int:
        nonlocal written
        for k in range(written, len(tokens)):
            ids[k] = tokens[k]
        written = len(tokens)
        return int(session(ids, written - 1).argmax())

    return decode(c, following)


def with_a_cache(model: GPT, c: Config) -> Decoded:
    """The second model."""
    cached, read = Cached(model, c), 0

    def following(tokens: list[int]) -> int:
        nonlocal read
        with weft.no_grad():
            for k in range(read, len(tokens)):
                scores = cached.step(weft.tensor([tokens[k]]), weft.tensor([k]))
        read = len(tokens)
        return int(scores.argmax())

    return decode(c, following)


class InTorch:
    """The second model in torch, where that is installed, with the same weights."""

    def __init__(self, model: GPT, c: Config) -> None:
        import numpy as np
        import torch

        self.heads = c.heads
        self.weights: dict[str, Any] = {
            n: torch.from_numpy(np.array(p.detach().numpy())) for n, p in model.named_parameters()
        }
        self.blocks = [
            {k.split(".", 2)[2]: v for k, v in self.weights.items() if k.startswith(f"blocks.{n}.")}
            for n in range(c.layers)
        ]
        size = (c.heads, c.context, c.width // c.heads)
        self.keys, self.values = ([torch.zeros(size) for _ in range(c.layers)] for _ in range(2))

    def step(self, token: int, t: int) -> Any:
        """Scores of the token behind this one, the t-th."""
        from torch.nn import functional as TF

        w, keys, values = self.weights, self.keys, self.values
        x = w["tokens.weight"][token] + w["places.weight"][t]
        for n, p in enumerate(self.blocks):
            y = TF.layer_norm(x, x.shape, p["norm1.weight"], p["norm1.bias"])
            q, k, v = TF.linear(y, p["qkv.weight"], p["qkv.bias"]).reshape(3, self.heads, -1)
            keys[n][:, t], values[n][:, t] = k, v
            seen = keys[n][None, :, : t + 1], values[n][None, :, : t + 1]
            a = TF.scaled_dot_product_attention(q[None, :, None], *seen).reshape(-1)
            x = x + TF.linear(a, p["out.weight"], p["out.bias"])
            y = TF.layer_norm(x, x.shape, p["norm2.weight"], p["norm2.bias"])
            y = TF.gelu(TF.linear(y, p["up.weight"], p["up.bias"]))
            x = x + TF.linear(y, p["down.weight"], p["down.bias"])
        return TF.linear(TF.layer_norm(x, x.shape, w["norm.weight"], w["norm.bias"]), w["head.weight"])


def in_torch(model: GPT, c: Config) -> Decoded:
    """The second model in torch."""
    import torch

    second, read = InTorch(model, c), 0

    def following(tokens: list[int]) -> int:
        nonlocal read
        with torch.no_grad():
            for k in range(read, len(tokens)):
                scores = second.step(tokens[k], k)
        read = len(tokens)
        return int(scores.argmax())

    return decode(c, following)


def main() -> None:
    """Decode in all ways, and print how long a token takes in each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("context", "layers", "heads", "width", "tokens"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Config, name))
    parser.add_argument("--torch", action="store_true", help="beside torch, too")
    given = vars(parser.parse_args())
    beside_torch = given.pop("torch")
    c = Config(**given)
    weft.manual_seed(0)
    model = GPT(c).eval()
    ways = {"a session": through_a_session, "a cache by hand": with_a_cache}
    if beside_torch:
        ways["torch, a cache by hand"] = in_torch
    table = Table("decoded through", "ms a token", "tokens")
    wanted: list[int] = []
    for name, way in ways.items():
        tokens, seconds = way(model, c)
        wanted = wanted or tokens
        same = "the same" if tokens == wanted else "others"
        table.add_row(name, f"{1e3 * seconds:.2f}", same)
    Console().print(table)


if __name__ == "__main__":
    main()
