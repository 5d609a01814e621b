"""Safetensors in several files, with an index that says which file holds which tensor.

    {"metadata": {"total_size": 12}, "weight_map": {"a": "model-00001-of-00002.safetensors", ...}}

Format: as Hugging Face's `model.safetensors.index.json`.
"""
# Tests: tests/io/test_checkpoint.py

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from weft.backends.disk.file import open_regular
from weft.backends.disk.format import located, read_json
from weft.core.tensor.tensor import Tensor
from weft.errors import FileError, FileFormatError
from weft.io.safetensors import StrPath, load_safetensors, replacing, save_safetensors

_MAX_INDEX = 100_000_000  # bytes; as a header may have


def load_sharded(path: StrPath, device: str | None = None) -> dict[str, Tensor]:
    """The tensors that an index names, or those of the index or single file in a folder. Bytes are read when used.

    FileError for an index that is damaged, names a file outside of its folder, or a tensor that its file lacks. Where a
    file of the folder is a link, it is followed: so are models kept that several folders share, and what is not a
    safetensors file is refused wherever it is.
    """
    place = located(path)
    if os.path.isdir(place):
        indices = sorted(place.glob("*.safetensors.index.json"))
        files = sorted(place.glob("*.safetensors"))
        if len(indices) == 1:
            place = indices[0]
        elif not indices and len(files) == 1:
            return load_safetensors(files[0], device)
        else:
            many = f"{len(indices)} indices and {len(files)} safetensors files; name one of them"
            raise FileError(
                f"load_sharded: {path} holds {many if indices or files else 'no safetensors file'}"
            )
    table = _weight_map(place)
    shards: dict[str, dict[str, Tensor]] = {}
    out: dict[str, Tensor] = {}
    for name, file in table.items():
        if file not in shards:
            shards[file] = _shard(place, file, device)
        if name not in shards[file]:
            raise FileFormatError(
                f"load_sharded: {file} lacks the tensor {name!r} that {place} says it holds"
            )
        out[name] = shards[file][name]
    return out


def _weight_map(place: Path) -> dict[str, str]:
    """The file of each tensor. FileFormatError for what is no index, or one of files that are elsewhere."""

    def bad(why: str) -> FileFormatError:
        return FileFormatError(f"load_sharded: {place} is no index of safetensors files: {why}")

    with open_regular(place) as file:
        data = file.read(_MAX_INDEX + 1)
    if len(data) > _MAX_INDEX:
        raise bad(f"it has more than {_MAX_INDEX:,} bytes")
    try:
        index: Any = read_json(data)
    except (ValueError, RecursionError) as error:
        raise bad(f"it is not JSON ({error})") from None
    found: Any = index.get("weight_map")
    if not isinstance(found, dict):
        raise bad("it has no weight_map")
    table = cast("dict[str, Any]", found)
    for file in table.values():
        if not isinstance(file, str) or not _is_name(file):
            raise FileFormatError(f"load_sharded: {place} names {file!r}, which is not a file of its folder")
    return table


def _is_name(file: str) -> bool:
    """True for the name of a file that is no path to another folder on any system."""
    try:
        os.fsencode(file)
    except UnicodeError:
        return False
    return Path(file).name == file and file not in ("", ".", "..") and not set(file) & set("/\\\0")


def _shard(place: Path, file: str, device: str | None) -> dict[str, Tensor]:
    try:
        return load_safetensors(place.parent / file, device)
    except FileNotFoundError:
        raise FileError(f"load_sharded: {place} names {file!r}, which is not there") from None


def save_sharded(
    tensors: Mapping[str, Tensor], folder: StrPath, max_shard_bytes: int = 5_000_000_000, name: str = "model"
) -> None:
    """Write tensors into files of at most `max_shard_bytes` each (or one tensor), and then their index.

    Each file appears whole, and the index last, so a reader never finds an index whose files are not there.
    """
    groups: list[dict[str, Tensor]] = [{}]
    size = total = 0
    for key, t in tensors.items():
        nbytes = math.prod(n for n in t.shape if isinstance(n, int)) * t.dtype.itemsize
        if groups[-1] and size + nbytes > max_shard_bytes:
            groups.append({})
            size = 0
        groups[-1][key] = t
        size, total = size + nbytes, total + nbytes
    place = located(folder)
    place.mkdir(parents=True, exist_ok=True)
    table: dict[str, str] = {}
    for k, group in enumerate(groups, 1):
        file = f"{name}-{k:05}-of-{len(groups):05}.safetensors"
        save_safetensors(group, place / file, {"format": "pt"})
        table.update(dict.fromkeys(group, file))
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": table}, indent=2, ensure_ascii=False)
    with replacing(place / f"{name}.safetensors.index.json") as out:
        out.write(text.encode())
