"""Files made to do harm, each refused with a FileError that names it: at once, without memory, and without running."""

from __future__ import annotations

import gc
import io
import json
import os
import pickle
import re
import resource
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.io import load_safetensors, load_sharded, load_torch, safetensors_metadata, save_sharded

STORAGE = b"((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n" + STORAGE
HOOKS = b"\x89ccollections\nOrderedDict\n)RtR."


def number(n: int) -> bytes:
    data = n.to_bytes(9, "little", signed=True)
    return b"\x8a" + bytes((len(data),)) + data


def numbers(*ns: int) -> bytes:
    return b"(" + b"".join(map(number, ns)) + b"t"


def tensor(size: bytes, stride: bytes, offset: bytes = b"K\x00") -> bytes:
    return b"\x80\x02" + REBUILD + offset + size + stride + HOOKS


def archive(content: bytes, data: bytes = bytes(16), method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        file.writestr("x/data.pkl", content)
        file.writestr("x/version", "3\n")
        file.writestr("x/data/0", data)
    return out.getvalue()


def called(name: bytes, args: bytes) -> bytes:
    return b"\x80\x02c" + name + args + b"R."


def doubled(levels: int, end: bytes) -> bytes:
    """A tuple that holds itself twice, and so on: few bytes, and a text without end."""
    return b"\x80\x02)" + b"2\x86" * levels + end


GOOD = tensor(numbers(2, 2), numbers(2, 1))

PICKLES: dict[str, bytes] = {
    "outside": tensor(numbers(2, 3), numbers(3, 1)),
    "offset": tensor(numbers(2, 2), numbers(2, 1), number(1)),
    "negative size": tensor(numbers(-2), numbers(1)),
    "negative stride": tensor(numbers(2), numbers(-1)),
    "huge": tensor(numbers(1 << 62, 1 << 62), numbers(0, 0)),
    "huge and empty": tensor(numbers(1 << 62, 0, 1 << 62), numbers(1, 1, 1)),
    "many dimensions": tensor(numbers(*[1] * 65), numbers(*[1] * 65)),
    "windows of windows": tensor(numbers(*[2] * 40), numbers(*[1] + [1] * 39)),
    "size and stride": tensor(numbers(2, 2), numbers(1)),
    "a size that is a text": tensor(b"(X\x01\0\0\x002t", numbers(1)),
    "a size that is true": tensor(b"(\x88t", numbers(1)),
    "an offset that is a list": tensor(numbers(1), numbers(1), b"]"),
    "no storage": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(]K\x00))" + HOOKS,
    "storage of another size": GOOD.replace(b"K\x04tQ", b"K\x05tQ"),
    "no such storage": GOOD.replace(b"X\x01\0\0\x000", b"X\x01\0\0\x009"),
    "storage elsewhere": GOOD.replace(b"X\x01\0\0\x000", b"X\x0a\0\0\0../version"),
    "large memory": b"\x80\x02(r\xff\xff\xff\x7f.",
    "long text": b"\x80\x02X\xff\xff\xff\xffabc.",
    "long bytes": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
    "long number": b"\x80\x02\x8b\xff\xff\xff\x7f1.",
    "negative length": b"\x80\x02\x8b\xff\xff\xff\xff1.",
    "digits": b"\x80\x02I" + b"9" * 5000 + b"\n.",
    "half a character": b"\x80\x02X\x02\0\0\0\xff\xfe.",
    "nothing on the stack": b"\x80\x02.",
    "a mark": b"\x80\x02(.",
    "items without a mark": b"\x80\x02]e.",
    "items for a number": b"\x80\x02K\x01(K\x02e.",
    "a key without a value": b"\x80\x02}(K\x01u.",
    "a key that is a list": b"\x80\x02}]K\x01s.",
    "a key without end": doubled(60, b"q\x00}h\x00Ns."),
    "a deep key": b"\x80\x02)" + b"\x85" * 100_000 + b"q\x00}h\x00Ns.",
    "unknown code": b"\x80\x02\xfe.",
    "extension": b"\x80\x02\x82\x01.",
    "protocol": b"\x80\x09N.",
    "bytes of a number": called(b"builtins\nbytearray\n", number(1 << 50) + b"\x85"),
    "new bytes of a number": b"\x80\x02cbuiltins\nbytearray\n" + number(1 << 50) + b"\x85\x81.",
    "list of a range": called(b"builtins\nlist\n", b"cbuiltins\nrange\n" + number(1 << 40) + b"\x85R\x85"),
    "text of all": called(b"builtins\nstr\n", b")" + b"2\x86" * 60 + b"\x85"),
    "a device without end": called(b"torch\ndevice\n", b")" + b"2\x86" * 60 + b"\x85"),
    "a storage without end": b"\x80\x02)" + b"2\x86" * 60 + b"Q.",
    "a number made of a tensor": called(b"builtins\nfloat\n", GOOD[2:-1] + b"\x85"),
    "a call of a tensor": b"\x80\x02" + GOOD[2:-1] + b")R.",
    "a call of a dtype": called(b"torch\nfloat32\n", b")"),
    "a bare tensor": b"\x80\x02ctorch\nTensor\n)\x81.",
    "a state for a tensor": b"\x80\x02" + GOOD[2:-1] + b"}X\x05\0\0\0numpyNsb.",
    "system": called(b"posix\nsystem\n", b"X\x02\0\0\0id\x85"),
    "eval": called(b"builtins\neval\n", b"X\x01\0\0\x001\x85"),
    "getattr": called(b"builtins\ngetattr\n", b"NN\x86"),
    "import": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.",
    "old import": b"(S'id'\nios\nsystem\n.",
    "array of objects": called(b"numpy\ndtype\n", b"X\x01\0\0\0O\x85"),
    "array of records": called(b"numpy\ndtype\n", b"X\x08\0\0\0i4,i4,i4\x85"),
    "array too short": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85NtR"
    b"(K\x01(K\x05tcnumpy\ndtype\nX\x02\0\0\0i8\x85R\x89c_codecs\nencode\nX\x01\0\0\0a\x85Rtb.",
    "default of a class": called(b"collections\ndefaultdict\n", b"ccollections\nOrderedDict\n\x85"),
    "complex": b"\x80\x02ctorch\ncomplex64\n.",
}  # fmt: skip


