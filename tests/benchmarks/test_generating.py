"""The marks of `generate`: the files that they are measured with, and a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from benchmarks import generating
from benchmarks.generating import KINDS, main, models, start, vocabulary
from benchmarks.marks import Row


def test_a_made_vocabulary_has_its_texts_once_and_cuts_a_prompt_into_them() -> None:
    pytest.importorskip("tokenizers")
    entries = vocabulary(2000)
    assert len(set(entries["tokenizer.ggml.tokens"])) == 2000
    with models(["Q8_0"], 1, 2000) as paths:
        tokenizer = weft.models.Tokenizer(paths["Q8_0"])
        assert tokenizer.decode(tokenizer.encode(generating.PROMPT)) == generating.PROMPT


def test_a_process_says_when_its_first_token_came(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    with models(["Q8_0"], 1, 2000) as paths:
        found = start(paths["Q8_0"], "float32", tmp_path, 2)
    assert 0 < found["loaded"] < found["first"] and found["used"] > 0 and found["bytes"] > 1 << 24


def test_each_format_is_one_that_weft_makes() -> None:
    assert KINDS == ["BF16", "Q8_0", "Q4_0"]


def test_a_token_of_narrow_layers_is_timed() -> None:
    (row,) = generating.outside(1)
    assert row.mark == 3 and 0 < row.value < 1000


def test_marks_are_chosen_by_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generating, "MARKS", {"1,2": lambda rounds: iter([Row(2, "two", rounds)])})
    main(["--only", "2", "--rounds", "3"])
    assert "| 2 | two | 3 x |" in capsys.readouterr().out
