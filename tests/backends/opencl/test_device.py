"""The OpenCL device: tensors, tiles, queues, images, memory, and what is said when it is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends import registry
from weft.backends.opencl import driver
from weft.backends.opencl.device import OpenCLDevice
from weft.errors import DeviceError
from weft.scheduler.lowering import lowered
from weft.testing.kernels import softmax


def test_a_model_trains_as_on_the_cpu(opencl: OpenCLDevice) -> None:
    def losses(device: str) -> list[float]:
        with weft.device(device):
            weft.manual_seed(0)
            model = weft.nn.Sequential(weft.nn.Linear(12, 20), weft.nn.GELU(), weft.nn.Linear(20, 3))
            optimizer = weft.optim.AdamW(model.parameters(), lr=0.05)
            x = weft.randn(16, 12)
            y = weft.arange(16) % 3

            @weft.compile
            def step() -> weft.Tensor:
                optimizer.zero_grad()
                loss = weft.nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                return loss

            return [step().item() for _ in range(6)]

    np.testing.assert_allclose(losses("opencl"), losses("cpu"), rtol=1e-4)


def test_functions_are_wefts_own(opencl: OpenCLDevice) -> None:
    """So that they give what they give elsewhere, but for contractions."""
    x = np.concatenate([np.linspace(-80, 80, 999), [np.inf, -np.inf, np.nan, 0.0, -0.0]]).astype(np.float32)
    for f in ("exp", "tanh", "erf", "sin", "log"):
        a, b = (getattr(weft, f)(weft.tensor(x, device=d)).numpy() for d in ("cpu", "opencl"))
        np.testing.assert_array_max_ulp(np.nan_to_num(a, nan=7.0), np.nan_to_num(b, nan=7.0), maxulp=2)


def test_runs_on_several_queues_are_ordered_by_events(opencl: OpenCLDevice) -> None:
    first, second = opencl.queue(0), opencl.queue(1)
    memory = opencl.allocate(4096)
    target = opencl.allocate(4096)
    opencl.write(memory, memoryview(bytes(range(256)) * 16))
    assert opencl.copy_from(target, opencl, memory, 4096, queue=1)
    event = second.record()
    first.wait(event)
    event.wait()
    assert event.done()
    assert bytes(opencl.read(target, 4096)) == bytes(range(256)) * 16
    with pytest.raises(ValueError, match="there is no queue"):
        opencl.queue(opencl.info.queues)


def test_images(opencl: OpenCLDevice) -> None:
    program = lowered(softmax(4, 9).algorithm, opencl.info)
    (code,), image = opencl.compile([program])
    (again,) = opencl.load(image, [program.name])
    assert code.entry == again.entry
    assert "__kernel" in code.source
    for bad in (b"", b"something else", image[:40]):
        with pytest.raises(ValueError):
            opencl.load(bad, [program.name])


def test_a_tile_is_made_of_vectors(opencl: OpenCLDevice) -> None:
    if not opencl.info.host_memory:
        pytest.skip("the device is no processor")
    x = weft.tensor(np.ones((256, 256), np.float32), device="opencl")
    text = weft.explain(x @ x).kernels[-1].source
    widths = {int(n) for n in re.findall(r"\bfloat(\d+)\b", text)}
    assert max(widths, default=0) >= min(16, opencl.info.vector_bytes // 4)
    assert "fma(" in text
    assert "barrier" not in text
    assert "__local" in text or "reqd_work_group_size(1, 1, 1)" in text


def test_host_memory_is_not_copied(opencl: OpenCLDevice) -> None:
    if not opencl.info.host_memory:
        pytest.skip("the device has memory of its own")
    memory = opencl.allocate(100)
    one, other = (np.frombuffer(opencl.read(memory, 100), np.uint8) for _ in range(2))
    assert np.shares_memory(one, other)


def test_a_missing_driver_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class Error(Exception):
        pass

    class Bindings:
        @staticmethod
        def get_platforms() -> list[Any]:
            raise Error("PLATFORM_NOT_FOUND_KHR")

    Bindings.Error = Error  # type: ignore[attr-defined]
    monkeypatch.setattr(driver, "pyopencl", lambda: Bindings)
    with pytest.raises(DeviceError, match="install the one of your device's maker, or PoCL"):
        driver.all_devices()


def test_missing_bindings_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    bindings: Callable[[], Any] = driver.pyopencl.__wrapped__
    with pytest.raises(DeviceError, match=r"pip install 'weft\[opencl\]'"):
        bindings()


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    code = "import sys, weft; weft.ones(3).numpy(); assert 'pyopencl' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_backend_is_listed() -> None:
    assert any(s.name.startswith("opencl") for s in registry.statuses())


def test_compilers_say_nothing(tmp_path: Path) -> None:
    """With nothing cached a build prints nothing to stderr and warns of nothing: neither driver nor bindings do."""
    program = """
import weft
with weft.device("opencl"):
    x = weft.arange(5000.0).sin()
    print(x.sort().values.sum().item(), (x.reshape(50, 100) @ x.reshape(100, 50)).softmax(-1).sum().item())
"""
    env = {
        **os.environ,
        "POCL_CACHE_DIR": str(tmp_path / "pocl"),
        "WEFT_CACHE_DIR": str(tmp_path / "weft"),
        "WEFT_VERIFY": "0",
    }
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", program], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