@pytest.fixture
def little_memory() -> Any:
    """No more than 300 MB beyond what there is, so that a bomb is an error and not the end of the machine."""
    gc.collect()
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 300_000_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="how much memory a process has")
@pytest.mark.parametrize("form", ["zip", "deflated", "legacy"])
@pytest.mark.parametrize("name", PICKLES)
def test_pickles(name: str, form: str, tmp_path: Path, little_memory: Any) -> None:
    content, path = PICKLES[name], tmp_path / "bad.pt"
    if form == "legacy":
        begin = b"".join(pickle.dumps(x, 2) for x in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
        end = pickle.dumps(["0"], 2) + struct.pack("<q", 4) + bytes(16)
        path.write_bytes(begin + content + end)
    else:
        path.write_bytes(
            archive(content, method=zipfile.ZIP_DEFLATED if form == "deflated" else zipfile.ZIP_STORED)
        )
    start = time.process_time()
    for act in (lambda: weft.load(path), lambda: load_torch(path)):
        with pytest.raises(weft.FileError, match=r"bad\.pt") as error:
            act()
        assert len(error.value.message) < 1000
    assert time.process_time() - start < 2


def test_the_good_ones_are_good() -> None:
    assert weft.load(io.BytesIO(archive(GOOD))).tolist() == [[0, 0], [0, 0]]
    expanded = weft.load(io.BytesIO(archive(tensor(numbers(1 << 30, 127), numbers(0, 0)))))
    assert expanded.shape == (1 << 30, 127) and expanded[5, 3:6].tolist() == [
        0,
        0,
        0,
    ]  # and no memory is asked for
    windows = weft.load(
        io.BytesIO(archive(tensor(numbers(2, 3), numbers(1, 1)), np.arange(4, dtype="f4").tobytes()))
    )
    assert windows.tolist() == [[0, 1, 2], [1, 2, 3]]


def test_archives_that_unpack_to_much(tmp_path: Path) -> None:
    text = pickle.dumps("a" * (200 << 20), 2)
    path = tmp_path / "bomb.pt"
    path.write_bytes(archive(text, method=zipfile.ZIP_DEFLATED))
    with pytest.raises(
        weft.FileError, match=r"bomb\.pt has .* bytes and would unpack to 209,.* max_expansion="
    ):
        weft.load(path)
    assert len(weft.load(path, max_expansion=2000)) == 200 << 20
    zeros = io.BytesIO()  # a storage of zeros, packed by hand
    with zipfile.ZipFile(zeros, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x/data.pkl", GOOD.replace(b"K\x04tQ", b"J" + struct.pack("<i", 1 << 20) + b"tQ"))
        file.writestr("x/data/0", bytes(4 << 20))
    with pytest.raises(weft.FileError, match="max_expansion"):
        weft.load(io.BytesIO(zeros.getvalue()))
    assert weft.load(io.BytesIO(zeros.getvalue()), max_expansion=2000).tolist() == [[0, 0], [0, 0]]


def fields(data: bytes, name: bytes) -> int:
    """Where the entry of a member begins in the directory."""
    return data.rindex(b"PK\x01\x02", 0, data.rindex(name))


def test_archives_that_lie(tmp_path: Path) -> None:
    good = archive(GOOD)
    at = fields(good, b"x/data/0")

    def changed(offset: int, kind: str, value: int) -> bytes:
        out = bytearray(good)
        struct.pack_into(kind, out, at + offset, value)
        return bytes(out)

    twice = io.BytesIO()
    with zipfile.ZipFile(twice, "w") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr("x/data.pkl", GOOD)
        file.writestr("x/data.pkl", GOOD)
    lies = {
        "encrypted": changed(8, "<H", 1), "packed otherwise": changed(10, "<H", 14), "checksum": changed(16, "<I", 1),
        "packed size": changed(20, "<I", 1 << 30), "size": changed(24, "<I", 17), "place": changed(42, "<I", 3),
        "far": changed(42, "<I", 0xFFFFFFF0), "name": good.replace(b"x/data/0", b"x/data/\xff"),
        "twice": twice.getvalue(),
        "cut": good[:-30], "no end": good[:-22],
        "not there": archive(GOOD.replace(b"X\x01\0\0\x000", b"X\x01\0\0\x001")),
    }  # fmt: skip
    for name, data in lies.items():
        with pytest.raises(weft.FileError, match="BytesIO"):
            weft.load(io.BytesIO(data)).tolist()
            pytest.fail(name)
    unpacked = bytearray(archive(GOOD, bytes(1000), zipfile.ZIP_DEFLATED))
    struct.pack_into(
        "<I", unpacked, fields(bytes(unpacked), b"x/data/0") + 24, 500
    )  # unpacks to more than it says
    with pytest.raises(weft.FileError, match="does not unpack to the 500 bytes"):
        weft.load(io.BytesIO(bytes(unpacked))).tolist()


def test_a_changed_byte_of_a_tensor_is_noticed() -> None:
    data = bytearray(archive(GOOD, zlib.crc32(b"seed").to_bytes(4, "little") * 4))
    data[data.index(b"x/data/0") + 8 + 3] ^= 1
    with pytest.raises(weft.FileError, match="checksum"):
        weft.load(io.BytesIO(bytes(data))).tolist()


def test_bools_are_0_and_1_whatever_the_file_says(tmp_path: Path) -> None:
    content = GOOD.replace(b"FloatStorage", b"BoolStorage")
    assert weft.load(io.BytesIO(archive(content, b"\0\1\2\xff"))).int().tolist() == [[0, 1], [1, 1]]
    head = json.dumps({"a": {"dtype": "BOOL", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(head)) + head + b"\0\1\2\xff")
    assert load_safetensors(tmp_path / "x")["a"].int().tolist() == [0, 1, 1, 1]
    for act in (lambda t: t.int().tolist(), lambda t: t.numpy(), lambda t: (~t).tolist()):
        with pytest.raises(weft.FileError, match="bools other than 0 and 1"):
            act(load_safetensors(tmp_path / "x", device="disk")["a"])


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
HEADERS: dict[str, bytes] = {
    "dtype list": json.dumps({"a": {**ENTRY, "dtype": ["F32"]}}).encode(),
    "dtype none": json.dumps({"a": {**ENTRY, "dtype": None}}).encode(),
    "dtype object": json.dumps({"a": {**ENTRY, "dtype": {}}}).encode(),
    "unknown dtype": json.dumps({"a": {**ENTRY, "dtype": "F4"}}).encode(),
    "dimensions": json.dumps({"a": {**ENTRY, "shape": [1] * 65}}).encode(),
    "huge and empty": json.dumps({"a": {**ENTRY, "shape": [2**62, 0, 2**62], "data_offsets": [0, 0]}}).encode(),
    "floats": json.dumps({"a": {**ENTRY, "shape": [1.0]}}).encode(),
    "bools": json.dumps({"a": {**ENTRY, "shape": [True]}}).encode(),
    "digits": b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}',
    "mark": b"\xef\xbb\xbf" + json.dumps({"a": ENTRY}).encode(),
    "other encoding": json.dumps({"a": ENTRY}).encode("utf-16-le"),
    "twice": b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},'
    b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    "field twice": b'{"a":{"dtype":"F32","dtype":"I32","shape":[1],"data_offsets":[0,4]}}',
    "half a character": b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    "backwards": json.dumps({"a": {**ENTRY, "data_offsets": [4, 0]}}).encode(),
    "same bytes": json.dumps({"a": ENTRY, "b": ENTRY}).encode(),
    "metadata": json.dumps({"__metadata__": {"a": None}, "a": ENTRY}).encode(),
    "constant": b'{"a":NaN}',
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_headers(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(struct.pack("<Q", len(HEADERS[name])) + HEADERS[name] + bytes(4))
    for act in (
        lambda: weft.load(path), lambda: weft.load(path, device="disk"), lambda: load_safetensors(path),
        lambda: safetensors_metadata(path),
    ):  # fmt: skip
        with pytest.raises(weft.FileError) as error:
            act()
        assert "bad.safetensors" in error.value.message or "weft has BOOL" in error.value.message


def test_headers_of_any_length(tmp_path: Path) -> None:
    for length in (0, 1, 100, 1 << 31, (1 << 63) - 1, (1 << 64) - 1):
        (tmp_path / "x").write_bytes(struct.pack("<Q", length) + b"{}")
        with pytest.raises(weft.FileError):
            weft.load(tmp_path / "x")


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        "",
        "a\0b",
        "/etc/passwd",
        "../x",
        "a/b",
        "a\\b",
        "\ud800",
        None,
        3,
        ["x"],
        "gone.safetensors",
    ],
)
def test_indices_that_name_other_files(name: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(weft.FileError, match=r"index\.json"):
        load_sharded(path)
    with pytest.raises(weft.FileError):
        load_sharded(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {"a": "x", "a": "y"}}',
        "\ufeff{}",
        "[" * 100_000,
    ],
)
def test_indices_that_are_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(weft.FileError, match=r"index\.json is no index"):
        load_sharded(path)


