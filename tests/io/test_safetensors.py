"""Safetensors: round trips, what others wrote, laziness, damaged files, atomic writing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft
from weft.backends import deferred
from weft.backends.disk.file import MappedFile
from weft.io import load_safetensors, safetensors_metadata, save_safetensors
from weft.io.safetensors import DTYPES


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {
        name: (rng.random((2, 3)) * 7).astype(weft.ir.dtypes.to_numpy(dtype))
        for name, dtype in DTYPES.items()
    }
    return {
        **found,
        "scalar": np.array(2.5, np.float32),
        "empty": np.zeros((0, 4), np.int8),
        "ünï.cödé": np.arange(3),
    }


def written(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def test_round_trip(tmp_path: Path) -> None:
    tensors = {name: weft.tensor(a) for name, a in arrays().items()}
    save_safetensors(tensors, tmp_path / "x.safetensors", {"who": "weft", "läng": "ö"})
    loaded = load_safetensors(tmp_path / "x.safetensors")
    assert set(loaded) == set(tensors)
    for name, a in arrays().items():
        assert loaded[name].dtype is tensors[name].dtype
        np.testing.assert_array_equal(loaded[name].numpy(), a)
    assert safetensors_metadata(tmp_path / "x.safetensors") == {"who": "weft", "läng": "ö"}
    assert os.listdir(tmp_path) == ["x.safetensors"]


def test_the_reference_implementation_reads_what_weft_writes(tmp_path: Path) -> None:
    reference = pytest.importorskip("safetensors.numpy")
    known = {n: a for n, a in arrays().items() if not n.startswith("F8")}  # which its NumPy side lacks
    save_safetensors({n: weft.tensor(a) for n, a in known.items()}, tmp_path / "x", {"a": "b"})
    found = reference.load_file(tmp_path / "x")
    for name, a in known.items():
        np.testing.assert_array_equal(found[name].astype(a.dtype) if name == "BF16" else found[name], a)


def test_weft_reads_what_the_reference_implementation_writes(tmp_path: Path) -> None:
    reference = pytest.importorskip("safetensors.numpy")
    wanted = {n: a for n, a in arrays().items() if a.dtype != ml_dtypes.bfloat16}
    reference.save_file(wanted, tmp_path / "x", {"format": "np"})
    found = load_safetensors(tmp_path / "x")
    assert set(found) == set(wanted)
    for name, a in wanted.items():
        np.testing.assert_array_equal(found[name].numpy(), a)


def test_nothing_is_read_before_it_is_used(tmp_path: Path) -> None:
    save_safetensors({"a": weft.arange(4.0), "b": weft.arange(3)}, tmp_path / "x")
    loaded = load_safetensors(tmp_path / "x")
    stored = {n: t.value.node.storage for n, t in loaded.items()}
    assert not any(s.is_filled for s in stored.values())
    assert (loaded["a"].shape, loaded["a"].dtype) == ((4,), weft.float32)
    assert loaded["a"].tolist() == [0, 1, 2, 3]
    assert stored["a"].is_filled and not stored["b"].is_filled
    memory = stored["a"].memory
    assert stored["a"].memory is memory


def test_the_file_may_be_replaced_once_loaded(tmp_path: Path) -> None:
    path = tmp_path / "x"
    save_safetensors({"a": weft.tensor([1.0])}, path)
    old = load_safetensors(path)
    save_safetensors({"a": weft.tensor([2.0])}, path)
    assert (old["a"].item(), load_safetensors(path)["a"].item()) == (1.0, 2.0)
    grown = load_safetensors(path)["a"]
    grown += 1
    assert grown.item() == 3.0 and load_safetensors(path)["a"].item() == 2.0


def test_a_module_loads_weights_without_copies(tmp_path: Path) -> None:
    model = weft.nn.Linear(3, 2)
    save_safetensors(model.state_dict(), tmp_path / "x")
    weights = load_safetensors(tmp_path / "x")
    other = weft.nn.Linear(3, 2)
    other.load_state_dict(weights)
    assert other.weight.value.node is weights["weight"].value.node
    assert not weights["weight"].value.node.storage.is_filled
    assert other.weight.tolist() == model.weight.tolist()


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}

DAMAGED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda p: p.write_bytes(b""), "it has only 0 bytes"),
    "text": (
        lambda p: p.write_bytes(b"hello world, this is not it"),
        "its first 8 bytes announce a header of 8031924123371070824 bytes, the file has 27",
    ),
    "no json": (lambda p: written(p, b"{oops"), "its header is not JSON"),
    "not utf-8": (lambda p: written(p, b'{"\xff": 1}'), "its header is not JSON"),
    "deep": (lambda p: written(p, b"[" * 100_000), "its header is not JSON"),
    "list": (lambda p: written(p, []), "its header is not JSON (it does not begin with '{')"),
    "twice": (lambda p: written(p, b'{"a": 1, "a": 2}'), "a name occurs twice"),
    "fields": (
        lambda p: written(p, {"a": {"dtype": "F32"}}),
        "the entry of 'a' must have dtype, shape",
    ),
    "negative": (lambda p: written(p, {"a": {**ENTRY, "shape": [-2]}}), "'a' has shape [-2]"),
    "size": (
        lambda p: written(p, {"a": {**ENTRY, "shape": [3]}}),
        "'a' of shape [3] and type F32 cannot have 8 bytes",
    ),
    "huge": (lambda p: written(p, {"a": {**ENTRY, "shape": [2**62, 8]}}), "is larger than any memory"),
    "gap": (
        lambda p: written(p, {"a": {**ENTRY, "data_offsets": [4, 12]}}, bytes(12)),
        "the bytes of 'a' begin at 4 instead of 0",
    ),
    "overlap": (
        lambda p: written(p, {"a": ENTRY, "b": {**ENTRY, "data_offsets": [4, 12]}}, bytes(12)),
        "the bytes of 'b' begin at 4 instead of 8",
    ),
    "short": (
        lambda p: written(p, {"a": ENTRY}, bytes(7)),
        "it is cut short: its tensors take 8 bytes, 7 follow the header",
    ),
    "long": (lambda p: written(p, {"a": ENTRY}, bytes(9)), "it is too long: its tensors take 8 bytes"),
    "metadata": (lambda p: written(p, {"__metadata__": {"a": 1}}), "__metadata__ must map texts to texts"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    make, why = DAMAGED[name]
    make(tmp_path / "x")
    with pytest.raises(weft.ArgumentError) as error:
        load_safetensors(tmp_path / "x")
    assert error.value.message.startswith(
        f"load_safetensors: {tmp_path / 'x'} is no valid safetensors file: "
    )
    assert why in error.value.message


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    save_safetensors({"a": weft.arange(3), "b": weft.ones(2, 2)}, tmp_path / "x")
    whole = (tmp_path / "x").read_bytes()
    for n in range(len(whole)):
        (tmp_path / "y").write_bytes(whole[:n])
        with pytest.raises(weft.ArgumentError):
            load_safetensors(tmp_path / "y")


def test_other_mistakes(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_safetensors(tmp_path / "nowhere")
    written(tmp_path / "x", {"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 1]}}, b"1")
    with pytest.raises(weft.DTypeError, match="'a' has elements of type F4; weft has BOOL, U8"):
        load_safetensors(tmp_path / "x")
    with pytest.raises(weft.ArgumentError, match="cannot be called '__metadata__'"):
        save_safetensors({"__metadata__": weft.ones(1)}, tmp_path / "x")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    save_safetensors({"a": weft.tensor([1.0])}, path)

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save_safetensors({"a": weft.tensor([2.0])}, path)
    assert os.listdir(tmp_path) == ["x"] and load_safetensors(path)["a"].item() == 1.0


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    save_safetensors({"a": weft.tensor([1.0])}, path)
    code = (
        "import os, weft\nfrom weft.io import save_safetensors\n"
        "x = weft.tensor([2.0])\n"  # what the device keeps in the cache is there
        "os.replace = lambda a, b: os._exit(9)\n"
        f"save_safetensors({{'a': x}}, {str(path)!r})"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 9
    assert load_safetensors(path)["a"].item() == 1.0


def test_large_tensors_are_read_in_large_pages_and_not_before_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    advise = MappedFile._advise

    def noted(self: MappedFile, advice: str, begin: int, end: int) -> None:
        asked.append((advice, end - begin))
        advise(self, advice, begin, end)

    monkeypatch.setattr(MappedFile, "_advise", noted)
    large = np.random.default_rng(0).standard_normal((600, 1001), np.float32)
    save_safetensors({"large": weft.tensor(large), "small": weft.ones(1000)}, tmp_path / "x")
    found = load_safetensors(tmp_path / "x")
    assert asked == []
    np.testing.assert_array_equal(found["large"].numpy(), large)
    assert found["small"].sum().item() == 1000.0
    assert asked == [("MADV_HUGEPAGE", large.nbytes)]


def test_bytes_that_were_copied_take_no_memory_of_the_mapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[tuple[int, int]] = []
    monkeypatch.setattr(MappedFile, "release", lambda self, begin, end: released.append((begin, end)))
    save_safetensors({"a": weft.arange(1000), "b": weft.ones(3)}, tmp_path / "x")
    found = load_safetensors(tmp_path / "x", "dummy:0")
    assert found["a"].sum().item() == 499500
    assert [end - begin for begin, end in released] == [8000]


def test_large_tensors_are_copied_in_pieces_that_are_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.arange(1000, dtype=np.float32)
    save_safetensors({"x": weft.tensor(values)}, tmp_path / "x.safetensors")
    pieces: list[tuple[int, int]] = []
    monkeypatch.setattr(deferred, "_PIECE_BYTES", 1024)
    monkeypatch.setattr(MappedFile, "release", lambda self, begin, end: pieces.append((begin, end)))
    found = load_safetensors(tmp_path / "x.safetensors", "dummy:0")["x"]
    np.testing.assert_array_equal(found.numpy(), values)
    assert [end - begin for begin, end in pieces] == [1024, 1024, 1024, 928]
    assert all(a[1] == b[0] for a, b in pairwise(pieces))
