"""examples/digits.py, run as a user runs it: weft's main job on real input."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.py"
SIGNATURE = b"\x89PNG\r\n"


def test_digits_are_learned_and_reported(tmp_path: Path) -> None:
    plot = tmp_path / "digits.png"
    run = subprocess.run(
        [sys.executable, str(EXAMPLE), "--out", str(plot)], capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, run.stderr
    accuracy = re.search(r"\((\d+\.\d+)%\)", run.stdout)
    assert accuracy is not None, run.stdout
    assert float(accuracy[1]) >= 98
    assert plot.read_bytes().startswith(SIGNATURE)
