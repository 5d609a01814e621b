"""Files that are damaged at random: a FileError, or what is read is right; never another error, a crash or a wait."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.io import load_sharded, save_sharded

MUTATIONS = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0")) or 100


def tensors() -> dict[str, weft.Tensor]:
    x = weft.arange(12.0).reshape(3, 4)
    return {
        "x": x,
        "row": x[1],
        "t": x.t(),
        "h": weft.ones(3).half(),
        "b": weft.tensor([True, False]),
        "i": weft.arange(5),
    }


def contents() -> dict[str, Any]:
    return {
        "model": OrderedDict(tensors()), "opt": {"state": {0: {"step": 3, "m": weft.zeros(2, 2)}}, "lr": [0.1, None]},
        "array": np.arange(3), "name": "é", "size": weft.Size((2, 3)), "dtype": weft.float32, "set": {1, 2},
        "large": 2**70, "bytes": b"\x80ab", "expanded": weft.ones(1).expand(4), "u16": weft.ones(2).to(weft.uint16),
    }  # fmt: skip


def as_torch() -> bytes:
    file = io.BytesIO()
    weft.save(contents(), file)
    return file.getvalue()


def deflated() -> bytes:
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(as_torch())) as old,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return out.getvalue()


def bare_pickle() -> bytes:
    """The pickle itself in an archive without checksums, so that every byte of it is read."""
    with zipfile.ZipFile(io.BytesIO(as_torch())) as archive:
        return archive.read("archive/data.pkl")


def legacy() -> bytes:
    """torch's older form: pickles one after the other, then the storages. Made from the newer."""
    with zipfile.ZipFile(io.BytesIO(as_torch())) as archive:
        content = archive.read("archive/data.pkl")
        names = sorted(
            (n for n in archive.namelist() if "/data/" in n), key=lambda n: int(n.rpartition("/")[2])
        )
        stored = {n.rpartition("/")[2]: archive.read(n) for n in names}
    counts = dict(_counts(content))
    out = b"".join(pickle.dumps(x, 2) for x in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
    out += content + pickle.dumps(list(stored), 2)
    for key, data in stored.items():
        out += counts[key].to_bytes(8, "little") + data
    return out


class _Anything:
    """Whatever a pickle names."""

    def __init__(self, *args: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def _counts(content: bytes) -> list[tuple[str, int]]:
    """How many elements each storage has."""
    found: list[tuple[str, int]] = []

    class Reader(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            found.append((pid[2], pid[4]))

        def find_class(self, module: str, name: str) -> Any:
            return super().find_class(module, name) if module in ("collections", "__builtin__") else _Anything

    Reader(io.BytesIO(content)).load()
    return found


def safetensors(tmp_path: Path) -> bytes:
    path = tmp_path / "x.safetensors"
    weft.save({**tensors(), "step": [3, float("inf")], "a": np.arange(3)}, path)
    return path.read_bytes()


def read(x: Any) -> None:
    """Use all that is there."""
    match x:
        case weft.Tensor():
            x.numpy()
        case dict():
            for k, v in x.items():
                read(k)
                read(v)
        case list() | tuple() | set():
            for v in x:
                read(v)
        case _:
            repr(x)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """`data` with bits flipped, bytes replaced, parts taken away, repeated or put in."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(out)) if out else 0
        length = rng.choice((1, 1, 2, 4, 8, 50))
        match rng.randrange(7):
            case 0:
                out[at : at + 1] = bytes((out[at] ^ (1 << rng.randrange(8)),)) if out else b""
            case 1:
                out[at : at + 1] = bytes((rng.randrange(256),))
            case 2:
                del out[at : at + length]
            case 3:
                out[at:at] = rng.randbytes(length)
            case 4:
                out[at:at] = out[at : at + length]
            case 5:
                out[at : at + length] = rng.choice((b"\xff", b"\0", b"\x7f")) * length
            case _:
                del out[at:]
    return bytes(out)


def wrapped(content: bytes) -> bytes:
    """A pickle in an archive with the storages of `contents`, and right checksums."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(as_torch())) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            new.writestr(name, content if name.endswith("data.pkl") else old.read(name))
    return out.getvalue()


def check(load: Callable[[], Any]) -> None:
    try:
        read(load())
    except weft.FileError as error:
        assert error.message


FORMS: dict[str, tuple[Callable[[], bytes], Callable[[bytes], bytes]]] = {
    "torch": (as_torch, bytes), "deflated": (deflated, bytes), "pickle": (bare_pickle, wrapped),
    "legacy": (legacy, bytes),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_damaged_checkpoints(form: str) -> None:
    make, whole = FORMS[form]
    data, rng = make(), random.Random(form)
    read(weft.load(io.BytesIO(whole(data))))
    for _ in range(MUTATIONS):
        bad = whole(damaged(data, rng))
        check(lambda: weft.load(io.BytesIO(bad)))


def test_damaged_checkpoints_that_stay_on_disk(tmp_path: Path) -> None:
    data, rng, path = as_torch(), random.Random(0), tmp_path / "x.pt"
    for k in range(MUTATIONS):
        path.write_bytes(damaged(data, rng) if k else data)
        check(lambda: weft.load(path, device="disk"))
        check(lambda: weft.io.load_torch(path, weights_only=False))


@pytest.mark.parametrize("device", ["cpu", "disk"])
def test_damaged_safetensors(device: str, tmp_path: Path) -> None:
    data, rng = safetensors(tmp_path), random.Random(device)
    read(weft.load(io.BytesIO(data)))
    for k in range(MUTATIONS):
        bad = damaged(data if k % 2 else data[:1000], rng)
        if device == "cpu":
            check(lambda: weft.load(io.BytesIO(bad)))
            continue
        (tmp_path / "y").write_bytes(bad)
        check(lambda: weft.load(tmp_path / "y", device="disk"))


def test_damaged_indices(tmp_path: Path) -> None:
    save_sharded({"a": weft.ones(1000), "b": weft.arange(1000)}, tmp_path, max_shard_bytes=5000)
    index = next(tmp_path.glob("*.index.json"))
    data, rng = index.read_bytes(), random.Random(0)
    assert json.loads(data)["weight_map"]
    for _ in range(MUTATIONS):
        index.write_bytes(damaged(data, rng))
        check(lambda: load_sharded(index))
