"""The backend through NVIDIA's own bindings, over a C library that stands for the driver: types, results, names."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler"
)
@pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="the CUDA bindings are not installed")
def test_the_backend_through_the_bindings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.backends.cuda.library", str(tmp_path)]
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path), "WEFT_CACHE_DIR": ""}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "done", done.stdout + done.stderr
