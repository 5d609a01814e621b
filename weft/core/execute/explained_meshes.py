"""Explanations of work over devices: layouts, exchanges and their reasons, memory, and a timeline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.backends.links import Link
    from weft.backends.timeline import Timeline
    from weft.ir.graph import Node
    from weft.ir.placement import Layout
    from weft.scheduler.meshes import Laid, Local, Shared
    from weft.scheduler.parts.order import Ordered
    from weft.scheduler.placing.layouts import Decision, Form
    from weft.scheduler.sharding.lower import Fetch
    from weft.scheduler.sharding.propagate import Choice
    from weft.scheduler.spmd.plan import AlikePlan

Choices = Mapping["Node", "Choice | Decision"]


def in_units(n: float, unit: str) -> str:
    """12345678 B -> "12.3 MB"."""
    for prefix in ("", "k", "M", "G"):
        if n < 1000:
            return f"{n:.1f} {prefix}{unit}" if prefix else f"{n:.0f} {unit}"
        n /= 1000
    return f"{n:.1f} T{unit}"


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another layout of a tensor, and what it would add: nanoseconds to the whole, or bytes to what is fetched for it;
    the other one is None."""

    tensor: str
    layout: str
    ns: float | None
    bytes: int | None

    def __str__(self) -> str:
        price = f"{in_units(self.bytes or 0, 'B')}" if self.ns is None else f"{self.ns / 1e3:.4g} us longer"
        return f"{self.tensor} as {self.layout}: {price}"


@dataclass(frozen=True, slots=True)
class ExplainedLayout:
    """The layout of a tensor on a mesh, and why. `fetched`: the bytes that devices fetch from each other for it, where
    the layout was chosen by them. `line`: file:line of the program, where that is known."""

    tensor: str
    mesh: str
    layout: str
    why: str
    fetched: int | None = None
    line: str | None = None

    def __str__(self) -> str:
        fetched = "" if self.fetched is None else f"; {in_units(self.fetched, 'B')} fetched for it"
        return f"{self.tensor} on {self.mesh}: {self.layout}, {self.why}{fetched}{_at(self.line)}"


@dataclass(frozen=True, slots=True)
class ExplainedExchange:
    """A box of a tensor that one device of a mesh fetches from another, in so many nanoseconds by itself."""

    tensor: str
    box: str
    source: str
    target: str
    bytes: int
    is_term: bool
    ns: float = 0.0

    def __str__(self) -> str:
        what = "a term of " if self.is_term else ""
        size = f"{in_units(self.bytes, 'B')}, {self.ns / 1e3:.4g} us"
        return f"{self.target} fetches {what}{self.tensor} {self.box} from {self.source}: {size}"


@dataclass(frozen=True, slots=True)
class ExplainedCollective:
    """All exchanges of a tensor that are for one other, as one operation.

    `pattern`: its name in the field. `layout`: how the tensor lies; `reader`: the first that needs it, and how that
    lies. `ns`: the time of the link that carries most, `link`. `others`: the layouts that would exchange something
    else, and their price. `line`: file:line of the program, where that is known.
    """

    pattern: str
    tensor: str
    layout: str
    reader: str
    copies: int
    bytes: int
    ns: float
    link: str
    others: tuple[Alternative, ...]
    line: str | None

    def __str__(self) -> str:
        size = f"{self.copies} {'copy' if self.copies == 1 else 'copies'}, {in_units(self.bytes, 'B')}"
        lines = [
            f"{self.pattern} of {self.tensor}: {size}, {self.ns / 1e3:.4g} us over {self.link}",
            f"    it lies as {self.layout}; for {self.reader}{_at(self.line)}",
        ]
        other = self.others[0] if self.others else "no other layout was possible"
        return "\n".join([*lines, f"    instead: {other}"])


@dataclass(frozen=True, slots=True)
class ExplainedPool:
    """The most bytes that what is computed takes of a memory at once, beside what is there before. `has_scratch`:
    kernels' workspaces are counted, as they are known once there is a plan."""

    name: str
    devices: tuple[str, ...]
    bytes: int
    has_scratch: bool

    def __str__(self) -> str:
        of = "" if self.devices == (self.name,) else f" of {', '.join(self.devices)}"
        return f"memory {self.name}{of}: {self.most}"

    @property
    def most(self) -> str:
        """The bytes in words."""
        more = "" if self.has_scratch else ", and kernels' scratch"
        return f"at most {in_units(self.bytes, 'B')} at once{more}"


