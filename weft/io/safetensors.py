"""Tensors by name in one safetensors file. `weft.backends.disk.format` says what such a file looks like.

The package safetensors reads whole tensors into NumPy or torch; here a tensor is a lazy leaf over the mapped file, so
the few checks that it makes are made there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.backends.deferred import HostBytes
from weft.backends.disk.file import MappedFile, open_regular
from weft.backends.disk.format import DTYPES, Header, StrPath, header_of, located, read_header
from weft.backends.disk.writing import replacing
from weft.core.execute import files
from weft.core.execute.devices import get_default_device
from weft.core.execute.run import device_name
from weft.core.functions.stored import in_file, read_later
from weft.core.layout.creation import as_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.io.source import Source
from weft.ir.dtypes import DType, bool_
from weft.ir.graph import Shape

__all__ = ["DTYPES", "StrPath", "load_safetensors", "replacing", "safetensors_metadata", "save_safetensors"]


def load_safetensors(path: StrPath, device: str | None = None) -> dict[str, Tensor]:
    """The tensors of a file by name. Only the header is read: a tensor's bytes are read when it is first used.

    The CPU reads them in the mapped file, where they are aligned; other devices get a copy, once. With device="disk"
    they stay in the file for good: what does not fit in memory is computed in pieces. The file must stay as it is
    meanwhile (it may be deleted, or replaced by another), else a FileError says so. FileNotFoundError for a path that
    is not there; FileError for a file that is damaged, or something else, and for elements of a type that weft lacks
    (a DTypeError, too). Bools other than 0 and 1 are True, and refused in a file that they stay in.

    >>> weights = weft.io.load_safetensors("model.safetensors")
    >>> table = weft.io.load_safetensors("embeddings.safetensors", device="disk")["table"]
    """
    stays = device is not None and files.is_disk(device)
    if stays and device != "disk":
        raise ArgumentError(
            f"load_safetensors: device={device!r} names a file; pass device='disk' to leave the tensors in {path}"
        )
    home = "" if stays else get_default_device().name if device is None else device_name(device)
    with open_regular(located(path)) as file:
        header = read_header(file, path)
        mapped = MappedFile(file)
    return tensors_in(mapped, header, None if stays else home)


def tensors_in(source: Source, header: Header, home: str | None) -> dict[str, Tensor]:
    """The tensors that a header describes, on a device; without one, they stay in the file."""
    tensors: dict[str, Tensor] = {}
    for e in header.entries:
        begin, end = header.start + e.begin, header.start + e.end
        if home is None:
            if not isinstance(source, MappedFile):
                raise ArgumentError(
                    f"load: {source.path} is in memory; device='disk' needs the path of a file"
                )
            tensors[e.name] = in_file(source, begin, e.dtype, e.shape)
        else:
            tensors[e.name] = read_later(e.shape, e.dtype, home, bytes_of(source, begin, end, e.dtype))
    return tensors


def safetensors_metadata(path: StrPath) -> dict[str, str]:
    """The texts that a file holds beside its tensors."""
    with open_regular(located(path)) as file:
        return read_header(file, path).metadata


def bytes_of(source: Source, begin: int, end: int, dtype: DType) -> HostBytes:
    """Elements in a file, which stays mapped as long as somebody wants them. Bools are checked as they are copied."""

    def read() -> memoryview:
        source.check()
        source.in_large_pages(begin, end)
        return whole_bools(source.view(begin, end), dtype)

    def release(first: int, last: int) -> None:
        source.release(begin + first, begin + last)

    return HostBytes(read, release, None if dtype is bool_ else source.check_often)


def whole_bools(data: memoryview, dtype: DType) -> memoryview:
    """The bytes of elements; of bools, 1 for all that is not 0, as torch has it."""
    if dtype is not bool_ or not data:
        return data
    array = np.frombuffer(data, np.uint8)
    return data if array.max() <= 1 else (array != 0).view(np.uint8).data


def save_safetensors(
    tensors: Mapping[str, Tensor], path: StrPath, metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors by name. The file appears whole or not at all: what was there stays until all is written.

    Computes the tensors: all in one plan, or, where they are larger than memory, each in pieces as it is written.
    `metadata` are texts to keep beside them. FileError where the file cannot be written.

    >>> weft.io.save_safetensors(model.state_dict(), "model.safetensors")
    """
    if "__metadata__" in tensors:
        raise ArgumentError("save_safetensors: a tensor cannot be called '__metadata__'")
    values = {name: as_tensor(t).value for name, t in tensors.items()}
    head, header = header_of({name: (v.dtype, _sizes(name, v.shape)) for name, v in values.items()}, metadata)
    with replacing(located(path)) as file:
        file.write(head)
        files.write_values(file, [values[e.name] for e in header.entries])


def _sizes(name: str, shape: Shape) -> tuple[int, ...]:
    """The shape, once known. ArgumentError for a size that is known at run time only."""
    sizes = tuple([n for n in shape if isinstance(n, int)])
    if len(sizes) != len(shape):
        raise ArgumentError(f"save_safetensors: {name!r} has shape {shape}; give its sizes with weft.bind")
    return sizes
