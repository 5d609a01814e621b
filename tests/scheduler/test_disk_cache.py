"""Plans on disk: found again without a compiler, never believed when damaged, safe with many processes."""

from __future__ import annotations

import itertools
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft import disk_cache
from weft.backends.cpu import elf
from weft.private_folders import Folder
from weft.scheduler import disk_cache as plans

PROGRAM = """
import sys, weft, numpy as np
x = weft.tensor(np.arange(48, dtype=np.float32).reshape(6, 8))
y = ((x @ x.T).softmax(-1) @ x + 1).relu()
s = weft.tensor(np.ones(8, np.float32))
step = weft.compile(lambda x: s.add_(x.sum(0)))
step(x); step(x)
n = weft.Variable("n", 1, 6)
rows = x[:n] @ x[:n].T + 1
some = [weft.bind(rows, n=k).sum().item() for k in (1, 4, 6)]
wide = x[: weft.Variable("n", 1, 5)] @ x.T  # the same text, other bounds
print(repr((float(y.sum().item()), s.tolist(), some, weft.bind(wide, n=5).shape)))
print(*sorted(m for m in sys.modules if m.startswith("weft.")), sep="\\n", file=sys.stderr)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(disk_cache, "_warned", [])
    return tmp_path


def start(folder: Path, program: str = PROGRAM) -> subprocess.Popen[str]:
    env = {**os.environ, "WEFT_CACHE_DIR": str(folder), "WEFT_VERIFY": "0"}
    return subprocess.Popen(
        [sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, set[str]]:
    """What it printed, and the modules it had loaded."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out, set(err.split())


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, set[str]]:
    """A cache that one process has filled, what it printed, and the modules it had loaded."""
    folder = tmp_path_factory.mktemp("filled")
    return folder, *finish(start(folder))


@pytest.fixture
def filled(folder: Path, first: tuple[Path, str, set[str]]) -> tuple[Path, str]:
    """A cache that a process has filled, and what it printed."""
    return shutil.copytree(first[0], folder, dirs_exist_ok=True), first[1]


def files(folder: Path, kind: str = "*") -> list[Path]:
    return [f for f in folder.glob(f"{kind}/*/*") if f.is_file()]


def test_a_second_process_neither_kernelizes_nor_schedules_nor_compiles(
    filled: tuple[Path, str], first: tuple[Path, str, set[str]]
) -> None:
    folder, want = filled
    assert "weft.scheduler.kernelize" in first[2]
    assert files(folder, "plan") and files(folder, "image") and files(folder, "native")
    second, modules = finish(start(folder))
    assert second == want
    for heavy in ("kernelize", "optimize", "build", "programs"):
        assert f"weft.scheduler.{heavy}" not in modules
    assert "weft.backends.cpu.render" not in modules and "weft.ir.passes.pipeline" not in modules
    if elf.AVAILABLE:
        assert "weft.backends.cpu.llvm" not in modules


DAMAGE = {
    "empty": lambda data: b"",
    "cut in the header": lambda data: data[:20],
    "cut": lambda data: data[: len(data) // 2],
    "one byte short": lambda data: data[:-1],
    "a bit flipped": lambda data: data[:-7] + bytes([data[-7] ^ 4]) + data[-6:],
    "bytes appended": lambda data: data + b"more",
    "something else": lambda data: b"\x7fELF" + bytes(500),
    "another version": lambda data: b"weft cache 0\n" + data[13:],
}


def test_names_on_disk_do_not_hang_on_the_package_s_name() -> None:
    """Where weft stood in for torch, nothing was found that others had left, nor what the worker built."""
    code = (
        "import sys, weft\nfrom weft import naming\nfrom weft.backends.registry import open_device\n"
        "from weft.ir.kernel.digest import digest\nfrom weft.scheduler.disk_cache import device_key\n"
        "from weft.scheduler.signature import signature\n"
        "from weft.scheduler.kernelize.kernels import kernelize_all\nnaming.call_it(sys.argv[1])\n"
        "x = weft.ones(4, 3).realize().double()\n"
        "_, y = weft.scan(lambda c, r: (c + r, c.half()), weft.zeros(3).double(), x)\n"
        "node = (y.sum(0).exp() + 1).value.node\nsig = signature([node])\n"
        "kernels = [digest(k.algorithm) for k in kernelize_all([(x.sin() + 1).value.node], 31)]\n"
        "print(sig.digest(), device_key(open_device('cpu:0')), kernels)\nprint(x.dtype)"
    )
    found = [
        subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=True).stdout
        for name in ("weft", "torch")
    ]
    assert found[0].splitlines()[0] == found[1].splitlines()[0]
    assert [f.splitlines()[1] for f in found] == ["weft.float64", "torch.float64"]


