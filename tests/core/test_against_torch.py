"""Every function beside torch's: values, dtypes and gradients.

Where torch is not installed, beside what it gave when `tests/data/record_torch.py` was last run.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as weft_functional

Expression = Callable[..., Any]
Result = tuple[np.ndarray, list[np.ndarray | None]]
RECORD = Path(__file__).parents[1] / "data" / "torch.npz"


def data(seed: int, *shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Numbers between low and high, none near an integer, where many functions are not smooth."""
    x = np.random.default_rng(seed).uniform(low, high, shape)
    return np.where(np.abs(x - np.rint(x)) < 0.02, x + 0.05, x).astype(np.float32)


X, Y, V = data(0, 3, 4), data(1, 3, 4), data(2, 4)
P, Q = data(3, 3, 4, low=0.1, high=0.9), data(4, 3, 4, low=0.5, high=3.0)
B3 = data(5, 2, 3, 4)
IMAGE, WEIGHT = data(6, 2, 4, 7, 6), data(7, 6, 2, 3, 2)
I = np.array([2, 0, 1, 2])
POINTS = np.array([[0, 3, 1, 1], [2, 2, 0, 3], [1, 0, 3, 2]])
MASK = data(8, 3, 4) > 0

UNARY = [
    "neg",
    "abs",
    "exp",
    "exp2",
    "sin",
    "cos",
    "tanh",
    "erf",
    "sigmoid",
    "square",
    "sign",
    "floor",
    "ceil",
    "trunc",
    "round",
    "frac",
    "expm1",
    "tan",
    "sinh",
    "cosh",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
    "nan_to_num",
    "relu",
]
POSITIVE = ["sqrt", "rsqrt", "log", "log2", "log10", "log1p", "reciprocal"]
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "remainder",
    "fmod",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
    "logical_and",
    "logical_or",
    "logical_xor",
]
ACTIVATIONS = [
    "relu",
    "relu6",
    "hardtanh",
    "leaky_relu",
    "elu",
    "celu",
    "selu",
    "gelu",
    "silu",
    "mish",
    "softplus",
    "logsigmoid",
    "softsign",
    "tanhshrink",
    "hardsigmoid",
    "hardswish",
]


def method(name: str) -> Expression:
    return lambda m, f, *args: getattr(m, name)(*args)


def function(name: str) -> Expression:
    return lambda m, f, *args: getattr(f, name)(*args)


