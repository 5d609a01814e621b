"""The tests of a module are found by its name, by its line or by its package's, and are seen to call it."""

from __future__ import annotations

from pathlib import Path

import module_tests
import pytest
from module_tests import called, find_tests, functions, modules, reach

LINE = "# Tests: tests/a/test_c.py, tests/test_d.py\n"
NAMED = (Path("tests/a/test_c.py"), Path("tests/test_d.py"))
MIRROR = (Path("tests/a/test_b.py"),)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that says nothing of its tests, in a package, and no tests."""
    monkeypatch.setattr(module_tests, "ROOT", tmp_path)
    for folder in ("weft/a", "tests/a"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "weft/a/__init__.py").write_text('"""A."""\n', encoding="utf-8")
    (tmp_path / "weft/a/b.py").write_text('"""B."""\n\nX = 1\n', encoding="utf-8")
    return tmp_path


def test_nothing_says_where_they_are(tree: Path) -> None:
    assert find_tests(Path("weft/a/b.py")) == ()


def test_the_like_named_file_in_the_same_folder(tree: Path) -> None:
    (tree / "tests/a/test_b.py").touch()
    (tree / "weft/a/__init__.py").write_text('"""A."""\n' + LINE, encoding="utf-8")
    assert find_tests(Path("weft/a/b.py")) == MIRROR


@pytest.mark.parametrize("text", ['"""B."""\n', '"""B.\n\nMore.\n"""\n'])
def test_the_line_below_the_docstring_comes_first(tree: Path, text: str) -> None:
    (tree / "tests/a/test_b.py").touch()
    (tree / "weft/a/b.py").write_text(text + LINE + "\nX = 1\n", encoding="utf-8")
    assert find_tests(Path("weft/a/b.py")) == NAMED


def test_lines_go_on_below(tree: Path) -> None:
    first, second = "# Tests: tests/a/test_c.py\n", "# Tests: tests/test_d.py\n"
    (tree / "weft/a/b.py").write_text(f'"""B."""\n{first}{second}\n{LINE}', encoding="utf-8")
    assert find_tests(Path("weft/a/b.py")) == NAMED


@pytest.mark.parametrize(
    "text", [LINE, '"""B."""\n\n' + LINE, '"""B."""\n# Of B.\n' + LINE, "X = 1\n" + LINE]
)
def test_a_line_elsewhere_is_a_comment(tree: Path, text: str) -> None:
    (tree / "weft/a/b.py").write_text(text, encoding="utf-8")
    assert find_tests(Path("weft/a/b.py")) == ()


def test_a_packages_line_is_about_its_modules(tree: Path) -> None:
    (tree / "weft/a/__init__.py").write_text('"""A."""\n' + LINE, encoding="utf-8")
    assert find_tests(Path("weft/a/b.py")) == find_tests(Path("weft/a/__init__.py")) == NAMED


def test_packages_that_define_nothing_are_no_modules(tree: Path) -> None:
    (tree / "weft/a/__init__.py").write_text('"""A."""\n\nfrom weft.a.b import X\n', encoding="utf-8")
    assert modules() == [Path("weft/a/b.py")]
    (tree / "weft/a/__init__.py").write_text('"""A."""\n\ndef f(): ...\n', encoding="utf-8")
    assert modules() == [Path("weft/a/__init__.py"), Path("weft/a/b.py")]


SOURCE = """\
class A:
    def f(self):
        def g():
            return [x for x in (lambda: [1])()]
        return g()
"""


def test_functions_are_those_in_classes_and_functions_too(tree: Path) -> None:
    (tree / "weft/a/b.py").write_text(SOURCE, encoding="utf-8")
    assert functions(Path("weft/a/b.py")) == {"A.f", "A.f.<locals>.g"}


def test_calls_are_counted_while_tests_run_and_not_when_they_import(tmp_path: Path) -> None:
    test = tmp_path / "test_digits.py"
    test.write_text(
        "from weft import naming, settings\n"
        "from weft.naming import is_own\n"
        "is_own()\n\n"
        "def test_verify():\n"
        "    settings.verify()\n",
        encoding="utf-8",
    )
    calls = called(test)
    assert "weft/naming.py" not in calls
    assert "verify" in calls["weft/settings.py"]


def test_functions_that_were_called_are_counted_once_they_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"weft/ir/ops.py": ["info"], "weft/naming.py": ["is_own", "no_longer_there"]}
    monkeypatch.setattr(module_tests, "called", lambda _: calls)
    everything = len(functions(Path("weft/naming.py")))
    assert list(reach([Path("weft/naming.py")])) == [(Path("weft/naming.py"), 1, everything)]


def test_what_is_not_reached_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module_tests, "called", lambda _: {})
    assert module_tests.main(["--reach", "weft/naming.py"]) == 1
    assert module_tests.main(["weft/naming.py", "weft/ir/index.py"]) == 0
    *_, first, second = capsys.readouterr().out.splitlines()
    assert first == "weft/naming.py: tests/core/tensor/test_types.py"
    assert second == "weft/ir/index.py: tests/ir/test_index.py"
