"""Running a graph by its kernels as they are before scheduling: what kernelizing means, in the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from weft.backends.dummy.interpreter import interpret
from weft.ir.dtypes import to_numpy
from weft.ir.graph import Node, elements, toposort
from weft.ir.index import evaluate
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import initial
from weft.ir.kernel.verify import verify
from weft.ir.ops import Op
from weft.scheduler.kernelize import KernelSpec, kernelize

Array: TypeAlias = np.ndarray[Any, Any]


def execute(outputs: Sequence[Node], bindings: Mapping[str, int] | None = None) -> list[Array]:
    """The values of `outputs`: kernelized, each kernel verified, lowered with its initial schedule, and interpreted.

    A leaf's storage is an array or has `.numpy()`. `bindings` gives the runtime variables by name. Copies to other
    devices are made first, and stay.
    """
    for n in toposort(outputs):
        if n.op is Op.COPY and n.storage is None:
            (n.storage,) = execute(n.inputs, bindings)
    return run(kernelize(outputs), outputs, bindings)


def run(
    specs: Sequence[KernelSpec], outputs: Sequence[Node], bindings: Mapping[str, int] | None = None
) -> list[Array]:
    """The values of `outputs`, computed by `specs` in their order."""
    env = dict(bindings or {})
    memory: dict[int, Array] = {}

    def size(n: Node) -> int:
        return int(evaluate(elements(n.shape), env))

    def value(n: Node) -> Array:
        found = memory.get(id(n))
        if found is not None:
            return found
        if n.storage is None:
            return np.empty(size(n), to_numpy(n.dtype))  # nothing computes it: it has no elements
        array: Array = n.storage.numpy() if hasattr(n.storage, "numpy") else n.storage
        return np.ascontiguousarray(array).reshape(-1)

    for spec in specs:
        verify(spec.algorithm)
        buffers: dict[str, Array] = {}
        reads, writes = iter(spec.reads), iter(spec.writes)
        for p in spec.algorithm.params:
            if p.written:
                node = next(writes)
                base = spec.inplace.get(p.name)
                fresh = np.full(size(node), 77, to_numpy(node.dtype)) if base is None else value(base).copy()
                memory[id(node)] = buffers[p.name] = fresh
            else:
                buffers[p.name] = value(next(reads)).copy()
        used = {v.name: env[v.name] for v in spec.algorithm.variables}
        interpret(lower(initial(spec.algorithm)), buffers, used)
    return [value(n).reshape(tuple(int(evaluate(s, env)) for s in n.shape)) for n in outputs]
