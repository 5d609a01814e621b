"""weft.save and weft.load: whole checkpoints, in torch's format, or in safetensors where the name says so.

A file called *.safetensors has the tensors named by where they stand ("optimizer.state.0.exp_avg"), so that other
programs can read them; the structure around them is JSON in the file's metadata. All other files are as torch's: see
torch_files.py and checkpoint.py. Nothing in a file is run, unless the caller says weights_only=False.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any, BinaryIO, cast

import numpy as np

from weft.backends.disk.format import StrPath, header_in, located
from weft.backends.disk.writing import replacing
from weft.core.layout.creation import tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, FileFormatError
from weft.io import torch_files
from weft.io.archive import MAX_EXPANSION
from weft.io.checkpoint import ZIP, SafeReader, load_running, loaded
from weft.io.gguf import MAGIC, gguf_tensors
from weft.io.placing import placing
from weft.io.safetensors import save_safetensors, tensors_in
from weft.io.source import Reading, opened
from weft.lazy_dataclass import dataclass

STRUCTURE = "weft.structure"

# The first bytes of what torch.save writes: a zip archive, or (before torch 1.6) a pickle.
_TORCH = (ZIP, b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_SUFFIX = ".safetensors"


def save(
    obj: Any,
    f: StrPath | BinaryIO,
    pickle_module: Any = None,
    pickle_protocol: int = 2,
    _use_new_zipfile_serialization: bool = True,
) -> None:
    """Write tensors, and what is built of them, so that `load` gives the same back, and torch.load reads it.

    `obj`: tensors in containers of any kind, with what else Python can pickle: numbers, texts, arrays, dtypes, modules,
    objects of classes. Tensors that share elements are written once and share them afterwards. `f`: a path, at which
    the file appears whole or not at all (what was there stays until all is written), or an object with `write`. To a
    path that ends in ".safetensors", a safetensors file: tensors and NumPy arrays in dicts, lists and tuples to any
    depth, with None, bools, numbers and texts.

    The format is torch's present one, and the pickle of protocol 2, whatever the other arguments say. ArgumentError,
    saying where it stands, for what cannot be written; FileError where the file cannot be.

    >>> weft.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 100}, "run.pt")
    """
    if isinstance(f, io.TextIOBase):
        raise DTypeError('save: the file takes text, not bytes; open it in binary mode ("wb")')
    if hasattr(f, "write"):
        torch_files.write(obj, cast("BinaryIO", f))
        return
    path = located(cast("StrPath", f))
    if path.suffix == _SUFFIX:
        writer = _Writer()
        structure = writer.encode(obj, ())
        save_safetensors(writer.tensors, path, {STRUCTURE: json.dumps(structure, separators=(",", ":"))})
        return
    with replacing(path) as file:
        torch_files.write(obj, file)


def load(
    f: StrPath | BinaryIO,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    device: Any = None,
    weights_only: bool | None = True,
    mmap: bool | None = None,
    max_expansion: float = MAX_EXPANSION,
    **pickle_load_args: Any,
) -> Any:
    """Load a file of `save`, torch.save, or other safetensors or GGUF (tensors by name). No code of the file is run.

    `f`: a path, whose file is mapped, so that a tensor's bytes are read when it is first used and the file must stay as
    it is until then (it may be deleted or replaced); or an object with `read`, which is read at once. `map_location`:
    where tensors go, as in torch (a device, a dict, a function), None for the default device, since tensors in files
    are at home nowhere; `device` is another name for it, and with "disk" tensors stay in the file for good: see
    `weft.io.load_safetensors`. `mmap` changes nothing, but asks for a path.

    Objects of classes are refused by their names, unless the program allows them (`weft.io.serialization`). Only with
    weights_only=False, said in so many words, is the file unpickled by Python (by `pickle_module`, with
    `pickle_load_args`), which may import and run anything: as a program of somebody's, so only if you would run that.

    FileError, besides, for a file that is damaged, or unpacks to more than `max_expansion` times its size.

    >>> model.load_state_dict(weft.load("run.pt")["model"])
    """
    if mmap and hasattr(f, "read"):
        raise ArgumentError("load: mmap=True needs the path of a file")
    place = placing("load", map_location, device)
    source = opened("load", f)
    start = bytes(source.view(0, min(4, source.size)))
    if start.startswith(_TORCH):
        if weights_only is False:
            return load_running(source, place, pickle_module, pickle_load_args, max_expansion)
        return loaded(source, place, SafeReader, max_expansion)
    if start == MAGIC:
        return gguf_tensors(source, place("cpu"))
    reading = Reading(source)
    header = header_in(reading.read, source.size, source.path)
    tensors = tensors_in(source, header, place("cpu"))
    structure = header.metadata.get(STRUCTURE)
    if structure is None:
        return tensors
    try:
        return _decode(json.loads(structure), tensors)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise FileFormatError(f"load: the structure in {source.path} is damaged: {error}") from None


@dataclass
class _Writer:
    """The tensors met so far by name; `names` are those of graph nodes that were met."""

    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    names: dict[int, str] = field(default_factory=dict[int, str])
    around: list[object] = field(default_factory=list[object])

    def encode(self, x: Any, at: tuple[str, ...]) -> Any:
        """`x` as JSON: what JSON has not is an object with one key, its kind."""
        match x:
            case None | bool() | str():
                return x
            case int():
                return int(x)
            case float():
                return float(x) if math.isfinite(x) else {"float": repr(float(x))}
            case np.bool() | np.integer() | np.floating():
                return self.encode(cast("np.generic[Any]", x).item(), at)
            case Tensor():
                return {"tensor": self._named(x, at)}
            case np.ndarray():
                return {"array": self._named(tensor(x), at)}
            case dict() | list() | tuple():
                return self._container(cast("dict[Any, Any] | list[Any] | tuple[Any, ...]", x), at)
            case Mapping():
                return self._container(dict(cast("Mapping[Any, Any]", x)), at)
            case _:
                kinds = "tensors, arrays, dicts, lists, tuples, numbers, texts and None"
                raise ArgumentError(
                    f"save: {_place(at)} is a {type(x).__name__}, and only {kinds} can be kept; "
                    "save its state_dict, or what it can be made from"
                )

    def _named(self, x: Tensor, at: tuple[str, ...]) -> str:
        name = self.names.get(id(x.value.node))
        if name is None:
            name = ".".join(at) or "tensor"
            while name in self.tensors or name == "__metadata__":
                name += "_"
            self.names[id(x.value.node)] = name
            self.tensors[name] = x.detach()
        return name

    def _container(self, x: dict[Any, Any] | list[Any] | tuple[Any, ...], at: tuple[str, ...]) -> Any:
        if any(x is outer for outer in self.around):
            raise ArgumentError(f"save: {_place(at)} contains itself")
        self.around.append(x)
        try:
            if isinstance(x, dict):
                return {"dict": [[self._key(k, at), self.encode(v, (*at, str(k)))] for k, v in x.items()]}
            kind = "list" if isinstance(x, list) else "tuple"
            return {kind: [self.encode(v, (*at, str(k))) for k, v in enumerate(x)]}
        finally:
            self.around.pop()

    def _key(self, key: Any, at: tuple[str, ...]) -> Any:
        if key is not None and not isinstance(key, str | int | float | tuple):
            raise ArgumentError(
                f"save: {_place(at)} has a key of type {type(key).__name__}; use texts, numbers or tuples"
            )
        return self.encode(key, at)


def _place(at: tuple[str, ...]) -> str:
    return f"the entry {'.'.join(at)!r}" if at else "the object"


def _decode(x: Any, tensors: Mapping[str, Tensor]) -> Any:
    match x:
        case {"tensor": str(name)}:
            return tensors[name]
        case {"array": str(name)}:
            return tensors[name].numpy()
        case {"float": str(text)}:
            return float(text)
        case {"list": items}:
            return [_decode(v, tensors) for v in items]
        case {"tuple": items}:
            return tuple(_decode(v, tensors) for v in items)
        case {"dict": pairs}:
            return {_decode(k, tensors): _decode(v, tensors) for k, v in pairs}
        case None | bool() | int() | float() | str():
            return x
        case _:
            raise ValueError(f"it has {str(x)[:40]!r}, which this weft does not know")
