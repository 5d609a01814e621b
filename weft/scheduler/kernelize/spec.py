"""Specifications of the kernels of a graph, and of copies between devices."""
# Tests: tests/scheduler/kernelize/test_structure.py, tests/scheduler/test_plan_verify.py

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING

from weft.ir.graph import Node, elements
from weft.ir.index import Int, Var, evaluate, high
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.loop_body import Body
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.scheduler.kernelize.decisions import Logged


@dataclass(frozen=True, slots=True, eq=False)
class KernelSpec:
    """One kernel to be.

    `reads` and `writes` are the nodes whose buffers the algorithm's parameters are, in parameter order: first those
    that are only read, then the written ones. A written parameter named in `inplace` must start as a copy of that
    node's buffer (or be that buffer, where nothing needs the old value). `why` says what ended the kernel's fusion at
    each of its inputs and outputs; `decisions`, about each of its nodes, are there if they were asked for. `flops` (see
    `count.operations`) and `bytes` (compulsory traffic) may depend on runtime sizes.
    """

    algorithm: Algorithm
    reads: tuple[Node, ...]
    writes: tuple[Node, ...]
    inplace: Mapping[str, Node]
    why: tuple[str, ...]
    flops: Int
    bytes: Int
    decisions: tuple[Logged, ...] = ()

    @property
    def written(self) -> int:
        """Bytes written, part of `bytes`, at the largest runtime sizes."""
        whole = sum(high(elements(n.shape)) * n.dtype.itemsize for n in self.writes)
        return min(whole, high(self.bytes))


class Home(Enum):
    """The owner of the memory of a tensor in a loop's body."""

    INPUT = auto()  # that of an input of the loop, by its number
    RESULT = auto()  # that of a result
    BEFORE = auto()  # where a carry is before the step
    AFTER = auto()  # where it is after the step
    OWN = auto()  # its own, for the time of a step


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a tensor in a loop's body. `row`: the row of that memory, counted from t; None for all of it."""

    home: Home
    number: int
    row: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StepSpec:
    """A kernel (or a loop) of a loop's body; where its parameters are, in order: read ones, then written ones. `bases`:
    by the number of a written one, the place of what it starts as a copy of."""

    spec: KernelSpec | ScanSpec
    reads: tuple[Place, ...]
    writes: tuple[Place, ...]
    bases: Mapping[int, Place]


@dataclass(frozen=True, slots=True, eq=False)
class ScanSpec:
    """A loop: its steps' kernels, again and again, with the runtime variable `variable` for t.

    `reads` are the nodes of its inputs, each once, and `inputs` says which of them input k is. `writes` are the results
    that somebody reads. `begin` copy what carries start from into the first rows of their histories. `carries`: for
    each carry that lives on from step to step, its bytes, the number of the input that it starts from, and that of the
    result that its last value is (None: nobody reads that). `own` are the nodes with memory for the time of a step.
    """

    body: Body
    variable: Var
    inputs: tuple[Node, ...]
    results: tuple[Node, ...]
    begin: tuple[StepSpec, ...]
    steps: tuple[StepSpec, ...]
    carries: Mapping[int, Carry]
    own: tuple[Node, ...]
    why: tuple[str, ...]

    @property
    def reads(self) -> tuple[Node, ...]:
        return tuple(dict.fromkeys(self.inputs))

    @property
    def writes(self) -> tuple[Node, ...]:
        return self.results

    @property
    def inplace(self) -> Mapping[str, Node]:
        return {}

    def kernels(self) -> Iterator[KernelSpec]:
        """The kernels of the loop, each once."""
        for s in (*self.begin, *self.steps):
            if isinstance(s.spec, ScanSpec):
                yield from s.spec.kernels()
            else:
                yield s.spec

    def launches(self, sizes: Mapping[str, int]) -> Iterator[KernelSpec]:
        """The kernels of the loop, as often as they run and in that order, where runtime variables have these sizes."""
        for steps, times in ((self.begin, 1), (self.steps, int(evaluate(self.body.length, sizes)))):
            for _ in range(times):
                for s in steps:
                    if isinstance(s.spec, ScanSpec):
                        yield from s.spec.launches(sizes)
                    else:
                        yield s.spec


@dataclass(frozen=True, slots=True)
class Carry:
    """A tensor that lives on from step to step. `result`: the number of the result that it ends as, if there is one."""

    nbytes: int
    result: int | None


@dataclass(frozen=True, slots=True, eq=False)
class CopySpec:
    """A tensor to be copied to another device: `target` is the COPY node."""

    source: Node
    target: Node


Spec = KernelSpec | ScanSpec | CopySpec
