"""The diffs of manuals/adding.md apply to this tree, and the tests that they add pass there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "manuals" / "adding.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))


def diff_of(section: str) -> str:
    """The blocks of a section, in order, as one patch."""
    return "".join(re.findall(r"^```diff\n(.*?)^```$", section, re.M | re.S))


def files_of(diff: str) -> list[str]:
    """The files that a patch changes or makes."""
    return re.findall(r"^\+\+\+ b/(.+)$", diff, re.M)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the diffs change, with the byte code of what they do not: its sources keep their times."""
    for folder in ("weft", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for name in ("tools", "benchmarks", "examples", "manuals"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def ran(tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """What a command says that runs in the copy, and imports weft from there."""
    environment = os.environ | {
        "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "GIT_CEILING_DIRECTORIES": str(tree.parent)
    }  # fmt: skip
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


def applied(tree: Path, section: str) -> list[str]:
    """Change the copy as the section says. The files that were changed."""
    diff = diff_of(section)
    patch = tree / "section.diff"
    patch.write_text(diff, encoding="utf-8")
    made = ran(tree, "git", "apply", "-C1", "section.diff")
    assert made.returncode == 0, made.stderr
    return files_of(diff)


def outcome(tree: Path, section: str) -> subprocess.CompletedProcess[str]:
    """The tests that a section names, in the copy and on the copy's weft."""
    (named,) = re.findall(r"^    python -m pytest (.+)$", section, re.M)
    script = (
        "import sys, pytest, weft; assert sys.argv[1] in weft.__file__; sys.exit(pytest.main(sys.argv[2:]))"
    )
    options = ("-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider")
    return ran(tree, sys.executable, "-c", script, str(tree), *options, *shlex.split(named))


@pytest.mark.parametrize("name", SECTIONS)
def test_the_tests_of_a_tutorial_pass_with_its_change_and_fail_without(tree: Path, name: str) -> None:
    changed = applied(tree, SECTIONS[name])
    run = outcome(tree, SECTIONS[name])
    assert run.returncode == 0, run.stdout + run.stderr
    for file in changed:
        if not file.startswith("tests/"):
            (tree / file).unlink()
            if (ROOT / file).exists():
                shutil.copy(ROOT / file, tree / file)
    assert outcome(tree, SECTIONS[name]).returncode != 0