CASES: dict[str, tuple[Expression, tuple[np.ndarray, ...]]] = {
    **{name: (method(name), (X,)) for name in UNARY},
    **{name: (method(name), (Q,)) for name in POSITIVE},
    **{name: (method(name), (X, Q)) for name in BINARY},
    **{f"F.{name}": (function(name), (X * 3,)) for name in ACTIVATIONS},
    "floor_divide": (lambda m, f, x, q: m.floor_divide(x.detach(), q.detach()) + x.detach() // 0.75, (X, Q)),
    "broadcast": (lambda m, f, x, v: x * v + v.unsqueeze(1)[:3] - 1, (X, V)),
    "scalars": (lambda m, f, x: 2 - (3 * x + 1) / 4 + 1 / (x + 9) + 2**x, (X,)),
    "powers": (lambda m, f, x: x**2 + x**3 + x**0.5 + x**-1 + x**-0.5 + x**2.5, (Q,)),
    "pow tensors": (lambda m, f, x, y: x**y, (Q, X)),
    "where": (lambda m, f, x, y, c: m.where(c, x, y) + m.where(c, x, 1.0), (X, Y, MASK)),
    "clamp": (lambda m, f, x: x.clamp(-1, 1) + x.clamp(min=0.5) + m.clamp(x, max=0.25), (X,)),
    "clamp tensors": (lambda m, f, x, y: m.clamp(x, y, y + 1), (X, Y)),
    "lerp": (
        lambda m, f, x, y: m.lerp(x, y, 0.3) + m.addcmul(x, y, y, value=2) + m.addcdiv(x, y, x, value=2),
        (X, Y),
    ),
    "isclose": (lambda m, f, x: m.isclose(x, x + 1e-6), (X,)),
    "round decimals": (lambda m, f, x: m.round(x, decimals=1), (X,)),
    "div trunc": (
        lambda m, f, x, y: m.div(x, y, rounding_mode="trunc") + m.div(x, y, rounding_mode="floor"),
        (X, Q),
    ),
    # reductions
    "sum": (lambda m, f, x: x.sum() + x.sum(0).sum() + x.sum((0, 2), keepdim=True) + x.sum(-1, True), (B3,)),
    "mean": (lambda m, f, x: x.mean() + x.mean((0, 1)) + x.mean(-1, keepdim=True), (B3,)),
    "var": (
        lambda m, f, x: x.var() + x.var(1, keepdim=True) + x.var((0, 2), correction=0, keepdim=True),
        (B3,),
    ),
    "std": (lambda m, f, x: x.std() + x.std(-1, unbiased=False, keepdim=True), (B3,)),
    "prod": (lambda m, f, x: x.prod(1), (B3,)),
    "max": (
        lambda m, f, x: x.max(1).values + x.max() + x.min(1, keepdim=True).values + x.amax((0, 1)) + x.amin(),
        (B3,),
    ),
    "max indices": (lambda m, f, x: x.max(2).indices + x.min(-1)[1] + x.argmax(2) + x.argmin(2), (B3,)),
    "argmax": (lambda m, f, x: x.argmax() + x.argmin() + x.argmax(0, keepdim=True), (X,)),
    "any all": (lambda m, f, x: (x > 1.5).any(1) | (x > -1.5).all(1) | (x > 3).any() | x.bool().all(), (B3,)),
    "logsumexp": (
        lambda m, f, x: x.logsumexp(1) + m.logsumexp(x, (0, 1)) + x.logsumexp(-1, keepdim=True).sum(1),
        (B3,),
    ),
    "norm": (lambda m, f, x: x.norm() + x.norm(1, 0) + x.norm(3, 0) + x.norm(math.inf, 0), (X,)),
    "cumsum": (lambda m, f, x: x.cumsum(1) + x.cumprod(2), (B3,)),
    "count_nonzero": (lambda m, f, x: m.count_nonzero(x > 0) + m.count_nonzero(x > 0, 0), (X,)),
    "var_mean": (lambda m, f, x: m.var_mean(x, 1)[0] + m.var_mean(x, 1)[1] + m.std_mean(x, 1)[0], (X,)),
    # movement
    "reshape": (lambda m, f, x: x.reshape(4, -1) @ x.view(4, 6).t(), (B3,)),
    "permute": (
        lambda m, f, x: x.permute(2, 0, 1) + x.transpose(0, 2).transpose(1, 2) + m.movedim(x, 2, 0),
        (B3,),
    ),
    "T": (lambda m, f, x: x.T @ x + x.mT @ x, (X,)),
    "expand": (lambda m, f, x: x.unsqueeze(1).expand(-1, 5, -1).sum(1) + x[None].expand(2, 3, 4)[1], (X,)),
    "squeeze": (
        lambda m, f, x: x.unsqueeze(0).squeeze() + x.unsqueeze(-1).squeeze(-1) + x[:, None].flatten(0, 1),
        (X,),
    ),
    "flatten": (lambda m, f, x: m.flatten(x, 1) @ x.unflatten(2, (2, -1)).flatten(1).T, (B3,)),
    "flip": (
        lambda m, f, x: x.flip(0, 2) + m.flip(x, (1,)) + x.roll(1, 0) + x.roll((1, -2), (1, 2)) + x.roll(5),
        (B3,),
    ),
    "repeat": (
        lambda m, f, x: x.repeat(2, 1, 3) + m.tile(x, (2, 1, 3)) + x.repeat_interleave(2, 0).repeat(1, 1, 3),
        (B3,),
    ),
    "cat": (
        lambda m, f, x, y: m.cat([x, y, x], 1).sum(1) + m.stack([x, y], 1)[:, 0, 0] + m.cat((x, y))[3, 1:],
        (X, X),
    ),
    "split": (
        lambda m, f, x: (
            x.split(3, 1)[1] + x.split([1, 3], 1)[0] + x.chunk(3, 1)[0][:, :1] + x.unbind(1)[2][:, None]
        ),
        (X,),
    ),
    "narrow": (lambda m, f, x: x.narrow(1, 1, 2) + x.select(1, 2)[:, None], (X,)),
    "unfold": (lambda m, f, x: x.unfold(1, 3, 1).sum(-1), (X,)),
    "tril": (lambda m, f, x: x.tril() + x.triu(1) + m.tril(x, -1) + m.triu(x, -2), (B3,)),
    "diagonal": (
        lambda m, f, x: x.diagonal().sum() + x.diagonal(1).sum() + m.diagonal(x, -1, 0, 1).sum(),
        (X,),
    ),
    "diag": (lambda m, f, v: m.diag(v) + m.diag(m.diag(v, 2), -1).sum() + m.diag(v, -3)[3:, :4], (V,)),
    "meshgrid": (
        lambda m, f, v: m.meshgrid(v, v * 2, indexing="ij")[0] * m.meshgrid(v, v * 2, indexing="xy")[0],
        (V,),
    ),
    "pad": (lambda m, f, x: f.pad(x, (1, 2, 0, 1), value=3.0) + f.pad(x, (2, 1, -1, 2)), (B3,)),
    "pad modes": (
        lambda m, f, x: (
            f.pad(x, (2, 1), mode="reflect")
            + f.pad(x, (2, 1), mode="replicate")
            + f.pad(x, (2, 1), mode="circular")
        ),
        (B3,),
    ),
    # indexing
    "basic": (
        lambda m, f, x: x[1] + x[:, 2:, ::2].sum() + x[..., -1][:, :, None][0] + x[0, 1:2, 1:].sum(),
        (B3,),
    ),
    "index tensor": (lambda m, f, x, i: x[:, :, i] + x[i % 2][0][:, i] + x[0, 1, i], (B3, I)),
    "index two": (lambda m, f, x, i: x[i % 2, i % 3] + x[i % 2, :, i][:, :1] + x[:, i % 3, i][0], (B3, I)),
    "index after number": (
        lambda m, f, x, i: x[1, :, i] + x[i % 2, 0, i].sum() + x[i % 2, 1:, None, i][..., 0, 0].sum(),
        (B3, I),
    ),
    "index lists": (lambda m, f, x: x[:, [0, 2]][:, :, [1, -1]] + x[[[0], [1]], [0, 2]][:, :, :2], (B3,)),
    "index mask": (lambda m, f, x, c: x[c] + x[x[:, 0] > -9][c] + m.masked_select(x, c), (X, MASK)),
    "gather": (
        lambda m, f, x, p: x.gather(1, p) + m.take_along_dim(x, p, 1) + x.gather(0, p % 3),
        (X, POINTS),
    ),
    "index_select": (lambda m, f, x, i: x.index_select(1, i) + m.take(x, i), (X, I)),
    "scatter": (
        lambda m, f, x, p, y: x.scatter(0, p[:1], y[:1]) + x.scatter_add(1, p, y) + x.scatter(0, p[:1], 2.0),
        (X, POINTS % 3, Y),
    ),
    "scatter_reduce": (
        lambda m, f, x, p, y: sum(
            x.scatter_reduce(1, p, y, r, include_self=s)
            for r in ("sum", "amax", "amin", "mean")
            for s in (True, False)
        ),
        (X, POINTS, Y),
    ),
    "index_add": (
        lambda m, f, x, i, y: (
            x.index_add(1, i, y) + x.index_copy(1, i[:2], y[:, :2]) + x.index_fill(1, i, 7.0)
        ),
        (X, I, Y),
    ),
    "masked_fill": (lambda m, f, x, c: x.masked_fill(c, -1.0), (X, MASK)),
    "one_hot": (lambda m, f, i: f.one_hot(i, 5) + f.one_hot(i, 5).sum(), (I,)),
    # products
    "matmul": (lambda m, f, x, y: x @ y.T, (X, Y)),
    "matmul ranks": (
        lambda m, f, b, x, v: (
            (b @ x.T).sum() + (b @ v).sum() + (v @ x.T).sum() + v @ v + (b[:, None] @ b.mT).sum()
        ),
        (B3, X, V),
    ),
    "mm": (
        lambda m, f, x, y, v: m.mm(x, y.T) + m.mv(x, v)[:, None] + m.dot(v, v) + m.outer(v, v)[:3, :3],
        (X, Y, V),
    ),
    "addmm": (
        lambda m, f, x, b: m.addmm(x[:, :3], x, x.T, beta=2, alpha=0.5) + m.baddbmm(b[:, :, :3], b, b.mT)[0],
        (X, B3),
    ),
    "tensordot": (
        lambda m, f, b: m.tensordot(b, b, dims=2 - 2).sum() + m.tensordot(b, b, dims=([0, 1], [0, 1])),
        (B3,),
    ),
    "einsum": (
        lambda m, f, b, x, v: (
            m.einsum("bij,kj->bik", b, x)
            + m.einsum("bij,bkj->bik", b, b)
            + m.einsum("...j,kj", b, x)
            + m.einsum("bij,ij,j->bi", b, x, v)[..., None]
            + m.einsum("ii->", x[:, :3])
            + m.einsum("ii->i", x[:, :3])
            + m.einsum("ij->ji", x[:, :3])
        ),
        (B3, X, V),
    ),
    # functional
    "softmax": (
        lambda m, f, b: b.softmax(-1) + f.softmax(b, 1) + f.log_softmax(b, 0) + f.softmin(b, -1),
        (B3,),
    ),
    "gelu tanh": (lambda m, f, x: f.gelu(x, approximate="tanh"), (X,)),
    "prelu": (lambda m, f, x, v: f.prelu(x, v) + f.prelu(x, v[:1]), (X, V)),
    "glu": (lambda m, f, x: f.glu(x, -1), (X,)),
    "softplus beta": (lambda m, f, x: f.softplus(x * 30, beta=2.0, threshold=5.0), (X,)),
    "layer_norm": (lambda m, f, b, v: f.layer_norm(b, (4,), v, v) + f.layer_norm(b, (3, 4)), (B3, V)),
    "rms_norm": (lambda m, f, b, v: f.rms_norm(b, (4,), v) + f.rms_norm(b, (4,), eps=0.1), (B3, V)),
    "group_norm": (lambda m, f, x, v: f.group_norm(x, 2, v, v) + f.instance_norm(x), (IMAGE, V)),
    "batch_norm": (
        lambda m, f, x, v: (
            f.batch_norm(x, (v * 0).detach(), (v * v).detach(), v, v)
            + f.batch_norm(x, None, None, v, v, training=True)
        ),
        (IMAGE, V),
    ),
    "normalize": (lambda m, f, x: f.normalize(x) + f.normalize(x, 1.0, 0), (X,)),
    "linear": (lambda m, f, b, x, v: f.linear(b, x, v[:3]) + f.linear(b, x), (B3, X, V)),
    "bilinear": (lambda m, f, x, y, b: f.bilinear(x, y[:, :3], b.transpose(1, 2)), (X, Y, B3)),
    "conv2d": (
        lambda m, f, x, w, v: (
            f.conv2d(x, w, groups=2).sum((2, 3))
            + f.conv2d(x, w, v.repeat(2)[:6], padding=1, groups=2)[:, :, 0, 0]
            + f.conv2d(x, w, stride=(2, 1), padding=(1, 0), dilation=(2, 3), groups=2)[:, :, 0, 0]
            + f.conv2d(x, w[:, :, :, :1], padding="same", groups=2)[:, :, 3, 2]
            + f.conv2d(x[0], w, groups=2)[:, 0, 0]
        ),
        (IMAGE, WEIGHT, V),
    ),
    "conv1d": (
        lambda m, f, b, w: f.conv1d(b, w.unsqueeze(0).expand(2, 3, 4)[:, :, :2], padding=1, stride=2),
        (B3, X),
    ),
    "conv3d": (lambda m, f, x, w: f.conv3d(x[:, None], w[:1, :1, None], padding=(1, 1, 0)), (IMAGE, WEIGHT)),
    "conv_transpose2d": (
        lambda m, f, x, w: (
            f.conv_transpose2d(x, w[:4], groups=2).sum((2, 3))
            + f.conv_transpose2d(x, w[:4], stride=2, padding=1, output_padding=1, dilation=2, groups=2)[
                :, :, 5, 4
            ]
        ),
        (IMAGE, WEIGHT),
    ),
    "conv_transpose1d": (lambda m, f, b, w: f.conv_transpose1d(b, w.unsqueeze(1), stride=3), (B3, X)),
    # kernels shorter than the stride, no multiple of it, and elements that no window reaches
    "convolutions with strides": (
        lambda m, f, x, w: (
            f.conv_transpose2d(x, w[:4], stride=(3, 2), padding=1, output_padding=(2, 1), groups=2)
            .square()
            .sum((2, 3))
            + f.conv_transpose2d(x, w[:4, :, :1, :2], stride=(2, 2), groups=2).square().sum((2, 3))
            + f.conv2d(x, w[:4, :, :, :1], stride=(3, 2), padding=1, groups=2).square().sum((2, 3))
        ),
        (IMAGE, WEIGHT),
    ),
    "max_pool2d": (
        lambda m, f, x: (
            f.max_pool2d(x, 2)[:, :, 0].sum()
            + f.max_pool2d(x, (3, 2), stride=2, padding=1).sum()
            + f.max_pool2d(x, 3, 2, ceil_mode=True)
            + f.max_pool2d(x, 2, dilation=2, stride=3)[:, :, :1, :1]
        ),
        (IMAGE,),
    ),
    "avg_pool2d": (
        lambda m, f, x: (
            f.avg_pool2d(x, 2)[:, :, 0].sum()
            + f.avg_pool2d(x, 3, 2, 1).sum()
            + f.avg_pool2d(x, 3, 2, ceil_mode=True)
            + f.avg_pool2d(x, 3, 2, 1, count_include_pad=False).sum()
            + f.avg_pool2d(x, 3, divisor_override=2).sum()
            + f.avg_pool2d(x, 3, 2, 1, ceil_mode=True).sum()
        ),
        (IMAGE,),
    ),
    "pool1d": (lambda m, f, b: f.max_pool1d(b, 2) + f.avg_pool1d(b, 2), (B3,)),
    "pool3d": (lambda m, f, x: f.max_pool3d(x, 2) + f.avg_pool3d(x, 2), (IMAGE,)),
    "adaptive": (
        lambda m, f, x: (
            f.adaptive_avg_pool2d(x, (3, 4)).sum()
            + f.adaptive_avg_pool2d(x, 1)
            + f.adaptive_max_pool2d(x, (5, None)).sum()
            + f.adaptive_avg_pool1d(x[0], 2).sum()
            + f.adaptive_max_pool1d(x[0], 4).sum()
        ),
        (IMAGE,),
    ),
    "interpolate": (
        lambda m, f, x: (
            f.interpolate(x, scale_factor=2)
            + f.interpolate(x, size=(14, 12), mode="bilinear")
            + f.interpolate(x, (14, 12), mode="bilinear", align_corners=True)
            + f.interpolate(x, scale_factor=(2.0, 2.0), mode="bilinear")
        ),
        (IMAGE,),
    ),
    "pixel_shuffle": (
        lambda m, f, x: f.pixel_shuffle(x, 2).sum((1, 2, 3)) + f.pixel_unshuffle(x[:, :, :6], 2)[:, 3, 1, 2],
        (IMAGE,),
    ),
    "F.unfold": (lambda m, f, x: f.unfold(x, (3, 2), padding=1, stride=2), (IMAGE,)),
    "embedding": (lambda m, f, x, p: f.embedding(p % 3, x, padding_idx=1), (X, POINTS)),
    "attention": (
        lambda m, f, b: (
            f.scaled_dot_product_attention(b, b * 2, b + 1)
            + f.scaled_dot_product_attention(b, b, b, is_causal=True)
        ),
        (B3,),
    ),
    "attention mask": (
        lambda m, f, b, c: (
            f.scaled_dot_product_attention(b, b, b, attn_mask=c[:, :3] | m.eye(3).bool(), scale=0.3)
            + f.scaled_dot_product_attention(b, b, b, attn_mask=b[0, :, :3])
        ),
        (B3, MASK),
    ),
    "attention gqa": (
        lambda m, f, b: f.scaled_dot_product_attention(
            b.repeat(2, 1, 1)[None], b[None], b[None], enable_gqa=True
        ),
        (B3,),
    ),
    "cross_entropy": (
        lambda m, f, x, i: (
            f.cross_entropy(x, i[:3])
            + f.cross_entropy(x, i[:3], label_smoothing=0.1, reduction="sum")
            + f.cross_entropy(x, i[:3], reduction="none")
            + f.cross_entropy(x, i[:3], ignore_index=2)
            + f.cross_entropy(x[0], i[0])
        ),
        (X, I),
    ),
    "cross_entropy weights": (
        lambda m, f, x, i, q: (
            f.cross_entropy(x, i[:3], weight=q[0].detach())
            + f.cross_entropy(x, i[:3], q[0].detach(), ignore_index=2, label_smoothing=0.2)
            + f.cross_entropy(x, i[:3], q[0].detach(), reduction="none", label_smoothing=0.2)
            + f.cross_entropy(x, x.softmax(-1).detach(), q[0].detach())
        ),
        (X, I, Q),
    ),
    "cross_entropy soft": (
        lambda m, f, x, q: (
            f.cross_entropy(x, q) + f.cross_entropy(x, q, label_smoothing=0.1, reduction="sum")
        ),
        (X, P),
    ),
    "cross_entropy images": (lambda m, f, b, i: f.cross_entropy(b, i.unsqueeze(0).expand(2, 4)), (B3, I)),
    "nll_loss": (
        lambda m, f, x, i, q: (
            f.nll_loss(x, i[:3])
            + f.nll_loss(x, i[:3], q[0].detach())
            + f.nll_loss(x, i[:3], q[0].detach(), ignore_index=1, reduction="sum")
        ),
        (X, I, Q),
    ),
    "mse_loss": (
        lambda m, f, x, y: (
            f.mse_loss(x, y)
            + f.mse_loss(x, y, reduction="sum")
            + f.l1_loss(x, y)
            + f.mse_loss(x, y, reduction="none")
        ),
        (X, Y),
    ),
    "huber": (lambda m, f, x, y: f.huber_loss(x, y, delta=0.7) + f.smooth_l1_loss(x, y, beta=0.5), (X, Y)),
    "bce": (
        lambda m, f, p, c: (
            f.binary_cross_entropy(p, c.float())
            + f.binary_cross_entropy(p, c.float(), p.detach(), reduction="sum")
        ),
        (P, MASK),
    ),
    "bce logits": (
        lambda m, f, x, c, v: (
            f.binary_cross_entropy_with_logits(x * 9, c.float())
            + f.binary_cross_entropy_with_logits(x, c.float(), pos_weight=(v * v).detach(), reduction="none")
        ),
        (X, MASK, V),
    ),
    "kl_div": (
        lambda m, f, x, p: (
            f.kl_div(x, p, reduction="batchmean") + f.kl_div(x, x * 2, log_target=True, reduction="sum")
        ),
        (X, P),
    ),
    "cosine": (lambda m, f, x, y: f.cosine_similarity(x, y) + f.cosine_similarity(x, y, dim=0).sum(), (X, Y)),
}


def compute(name: str, m: Any, f: Any, make: Callable[[np.ndarray], Any]) -> tuple[Any, list[Any]]:
    """The value of a case, and the gradient of each of its arrays (none if the value has none)."""
    expression, arrays = CASES[name]
    args = [make(a) for a in arrays]
    for x, a in zip(args, arrays, strict=True):
        if a.dtype.kind == "f":
            x.requires_grad_()
    out = expression(m, f, *args)
    grads: list[Any] = []
    if out.requires_grad:
        weights = make(np.random.default_rng(9).standard_normal(tuple(out.shape)).astype(np.float32))
        (out * weights).sum().backward()
        grads = [x.grad for x in args]
    return out.detach(), grads


def by_torch(name: str) -> Result:
    """What torch gives now."""
    import torch

    out, grads = compute(name, torch, torch.nn.functional, lambda a: torch.from_numpy(a.copy()))
    return out.numpy(), [None if g is None else g.numpy() for g in grads]


@cache
def recorded() -> dict[str, np.ndarray]:
    with np.load(RECORD) as file:
        return dict(file)


def by_record(name: str) -> Result:
    """What torch gave."""
    found = recorded()
    some = [k for k in range(len(CASES[name][1])) if f"{name}/{k}" in found]
    return found[name], [found.get(f"{name}/{k}") for k in range(len(CASES[name][1]))] if some else []


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_case(name: str, engine: str, request: pytest.FixtureRequest) -> None:
    if engine == "reference":
        request.getfixturevalue("reference")
    expected, expected_grads = (by_torch if importlib.util.find_spec("torch") else by_record)(name)
    got, grads = compute(name, weft, weft_functional, weft.tensor)
    assert got.shape == expected.shape
    assert got.dtype.name == expected.dtype.name
    np.testing.assert_allclose(got.numpy(), expected, rtol=2e-5, atol=1e-5)
    assert bool(grads) == bool(expected_grads)
    for g, e in zip(grads, expected_grads, strict=True):
        if e is None:
            assert g is None or not g.numpy().any()
        else:
            found = np.zeros(e.shape, np.float32) if g is None else g.numpy()
            np.testing.assert_allclose(found, e, rtol=2e-4, atol=2e-5)


def test_degrees_and_radians() -> None:
    x = np.array([-400.0, -1.0, 0.0, 0.5, 90.0], np.float32)
    np.testing.assert_allclose(weft.rad2deg(weft.tensor(x)).numpy(), np.degrees(x), rtol=1e-6)
    np.testing.assert_allclose(weft.deg2rad(weft.tensor(x)).numpy(), np.radians(x), rtol=1e-6)


@pytest.mark.parametrize("index", [3, -4])
def test_indices_just_outside_are_refused(index: int) -> None:
    with pytest.raises(IndexError, match=rf"gather: index {index} is out of range for dimension 0 of size 3"):
        weft.gather(weft.ones(3), 0, weft.tensor([index]))
