"""Layers of random sizes, with their gradients, on the whole path against the reference: tiles, remainders, threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

import weft
import weft.nn.functional as F
from weft import Tensor, nn
from weft.testing.reference import evaluate
from weft.testing.strategies import choice
from weft.testing.tolerance import allowed, difference

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))
SIZES = (3, 1, 2, 5, 8, 16, 17, 31, 33, 64, 65, 100, 129, 200)
SMALL = SIZES[:7]


class Maker:
    """Draws sizes and tensors, and remembers the tensors that gradients are asked for."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.rng = np.random.default_rng(draw(st.integers(0, 1000)))
        self.dtype = draw(choice([weft.float32, weft.float32, weft.float64, weft.float16, weft.bfloat16]))
        self.leaves: list[Tensor] = []

    def size(self, sizes: Sequence[int] = SIZES) -> int:
        return self.draw(choice(sizes))

    def flag(self) -> bool:
        return self.draw(st.booleans())

    def tensor(self, *shape: int, scale: float = 1.0) -> Tensor:
        t = weft.tensor((self.rng.standard_normal(shape) * scale).astype(np.float32), dtype=self.dtype)
        self.leaves.append(t.requires_grad_())
        return t

    def classes(self, n: int, *shape: int) -> Tensor:
        return weft.tensor(self.rng.integers(0, n, shape))

    def fits(self, work: int) -> None:
        assume(work <= 400_000)


def activation(m: Maker, x: Tensor) -> Tensor:
    return m.draw(choice([lambda t: t, F.relu, F.gelu, F.silu, torch_like_tanh]))(x)


def torch_like_tanh(x: Tensor) -> Tensor:
    return x.tanh()


def matmul(m: Maker) -> Tensor:
    a, k, n = m.size(), m.size(), m.size()
    m.fits(a * k * n)
    x = m.tensor(k, a).T if m.flag() else m.tensor(a, k)
    w = m.tensor(n, k).T if m.flag() else m.tensor(k, n)
    y = x @ w
    return activation(m, y + m.tensor(n) if m.flag() else y)


def perceptron(m: Maker) -> Tensor:
    rows, a, b, c = m.size(), m.size(), m.size(), m.size()
    m.fits(rows * (a * b + b * c))
    return F.linear(activation(m, F.linear(m.tensor(rows, a), m.tensor(b, a), m.tensor(b))), m.tensor(c, b))


def batched_matmul(m: Maker) -> Tensor:
    n, a, k, b = m.size(SMALL), m.size(SMALL), m.size(), m.size(SMALL)
    m.fits(n * a * k * b)
    return m.tensor(n, a, k) @ (m.tensor(k, b) if m.flag() else m.tensor(n, k, b))


def attention(m: Maker) -> Tensor:
    n, h, t, s, d = m.size(SMALL[:3]), m.size(SMALL[:3]), m.size(), m.size(), m.size(SMALL)
    m.fits(n * h * t * s * d)
    q, k, v = m.tensor(n, h, t, d), m.tensor(n, h, s, d), m.tensor(n, h, s, d)
    if m.flag():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    mask = m.rng.random((t, s)) < 0.7
    mask[:, 0] = True
    return F.scaled_dot_product_attention(q, k, v, attn_mask=weft.tensor(mask) if m.flag() else None)


def convolution(m: Maker) -> Tensor:
    n, c, o, groups = m.size(SMALL[:3]), m.size(SMALL[:5]), m.size(SMALL), m.draw(choice([1, 1, 2]))
    h, w, k = m.size(SIZES[:9]), m.size(SIZES[:9]), m.draw(choice([1, 3, 2, 5]))
    stride, dilation = m.draw(choice([1, 2, 3])), m.draw(choice([1, 2]))
    padding = m.draw(choice([0, 1, 2]))
    assume(min(h, w) + 2 * padding > dilation * (k - 1))
    m.fits(n * c * o * h * w * k * k)
    x, weight = m.tensor(n, c * groups, h, w), m.tensor(o * groups, c, k, k)
    y = F.conv2d(x, weight, m.tensor(o * groups), stride, padding, dilation, groups)
    return activation(m, y)