@pytest.mark.parametrize("kind", ["plan", "image", "native"])
def test_damaged_entries_are_rebuilt(filled: tuple[Path, str], kind: str) -> None:
    folder, want = filled
    damages = list(DAMAGE.values())
    random.Random(kind).shuffle(damages)
    for f, damage in zip(files(folder, kind), itertools.cycle(damages), strict=False):
        # empty still: a plan of one size is not looked for where there is one for all
        f.write_bytes(damage(f.read_bytes() or bytes(100)))
    got, _ = finish(start(folder))
    assert got == want
    _, modules = finish(start(folder))
    assert "weft.scheduler.build" not in modules  # whole again


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_entry_counts_as_absent_and_goes(folder: Path, how: str) -> None:
    disk_cache.put("plan", "ab" * 32, b"x" * 1000)
    (path,) = files(folder)
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    assert disk_cache.get("plan", "ab" * 32) is None
    assert not files(folder)


def test_an_entry_of_another_plan_is_not_taken(filled: tuple[Path, str]) -> None:
    """Intact, but what is inside belongs elsewhere."""
    folder, want = filled
    stored = files(folder, "plan")
    contents = [f.read_bytes() for f in stored]
    for f, data in zip(stored, contents[1:] + contents[:1], strict=True):
        f.write_bytes(data)
    images = files(folder, "image")
    contents = [f.read_bytes() for f in images]
    for f, data in zip(images, contents[1:] + contents[:1], strict=True):
        f.write_bytes(data)
    assert finish(start(folder))[0] == want


LAUNCH_OF_NOTHING = (
    '{"key": "k", "codes": [], "commands": [1, [], 0], "steps": [["launch", 0, [0], [], 0]], '
    '"replaces": [], "kernels": [["k", 0, 0, [], 0, "float32"]], "largest": []}'
)


LOOP_OF_NOTHING = LAUNCH_OF_NOTHING.replace(
    '["launch", 0, [0], [], 0]', '["repeat", 3, false, -1, [[], [], [], [["copy", 0, 7, 4, 0]]]]'
)


@pytest.mark.parametrize(
    "text", ["[]", "{}", "null", '{"key": "k"}', "not json", LAUNCH_OF_NOTHING, LOOP_OF_NOTHING]
)
def test_a_record_that_makes_no_sense_is_ignored(folder: Path, text: str) -> None:
    from weft.backends.registry import open_device

    disk_cache.put("plan", "k", text.encode())
    assert plans.load("k", open_device("cpu:0"), (), ()) is None
    assert disk_cache.get("plan", "k") is None


def test_four_processes_at_once_on_an_empty_cache(folder: Path) -> None:
    running = [start(folder) for _ in range(4)]
    assert len({finish(p)[0] for p in running}) == 1
    assert not list(folder.rglob("*.tmp"))
    _, modules = finish(start(folder))
    assert "weft.scheduler.build" not in modules


def test_a_killed_writer_leaves_nothing_that_is_believed(
    folder: Path, first: tuple[Path, str, set[str]]
) -> None:
    for delay in (0.2, 0.5, 0.8, 1.1):
        process = start(folder)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert finish(start(folder))[0] == first[1]


def test_writers_that_are_killed_in_the_middle(folder: Path) -> None:
    program = (
        "from weft import disk_cache as d\nprint('go', flush=True)\nk = 0\n"
        "while True:\n    d.put('plan', f'{k % 5:064d}', bytes([k % 5]) * 3_000_000); k += 1"
    )
    writers = [start(folder, program) for _ in range(3)]
    for w in writers:
        assert w.stdout is not None
        w.stdout.readline()
    time.sleep(0.3)
    for w in writers:
        w.kill()
        w.communicate()
    for k in range(5):
        found = disk_cache.get("plan", f"{k:064d}")
        assert found in (None, bytes([k]) * 3_000_000)


