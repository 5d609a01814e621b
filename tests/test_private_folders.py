"""The cache is loaded from folders and files that nobody else could have written, and made so that nobody can."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from weft import disk_cache, private_folders
from weft.__main__ import main

pytestmark = pytest.mark.skipif(not private_folders.POSIX, reason="a system without such permissions")
as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away"
)

KEY = "ab" * 32
SOMEBODY = 12345


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(disk_cache, "_warned", [])
    monkeypatch.setattr(private_folders, "_good", set[tuple[int, int]]())
    return tmp_path / "cache"


@contextmanager
def masked(umask: int) -> Iterator[None]:
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def entry(root: Path) -> Path:
    return root / "plan" / "ab" / f"{KEY}.weft"


LEVELS: dict[str, Callable[[Path], Path]] = {
    "root": lambda root: root,
    "kind": lambda root: root / "plan",
    "part": lambda root: root / "plan" / "ab",
}


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077, 0o777])
def test_all_that_is_made_is_private(root: Path, umask: int) -> None:
    with masked(umask):
        disk_cache.put("plan", KEY, b"data")
        assert disk_cache.get("plan", KEY) == b"data"
    for make in LEVELS.values():
        assert mode(make(root)) == 0o700
    assert mode(entry(root)) == 0o600


def test_temporaries_are_private_and_have_names_that_nobody_can_guess(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    rename = private_folders.Folder.rename

    def look(self: private_folders.Folder, old: str, new: str) -> None:
        seen.append((old, mode(Path(self.path, old))))
        rename(self, old, new)

    monkeypatch.setattr(private_folders.Folder, "rename", look)
    with masked(0):
        disk_cache.put("plan", KEY, b"data")
        disk_cache.put("plan", KEY, b"data")
    assert [m for _, m in seen] == [0o600, 0o600] and len({name for name, _ in seen}) == 2


@pytest.mark.parametrize("umask", [0o000, 0o002])
def test_a_program_leaves_nothing_that_others_may_read(root: Path, umask: int) -> None:
    """All that weft keeps for a real program, in another process."""
    code = f"import os, weft; os.umask({umask}); (weft.ones(3) * 2 + weft.arange(3)).tolist()"
    env = {**os.environ, "WEFT_CACHE_DIR": str(root), "WEFT_VERIFY": "0"}
    subprocess.run([sys.executable, "-c", code], env=env, timeout=120, check=True)
    found = [root, *root.rglob("*")]
    assert len(found) > 6
    assert [p for p in found if mode(p) != (0o700 if p.is_dir() else 0o600)] == []


def refused(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is loaded and nothing written, and one line says so."""
    before = sorted((str(p), p.lstat().st_mtime_ns) for p in root.parent.rglob("*") if not p.is_dir())
    with caplog.at_level(logging.WARNING, "weft"):
        for _ in range(3):
            assert disk_cache.get("plan", KEY) is None
            disk_cache.put("plan", KEY, b"mine")
            disk_cache.put("plan", "ac" * 32 if root.name != "ab" else KEY, b"mine")
    after = sorted((str(p), p.lstat().st_mtime_ns) for p in root.parent.rglob("*") if not p.is_dir())
    assert [a for a in after if "ac" * 32 not in a[0]] == before
    assert len(caplog.records) == 1 and "nothing is loaded from it" in caplog.text


