"""Every reason that a transform may refuse for has a kernel that it is given for, in the tests of the transforms."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.ir.kernel.transforms.golden import Row
from weft.ir.kernel import transforms
from weft.ir.kernel.transforms.base import Refusal

SOURCES = sorted(Path(transforms.__path__[0]).glob("*.py"))
NOT_TRANSFORMS = {"__init__", "arguments", "base"}
"""Files in which nothing is refused."""


def sites(path: Path) -> set[tuple[str, int]]:
    """The places in a file where a refusal is made: file, line."""
    calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    return {(path.stem, c.lineno) for c in calls if isinstance(c.func, ast.Name) and c.func.id == "Refusal"}


def rows() -> Iterator[Row]:
    for path in SOURCES:
        if path.stem not in NOT_TRANSFORMS:
            yield from import_module(f"tests.ir.kernel.transforms.test_{path.stem}").REFUSED


def test_every_reason_has_a_kernel_that_is_refused_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given = set[tuple[str, int]]()

    def made(refusal: Refusal, why: str) -> None:
        caller = sys._getframe(1)
        given.add((Path(caller.f_code.co_filename).stem, caller.f_lineno))
        object.__setattr__(refusal, "why", why)

    monkeypatch.setattr(Refusal, "__init__", made)
    for kernel, transform, _ in rows():
        transform.check(kernel)
    assert set[tuple[str, int]]().union(*map(sites, SOURCES)) - given == set()