def test_the_least_recently_used_goes_first_and_leftovers_with_it(folder: Path) -> None:
    for k in range(6):
        disk_cache.put("plan", f"{k:064d}", bytes(1000))
        (path,) = [f for f in files(folder) if f.stem == f"{k:064d}"]
        os.utime(path, (1e9 + k, 1e9 + k))
    disk_cache.get("plan", f"{1:064d}")  # used: young again
    old = path.with_name(".half.1.1.tmp")
    young = path.with_name(".half.1.2.tmp")
    for f in (old, young):
        f.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    disk_cache.sweep(3200)
    kept = {int(f.stem) for f in files(folder) if f.suffix == ".weft"}
    assert kept == {1, 4, 5}
    assert not old.exists() and young.exists()


def test_a_folder_that_cannot_be_written_is_reported_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(folder / "file" / "below"))
    with caplog.at_level(logging.WARNING, "weft"):
        for k in range(3):
            disk_cache.put("plan", str(k), b"data")
            assert disk_cache.get("plan", str(k)) is None
    assert len(caplog.records) == 1 and "cannot be kept" in caplog.text
    out, _ = finish(start(folder / "file" / "below"))
    assert out


def test_a_full_disk_leaves_no_half_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Folder, name: str, data: bytes) -> None:
        write(self, name, data[:10])
        raise OSError(28, "No space left on device")

    write = Folder.write
    monkeypatch.setattr(Folder, "write", full)
    disk_cache.put("plan", "a" * 64, b"data")
    assert not files(folder)


def test_no_folder_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", "")
    disk_cache.put("plan", "a", b"data")
    assert disk_cache.get("plan", "a") is None
    assert disk_cache.usage() == disk_cache.Usage(None, 0, 0)


def test_clear_removes_entries_and_nothing_else(folder: Path) -> None:
    disk_cache.put("plan", "a" * 64, b"data")
    mine = folder / "mine.txt"
    mine.write_text("keep")
    assert disk_cache.usage().entries == 1
    disk_cache.clear()
    assert disk_cache.usage().entries == 0 and mine.read_text() == "keep"


def test_parts_of_a_key_are_kept_apart() -> None:
    assert disk_cache.digest("ab", "c") != disk_cache.digest("a", "bc")


def test_the_state_of_sources_is_that_of_their_sizes_and_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache, "_HOME", str(tmp_path))
    state = disk_cache.state.__wrapped__
    (tmp_path / "core" / "part" / "__pycache__").mkdir(parents=True)
    source = tmp_path / "core" / "part" / "a.py"
    source.write_text("x = 1")
    found = [state(("core",))]
    (tmp_path / "core" / "part" / "__pycache__" / "a.py").write_text("")
    (tmp_path / "core" / "notes.txt").write_text("")
    assert state(("core",)) == found[0]
    source.write_text("x = 10")
    found.append(state(("core",)))
    os.utime(source, (1, 1))
    found.append(state(("core",)))
    (tmp_path / "core" / "b.py").write_text("")
    found.append(state(("core",)))
    assert len({*found}) == 4


@pytest.mark.parametrize(
    "step",
    [
        ["launch", 2, [0, 1], [0], 0],
        ["launch", -1, [0, 1], [0], 0],
        ["launch", 0, [0, 3], [0], 0],
        ["launch", 0, [-1, 2], [0], 0],
        ["launch", 0, [0, 1], [0, -1], 0],
        ["launch", 0, [0, 1], [0], 1],
        ["launch", 0, [0, 1], [0]],
        ["copy", 3, 0, 8, 0],
        ["copy", 0, 3, 8, 0],
        ["copy", -1, 0, 8, 0],
        ["repeat", 2, False, 0, [[], [], [], []]],
        ["repeat", 2, False, -1, [[], [], []]],
        ["repeat", 2, False, -1, [[["repeat", 2, False, -1, [[], [], [], []]]], [], [], []]],
        ["repeat", 2, False, -1, [[["launch", 0, [0], [-2], 0]], [], [], []]],
        ["jump", 0],
    ],
)
def test_steps_outside_of_a_plan_are_refused(step: list[object]) -> None:
    """`load` takes such a plan for absent."""
    info = plans.KernelInfo("a", 0, 0, (), 0, "")
    reading = plans._Reading([info], (), 3, 2)
    body = [["launch", 0, [0], [-1], 0], ["copy", 1, 0, 8, 0]]
    fine = [["launch", 1, [0, 2], [7], 0], ["launch", 0, [], [], 0], ["repeat", 2, False, -1, [body] * 4]]
    assert len(reading.items(fine, frozenset())) == 3
    with pytest.raises((ValueError, IndexError)):
        reading.items([*fine, step], frozenset())
