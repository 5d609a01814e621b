"""Running a graph by its kernels, one after the other: as they are before scheduling, in the interpreter, or as the
caller schedules and runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from weft.backends.dummy.interpreter import interpret
from weft.backends.protocol import Commands, Device, DeviceInfo
from weft.backends.protocol import Launch as Step
from weft.ir.dtypes import to_numpy
from weft.ir.graph import Node, elements, toposort
from weft.ir.index import evaluate
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import Kernel, initial
from weft.ir.kernel.verify import verify
from weft.ir.ops import Op
from weft.scheduler.kernelize import KernelSpec, kernelize
from weft.scheduler.kernelize.cost import NO_LIMIT
from weft.scheduler.programs import lowered

Array: TypeAlias = np.ndarray[Any, Any]


Launch: TypeAlias = Callable[[Algorithm, dict[str, Array], Mapping[str, int]], None]
"""Runs a kernel on flat arrays, by parameter, with these values of the runtime variables."""


def unscheduled(algorithm: Algorithm, buffers: dict[str, Array], variables: Mapping[str, int]) -> None:
    """A kernel with its initial schedule, interpreted."""
    interpret(lower(initial(algorithm)), buffers, variables)


def on_device(device: Device, scheduler: Callable[[Algorithm, DeviceInfo], Kernel]) -> Launch:
    """Kernels as `scheduler` schedules them, compiled by a device and run on it."""

    def launch(algorithm: Algorithm, buffers: dict[str, Array], variables: Mapping[str, int]) -> None:
        program = lowered(algorithm, device.info, scheduler)
        codes, _ = device.compile([program])
        slots, given = range(len(program.params)), [variables[v.name] for v in program.variables]
        step = Step(0, tuple(slots), tuple(range(len(given))))
        executable = device.link(codes, Commands((step,), len(slots), (), 0, len(given)))
        memories = [device.allocate(max(1, buffers[b.name].nbytes)) for b in program.params]
        for b, memory in zip(program.params, memories, strict=True):
            device.write(memory, buffers[b.name].view(np.uint8).data)
        executable.run(memories, given)
        device.synchronize()
        for b, memory in zip(program.params, memories, strict=True):
            if b.name in program.writes:
                own = buffers[b.name]
                own[...] = np.frombuffer(device.read(memory, own.nbytes), own.dtype)

    return launch


def execute(
    outputs: Sequence[Node],
    bindings: Mapping[str, int] | None = None,
    launch: Launch = unscheduled,
    buffers: int = NO_LIMIT,
) -> list[Array]:
    """The values of `outputs`: kernelized for at most `buffers` tensors a kernel, each kernel verified, and run by
    `launch`.

    A leaf's storage is an array or has `.numpy()`. `bindings` gives the runtime variables by name. Copies to other
    devices are made first, and stay.
    """
    for n in toposort(outputs):
        if n.op is Op.COPY and n.storage is None:
            (n.storage,) = execute(n.inputs, bindings, launch, buffers)
    return run(kernelize(outputs, buffers), outputs, bindings, launch)


def run(
    specs: Sequence[KernelSpec],
    outputs: Sequence[Node],
    bindings: Mapping[str, int] | None = None,
    launch: Launch = unscheduled,
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
        launch(spec.algorithm, buffers, used)
    return [value(n).reshape(tuple(int(evaluate(s, env)) for s in n.shape)) for n in outputs]
