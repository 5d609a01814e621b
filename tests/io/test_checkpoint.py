"""PyTorch checkpoints and sharded safetensors."""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.io import load_sharded, load_torch, save_sharded


@pytest.mark.parametrize("legacy", [False, True])
def test_what_torch_saves(tmp_path: Path, legacy: bool) -> None:
    torch = pytest.importorskip("torch")
    saved = {
        "a": torch.arange(12.0).reshape(3, 4).t(),
        "part": torch.arange(10)[3:7],
        "b": [torch.nn.Parameter(torch.randn(2)), 3, "x", None],
        "half": torch.randn(3).bfloat16(),
        "od": OrderedDict(k=torch.tensor([True])),
        "dtype": torch.float32,
    }
    path = tmp_path / "x.pt"
    torch.save(saved, path, _use_new_zipfile_serialization=not legacy)
    got = load_torch(path)
    np.testing.assert_array_equal(got["a"].numpy(), saved["a"].numpy())
    assert got["part"].tolist() == [3, 4, 5, 6]
    assert got["b"][0].requires_grad and got["b"][1:] == [3, "x", None]
    assert got["half"].dtype is weft.bfloat16 and got["od"]["k"].tolist() == [True]
    assert got["dtype"] is weft.float32


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("run",))


def _archive(path: Path, content: object) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps(content, 2))


def test_nothing_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "evil.pt"
    _archive(path, {"a": Evil()})
    with pytest.raises(weft.ArgumentError, match=r"asks for .*print"):
        load_torch(path)
    load_torch(path, weights_only=False)
    assert capsys.readouterr().out == ""


def test_damage(tmp_path: Path) -> None:
    path = tmp_path / "bad.pt"
    for content in (b"", b"hello", b"PK\x03\x04nothing"):
        path.write_bytes(content)
        with pytest.raises(weft.ArgumentError, match=r"bad\.pt"):
            load_torch(path)


def test_sharded(tmp_path: Path) -> None:
    tensors = {"a": weft.ones(1000), "b": weft.arange(1000), "c": weft.ones(3, dtype=weft.bfloat16)}
    save_sharded(tensors, tmp_path, max_shard_bytes=5000)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    got = load_sharded(tmp_path)
    assert list(got) == list(tensors) and got["b"].tolist() == list(range(1000))
    index = next(tmp_path.glob("*.index.json"))
    index.write_text(index.read_text().replace("model-00001", "../model-00001"))
    with pytest.raises(weft.ArgumentError, match="not a file of its folder"):
        load_sharded(index)