def _at(line: str | None) -> str:
    return "" if line is None else f", at {line}"


# layouts --------------------------------------------------------------------------------------------------------------


def chosen(choices: Choices) -> Iterator[ExplainedLayout]:
    """The layouts that were chosen, and why."""
    from weft.scheduler.sharding.propagate import Choice

    line = _lines()
    for n, of in choices.items():
        if not isinstance(of, Choice):
            (other, ns), *_ = of.others
            more = (
                f"{form_text(other)} would take {ns / 1e3:.4g} us longer"
                if ns < math.inf
                else "no other fits"
            )
            why = f"searched, as it takes the least time; {more}"
            yield ExplainedLayout(tensor(n), n.device or "", form_text(of.form), why, line=line(n))
            continue
        best, other = of.chosen, of.next_best
        why = "the only way"
        if other is not None:
            why = f"the least to fetch; next: {placements(other.layout)}, {in_units(other.moved_bytes, 'B')}"
        yield ExplainedLayout(
            tensor(n), n.device or "", placements(best.layout), why, best.moved_bytes, line(n)
        )


def asked(nodes: Sequence[Node], found: Sequence[Laid | Node]) -> Iterator[ExplainedLayout]:
    """The layouts of nodes that are wishes."""
    from weft.ir.ops import Op
    from weft.scheduler.meshes import Laid

    line = _lines()
    for n, laid in zip(nodes, found, strict=True):
        if isinstance(laid, Laid) and n.op is Op.COPY:
            yield ExplainedLayout(
                tensor(n), laid.mesh.name, placements(laid.layout), "as asked", line=line(n)
            )


def tensor(n: Node) -> str:
    """A node in words: its op, dtype and shape."""
    return f"{n.op.symbol} {n.dtype.short}[{', '.join(map(str, n.shape))}]"


def placements(layout: Layout) -> str:
    """A layout in words."""
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


def form_text(form: Form) -> str:
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

    return " of ".join([placements(form.layout), *[text(s) for s in form.split if s is not None]])


def _lines() -> Callable[[Node], str | None]:
    """The lines of nodes; of a copy that nobody wrote, that of what is copied."""
    from weft.ir.lines import noting
    from weft.ir.ops import Op

    lines = noting()
    if lines is None:
        return lambda _: None
    return lambda n: lines.of(n) or (lines.of(n.inputs[0]) if n.op is Op.COPY else None)


def _alternatives(choices: Choices, *nodes: Node) -> tuple[Alternative, ...]:
    """Other layouts of these nodes, those of the least price first."""
    from weft.scheduler.sharding.propagate import Choice

    found: list[Alternative] = []
    for n in dict.fromkeys(nodes):
        of = choices.get(n)
        if isinstance(of, Choice):
            if (other := of.next_best) is not None:
                found.append(Alternative(tensor(n), placements(other.layout), None, other.moved_bytes))
        elif of is not None:
            found += [
                Alternative(tensor(n), form_text(f), ns, None) for f, ns in of.others[:3] if ns < math.inf
            ]
    return tuple(sorted(found, key=lambda a: a.bytes or 0 if a.ns is None else a.ns))


# exchanges ------------------------------------------------------------------------------------------------------------


def exchanges(fetches: Sequence[Fetch]) -> list[ExplainedExchange]:
    """The boxes that devices fetch from each other."""
    between = _between()
    return [
        ExplainedExchange(
            tensor(f.node), "[" + ", ".join(map(repr, f.box)) + "]", f.source, f.target, f.nbytes, f.is_term,
            1e9 * between(f.source, f.target).seconds(f.nbytes),
        )
        for f in fetches
    ]  # fmt: skip


