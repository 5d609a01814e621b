"""NumPy: what a person would write with it, and the reference for results."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.frameworks.run import Array, Run
from benchmarks.workloads import HEADS, TOKENS, WIDTH


def softmax(x: Array) -> Array:
    """Over the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    e /= e.sum(-1, keepdims=True)
    return e


def layer_norm(x: Array, g: Array, b: Array) -> Array:
    """Over the last axis."""
    c = x - x.mean(-1, keepdims=True)
    return c / np.sqrt((c * c).mean(-1, keepdims=True) + np.float32(1e-5)) * g + b


def gelu(x: Array) -> Array:
    """The tanh form."""
    return (
        np.float32(0.5) * x * (1 + np.tanh(np.float32(0.7978845608) * (x + np.float32(0.044715) * x * x * x)))
    )


class NumPy:
    """See `benchmarks.frameworks`."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}

    def matmul(self, a: Array, b: Array) -> Run:
        return Run(lambda: a @ b)

    def product(self, a: Array, b: Array, a_turned: bool, b_turned: bool) -> Run | None:
        if a.dtype not in (np.float32, np.float64):  # no BLAS: minutes
            return None
        x = a.swapaxes(-2, -1) if a_turned else a
        y = b.swapaxes(-2, -1) if b_turned else b
        return Run(lambda: x @ y)

    def chain(self, a: Array, b: Array, c: Array, d: Array) -> Run:
        half = np.float32(0.5)
        return Run(lambda: np.maximum(a * b + c, 0) * half - d)

    def chain_reused(self, a: Array, b: Array, c: Array, d: Array) -> Run:
        y, half = np.empty_like(a), np.float32(0.5)

        def call() -> Array:
            np.multiply(a, b, out=y)
            np.add(y, c, out=y)
            np.maximum(y, 0, out=y)
            np.multiply(y, half, out=y)
            return np.subtract(y, d, out=y)

        return Run(call)

    def sum(self, x: Array, dim: int | None = None) -> Run:
        return Run(lambda: x.sum(dim))

    def softmax(self, x: Array) -> Run:
        return Run(lambda: softmax(x))

    def layer_norm(self, x: Array, g: Array, b: Array) -> Run:
        return Run(lambda: layer_norm(x, g, b))

    def attention(self, q: Array, k: Array, v: Array, mask: Array) -> Run:
        scale = np.float32(0.125)
        return Run(lambda: softmax(q @ k.swapaxes(-2, -1) * scale + mask) @ v)

    def causal_attention(self, q: Array, k: Array, v: Array) -> Run:
        n, scale = q.shape[-2], np.float32(0.125)
        mask = np.triu(np.full((n, n), -np.inf, np.float32), 1)
        return Run(lambda: softmax(q @ k.swapaxes(-2, -1) * scale + mask) @ v)

    def conv2d(self, x: Array, w: Array) -> Run:
        images, channels, height, width = x.shape
        filters = w.shape[0]

        def call() -> Array:
            padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
            windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3)).transpose(
                0, 1, 4, 5, 2, 3
            )
            columns = windows.reshape(images, channels * 9, height * width)
            return (w.reshape(filters, -1) @ columns).reshape(images, filters, height, width)

        return Run(call)

    def mlp_step(self, weights: list[Array], biases: list[Array], x: Array, y: Array) -> Run:
        parameters = [a.copy() for pair in zip(weights, biases, strict=True) for a in pair]
        optimizer, rows, f32 = _Adam(parameters), np.arange(len(y)), np.float32

        def call() -> Any:
            w1, b1, w2, b2, w3, b3 = parameters
            h1 = x @ w1 + b1
            a1 = np.maximum(h1, 0)
            h2 = a1 @ w2 + b2
            a2 = np.maximum(h2, 0)
            chance = softmax(a2 @ w3 + b3)
            loss = -np.log(chance[rows, y]).mean()
            g = chance
            g[rows, y] -= 1
            g /= f32(len(y))
            g2 = (g @ w3.T) * (h2 > 0)
            g1 = (g2 @ w2.T) * (h1 > 0)
            optimizer.step([x.T @ g1, g1.sum(0), a1.T @ g2, g2.sum(0), a2.T @ g, g.sum(0)])
            return loss

        return Run(call)

    def adam_step(self, parameters: list[Array], gradients: list[Array]) -> Run:
        own = [p.copy() for p in parameters]
        optimizer = _Adam(own)
        return Run(lambda: optimizer.step(gradients), lambda _: own)

    def _layer(self, x: Array, w: dict[str, Array], mask: Array | None, cache: Array | None) -> Array:
        t = len(x)
        h = layer_norm(x, w["ln1_g"], w["ln1_b"]) @ w["qkv_w"] + w["qkv_b"]
        q, k, v = h.reshape(t, 3, HEADS, WIDTH // HEADS).transpose(1, 2, 0, 3)
        if cache is not None:
            cache[0, 0, :, -1:], cache[1, 0, :, -1:] = k, v
            k, v = cache[0, 0], cache[1, 0]
        scores = q @ k.transpose(0, 2, 1) * np.float32(0.125)
        attended = softmax(scores if mask is None else scores + mask) @ v
        x = x + attended.transpose(1, 0, 2).reshape(t, WIDTH) @ w["o_w"] + w["o_b"]
        h = gelu(layer_norm(x, w["ln2_g"], w["ln2_b"]) @ w["fc_w"] + w["fc_b"])
        return x + h @ w["pr_w"] + w["pr_b"]

    def gpt_forward(self, p: dict[str, Any], tokens: Array) -> Run:
        mask = np.triu(np.full((TOKENS, TOKENS), -1e9, np.float32), 1)

        def call() -> Array:
            x = p["wte"][tokens[0]] + p["wpe"][:TOKENS]
            for w in p["layers"]:
                x = self._layer(x, w, mask, None)
            return layer_norm(x, p["lnf_g"], p["lnf_b"]) @ p["wte"].T

        return Run(call, lambda y: [y[None]])

    def gpt_decode(self, p: dict[str, Any], token: Array, cache: Array) -> Run:
        caches = cache.copy()

        def call() -> Array:
            x = p["wte"][token[0]] + p["wpe"][TOKENS - 1 : TOKENS]
            for w, c in zip(p["layers"], caches, strict=True):
                x = self._layer(x, w, None, c)
            return layer_norm(x, p["lnf_g"], p["lnf_b"]) @ p["wte"].T

        return Run(call, lambda y: [y[None]])

    def lazy_adds(self, x: Array) -> Run:
        one = np.float32(1)

        def call() -> Array:
            y = x
            for _ in range(10_000):
                y = y + one
            return y

        return Run(call)


class _Adam:
    """Adam with learning rate 1e-3 (Kingma & Ba 2015), in place."""

    def __init__(self, parameters: list[Array]) -> None:
        self.parameters, self.count = parameters, 0
        self.first = [np.zeros_like(p) for p in parameters]
        self.second = [np.zeros_like(p) for p in parameters]

    def step(self, gradients: list[Array]) -> None:
        f32 = np.float32
        self.count += 1
        rate, scale = f32(1e-3 / (1 - 0.9**self.count)), f32(1 / (1 - 0.999**self.count))
        for p, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
            m *= f32(0.9)
            m += f32(0.1) * g
            v *= f32(0.999)
            v += f32(0.001) * g * g
            p -= rate * m / (np.sqrt(v * scale) + f32(1e-8))
