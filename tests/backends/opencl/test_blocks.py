"""The processor used as if it were a GPU: blocks of threads, LOCAL memory, barriers, memory that the driver keeps.

What no GPU has run here yet is at least run: the description, the schedules chosen from it, the text, the grids.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft.backends import registry
from weft.backends.found import FoundDevices
from weft.backends.opencl.device import OpenCLDevice
from weft.ir.loops import LoopKind
from weft.testing.conformance import test_loops, test_memory, test_schedules
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


def test_memory_and_threads(harness: Harness) -> None:
    test_memory.test_memories_do_not_overlap(harness)
    test_memory.test_freed_memory_is_not_used(harness.device)
    test_loops.test_tasks(harness)
    test_loops.test_threads(harness)


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
