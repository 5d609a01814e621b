"""Results of weft.explain: kernels to come, why each ends where it does, its time and the least possible."""

from __future__ import annotations

import math
import statistics
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.core.execute import pending, tracing
from weft.core.execute.pending import Reason
from weft.errors import ArgumentError, MemoryPlanError
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.backends.protocol import Device
    from weft.backends.roofline import Bound, Limits
    from weft.core.execute.tracing import GraphBreak
    from weft.ir.dtypes import DType
    from weft.ir.graph import Node, Shape
    from weft.ir.placement import Layout
    from weft.scheduler.details import KernelDetail
    from weft.scheduler.kernelize import DecisionLog
    from weft.scheduler.meshes import Laid, Local
    from weft.scheduler.parts.cut import Cut, Exchange
    from weft.scheduler.parts.order import Step
    from weft.scheduler.placing.layouts import Decision, Form
    from weft.scheduler.plan import KernelInfo, Plan
    from weft.scheduler.sharding.propagate import Choice
    from weft.scheduler.signature import Signature

TIMED_RUNS = 5
"""Runs of which an explanation gives the median, after one to warm up."""

TIMED_SECONDS = 0.5
"""The time after which no further run is started."""


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
        from weft.scheduler.kernelize import DecisionLog

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
        head = f"{self.name} on {where}: {_count(self.bytes, 'B')} moved, {_count(self.flops, 'flop')}"
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
            return f"{self.target} reads {_count(self.bytes, 'B')} of {self.source} where they are"
        return f"copy from {self.source} to {self.target}: {_count(self.bytes, 'B')}"


@dataclass(frozen=True, slots=True)
class ExplainedLayout:
    """The layout of a tensor on a mesh, and why. `fetched`: the bytes that devices fetch from each other for it, where
    the layout was chosen by them."""

    tensor: str
    mesh: str
    layout: str
    why: str
    fetched: int | None = None

    def __str__(self) -> str:
        fetched = "" if self.fetched is None else f"; {_count(self.fetched, 'B')} fetched for it"
        return f"{self.tensor} on {self.mesh}: {self.layout}, {self.why}{fetched}"


@dataclass(frozen=True, slots=True)
class ExplainedExchange:
    """A box of a tensor that one device of a mesh fetches from another."""

    tensor: str
    box: str
    source: str
    target: str
    bytes: int
    is_term: bool

    def __str__(self) -> str:
        what = "a term of " if self.is_term else ""
        return f"{self.target} fetches {what}{self.tensor} {self.box} from {self.source}: {_count(self.bytes, 'B')}"


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
    keeps until what they are computed from is written. `layouts` are those of tensors on meshes, `exchanges` the copies
    between the devices of these, in their order.
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
        from weft.scheduler.kernelize import DecisionLog

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
        head = f"{n} kernel{'' if n == 1 else 's'}, {_count(self.bytes, 'B')} moved, {_count(self.flops, 'flop')}"
        if copies:
            many = "1 copy" if len(copies) == 1 else f"{len(copies)} copies"
            moved = _count(sum(c.bytes for c in copies if not c.lent), "B")
            head = f"{head}; {many} between devices, {moved}"
        kept = [f"kept from call to call: {', '.join(self.kept)}"] if self.kept else []
        head = "; ".join([head, *self.shared, *kept])
        if self.ns is not None:
            head = f"{head}, {self.ns / 1e3:,.1f} us\n{self.times()}"
        steps = [f"{k:3d}. {_indented(str(x))}" for k, x in enumerate(self.steps, 1)]
        return "\n".join(
            [head, *map(str, self.layouts), *map(str, self.exchanges), *steps, *map(str, self.along)]
        )

    __repr__ = __str__


def explain_nodes(nodes: Sequence[Node], time: bool = False) -> Explanation:
    """The kernels that computing these nodes together will take; with `time`, computed a few times by the clock."""
    from weft.ir.graph import toposort
    from weft.ir.placement import is_mesh
    from weft.scheduler import meshes
    from weft.scheduler.parts import steps_of
    from weft.scheduler.realize import default_device
    from weft.scheduler.signature import signature

    todo = [n for n in dict.fromkeys(nodes) if n.storage is None and not (tracing.is_placeholder(n))]
    along = tuple(_along(todo)) if todo else ()
    on_mesh = any(is_mesh(n.device) for n in toposort(todo))
    if on_mesh and (found := _of_shared(todo, along)) is not None and not time:
        return found
    local = meshes.localized(todo, default_device) if on_mesh else None
    asked = todo if local is None else list(dict.fromkeys(local.nodes))
    sig = signature(asked)
    names = {n.device or default_device() for n in asked} or {default_device()}
    lines: list[str] = []
    if len(names) == 1 and not sig.copies and local is None:
        (name,) = names
        if time and todo:
            return replace(_timed_on(todo, name), along=along)
        return Explanation(tuple(_kernels(todo, name, lines)), shared=tuple(lines), along=along)
    order, _ = steps_of(sig)
    if not time:
        steps = tuple(_steps(order.cut, order.steps, lines))
        if local is None:
            return Explanation(steps, shared=tuple(lines), along=along)
        layouts, exchanges = tuple(_layouts(todo, local)), tuple(_exchanges(local))
        return Explanation(steps, None, None, (), tuple(lines), along, (), layouts, exchanges)
    if order.exchanges or local is not None:
        raise ArgumentError("explain: kernels are timed on one device; realize what is copied to it before")
    groups: dict[str, list[Node]] = {}
    for n in todo:
        groups.setdefault(n.device or default_device(), []).append(n)
    parts = [_timed_on(group, name) for name, group in groups.items()]
    kernels = tuple(k for p in parts for k in p.kernels)
    limits = {device: x for p in parts for device, x in (p.limits or {}).items()}
    shared = tuple(line for p in parts for line in p.shared)
    return Explanation(kernels, sum(p.ns or 0 for p in parts), limits, shared=shared, along=along)


