"""Measured limits: plausible, kept on disk, and what they say of a kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

import weft
from weft.backends.cpu import roofline as measuring
from weft.backends.cpu.device import CpuDevice
from weft.backends.cpu.runtime import open_runtime
from weft.backends.cuda.peaks import peaks
from weft.backends.roofline import Level, Limits, Peak, described, from_json, to_json


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


def test_peaks_by_dtype() -> None:
    found = CpuDevice(open_runtime()).limits()
    assert {p.dtype for p in found.peaks} == {
        "float32", "float64", "int32", "float16", "bfloat16", "int8", "uint8",
    }  # fmt: skip
    assert found.peak("float32") == found.flops and found.peak("bool") == found.flops
    assert found.peak("float64") > 0.1 * found.flops  # half as many lanes, on a machine that others use too
    assert found.peak("bfloat16") == found.flops and found.peak("int8") == found.peak("int32")
    assert {p.source for p in found.peaks} == {
        "measured", "that of float32, which it is computed in", "that of int32, which it is computed in",
    }  # fmt: skip
    half = Limits(100e9, found.levels, 1, False, (Peak("float64", 50e9, "said"),))
    assert half.bound(1e9, 0, 0, "float64").seconds == pytest.approx(2 * half.bound(1e9, 0, 0).seconds)
    assert from_json(to_json(half)) == half and "50.0 (float64)" in str(half)


def test_a_kernel_is_measured_against_its_dtype() -> None:
    x = weft.tensor([[float(i * j % 7) for i in range(64)] for j in range(64)], dtype=weft.float64)
    (step,) = weft.explain(x @ x, time=True)
    assert step.timing is not None
    limits = CpuDevice(open_runtime()).limits()
    assert step.timing.bound.seconds == pytest.approx(
        max(2 * 64**3 / limits.peak("float64"), limits.bound(0, 2 * 8 * 64**2, 8 * 64**2).seconds), rel=0.5
    )


def test_peaks_of_gpus() -> None:
    info = replace(CpuDevice(open_runtime()).info, cores=132, flops=132 * 256 * 1.83e9)
    found = {p.dtype: p.operations_per_second for p in peaks((9, 0), info)}
    assert found["bfloat16"] == pytest.approx(989e12, rel=0.01) and found["float64"] == found["float32"]
    assert peaks((7, 5), info) == ()
