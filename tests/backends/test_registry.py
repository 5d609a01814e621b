"""Finding backends: third parties' among them, broken ones too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from weft.backends import registry
from weft.backends.dummy.device import DummyBackend


class Broken:
    """A third party's backend with a mistake."""

    name = "broken"

    def count(self) -> int:
        raise ZeroDivisionError("oops")

    def device(self, index: int) -> registry.Device:
        raise AssertionError


@pytest.fixture
def broken() -> Iterator[None]:
    registry.register(Broken())
    yield
    registry.unregister("broken")


def test_a_broken_backend_hides_no_other(broken: None) -> None:
    found = {s.name: s for s in weft.devices()}
    assert str(found["broken"]) == "broken: not available: its backend failed: ZeroDivisionError: oops"
    assert "cpu:0" in found and found["cpu:0"].info is not None


def test_open_devices_are_told_from_others() -> None:
    registry.register(DummyBackend(name="seen"))
    try:
        registry.open_device("seen:1")
        states = {s.name: s.state for s in registry.statuses()}
        assert (states["seen:0"], states["seen:1"]) == (registry.State.AVAILABLE, registry.State.OPEN)
    finally:
        registry.unregister("seen")


def test_an_entry_point_is_enough(tmp_path: Path) -> None:
    """A package that weft has never heard of is listed, and not imported before somebody asks."""
    (tmp_path / "other.py").write_text(
        "from weft.errors import DeviceError\n"
        "class Backend:\n"
        "    name = 'other'\n"
        "    def count(self):\n"
        "        raise DeviceError('it needs the driver of other: install other-driver')\n"
    )
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[weft.backends]\nother = other:Backend\n")
    code = (
        f"import sys; sys.path.append({str(tmp_path)!r}); import weft\n"
        "weft.zeros(2).realize(); assert 'other' not in sys.modules\n"
        "print([str(s) for s in weft.devices() if s.name == 'other'][0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "other: not available: it needs the driver of other: install other-driver\n"
