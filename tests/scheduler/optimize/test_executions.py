"""No schedule computes much more than its algorithm states: a wrong place for a value gives right results, late."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings

import weft
import weft.nn.functional as F
from weft.autograd.value import Value
from weft.backends.protocol import DeviceInfo
from weft.core.args.handle import wrap
from weft.ir.dtypes import DType, bfloat16, float32, int64
from weft.ir.graph import Node, buffer
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import initial
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.scheduler.kernelize.kernels import kernelize_all
from weft.scheduler.kernelize.spec import KernelSpec, ScanSpec
from weft.scheduler.optimize.rules import schedule
from weft.testing.executions import executed, stated
from weft.testing.kernels import matmul, softmax
from weft.testing.programs import GraphProgram, numpy_leaf
from weft.testing.strategies import programs, reduction_programs

MOST = 4.0
"""Times what is stated."""

SPARE = 20_000
"""Executions beyond that: lanes that are not full, and tiles, of small kernels."""

INFO = DeviceInfo(
    name="test:0", kind="test", description="", cores=2, vector_bytes=64, vector_registers=32,
    l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20, memory_bytes=1 << 34, local_bytes=1 << 20,
    bandwidth=4e10, flops=2e11, launch_ns=20.0,
)  # fmt: skip


def leaf(*shape: int, dtype: DType = float32, grad: bool = False) -> weft.Tensor:
    """A tensor of which only shape and place are known."""
    return wrap(Value(buffer(shape, dtype, "cpu:0", None))).requires_grad_(grad)


def grads(f: Callable[..., weft.Tensor], *shapes: tuple[int, ...]) -> list[weft.Tensor]:
    """The gradients of the sum of f's squares."""
    xs = [leaf(*s, grad=True) for s in shapes]
    f(*xs).square().sum().backward()
    return [x.grad for x in xs if x.grad is not None]


def adam() -> list[weft.Tensor]:
    p, g, m, v = (leaf(512, 512) for _ in range(4))
    m, v = m * 0.9 + g * 0.1, v * 0.99 + g * g * 0.01
    return [m, v, p - 1e-3 * m / (v.sqrt() + 1e-8)]


