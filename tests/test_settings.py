"""Environment variables are read in one place, when asked."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

import pytest

import weft
from weft import settings


def test_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_VERIFY", raising=False)
    assert not settings.verify()
    for value, expected in (("1", True), ("yes", True), ("0", False), ("", False), ("off", False)):
        monkeypatch.setenv("WEFT_VERIFY", value)
        assert settings.verify() is expected


def test_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_TIERS", raising=False)
    assert settings.tiers()
    monkeypatch.setenv("WEFT_TIERS", "0")
    assert not settings.tiers()


def test_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    assert settings.cache_dir() == tmp_path
    monkeypatch.setenv("WEFT_CACHE_DIR", "")
    assert settings.cache_dir() is None
    monkeypatch.delenv("WEFT_CACHE_DIR")
    default = settings.cache_dir()
    assert default is not None and default.name == "weft"


def test_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_TF32", raising=False)
    assert not settings.tf32()
    monkeypatch.setenv("WEFT_TF32", "1")
    assert settings.tf32()


def test_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_DEVICE", raising=False)
    assert settings.device() == "cpu"
    monkeypatch.setenv("WEFT_DEVICE", "dummy:1")
    assert settings.device() == "dummy:1"


def test_num_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_NUM_THREADS", raising=False)
    assert settings.num_threads() is None
    monkeypatch.setenv("WEFT_NUM_THREADS", "3")
    assert settings.num_threads() == 3
    for wrong in ("0", "-1", "many"):
        monkeypatch.setenv("WEFT_NUM_THREADS", wrong)
        with pytest.raises(ValueError, match=f"WEFT_NUM_THREADS must be a positive integer, not '{wrong}'"):
            settings.num_threads()


def test_only_settings_reads_the_environment() -> None:
    root = Path(weft.__file__).parent
    readers = {p.relative_to(root).as_posix() for p in root.rglob("*.py") if "os.environ" in p.read_text()}
    assert readers == {"settings.py"}


def test_every_variable_is_documented() -> None:
    source = Path(settings.__file__).read_text()
    assert set(re.findall(r'"(WEFT_\w+)"', source)) == set(
        re.findall(r"\| `(WEFT_\w+)`", settings.__doc__ or "")
    )


def test_an_older_instruction_set_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_CPU_LEVEL", raising=False)
    assert settings.cpu_level() is None
    monkeypatch.setenv("WEFT_CPU_LEVEL", "x86-64-v3")
    assert settings.cpu_level() == "x86-64-v3"


def test_drivers_get_a_folder_of_their_own_for_displays(monkeypatch: pytest.MonkeyPatch) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("other systems have no such folder")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with settings.runtime_folder():
        made = Path(os.environ["XDG_RUNTIME_DIR"])
        assert stat.S_IMODE(made.stat().st_mode) == 0o700 and not list(made.iterdir())
    assert not made.exists() and "XDG_RUNTIME_DIR" not in os.environ
