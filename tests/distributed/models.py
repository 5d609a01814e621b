"""Small models, and a training loop for one device or a mesh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft
import weft.nn.functional as F
from weft import nn
from weft.distributed import DeviceMesh
from weft.distributed.tensor import Placement, distribute_tensor

STEPS = 5


class Block(nn.Module):
    """A transformer's layer. Queries and keys have no bias: its gradient is 0, which Adam divides by itself."""

    def __init__(self, dim: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.k = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.v, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        b, t, d = x.shape
        h = self.norm1(x)
        q, k, v = (
            f(h).reshape(b, t, self.heads, d // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(attended)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    """Tokens (batch, time) -> logits over 11 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.block, self.head = nn.Embedding(11, 8), Block(), nn.Linear(8, 11)

    def forward(self, tokens: weft.Tensor) -> weft.Tensor:
        return self.head(self.block(self.embedding(tokens)))


def perceptron() -> nn.Sequential:
    """(batch, 6) -> (batch, 3)"""
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def _numbers(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, 6)).astype("f"), rng.standard_normal((rows, 3)).astype("f")


def _tokens(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 11, (rows, 4)), rng.integers(0, 11, (rows, 4))


def _loss(model: nn.Module, x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
    out = model(x)
    if isinstance(model, LanguageModel):
        return F.cross_entropy(out.reshape(-1, 11), y.reshape(-1))
    return F.mse_loss(out, y)


@dataclass
class Trained:
    """The losses of all steps, and what was trained by what."""

    losses: list[float]
    model: Any
    optimizer: Any

    def assert_like(self, other: Trained) -> None:
        """Losses and weights agree but for rounding."""
        assert np.allclose(self.losses, other.losses, rtol=1e-5, atol=1e-6)
        for (name, p), (_, q) in zip(
            self.model.named_parameters(), other.model.named_parameters(), strict=True
        ):
            assert np.allclose(p.numpy(), q.numpy(), rtol=1e-4, atol=1e-5), name


def trained(
    make: Callable[[], nn.Module],
    optimizer: Callable[[Any], Any],
    spread: Callable[[Any], Any] | None = None,
    mesh: DeviceMesh | None = None,
    batch: Placement | None = None,
    compiled: bool = False,
    steps: int = STEPS,
    rows: int | None = None,
) -> Trained:
    """The model after some steps. `spread(model)` lays it out on the mesh; `batch` is how batches, of `rows` (an odd
    number, unless it is said), lie there."""
    weft.manual_seed(0)
    model = make()
    if spread is not None:
        spread(model)
    found = optimizer(model.parameters())
    give, usual = (_tokens, 5) if isinstance(model, LanguageModel) else (_numbers, 7)

    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        found.zero_grad()
        loss = _loss(model, x, y)
        loss.backward()
        found.step()
        return loss

    run = weft.compile(step) if compiled else step
    losses: list[float] = []
    for k in range(steps):
        x, y = map(weft.tensor, give(k, rows or usual))
        if mesh is not None and batch is not None:
            x, y = (distribute_tensor(t, mesh, [batch] * mesh.ndim) for t in (x, y))
        losses.append(run(x, y).item())
    return Trained(losses, model, found)
