"""The GPU's benchmark runs on any device, small."""

from __future__ import annotations

import pytest

from benchmarks.gpu import ROWS, main


def test_every_row_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--device", "cpu", "--shrink", "1048576", "--seconds", "0.0001"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(ROWS)
    assert "WRONG" not in "\n".join(lines)