@pytest.mark.parametrize("remembered", [False, True])
@pytest.mark.parametrize("bits", [0o020, 0o002, 0o077])
@pytest.mark.parametrize("level", LEVELS)
def test_folders_that_others_can_write_to_are_not_used(
    root: Path, level: str, bits: int, remembered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk_cache.put("plan", KEY, b"data")
    assert disk_cache.get("plan", KEY) == b"data"
    LEVELS[level](root).chmod(0o700 | bits)
    if not remembered:
        private_folders._good.clear()
    elif level != "part":
        return  # above, it is asked again where a folder was not found good before
    refused(root, caplog)


@as_root
@pytest.mark.parametrize("level", LEVELS)
def test_folders_of_others_are_not_used(root: Path, level: str, caplog: pytest.LogCaptureFixture) -> None:
    disk_cache.put("plan", KEY, b"data")
    os.chown(LEVELS[level](root), SOMEBODY, SOMEBODY)
    private_folders._good.clear()
    refused(root, caplog)


@as_root
def test_entries_of_others_are_not_loaded(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk_cache.put("plan", KEY, b"data")
    os.chown(entry(root), SOMEBODY, SOMEBODY)
    assert disk_cache.get("plan", KEY) is None and not entry(root).exists()
    disk_cache.put("plan", KEY, b"mine")
    assert disk_cache.get("plan", KEY) == b"mine" and not caplog.records


@pytest.mark.parametrize("bits", [0o020, 0o002])
def test_entries_that_others_could_write_are_not_loaded(root: Path, bits: int) -> None:
    disk_cache.put("plan", KEY, b"data")
    entry(root).chmod(0o600 | bits)
    assert disk_cache.get("plan", KEY) is None and not entry(root).exists()


def test_what_others_could_only_read_is_mended(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk_cache.put("plan", KEY, b"data")
    entry(root).chmod(0o644)
    for at in LEVELS.values():
        at(root).chmod(0o755)
    private_folders._good.clear()
    assert disk_cache.get("plan", KEY) == b"data" and not caplog.records
    assert mode(entry(root)) == 0o600 and all(mode(at(root)) == 0o700 for at in LEVELS.values())


def test_a_folder_of_many_uses_keeps_its_permissions(root: Path) -> None:
    root.mkdir()
    root.chmod(0o755)
    (root / "mine").write_text("for all to see")
    disk_cache.put("plan", KEY, b"data")
    assert disk_cache.get("plan", KEY) == b"data"
    assert mode(root) == 0o755 and mode(root / "plan") == 0o700


@pytest.mark.parametrize("what", ["pipe", "folder", "link", "link to a device", "broken link"])
def test_what_is_no_file_is_no_entry_and_nobody_waits(root: Path, what: str) -> None:
    disk_cache.put("plan", KEY, b"data")
    path = entry(root)
    whole = path.read_bytes()
    path.unlink()
    (root / "elsewhere").write_bytes(whole)
    match what:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to(root / "elsewhere")
        case "link to a device":
            path.symlink_to("/dev/zero")
        case _:
            path.symlink_to(root / "nowhere")
    assert disk_cache.get("plan", KEY) is None
    if what != "folder":
        disk_cache.put("plan", KEY, b"new")
        assert disk_cache.get("plan", KEY) == b"new" and path.is_file() and not path.is_symlink()
    assert (root / "elsewhere").read_bytes() == whole and not (root / "nowhere").exists()


@pytest.mark.parametrize("level", ["kind", "part"])
def test_a_link_in_place_of_a_folder_is_not_followed(root: Path, level: str) -> None:
    disk_cache.put("plan", KEY, b"data")
    real = LEVELS[level](root)
    real.rename(root.parent / "moved")
    real.symlink_to(root.parent / "moved")
    private_folders._good.clear()  # the folder itself was good, and is where it leads
    assert disk_cache.get("plan", KEY) is None
    disk_cache.put("plan", KEY, b"other")
    assert disk_cache.get("plan", KEY) is None
    disk_cache.clear()
    disk_cache.sweep(0)
    assert len(list((root.parent / "moved").rglob("*.weft"))) == 1


@as_root
def test_a_swapped_folder_is_noticed_though_the_old_one_was_good(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk_cache.put("plan", KEY, b"data")
    assert disk_cache.get("plan", KEY) == b"data"
    (root / "plan").rename(root / "old")
    (root / "plan" / "ab").mkdir(parents=True)
    entry(root).write_bytes((root / "old" / "ab" / f"{KEY}.weft").read_bytes())
    for path in (root / "plan", root / "plan" / "ab", entry(root)):
        os.chown(path, SOMEBODY, SOMEBODY)
    refused(root, caplog)


@pytest.mark.parametrize("sticky", [False, True])
def test_others_may_not_replace_what_is_above(
    root: Path, sticky: bool, caplog: pytest.LogCaptureFixture
) -> None:
    root.parent.chmod(0o1777 if sticky else 0o777)
    if sticky:
        disk_cache.put("plan", KEY, b"data")
        assert disk_cache.get("plan", KEY) == b"data"
    else:
        refused(root, caplog)
        assert not root.exists()
    root.parent.chmod(0o700)


@as_root
def test_folders_and_links_of_others_on_the_way(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    way = root.parent / "way"
    way.mkdir(mode=0o755)
    link = root.parent / "link"
    link.symlink_to(way)
    for path in (way / "cache", link / "cache"):
        monkeypatch.setenv("WEFT_CACHE_DIR", str(path))
        disk_cache.put("plan", KEY, b"data")
        assert disk_cache.get("plan", KEY) == b"data"  # a link of our own is followed
    os.lchown(link, SOMEBODY, SOMEBODY)
    private_folders._good.clear()
    assert disk_cache.get("plan", KEY) is None and "is a link of another user" in caplog.text
    monkeypatch.setenv("WEFT_CACHE_DIR", str(way / "cache"))
    assert disk_cache.get("plan", KEY) == b"data"
    os.chown(way, SOMEBODY, SOMEBODY)
    private_folders._good.clear()
    assert disk_cache.get("plan", KEY) is None and "way belongs to another user" in caplog.text


def test_links_that_lead_to_themselves(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    root.symlink_to(root)
    assert disk_cache.get("plan", KEY) is None and "too many links" in caplog.text


def test_a_refused_folder_is_reported(
    root: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    disk_cache.put("plan", KEY, b"data")
    main(["cache"])
    assert "1 entries" in capsys.readouterr().out
    for at in LEVELS.values():
        at(root).chmod(0o777)
        private_folders._good.clear()
        main(["cache", "--clear"])
        assert "is not used: others may write to" in capsys.readouterr().out
        assert entry(root).exists()
        at(root).chmod(0o700)
    main(["cache", "--clear"])
    assert "0 entries" in capsys.readouterr().out and not entry(root).exists()


def test_no_descriptor_is_left_open(root: Path) -> None:
    disk_cache.put("plan", KEY, b"data")
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    for k in range(20):
        disk_cache.put("plan", f"{k:02}" * 32, b"data")
        disk_cache.get("plan", f"{k + 10:02}" * 32)
    (root / "plan" / "05").chmod(0o777)
    entry(root).unlink()
    entry(root).mkdir()
    for key in ("05" * 32, KEY):
        disk_cache.get("plan", key)
        disk_cache.put("plan", key, b"data")
    disk_cache.sweep(0)
    disk_cache.usage()
    disk_cache.clear()
    assert not before or len(os.listdir("/proc/self/fd")) == before
