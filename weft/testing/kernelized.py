"""Running a graph by its kernels, one after the other: as they are before scheduling, in the interpreter, or as the
caller schedules and runs them."""
# Tests: tests/scheduler/kernelize/test_random.py

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from weft.backends.dummy.interpreter import interpret
from weft.backends.protocol import Commands, Device, DeviceInfo
from weft.backends.protocol import Launch as Step
from weft.ir.calls import expand_calls
from weft.ir.dtypes import to_numpy
from weft.ir.graph import Node, elements, toposort
from weft.ir.index import evaluate
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import Kernel, initial
from weft.ir.kernel.verify import verify
from weft.ir.ops import Op
from weft.scheduler.kernelize.cost import NO_LIMIT
from weft.scheduler.kernelize.kernels import kernelize_all
from weft.scheduler.kernelize.spec import Home, KernelSpec, Place, ScanSpec, StepSpec
from weft.scheduler.lowering import lowered

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
    return run(kernelize_all(outputs, buffers), outputs, bindings, launch)


def run(
    specs: Sequence[KernelSpec | ScanSpec],
    outputs: Sequence[Node],
    bindings: Mapping[str, int] | None = None,
    launch: Launch = unscheduled,
) -> list[Array]:
    """The values of `outputs`, computed by `specs` in their order."""
    outputs = expand_calls(outputs)
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
        if isinstance(spec, ScanSpec):
            memory.update({id(n): np.full(size(n), 77, to_numpy(n.dtype)) for n in spec.results})
            _repeat(
                spec, [value(n).copy() for n in spec.inputs], [value(n) for n in spec.results], env, launch
            )
            continue
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


def _repeat(
    loop: ScanSpec, inputs: Sequence[Array], results: Sequence[Array], env: Mapping[str, int], launch: Launch
) -> None:
    """Run a loop's kernels, with fresh memory for what each step makes."""
    before: dict[int, Array] = {i: inputs[i] for i in loop.carries}
    after: dict[int, Array] = {}
    own: dict[Place, Array] = {}

    def place(p: Place) -> Array:
        match p.home:
            case Home.INPUT:
                return inputs[p.number]
            case Home.RESULT:
                return results[p.number]
            case Home.BEFORE:
                return before[p.number]
            case Home.AFTER:
                return after.setdefault(p.number, np.full_like(before[p.number], 77))
            case Home.OWN:
                node = loop.own[p.number]
                return own.setdefault(
                    p, np.full(int(evaluate(elements(node.shape), {})), 77, to_numpy(node.dtype))
                )

    def step(s: StepSpec, known: Mapping[str, int]) -> None:
        reads, writes = [place(p).copy() for p in s.reads], [place(p) for p in s.writes]
        for at, base in s.bases.items():
            writes[at][...] = place(base)
        if isinstance(s.spec, ScanSpec):
            given = dict(zip(s.spec.reads, reads, strict=True))
            _repeat(s.spec, [given[n] for n in s.spec.inputs], writes, known, launch)
            return
        verify(s.spec.algorithm)
        left, made = iter(reads), iter(writes)
        buffers = {p.name: next(made) if p.written else next(left) for p in s.spec.algorithm.params}
        launch(s.spec.algorithm, buffers, {v.name: known[v.name] for v in s.spec.algorithm.variables})

    for s in loop.begin:
        step(s, env)
    length = int(evaluate(loop.body.length, env))
    for k in range(length):
        t = length - 1 - k if loop.body.reverse else k
        after.clear()
        own.clear()
        for s in loop.steps:
            step(s, {**env, loop.variable.name: t})
        before.update(after)
    for i, carry in loop.carries.items():
        if carry.result is not None:
            results[carry.result][...] = before[i]
