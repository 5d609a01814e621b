"""What is measured, as data: inputs, the operations and bytes that a run cannot avoid, and whom it is compared with.

Inputs are NumPy arrays, the same for every framework. A workload's `kind` names the method that frameworks have for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.inference import LEARNED, NETS
from benchmarks.networks import (
    depthwise,
    depthwise_parameters,
    residual,
    residual_parameters,
    step_flops,
)
from benchmarks.shapes import PRODUCTS, Product

Array = np.ndarray[Any, Any]
Inputs = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """`flops` operations, `read` and `written` bytes per run, which consists of `calls` operations of interest.

    `goal`: what weft's time over the best peer's shall be at most. `peers`: the frameworks that count as such, all if
    empty. `tolerance`: of results, relative to the largest magnitude.
    """

    name: str
    group: str
    kind: str
    inputs: Callable[[], Inputs]
    flops: float = 0.0
    read: float = 0.0
    written: float = 0.0
    calls: int = 1
    goal: float | None = None
    peers: tuple[str, ...] = ()
    tolerance: float = 1e-4
    fast: bool = False


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    """Standard normal float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) * np.float32(scale)


def block(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    """The same for large tensors, a million numbers over and over: quick to make."""
    few = normal(min(1_000_003, math.prod(shape)), seed=seed, scale=scale)
    return np.resize(few, shape)


@cache
def causal_mask(n: int) -> Array:
    """0 on and below the diagonal, -1e9 above."""
    return np.triu(np.full((n, n), -1e9, np.float32), 1)


# --- networks


def mlp() -> Inputs:
    """Weights (in, out) and biases of 784-512-512-10, a batch of 128 images, labels."""
    sizes = (784, 512, 512, 10)
    rng = np.random.default_rng(5)
    weights = [
        ((rng.random((a, b), np.float32) * 2 - 1) / math.sqrt(a)).astype(np.float32)
        for a, b in pairwise(sizes)
    ]
    biases = [np.zeros(n, np.float32) for n in sizes[1:]]
    return weights, biases, rng.standard_normal((128, 784), np.float32), rng.integers(0, 10, 128)


MLP_FLOPS = 2.0 * 128 * (3 * (784 * 512 + 512 * 512 + 512 * 10) - 784 * 512)
"""Forward, and both gradients but the first layer's of its input."""


def convnet() -> Inputs:
    """Weights of conv 3-32, conv 32-64 (3x3, each followed by relu and 2x2 maxima) and linear 4096-10; a batch of 32
    images of 32x32, labels."""
    shapes = ((32, 3, 3, 3), (64, 32, 3, 3), (10, 4096))
    weights = [normal(*s, seed=k, scale=1 / math.sqrt(math.prod(s[1:]))) for k, s in enumerate(shapes)]
    rng = np.random.default_rng(6)
    return weights, rng.standard_normal((32, 3, 32, 32), np.float32), rng.integers(0, 10, 32)


def lstm(steps: int = 500, n: int = 32, size: int = 256) -> Inputs:
    """Weights of LSTM(size, size) and a linear layer to 10 classes; `steps` steps of n sequences, labels."""
    shapes = ((4 * size, size), (4 * size, size), (4 * size,), (4 * size,), (10, size), (10,))
    weights = [normal(*s, seed=k, scale=1 / math.sqrt(size)) for k, s in enumerate(shapes)]
    return weights, normal(steps, n, size, seed=7), np.random.default_rng(8).integers(0, 10, n)


LSTM_FLOPS = 2.0 * 500 * 32 * 4 * 256 * 256 * (2 + 1 + 2)
"""Two products per step and their weights' gradients, and the gradient of the state."""

CONVNET_FLOPS = 2.0 * 32 * (2 * 32 * 3 * 9 * 1024 + 3 * 64 * 32 * 9 * 256 + 3 * 4096 * 10)


IMAGES = 16
"""A batch for the networks of `benchmarks.networks`."""


def network(parameters: Callable[[], list[Array]], side: int) -> Callable[[], Inputs]:
    """The parameters, square images, labels."""

    def inputs() -> Inputs:
        rng = np.random.default_rng(7)
        x = rng.standard_normal((IMAGES, 3, side, side), np.float32)
        return parameters(), x, rng.integers(0, 10, IMAGES)

    return inputs


RESIDUAL_FLOPS = step_flops(residual, residual_parameters(), IMAGES, 32)
DEPTHWISE_FLOPS = step_flops(depthwise, depthwise_parameters(), IMAGES, 64)


def adam() -> Inputs:
    """Parameters and gradients of an optimizer's step: 4 million numbers in four tensors."""
    return [normal(1024, 1024, seed=k) for k in range(4)], [normal(1024, 1024, seed=9 + k) for k in range(4)]


LAYERS, WIDTH, HEADS, WORDS, TOKENS = 12, 768, 12, 50257, 128
"""GPT-2 small, on 128 tokens."""


@cache
def gpt_parameters() -> dict[str, Any]:
    """Weights as (in, out), drawn with a standard deviation of 0.02."""
    one, zero = (lambda n: np.ones(n, np.float32)), (lambda n: np.zeros(n, np.float32))

    def layer(k: int) -> dict[str, Array]:
        sizes = {
            "qkv": (WIDTH, 3 * WIDTH),
            "o": (WIDTH, WIDTH),
            "fc": (WIDTH, 4 * WIDTH),
            "pr": (4 * WIDTH, WIDTH),
        }
        out = {f"{n}_w": block(*s, seed=10 * k + i, scale=0.02) for i, (n, s) in enumerate(sizes.items())}
        out |= {f"{n}_b": zero(s[1]) for n, s in sizes.items()}
        return out | {"ln1_g": one(WIDTH), "ln1_b": zero(WIDTH), "ln2_g": one(WIDTH), "ln2_b": zero(WIDTH)}

    return {
        "wte": block(WORDS, WIDTH, seed=7, scale=0.02),
        "wpe": block(1024, WIDTH, seed=8, scale=0.02),
        "lnf_g": one(WIDTH),
        "lnf_b": zero(WIDTH),
        "layers": [layer(k) for k in range(LAYERS)],
    }


def gpt_tokens() -> Array:
    """One row of 128 token numbers."""
    return np.random.default_rng(8).integers(0, WORDS, (1, TOKENS))


def gpt_cache() -> Array:
    """Keys and values (layer, 2, batch, head, token, 64) of which the last token's are to be filled in."""
    return block(LAYERS, 2, 1, HEADS, TOKENS, WIDTH // HEADS, seed=9, scale=0.5)


_BLOCKS = LAYERS * (4 * WIDTH * WIDTH + 8 * WIDTH * WIDTH)
_HEAD = WIDTH * WORDS
GPT_BYTES = 4.0 * (_BLOCKS + _HEAD)
GPT_FLOPS = 2.0 * TOKENS * (_BLOCKS + _HEAD) + LAYERS * 4.0 * TOKENS * TOKENS * WIDTH
DECODE_BYTES = GPT_BYTES + 4.0 * LAYERS * 2 * TOKENS * WIDTH

# --- the table

N = 16 << 20
_SIDE = 4096
_CONV = 2.0 * 8 * 64 * 64 * 9 * 56 * 56
_IMAGE, _KERNEL = 4.0 * 8 * 64 * 56 * 56, 4.0 * 64 * 64 * 9
_HEADS = 4.0 * 8 * 1024 * 64


def _matmul(n: int) -> Inputs:
    return normal(n, n), normal(n, n, seed=1)


def _four() -> Inputs:
    return tuple(block(N, seed=k) for k in range(4))


def _square(*axis: int) -> Callable[[], Inputs]:
    return lambda: (block(_SIDE, _SIDE), *axis)


def _qkv() -> Inputs:
    return tuple(normal(1, 8, 1024, 64, seed=k) for k in range(3))


def _images() -> Inputs:
    return normal(8, 64, 56, 56), normal(64, 64, 3, 3, seed=1, scale=0.05)


def _images_and_gradient() -> Inputs:
    return (*_images(), normal(8, 64, 56, 56, seed=2))


def _zeros() -> Inputs:
    return (np.zeros(4, np.float32),)


def _workloads() -> Iterator[Workload]:
    for n in (256, 512, 1024, 2048):
        name, read, fast = f"matmul {n}", 8.0 * n * n, n in (512, 1024)
        yield Workload(
            name,
            "products",
            "matmul",
            lambda n=n: _matmul(n),
            2.0 * n**3,
            read,
            4.0 * n * n,
            goal=1.05,
            fast=fast,
        )
    yield Workload(
        "gemv 4096", "products", "matmul", lambda: (normal(1, _SIDE), normal(_SIDE, _SIDE, seed=1)),
        2.0 * _SIDE**2, 4.0 * _SIDE**2, goal=0.95, fast=True,
    )  # fmt: skip
    yield Workload("chain 16M", "memory", "chain", _four, 5.0 * N, 16.0 * N, 4.0 * N, goal=0.90, fast=True)
    yield Workload("chain 16M, reused", "memory", "chain_reused", _four, 5.0 * N, 16.0 * N, 4.0 * N)
    yield Workload("sum 16M", "memory", "sum", lambda: (block(N),), N, 4.0 * N, goal=1.0, fast=True)
    yield Workload("sum over rows", "memory", "sum", _square(0), N, 4.0 * N, goal=0.80)
    yield Workload("sum over columns", "memory", "sum", _square(1), N, 4.0 * N, goal=1.0)
    yield Workload("softmax 4096", "memory", "softmax", _square(), 0, 4.0 * N, 4.0 * N, goal=0.75, fast=True)
    yield Workload("softmax 4096, reused", "memory", "softmax_reused", _square(), 0, 4.0 * N, 4.0 * N)
    yield Workload(
        "layer norm 4096x1024", "memory", "layer_norm",
        lambda: (normal(_SIDE, 1024), np.ones(1024, np.float32), np.zeros(1024, np.float32)),
        0, N, N, goal=0.80, fast=True,
    )  # fmt: skip
    yield Workload(
        "attention", "attention", "attention", lambda: (*_qkv(), causal_mask(1024)),
        4.0 * 8 * 1024 * 1024 * 64, 3 * _HEADS + 4.0 * 1024 * 1024, _HEADS, goal=0.80, fast=True,
    )  # fmt: skip
    yield Workload(
        "attention, causal", "attention", "causal_attention", _qkv, 2.0 * 8 * 1024 * 1024 * 64, 3 * _HEADS, _HEADS,
        goal=0.60, fast=True,
    )  # fmt: skip
    for layout, suffix in (("NCHW", ""), ("NHWC", "_nhwc")):
        fast = layout == "NCHW"
        yield Workload(
            f"conv2d {layout}", "convolution", f"conv2d{suffix}", _images, _CONV, _IMAGE + _KERNEL, _IMAGE,
            goal=1.05, fast=fast,
        )  # fmt: skip
        yield Workload(
            f"conv2d {layout}, gradients", "convolution", f"conv2d_gradients{suffix}", _images_and_gradient,
            2 * _CONV, 2 * _IMAGE + _KERNEL, _IMAGE + _KERNEL, tolerance=1e-3,
        )  # fmt: skip
    yield Workload(
        "MLP training step", "training", "mlp_step", mlp, MLP_FLOPS, goal=0.85, tolerance=1e-3, fast=True
    )
    yield Workload(
        "convnet training step", "training", "convnet_step", convnet, CONVNET_FLOPS, tolerance=1e-3
    )
    yield Workload(
        "residual network, training step", "training", "residual_step", network(residual_parameters, 32),
        RESIDUAL_FLOPS, tolerance=1e-3,
    )  # fmt: skip
    yield Workload(
        "depthwise network, training step", "training", "depthwise_step", network(depthwise_parameters, 64),
        DEPTHWISE_FLOPS, tolerance=1e-3,
    )  # fmt: skip
    yield Workload("LSTM training step, 500 steps", "training", "lstm_step", lstm, LSTM_FLOPS, tolerance=1e-3)
    yield Workload(
        "Adam step, 4M", "training", "adam_step", adam, 0, 64.0 * 2**20, 48.0 * 2**20, tolerance=1e-3
    )
    yield Workload(
        "GPT-2 small forward, 128", "models", "gpt_forward", lambda: (gpt_parameters(), gpt_tokens()), GPT_FLOPS,
        GPT_BYTES, 4.0 * TOKENS * WORDS, goal=1.0, tolerance=1e-3,
    )  # fmt: skip
    yield Workload(
        "GPT-2 small decode", "models", "gpt_decode",
        lambda: (gpt_parameters(), gpt_tokens()[:, -1:], gpt_cache()), GPT_BYTES / 2, DECODE_BYTES, 4.0 * WORDS,
        goal=0.80, tolerance=1e-3,
    )  # fmt: skip
    jax, torch = ("jax",), ("torch",)
    yield Workload(
        "x+1, 10,000 in one graph", "overhead", "lazy_adds", _zeros, calls=10_000, goal=2.0, peers=torch
    )
    yield Workload("x+1, one at a time", "overhead", "single_adds", _zeros, calls=1000, goal=4.0, peers=jax)
    yield Workload(
        "x+1, compiled", "overhead", "compiled_adds", _zeros, calls=1000, goal=1.0, peers=jax, fast=True
    )
    yield Workload(
        "replay of 100 adds", "overhead", "replayed_adds", _zeros, calls=100, goal=1.0, peers=jax, fast=True
    )
    yield Workload(
        "replay of 100 4x4 products", "overhead", "replayed_products",
        lambda: (normal(4, 4), np.eye(4, dtype=np.float32)), calls=100, goal=1.0, peers=jax, fast=True,
    )  # fmt: skip


WORKLOADS: dict[str, Workload] = {w.name: w for w in _workloads()}
"""By name, in the order of the tables."""


# --- the sweep


def _operands(p: Product) -> Inputs:
    batch = (p.batch,) if p.batch else ()
    a = (*batch, p.k, p.m) if p.a_turned else (*batch, p.m, p.k)
    b = (*batch, p.n, p.k) if p.b_turned else (*batch, p.k, p.n)
    return tuple(_numbers(shape, p.dtype, seed) for seed, shape in enumerate((a, b)))


def _numbers(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    if dtype.startswith("int"):
        return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)
    if dtype == "bfloat16":
        from ml_dtypes import bfloat16

        return normal(*shape, seed=seed).astype(bfloat16)
    return normal(*shape, seed=seed).astype(dtype)


_BYTES = {"float64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
_TOLERANCE = {"bfloat16": 2e-2, "float16": 2e-3}


def _product(p: Product) -> Workload:
    size, out = _BYTES[p.dtype], max(p.batch, 1) * p.m * p.n
    read, written = float(size * (p.elements - out)), float(size * out)
    return Workload(
        p.name, "sweep", "product", lambda: (*_operands(p), p.a_turned, p.b_turned), float(p.flops), read, written,
        goal=1.5, tolerance=_TOLERANCE.get(p.dtype, 1e-4),
    )  # fmt: skip


def _of_models(what: str, group: str, kind: str, flops: float) -> dict[str, Workload]:
    """A workload of each model of `inference.py`, of so many times the operations that one example takes."""
    found = [
        Workload(
            f"{name} {what}",
            group,
            kind,
            lambda name=name: (name,),
            flops * net.flops,
            goal=1.0,
            tolerance=2e-3,
        )
        for name, net in NETS.items()
    ]
    return {w.name: w for w in found}


INFERENCE: dict[str, Workload] = _of_models("inference", "inference", "inference", 1)
"""The models of `inference.py` as workloads, measured when they are asked for."""


TRAINING: dict[str, Workload] = _of_models("training", "networks", "network_step", 3 * LEARNED)
"""Training steps of the same models."""


SWEEP: dict[str, Workload] = {p.name: _product(p) for p in PRODUCTS}
"""The products of `shapes.py` as workloads."""


def workload(name: str) -> Workload:
    """The workload of this name, of any table. KeyError where there is none."""
    return WORKLOADS.get(name) or INFERENCE.get(name) or TRAINING.get(name) or SWEEP[name]