def pooling(m: Maker) -> Tensor:
    n, c, h, w = m.size(SMALL[:3]), m.size(SMALL), m.size(SIZES[:9]), m.size(SIZES[:9])
    kernel = m.draw(choice([2, 3]))
    assume(min(h, w) >= kernel)
    x = m.tensor(n, c, h, w)
    pool = m.draw(choice([F.max_pool2d, F.avg_pool2d]))
    return pool(x, kernel, m.draw(choice([1, 2, 3])), padding=m.draw(choice([0, 1])))


def normalization(m: Maker) -> Tensor:
    n, c, length = m.size(), m.size(), m.size(SMALL)
    m.fits(n * c * length)
    x = m.tensor(n, c, length)
    kind = m.draw(choice(["layer", "rms", "batch", "group"]))
    assume(kind != "batch" or n * length > 1)
    if kind == "layer":
        return F.layer_norm(x, (c, length), m.tensor(c, length), m.tensor(c, length))
    if kind == "rms":
        return F.rms_norm(x, (length,), m.tensor(length), 1e-3)
    if kind == "batch":
        return F.batch_norm(x, None, None, m.tensor(c), m.tensor(c), training=True, eps=1e-2)
    return F.group_norm(x, c if m.flag() else 1, m.tensor(c), m.tensor(c), eps=1e-2)


def classification(m: Maker) -> Tensor:
    n, c = m.size(), m.size()
    x = m.tensor(n, c, scale=3.0)
    if m.flag():
        return F.softmax(x, m.draw(choice([1, 0])))
    return F.cross_entropy(x, m.classes(c, n), label_smoothing=m.draw(choice([0.0, 0.1])))


def table(m: Maker) -> Tensor:
    rows, dim, n = m.size(), m.size(SMALL), m.size()
    weight = m.tensor(rows, dim)
    return F.embedding(m.classes(rows, n), weight).cumsum(0) if m.flag() else weight[m.classes(rows, n), 0]


def statistics(m: Maker) -> Tensor:
    shape = (m.size(SMALL), m.size(), m.size(SMALL))
    x = m.tensor(*shape)
    dim = m.draw(choice([1, (0, 2), 2, 0, (0, 1, 2)]))
    kind = m.draw(choice(["mean", "var", "logsumexp", "amax"]))
    return x.var(dim, correction=0) if kind == "var" else getattr(x, kind)(dim)


LAYERS: dict[str, Callable[[Maker], Tensor]] = {
    f.__name__: f
    for f in (matmul, perceptron, batched_matmul, attention, convolution, pooling, normalization, classification,
              table, statistics)
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers_compute_what_the_reference_does(name: str) -> None:
    @settings(
        max_examples=max(12, EXAMPLES // 20),  # each takes as long as twenty small programs
        derandomize=not EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(st.data())
    def compare(data: st.DataObject) -> None:
        m = Maker(lambda strategy: data.draw(strategy))
        y = LAYERS[name](m)
        note(f"{m.dtype}: {[t.shape for t in m.leaves]} -> {y.shape}")
        weights = weft.tensor(m.rng.standard_normal(y.shape).astype(np.float32), dtype=m.dtype)
        (y * weights).sum().backward()
        outputs = [y, *(t.grad for t in m.leaves if t.grad is not None)]
        nodes = [t.value.node for t in outputs]
        want, bounds = evaluate(nodes), allowed(nodes)
        weft.realize(*outputs)
        for k, (t, w, bound) in enumerate(zip(outputs, want, bounds, strict=True)):
            wrong = difference(t.numpy(), w, bound)
            assert wrong is None, f"{'gradient' if k else 'result'} {k}: {wrong}"

    compare()


def test_a_model_trains_the_same_eagerly_and_compiled() -> None:
    def losses(compiled: bool) -> list[float]:
        weft.manual_seed(3)
        model = nn.Sequential(
            nn.Linear(9, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Dropout(0.2), nn.Linear(33, 4)
        )
        optimizer = weft.optim.Adam(model.parameters(), lr=0.01)
        rng = np.random.default_rng(0)
        x, y = (
            weft.tensor(rng.standard_normal((20, 9)).astype(np.float32)),
            weft.tensor(rng.integers(0, 4, 20)),
        )

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = weft.compile(step) if compiled else step
        return [run(x, y).item() for _ in range(5)]

    np.testing.assert_allclose(losses(False), losses(True), rtol=1e-4)
