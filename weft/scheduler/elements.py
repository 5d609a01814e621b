"""Single elements of small tensors: the host takes them out of the whole, which is computed once.

    y = weft.sin(x)
    for i in range(3):
        print(float(y[i]))

A kernel for each index would take milliseconds to compile and compute one element each. So the whole of a small tensor
is computed when one of its elements is first used, as in a library that computes at once, and its elements are leaves
of their own: `x[i] == y[j]` is one program for all indices and shapes. Large tensors, and graphs of many nodes, where
an element may be one step of many in a fused computation, are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from weft.backends import registry
from weft.backends.storage import Storage, from_numpy, room_for
from weft.ir.graph import Node
from weft.ir.movement import source
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

ELEMENTS = 4096
"""A tensor of more elements is not computed for the sake of one."""

NODES = 32
"""In a graph of more nodes elements are left to the kernels."""

_MOVED = frozenset({Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.SHRINK, Op.FLIP})


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a tensor, which `node` selects: the whole, and the place in it."""

    node: Node
    whole: Node
    index: tuple[int, ...]


def take(
    nodes: Sequence[Node],
    selecting: Sequence[Node],
    realize: Callable[[Sequence[Node], Mapping[str, int] | None], Mapping[Node, Storage]],
    bindings: Mapping[str, int] | None,
) -> Mapping[Node, Storage] | None:
    """Give those of the nodes that select one element of a small tensor their values; None where there were none.

    `nodes` are to be computed; an element is often reshaped to no axes, which is done here as well. What is selected
    from is computed by `realize`, all of it together. Returned are constants and elements of such, whose nodes keep no
    value: elements of constants are only taken where they were asked for.
    """
    asked = frozenset(nodes)
    reshaped = {n.inputs[0]: n for n in nodes if n.op is Op.RESHAPE}
    every = [e for e in (_element(reshaped.get(n, n)) for n in selecting) if e is not None]
    found = [e for e in every if e.node.device is not None or e.node in asked]
    if not found:
        return None
    constants = realize([e.whole for e in found], bindings)
    arrays: dict[Node, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {}
    taken = dict(constants)
    for e in found:
        stored: Storage = e.whole.storage or constants[e.whole]
        array = arrays.get(e.whole)
        if array is None:
            array = arrays[e.whole] = stored.numpy()
        value = array[(*e.index, None)].reshape((1,) * len(e.node.shape))
        device = registry.open_device(e.node.device) if e.node.device is not None else stored.device
        element = from_numpy(value, stored.dtype, device)
        if e.node.device is None:
            taken[e.node] = element
        elif e.node.storage is None:
            e.node.storage = element
    return taken


def alone(node: Node) -> Element | None:
    """The source of the one element of a node that selects it by itself, and is on a device; None for any other."""
    if node.op not in _MOVED or node.device is None or node.shape.count(1) != len(node.shape):
        return None
    return _element(node)


def copied(element: Element) -> Storage | None:
    """A copy of an element of what is in the memory of its own device, where the host has that at hand; None of any
    other."""
    stored: Storage | None = element.whole.storage
    if stored is None or not stored.device.info.host_memory or stored.home != element.node.device:
        return None
    at = 0
    for i, n in zip(element.index, stored.shape, strict=True):
        at = at * n + i
    nbytes = stored.dtype.itemsize
    device = stored.device
    memory = room_for(device, stored.dtype, (), nbytes)
    device.write(memory, device.read(stored.memory, nbytes, at * nbytes))
    return Storage(device, memory, stored.dtype, (1,) * len(element.node.shape))


def _element(node: Node) -> Element | None:
    """The source of the node's one element; None for what is large, or at a place known at run time only."""
    whole, index = node, tuple([0] * len(node.shape))
    while whole.op in _MOVED and whole.storage is None:
        at = source(whole, index).index
        found = [i for i in at if isinstance(i, int)]
        if len(found) < len(at):
            return None
        whole, index = whole.inputs[0], tuple(found)
    size = 1
    for n in whole.shape:
        if not isinstance(n, int):
            return None
        size *= n
    if whole.storage is not None:
        stored: Storage = whole.storage
        held = stored.device.info.host_memory and stored.device.info.kind != "disk"
        return Element(node, whole, index) if held or size <= ELEMENTS else None
    return Element(node, whole, index) if whole.inputs and size <= ELEMENTS else None
