"""Files appear whole or not at all: whatever the writer meets, and wherever it is killed."""

from __future__ import annotations

import io
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends.disk import behind, drafts
from weft.backends.disk.behind import WriteBehind
from weft.backends.disk.writing import replacing
from weft.backends.registry import open_device
from weft.io import load_safetensors, save_safetensors

pytestmark = pytest.mark.skipif(os.name != "posix", reason="locks, links and limits of POSIX")


@pytest.mark.parametrize("apart", [1, 2])
def test_a_killed_writer_leaves_the_old_file(tmp_path: Path, apart: int) -> None:
    """SIGKILL before lines of what writes files, and at times spread over a longer write; several writers at once."""
    script = Path(__file__).parent / "killed.py"
    run = subprocess.run(
        [sys.executable, script, tmp_path, str(apart)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_drafts_of_living_processes_stay(tmp_path: Path) -> None:
    with replacing(tmp_path / "x") as file:
        (draft,) = os.listdir(tmp_path)
        (tmp_path / ".weft-draft-0123456789abcdef").write_bytes(b"left")
        (tmp_path / ".weft-draft-mine").write_bytes(b"another's")
        file.write(b"1")
        with replacing(tmp_path / "y") as other:
            other.write(b"2")
        assert sorted(os.listdir(tmp_path)) == sorted([draft, ".weft-draft-mine", "y"])
    assert sorted(os.listdir(tmp_path)) == [".weft-draft-mine", "x", "y"]


def test_a_draft_that_is_taken_for_abandoned_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, calls = drafts.lock, 0

    def late(file: object) -> bool | None:
        nonlocal calls
        calls += 1
        if calls == 1:
            drafts.remove_abandoned(tmp_path)
        return lock(file)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(drafts, "lock", late)
    with replacing(tmp_path / "x") as file:
        file.write(b"1")
    assert os.listdir(tmp_path) == ["x"] and calls == 3


def test_drafts_that_somebody_else_put_there(tmp_path: Path) -> None:
    """Links, pipes and devices under the name of a draft, as in a folder for everybody: not opened, not waited for."""
    kept = tmp_path / "kept"
    kept.write_text("mine")
    names = [tmp_path / f".weft-draft-{k:016x}" for k in range(4)]
    names[0].symlink_to(kept)
    os.mkfifo(names[1])
    names[2].symlink_to("/dev/zero")
    names[3].write_text("abandoned")
    before = len(os.listdir("/proc/self/fd"))
    drafts.remove_abandoned(tmp_path)
    assert [os.path.lexists(n) for n in names] == [True, True, True, False]
    assert kept.read_text() == "mine" and len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("flushed", [False, True])
def test_files_are_written_page_by_page(
    flushed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small and large pieces, flushed between or not: all but the last write, and flushes, end with a large page."""
    ends = list[int]()

    class Noted(io.FileIO):
        def write(self, data: Any, /) -> int:
            count = super().write(data)
            ends.append(self.tell())
            return count

    monkeypatch.setattr(drafts, "LARGE_PAGE", 1024)
    monkeypatch.setattr(io, "FileIO", Noted)
    rng = np.random.default_rng(1)
    for largest in (30, 1024, 1025, 5000):
        ends.clear()
        parts = [rng.bytes(int(n)) for n in rng.integers(0, largest + 1, 50)]
        flushes = list[int]()
        with replacing(tmp_path / "x") as file:
            assert file.write(np.zeros((0, 3), np.float32)) == 0
            for k, part in enumerate(parts):
                assert file.write(np.frombuffer(part, np.uint8)) == len(part)  # any buffer
                assert file.tell() == sum(map(len, parts[: k + 1]))
                if flushed and k % 7 == 0:
                    file.flush()
                    flushes.append(file.tell())
        whole = b"".join(parts)
        assert (tmp_path / "x").read_bytes() == whole
        assert all(end % 1024 == 0 or end in flushes for end in ends[:-1])
        if not flushed:
            assert len(ends) <= len(whole) // 1024 + 1


def test_permissions_go_to_the_open_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not to what somebody may have put in its place by then."""
    (tmp_path / "x").write_text("old")
    (tmp_path / "x").chmod(0o644)
    (tmp_path / "secret").write_text("")
    (tmp_path / "secret").chmod(0o600)
    create = drafts.create

    def swapped(folder: Path) -> Any:
        draft, file = create(folder)
        draft.unlink()
        draft.symlink_to(tmp_path / "secret")
        return draft, file

    monkeypatch.setattr(drafts, "create", swapped)
    with replacing(tmp_path / "x") as file:
        file.write(b"new")
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_links_permissions_and_what_is_no_file(tmp_path: Path) -> None:
    real, link = tmp_path / "there" / "real", tmp_path / "link"
    real.parent.mkdir()
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to(real)
    weft.save({"a": weft.ones(3)}, link)
    assert link.is_symlink() and stat.S_IMODE(real.stat().st_mode) == 0o640
    assert weft.load(real)["a"].tolist() == [1, 1, 1] and os.listdir(real.parent) == ["real"]
    weft.save({"a": weft.ones(3)}, "/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(weft.FileError, match=r"^/dev/full cannot be written: No space left on device\n"):
        weft.save({"a": weft.ones(3)}, "/dev/full")
    pipe, got = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    weft.save({"a": weft.ones(3)}, pipe)
    reader.join()
    assert got == [real.read_bytes()]
    if os.getuid() != 0:
        real.chmod(0o400)
        with pytest.raises(weft.FileError, match="Permission denied; what was there before is kept"):
            weft.save({}, real)


def test_folders_that_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is read-only, and one that vanishes while its file is written."""
    with pytest.raises(weft.FileError, match=r"there is no folder .*gone; make it first"):
        weft.save({}, tmp_path / "gone" / "x")
    gone = tmp_path / "gone"
    gone.mkdir()
    lost = pytest.raises(weft.FileError, match=r"there is no folder .*gone; make it first")
    with lost as caught, replacing(gone / "x") as file:
        for name in os.listdir(gone):
            os.unlink(gone / name)
        gone.rmdir()
        file.write(b"1")
    assert caught.value.location.startswith(__file__)
    if os.getuid() != 0:
        gone.mkdir(0o500)
        with pytest.raises(weft.FileError, match="Permission denied; what was there before is kept"):
            weft.save({}, gone / "x")


@contextmanager
def no_file_above(nbytes: int) -> Generator[None]:
    """As a disk that is full. (Python ignores the signal that comes with it.)"""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_behind_the_computation(tmp_path: Path) -> None:
    """The error of the thread that writes is raised where the user wrote `to`, and the old file is whole."""
    x = weft.zeros(3 << 20).to(f"disk:{tmp_path / 'x'}")  # 12 MiB
    old = weft.ones(3).to(f"disk:{tmp_path / 'y'}")
    with weft.memory_limit(open_device("cpu:0").used_bytes() + (16 << 20)):
        for act in (
            lambda: (x + 1).to(f"disk:{tmp_path / 'y'}"),
            lambda: save_safetensors({"a": x + 1, "b": x * 2}, tmp_path / "y"),
        ):
            with no_file_above(5 << 20), pytest.raises(weft.FileError, match="y cannot be written") as caught:
                act()
            assert "File too large; what was there before is kept" in str(caught.value)
            assert caught.value.location.startswith(__file__)
            assert not [t for t in threading.enumerate() if "write-behind" in t.name]
    assert sorted(os.listdir(tmp_path)) == ["x", "y"]
    assert old.tolist() == load_safetensors(tmp_path / "y")["tensor"].tolist() == [1, 1, 1]


def test_write_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order is kept between the thread's pieces and small ones; one piece waits at most; an error ends it."""
    monkeypatch.setattr(behind, "SMALL", 100)
    rng = np.random.default_rng(0)
    parts = [rng.bytes(int(n)) for n in rng.integers(1, 300, 60)]
    with open(tmp_path / "x", "wb") as file, WriteBehind(file) as writer:
        for part in parts:
            writer.write(memoryview(part))
    assert (tmp_path / "x").read_bytes() == b"".join(parts)

    go, written = threading.Event(), list[int]()

    class Slow(io.BytesIO):
        def write(self, data: Any) -> int:
            go.wait(10)
            if len(data) == 666:
                raise OSError(28, "No space left on device")
            written.append(len(data))
            return len(data)

        def fileno(self) -> int:
            return -1

    with pytest.raises(OSError, match="No space left"), WriteBehind(Slow()) as writer:
        writer.write(memoryview(bytes(200)))
        assert not written  # the caller computes meanwhile
        go.set()
        writer.write(memoryview(bytes(666)))
        assert written == [200]
        writer.write(memoryview(bytes(201)))
    assert written == [200]
