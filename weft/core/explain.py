"""weft.explain: the kernels to come, why each ends where it does, and how long each takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.core import tracing
from weft.core.handle import value_of

if TYPE_CHECKING:
    from weft.backends.protocol import Device, DeviceInfo
    from weft.core.tensor import Tensor
    from weft.ir.graph import Node
    from weft.scheduler.details import KernelDetail
    from weft.scheduler.plan import KernelInfo


@dataclass(frozen=True, slots=True)
class Timing:
    """One kernel's time: nanoseconds, rates, and the share of what the device can do at best at this size."""

    name: str
    ns: int
    flops: int
    bytes: int
    share: float

    @property
    def gflops(self) -> float:
        """1e9 floating-point operations per second."""
        return self.flops / self.ns if self.ns else 0.0

    @property
    def gbytes(self) -> float:
        """1e9 bytes per second, counting what must at least move."""
        return self.bytes / self.ns if self.ns else 0.0

    def __str__(self) -> str:
        return (
            f"{self.ns / 1e3:12,.1f} us {self.gflops:9,.1f} GFLOP/s {self.gbytes:8,.1f} GB/s "
            f"{100 * self.share:4.0f} % of the limit"
        )


@dataclass(frozen=True, slots=True)
class Profile:
    """How long each kernel of a call took. Indexes and iterates over `kernels`; prints as a table."""

    kernels: tuple[Timing, ...]

    @staticmethod
    def of(steps: Sequence[KernelInfo], times: Sequence[int], info: DeviceInfo) -> Profile:
        """From a plan's steps and the nanoseconds of each."""
        return Profile(
            tuple(_timing(s.name, ns, s.flops, s.bytes, info) for s, ns in zip(steps, times, strict=True))
        )

    @property
    def ns(self) -> int:
        """The sum of all kernels, in nanoseconds."""
        return sum(k.ns for k in self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def __iter__(self) -> Iterator[Timing]:
        return iter(self.kernels)

    def __getitem__(self, k: int) -> Timing:
        return self.kernels[k]

    def __str__(self) -> str:
        width = max([len(k.name) for k in self.kernels], default=0)
        rows = [f"{i:4d}  {k.name:{width}} {k}" for i, k in enumerate(self.kernels)]
        return "\n".join([*rows, f"{'':4}  {'in all':{width}} {self.ns / 1e3:12,.1f} us"])

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class ExplainedKernel:
    """A kernel to come: see `weft.scheduler.details.KernelDetail` for what its properties mean."""

    detail: KernelDetail
    device: str
    timing: Timing | None = None

    @property
    def name(self) -> str:
        return self.detail.name

    @property
    def bytes(self) -> int:
        return self.detail.bytes

    @property
    def flops(self) -> int:
        return self.detail.flops

    @property
    def source(self) -> str:
        return self.detail.source

    @property
    def why(self) -> tuple[str, ...]:
        return self.detail.why

    @property
    def loops(self) -> str:
        return self.detail.loops

    @property
    def schedule(self) -> str:
        return self.detail.schedule

    def __str__(self) -> str:
        head = f"{self.name} on {self.device}: {_count(self.bytes, 'B')} moved, {_count(self.flops, 'flop')}"
        lines = [head, *(f"    {w}" for w in self.why)]
        if self.timing is not None:
            lines.append(f"    {str(self.timing).strip()}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The kernels that computing some tensors takes, in the order in which they run."""

    kernels: tuple[ExplainedKernel, ...]

    @property
    def bytes(self) -> int:
        """What all kernels together must at least move."""
        return sum(k.bytes for k in self.kernels)

    @property
    def flops(self) -> int:
        """What all kernels together compute."""
        return sum(k.flops for k in self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def __iter__(self) -> Iterator[ExplainedKernel]:
        return iter(self.kernels)

    def __str__(self) -> str:
        n = len(self.kernels)
        if not n:
            return "nothing to compute: the values are there already"
        head = f"{n} kernel{'' if n == 1 else 's'}, {_count(self.bytes, 'B')} moved, {_count(self.flops, 'flop')}"
        return "\n".join([head, *(f"{k:3d}. {_indented(str(x))}" for k, x in enumerate(self.kernels, 1))])

    __repr__ = __str__


def explain(*tensors: Tensor, time: bool = False) -> Explanation:
    """The kernels that computing these tensors together will take; nothing is computed unless `time` is set.

    With `time`, they are run once to warm up and once with a clock at every kernel; the tensors stay unrealized.
    """
    nodes = [value_of("explain", t).node for t in tensors]
    return explain_nodes(nodes, time)


def explain_nodes(nodes: Sequence[Node], time: bool = False) -> Explanation:
    """`explain` for nodes of the graph."""
    from weft.backends.registry import open_device
    from weft.scheduler.details import details
    from weft.scheduler.realize import copied, default_device

    todo = [n for n in dict.fromkeys(nodes) if n.storage is None and not (tracing.is_placeholder(n))]
    by_device: dict[str, list[Node]] = {}
    for n in (*copied(todo), *todo):
        by_device.setdefault(n.device or default_device(), []).append(n)
    out: list[ExplainedKernel] = []
    for name, group in by_device.items():
        device = open_device(name)
        found = details(group, device)
        times = _times(group, device) if time else [None] * len(found)
        for d, ns in zip(found, times, strict=True):
            timing = None if ns is None else _timing(d.name, ns, d.flops, d.bytes, device.info)
            out.append(ExplainedKernel(d, name, timing))
    return Explanation(tuple(out))


def _times(nodes: Sequence[Node], device: Device) -> list[int]:
    """Nanoseconds of each kernel, the second time it runs."""
    from weft.scheduler.realize import plan_for
    from weft.scheduler.signature import signature

    sig = signature(nodes)
    plan = plan_for(nodes, sig, device)
    memories = [n.storage.memory for n in sig.leaves]
    plan.profile(memories)
    _, times = plan.profile(memories)
    return [ns for ns, step in zip(times, plan.steps, strict=True) if step.name != "copy"]


def _timing(name: str, ns: int, flops: int, nbytes: int, info: DeviceInfo) -> Timing:
    limit = max(flops / info.flops, nbytes / info.bandwidth) * 1e9
    return Timing(name, ns, flops, nbytes, limit / ns if ns else 0.0)


def _count(n: int, unit: str) -> str:
    """12345678 B -> "12.3 MB"."""
    x = float(n)
    for prefix in ("", "k", "M", "G"):
        if x < 1000:
            return f"{x:.0f} {unit}" if not prefix else f"{x:.1f} {prefix}{unit}"
        x /= 1000
    return f"{x:.1f} T{unit}"


def _indented(text: str) -> str:
    return text.replace("\n", "\n     ")
