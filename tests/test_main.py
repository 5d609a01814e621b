"""The command line: `python -m weft ...`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.models.test_gguf import written
from weft import models, nn
from weft.__main__ import main
from weft.io import gguf_metadata, load_gguf, save_gguf
from weft.quantization import BlockFormat

TOKENS = json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {"h": 0, "i": 1}, "merges": []}})
GPT2 = json.dumps(
    {"model_type": "gpt2", "vocab_size": 2, "n_embd": 4, "n_layer": 1, "n_head": 1, "n_positions": 8}
)


def test_devices_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["devices"])
    listed = capsys.readouterr().out.splitlines()
    first = [line.partition(" ")[0] for line in listed]
    assert first[0] == "cpu:0:" and "dummy:0:" in first and any(name.startswith("cuda") for name in first)
    assert not any("<unknown>" in line for line in listed)


def test_an_expression_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", "weft.zeros(3, 4).cos() + F.relu(weft.ones(4))"])
    assert capsys.readouterr().out.startswith("1 kernel, ")


def test_one_kernel_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", "weft.arange(5).float() * 2", "--time", "--show", "schedule", "--show", "loops"])
    shown = capsys.readouterr().out
    assert "--- schedule of " in shown and "kernel " in shown and "define" not in shown
    main(["explain", "weft.arange(5).float() * 2", "--time"])
    assert "of the limit" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="there is no kernel 3: the expression takes 1"):
        main(["explain", "weft.arange(5).float() * 2", "--kernel", "3"])
    with pytest.raises(SystemExit):
        main(["devices", "--fast"])


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("weft.zeros(2) + weft.zeros(3)", "ShapeError"),
        ("weft.zeros(2).tolist()", "the expression is a list, not a Tensor"),
    ],
)
def test_a_mistake_is_one_message(expression: str, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        main(["explain", expression])


def test_the_cache_is_reported_and_cleared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    other = tmp_path / "not weft's"
    other.write_text("stays")
    main(["cache", "--clear"])
    assert capsys.readouterr().out == f"{tmp_path}: 0 entries, 0 bytes\n"
    assert other.exists()
    monkeypatch.setenv("WEFT_CACHE_DIR", "")
    main(["cache"])
    assert "no cache on disk" in capsys.readouterr().out


def test_the_demo_learns(capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo"])
    assert capsys.readouterr().out.endswith("400 of 400 points on the right spiral\n")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "FileNotFoundError: Tokenizer: there is no .*nowhere$"),
        ({}, "FileNotFoundError: Tokenizer: there is no .*tokenizer.json$"),
        ({"x.gguf": "GGUF"}, "tokenizer.json; the folder holds .*x.gguf, which may be given instead$"),
        ({"tokenizer.json": "{"}, "FileFormatError: .*Tokenizer: .* is damaged: [^\n]*$"),
        ({"tokenizer.json": TOKENS}, "FileNotFoundError: from_pretrained: there is no .*config.json$"),
        ({"tokenizer.json": TOKENS, "config.json": "[]"}, "is damaged: it holds no object$"),
        (
            {"tokenizer.json": TOKENS, "config.json": '{"model_type": "mamba"}'},
            "is of model_type 'mamba'; weft has bert",
        ),
        ({"tokenizer.json": TOKENS, "config.json": GPT2}, "holds no safetensors file$"),
        (
            {"tokenizer.json": TOKENS, "config.json": GPT2, "model.safetensors": "x" * 9},
            "FileFormatError: .*load_safetensors: [^\n]*$",
        ),
    ],
)
@pytest.mark.parametrize("command", ["generate", "serve"])
def test_a_folder_that_holds_no_model_is_told_in_a_line(
    tmp_path: Path, files: dict[str, str] | None, message: str, command: str
) -> None:
    pytest.importorskip("tokenizers")
    folder = tmp_path / "nowhere"
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    with pytest.raises(SystemExit) as told:
        main([command, str(folder), *(["hi"] if command == "generate" else [])])
    assert re.search(message, str(told.value)) and "\n" not in str(told.value)


def test_a_number_of_guesses_needs_a_draft(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--draft-tokens 3 says how many tokens a --draft guesses"):
        main(["generate", str(tmp_path), "ab", "--draft-tokens", "3"])


@pytest.mark.parametrize("option", ["--top-k=5", "--top-p=0.5", "--min-p=0.1"])
def test_what_is_drawn_needs_a_temperature(tmp_path: Path, option: str) -> None:
    with pytest.raises(SystemExit, match=f"{option[:7]} .* needs a --temperature above 0"):
        main(["generate", str(tmp_path), "ab", option])


@pytest.mark.parametrize("command", ["generate", "serve"])
def test_activations_of_a_file_are_rounded_where_that_is_asked_for(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    served: list[Any] = []
    monkeypatch.setattr("weft.serve.serve", lambda model, *args, **kwargs: served.append(model))
    read = models.from_gguf

    def noted(*args: Any, **kwargs: Any) -> Any:
        served.append(read(*args, **kwargs))
        return served[-1]

    monkeypatch.setattr(models, "from_gguf", noted)
    plain, _ = written(tmp_path / "plain.gguf", "qwen3", BlockFormat.Q8_0)
    tensors, metadata = load_gguf(plain), gguf_metadata(plain)
    count = int(tensors["token_embd.weight"].shape[0])
    tokens = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", *[f"<{k}>" for k in range(2, count)]]}
    path = tmp_path / "x.gguf"
    save_gguf(tensors, path, dict(metadata) | {f"tokenizer.ggml.{k}": v for k, v in tokens.items()})
    more = ["ab", "--max-new-tokens", "2"] if command == "generate" else []
    for activations, kind in (("float32", nn.BlockLinear), ("int8", nn.IntegerLinear)):
        served.clear()
        main([command, str(path), *more, "--activations", activations])
        assert all(type(m.lm_head) is kind for m in served) and served
    with pytest.raises(SystemExit, match="--activations int8 is for GGUF files"):
        main([command, str(tmp_path), *more, "--activations", "int8"])
    with pytest.raises(SystemExit):
        main([command, str(path), *more, "--activations", "int4"])
    with pytest.raises(SystemExit, match="--dtype bfloat16 is for folders of safetensors"):
        main([command, str(path), *more, "--dtype", "bfloat16"])
