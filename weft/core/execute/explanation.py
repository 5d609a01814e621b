"""Results of weft.explain: kernels to come, why each ends where it does, its time and the least possible."""

from __future__ import annotations

import statistics
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.core.execute import explained_meshes as about
from weft.core.execute import pending, tracing
from weft.core.execute.explained_meshes import (
    ExplainedCollective,
    ExplainedExchange,
    ExplainedLayout,
    ExplainedPool,
)
from weft.core.execute.pending import Reason
from weft.errors import ArgumentError, MemoryPlanError
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.backends.protocol import Device
    from weft.backends.roofline import Bound, Limits
    from weft.backends.timeline import Timeline
    from weft.core.execute.tracing import GraphBreak
    from weft.ir.dtypes import DType
    from weft.ir.graph import Node, Shape
    from weft.ir.placement import Layout
    from weft.scheduler.details import KernelDetail
    from weft.scheduler.kernelize.decisions import DecisionLog
    from weft.scheduler.meshes import Shared
    from weft.scheduler.parts.cut import Cut, Exchange
    from weft.scheduler.parts.order import Step
    from weft.scheduler.plan import KernelInfo, Plan
    from weft.scheduler.signature import Signature

TIMED_RUNS = 5
"""Runs of which an explanation gives the median, after one to warm up."""

TIMED_SECONDS = 0.5
"""The time after which no further run is started."""

EXCHANGES_SHOWN = 32
"""Exchanges that are printed one by one, beside the collectives that they are part of."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One kernel's time: nanoseconds, what it does, and the least time that the device's limits allow for it."""

    name: str
    ns: int
    flops: int
    bytes: int
    bound: Bound

    @property
    def gflops(self) -> float:
        """1e9 floating-point operations per second."""
        return self.flops / self.ns if self.ns else 0.0

    @property
    def gbytes(self) -> float:
        """1e9 bytes per second, counting what must at least move."""
        return self.bytes / self.ns if self.ns else 0.0

    @property
    def share(self) -> float:
        """The least time over the time taken: 1 is as fast as the device allows. `bound.by` says what sets it."""
        return self.bound.seconds * 1e9 / self.ns if self.ns else 0.0

    def __str__(self) -> str:
        return (
            f"{self.ns / 1e3:12,.1f} us {self.gflops:9,.1f} GFLOP/s {self.gbytes:8,.1f} GB/s "
            f"{100 * self.share:4.0f} % of the limit ({self.bound.by})"
        )


