"""What LLVM says of this machine is asked once for a processor and a library, and kept on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from weft import disk_cache
from weft.backends.cpu import detected as module
from weft.backends.cpu import llvm
from weft.backends.cpu.targets import Target

pytestmark = pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="this system has no /proc/cpuinfo")


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Grows with each question to LLVM; an empty cache, and nothing known yet."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    times: list[int] = []
    real = llvm.host_target()

    def target() -> Target:
        times.append(1)
        return real

    monkeypatch.setattr(llvm, "host_target", target)
    module.detected.cache_clear()
    yield times
    module.detected.cache_clear()


def test_llvm_is_asked_once_for_all_processes(asked: list[int]) -> None:
    first = module.detected()
    assert first == module.Detected(llvm.host_target(), llvm.version())
    count = len(asked)
    module.detected.cache_clear()
    assert module.detected() == first and len(asked) == count


@pytest.mark.parametrize("kept", [b"", b"[]", b"{", b'["a", "b", 3]', b"\xff", b'{"a": 1}', b"[1, 2, 3, 4]"])
def test_what_no_version_of_weft_wrote_is_asked_anew(asked: list[int], kept: bytes) -> None:
    key = module._key()
    assert key is not None
    disk_cache.put("host", key, kept)
    assert module.detected().target == llvm.host_target()


def test_another_processor_is_asked_about(
    asked: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module.detected()
    before = len(asked)
    text = Path("/proc/cpuinfo").read_text()
    other = tmp_path / "cpuinfo"
    for told, is_asked in (
        (text.replace("flags\t", "flags\t", 1), False),
        (text.replace(" sse2", ""), True),
        ("", True),
    ):
        other.write_text(told)
        monkeypatch.setattr(module, "_PROCESSORS", other)
        module.detected.cache_clear()
        module.detected()
        assert (len(asked) > before) == is_asked
        before = len(asked)
