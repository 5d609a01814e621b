"""The processor used as if it were a GPU: blocks of threads, LOCAL memory, barriers, memory that the driver keeps.

What no GPU has run here yet is at least run: the description, the schedules chosen from it, the text, the grids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft.backends import registry
from weft.backends.found import FoundDevices
from weft.backends.opencl.device import OpenCLDevice
from weft.ir.loops import LoopKind
from weft.testing.conformance import (
    test_copies,
    test_loops,
    test_memory,
    test_queues,
    test_running,
    test_schedules,
)
from weft.testing.conformance.harness import Harness
from weft.testing.kernels import CASES


@pytest.fixture(scope="module")
def blocks(opencl: OpenCLDevice) -> OpenCLDevice:
    return OpenCLDevice(opencl.handle, 0, on_cpu=False)


@pytest.fixture(scope="module")
def harness(blocks: OpenCLDevice) -> Harness:
    return Harness(blocks)


@pytest.fixture
def as_opencl(blocks: OpenCLDevice) -> Iterator[None]:
    registry.register(FoundDevices("opencl", lambda: [blocks.handle], lambda _, __: blocks))
    yield
    registry.unregister("opencl")


def test_the_description(blocks: OpenCLDevice) -> None:
    info = blocks.info
    assert info.task_kind is LoopKind.BLOCK and info.bounds.threads > 1 and not info.host_memory


@pytest.mark.parametrize("name", CASES)
def test_schedule_of_the_rules(harness: Harness, name: str) -> None:
    test_schedules.test_schedule_of_the_rules(harness, name)


CONFORMANCE: dict[str, Callable[[Harness], None]] = {
    "bytes": lambda h: test_memory.test_bytes_come_back(h, (5 << 20) + 13),
    "memories": test_memory.test_memories_do_not_overlap,
    "freed": lambda h: test_memory.test_freed_memory_is_not_used(h.device),
    "limit": lambda h: test_memory.test_a_limit_is_kept_and_lifted(h.device),
    "too much": lambda h: test_memory.test_a_request_beyond_the_machine(h.device),
    "dying": lambda h: test_memory.test_dying_memory_goes_back(h.device),
    "parts": test_copies.test_parts,
    "taken": test_copies.test_the_source_may_change_after_a_write,
    "sources": test_copies.test_read_only_and_typed_sources,
    "within": test_copies.test_within_the_device,
    "order": test_queues.test_one_queue_is_in_order,
    "boxes": lambda h: test_copies.test_boxes(h, "opencl:0"),
    "boxes by events": test_copies.test_copies_of_boxes_take_turns_with_runs_by_events,
    "turns": test_queues.test_writes_and_runs_take_turns,
    "events": lambda h: test_queues.test_events(h.device, h),
    "waiting": lambda h: test_queues.test_waiting_is_for_all_of_it(h.device, h),
    "chain": lambda h: test_queues.test_queues_wait_for_events(h.device, h),
    "steps": test_running.test_steps_run_in_order,
    "workspace": test_running.test_places_of_the_workspace,
    "dying in a run": test_running.test_what_a_run_needs_may_die,
    "threads of the host": test_running.test_threads_share_a_plan,
    "tasks": test_loops.test_tasks,
    "threads": test_loops.test_threads,
}


@pytest.mark.parametrize("name", CONFORMANCE)
def test_conformance(harness: Harness, name: str) -> None:
    CONFORMANCE[name](harness)


def test_nothing_is_allowed(blocks: OpenCLDevice) -> None:
    blocks.set_memory_limit(0)
    try:
        with pytest.raises(MemoryError):
            blocks.allocate(1)
    finally:
        blocks.set_memory_limit(None)


def test_what_died_on_one_queue_is_not_written_by_another(blocks: OpenCLDevice, harness: Harness) -> None:
    """Bytes go to others when nothing that was started can use them any more; the host waits for none of it."""
    plan, zeros = test_queues.increment(blocks), test_queues.zeros()
    ones = harness.put(zeros + 1)
    for number in range(2):
        a, b = harness.put(zeros), harness.put(zeros)
        blocks.queue(1 - number)
        for _ in range(50):
            plan.run([a, b], (), number)
        blocks.free(a)
        a = harness.device.allocate(a.nbytes)
        plan.run([ones, a], (), 1 - number)
        assert blocks.queue(number).busy and blocks.queue(1 - number).busy
        blocks.synchronize()
        assert np.all(harness.get(b, zeros) == 1) and np.all(harness.get(a, zeros) == 2)


def test_a_model(as_opencl: None) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((40, 96)).astype(np.float32), rng.standard_normal((64, 96)).astype(np.float32)
    seen: list[np.ndarray] = []
    for device in ("opencl", "cpu"):
        with weft.device(device):
            weights = weft.tensor(w, requires_grad=True)
            y = F.linear(weft.tensor(x), weights)
            loss = F.cross_entropy(y, weft.tensor(np.arange(40) % 64))
            loss.backward()
            assert weights.grad is not None
            seen.append(np.concatenate([weights.grad.numpy().ravel(), y.argmax(1).numpy(), y.sum(0).numpy()]))
    np.testing.assert_allclose(seen[0], seen[1], rtol=1e-3, atol=1e-4)
