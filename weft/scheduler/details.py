"""The programs of a plan in full, for explanations: nothing is computed, and nothing compiled until asked for."""
# Tests: tests/core/execute/test_explanation.py

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.backends.protocol import Device, DeviceInfo
from weft.ir.graph import Node
from weft.ir.index import Int, evaluate, high
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.summary import summary
from weft.ir.kernel.text import show_algorithm
from weft.ir.loops_text import show_program
from weft.lazy_dataclass import dataclass
from weft.scheduler.build import in_company
from weft.scheduler.kernelize.decisions import Logged
from weft.scheduler.kernelize.kernels import kernelize_expanded, kernels
from weft.scheduler.kernelize.spec import ScanSpec
from weft.scheduler.lowering import lowered
from weft.scheduler.optimize.rules import Decided, decide
from weft.scheduler.planned import planned


@dataclass(frozen=True, slots=True)
class KernelDetail:
    """A kernel to come. `bytes` (what must at least move; `written` of them are written) and `flops` are for the
    largest runtime sizes, where they are not given; `why`: what ended its fusion; `decisions`: those about each of its
    nodes."""

    name: str
    bytes: int
    written: int
    flops: int
    why: tuple[str, ...]
    decisions: tuple[Logged, ...]
    algorithm: Algorithm
    decided: Decided
    device: Device

    @property
    def kernel(self) -> Kernel:
        """The schedule."""
        return self.decided.kernel

    @property
    def rules(self) -> str:
        """The verdict on each schedule rule, a line for each."""
        return str(self.decided)

    @property
    def summary(self) -> str:
        """The schedule in one line."""
        return summary(self.kernel)

    def forms(self) -> Mapping[str, str]:
        """The forms of the kernel at each stage: algorithm, schedule (its transforms), loops, and what the backend
        makes of these."""

        def chosen(_algorithm: Algorithm, _info: DeviceInfo) -> Kernel:
            return self.kernel

        program = lowered(self.algorithm, self.device.info, chosen)
        return {
            "algorithm": show_algorithm(self.algorithm),
            "schedule": "\n".join(map(str, self.kernel.history)),
            "loops": show_program(program),
            **self.device.listings(program),
        }


def details(
    nodes: Sequence[Node],
    device: Device,
    sizes: Mapping[str, int] | None = None,
    order: Sequence[int] | None = None,
) -> list[KernelDetail]:
    """The kernels that computing `nodes` on `device` takes, in order, or in this `order`; where runtime variables have
    these `sizes`."""

    def count(x: Int) -> int:
        return high(x) if sizes is None else int(evaluate(x, sizes))

    specs = kernelize_expanded(planned(nodes, device.info), device.info.bounds.parameters, logged=True)
    info = in_company(specs, device)
    once = {
        s: KernelDetail(
            s.algorithm.name, count(s.bytes), min(s.written, count(s.bytes)), count(s.flops), s.why, s.decisions,
            s.algorithm, decide(s.algorithm, info), device,
        )
        for s in kernels(specs)
    }  # fmt: skip
    found = specs if order is None else [specs[k] for k in order]
    return [once[k] for s in found for k in (s.launches(sizes or {}) if isinstance(s, ScanSpec) else (s,))]
