"""The kernels of a graph: its nodes' fusion, then the algorithm of each group."""
# Tests: tests/scheduler/test_golden.py
# Tests: tests/scheduler/kernelize/test_structure.py, tests/scheduler/kernelize/test_decisions.py

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft import settings
from weft.ir.calls import expand_calls
from weft.ir.graph import Node
from weft.ir.kernel.verify import verify
from weft.scheduler.kernelize.cost import NO_LIMIT
from weft.scheduler.kernelize.decisions import Logged, decisions_by_group, describe
from weft.scheduler.kernelize.emit import emit
from weft.scheduler.kernelize.far import find_far
from weft.scheduler.kernelize.loops import loop_spec
from weft.scheduler.kernelize.masks import find_masks
from weft.scheduler.kernelize.order import ordered
from weft.scheduler.kernelize.partition import Partition
from weft.scheduler.kernelize.spec import CopySpec, KernelSpec, ScanSpec


def kernelize(outputs: Sequence[Node], buffers: int = NO_LIMIT) -> list[KernelSpec]:
    """The kernels that compute `outputs`, those of loops once: see `kernelize_all`."""
    return kernels(kernelize_all(outputs, buffers))


def kernels(specs: Iterable[KernelSpec | ScanSpec]) -> list[KernelSpec]:
    """The kernels among the specifications, and in the loops among them, each once."""
    return [k for s in specs for k in (s.kernels() if isinstance(s, ScanSpec) else (s,))]


def kernelize_all(
    outputs: Sequence[Node], buffers: int = NO_LIMIT, logged: bool = False
) -> list[KernelSpec | ScanSpec]:
    """The kernels and loops that compute `outputs` from what is in memory, in an order in which they can run.

    Nodes with storage, and BUFFERs, are inputs; an output that is one needs no kernel, nor does one without elements.
    No kernel reads and writes more than `buffers` tensors. The result depends on the graph's structure only. With
    `logged`, each kernel comes with the decisions about its nodes, as text.
    """
    return kernelize_expanded(expand_calls(outputs), buffers, logged)


def kernelize_expanded(
    outputs: Sequence[Node], buffers: int = NO_LIMIT, logged: bool = False
) -> list[KernelSpec | ScanSpec]:
    """As `kernelize_all`, of a graph without calls."""
    partition = Partition(outputs, buffers)
    masks = find_masks(partition.prepared.order, frozenset(map(id, outputs)))
    far = find_far(partition.prepared.order)
    groups = ordered(partition)
    log = decisions_by_group(partition.log, groups) if logged else {}
    specs = [
        loop_spec(g, partition.cuts, lambda nodes, most: kernelize_all(nodes, min(most, buffers), logged))
        if g.is_loop
        else emit(g, partition.cuts, masks, far, log.get(g, ()))
        for g in groups
    ]
    partition.dissolve()
    if settings.verify():
        for s in specs:
            if isinstance(s, KernelSpec):
                verify(s.algorithm)
    return specs


def decision_log(outputs: Sequence[Node], buffers: int = NO_LIMIT) -> list[Logged]:
    """The decisions about all nodes that computing `outputs` needs, in the order in which they are made."""
    partition = Partition(expand_calls(outputs), buffers)
    log = list(describe(partition.log, ordered(partition)))
    partition.dissolve()
    return log


def copies(outputs: Sequence[Node]) -> list[CopySpec]:
    """The copies between devices that computing `outputs` needs."""
    partition = Partition(expand_calls(outputs))
    partition.dissolve()
    return [CopySpec(n.inputs[0], n) for n in partition.copies]
