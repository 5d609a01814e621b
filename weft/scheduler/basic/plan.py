"""Basic plans: a graph that was never seen, run at once by programs that are there already.

Each node of a graph that is not free is computed by a kernel of its own, whose program knows no sizes: so there are few
of them, all graphs share them, and on disk they are kept for good. The plan is as any other; see `build`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.backends.protocol import Device
from weft.ir.calls import expand_calls
from weft.ir.kernel.algorithm import Algorithm
from weft.scheduler.basic.cut import pieces
from weft.scheduler.basic.kernels import BasicKernel, Kernels
from weft.scheduler.build import Job, Prepared, assembled
from weft.scheduler.copies import Copies
from weft.scheduler.programs import compiled
from weft.scheduler.unrolled import Unrolled


@dataclass(frozen=True, slots=True)
class Basic:
    """The kernels of a job, in order. `distinct`: the number of different ones, were sizes part of them."""

    job: Job
    kernels: tuple[BasicKernel, ...]
    distinct: int

    @property
    def algorithms(self) -> list[Algorithm]:
        """The algorithms to be compiled."""
        return [k.algorithm for k in self.kernels]

    def plan(self, device: Device) -> tuple[Unrolled, list[tuple[str, str]] | None]:
        """The plan, and in which stored image its codes are, by which names (None: not storable)."""
        codes = compiled(self.algorithms, device)
        specs = [k.spec for k in self.kernels]
        chosen = {k.spec: (code, k.sizes) for k, code in zip(self.kernels, codes, strict=True)}
        where = [(c.image, c.name) for c in dict.fromkeys(codes) if c.image is not None]
        plan = assembled(Prepared(self.job, device, specs, chosen, Copies.of(specs), where))
        return plan, where if len(where) == len(plan.codes) else None


def basic(job: Job, device: Device) -> Basic | None:
    """The basic kernels of a job; None where some op has none."""
    job = replace(job, outputs=tuple(expand_calls(job.outputs)))
    cut = pieces(job.outputs)
    if cut is None:
        return None
    kernels = Kernels(device.info.name, device.info.bounds.parameters)
    found = [k for piece in cut.pieces for k in kernels.of(piece, cut.homes)]
    return Basic(job, tuple(found), len(kernels.known))
