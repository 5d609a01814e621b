"""64-bit integers on a device whose shaders have none: every op exact, and a model with torch's defaults trains."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft import nn, optim
from weft.backends import registry
from weft.backends.found import FoundDevices
from weft.backends.wgpu.device import WgpuDevice
from weft.ir import dtypes
from weft.testing.conformance import test_ops as ops
from weft.testing.conformance.harness import Harness


@pytest.fixture(scope="module")
def words(wgpu: WgpuDevice) -> WgpuDevice:
    return WgpuDevice(wgpu.adapter, 0, frozenset())


@pytest.fixture
def as_wgpu(words: WgpuDevice) -> Iterator[None]:
    registry.register(FoundDevices("wgpu", lambda: [words.adapter], lambda _, __: words))
    yield
    registry.unregister("wgpu")


@pytest.mark.parametrize("source", [s for s in ops.BY_SOURCE if "int64" in s])
def test_every_op(words: WgpuDevice, source: str) -> None:
    ops.test_ops(Harness(words), source)


def test_casts_from_floats(words: WgpuDevice) -> None:
    ops.test_ops(Harness(words), "float32")


def test_a_classifier(as_wgpu: None) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((32, 5)).astype(np.float32), rng.integers(0, 3, 32)
    seen: list[list[float]] = []
    for device in ("wgpu", "cpu"):
        with weft.device(device):
            weft.manual_seed(0)
            model = nn.Linear(5, 3)
            optimizer = optim.SGD(model.parameters(), lr=0.5)
            losses: list[float] = []
            targets = weft.tensor(y)
            assert targets.dtype is dtypes.int64
            for _ in range(3):
                loss = F.cross_entropy(model(weft.tensor(x)), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            guess = model(weft.tensor(x)).argmax(1)
            assert guess.dtype is dtypes.int64
            right = (guess == targets).sum().item()
            picked = weft.tensor(x)[[3, 1, -1], [0, 4, 2]].tolist()
            seen.append([*losses, right, *picked, *weft.tensor([2**40, -7, 2**62]).tolist()])
    np.testing.assert_allclose(seen[0], seen[1], rtol=1e-5)


def test_divisions_of_all_lengths(as_wgpu: None) -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 64, (2, 2000))
    a, b = (rng.integers(-(2**63), 2**63 - 1, 2000) >> k for k in bits)
    b[b == 0] = 5
    x, y = weft.tensor(a, device="wgpu"), weft.tensor(b, device="wgpu")
    np.testing.assert_array_equal((x // y).numpy(), a // b)
    np.testing.assert_array_equal((x % y).numpy(), a % b)
    np.testing.assert_array_equal(x.to(weft.float32).numpy(), a.astype(np.float32))
