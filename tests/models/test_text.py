"""Tokenizers of folders, and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers

import weft
from tests.models.test_decoders import folder, made
from weft.__main__ import main
from weft.errors import FileError
from weft.models import Tokenizer


def tokenizer(path: Path) -> Path:
    """One token for each byte of 61."""
    table = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({c: k for k, c in enumerate(sorted(table)[:61])}, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.save(str(path / "tokenizer.json"))
    return path


def test_text_goes_to_ids_and_back(tmp_path: Path) -> None:
    (tokenizer(tmp_path) / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 5]}))
    found = Tokenizer(tmp_path)
    ids = found.encode("AB+12")
    assert found.decode(ids) == "AB+12" and found.ends == [3, 5]
    assert list(found.stream(ids)) == ["A", "B", "+", "1", "2"]


def test_what_is_missing_or_damaged_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(FileError, match="damaged"):
        Tokenizer(tmp_path)
    with pytest.raises(SystemExit, match="damaged"):
        main(["generate", str(tmp_path), "AB"])


def test_the_command_line_writes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer(folder(tmp_path, "gpt2", made("gpt2")))
    main(["generate", str(tmp_path), "AB", "--max-new-tokens", "5"])
    told = capsys.readouterr().out
    inner = Tokenizer(tmp_path)
    expected = [
        t for (t,) in weft.models.generate(weft.models.from_pretrained(tmp_path), [inner.encode("AB")], 5)
    ]
    assert told == "AB" + inner.decode(expected) + "\n"
    main(
        ["generate", str(tmp_path), "AB", "--max-new-tokens", "5", "--draft", "lookup", "--draft-tokens", "2"]
    )
    found = capsys.readouterr()
    assert found.out == told and found.err.startswith("Draft(lookup, 2): ")