def test_links_to_files_elsewhere_are_followed(tmp_path: Path) -> None:
    """As whoever keeps models in one place, and links to them, has it; but only to safetensors files."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "model").mkdir()
    save_sharded({"a": weft.ones(3)}, tmp_path / "blobs")
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "model" / file.name).symlink_to(file)
    assert load_sharded(tmp_path / "model")["a"].tolist() == [1, 1, 1]
    link = next((tmp_path / "model").glob("*.safetensors"))
    link.unlink()
    link.symlink_to("/etc/passwd")
    with pytest.raises(weft.FileError, match="no valid safetensors file"):
        load_sharded(tmp_path / "model")


READERS: dict[str, Callable[[Any], Any]] = {
    "load": weft.load, "load disk": lambda p: weft.load(p, device="disk"), "load_torch": load_torch,
    "running": lambda p: weft.load(p, weights_only=False),
    "load_safetensors": load_safetensors, "load_safetensors disk": lambda p: load_safetensors(p, device="disk"),
    "metadata": safetensors_metadata, "load_sharded": load_sharded,
}  # fmt: skip


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices with names")
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_at_once(reader: str, tmp_path: Path) -> None:
    pipe, link, folder = tmp_path / "pipe", tmp_path / "link", tmp_path / "folder"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    folder.mkdir()
    long = tmp_path / ("n" * 300)
    for path in (pipe, link, folder, Path("/dev/zero"), Path("/dev/tty"), long, f"{tmp_path}/a\0b"):
        with pytest.raises(weft.FileError):
            READERS[reader](path)
    with pytest.raises(FileNotFoundError):
        READERS[reader](tmp_path / "nowhere")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(weft.FileError, match="/empty"):
        READERS[reader](tmp_path / "empty")


@pytest.mark.skipif(os.name != "posix", reason="pipes with names")
def test_parts_of_a_model_that_are_no_files(tmp_path: Path) -> None:
    save_sharded({"a": weft.ones(3)}, tmp_path)
    part = next(tmp_path.glob("*.safetensors"))
    part.unlink()
    os.mkfifo(part)
    with pytest.raises(weft.FileError, match="it is a pipe"):
        load_sharded(tmp_path)


def test_an_old_file_with_a_storage_that_is_cut(tmp_path: Path) -> None:
    begin = b"".join(pickle.dumps(x, 2) for x in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
    for end in (b"", struct.pack("<q", 4), struct.pack("<q", 4) + bytes(15), struct.pack("<q", -4) + bytes(16),
                struct.pack("<q", 1 << 61) + bytes(16), struct.pack("<q", 3) + bytes(16)):  # fmt: skip
        (tmp_path / "x.pt").write_bytes(begin + GOOD + pickle.dumps(["0"], 2) + end)
        with pytest.raises(weft.FileError, match=r"x\.pt"):
            weft.load(tmp_path / "x.pt")
    (tmp_path / "x.pt").write_bytes(begin + GOOD + pickle.dumps([], 2))
    with pytest.raises(weft.FileError, match="lacks the storage"):
        weft.load(tmp_path / "x.pt")


def test_modules_of_a_state_dict_are_kept() -> None:
    """torch keeps versions of a state_dict's parts in an attribute of it."""
    saved = OrderedDict(a=weft.ones(1))
    saved.__dict__["_metadata"] = {"": {"version": 1}}
    file = io.BytesIO()
    weft.save(saved, file)
    assert vars(weft.load(io.BytesIO(file.getvalue())))["_metadata"] == {"": {"version": 1}}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="how much memory a process has")