def collectives(local: Local) -> list[ExplainedCollective]:
    """The exchanges of each tensor, for each that needs it first, together."""
    from weft.ir.regions import boxes as bx

    groups: dict[tuple[Node, bool, Node], list[Fetch]] = {}
    for f in local.fetches:
        groups.setdefault((f.node, f.is_term, f.reader), []).append(f)
    line, between = _lines(), _between()
    found: list[ExplainedCollective] = []
    for (n, is_term, reader), of in groups.items():
        moved = [(f.source, f.target, f.nbytes) for f in of]
        whole = all(f.box == bx.full(n.shape) for f in of)
        ns, link = _busiest(moved, between)
        found.append(
            ExplainedCollective(
                _pattern(of, is_term, whole, n, local.layouts), tensor(n), _lies(n, local.layouts),
                f"{tensor(reader)}, {_lies(reader, local.layouts)}", len(of), sum(f.nbytes for f in of), ns, link,
                _alternatives(local.choices, n, reader), line(reader) or line(n),
            )
        )  # fmt: skip
    return found


def _pattern(of: Sequence[Fetch], is_term: bool, whole: bool, n: Node, layouts: Mapping[Node, Layout]) -> str:
    """The name of the collective that these are."""
    from weft.scheduler.sharding.lower import count

    sources, targets = {f.source for f in of}, {f.target for f in of}
    if n not in layouts or not sources & targets:
        return "copy" if len(sources) == len(targets) == 1 else "scatter" if len(sources) == 1 else "gather"
    if is_term:
        return "all-reduce" if whole else "reduce-scatter"
    got: dict[str, int] = {}
    for f in of:
        got[f.target] = got.get(f.target, 0) + count(f.box)
    elements = math.prod(x for x in n.shape if isinstance(x, int))
    # a device has a block and gets the others; or what its neighbours have at their edges; or something of all
    if min(got.values()) * len(sources) >= elements * (len(sources) - 1):
        return "all-gather"
    if (
        all(sum(f.target == t for f in of) <= 2 for t in targets)
        and max(got.values()) * 2 * len(sources) <= elements
    ):
        return "halo exchange"
    return "all-to-all"


def _lies(n: Node, layouts: Mapping[Node, Layout]) -> str:
    return (
        placements(layouts[n]) if n in layouts else f"all of it on {n.device}" if n.device else "a constant"
    )


def _between() -> Callable[[str, str], Link]:
    """The links between devices by name, each looked up once."""
    from weft.backends.links import estimated
    from weft.backends.registry import open_device

    known: dict[tuple[str, str], Link] = {}

    def link(source: str, target: str) -> Link:
        if (source, target) not in known:
            origin = "cpu:0" if source == "disk" else source
            known[source, target] = estimated(open_device(origin), open_device(target))
        return known[source, target]

    return link


def _busiest(moved: Iterable[tuple[str, str, int]], between: Callable[[str, str], Link]) -> tuple[float, str]:
    """The time of the link, or wire that links share, which carries most; and that link in words."""
    times: dict[str, float] = {}
    texts: dict[str, str] = {}
    for source, target, nbytes in moved:
        link = between(source, target)
        rate = f"{1e6 * link.alpha_s:.3g} us + {in_units(link.bytes_per_second, 'B')}/s"
        for wire in link.wires or (f"{source} -> {target}",):
            times[wire] = times.get(wire, 0.0) + 1e9 * link.seconds(nbytes)
            texts[wire] = f"{wire} ({rate})"
    most = max(times, key=lambda w: times[w])
    return times[most], texts[most]


def shared_exchanges(
    plan: AlikePlan, graph: Shared
) -> tuple[list[ExplainedExchange], list[ExplainedCollective]]:
    """The exchanges of devices that run one plan: box by box, and together."""
    from weft.ir.regions import boxes as bx
    from weft.scheduler.parts.cut import Exchange

    line, between, names = _lines(), _between(), graph.mesh.devices
    found: list[ExplainedExchange] = []
    together: list[ExplainedCollective] = []
    for number, s in enumerate(plan.order.steps):
        if not isinstance(s.work, Exchange) or s.work.move is None or s.work.moved is None:
            continue
        move, (n, reader) = s.work.move, graph.moves[s.work.moved]
        own: list[ExplainedExchange] = []
        for at, name in enumerate(names):
            for k, copy in plan.copies_of(number, at):
                source = move.origin or names[k]
                if source != name:
                    box = "[" + ", ".join(map(repr, bx.at(move.wanted, plan.env[at]))) + "]"
                    ns = 1e9 * between(source, name).seconds(copy.nbytes)
                    own.append(ExplainedExchange(tensor(n), box, source, name, copy.nbytes, move.stacked, ns))
        found += own
        if own:
            ns, link = _busiest([(e.source, e.target, e.bytes) for e in own], between)
            together.append(
                ExplainedCollective(
                    move.pattern, tensor(n), _lies(n, graph.layouts),
                    f"{tensor(reader)}, {_lies(reader, graph.layouts)}",
                    len(own), sum(e.bytes for e in own), ns, link, _alternatives(graph.choices, n, reader),
                    line(reader) or line(n),
                )
            )  # fmt: skip
    return found, together


