"""The GPU's benchmark runs on any device, small."""

from __future__ import annotations

import pytest

from benchmarks import gpu


def test_every_row_is_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)  # torch's results are compared where a GPU is
    gpu.main(["--device", "cpu", "--shrink", "1048576", "--seconds", "0.0001"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(gpu.ROWS)
    assert "WRONG" not in "\n".join(lines)
