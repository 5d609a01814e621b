"""Checkpoints written as torch writes them: a zip archive of a pickle and the bytes of each storage.

torch reads them, with weights_only=True where they hold tensors and plain containers. Tensors that look at the same
elements are written as views of one storage, which is written once, and come back as such.
Format: as checkpoint.py reads it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from weft.core.execute import files
from weft.core.execute.devices import device
from weft.core.tensor.sizes import Size
from weft.core.tensor.tensor import Tensor
from weft.core.views import views
from weft.errors import ArgumentError
from weft.io.archive import Writing
from weft.io.checkpoint import STORAGES
from weft.io.pickling import Chunk, Pickler, integer, named, text
from weft.ir.dtypes import DType
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.autograd.value import Value

_STORAGES = {dtype: name for name, dtype in STORAGES.items()}
_FOLDER = "archive"
_VERSION = b"3\n"
_ORDERED = named("collections", "OrderedDict") + b")R"
_REBUILD = "torch._utils"


@dataclass(slots=True)
class _Place:
    """The place of a tensor's elements: `key` is set when all tensors have been met."""

    tensor: Tensor
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    key: int = -1
    count: int = 0


class _Tensors:
    """The tensors met, and which storages they come to."""

    def __init__(self) -> None:
        self.places: list[_Place] = []
        self.sharing: dict[int, tuple[views.Elements, list[tuple[_Place, int, list[int], list[int]]]]] = {}
        self.storages: list[Value] = []

    def special(self, x: Any) -> Chunk | None:
        """The pickle code of tensors and what else torch has its own names for."""
        match x:
            case Tensor():
                place = self._place(x)
                return lambda: _pickled(place)
            case DType():
                return named("torch", x.name)
            case device():
                return _device(x)
            case Size():
                return named("torch", "Size") + _sizes([n for n in x if isinstance(n, int)]) + b"\x85R"
            case _:
                return None

    def _place(self, t: Tensor) -> _Place:
        shape = tuple([n for n in t.shape if isinstance(n, int)])
        if len(shape) != len(t.shape):
            raise ArgumentError(f"save: a tensor of shape {tuple(t.shape)}; give its sizes with weft.bind")
        place = _Place(t, shape, _row_major(shape))
        self.places.append(place)
        found = views.layout(t) if math.prod(shape) else None
        if found is not None:
            shared, offset, sizes, strides = found
            self.sharing.setdefault(id(shared), (shared, []))[1].append((place, offset, sizes, strides))
        return place

    def settle(self) -> None:
        """Give each tensor its place: those that share elements in one storage, all others in their own."""
        for shared, group in self.sharing.values():
            if len(group) > 1:
                key = self._add(views.all_elements(shared, [p.tensor for p, *_ in group]))
                for place, offset, sizes, strides in group:
                    place.key, place.offset = key, offset
                    place.shape, place.stride = tuple(sizes), tuple(strides)
                    place.count = math.prod(cast("Sequence[int]", shared.shape))
        for place in self.places:
            if place.key < 0:
                place.key = self._add(views.without_history(place.tensor).value)
                place.count = math.prod(place.shape)

    def _add(self, value: Value) -> int:
        self.storages.append(value)
        return len(self.storages) - 1


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for k in range(len(shape) - 1, 0, -1):
        strides[k - 1] = strides[k] * max(shape[k], 1)
    return tuple(strides)


def _sizes(sizes: Sequence[int]) -> bytes:
    return b"(" + b"".join(map(integer, sizes)) + b"t"


def _device(x: device) -> bytes:
    index = b"" if x.index is None or x.type == "cpu" else integer(x.index)
    return named("torch", "device") + b"(" + text(x.type) + index + b"tR"


def _pickled(place: _Place) -> bytes:
    """The pickle code by which torch makes the tensor anew."""
    t = place.tensor
    kind = type(t)
    # in the module that defines it, which stands beside this one
    parameter = kind.__name__ == "Parameter" and kind.__module__ == "weft.nn.module"
    name = _STORAGES.get(t.dtype)
    count = place.count if name is not None else place.count * t.dtype.itemsize
    where = f"cuda:{t.device.index or 0}" if t.device.type == "cuda" else "cpu"
    storage = named("torch", name) if name is not None else named("torch.storage", "UntypedStorage")
    needs_grad = b"\x88" if t.requires_grad and not parameter else b"\x89"
    args = (
        b"((" + text("storage") + storage + text(str(place.key)) + text(where) + integer(count) + b"tQ"
        + integer(place.offset) + _sizes(place.shape) + _sizes(place.stride) + needs_grad + _ORDERED
    )  # fmt: skip
    if name is not None:
        out = named(_REBUILD, "_rebuild_tensor_v2") + args + b"tR"
    else:
        out = named(_REBUILD, "_rebuild_tensor_v3") + args + named("torch", t.dtype.name) + b"tR"
    if parameter:
        asked = b"\x88" if t.requires_grad else b"\x89"
        return named(_REBUILD, "_rebuild_parameter") + out + asked + _ORDERED + b"\x87R"
    return out


def write(obj: Any, file: BinaryIO) -> None:
    """Write an object as torch.save does. The bytes do not depend on the file's name, as torch's do."""
    tensors = _Tensors()
    pickler = Pickler(tensors.special)
    pickler.save_all(obj)
    tensors.settle()
    pickle = pickler.finished()
    small = {
        "data.pkl": pickle, ".format_version": b"1", ".storage_alignment": b"64", "byteorder": b"little",
        "version": _VERSION,
    }  # fmt: skip
    sizes = [_nbytes(v) for v in tensors.storages]
    members = [(f"{_FOLDER}/{n}", len(data)) for n, data in small.items()]
    members += [(f"{_FOLDER}/data/{k}", n) for k, n in enumerate(sizes)]
    archive = Writing(file, members)
    archive.begin()
    for data in small.values():
        archive.write(data)
    files.write_values(cast("BinaryIO", archive), tensors.storages)
    archive.end()


def _nbytes(v: Value) -> int:
    return math.prod(n for n in v.shape if isinstance(n, int)) * v.dtype.itemsize
