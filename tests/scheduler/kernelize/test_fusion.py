"""How many kernels the usual computations become, and that they compute what the graph means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft.ir.calls import expand_calls
from weft.ir.ops import Op
from weft.scheduler.kernelize.kernels import kernelize
from weft.scheduler.kernelize.spec import KernelSpec
from weft.testing.kernelized import run
from weft.testing.reference import evaluate
from weft.testing.tolerance import allowed, difference


def tensor(*shape: int, seed: int = 0, grad: bool = False) -> weft.Tensor:
    values = np.random.default_rng(seed + 7 * sum(shape)).standard_normal(shape).astype(np.float32)
    return weft.tensor(values, requires_grad=grad)


def labels(n: int, classes: int) -> weft.Tensor:
    return weft.tensor(np.random.default_rng(n).integers(0, classes, n))


def kernels(*tensors: weft.Tensor) -> list[KernelSpec]:
    """The kernels of the tensors' graph, after checking what they compute."""
    nodes = [t.value.node for t in tensors]
    specs = kernelize(nodes)
    got = run(specs, nodes)
    for value, want, bound in zip(got, evaluate(nodes), allowed(nodes), strict=True):
        assert difference(value, want, bound) is None
    return specs


X = (3, 8, 16)
ONE: dict[str, Callable[[], Sequence[weft.Tensor]]] = {
    "chain": lambda: [((tensor(*X) * 2 + 1).relu().exp() - tensor(*X, seed=1)).sigmoid()],
    "broadcast": lambda: [tensor(4, 1, 6) * tensor(5, 1) + tensor(6)],
    "movement": lambda: [tensor(4, 6).T.reshape(2, 12).flip(1)[:, 1:9:2] * 2],
    "strided sum": lambda: [tensor(4, 5, 6).sum((0, 2))],
    "matmul": lambda: [tensor(8, 16) @ tensor(16, 12)],
    "matmul bias relu": lambda: [(tensor(8, 16) @ tensor(16, 12) + tensor(12)).relu()],
    "batched matmul bias gelu": lambda: [F.gelu(tensor(2, 8, 16) @ tensor(16, 12) + tensor(12))],
    "matmul, reshaped and permuted": lambda: [
        (tensor(2, 8, 16) @ tensor(16, 12)).reshape(2, 8, 3, 4).permute(0, 2, 1, 3)
    ],
    "relu before a matmul": lambda: [tensor(32, 16).relu() @ tensor(16, 12)],
    "softmax": lambda: [tensor(*X).softmax(-1)],
    "softmax of the first axis": lambda: [tensor(*X).softmax(0)],
    "log_softmax": lambda: [tensor(*X).log_softmax(-1)],
    "logsumexp": lambda: [tensor(*X).logsumexp(-1)],
    "layer_norm": lambda: [F.layer_norm(tensor(*X), (16,), tensor(16), tensor(16, seed=1))],
    "rms norm": lambda: [(x := tensor(*X)) * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()],
    "batch_norm": lambda: [
        F.batch_norm(tensor(4, 3, 6, 6), None, None, tensor(3), tensor(3, seed=1), training=True)
    ],
    "mean and var": lambda: [(x := tensor(*X)).mean(-1), x.var(-1)],
    "var and mean": lambda: [(x := tensor(*X)).var(-1), x.mean(-1)],
    "mean and var of everything": lambda: [(x := tensor(*X)).mean(), x.var()],
    "sum and max": lambda: [(x := tensor(*X)).sum(1), x.amax(1)],
    "normalized rows and their means": lambda: [(x := tensor(*X)) - x.mean(-1, keepdim=True), x.mean(-1)],
    "attention": lambda: [
        F.scaled_dot_product_attention(tensor(2, 3, 8, 4), tensor(2, 3, 6, 4), tensor(2, 3, 6, 5))
    ],
    "causal attention": lambda: [
        F.scaled_dot_product_attention(
            tensor(2, 3, 8, 4), tensor(2, 3, 8, 4, seed=1), tensor(2, 3, 8, 4, seed=2), is_causal=True
        )
    ],
    "attention with a mask": lambda: [
        F.scaled_dot_product_attention(
            tensor(2, 3, 8, 4), tensor(2, 3, 8, 4, seed=1), tensor(2, 3, 8, 4, seed=2), tensor(8, 8)
        )
    ],
    "cross_entropy of logits": lambda: [F.cross_entropy(tensor(12, 10), labels(12, 10))],
    "mse_loss": lambda: [F.mse_loss(tensor(*X), tensor(*X, seed=1))],
    "conv bias relu": lambda: [F.conv2d(tensor(2, 3, 8, 8), tensor(4, 3, 3, 3), tensor(4), padding=1).relu()],
    "max pool": lambda: [F.max_pool2d(tensor(2, 3, 8, 8), 2)],
    "cat": lambda: [weft.cat([tensor(3, 4), tensor(2, 4) * 2])],
    "embedding": lambda: [F.embedding(labels(6, 9), tensor(9, 4))],
    "gather": lambda: [tensor(6, 9).gather(1, labels(6, 9).reshape(6, 1)) * 2],
    "assignment": lambda: [assigned(tensor(6, 5) * 2)],
}
"""What must be one kernel."""


