"""Rows of files that a device cannot read itself: a batch takes memory for the batch, not for the data set.

A gather from a tensor in a file, or a part of it, is read on the host where it is much smaller than the tensor; the
device gets what was picked. A device that reads mapped files itself (`Borrower`) needs none of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.backends.protocol import Device
from weft.backends.storage import Storage, from_numpy
from weft.ir.graph import Along, Box, Node, buffer, toposort
from weft.ir.index import Int, evaluate
from weft.ir.ops import Op
from weft.ir.rewrite import rebuilt
from weft.scheduler import realize
from weft.scheduler.signature import signature
from weft.scheduler.stream.split import nbytes

_MUCH = 4
"""The elements picked are read by themselves where the tensor in the file is so many times larger."""


def with_rows_read(nodes: Sequence[Node], device: Device) -> list[Node]:
    """The same values, with leaves on `device` in the place of what little is picked from files."""
    read: dict[Node, Node] = {}
    for n in toposort(nodes):
        if _is_pick(n):
            array = _rows(n, device) if n.op is Op.GATHER else _part(n)
            stored = from_numpy(array, n.dtype, device)
            read[n] = buffer(n.shape, n.dtype, device.info.name, stored)
    return rebuilt(nodes, read)


def _is_pick(n: Node) -> bool:
    if n.op not in (Op.GATHER, Op.SHRINK) or n.storage is not None:
        return False
    source = _source(n)
    in_file = source.op is Op.BUFFER and source.device is None and source.storage is not None
    return in_file and _MUCH * nbytes(n) <= nbytes(source)


def _source(n: Node) -> Node:
    """The node that a node picks from, before it was given another shape."""
    source = n.inputs[0]
    while source.op is Op.RESHAPE and source.storage is None:
        source = source.inputs[0]
    return source


def _elements(n: Node) -> np.ndarray[Any, Any]:
    """The elements that a node picks from, mapped."""
    stored: Storage = _source(n).storage
    return stored.numpy().reshape(_sizes(n.inputs[0].shape))


def _sizes(numbers: Sequence[Int]) -> tuple[int, ...]:
    return tuple([int(evaluate(i, {})) for i in numbers])


def _rows(n: Node, device: Device) -> np.ndarray[Any, Any]:
    """The result of a gather. Its index is computed on the device, before it is repeated along other axes."""
    index = n.inputs[1]
    assert isinstance(n.attrs, Along)
    axis, shape = n.attrs.axis, _sizes(n.shape)
    while index.op is Op.EXPAND and index.storage is None:
        index = index.inputs[0]
    if index.storage is None:
        (stored,) = realize.values_of([index], signature([index]), device)
    else:
        stored = index.storage
    numbers, data = stored.numpy(), _elements(n)
    if numbers.size == numbers.shape[axis]:  # whole rows
        return np.take(data, numbers.reshape(-1), axis, mode="clip")
    inside = np.clip(numbers, 0, data.shape[axis] - 1)
    return np.take_along_axis(data, np.broadcast_to(inside, shape), axis)


def _part(n: Node) -> np.ndarray[Any, Any]:
    """A box of a tensor."""
    assert isinstance(n.attrs, Box)
    steps = zip(_sizes(n.attrs.start), _sizes(n.shape), n.attrs.step, strict=True)
    return _elements(n)[tuple(slice(a, a + s * t, t) for a, s, t in steps)]