@dataclass(frozen=True, slots=True)
class Profile:
    """The time that each kernel of a call took. Indexes and iterates over `kernels`; prints as a table."""

    kernels: tuple[Timing, ...]

    @staticmethod
    def of(steps: Sequence[KernelInfo], times: Sequence[int], device: Device) -> Profile:
        """From a plan's steps and the nanoseconds of each."""
        limits = device.limits() if steps else None
        return Profile(tuple(timing(s, ns, limits) for s, ns in zip(steps, times, strict=True) if limits))

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
    """A kernel to come, on which device, and how long it took if it was timed. `part`: the number of its part, from 1,
    where several devices compute; 0 otherwise.

    `forms()` has all that it becomes on its way to the machine, by name: "algorithm" (what it computes), "schedule"
    (the transforms, one a line), "loops" (the lowered program), and what the backend makes of these, such as "llvm"
    and "assembly". `show("schedule", "loops")` is those as text.
    """

    detail: KernelDetail
    device: str
    timing: Timing | None = None
    part: int = 0

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
    def why(self) -> tuple[str, ...]:
        return self.detail.why

    @property
    def decisions(self) -> DecisionLog:
        """The decisions about its nodes: fused or stored, why, by force or by cost, and the costs compared.
        Kernels are numbered as they run, from 1."""
        from weft.scheduler.kernelize.decisions import DecisionLog

        return DecisionLog(self.detail.decisions)

    @property
    def summary(self) -> str:
        """The schedule in one line."""
        return self.detail.summary

    @property
    def rules(self) -> str:
        """The outcome of each schedule rule: what it chose and compared, or why it does not apply."""
        return self.detail.rules

    @property
    def algorithm(self) -> str:
        return self.forms()["algorithm"]

    @property
    def schedule(self) -> str:
        return self.forms()["schedule"]

    @property
    def loops(self) -> str:
        return self.forms()["loops"]

    @property
    def source(self) -> str:
        """The code that the backend compiles: LLVM IR, OpenCL C, WGSL; the loops, where it interprets them."""
        forms = self.forms()
        names = list(forms)
        return forms[names[min(names.index("loops") + 1, len(names) - 1)]]

    def forms(self) -> Mapping[str, str]:
        """Everything that the kernel becomes, by name."""
        return self.detail.forms()

    def show(self, *names: str) -> str:
        """The forms called `names`, all without any, each under its name. ArgumentError for one that is not there."""
        forms = self.forms()
        for name in names:
            if name not in forms:
                raise ArgumentError(
                    f"explain: {self.name} on {self.device} has {', '.join(forms)}, no {name!r}"
                )
        return "\n\n".join(f"--- {name} of {self.name}\n{forms[name].rstrip()}" for name in names or forms)

    def __str__(self) -> str:
        where = f"{self.device}, part {self.part}" if self.part else self.device
        head = f"{self.name} on {where}: {about.in_units(self.bytes, 'B')} moved, {about.in_units(self.flops, 'flop')}"
        lines = [head, f"    {self.summary}", *(f"    {w}" for w in self.why)]
        if self.timing is not None:
            lines.append(f"    {str(self.timing).strip()}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class ExplainedCopy:
    """A copy to come, of so many bytes from one device to another: a tensor, or a box of one. `lent`: nothing is
    copied, since the target reads the source's memory where it is."""

    source: str
    target: str
    bytes: int
    lent: bool = False

    def __str__(self) -> str:
        if self.lent:
            return f"{self.target} reads {about.in_units(self.bytes, 'B')} of {self.source} where they are"
        return f"copy from {self.source} to {self.target}: {about.in_units(self.bytes, 'B')}"


@dataclass(frozen=True, slots=True)
class ComputedAlong:
    """A tensor that would be computed along with what was explained, why, and whether in a plan of its own."""

    dtype: DType
    shape: Shape
    reason: str
    apart: bool

    def __str__(self) -> str:
        size = ", ".join(map(str, self.shape))
        return f"{'afterwards' if self.apart else 'along'}: {self.dtype.short}[{size}], {self.reason}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The kernels that computing some tensors takes, in the order in which they run. Indexes and iterates over them.

    `steps` are the kernels and, where there are several devices, the copies between them. Where they were timed, `ns`
    is how long a whole run took, and `limits` are those of the devices. `breaks` are the places at which a compiled
    function asks for values: it runs in one segment more than there are of these. `shared` says of plans that serve
    graphs of all sizes which they are bound to. `along` are other tensors that would be computed with them, since the
    program changes and holds them; their kernels are not among the steps. `kept` are values that a compiled function
    keeps until what they are computed from is written.

    Over several devices: `layouts` are those of tensors on meshes; `exchanges` the copies between the devices of
    these, in their order, and `collectives` those of one tensor for another, with their reason and their price;
    `pools` the most bytes of each memory; `timeline` when all this runs, as predicted, as a picture (`.svg()`) or for a
    trace viewer (`.chrome_trace()`).
    """

    steps: tuple[ExplainedKernel | ExplainedCopy, ...]
    ns: int | None = None
    limits: Mapping[str, Limits] | None = None
    breaks: tuple[GraphBreak, ...] = ()
    shared: tuple[str, ...] = ()
    along: tuple[ComputedAlong, ...] = ()
    kept: tuple[str, ...] = ()
    layouts: tuple[ExplainedLayout, ...] = ()
    exchanges: tuple[ExplainedExchange, ...] = ()
    collectives: tuple[ExplainedCollective, ...] = ()
    pools: tuple[ExplainedPool, ...] = ()
    timeline: Timeline | None = None

    @property
    def segments(self) -> int:
        """The number of parts that are computed one after the other."""
        return len(self.breaks) + 1

    @property
    def kernels(self) -> tuple[ExplainedKernel, ...]:
        """The kernels among the steps."""
        return tuple([s for s in self.steps if isinstance(s, ExplainedKernel)])

    @property
    def copies(self) -> tuple[ExplainedCopy, ...]:
        """The copies between devices among the steps."""
        return tuple([s for s in self.steps if isinstance(s, ExplainedCopy)])

    @property
    def decisions(self) -> DecisionLog:
        """The decisions about the nodes of all kernels, each once."""
        from weft.scheduler.kernelize.decisions import DecisionLog

        return DecisionLog({id(d): d for k in self.kernels for d in k.decisions}.values())

    @property
    def bytes(self) -> int:
        """The bytes that all kernels together must at least move."""
        return sum(k.bytes for k in self.kernels)

    @property
    def flops(self) -> int:
        """The number of operations that all kernels together compute."""
        return sum(k.flops for k in self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def __iter__(self) -> Iterator[ExplainedKernel]:
        return iter(self.kernels)

    def __getitem__(self, k: int) -> ExplainedKernel:
        return self.kernels[k]

    def times(self) -> str:
        """The table of times: kernels that compute the same are one row, those that take longest first.
        Empty where nothing was timed."""
        if self.ns is None:
            return ""
        groups: dict[Any, list[Timing]] = {}
        for k in self.kernels:
            if k.timing is not None:
                groups.setdefault((k.detail.algorithm, k.device), []).append(k.timing)
        inside = sum(t.ns for g in groups.values() for t in g)
        lines = [
            f"{'time':>13} {'share':>6} {'runs':>5} {'GFLOP/s':>9} {'GB/s':>8} {'of limit':>9}  {'near':8} kernel"
        ]
        for group in sorted(groups.values(), key=lambda g: -sum(t.ns for t in g)):
            ns, least = sum(t.ns for t in group), sum(t.bound.seconds for t in group) * 1e9
            flops, moved = sum(t.flops for t in group), sum(t.bytes for t in group)
            lines.append(
                f"{ns / 1e3:10,.1f} us {100 * ns / max(inside, 1):4.0f} % {len(group):5d} {flops / max(ns, 1):9,.1f} "
                f"{moved / max(ns, 1):8,.1f} {100 * least / max(ns, 1):7.0f} %  {group[0].bound.by:8} {group[0].name}"
            )
        around = max(0, self.ns - inside)
        lines.append(
            f"{around / 1e3:10,.1f} us {'':4}   outside of the kernels: the call, memory for results"
        )
        lines += [f"limits of {device}: {found}" for device, found in (self.limits or {}).items()]
        return "\n".join(lines)

    def __str__(self) -> str:
        if self.breaks:
            whole = replace(self, breaks=())
            reasons = "".join(f"\n    {b}" for b in self.breaks)
            return f"{self.segments} segments, since values are asked for inside:{reasons}\n{whole}"
        if not self.steps:
            return "\n".join(["nothing to compute: the values are there already", *map(str, self.along)])
        n, copies = len(self.kernels), self.copies
        work = f"{about.in_units(self.bytes, 'B')} moved, {about.in_units(self.flops, 'flop')}"
        head = f"{n} kernel{'' if n == 1 else 's'}, {work}"
        if copies:
            many = "1 copy" if len(copies) == 1 else f"{len(copies)} copies"
            moved = about.in_units(sum(c.bytes for c in copies if not c.lent), "B")
            head = f"{head}; {many} between devices, {moved}"
        kept = [f"kept from call to call: {', '.join(self.kept)}"] if self.kept else []
        head = "; ".join([head, *self.shared, *kept])
        if self.ns is not None:
            head = f"{head}, {self.ns / 1e3:,.1f} us\n{self.times()}"
        if self.timeline is not None:
            head = f"{head}; {self.timeline.makespan_ns / 1e3:,.1f} us predicted"
        steps = [f"{k:3d}. {_indented(str(x))}" for k, x in enumerate(self.steps, 1)]
        each = self.exchanges if len(self.exchanges) <= EXCHANGES_SHOWN else ()
        found = (self.layouts, self.collectives, each, [*about.pool_lines(self.pools)], steps, self.along)
        return "\n".join([head, *[str(x) for of in found for x in of]])

    __repr__ = __str__


def explain_nodes(
    nodes: Sequence[Node], time: bool = False, layouts: Mapping[Node, Layout] | None = None
) -> Explanation:
    """The kernels that computing these nodes together will take; with `time`, computed a few times by the clock.
    `layouts`: how leaves on a mesh that have no value will lie."""
    from weft.ir.graph import toposort
    from weft.ir.placement import is_mesh
    from weft.scheduler.parts import steps_of
    from weft.scheduler.realize import default_device
    from weft.scheduler.signature import signature

    given = layouts or {}
    todo = [n for n in dict.fromkeys(nodes) if n.storage is None and not tracing.is_placeholder(n)]
    todo = [n for n in todo if n not in given]
    along = tuple(_along(todo)) if todo else ()
    on_mesh = any(is_mesh(n.device) for n in toposort(todo))
    if on_mesh and time:
        raise ArgumentError("explain: kernels are timed on one device; these are computed on a mesh")
    if on_mesh:
        return _on_meshes(todo, given, along)
    sig = signature(todo)
    names = {n.device or default_device() for n in todo} or {default_device()}
    lines: list[str] = []
    if len(names) == 1 and not sig.copies:
        (name,) = names
        if time and todo:
            return replace(_timed_on(todo, name), along=along)
        return Explanation(tuple(_kernels(todo, name, lines)), shared=tuple(lines), along=along)
    order, _ = steps_of(sig)
    if not time:
        steps = tuple(_steps(order.cut, order.steps, lines))
        return Explanation(
            steps, shared=tuple(lines), along=along,
            pools=tuple(about.pools(order.devices, order.peak, False)), timeline=about.timeline(order),
        )  # fmt: skip
    if order.exchanges:
        raise ArgumentError("explain: kernels are timed on one device; realize what is copied to it before")
    groups: dict[str, list[Node]] = {}
    for n in todo:
        groups.setdefault(n.device or default_device(), []).append(n)
    parts = [_timed_on(group, name) for name, group in groups.items()]
    kernels = tuple(k for p in parts for k in p.kernels)
    limits = {device: x for p in parts for device, x in (p.limits or {}).items()}
    shared = tuple(line for p in parts for line in p.shared)
    return Explanation(kernels, sum(p.ns or 0 for p in parts), limits, shared=shared, along=along)


def _on_meshes(
    nodes: Sequence[Node], given: Mapping[Node, Layout], along: tuple[ComputedAlong, ...]
) -> Explanation:
    """The explanation of nodes on meshes, or made of what is; `given`: how leaves without a value will lie."""
    from weft.scheduler import meshes
    from weft.scheduler.parts import kept_plan, steps_of
    from weft.scheduler.signature import signature

    known = meshes.anew(nodes, given)
    if known.shared is not None:
        return _of_shared(nodes, known.shared, along)
    local, lines = known.local, list[str]()
    sig = signature(list(dict.fromkeys(local.nodes)))
    (order, _), plan = steps_of(sig), kept_plan(sig)
    peak = order.peak if plan is None else plan.peak
    return Explanation(
        tuple(_steps(order.cut, order.steps, lines)),
        shared=tuple(lines),
        along=along,
        layouts=(*about.chosen(local.choices), *about.asked(nodes, local.found)),
        exchanges=tuple(about.exchanges(local.fetches)),
        collectives=tuple(about.collectives(local)),
        pools=tuple(about.pools(order.devices, peak, plan is not None)),
        timeline=about.timeline(order),
    )


def _of_shared(nodes: Sequence[Node], graph: Shared, along: tuple[ComputedAlong, ...]) -> Explanation:
    """The explanation of a plan that all devices of a mesh run: the kernels of one device, the exchanges of all."""
    from weft.scheduler.mesh_plans import made_shared
    from weft.scheduler.parts.cut import Compute

    plan = made_shared(graph).plan
    lines = [f"the kernels are those of each of the {len(plan.devices)} devices of {graph.mesh.name}"]
    steps: list[ExplainedKernel | ExplainedCopy] = []
    names, part = graph.mesh.devices, 0
    for number, s in enumerate(plan.order.steps):
        if isinstance(s.work, Compute):
            part += 1
            steps += [replace(k, part=part) for k in _kernels(s.work.nodes, names[0], lines)]
            continue
        assert s.work.move is not None
        received = sum(copy.nbytes for k, copy in plan.copies_of(number, 0) if k)
        steps.append(ExplainedCopy(f"{graph.mesh.name} ({s.work.move.pattern})", names[0], received, False))
    exchanges, collectives = about.shared_exchanges(plan, graph)
    return Explanation(
        tuple(steps),
        shared=tuple(lines),
        along=along,
        layouts=(*about.chosen(graph.choices), *about.asked(nodes, [laid for _, laid, _ in graph.results])),
        exchanges=tuple(exchanges),
        collectives=tuple(collectives),
        pools=tuple(about.pools(names, lambda _: plan.peak, True)),
        timeline=about.shared_timeline(plan),
    )


def _timed_on(nodes: Sequence[Node], name: str) -> Explanation:
    """The kernels that computing these nodes takes on one device, and how long they take."""
    from weft.backends.registry import open_device

    device = open_device(name)
    plan, times, ns = _timed(nodes, device)
    return explained(nodes, device, plan, times, ns)


def _along(nodes: Sequence[Node]) -> Iterator[ComputedAlong]:
    """The tensors that computing the nodes would compute as well."""
    found = [t.value.node for t in pending.noted()]
    noted = [n for n in dict.fromkeys(found) if n not in nodes and n.storage is None and n.inputs]
    for n in noted:
        yield ComputedAlong(n.dtype, n.shape, Reason.NOTED.value, apart=False)
    due = pending.due([*nodes, *noted], computing=False)
    for apart, group in [(False, due.together), *((True, g) for g in due.apart)]:
        for c in group:
            yield ComputedAlong(c.node.dtype, c.node.shape, c.reason.value, apart)


def _steps(cut: Cut, steps: Sequence[Step], shared: list[str]) -> Iterator[ExplainedKernel | ExplainedCopy]:
    """The kernels of the parts and the exchanges, as they are started."""
    from weft.scheduler.parts.cut import Compute

    part = 0
    for s in steps:
        if isinstance(s.work, Compute):
            part += 1
            for kernel in _kernels(s.work.nodes, s.work.device, shared):
                yield replace(kernel, part=part)
        else:
            yield _copy(cut, s.work, s)


def _copy(cut: Cut, x: Exchange, step: Step) -> ExplainedCopy:
    from weft.ir.index import high
    from weft.scheduler.parts.order import Way, bytes_of

    source, target = cut.values[x.source].device, cut.values[x.target].device
    return ExplainedCopy(source, target, bytes_of(cut, x, high).nbytes, step.way is Way.LENT)


def _kernels(nodes: Sequence[Node], name: str, shared: list[str]) -> Iterator[ExplainedKernel]:
    """The kernels that computing these nodes takes on one device. What plans for all sizes are for is added to
    `shared`."""
    from weft.backends.registry import open_device
    from weft.scheduler.details import details
    from weft.scheduler.realize import basic_plan, shared_plan
    from weft.scheduler.signature import signature

    if not nodes:
        return
    device, sig = open_device(name), signature(nodes)
    plan, sizes = shared_plan(sig, device), None
    if (now := basic_plan(sig, device)) is not None:
        shared.append(f"runs on {len(now.steps)} basic kernels until these are built")
    if plan is not None and plan.shared is not None:
        shared.append(str(plan.shared))
        nodes, sizes = list(plan.shared.outputs), plan.shared.values
    order = None if sizes else _order_within(sig, device, shared)
    for detail in details(nodes, device, sizes, order):
        yield ExplainedKernel(detail, name)


def _order_within(sig: Signature, device: Device, lines: list[str]) -> Sequence[int] | None:
    """The order of the kernels within the memory that is left, where a limit is set; None for their own. Which values
    leave memory is added to `lines`, or that there is not enough."""
    from weft.backends.registry import limit_set

    if limit_set(device) is None or sig.variables or sig.homeless:
        return None
    from weft.scheduler.pools.within import Fitted, fitting, remedy, room_on

    found = fitting(sig, device, (), room_on(device))
    if not isinstance(found, Fitted):
        lines.append(remedy(device, found, sig))
        return None
    if found.plan.within is None:
        return None
    lines += found.plan.within.lines
    return found.plan.within.order


def explained(
    nodes: Sequence[Node], device: Device, plan: Plan, times: Sequence[int], ns: int
) -> Explanation:
    """The explanation of a plan for `nodes` whose steps took `times` nanoseconds, and that as a whole took `ns`."""
    from weft.scheduler.details import details

    name, limits = device.info.name, device.limits()
    launches = [(s, t) for s, t in zip(plan.steps, times, strict=True) if s.name != "copy"]
    if plan.shared is None:
        found = details(nodes, device, None, None if plan.within is None else plan.within.order)
    else:
        found = details(plan.shared.outputs, device, plan.shared.values)
        sized = [
            replace(s, bytes=d.bytes, flops=d.flops, written=d.written)
            for d, (s, _) in zip(found, launches, strict=True)
        ]
        launches = [(s, t) for s, (_, t) in zip(sized, launches, strict=True)]
    kernels = [
        ExplainedKernel(d, name, timing(s, t, limits)) for d, (s, t) in zip(found, launches, strict=True)
    ]
    return Explanation(tuple(kernels), ns, {name: limits}, shared=_shared_by(plan))


def _shared_by(plan: Plan | None) -> tuple[str, ...]:
    if plan is not None and plan.within is not None:
        return plan.within.lines
    return () if plan is None or plan.shared is None else (str(plan.shared),)


def _timed(nodes: Sequence[Node], device: Device) -> tuple[Plan, list[int], int]:
    """The plan for `nodes`, the nanoseconds of each of its steps, and those of a whole run: medians of a few runs."""
    from weft.scheduler.realize import memory_on, plan_for
    from weft.scheduler.signature import signature

    sig = signature(nodes)
    if sig.variables:
        names = ", ".join(v.name for v in sig.variables)
        raise ArgumentError(
            f"explain: the runtime variable {names} has no value here; explain without time=True"
        )
    plan = plan_for(sig, device)
    memories = [memory_on(n, s, device) for n, s in zip(sig.leaves, sig.storages, strict=True)]
    try:
        plan.profile(memories)
    except MemoryPlanError as refused:
        from weft.scheduler.pools.within import attempted

        plan = attempted(
            sig, device, (), refused, lambda found: (found.plan.profile(memories), found.plan)[1]
        )
    runs: list[list[int]] = []
    wholes: list[int] = []
    start = clock.perf_counter_ns()
    while len(runs) < TIMED_RUNS and (not runs or clock.perf_counter_ns() - start < TIMED_SECONDS * 1e9):
        runs.append(plan.profile(memories)[1])
        begin = clock.perf_counter_ns()
        plan.run(memories)
        device.synchronize()
        wholes.append(clock.perf_counter_ns() - begin)
    times = [round(statistics.median(t)) for t in zip(*runs, strict=True)]
    return plan, times, max(round(statistics.median(wholes)), sum(times))


def timing(step: KernelInfo, ns: int, limits: Limits) -> Timing:
    """A step's time beside what the limits allow."""
    bound = limits.bound(step.flops, step.bytes - step.written, step.written, step.dtype)
    return Timing(step.name, ns, step.flops, step.bytes, bound)


def _indented(text: str) -> str:
    return text.replace("\n", "\n     ")
