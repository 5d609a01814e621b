"""Examples in docstrings give what they say; those that say no result are sketches, and are not run."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from weft import naming

ROOT = Path(weft.__file__).parent
AS_TORCH = ROOT / "as_torch"
"""Weft in torch's place from its import on: no module to import in a test."""
FILES = [
    path.relative_to(ROOT.parent)
    for path in sorted(ROOT.rglob("*.py"))
    if AS_TORCH not in path.parents and ">>> " in path.read_text(encoding="utf-8")
]


def examples(file: Path) -> list[doctest.DocTest]:
    """The docstrings of a module with a result."""
    name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
    found = doctest.DocTestFinder().find(importlib.import_module(name), extraglobs={"weft": weft})
    return [test for test in found if any(e.want for e in test.examples)]


@pytest.fixture(autouse=True)
def called_weft() -> Iterator[None]:
    """The name that the examples show, whatever a test before this one has set."""
    name = naming.package()
    naming.call_it(naming.OWN)
    yield
    naming.call_it(name)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_an_example_gives_the_result_that_it_says(file: Path) -> None:
    report: list[str] = []
    for test in examples(file):
        doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert not report, "".join(report)