def _of_shared(nodes: Sequence[Node], along: tuple[ComputedAlong, ...]) -> Explanation | None:
    """The explanation of a plan that all devices of a mesh run: the kernels of one device, the exchanges of all."""
    from weft.ir.regions import boxes as bx
    from weft.scheduler.mesh_plans import shared_plan
    from weft.scheduler.parts.cut import Compute

    found = shared_plan(nodes)
    if found is None:
        return None
    plan, graph = found[0].plan, found[1]
    lines = [f"the kernels are those of each of the {len(plan.devices)} devices of {graph.mesh.name}"]
    steps: list[ExplainedKernel | ExplainedCopy] = []
    exchanges: list[ExplainedExchange] = []
    names, part = graph.mesh.devices, 0
    for number, s in enumerate(plan.order.steps):
        if isinstance(s.work, Compute):
            part += 1
            steps += [replace(k, part=part) for k in _kernels(s.work.nodes, names[0], lines)]
            continue
        move = s.work.move
        assert move is not None and s.work.moved is not None
        of = graph.moves[s.work.moved]
        for at, name in enumerate(names):
            for k, copy in plan.copies_of(number, at):
                source = move.origin or names[k]
                if source != name:
                    box = "[" + ", ".join(map(repr, bx.at(move.wanted, plan.env[at]))) + "]"
                    exchanges.append(
                        ExplainedExchange(_tensor(of), box, source, name, copy.nbytes, move.stacked)
                    )
        received = sum(copy.nbytes for k, copy in plan.copies_of(number, 0) if k)
        steps.append(ExplainedCopy(f"{graph.mesh.name} ({move.pattern})", names[0], received, False))
    layouts = [*_chosen(graph.choices), *_asked(nodes, [laid for _, laid, _ in graph.results])]
    return Explanation(
        tuple(steps), None, None, (), tuple(lines), along, (), tuple(layouts), tuple(exchanges)
    )


def _timed_on(nodes: Sequence[Node], name: str) -> Explanation:
    """The kernels that computing these nodes takes on one device, and how long they take."""
    from weft.backends.registry import open_device

    device = open_device(name)
    plan, times, ns = _timed(nodes, device)
    return explained(nodes, device, plan, times, ns)


def _layouts(nodes: Sequence[Node], local: Local) -> Iterator[ExplainedLayout]:
    """The layouts of the nodes, and of what was laid out on the way to them as costs least."""
    yield from _chosen(local.choices)
    yield from _asked(nodes, local.found)


def _chosen(choices: Mapping[Node, Choice | Decision]) -> Iterator[ExplainedLayout]:
    """The layouts that were chosen, and why."""
    from weft.scheduler.sharding.propagate import Choice

    for n, of in choices.items():
        if not isinstance(of, Choice):
            (other, ns), *_ = of.others
            more = f"{_form(other)} would take {ns / 1e3:.4g} us longer" if ns < math.inf else "no other fits"
            why = f"searched, as it takes the least time; {more}"
            yield ExplainedLayout(_tensor(n), n.device or "", _form(of.form), why)
            continue
        best, other = of.chosen, of.next_best
        why = "the only way"
        if other is not None:
            more = _count(other.moved_bytes, "B")
            why = f"the least to fetch; next: {_placements(other.layout)}, {more}"
        yield ExplainedLayout(_tensor(n), n.device or "", _placements(best.layout), why, best.moved_bytes)


def _asked(nodes: Sequence[Node], found: Sequence[Laid | Node]) -> Iterator[ExplainedLayout]:
    """The layouts of nodes that are wishes."""
    from weft.ir.ops import Op
    from weft.scheduler.meshes import Laid

    for n, laid in zip(nodes, found, strict=True):
        if isinstance(laid, Laid) and n.op is Op.COPY:
            yield ExplainedLayout(_tensor(n), laid.mesh.name, _placements(laid.layout), "as asked")


def _exchanges(local: Local) -> Iterator[ExplainedExchange]:
    for f in local.fetches:
        box = "[" + ", ".join(map(repr, f.box)) + "]"
        yield ExplainedExchange(_tensor(f.node), box, f.source, f.target, f.nbytes, f.is_term)


def _tensor(n: Node) -> str:
    return f"{n.op.symbol} {n.dtype.short}[{', '.join(map(str, n.shape))}]"


def _placements(layout: Layout) -> str:
    from weft.ir.placement import Partial, Shard

    def text(p: object) -> str:
        match p:
            case Shard(dim, None):
                return f"Shard({dim})"
            case Shard(dim, bounds):
                return f"Shard({dim}, blocks end at {bounds})"
            case Partial(op):
                return f"Partial({op.symbol})"
            case _:
                return "Replicate()"

    return ", ".join(map(text, layout))


def _form(form: Form) -> str:
    """A layout, and the axes along which the terms of a sum are parted, or it is taken in blocks."""
    from weft.ir.placement import Shard
    from weft.scheduler.sharding.online import Running

    def text(s: object) -> str:
        match s:
            case Shard(dim, _):
                return f"terms along axis {dim}"
            case Running(dim, in_turns=True):
                return f"blocks along axis {dim} in turns, as they arrive (reassociates)"
            case Running(dim, _):
                return f"states of blocks along axis {dim}, combined (reassociates)"
            case _:
                return "terms as they are"

    return " of ".join([_placements(form.layout), *[text(s) for s in form.split if s is not None]])


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