X4 = (8, 64, 28, 28)
GRAPHS: dict[str, Callable[[], Sequence[weft.Tensor]]] = {
    "products": lambda: [
        leaf(m, k) @ leaf(k, n) for m, n, k in [(512, 512, 512), (1, 4096, 4096), (31, 37, 41)]
    ],
    "turned": lambda: [
        leaf(k, m).T @ leaf(k, n) for m, n, k in [(64, 64, 100_000), (768, 768, 8192), (10, 1, 9999)]
    ],
    "batches": lambda: [
        leaf(96, 50, 50) @ leaf(96, 50, 50),
        leaf(4096, 16, 16, dtype=bfloat16) @ leaf(16, 16, dtype=bfloat16),
    ],
    "chain": lambda: [((leaf(1 << 24) * leaf(1 << 24) + 1).relu() * 0.5 - 1).exp()],
    "sums": lambda: [
        f(leaf(4096, 4096))
        for f in (lambda x: x.sum(), lambda x: x.sum(0), lambda x: x.sum(1), lambda x: x.var())
    ],
    "middle": lambda: [leaf(64, 512, 512).mean(1), leaf(64, 512, 512).sum((0, 2)), leaf(2000, 8).amax(-1)],
    "rows": lambda: [
        leaf(4096, 1000).softmax(-1),
        F.layer_norm(leaf(4096, 1024), (1024,)),
        leaf(512, 50257).log_softmax(-1),
    ],
    "rows, gradients": lambda: grads(
        lambda x, w, b: F.layer_norm(x.softmax(-1), (1024,), w, b), (512, 1024), (1024,), (1024,)
    ),
    "columns": lambda: [leaf(4096, 1024).softmax(0), leaf(4096, 1024).std(0)],
    "scans": lambda: [
        leaf(64, 4096).cumsum(1),
        leaf(4096, 64).cumsum(0),
        leaf(64, 1000).cumprod(1),
        leaf(64, 1000).logcumsumexp(1),
    ],
    "extrema": lambda: [leaf(64, 1000).cummax(1)[1], leaf(512, 512).argmax(1), leaf(64, 1000).topk(10)[0]],
    "attention": lambda: [
        F.scaled_dot_product_attention(leaf(8, 512, 64), leaf(8, 512, 64), leaf(8, 512, 64))
    ],
    "attention, gradients": lambda: grads(F.scaled_dot_product_attention, *[(8, 256, 64)] * 3),
    "causal": lambda: grads(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *[(8, 256, 64)] * 3
    ),
    "convolution": lambda: grads(lambda x, w: F.conv2d(x, w, padding=1), X4, (64, 64, 3, 3)),
    "strided": lambda: grads(lambda x, w: F.conv2d(x, w, padding=1, stride=2), X4, (128, 64, 3, 3)),
    "grouped": lambda: grads(lambda x, w: F.conv2d(x, w, padding=1, groups=8), X4, (64, 8, 3, 3)),
    "depthwise": lambda: grads(lambda x, w: F.conv2d(x, w, padding=2, groups=64), X4, (64, 1, 5, 5)),
    "first layer": lambda: grads(
        lambda x, w: F.conv2d(x, w, padding=3, stride=2), (4, 3, 112, 112), (64, 3, 7, 7)
    ),
    "lines": lambda: grads(lambda x, w: F.conv1d(x, w, padding=2), (4, 32, 1000), (32, 32, 5)),
    "transposed": lambda: grads(
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), X4, (64, 32, 4, 4)
    ),
    "norms": lambda: (
        grads(lambda x: F.batch_norm(x, None, None, training=True), X4)
        + grads(lambda x, w, b: F.group_norm(x, 8, w, b).relu(), X4, (64,), (64,))
    ),
    "pooling": lambda: (
        grads(lambda x: F.max_pool2d(x, 3, 2, 1), X4) + grads(lambda x: F.avg_pool2d(x, 2), X4)
    ),
    "resized": lambda: grads(lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), X4),
    "words": lambda: [
        F.cross_entropy(leaf(512, 50257), leaf(512, dtype=int64)),
        F.embedding(leaf(512, dtype=int64), leaf(50257, 256)),
    ],
    "moved": lambda: [
        leaf(1000, 1001).T.contiguous(),
        weft.cat([leaf(64, 32), leaf(64, 16)], 1),
        leaf(64, 4096)[:, ::2] + 1,
    ],
    "adam": adam,
}


def algorithms(nodes: Sequence[Node]) -> Iterator[Algorithm]:
    """Of all kernels, those of loops' steps as well."""
    todo: list[KernelSpec | ScanSpec] = list(kernelize_all(nodes))
    while todo:
        spec = todo.pop()
        if isinstance(spec, ScanSpec):
            todo += [step.spec for step in spec.body.steps]
        else:
            yield spec.algorithm


def excess(a: Algorithm) -> float:
    """Times what is stated that the chosen schedule executes, beyond the spare."""
    return (executed(lower(schedule(a, INFO))) - SPARE) / stated(a)


@pytest.mark.parametrize("name", GRAPHS)
def test_schedules_compute_hardly_more_than_is_stated(name: str) -> None:
    for a in algorithms([t.value.node for t in GRAPHS[name]()]):
        assert excess(a) <= MOST, f"{a.name}: {excess(a):.1f}\n{schedule(a, INFO)}"


@pytest.mark.parametrize("kind", ["any", "reductions"])
def test_of_random_programs_too(kind: str) -> None:
    @settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given({"any": programs(), "reductions": reduction_programs()}[kind])
    def check(p: GraphProgram) -> None:
        for a in algorithms(p.build(numpy_leaf)):
            assert excess(a) <= MOST, f"{a.name}: {excess(a):.1f}"

    check()


def test_what_is_computed_anew_in_every_loop_is_counted() -> None:
    """A sum placed inside a loop that it does not depend on."""
    a = softmax(64, 200).algorithm
    plain = initial(a)
    assert executed(lower(plain)) <= 2 * stated(a)
    out, inner = a.items[-1].name, plain.nests[a.items[-1].name].loops[-1].var.name
    inside = run(plain, ComputeAt(a.items[-2].name, out, inner))
    assert executed(lower(inside)) > 50 * stated(a)
    m = matmul(64, 64, 64).algorithm
    assert stated(m) / 2 <= executed(lower(initial(m))) <= 2 * stated(m)