def assigned(x: weft.Tensor) -> weft.Tensor:
    x[1:5:2, 2:] = tensor(2, 3)
    return x + 1


@pytest.mark.parametrize("name", ONE)
def test_one_kernel(name: str) -> None:
    assert len(kernels(*ONE[name]())) == 1


def test_matmul_and_cross_entropy_are_two() -> None:
    loss = F.cross_entropy(tensor(12, 16) @ tensor(16, 10) + tensor(10), labels(12, 10))
    assert len(kernels(loss)) == 2


def test_an_mlp_with_gelu_is_one_kernel_per_layer() -> None:
    h = F.gelu(tensor(64, 16) @ tensor(16, 32) + tensor(32))
    assert len(kernels(F.gelu(h @ tensor(32, 16)))) == 2


def test_layer_norm_before_a_matmul_is_stored() -> None:
    x = F.layer_norm(tensor(64, 32), (32,), tensor(32), tensor(32, seed=1))
    specs = kernels(x @ tensor(32, 64))
    assert len(specs) == 2
    assert "may not wait for a reduction" in specs[0].why[0]


def test_attention_holds_both_products_and_no_scores() -> None:
    (spec,) = kernels(*ONE["attention"]())
    assert [i.name for i in spec.algorithm.items] == ["sum", "max", "sum1", "sum2", "out"]
    assert all(p.shape != (6, 8, 6) for p in spec.algorithm.params)


def adam(p: weft.Tensor, g: weft.Tensor, m: weft.Tensor, v: weft.Tensor) -> list[weft.Tensor]:
    m2 = m * 0.9 + g * 0.1
    v2 = v * 0.999 + g * g * 0.001
    return [p.detach() - m2 / 0.1 * 0.001 / ((v2 / 0.001).sqrt() + 1e-8), m2, v2]


def test_adam_is_one_kernel_per_parameter() -> None:
    shapes = [(16, 8), (8,), (8, 8), (8,)]
    new = [
        t
        for k, s in enumerate(shapes)
        for t in adam(*(tensor(*s, seed=4 * k + i) for i in range(3)), tensor(*s, seed=4 * k + 3).abs())
    ]
    specs = kernels(*new)
    assert len(specs) == len(shapes)
    assert all(len(s.writes) == 3 for s in specs)


def test_training_step_of_an_mlp() -> None:
    sizes = [24, 32, 32, 10]
    weights = [(tensor(a, b, grad=True), tensor(b, grad=True)) for a, b in pairwise(sizes)]
    x = tensor(48, 24)
    for w, b in weights[:-1]:
        x = (x @ w + b).relu()
    loss = F.cross_entropy(x @ weights[-1][0] + weights[-1][1], labels(48, 10))
    loss.backward()
    parameters = [p for pair in weights for p in pair]
    new = [
        t
        for k, p in enumerate(parameters)
        if p.grad is not None
        for t in adam(p, p.grad, tensor(*p.shape, seed=k), tensor(*p.shape, seed=50 + k).abs())
    ]
    specs = kernels(loss, *new)
    # 3 products forward, softmax statistics with the logits' gradient, loss, 2 products back, 6 updates
    assert len(specs) <= 13
    assert sum(len(s.writes) == 3 for s in specs) >= 6


def test_dropout_masks_and_their_gradients_agree() -> None:
    x = tensor(64, 64, grad=True)
    y = F.dropout(x * 2, 0.5).sum()
    y.backward()
    assert x.grad is not None
    kernels(y, x.grad)


def test_embedding_gradient() -> None:
    table = tensor(9, 4, grad=True)
    F.embedding(labels(20, 9), table).square().sum().backward()
    assert table.grad is not None
    kernels(table.grad)


def test_conv_gradients() -> None:
    x, w, b = tensor(2, 3, 6, 6, grad=True), tensor(4, 3, 3, 3, grad=True), tensor(4, grad=True)
    F.max_pool2d(F.conv2d(x, w, b, padding=1).relu(), 2).square().mean().backward()
    assert x.grad is not None and w.grad is not None and b.grad is not None
    kernels(x.grad, w.grad, b.grad)


def test_attention_gradients() -> None:
    q, k, v = (tensor(2, 6, 4, seed=s, grad=True) for s in range(3))
    F.scaled_dot_product_attention(q, k, v).square().sum().backward()
    assert q.grad is not None and k.grad is not None and v.grad is not None
    kernels(q.grad, k.grad, v.grad)


