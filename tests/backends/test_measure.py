"""Measuring a device: with a simulated clock there is nothing to wait for, so the numbers are only sane."""

from __future__ import annotations

import pytest

from weft.__main__ import main
from weft.backends.dummy.device import DummyDevice, describe
from weft.backends.measure import measure
from weft.backends.registry import open_device


@pytest.mark.parametrize("name", ["cpu", "dummy"])
def test_numbers_are_sane(name: str) -> None:
    m = measure(open_device(name), 1 << 20)
    assert 0 < m.plan_ns < 1e9 and 0 <= m.launch_ns < 1e8
    assert min(m.copy, m.upload, m.download) > 1e6


def test_memory_is_given_back_and_little_is_enough() -> None:
    device = DummyDevice(describe(0, memory_bytes=1 << 16))
    measure(device)
    assert device.used_bytes() == 0 and device.pool.peak_bytes <= 1 << 16


def test_the_command_prints_them(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("weft.backends.measure.LARGE", 1 << 20)
    main(["devices", "--measure"])
    lines = capsys.readouterr().out.splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("dummy:0:"))
    assert lines[at + 1].startswith("    plan ") and " GB/s, from the host " in lines[at + 1]
