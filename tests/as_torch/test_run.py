"""`python -m weft run`: programs as they are, their arguments, how they end, and the list of what they missed."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import weft
from weft.core.execute import host_operations

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MANUAL = ROOT / "manuals" / "from_torch.md"


def run(*arguments: str, cwd: Path = HERE) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-m", "weft", "run", *arguments], check=False, capture_output=True, text=True, cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


def test_the_program_of_the_manual_runs_and_tells_what_the_manual_shows() -> None:
    program = HERE / "programs" / "spirals.py"
    done = run(str(program), "--epochs", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("82 parameters, torch.float32, loss below 0.7: ")
    assert [line for line in done.stderr.splitlines() if line not in MANUAL.read_text()] == []
    assert "torch.utils.tensorboard" in done.stderr and "8  torch.profiler.record_function" in done.stderr


def test_the_list_comes_after_an_exception_and_names_what_was_refused(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import torch\nthere = hasattr(torch, 'nope')\n")
    (tmp_path / "package" / "tool.py").write_text(
        "import sys, package, torch\nprint(sys.argv[1:], __name__, package.there)\n"
        "getattr(torch, 'no_such', None), torch.linalg.inv(torch.eye(2))\n"
        "torch.fx.symbolic_trace(torch.nn.Linear(1, 1))\n"
    )
    done = run("-m", "package.tool", "--lr", "3", cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == "['--lr', '3'] __main__ False\n"
    listed = {tuple(line.split()) for line in done.stderr.splitlines()}
    wanted = ["torch.fx.symbolic_trace", "torch.no_such", "torch.nope", "linalg.inv"]
    assert {("1", name) for name in wanted} <= listed
    assert "NotOffered: torch.fx.symbolic_trace" in done.stderr and "weft.compile" in done.stderr


@pytest.mark.usefixtures("torch")
def test_what_cannot_be_run_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    main = importlib.import_module("weft.__main__").main
    with pytest.raises(SystemExit, match=r"there is no file nowhere\.py"):
        main(["run", "nowhere.py"])
    with pytest.raises(SystemExit, match="usage"):
        main(["run", "-m"])
    main(["run", "--help"])
    assert "PROGRAM [ARGS ...]" in capsys.readouterr().out


@pytest.mark.usefixtures("torch")
def test_where_torch_itself_is_loaded_the_room_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    as_torch = importlib.import_module("weft.as_torch")
    as_torch.uninstall()
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    with pytest.raises(ImportError, match="torch itself is loaded"):
        as_torch.install()


def test_operations_of_the_host_are_told_to_who_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(host_operations, "_watchers", [])
    host_operations.watch(seen.append)
    weft.linalg.eigvalsh(weft.eye(2))
    assert seen and "eig" in seen[0]