# memory and time ------------------------------------------------------------------------------------------------------


def pools(names: Iterable[str], peak: Callable[[str], int], has_scratch: bool) -> list[ExplainedPool]:
    """The most bytes of each memory, where `peak` has those of each device."""
    from weft.backends.registry import open_device

    of: dict[tuple[str, str], list[str]] = {}
    for name in names:  # two backends may call a pool of theirs alike
        of.setdefault((name.partition(":")[0], open_device(name).info.memory_pool), []).append(name)
    return [
        ExplainedPool(pool, tuple(devices), sum(map(peak, devices)), has_scratch)
        for (_, pool), devices in of.items()
    ]


def pool_lines(pools: Sequence[ExplainedPool]) -> Iterator[str]:
    """Memories in words, those of one device each that take as much in one line."""
    alike: dict[tuple[str, bool], list[ExplainedPool]] = {}
    for p in pools:
        alike.setdefault((p.most, len(p.devices) == 1), []).append(p)
    for (most, single), of in alike.items():
        if single and len(of) > 2:
            yield f"memories {of[0].name} ... {of[-1].name}, {len(of)} of one device each: {most}"
        else:
            yield from map(str, of)


def timeline(order: Ordered) -> Timeline:
    """The times of the steps of a plan over devices, as predicted."""
    from weft.backends.timeline import Span, Timeline
    from weft.scheduler.parts.cut import Compute

    spans: list[Span] = []
    values = order.cut.values
    for number, (s, (begin, end)) in enumerate(zip(order.steps, order.at, strict=True), 1):
        if isinstance(s.work, Compute):
            what = ", ".join(dict.fromkeys(tensor(n) for n in s.work.nodes[:3]))
            spans.append(Span(s.lane.device, begin, end, f"{number}: {what}"))
        else:
            source, target = (values[v].device for v in (s.work.source, s.work.target))
            spans.append(Span(f"{source} -> {target}", begin, end, f"{number}: copy"))
    return Timeline(tuple(sorted(spans, key=lambda s: s.end_ns)))


def shared_timeline(plan: AlikePlan) -> Timeline:
    """The times on the first device of the steps that all run, as predicted: parts, and what arrives."""
    from weft.backends.timeline import Span, Timeline
    from weft.scheduler.parts.cut import Compute

    between, names = _between(), plan.mesh.devices
    free: dict[int, float] = {}
    ends: list[float] = []
    spans: list[Span] = []
    for number, s in enumerate(plan.order.steps):
        begin = max([free.get(s.queue, 0.0), *[ends[w.step] for w in s.waits if w.step >= 0]])
        if isinstance(s.work, Compute):
            name, ns = names[0], plan.part_ns(number)
            what = ", ".join(dict.fromkeys(tensor(n) for n in s.work.nodes[:3]))
        else:
            assert s.work.move is not None
            name, what = f"to {names[0]}", s.work.move.pattern
            moved = [(s.work.move.origin or names[k], copy.nbytes) for k, copy in plan.copies_of(number, 0)]
            ns = sum(1e9 * between(a, names[0]).seconds(n) for a, n in moved if a != names[0])
        ends.append(begin + ns)
        free[s.queue] = begin + ns
        spans.append(Span(name, begin, begin + ns, f"{number + 1}: {what}"))
    return Timeline(tuple(sorted(spans, key=lambda s: s.end_ns)))