def test_what_a_product_reads_is_stored_in_its_order() -> None:
    q, k, v = (tensor(2, 3, 8, 4, seed=s) for s in range(3))
    heads = F.scaled_dot_product_attention(q, k, v).permute(0, 2, 1, 3)
    specs = kernels(heads.reshape(2, 8, 12) @ tensor(12, 5))
    assert len(specs) == 2
    assert specs[0].writes == tuple(expand_calls([heads.value.node]))
    assert specs[1].algorithm.params[0].shape == (16, 12)


@pytest.mark.parametrize(("columns", "count"), [(96, 2), (40, 1)])
def test_heads_are_joined_before_a_product_that_sums_over_them(columns: int, count: int) -> None:
    """The gradient of heads, (query .. value, batch, head, token, channel), times the weight that they came from: each
    element is found by a quotient and a remainder, for each panel of columns, unless it is copied."""
    heads = tensor(3, 2, 4, 25, 16).permute(1, 3, 0, 2, 4)
    assert len(kernels(heads.reshape(2, 25, 192) @ tensor(192, columns))) == count
    assert len(kernels(heads.reshape(50, 192) @ tensor(192, columns))) == count


def test_windows_are_read_where_they_are_by_a_product_that_sums_channels() -> None:
    parts = tensor(4, 3, 4, 3, 32).permute(0, 2, 1, 3, 4)
    assert len(kernels(parts.reshape(16, 9, 32) @ tensor(32, 96))) == 1


@pytest.mark.parametrize(("rows", "count"), [(300, 2), (5, 1)])
def test_places_are_found_by_lanes_before_a_scatter_goes_there(rows: int, count: int) -> None:
    """One by one, as a scatter visits them, each place would be searched without lanes."""
    place = tensor(rows, 9).argmax(1)
    assert len(kernels(weft.zeros(9).scatter_add(0, place, tensor(rows)))) == count


def test_rows_that_are_scattered_are_reduced_there() -> None:
    """A row's sum is for all of its elements, along which lanes go."""
    x, place = tensor(40, 300), weft.tensor(np.arange(40) % 9)
    assert len(kernels(weft.zeros(9, 300).index_add(0, place, x / x.sum(1, keepdim=True)))) == 1


def test_places_are_stored_as_a_reduction_finds_them() -> None:
    """In its own shape, where windows need no quotients; a scatter's own bounds are computed there."""
    image = weft.tensor(np.random.default_rng(0).integers(0, 99, (2, 32, 32)))
    place = F.max_pool2d(image, 3, 2, 1, return_indices=True)[1].reshape(2, 256)
    gradient = weft.grad(lambda x: (x.gather(1, place) * tensor(2, 256)).sum())(tensor(2, 1024))
    found, _ = kernels(gradient)
    assert [n.op for n in found.writes] == [Op.REDUCE_MIN]


@pytest.mark.parametrize(("make", "count"), [(weft.optim.Adam, 2), (weft.optim.SGD, 1)])
def test_an_update_with_moments_reads_a_large_gradient_from_memory(
    make: Callable[..., weft.optim.Optimizer], count: int
) -> None:
    """Six tensors come and go there beside the gradient, a row of a product's tile at a time; with SGD two do."""
    weight = tensor(512, 1024, grad=True)
    weight.grad = tensor(8, 512).T @ tensor(8, 1024)
    assert len(kernelize([t.value.node for t in (*make([weight], lr=0.1).advance(), weight.grad)])) == count
    weight.grad = tensor(300, 512).T @ tensor(300, 1024)  # computed for as long as all that takes to come
    assert len(kernelize([t.value.node for t in (*make([weight], lr=0.1).advance(), weight.grad)])) == 1
    small = tensor(64, 64, grad=True)
    small.grad = tensor(8, 64).T @ tensor(8, 64)
    assert len(kernelize([t.value.node for t in (*make([small], lr=0.1).advance(), small.grad)])) == 1


@pytest.mark.parametrize("make", [weft.optim.Adam, weft.optim.AdamW])
def test_an_optimizer_step_is_one_kernel_per_parameter(make: Callable[..., weft.optim.Adam]) -> None:
    params = [tensor(4, 6), tensor(6), tensor(3, 4), tensor(1), tensor()]
    for k, p in enumerate(params):
        p.requires_grad = True
        p.grad = tensor(*(int(n) for n in p.shape), seed=k)
    specs = kernels(*make(params).advance())
    assert len(specs) <= len(params)


def test_a_scalar_is_computed_by_all_its_readers_and_stored_by_one() -> None:
    count, x, y = tensor(), tensor(6, 4), tensor(9)
    after = count + 1
    assert len(kernels(after, x * after, y / after)) == 2
    # what a product reads again and again is not computed there
    assert len(kernels(after, (tensor(32, 16) * after.exp()) @ tensor(16, 8))) <= 3
