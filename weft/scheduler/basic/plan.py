"""Basic plans: a graph that was never seen, run at once by programs that are there already.

Each piece of a graph (see `cut`) is computed by a kernel of its own, whose program knows no sizes: so there are few of
them, all graphs share them, and on disk they are kept for good. The plan is as any other; see `build`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from weft.backends.protocol import Device
from weft.ir.calls import expand_calls
from weft.ir.kernel.algorithm import Algorithm
from weft.lazy_dataclass import dataclass
from weft.scheduler.assembly import Job, Prepared, assembled
from weft.scheduler.basic.cut import Pieces, pieces
from weft.scheduler.basic.kernels import BasicKernel, Kernels, Key, key_of
from weft.scheduler.basic.loops import BasicLoop, inner, kernels_of
from weft.scheduler.basic.unfold import unfolded
from weft.scheduler.copies import Copies
from weft.scheduler.programs import compiled
from weft.scheduler.unrolled import Unrolled


@dataclass(frozen=True, slots=True)
class Basic:
    """The kernels of a job, in order."""

    job: Job
    steps: tuple[BasicKernel | BasicLoop, ...]

    @property
    def kernels(self) -> list[BasicKernel]:
        """The kernels, those of loops once."""
        return [k for s in self.steps for k in (s.kernels if isinstance(s, BasicLoop) else (s,))]

    @property
    def algorithms(self) -> list[Algorithm]:
        """The algorithms to be compiled."""
        return [k.algorithm for k in self.kernels]

    def plan(self, device: Device) -> tuple[Unrolled, list[tuple[str, str]] | None]:
        """The plan, and in which stored image its codes are, by which names (None: not storable)."""
        specs = [s.spec for s in self.steps]
        copies = Copies.of(specs)
        kernels = [*self.kernels, *[BasicKernel(s, s.algorithm, {}) for s in copies.kernels.values()]]
        codes = compiled([k.algorithm for k in kernels], device)
        chosen = {k.spec: (code, k.sizes) for k, code in zip(kernels, codes, strict=True)}
        where = [(c.image, c.name) for c in dict.fromkeys(codes) if c.image is not None]
        plan = assembled(Prepared(self.job, device, specs, chosen, copies, where))
        return plan, where if len(where) == len(plan.codes) else None


@dataclass(frozen=True, slots=True)
class Draft:
    """A job cut into pieces; pieces of one key are alike, sizes included."""

    job: Job
    cut: Pieces
    keys: tuple[Key, ...]

    @property
    def distinct(self) -> int:
        """The number of different kernels, were sizes part of them."""
        return len({*self.keys, *inner(self.cut)})

    def kernels(self, device: Device, most: int | None = None) -> Basic | None:
        """The kernels of the pieces. None where more than `most` programs would have to be compiled for them: the rest
        of the kernels is not made then."""
        kernels = Kernels(device, Counter(self.keys), whole=most is None)
        found: list[BasicKernel | BasicLoop] = []
        for step in kernels_of(self.cut, self.keys, kernels):
            found.append(step)
            if most is not None and kernels.missing > most:
                return None
        return Basic(self.job, tuple(found))


def draft(job: Job) -> Draft | None:
    """The pieces of a job; None where some op has no basic kernel."""
    job = replace(job, outputs=tuple(unfolded(expand_calls(job.outputs))))
    cut = pieces(job.outputs)
    return None if cut is None else Draft(job, cut, tuple(map(key_of, cut.pieces)))


def basic(job: Job, device: Device) -> Basic | None:
    """The basic kernels of a job; None where some op has none."""
    found = draft(job)
    return None if found is None else found.kernels(device)
