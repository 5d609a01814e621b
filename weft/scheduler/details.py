"""What a plan would run, in full: for explanations. Nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.backends.protocol import Device
from weft.ir.graph import Node
from weft.ir.index import high
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.kernel.schedule import Kernel
from weft.ir.loops_text import show_program
from weft.scheduler.kernelize import kernelize
from weft.scheduler.optimize.rules import schedule
from weft.scheduler.programs import compiled


@dataclass(frozen=True, slots=True)
class KernelDetail:
    """A kernel to come. `bytes` (what must at least move) and `flops` are for the largest runtime sizes.

    `why`: what ended its fusion. `algorithm`: what it computes; `schedule`: the transforms, one a line; `loops`: the
    lowered program; `source`: what the backend made of it.
    """

    name: str
    bytes: int
    flops: int
    why: tuple[str, ...]
    algorithm: Algorithm
    schedule: str
    loops: str
    source: str


def details(nodes: Sequence[Node], device: Device) -> list[KernelDetail]:
    """The kernels that computing `nodes` on `device` takes, in order."""
    specs = kernelize(nodes)
    kernels = compiled([s.algorithm for s in specs], device)
    return [
        KernelDetail(
            s.algorithm.name, high(s.bytes), high(s.flops), s.why, s.algorithm,
            _history(schedule(s.algorithm, device.info)), show_program(c.program), c.code.source,
        )
        for s, c in zip(specs, kernels, strict=True)
    ]  # fmt: skip


def _history(kernel: Kernel) -> str:
    return "\n".join(str(t) for t in kernel.history)
