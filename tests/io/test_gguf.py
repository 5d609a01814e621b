"""GGUF: what the package gguf writes and reads, damaged and hostile files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.errors import ArgumentError, FileError
from weft.io import gguf_metadata, load_gguf, save_gguf
from weft.io.gguf import _opened, load_with_metadata
from weft.quantization import BlockFormat, BlockTensor, to_blocks

METADATA: dict[str, Any] = {
    "general.architecture": "llama", "u32": np.uint32(7), "i8": np.int8(-3), "u64": np.uint64(1 << 63),
    "f32": np.float32(1.5), "f64": np.float64(0.1), "yes": True, "text": "hé", "empty": "",
    "numbers": np.array([1, -2, 3], np.int32), "floats": np.array([1.5, 2.0], np.float32),
    "texts": ("a", "", "ünï"),
}  # fmt: skip


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    x = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
    return {
        "plain": x,
        "half": x.astype(np.float16),
        "whole": (x * 9).astype(np.int16),
        "one": x[0],
        "deep": x.reshape(2, 3, 8, 8),
    }


def written(path: Path) -> Path:
    """A file as llama.cpp's own package writes it."""
    w = gguf.GGUFWriter(path, "llama")
    w.add_uint32("u32", 7)
    w.add_float32("f32", 1.5)
    w.add_bool("yes", True)
    w.add_array("texts", ["a", "", "ünï"])
    w.add_array("numbers", [1, -2, 3])
    for name, a in arrays().items():
        w.add_tensor(name, a)
    for f in (BlockFormat.Q8_0, BlockFormat.Q4_1):
        kind = gguf.GGMLQuantizationType[f.name]
        w.add_tensor(f.name, gguf.quantize(arrays()["plain"], kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


@pytest.mark.parametrize("device", [None, "disk"])
@pytest.mark.parametrize("load", [load_gguf, weft.load])
def test_what_llama_cpp_writes_is_read(load: Any, device: str | None, tmp_path: Path) -> None:
    found = load(written(tmp_path / "x.gguf"), device=device)
    for name, a in arrays().items():
        assert found[name].shape == a.shape
        np.testing.assert_array_equal(found[name].numpy(), a)
    for f in (BlockFormat.Q8_0, BlockFormat.Q4_1):
        t, kind = found[f.name], gguf.GGMLQuantizationType[f.name]
        assert t.format is f and t.shape == (6, 64)
        expected = gguf.dequantize(gguf.quantize(arrays()["plain"], kind), kind)
        np.testing.assert_array_equal(t.dequantize().numpy(), expected)
    metadata = gguf_metadata(tmp_path / "x.gguf")
    assert metadata["u32"] == 7 and metadata["yes"] is True and metadata["texts"] == ("a", "", "ünï")
    assert metadata["numbers"].tolist() == [1, -2, 3]


def test_a_file_object_is_read(tmp_path: Path) -> None:
    with open(written(tmp_path / "x.gguf"), "rb") as file:
        found = weft.load(file)
    np.testing.assert_array_equal(found["plain"].numpy(), arrays()["plain"])


def test_llama_cpp_reads_what_weft_writes(tmp_path: Path) -> None:
    tensors: dict[str, weft.Tensor | BlockTensor] = {n: weft.tensor(a) for n, a in arrays().items()}
    tensors["wide"] = weft.tensor([1.5, 2.5], dtype=weft.bfloat16)
    tensors["q"] = to_blocks(weft.tensor(arrays()["plain"]), BlockFormat.Q5_1)
    save_gguf(tensors, tmp_path / "x.gguf", METADATA)
    reader = gguf.GGUFReader(tmp_path / "x.gguf")
    by_name = {t.name: t for t in reader.tensors}
    for name, a in arrays().items():
        np.testing.assert_array_equal(by_name[name].data, a)
    kind = gguf.GGMLQuantizationType.Q5_1
    np.testing.assert_array_equal(by_name["q"].data, gguf.quantize(arrays()["plain"], kind))
    for key, value in METADATA.items():
        contents = reader.fields[key].contents()
        assert contents == (
            value.tolist() if isinstance(value, np.ndarray) else list(value) if key == "texts" else value
        )


def test_round_trip(tmp_path: Path) -> None:
    tensors = {n: weft.tensor(a) for n, a in arrays().items()} | {
        "none": weft.zeros(0, 4),
        "scalar": weft.tensor(2.5),
    }
    extra = {
        "nested": ((1, 2), (3,)),
        "alone": 5,
        "large": 1 << 40,
        "mixed": [1, 2.5],
        "flags": [True, False],
    }
    save_gguf(tensors, tmp_path / "x.gguf", METADATA | extra | {"general.alignment": 64})
    found = load_gguf(tmp_path / "x.gguf")
    assert list(found) == list(tensors)
    for name, t in tensors.items():
        read = found[name]
        assert isinstance(read, weft.Tensor)
        np.testing.assert_array_equal(read.numpy(), t.numpy())
    metadata = gguf_metadata(tmp_path / "x.gguf")
    assert metadata["f64"] == 0.1 and metadata["large"] == 1 << 40 and metadata["alone"] == 5
    assert [list(x) for x in metadata["nested"]] == [[1, 2], [3]] and metadata["mixed"].tolist() == [1.0, 2.5]
    assert metadata["flags"].tolist() == [True, False]


@pytest.mark.parametrize(
    "metadata, told",
    [
        ({"x": object()}, "'x' is a object"), ({"x": [1, "a"]}, "one type"), ({"x": [[1], 2]}, "beside"),
        ({"x": np.ones((2, 2))}, "'x' is a ndarray"), ({"x": 1j}, "complex"), ({"general.alignment": 12}, "alignment"),
    ],
)  # fmt: skip
def test_what_gguf_cannot_hold_is_refused_by_name(metadata: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=told):
        save_gguf({"w": weft.ones(2)}, tmp_path / "x.gguf", metadata)
    with pytest.raises(ArgumentError, match="'w' is bool"):
        save_gguf({"w": weft.ones(2) > 0}, tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


def u(n: int, size: int = 8) -> bytes:
    return n.to_bytes(size, "little")


def text(x: str) -> bytes:
    return u(len(x)) + x.encode()


def head(tensors: int = 0, entries: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + u(version, 4) + u(tensors) + u(entries)


def info(name: str = "w", shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + u(len(shape), 4) + b"".join(u(n) for n in shape) + u(kind, 4) + u(offset)


@pytest.mark.parametrize(
    "data, told",
    [
        (b"", "empty"), (b"GGUE" + bytes(40), "no GGUF"), (b"GGUF", "its end within the version"),
        (head(version=1), "version 1"), (b"GGUF" + (3).to_bytes(4, "big") + bytes(16), "big-endian"),
        (head(tensors=1 << 60), "more than there is room for"), (head(entries=1 << 63), "more than there is room for"),
        (head(entries=1) + u(1 << 62) + bytes(40), "the key of entry 0"),
        (head(entries=1) + text("k") + u(99, 4) + bytes(20), "unknown type 99"),
        (head(entries=1) + text("k") + u(9, 4) + u(4, 4) + u(1 << 61) + bytes(9), "numbers of 'k'"),
        (head(entries=1) + text("k") + u(9, 4) + u(8, 4) + u(2) + text("a") + u(1 << 50), "'k'"),
        (head(entries=1) + text("k") + u(9, 4) + (u(9, 4) + u(1)) * 9 + bytes(30), "nested deeper"),
        (head(entries=2) + (text("k") + u(4, 4) + u(1, 4)) * 2, "'k' twice"),
        (head(entries=1) + u(2) + b"\xff\xfe" + u(4, 4) + u(1, 4) + bytes(9), "no UTF-8"),
        (head(entries=1) + text("general.alignment") + u(4, 4) + u(0, 4), "an alignment of 0"),
        (head(tensors=2) + info() * 2 + bytes(64), "'w' twice"),
        (head(tensors=1) + info(shape=(1 << 40, 1 << 40)) + bytes(64), "beyond its end"),
        (head(tensors=1) + info(offset=1 << 40) + bytes(64), "beyond its end"),
        (head(tensors=1) + info(offset=7) + bytes(64), "not aligned"),
        (head(tensors=1) + info(kind=16) + bytes(64), "IQ2_XXS"),
        (head(tensors=1) + info(kind=77) + bytes(64), "unknown"),
        (head(tensors=1) + info(kind=8, shape=(33,)) + bytes(64), "no whole blocks of Q8_0"),
        (head(tensors=1) + text("w") + u(1 << 30, 4) + bytes(64), "axes for 'w'"),
    ],
)  # fmt: skip
def test_hostile_headers_are_refused_by_name(data: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(FileError, match=told) as refused:
        load_gguf(path)
    assert "x.gguf" in str(refused.value)


SMALL = head(2, 3) + text("general.alignment") + u(4, 4) + u(32, 4) + text("t") + u(9, 4) + u(8, 4) + u(2) + text("a") \
    + text("b") + text("n") + u(9, 4) + u(9, 4) + u(1) + u(0, 4) + u(3) + b"abc" + info() \
    + info("q", (32,), 8, 32)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=4), st.integers(0, 400))
def test_damaged_files_are_read_or_refused(
    tmp_path_factory: Any, changes: list[tuple[int, int]], size: int
) -> None:
    data = bytearray(SMALL.ljust(-(-len(SMALL) // 32) * 32 + 96, b"\1"))
    for at, byte in changes:
        data[at % len(data)] = byte
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(data[: size if size < 300 else len(data)])
    try:
        for t in load_gguf(path).values():
            (t.dequantize() if isinstance(t, BlockTensor) else t).numpy()
    except FileError:
        pass


def test_the_small_file_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(SMALL.ljust(-(-len(SMALL) // 32) * 32 + 96, b"\1"))
    assert set(load_gguf(path)) == {"w", "q"} and gguf_metadata(path)["t"] == ("a", "b")


def test_what_is_read_without_texts_is_the_rest_of_the_file(tmp_path: Path) -> None:
    entries = {"before": 1, "texts": ["a", "", "\u00fcber"], "deep": [["a"], ["b", "c"]], "after": 2.5}
    save_gguf({"w": weft.arange(3.0)}, tmp_path / "x", entries)
    metadata, tensors = load_with_metadata(tmp_path / "x")
    assert metadata == {"before": 1, "texts": (), "deep": ((), ()), "after": 2.5}
    w = tensors["w"]
    assert isinstance(w, weft.Tensor) and w.tolist() == [0, 1, 2]


@pytest.mark.parametrize("texts", [tuple, lambda texts: ()])
@pytest.mark.parametrize("length", [7, 1 << 20, (1 << 64) - 1])
def test_texts_that_go_beyond_the_end_are_refused_read_or_not(
    tmp_path: Path, texts: Any, length: int
) -> None:
    save_gguf({}, tmp_path / "x", {"texts": ["a" * 6]})
    data = (tmp_path / "x").read_bytes()
    at = data.index((6).to_bytes(8, "little") + b"aaaaaa")
    (tmp_path / "x").write_bytes(data[:at] + length.to_bytes(8, "little") + b"aaaaaa")
    with pytest.raises(weft.FileError, match="its end within a text of 'texts'"):
        _opened(tmp_path / "x", texts)
