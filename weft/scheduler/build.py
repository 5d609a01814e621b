"""Graph -> plan: the graph as is best for a device, its kernels, their code, and what they are assembled to."""
# Tests: tests/scheduler/test_realize.py, tests/scheduler/test_plan_verify.py

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft import settings
from weft.backends.protocol import Device, DeviceInfo
from weft.ir.graph_verify import verify_graph
from weft.ir.kernel.verify import verify as verify_algorithm
from weft.ir.loops import LoopKind
from weft.scheduler.assembly import Job, Prepared, assembled
from weft.scheduler.copies import Copies
from weft.scheduler.generalize import generalize
from weft.scheduler.kernelize.kernels import kernelize_expanded, kernels
from weft.scheduler.kernelize.spec import KernelSpec, ScanSpec
from weft.scheduler.optimize import parallel
from weft.scheduler.optimize.extents import typical
from weft.scheduler.planned import planned
from weft.scheduler.programs import compiled
from weft.scheduler.unrolled import Unrolled


def build(job: Job, device: Device) -> tuple[Unrolled, list[tuple[str, str]] | None]:
    """The plan for a job on a device, and in which stored image its codes are, by which names (None: not storable)."""
    made = prepared(job, device)
    plan = assembled(made)
    return plan, made.where if len(made.where) == len(plan.codes) else None


def prepared(job: Job, device: Device) -> Prepared:
    """The job with its kernels compiled, or found."""
    job = replace(job, outputs=tuple(planned(job.outputs, device.info)))
    specs = kernelize_expanded(job.outputs, device.info.bounds.parameters)
    copies = Copies.of(specs)
    single = [*kernels(specs), *copies.kernels.values()]
    if settings.verify():
        verify_graph(job.outputs)
        for spec in single:
            verify_algorithm(spec.algorithm)
    general = generalize([s.algorithm for s in single])
    if settings.verify():
        for g in dict.fromkeys(g.algorithm for g in general):
            verify_algorithm(g)
    codes = compiled([g.algorithm for g in general], device, in_company(specs, device), job.at_once)
    where = [(c.image, c.name) for c in dict.fromkeys(codes) if c.image is not None]
    chosen = {s: (c, g.constants) for s, c, g in zip(single, codes, general, strict=True)}
    return Prepared(job, device, specs, chosen, copies, where)


def in_company(specs: Sequence[KernelSpec | ScanSpec], device: Device) -> DeviceInfo:
    """The device as the kernels of a plan find it."""
    info = device.info
    if info.task_kind is not LoopKind.PARALLEL:
        return info
    works = [parallel.work_ns(typical(s.flops), typical(s.bytes), info) for s in kernels(specs)]
    return parallel.in_company(works, info)
