"""Links between devices: fitted, measured once, and kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.backends import links as module
from weft.backends.dummy.device import DummyDevice, describe
from weft.backends.links import SIZES, Link, fit, from_json, links, measured, to_json
from weft.backends.registry import open_device


def test_a_line_is_found_again() -> None:
    link = Link(7e-6, 12e9)
    found = fit({n: link.seconds(n) for n in SIZES})
    assert found.alpha_s == pytest.approx(7e-6) and found.bytes_per_second == pytest.approx(12e9)


def test_small_copies_count_as_much_as_large_ones() -> None:
    link = Link(10e-6, 10e9)
    seconds = {n: link.seconds(n) * (1.05 if k % 2 else 0.95) for k, n in enumerate(SIZES)}
    found = fit(seconds)
    assert all(found.seconds(n) == pytest.approx(t, rel=0.15) for n, t in seconds.items())


def test_times_that_are_no_line_give_a_link_all_the_same() -> None:
    for seconds in ({1024: 1e-6}, {1024: 1e-6, 4096: 1e-6}, {1024: 1e-9, 4096: 1e-3}):
        found = fit(seconds)
        assert found.alpha_s >= 0 and found.bytes_per_second > 0


def test_a_link_on_disk_is_read_and_nothing_else_is() -> None:
    link = Link(1.5e-6, 3e9)
    assert from_json(to_json(link)) == link
    for data in (
        b"",
        b"[]",
        b"{}",
        b"3",
        b'{"alpha_s": -1, "bytes_per_second": 1}',
        b'{"alpha_s": 0, "bytes_per_second": 0}',
    ):
        with pytest.raises(ValueError):
            from_json(data)


def test_a_real_device_is_measured_once_on_a_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(module, "_known", {})
    monkeypatch.setattr(module, "SIZES", (1 << 10, 1 << 14, 1 << 18))
    cpu = open_device("cpu")
    first = links(cpu, cpu)
    assert 0 <= first.alpha_s < 1e-2 and 1e6 < first.bytes_per_second < 1e13
    monkeypatch.setattr(module, "measured", lambda *_: pytest.fail("measured again"))
    assert links(cpu, cpu) is first
    module._known.clear()
    assert links(cpu, cpu) == first


def test_measuring_takes_little_memory_and_gives_it_back() -> None:
    device, other = (
        DummyDevice(describe(0, memory_bytes=1 << 16)),
        DummyDevice(describe(1, memory_bytes=1 << 16)),
    )
    for target in (device, other):
        assert measured(device, target).bytes_per_second > 0
        assert device.used_bytes() == target.used_bytes() == 0 and device.pool.peak_bytes <= 1 << 14


def test_few_links_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_known", {})
    monkeypatch.setattr(module, "LINKS_KEPT", 3)
    monkeypatch.setattr(module, "measured", lambda *_: Link(1.0, 1.0))
    cpu = open_device("cpu")
    for k in range(5):
        links(cpu, Unstated(k))  # pyright: ignore[reportArgumentType]
    assert len(module._known) == 3


class Unstated:
    """A device of which only the description is asked."""

    def __init__(self, k: int) -> None:
        self.info = describe(k, "unstated")

    def fingerprint(self) -> str:
        return "none"
