"""Reading ahead only reads: it ends with its block, and never fails for its caller."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from weft.backends.disk import ahead
from weft.backends.disk.ahead import ReadAhead
from weft.backends.disk.file import MappedFile


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="the system reads ahead by advice only")
def test_parts_are_read_in_order_unless_they_are_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(tmp_path / "x", "w+b") as file:
        file.truncate(4 << 20)
        mapped = MappedFile(file)
    read, size = list[int](), 4 << 20
    real = MappedFile.read_into

    def cached(self: MappedFile, at: int) -> bool:
        return at == 1 << 18

    def noted(self: MappedFile, room: bytearray, at: int) -> None:
        read.append(at)
        real(self, room, at)

    monkeypatch.setattr(MappedFile, "is_cached", cached)
    monkeypatch.setattr(MappedFile, "read_into", noted)
    with ReadAhead() as reader:
        reader.want(mapped, 0, 1 << 20)
        reader.want(mapped, 2 << 20, size + (9 << 20))  # beyond the end: nothing is there
        until = time.monotonic() + 20
        while len(read) < 45 and time.monotonic() < until:
            time.sleep(0.002)
    assert read[:4] == [0, 2 << 18, 3 << 18, 2 << 20] and len(read) >= 45
    assert not [t for t in threading.enumerate() if "read-ahead" in t.name]


def test_what_is_left_at_the_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "x", "w+b") as file:
        file.truncate(2 << 20)
        mapped = MappedFile(file)
    asked, (started, go) = list[int](), (threading.Event(), threading.Event())

    def cached(self: MappedFile, at: int) -> bool:
        asked.append(at)
        started.set()
        return go.wait(20) and at > 0

    monkeypatch.setattr(MappedFile, "is_cached", cached)
    monkeypatch.setattr(ahead, "SMALL", 100)
    with ReadAhead() as reader:
        for _ in range(3):
            reader.want(mapped, 0, 2 << 20)
        reader.want(mapped, 0, 10)  # advice
        assert started.wait(20)
        threading.Timer(0.05, go.set).start()  # while the block waits for its thread
    assert not [t for t in threading.enumerate() if "read-ahead" in t.name]
    assert asked == [0]
