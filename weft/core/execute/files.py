"""Tensors that stay in files: `x.to("disk:path")`, and where a tensor on disk is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO

from weft.autograd.context import configured_device, grad_enabled
from weft.autograd.value import Value
from weft.core.execute import run, tracing
from weft.errors import ArgumentError, DeviceError
from weft.ir import graph
from weft.ir.dtypes import DType
from weft.ir.graph import Node
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.backends.disk.behind import WriteBehind
    from weft.backends.disk.file import MappedFile

NAME = "tensor"
"""The name of the one tensor in a file that `to` wrote."""


def is_disk(device: str) -> bool:
    """True where a device name means the disk: "disk" or "disk:PATH"."""
    return device == "disk" or device.startswith("disk:")


def on_disk(node: Node) -> bool:
    """True where the node is a leaf in a file, or stands for one while a function is traced."""
    return node.op is Op.BUFFER and node.device is None


def place(node: Node) -> str:
    """The place of a node without a device: "disk:PATH" for a leaf in a file, else the device computing it."""
    if not on_disk(node):
        return configured_device()
    return "disk" if node.storage is None else f"disk:{node.storage.memory.file.path}"


def leaf(file: MappedFile, begin: int, dtype: DType, shape: tuple[int, ...]) -> Node:
    """A leaf whose elements begin at byte `begin` of a mapped file. It is at home on no device."""
    from weft.backends.disk.pool import storage

    return graph.buffer(shape, dtype, None, storage(file, begin, dtype, shape))


def written(v: Value, device: str) -> Value:
    """`v` in the file that `device` ("disk:PATH") names: computed and written now. Gradients flow through.

    The file is a safetensors file with one tensor, called "tensor"; it takes the place of what was there when it is
    complete. FileError where it cannot be written; ArgumentError without a path, or within weft.compile.
    """
    from weft.backends.disk.file import MappedFile, open_regular
    from weft.backends.disk.format import header_of, located
    from weft.backends.disk.writing import replacing

    path = located(device.removeprefix("disk").removeprefix(":"))
    if not path.name:
        raise ArgumentError(
            f"to: {device!r} names no file; use 'disk:PATH', such as 'disk:/data/x.safetensors'"
        )
    tracing.host_only("to: a file")
    shape = tuple([n for n in v.shape if isinstance(n, int)])
    if len(shape) != len(v.shape):
        raise ArgumentError(
            f"to: a tensor of shape {v.shape} cannot be written; give its sizes with weft.bind"
        )
    head, header = header_of({NAME: (v.dtype, shape)})
    with replacing(path) as file:
        file.write(head)
        write_values(file, [v])
    with open_regular(path) as file:
        node = leaf(MappedFile(file), header.start, v.dtype, shape)
    return Value(node, True, Op.RESHAPE, None, (v,)) if v.needs_grad and grad_enabled() else Value(node)


def write_values(file: BinaryIO, values: Sequence[Value]) -> None:
    """Write the elements of each value, one value after the other: all computed in one plan where there is memory
    enough for that, else one by one, in pieces if need be."""
    nodes = [v.node for v in values]
    if run.fit_together(nodes):
        constants = run.realize(nodes)
        for v in values:
            run.realize_value(v, constants)
            file.write(_bytes_of(v.node))
        return
    from weft.backends.disk.behind import WriteBehind

    with WriteBehind(file) as behind:
        for node in nodes:
            if not run.written_in_pieces(node, behind.write):
                _write_at_once(node, behind)


def _write_at_once(node: Node, behind: WriteBehind) -> None:
    """Write a value, which its node does not keep. Where it is large, it is written before the next is computed."""
    behind.write(run.value_of(node).numpy().reshape(-1).view("uint8").data)
    if not run.is_little(node):
        behind.flush()


def _bytes_of(node: Node) -> memoryview:
    return run.to_numpy(node).reshape(-1).view("uint8").data


def refuse_writing(op: str, node: Node) -> None:
    """DeviceError for in-place syntax on a tensor in a file: the handle would leave the file, or the file change for
    everybody who has it open."""
    where = place(node).removeprefix("disk").removeprefix(":")
    raise DeviceError(
        f"{op}: the tensor is in a file ({where}), which is not changed in place; write x = x ... to get a new tensor, "
        f"x.to('cpu') for one in memory, or .to('disk:PATH') to replace the file"
    )
