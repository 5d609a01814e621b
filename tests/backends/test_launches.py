"""What is known of a program's launches, as text and back."""

import pytest

from weft.backends.clike.parts import split
from weft.backends.launches import Entry, Part, describe, parse
from weft.ir.dtypes import float32
from weft.ir.expr import Const
from weft.ir.index import Var
from weft.ir.loops import Buffer, Program, Scope, Store


def test_entries_come_back() -> None:
    y = Buffer("y", float32, 4, Scope.GLOBAL)
    _, entries = split(
        [Program("p", (y,), frozenset({"y"}), (), (Store("y", 0, Const(float32, 1.0)),))], 0, 1, 8
    )
    entries.append(Entry("q", (Part("q", 3, 64, (0, 1), 4096),), 1, ("n",), (256,)))
    text = describe(entries)
    assert text is not None and parse(text) == entries


def test_blocks_of_run_time_have_no_text() -> None:
    assert describe([Entry("q", (Part("q", Var("n", 1, 9), 1, (0,)),), 1, ("n",), ())]) is None


@pytest.mark.parametrize("text", ["[{}]", "[1]", "[", '[{"name": "p", "parts": [{}]}]'])
def test_foreign_text(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)
