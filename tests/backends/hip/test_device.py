"""The HIP device over a fake runtime: tensors, plans, graphs, memory, images, linking, and a missing driver."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft
from tests.backends.hip.fake import FakeComgr, FakeHip
from tests.backends.hip.test_objects import INFO
from weft.backends import registry
from weft.backends.cuda import device as cuda
from weft.backends.hip import compile as compiling
from weft.backends.hip import device as devices
from weft.backends.hip import driver
from weft.backends.hip.code_object import parse
from weft.backends.hip.device import HipBackend
from weft.backends.hip.driver import CALLS, HipDriver
from weft.backends.hip.link import Linker
from weft.ir.loops import Program
from weft.scheduler.lowering import lowered
from weft.testing.kernels import CASES


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHip]:
    """The runtime under "hip:0". It knows the grids of all kernels that are compiled meanwhile."""
    grids: dict[str, Program] = {}
    entries_of = compiling.entries_of

    def noted(*args: Any) -> Any:
        found, entries = entries_of(*args)
        grids.update({g.name: g for g in found})
        return found, entries

    hip = FakeHip(grids)
    monkeypatch.setattr(compiling, "entries_of", noted)
    monkeypatch.setattr(devices, "open_driver", lambda: HipDriver(hip, lambda: Linker(FakeComgr(3))))
    monkeypatch.setattr(registry, "_backends", {**registry._backends, "hip": HipBackend()})
    monkeypatch.setattr(registry, "_devices", dict(registry._devices))
    yield hip


def test_tensors_are_computed_on_it(fake: FakeHip) -> None:
    info = registry.open_device("hip").info
    assert info.description == "Fake Instinct, gfx90a:sramecc+:xnack-, 4 compute units, 0.2 GiB"
    assert (info.local_bytes, info.warp, info.bounds.blocks) == (64 << 10, 64, 4194303)
    r = np.random.default_rng(0)
    a, w = r.standard_normal((6, 8)).astype(np.float32), r.standard_normal((8, 5)).astype(np.float32)
    x, v = weft.tensor(a, device="hip"), weft.tensor(w, device="hip", requires_grad=True)
    loss = (x @ v).tanh().sum()
    loss.backward()
    t = np.tanh(a @ w)
    np.testing.assert_allclose(loss.item(), t.sum(), rtol=1e-5)
    np.testing.assert_allclose(v.grad.numpy(), a.T @ (1 - t * t), rtol=1e-4, atol=1e-5)
    assert fake.launches


def test_a_plan_that_repeats_becomes_a_graph(fake: FakeHip) -> None:
    step = weft.compile(lambda x: ((x / x.sum(0)) ** 2).sum(1))
    a = np.random.default_rng(2).random((40, 3)).astype(np.float32)
    x = weft.tensor(a, device="hip")
    for _ in range(4):
        np.testing.assert_allclose(step(x).numpy(), ((a / a.sum(0)) ** 2).sum(1), rtol=1e-5)
    assert fake.graph_launches >= 1


def test_runtime_variables_and_large_copies(fake: FakeHip) -> None:
    n = weft.Variable("n", 1, 50)
    data = np.random.default_rng(3).random(50).astype(np.float32)
    part = weft.tensor(data, device="hip").narrow(0, 0, n) * 2
    for size in (7, 50):
        np.testing.assert_array_equal(weft.bind(part, n=size).numpy(), data[:size] * 2)
    large = np.random.default_rng(4).integers(0, 255, 2 * cuda.STAGING_BYTES + 17, dtype=np.uint8)
    assert np.array_equal(weft.tensor(large, device="hip").numpy(), large)


def test_memory_errors_and_images(fake: FakeHip) -> None:
    device = registry.open_device("hip")
    with pytest.raises(MemoryError, match="no 536,870,912 bytes left"):
        device.allocate(1 << 29)
    x = weft.ones(5, device="hip") * 3
    assert x.tolist() == [3.0] * 5
    kernel = fake.launches[-1][0]
    codes, image = device.compile([fake.grids[kernel]])
    assert parse(image[image.index(b"\x7fELF") :]).kernels and "amdgpu_kernel" in codes[0].source
    with pytest.raises(ValueError, match="not an image of this backend"):
        device.load(b"something", ["k"])
    listing = device.listings(fake.grids[kernel])
    assert set(listing) == {"llvm", "assembly", "resources"} and "0 spilled" in listing["resources"]


def test_linking_by_either_version() -> None:
    chip = compiling.target("gfx90a")
    program = lowered(CASES["columns"].algorithm, INFO)
    code = compiling.compile_programs([program], chip, 1 << 16).code
    for major in (2, 3):
        comgr = FakeComgr(major)
        assert Linker(comgr).link(code, "gfx90a") == code and comgr.isa == b"amdgcn-amd-amdhsa--gfx90a"
    with pytest.raises(weft.DeviceError, match="libamd_comgr is version 4; weft knows 2 and 3: install ROCm"):
        Linker(FakeComgr(4))


def test_every_call_of_the_device_has_its_counterpart() -> None:
    """What the cuda device asks its driver for."""
    import re
    from pathlib import Path

    called: set[str] = set()
    for file in ("device", "allocator"):
        called |= set(re.findall(r'"(cu[A-Z]\w+)"', (Path(cuda.__file__).parent / f"{file}.py").read_text()))
    own = {"cuLinkCreate", "cuLinkAddData", "cuLinkComplete", "cuLinkDestroy", "cuFuncSetAttribute"}
    special = set(HipDriver(None, lambda: Linker(None))._special)
    assert called - own <= set(CALLS) | special, called - own - set(CALLS) - special


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(driver, "_load", missing)
    monkeypatch.setattr(registry, "_BUILT_IN", {"hip": "weft.backends.hip:open_backend"})
    monkeypatch.setattr(registry, "_entry_points", dict)
    monkeypatch.setattr(registry, "_backends", {})
    monkeypatch.setattr(registry, "_devices", dict(registry._devices))
    why = "there is no HIP runtime (libamdhip64) here: install ROCm for this machine's AMD GPU"
    assert list(map(str, weft.devices())) == [f"hip: not available: {why}"]
    with pytest.raises(weft.DeviceError) as caught:
        weft.ones(2, device="hip")
    assert caught.value.message == why
    with pytest.raises(weft.DeviceError, match="lacks libamd_comgr: install ROCm's package comgr"):
        driver._open_linker()


def test_importing_weft_does_not_look_for_it() -> None:
    code = "import sys, weft; assert not any(m.startswith('weft.backends.hip') for m in sys.modules)"
    subprocess.run([sys.executable, "-c", code], timeout=120, check=True)
