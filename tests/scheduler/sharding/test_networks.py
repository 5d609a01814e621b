"""Networks and training steps on meshes: laid out by cost, lowered, and compared with one device's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft import Tensor, nn
from weft.backends.registry import open_device
from weft.backends.storage import from_numpy
from weft.ir.calls import expand_calls
from weft.ir.graph import Node, buffer, toposort
from weft.ir.loop_body import LoopNode
from weft.ir.placement import Layout, Mesh, Replicate, Shard, boxes
from weft.scheduler.realize import realize
from weft.scheduler.sharding.lower import Lowered, lower
from weft.scheduler.sharding.propagate import Placed, Propagation, propagate
from weft.testing.reference import evaluate

Sharded = dict[Tensor, int]
"""Tensors that are sharded, along an axis; others are replicated."""

RNG = np.random.default_rng(5)


def numbers(*shape: int) -> Tensor:
    return weft.tensor(RNG.standard_normal(shape).astype(np.float32))


def gradients(loss: Tensor, of: Sequence[Tensor]) -> list[Tensor]:
    return [g for g in weft.autograd.grad(loss, of) if g is not None]


def placed(
    results: Sequence[Tensor], sharded: Sharded, count: int
) -> tuple[list[Node], Mesh, Placed, Lowered]:
    roots = expand_calls([t.value.node for t in results])
    mesh = Mesh("cpu:0", tuple(f"dummy:{k}" for k in range(count)), (count,))
    axes = {t.value.node: axis for t, axis in sharded.items()}
    leaves: dict[Node, Layout] = {}
    shards: dict[Node, list[Node]] = {}
    for n in toposort(roots):
        if n.storage is not None and n.device == mesh.name:
            leaves[n] = (Shard(axes[n]),) if n in axes else (Replicate(),)
            values = n.storage.numpy()
            parts = [values[_slices(b)] for b in boxes(leaves[n], n.shape, mesh)]
            shards[n] = [buffer(p.shape, n.dtype, d, p) for d, p in zip(mesh.devices, parts, strict=True)]
    found = propagate(roots, mesh, leaves)
    return roots, mesh, found, lower(roots, mesh, found.layouts, shards, found.splits)


def _slices(box: Any) -> tuple[slice, ...]:
    return tuple(slice(i.lo, i.hi) for i in box)


def compare(results: Sequence[Tensor], sharded: Sharded, count: int) -> tuple[Placed, Lowered]:
    roots, mesh, found, lowered = placed(results, sharded, count)
    local = evaluate([n for r in roots for n in lowered.locals[r]])
    for k, (root, whole) in enumerate(zip(roots, evaluate(roots), strict=True)):
        for j, box in enumerate(boxes(found.layouts[root], root.shape, mesh)):
            got = local[k * count + j]
            np.testing.assert_allclose(got, whole[_slices(box)], rtol=1e-4, atol=1e-5)
    return found, lowered


def perceptron() -> tuple[list[Tensor], Sharded]:
    weights = [numbers(6, 16), numbers(16, 16), numbers(16, 3)]
    x, y = numbers(9, 6), weft.tensor(RNG.integers(0, 3, 9))
    for w in weights:
        w.requires_grad = True
    h = x
    for w in weights[:-1]:
        h = (h @ w).relu()
    loss = F.cross_entropy(h @ weights[-1], y)
    grads = gradients(loss, weights)
    return [loss, *(w.detach() - 0.1 * g for w, g in zip(weights, grads, strict=True))], {x: 0, y: 0}


def convolution() -> tuple[list[Tensor], Sharded]:
    x, w = numbers(2, 3, 8, 8), numbers(5, 3, 3, 3)
    return [F.max_pool2d(F.conv2d(x, w, padding=1).relu(), 2)], {x: 2}


def vocabulary() -> tuple[list[Tensor], Sharded]:
    table, ids = numbers(12, 4), weft.tensor(RNG.integers(0, 12, (3, 5)))
    table.requires_grad = True
    rows = F.embedding(ids, table)
    (grad,) = gradients((rows * rows).sum(), [table])
    return [rows, grad], {table: 0}


def attention() -> tuple[list[Tensor], Sharded]:
    q, k, v = (numbers(2, 4, 6, 8) for _ in range(3))
    return [F.scaled_dot_product_attention(q, k, v, is_causal=True)], {q: 2, k: 2, v: 2}


def rows() -> tuple[list[Tensor], Sharded]:
    x = numbers(7, 8)
    weft.manual_seed(3)
    return [F.dropout(F.layer_norm(x, (8,)), 0.5), x.softmax(0), x.sort(0)[0], x.cumsum(1)], {x: 0}


def recurrent() -> tuple[list[Tensor], Sharded]:
    x, module = numbers(4, 4, 3), nn.LSTM(3, 2)
    out, (h, c) = module(x)
    grads = gradients((out * out).sum() + (h * c).sum(), list(module.parameters()))
    return [out, h, c, *grads], {x: 1}


def scans() -> tuple[list[Tensor], Sharded]:
    a, b, w = numbers(6, 4), numbers(3, 6, 4), numbers(4, 4)
    end, (row, size) = weft.scan(lambda c, x: ((c @ w).tanh() + x, (c * 2, c.sum(1))), a, b)
    back, seen = weft.scan(lambda c, x: (c + x.flip(1), c), a, b, reverse=True)
    return [end, row, size, back, seen], {a: 0, b: 1}


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("make", [perceptron, convolution, vocabulary, attention, rows, recurrent, scans])
def test_networks_compute_what_they_do_on_one_device(
    make: Callable[[], tuple[list[Tensor], Sharded]], count: int
) -> None:
    compare(*make(), count)


def test_rows_of_a_batch_stay_apart_through_loops_which_make_all_their_results_at_once() -> None:
    _, lowered = compare(*scans(), 2)
    assert lowered.moved_bytes == 0
    order = toposort([of[0] for of in lowered.locals.values()])
    bodies = {n.attrs.body for n in order if isinstance(n.attrs, LoopNode)}
    assert len(bodies) == 2
    assert all(c.shape[0] == 3 for body in bodies for c in body.carries)


def test_random_numbers_are_those_of_the_global_tensor() -> None:
    weft.manual_seed(7)
    x = numbers(9, 5)
    _, lowered = compare([weft.rand(9, 5) + x, F.dropout(x, 0.3)], {x: 0}, 4)
    assert lowered.moved_bytes == 0


def test_devices_run_what_is_lowered() -> None:
    """The whole training step on two simulated devices, whose memories are apart."""
    results, sharded = perceptron()
    roots, mesh, found, lowered = placed(results, sharded, 2)
    local = [n for r in roots for n in lowered.locals[r]]
    for n in toposort(local):
        values: Any = n.storage
        if values is not None:
            n.storage = from_numpy(values, n.dtype, open_device(n.device or ""))
    constants = realize(local)
    for root, whole in zip(roots, evaluate(roots), strict=True):
        where = boxes(found.layouts[root], root.shape, mesh)
        for n, box in zip(lowered.locals[root], where, strict=True):
            got = (n.storage or constants[n]).numpy()
            np.testing.assert_allclose(got, whole[_slices(box)], rtol=1e-4, atol=1e-5)


def residual(layers: int) -> tuple[list[Tensor], Sharded]:
    """A training step of a network whose layers add to a stream, each read by several."""
    weights = [numbers(8, 8) / 3 for _ in range(2 * layers)]
    weft.realize(*weights)
    for w in weights:
        w.requires_grad = True
    x = numbers(6, 5, 8)
    h = x
    for up, down in zip(weights[::2], weights[1::2], strict=True):
        h = h + (h - h.mean(-1, keepdim=True)) @ up.T @ down
    sharded = {x: 0} | dict.fromkeys(weights[::2], 0) | dict.fromkeys(weights[1::2], 0)
    return [h, *gradients((h**2).mean(), weights)], sharded


def test_layers_that_are_alike_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What deciding takes does not grow with the depth of a network, and what lies between cuts does not either."""
    studied: list[int] = []
    candidates = Propagation._candidates

    def counted(self: Propagation, node: Node, *rest: Any) -> Any:
        studied.append(len(self._cone(node)[0][0]))  # type: ignore[index]
        return candidates(self, node, *rest)

    monkeypatch.setattr(Propagation, "_candidates", counted)
    counts: list[tuple[int, int]] = []
    for layers in (4, 8):
        results, sharded = residual(layers)
        found, _ = compare(results, sharded, 2)
        counts.append((len(studied), max(studied)))
        assert len(found.choices) > 6 * layers
        studied.clear()
    assert counts[0] == counts[1]
