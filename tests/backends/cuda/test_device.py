"""The CUDA device over an emulated driver: tensors, plans, scratch, graphs, copies, memory, images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.backends import registry
from weft.backends.cuda.device import STAGING_BYTES


def test_tensors_are_computed_on_it(emulated: Any) -> None:
    a = np.random.default_rng(0).standard_normal((5, 37)).astype(np.float32)
    x = weft.tensor(a, device="cuda")
    y = (x * 2 + 1).softmax(-1)
    e = np.exp((a * 2 + 1) - (a * 2 + 1).max(-1, keepdims=True))
    np.testing.assert_allclose(y.numpy(), e / e.sum(-1, keepdims=True), rtol=2e-6)
    assert emulated.launches >= 1


def test_gradients_and_several_kernels(emulated: Any) -> None:
    r = np.random.default_rng(1)
    a, w = r.standard_normal((6, 8)).astype(np.float32), r.standard_normal((8, 5)).astype(np.float32)
    x = weft.tensor(a, device="cuda")
    v = weft.tensor(w, device="cuda", requires_grad=True)
    loss = (x @ v).tanh().sum()
    loss.backward()
    t = np.tanh(a @ w)
    np.testing.assert_allclose(loss.item(), t.sum(), rtol=1e-5)
    np.testing.assert_allclose(v.grad.numpy(), a.T @ (1 - t * t), rtol=1e-4, atol=1e-5)


def test_a_plan_that_repeats_becomes_a_graph(emulated: Any) -> None:
    @weft.compile
    def step(x: weft.Tensor) -> weft.Tensor:
        y = x / x.sum(0)
        return (y * y).sum(1)

    a = np.random.default_rng(2).random((40, 3)).astype(np.float32)
    x = weft.tensor(a, device="cuda")
    expected = ((a / a.sum(0)) ** 2).sum(1)
    for _ in range(5):
        np.testing.assert_allclose(step(x).numpy(), expected, rtol=1e-5)
    assert emulated.graph_launches >= 1


def test_large_copies_go_through_both_staging_buffers(emulated: Any) -> None:
    data = np.random.default_rng(3).integers(0, 255, 3 * STAGING_BYTES + 17, dtype=np.uint8)
    assert np.array_equal(weft.tensor(data, device="cuda").numpy(), data)


def test_memory_is_kept_and_given_back(emulated: Any) -> None:
    device = registry.open_device("cuda")
    emulated.memory_bytes = sum(emulated.sizes.values()) + (8 << 20)
    block = device.allocate(6 << 20)
    with pytest.raises(MemoryError, match="in use"):
        device.allocate(6 << 20)
    address = block.address  # type: ignore[attr-defined]
    del block
    assert device.allocate(6 << 20).address == address  # type: ignore[attr-defined]
    assert device.allocate(4 << 20).nbytes == 4 << 20, "what was kept for another size is given back"


def test_images(emulated: Any) -> None:
    device = registry.open_device("cuda")
    from weft.scheduler.programs import lowered
    from weft.testing.kernels import softmax

    program = lowered(softmax(4, 9).algorithm, device.info)
    (code,), image = device.compile([program])
    (again,) = device.load(image, [program.name])
    assert code.entry == again.entry  # type: ignore[attr-defined]
    for bad in (b"", b"something else", image[:40]):
        with pytest.raises(ValueError):
            device.load(bad, [program.name])


def test_profile_times_each_step(emulated: Any) -> None:
    from weft.scheduler.realize import plan_for
    from weft.scheduler.signature import signature

    nodes = [(weft.tensor(np.ones((3, 4), np.float32), device="cuda") + 1).value.node]
    sig = signature(nodes)
    plan = plan_for(nodes, sig, registry.open_device("cuda:0"))
    _, times = plan.profile([n.storage.memory for n in sig.leaves])
    assert times == [1000] * len(plan.steps)
