"""Measured limits: plausible, kept on disk, and what they say of a kernel."""

from __future__ import annotations

import pytest

from weft.backends.cpu import limits as measuring
from weft.backends.cpu.device import CpuDevice
from weft.backends.cpu.runtime import open_runtime
from weft.backends.limits import Level, Limits, described, from_json, to_json


def test_they_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device = CpuDevice(open_runtime())
    found = device.limits()
    assert found.measured and found.threads == device.runtime.pool.threads
    assert found.flops > 1e9 and found.levels[-1].name == "memory"
    assert all(x.read > 1e8 and x.copy > 1e8 for x in found.levels)
    assert "measured on this machine" in str(found)
    monkeypatch.setattr(measuring, "measure", lambda runtime: pytest.fail("measured again"))
    assert device.limits() is found
    assert CpuDevice(open_runtime()).limits() == found


def test_what_bounds_a_kernel() -> None:
    levels = (Level("L2", 1e6, 100e9, 120e9), Level("memory", float("inf"), 20e9, 30e9))
    limits = Limits(100e9, levels, 1, True)
    assert limits.bound(1e9, 1000, 1000).by == "compute"
    assert limits.bound(1e9, 1000, 1000).seconds == pytest.approx(0.01)
    assert limits.bound(1, 5e5, 0).by == "L2"
    assert limits.bound(1, 60e6, 0).seconds == pytest.approx(60e6 / 20e9)
    assert limits.bound(1, 60e6, 60e6).seconds == pytest.approx(120e6 / 30e9)


def test_as_text() -> None:
    limits = described(CpuDevice(open_runtime()).info)
    assert from_json(to_json(limits)) == limits and "not measured" in str(limits)
    for broken in (
        b"",
        b"{}",
        b"[]",
        b'{"flops": 1, "levels": [{"name": 3}], "threads": 1, "measured": true}',
    ):
        with pytest.raises(ValueError):
            from_json(broken)
