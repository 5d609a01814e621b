"""The example backend of manuals/backends.md, as a stranger would have it: installed by pip, found by its entry point,
and put through the conformance suite. weft knows nothing of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from weft.ir import dtypes
from weft.ir.expr import Const, Load, call
from weft.ir.index import Var
from weft.ir.loops import Buffer, Loop, Program, Scope, Store
from weft.ir.ops import Op

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "backend_c"
MANUAL = ROOT / "manuals" / "backends.md"


def quoted() -> list[tuple[str, str]]:
    """The files that the manual quotes, and what it quotes."""
    return re.findall(r"<!-- from: (.+?) -->\n```\w+\n(.*?)```", MANUAL.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize(("file", "text"), quoted(), ids=lambda x: x.rpartition("/")[2][:20])
def test_the_manual_quotes_it(file: str, text: str) -> None:
    assert text in (ROOT / file).read_text()


def test_the_manual_shows_the_c_that_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from weft_c.render import render

    f, n, i = dtypes.float32, Var("n", 1, 1000), Var("i", 0, 999)
    value = call(Op.MAX, call(Op.MUL, Load(f, "x", (i,)), Const(f, 2)), Const(f, 0))
    params = tuple(Buffer(name, f, n, Scope.GLOBAL) for name in "xy")
    body = (Loop(i, n, (Store("y", i, value),)),)
    shown = re.search(r"<!-- c: doubled -->\n```c\n(.*?)```", MANUAL.read_text(), flags=re.DOTALL)
    assert shown is not None
    assert render(Program("doubled", params, frozenset("y"), (n,), body)).text == shown[1]


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


@pytest.mark.parametrize(
    "chosen", [("-k", "copies or memory or errors or description or tensors"), ()], ids=["some", "whole"]
)
def test_it_conforms(environment: Mapping[str, str], tmp_path: Path, chosen: tuple[str, ...]) -> None:
    """Compiled without optimization, which takes less time: what the text means is the same."""
    real, quick = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"), tmp_path / "cc"
    quick.write_text(f'#!/bin/sh\nexec {real} "$@" -O0\n')
    quick.chmod(0o755)
    environment = {**environment, "CC": str(quick)}
    arguments = ("-m", "pytest", "-q", "-p", "weft.testing.plugin", "-p", "no:cacheprovider")
    suite = ("--pyargs", "weft.testing.conformance", "--device", "c", *chosen)
    done = run(environment, tmp_path, *arguments, *suite)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
