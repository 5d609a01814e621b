"""Graph -> kernels: which nodes are computed together, and the algorithm of each kernel."""

from __future__ import annotations

from collections.abc import Sequence

from weft import settings
from weft.ir.graph import Node
from weft.ir.kernel.verify import verify
from weft.scheduler.kernelize.cost import NO_LIMIT
from weft.scheduler.kernelize.emit import emit
from weft.scheduler.kernelize.masks import find_masks
from weft.scheduler.kernelize.order import ordered
from weft.scheduler.kernelize.partition import Partition
from weft.scheduler.kernelize.spec import CopySpec, KernelSpec

__all__ = ["CopySpec", "KernelSpec", "copies", "kernelize"]


def kernelize(outputs: Sequence[Node], buffers: int = NO_LIMIT) -> list[KernelSpec]:
    """The kernels that compute `outputs` from what is in memory, in an order in which they can run.

    Nodes with storage, and BUFFERs, are inputs; an output that is one needs no kernel, nor does one without elements.
    No kernel reads and writes more than `buffers` tensors. The result depends on the graph's structure only.
    """
    partition = Partition(outputs, buffers)
    position = {id(n): k for k, n in enumerate(partition.order)}
    masks = find_masks(partition.order, frozenset(map(id, outputs)))
    specs = [emit(g, partition.why, masks) for g in ordered(partition.groups, position)]
    partition.dissolve()
    if settings.verify():
        for s in specs:
            verify(s.algorithm)
    return specs


def copies(outputs: Sequence[Node]) -> list[CopySpec]:
    """The copies between devices that computing `outputs` needs."""
    partition = Partition(outputs)
    partition.dissolve()
    return [CopySpec(n.inputs[0], n) for n in partition.copies]
