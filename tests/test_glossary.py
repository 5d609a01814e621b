"""The glossary names what is there, once, and in the words that it prescribes."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "manuals" / "glossary.md").read_text(encoding="utf-8")
TERMS, _, NAMES = PAGE.partition("## One word, several things")
ROWS = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([\w.]+)` \|[^|]*\|$", TERMS, re.M)


def found(name: str) -> bool:
    """Whether `name` under weft is a module, or an attribute of one."""
    module, _, attribute = name.rpartition(".")
    try:
        importlib.import_module(f"weft.{name}")
    except ModuleNotFoundError:
        try:
            return hasattr(importlib.import_module(f"weft.{module}"), attribute)
        except ModuleNotFoundError:
            return False
    return True


@pytest.mark.parametrize(("term", "name"), ROWS, ids=[term for term, _ in ROWS])
def test_a_term_lives_where_the_glossary_says(term: str, name: str) -> None:
    assert found(name)


def test_every_row_has_a_place_and_no_term_stands_twice() -> None:
    terms = [term for term, _ in ROWS]
    assert len(terms) == len(set(terms)) == len(re.findall(r"^\| (?!term|---)", TERMS, re.M))


def test_a_name_that_is_not_there_is_not_found() -> None:
    assert found("ir.graph.Node") and not found("ir.graph.Nod") and not found("ir.grap.Node")


def test_words_that_mean_several_things_are_named_where_they_are() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \|", NAMES, re.M)
    assert rows
    assert [name for name in rows if not found(name)] == []
