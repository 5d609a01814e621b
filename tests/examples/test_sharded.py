"""examples/sharded.py, run as a user runs it: one script on one device and on several."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "sharded.py"


def test_one_script_has_the_same_bits_on_all_devices() -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLE), "--steps", "4"],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "COLUMNS": "160"},
    )
    assert run.returncode == 0, run.stderr
    rows = [line for line in run.stdout.splitlines() if "cpu:0" in line and "│" in line]
    assert len(rows) >= 3 and all("those of cpu:0" in line for line in rows), run.stdout
    assert "dimension 1 in blocks of [12 26 38 52]" in run.stdout and "in even blocks" in run.stdout
    assert run.stdout.count("us longer") >= 16 and run.stdout.count("exchanges a step") == 2
    assert "predicted" in run.stdout
