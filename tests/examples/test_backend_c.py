"""The example backend of manuals/backends.md, as a stranger would have it: installed by pip, found by its entry point,
and put through the conformance suite. weft knows nothing of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "backend_c"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a process where the package is installed, in a folder of its own."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", str(target), str(EXAMPLE)], check=True)
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), *([before] if before else [])])}


def run(environment: Mapping[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in that environment, in another folder than this repository."""
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=folder, check=False
    )


def test_it_is_listed(environment: Mapping[str, str], tmp_path: Path) -> None:
    listed = run(environment, tmp_path, "-m", "weft", "devices").stdout.splitlines()
    assert any(line.startswith("c:0: C compiled by ") for line in listed)


def test_without_a_compiler_it_says_what_to_install(environment: Mapping[str, str], tmp_path: Path) -> None:
    bare = {**environment, "PATH": str(tmp_path), "CC": ""}
    listed = run(bare, tmp_path, "-m", "weft", "devices").stdout
    assert "c: not available: there is no C compiler: install gcc or clang" in listed


def test_it_conforms(environment: Mapping[str, str], tmp_path: Path) -> None:
    arguments = ("-m", "pytest", "-q", "-p", "weft.testing.plugin", "-p", "no:cacheprovider")
    suite = ("--pyargs", "weft.testing.conformance", "--device", "c")
    done = run(environment, tmp_path, *arguments, *suite)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
