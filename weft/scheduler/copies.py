"""Copies within a plan: what is updated in place starts as what it was, where that is still needed.

Bytes of a known number are copied by a step of their own kind. Where sizes are known when the plan runs, a kernel
copies just the elements that there are: memory is as large as these, not as large as it may become.
"""
# Tests: tests/scheduler/test_families.py, tests/fuzz/test_families.py

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from weft.backends.protocol import CopyBytes, Launch, Step
from weft.ir.dtypes import DType
from weft.ir.graph import Node, elements
from weft.ir.index import Int, high
from weft.ir.kernel.algorithm import Param
from weft.lazy_dataclass import dataclass
from weft.scheduler.kernelize.copying import copying
from weft.scheduler.kernelize.spec import KernelSpec, ScanSpec
from weft.scheduler.plan import KernelInfo
from weft.scheduler.plan_verify import Access, StepAccesses
from weft.scheduler.programs import CompiledProgram

WHY = "the old value is still needed"


@dataclass(frozen=True, slots=True)
class Copies:
    """The kernels that copy what has a runtime size, by dtype and number of elements."""

    kernels: dict[tuple[DType, Int], KernelSpec] = field(
        default_factory=dict["tuple[DType, Int]", KernelSpec]
    )

    @classmethod
    def of(cls, specs: Iterable[KernelSpec | ScanSpec]) -> Copies:
        """The kernels that steps of these may need."""
        found = cls()
        for node in _bases(specs):
            size = elements(node.shape)
            if not isinstance(size, int) and (node.dtype, size) not in found.kernels:
                found.kernels[node.dtype, size] = _copying(node, size)
        return found

    def step(
        self,
        target: int,
        source: int,
        node: Node,
        chosen: Mapping[KernelSpec, tuple[CompiledProgram, Mapping[str, Int]]],
        number: Mapping[CompiledProgram, int],
        runtime: Mapping[str, int],
    ) -> tuple[Step, KernelInfo]:
        """The step that copies a tensor like `node` from one slot to another."""
        nbytes = high(elements(node.shape)) * node.dtype.itemsize
        info = KernelInfo("copy", 2 * nbytes, 0, (WHY,), nbytes)
        spec = self.kernels.get((node.dtype, elements(node.shape)))
        if spec is None:
            return CopyBytes(target, source, nbytes), info
        program, own = chosen[spec]
        assert not own, "the sizes are its only variables"
        return Launch(number[program], (source, target), tuple([runtime[v] for v in program.variables])), info


def copy_trace(step: Step, node: Node) -> StepAccesses:
    """The accesses of a copy of `node`."""
    nbytes = high(elements(node.shape)) * node.dtype.itemsize
    if isinstance(step, CopyBytes):
        return StepAccesses((Access(step.target, nbytes, True), Access(step.source, nbytes, False)))
    source, target = step.slots
    return StepAccesses((Access(source, nbytes, False), Access(target, nbytes, True)))


def _copying(node: Node, size: Int) -> KernelSpec:
    algorithm = copying("copy", node.dtype, size, Param("y0", node.dtype, (size,), True))
    return KernelSpec(algorithm, (node,), (node,), {}, (WHY,), 0, 2 * size * node.dtype.itemsize)


def _bases(specs: Iterable[KernelSpec | ScanSpec]) -> Iterator[Node]:
    """Nodes that may have to be copied."""
    for spec in specs:
        if isinstance(spec, ScanSpec):
            for s in (*spec.begin, *spec.steps):
                yield from [s.spec.writes[k] for k in s.bases]
                yield from _bases([s.spec])
        else:
            yield from spec.inplace.values()
