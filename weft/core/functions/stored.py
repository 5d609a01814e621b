"""Tensors whose elements stand in a file: they stay there, or are read when they are first used."""
# Tests: tests/io/test_torch_files.py, tests/io/test_safetensors.py

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.core.args import handle
from weft.core.args.handle import wrap_constant
from weft.core.execute import edits, files
from weft.core.execute.run import deferred
from weft.core.functions.arrangement import as_strided
from weft.core.layout import movement
from weft.core.views import views

if TYPE_CHECKING:
    from weft.backends.deferred import HostBytes
    from weft.backends.disk.file import MappedFile
    from weft.core.tensor.tensor import Tensor
    from weft.ir.dtypes import DType


def in_file(file: MappedFile, begin: int, dtype: DType, shape: tuple[int, ...]) -> Tensor:
    """A constant whose elements stay in a mapped file, from byte `begin` on, in row-major order."""
    return wrap_constant(files.leaf(file, begin, dtype, shape))


def read_later(shape: tuple[int, ...], dtype: DType, device: str, source: HostBytes) -> Tensor:
    """A constant whose bytes are those of `source`, which the device gets, or borrows, when they are first used."""
    return wrap_constant(deferred(shape, dtype, device, source))


def of_class(t: Tensor, kind: type[Tensor]) -> Any:
    """A tensor of a class of its own that stands for what `t` does; its `__init__` is not run."""
    out = object.__new__(kind)
    out.value = t.value
    handle.made(out)
    return out


def share(
    base: Tensor, out: Tensor, geometry: tuple[Sequence[int], Sequence[int], int] | None = None
) -> None:
    """`out` becomes a view of the elements of `base`, all or those of a size, stride and offset; without history."""
    elements = views.without_history(base)
    steps = [views.ViewStep(views.without_history)]
    if geometry is not None:
        steps = [views.ViewStep(strided, geometry), *steps]
        elements = strided(elements, *geometry)
    edits.stand_for(out, elements.value)
    views.compose_views(base, out, steps)


def strided(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """The view of a storage, as a tensor of one dimension or flattened, that torch describes so: slices, permutations
    and expansions where they suffice, since they cost nothing, else element by element."""
    flat = movement.reshape(x, -1)
    once = [n if s else 1 for n, s in zip(size, stride, strict=True)]
    found = _sliced(flat, once, stride, offset) if math.prod(once) else None
    if found is None:
        found = as_strided(flat, once, stride, offset)
    return found if once == list(size) else movement.expand(found, list(size))


def _sliced(flat: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor | None:
    """The view as slices of rows of rows; None where it is none, as with windows that overlap.

    A step of s is a row of s elements, of which the smaller steps show some.
    """
    order = sorted(range(len(size)), key=lambda k: -stride[k])
    shape: list[int] = []
    length, out = flat.numel(), flat
    assert isinstance(length, int)
    for k in order:
        n, s = size[k], stride[k]
        if n == 1:
            continue
        begin = offset - offset % s
        if begin + n * s > length:
            return None
        out = movement.reshape(movement.narrow(out, -1, begin, n * s), [*shape, n, s])
        shape.append(n)
        length, offset = s, offset % s
    out = movement.reshape(movement.narrow(out, -1, offset, 1), [size[k] for k in order])
    back = [order.index(k) for k in range(len(order))]
    return out if back == sorted(back) else movement.permute(out, back)