def test_no_memory_for_code_is_a_memory_error() -> None:
    """LLVM would abort the process, or the linker say that a symbol is missing."""
    code = (
        "import resource, weft\n(weft.ones(3) * 2).tolist()\n(weft.arange(4.).cumsum(0)).tolist()\n"
        "def limit(room):\n"
        "    now = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (-1 if room is None else now + room, -1))\n"
        "for room in (0, 1 << 16, 1 << 20, 1 << 22, 1 << 24):\n"
        "    limit(room)\n"
        "    for k in range(4):\n"
        "        try: (weft.arange(10. + k).sin() * (k + room)).tolist()\n"
        "        except MemoryError as error: found = str(error)\n"
        "        else: found = 'made'\n"
        "        print(found)\n"
        "    limit(None)\n"
        "    assert [(weft.arange(3.) * k).tolist() for k in (2, 3)] == [[0, 2, 4], [0, 3, 6]]"
    )
    env = {**os.environ, "WEFT_CACHE_DIR": "", "WEFT_VERIFY": "0"}
    out = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert out.returncode == 0, out.stderr
    refused = re.compile(r"there is no memory left in this process (to compile|for) [\d,]+ bytes of .*")
    found = out.stdout.splitlines()
    assert len(found) == 20
    assert all(refused.fullmatch(message) for message in found[:16]), found
    assert all(message == "made" or refused.fullmatch(message) for message in found[16:]), found
