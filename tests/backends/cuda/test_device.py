"""The CUDA device over an emulated driver: tensors, plans, scratch, graphs, copies, memory, images."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends import registry
from weft.backends.cuda.compile import target
from weft.backends.cuda.device import STAGING_BYTES
from weft.backends.cuda.driver import CudaError
from weft.errors import DeviceError


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
    from weft.scheduler.lowering import lowered
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
    plan = plan_for(sig, registry.open_device("cuda:0"))
    _, times = plan.profile([n.storage.memory for n in sig.leaves])
    assert times == [1000] * len(plan.steps)


def test_threads_run_plans_while_others_are_captured(emulated: Any) -> None:
    """Plans share a workspace, and a capture is of one plan: threads take turns."""

    @weft.compile
    def step(x: weft.Tensor) -> weft.Tensor:
        y = x / x.sum(0)
        return (y * y).sum(1)

    wrong: list[Any] = []

    def work(seed: int) -> None:
        a = np.random.default_rng(seed).random((7 + seed, 3)).astype(np.float32)
        for _ in range(5):
            got = step(weft.tensor(a, device="cuda")).numpy()
            if not np.allclose(got, ((a / a.sum(0)) ** 2).sum(1), rtol=1e-5):
                wrong.append((seed, got))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert emulated.graph_launches


def test_graphs_and_events_are_given_back(emulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.backends.cuda.device.GRAPHS_KEPT", 2)

    @weft.compile
    def step(x: weft.Tensor) -> weft.Tensor:
        return (x / x.sum(0)).sum(1)

    inputs = [weft.tensor(np.full((4, 3), k + 1, np.float32), device="cuda") for k in range(4)]
    sums = [step(x).numpy() for x in inputs for _ in range(3)]
    assert emulated.graphs == 2
    np.testing.assert_allclose(sums[-1], 0.75)
    before = emulated.events
    registry.open_device("cuda").queue().record().wait()
    gc.collect()
    assert emulated.events == before


def test_a_failed_capture_leaves_the_device_usable(emulated: Any) -> None:
    device: Any = registry.open_device("cuda")
    with pytest.raises(ZeroDivisionError), device.capture():
        raise ZeroDivisionError
    with (
        pytest.raises(CudaError, match="INVALIDATED"),
        device.capture() as made,
        pytest.raises(CudaError, match="CAPTURE_UNSUPPORTED"),
    ):
        device.driver.call("cuStreamSynchronize", made.stream)
    with device.capture() as made:
        device.synchronize()  # another stream
    assert made.graph.actions == []


def test_a_kernel_that_fails_is_told_once_and_for_all(emulated: Any) -> None:
    emulated.faults_are_codes = True
    x = weft.tensor(np.ones(100, np.float32), device="cuda").realize()
    y = (x + 1).realize()
    registry.open_device("cuda").synchronize()
    gone = dict(emulated.memories)  # which no new memory shares
    emulated.memories.clear()
    emulated.sizes.clear()
    z = (y * 3).exp()
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"ILLEGAL_ADDRESS: an earlier kernel failed, .* starts anew"):
            z.numpy()
    assert gone


def test_errors_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(CudaError("cuMemAlloc", "CUDA_ERROR_UNKNOWN")))
    assert error.code == "CUDA_ERROR_UNKNOWN" and error.call == "cuMemAlloc"


def test_a_forked_process_is_told_to_start_otherwise(emulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = weft.tensor(np.ones(3, np.float32), device="cuda").realize()
    event = registry.open_device("cuda").queue().record()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(DeviceError, match="cuda:0 was opened before this process was forked"):
        x.numpy()
    del event  # without a word
    monkeypatch.undo()


def test_an_old_driver_is_named(emulated: Any) -> None:
    emulated.version = 11080
    with pytest.raises(DeviceError, match=r"CUDA 11\.8, and weft needs one for 12\.0"):
        registry.open_device("cuda")


@pytest.mark.parametrize(
    "capability, chip, version",
    [((7, 5), "sm_75", 80), ((8, 9), "sm_89", 80), ((9, 0), "sm_90a", 80), ((10, 3), "sm_103a", 88),
     ((12, 0), "sm_120a", 87), ((19, 0), "sm_90", 80)],
)  # fmt: skip
def test_the_oldest_ptx_that_knows_the_gpu(capability: tuple[int, int], chip: str, version: int) -> None:
    found = target(capability)
    assert (found.cpu, found.features) == (chip, f"+ptx{version}")


def test_the_next_architecture_runs_what_it_has_in_common(emulated: Any) -> None:
    emulated.capability = (19, 0)
    x = weft.tensor(np.arange(5, dtype=np.float32), device="cuda")
    assert (x * 2).sum().item() == 20


def test_what_the_assembler_says_is_shown(emulated: Any) -> None:
    device: Any = registry.open_device("cuda")
    with pytest.raises(DeviceError, match=r"does not take a kernel \(CUDA_ERROR_INVALID_PTX\): ptxas error"):
        device._assemble("nothing")


def test_sums_of_many_tensors_keep_to_the_arguments_a_kernel_takes(emulated: Any) -> None:
    parts = [weft.tensor(np.full(2, k, np.float32), device="cuda") for k in range(700)]
    assert np.array_equal(weft.cat(parts).numpy()[::2], np.arange(700))
