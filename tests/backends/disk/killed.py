"""Run by test_writing.py: writers that are killed or meet others, and what there is of their files. The arguments
are an empty folder, and one of how many kills is tried."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import weft
from weft.backends.disk import behind, drafts, writing
from weft.backends.registry import open_device
from weft.core.execute import files

SOURCES = {m.__file__ for m in (behind, drafts, writing, files)}
FOLDER = Path(sys.argv[1])
APART = int(sys.argv[2])
PATH = FOLDER / "x"
ELEMENTS = 1 << 18


def at_line(number: int, action: Callable[[], object]) -> Callable[[], int]:
    """Call `action` before the line of that number is run, of those that write files, in any thread. The function
    returned stops that, and says how many there were."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        if event == "line":
            if count == number:
                action()
            count += 1
        return trace if frame.f_code.co_filename in SOURCES else None

    def stop() -> int:
        sys.settrace(None)
        threading.settrace(None)  # pyright: ignore[reportArgumentType]
        return count

    threading.settrace(trace)
    sys.settrace(trace)
    return stop


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(act: Callable[[], object], seconds: float | None = None) -> bool:
    """Whether a child that does this ends well; after so many seconds it is killed."""
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(3)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the writer failed by itself"
    return not os.WIFSIGNALED(status)


def values() -> set[float]:
    """The elements in the file, each once. It must be whole."""
    loaded: Any = weft.load(PATH, device="disk")
    tensors = (
        [loaded]
        if isinstance(loaded, weft.Tensor)
        else [t for t in loaded.values() if isinstance(t, weft.Tensor)]
    )
    return {float(e) for t in tensors for e in (t.numpy().min(), t.numpy().max())}


def left() -> int:
    return sum(name.startswith(".weft-draft-") for name in os.listdir(FOLDER))


def killed_at_lines(name: str, write: Callable[[int], object], every: int) -> None:
    write(0)
    stop = at_line(-1, kill_myself)
    write(1)
    lines = stop()
    old, ends, most = 1, 0, 0
    lines += 16  # removing what was left takes some more
    for k in range(0, lines, every):

        def act(k: int = k, new: int = old + 1) -> None:
            at_line(k, kill_myself)
            write(new)

        ends += in_child(act)
        found = values()
        assert found in ({float(old)}, {float(old + 1)}), (name, k, found)
        old = int(found.pop())
        most = max(most, left())
    assert ends * every <= 20, (name, ends, lines)
    assert most == 1 and old > 1, (name, most, old)  # one that was left is removed by the next
    write(0)
    assert left() == 0 and os.listdir(FOLDER).count("x") == 1
    print(name, "killed at", len(range(0, lines, every)), "lines of", lines)


def killed_at_times(write: Callable[[int], object], kills: int) -> None:
    write(1)
    start = time.perf_counter()
    in_child(lambda: write(1))
    lasts = time.perf_counter() - start
    old, changes = 1, 0
    for k in range(kills):
        in_child(lambda new=old + 1: write(new), lasts * (k + 0.5) / kills)
        found = values()
        assert found in ({float(old)}, {float(old + 1)}), (k, found)
        changes += found != {float(old)}
        old = int(found.pop())
    print("killed at", kills, "times; written in spite of it:", changes)


def read_while_written(writers: int, times: int) -> None:
    """Processes that write one file, while this one reads it."""

    def write(start: int) -> None:
        for k in range(times):
            weft.save({"a": weft.full((50_000,), start + k), "b": weft.full((9,), start + k)}, PATH)

    write(1)
    children: list[int] = []
    for w in range(writers):
        child = os.fork()
        if child == 0:
            try:
                write(100 * (w + 1))
                os._exit(0)
            finally:
                os._exit(3)
        children.append(child)
    reads, statuses = 0, list[int]()
    while len(statuses) < writers:
        assert len(values()) == 1
        reads += 1
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended:
            statuses.append(status)
    assert statuses == [0] * writers and left() == 0, statuses
    print("read", reads, "times while", writers, "processes wrote")


def not_synced(descriptor: int) -> None:
    """Syncing is for power failures, which are not tested, and takes most of the time."""


def main() -> None:
    os.fsync = not_synced
    source = weft.zeros(ELEMENTS).to(f"disk:{FOLDER / 'source'}")
    pieces = weft.zeros(24 * ELEMENTS).to(f"disk:{FOLDER / 'large'}")
    behind.SMALL = 1 << 10
    with weft.memory_limit(open_device("cpu:0").used_bytes() + (1 << 20)):
        killed_at_lines("to", lambda new: (source + new).to(f"disk:{PATH}"), 3 * APART)
        killed_at_lines(
            "save_safetensors",
            lambda new: weft.io.save_safetensors({"a": source + new, "b": source[:9] + new}, PATH),
            8 * APART,
        )
    killed_at_lines("save", lambda new: weft.save({"m": weft.full((9,), new), "step": new}, PATH), 2 * APART)
    with weft.memory_limit(open_device("cpu:0").used_bytes() + (16 << 20)):
        killed_at_times(lambda new: (pieces + new).to(f"disk:{PATH}"), 12 // APART)
    read_while_written(2, 20)


main()
