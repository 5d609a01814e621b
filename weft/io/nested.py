"""Checkpoints: tensors within dicts, lists and tuples, with the numbers and texts beside them, in one safetensors file.

The tensors are named by where they stand ("optimizer.state.0.exp_avg"), so that other programs can read them; the
structure around them is JSON in the file's metadata. Nothing in such a file is ever run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, TypeAlias, cast

import numpy as np

from weft.backends.disk.format import located
from weft.core.creation import tensor
from weft.core.run import named_device
from weft.core.tensor import Tensor
from weft.errors import ArgumentError
from weft.io.checkpoint import load_torch
from weft.io.safetensors import load_safetensors, safetensors_metadata, save_safetensors

StrPath: TypeAlias = str | PathLike[str]

STRUCTURE = "weft.structure"

# The first bytes of what torch.save writes: a zip archive, or (before torch 1.6) a pickle.
_TORCH = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def save(obj: Any, path: StrPath) -> None:
    """Write tensors, and what is built of them, so that `load` gives the same back.

    `obj`: tensors and NumPy arrays in dicts, lists and tuples to any depth, with None, bools, numbers and texts. A
    tensor that occurs twice is written once. The file appears whole or not at all: what was there stays until all is
    written. ArgumentError, saying where it stands, for anything else.

    >>> weft.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 100}, "run.safetensors")
    """
    writer = _Writer()
    structure = writer.encode(obj, ())
    save_safetensors(writer.tensors, path, {STRUCTURE: json.dumps(structure, separators=(",", ":"))})


def load(
    path: StrPath,
    device: Any = None,
    *,
    map_location: Any = None,
    weights_only: bool = True,
    mmap: bool | None = None,
) -> Any:
    """What `save` or torch.save wrote; of another safetensors file, its tensors by name. No code of the file is run.

    A tensor's bytes are read when it is first used: the file must stay as it is until then. `weights_only` as in
    `weft.io.load_torch`; `map_location` is torch's name for the device, where a function or a dict, which say what to
    do with devices of the file, mean the default one: tensors in files are at home nowhere. `mmap` changes nothing.

    With device="disk" tensors stay in the file for good: see `weft.io.load_safetensors`.

    >>> model.load_state_dict(weft.load("run.safetensors")["model"])
    """
    path = located(path)
    device = named_device(map_location) if device is None else named_device(device) or device
    with open(path, "rb") as file:
        start = file.read(4)
    if start.startswith(_TORCH):
        return load_torch(path, device, weights_only=weights_only)
    tensors = load_safetensors(path, device)
    structure = safetensors_metadata(path).get(STRUCTURE)
    if structure is None:
        return tensors
    try:
        return _decode(json.loads(structure), tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"load: the structure in {path} is damaged: {error}") from None


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
