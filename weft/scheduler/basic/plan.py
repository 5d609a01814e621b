"""Basic plans: a graph that was never seen, run at once by programs that are there already.

Each node of a graph that is not free is computed by a kernel of its own, whose program knows no sizes: so there are few
of them, all graphs share them, and on disk they are kept for good. The plan is as any other; see `build`.
"""

from __future__ import annotations

from dataclasses import replace

from weft.backends.protocol import Device
from weft.ir.calls import expand_calls
from weft.scheduler.basic.cut import pieces
from weft.scheduler.basic.kernels import BasicKernel, Kernels
from weft.scheduler.build import Job, Prepared
from weft.scheduler.copies import Copies
from weft.scheduler.plan import Plan
from weft.scheduler.programs import compiled


def basic_kernels(job: Job, device: Device) -> list[BasicKernel] | None:
    """The basic kernels of a job without calls, in order; None where some op has none."""
    cut = pieces(job.outputs)
    if cut is None:
        return None
    kernels = Kernels(device.info.name, device.info.bounds.parameters)
    found: list[BasicKernel] = []
    for piece in cut.pieces:
        found += kernels.of(piece, cut.homes)
    return found


def basic_plan(job: Job, device: Device) -> Plan | None:
    """The basic plan of a job; None where some op has no basic kernel."""
    job = replace(job, outputs=tuple(expand_calls(job.outputs)))
    found = basic_kernels(job, device)
    if found is None:
        return None
    codes = compiled([k.algorithm for k in found], device)
    specs = [k.spec for k in found]
    chosen = {k.spec: (code, k.sizes) for k, code in zip(found, codes, strict=True)}
    return Prepared(job, device, specs, chosen, Copies.of(specs), []).plan({})
