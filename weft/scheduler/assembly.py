"""Kernels -> plan: memory for what lies between them, their launches in order, and what is copied before.

Whoever found the kernels, for the sizes of one graph or for all sizes, has them assembled here.
"""
# Tests: tests/scheduler/test_realize.py, tests/scheduler/test_plan_verify.py

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from weft import settings
from weft.backends.protocol import Commands, Device, Launch, Step
from weft.ir.errors import IRError
from weft.ir.graph import Node, elements
from weft.ir.index import Int, Var, high
from weft.ir.kernel.algorithm import rate_dtype
from weft.lazy_dataclass import dataclass
from weft.scheduler import memory
from weft.scheduler.copies import Copies, copy_trace
from weft.scheduler.growing import Needs, Tenancy
from weft.scheduler.kernelize.spec import KernelSpec, ScanSpec
from weft.scheduler.loops import Chosen, LoopLayout, Run, nbytes
from weft.scheduler.plan import KernelInfo, OutputSpec, Tenant
from weft.scheduler.plan_verify import StepAccesses, What, launch_trace, verify_plan
from weft.scheduler.programs import CompiledProgram
from weft.scheduler.unrolled import Item, Unrolled


@dataclass(frozen=True, slots=True)
class Job:
    """The task of a plan: the nodes to compute from the leaves. `state[k] = i` asks that output k replace leaf i
    in its memory, which is granted where no kernel reads the old value afterwards. `at_once`: see `compiled`."""

    outputs: tuple[Node, ...]
    leaves: tuple[Node, ...]
    variables: tuple[Var, ...]
    state: Mapping[int, int]
    at_once: int | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job whose kernels are compiled. `where`: the images and names of those that are stored."""

    job: Job
    device: Device
    specs: Sequence[KernelSpec | ScanSpec]
    chosen: Chosen
    copies: Copies
    where: list[tuple[str, str]]


def assembled(made: Prepared) -> Unrolled:
    """The plan of a job whose kernels are compiled."""
    return Assembly(made).plan()


class Assembly:
    """Gives every tensor of the plan a slot: externals first (leaves, then outputs), then the workspace."""

    def __init__(self, made: Prepared) -> None:
        job, specs, chosen = made.job, made.specs, made.chosen
        self.job, self.device, self.specs, self.chosen = job, made.device, specs, chosen
        self.copies = made.copies
        self.loops = {k: LoopLayout(s, chosen) for k, s in enumerate(specs) if isinstance(s, ScanSpec)}
        self.blocks: dict[int, int] = {}  # loop -> the number of its block in the workspace
        self.leaf = {n: k for k, n in enumerate(job.leaves)}
        self.output = {n: k for k, n in enumerate(job.outputs)}
        self.made = {n: k for k, s in enumerate(specs) for n in s.writes}
        for n in job.outputs:
            if n not in self.made and elements(n.shape) != 0:
                raise IRError(f"{n!r} is a result, and no step computes it", "plan")
        self.last_read: dict[Node, int] = {}
        for k, s in enumerate(specs):
            for n in (*s.reads, *s.inplace.values()):
                self.last_read[n] = k
        self.replaces = {o: i for o, i in job.state.items() if self.may_replace(job.outputs[o], i)}
        self.early: dict[
            Node, Node
        ] = {}  # intermediate -> output whose memory it is kept in until that is made
        for o, n in enumerate(job.outputs):
            self.early.update(dict.fromkeys(self.chain(n, self.replaces.get(o)), n))
        self.owner: dict[Node, int] = {}  # intermediate -> its number in the workspace
        self.traces: dict[int, Callable[[Step], StepAccesses]] = {}  # of a step, by the identity of its facts
        self.sizes: list[dict[Int, None]] = []  # of each in the workspace, the bytes that it may have
        self.inside: dict[tuple[int, int], int] = {}  # a loop's block, and a place in it -> its slot
        self.requests = self.lay_out()

    # --- whose memory may be overwritten

    def may_replace(self, new: Node, leaf: int) -> bool:
        """`new` may be computed into the leaf's memory: the leaf is not read after, nor in a way that would see it."""
        old = self.job.leaves[leaf]
        if new.shape != old.shape or new.dtype is not old.dtype or new in self.leaf or new not in self.made:
            return False
        k = self.made[new]
        last = self.last_read.get(old, -1)
        return last < k or (last == k and self.shares(k, new, old))

    def over(self, output: int, new: Node) -> tuple[int, ...]:
        """The leaves over which an output may be computed, were they not needed: of those that its kernel reads."""
        if output in self.replaces or new not in self.made or new in self.early.values():
            return ()
        spec = self.specs[self.made[new]]
        if isinstance(spec, ScanSpec) or self.base(new) is not None:
            return ()
        kept = set(self.replaces.values())
        read = [self.leaf[n] for n in dict.fromkeys(spec.reads) if n in self.leaf]
        return tuple([i for i in read if i not in kept and self.may_replace(new, i)])

    def shares(self, k: int, new: Node, old: Node) -> bool:
        """Kernel k may write `new` over `old`, which it reads or updates."""
        spec = self.specs[k]
        if isinstance(spec, ScanSpec):  # which writes its results long before it has read all of its inputs
            return False
        base = self.base(new)
        if any(b is old for b in spec.inplace.values()):
            return base is old and all(n is not old for n in spec.reads)
        if base is not None:  # which is copied there before the kernel reads anything
            return False
        nodes = list(enumerate(self.param_nodes(spec)))
        pairs = self.chosen[spec][0].in_place
        return all((w, r) in pairs for w, a in nodes if a is new for r, b in nodes if b is old)

    def base(self, node: Node) -> Node | None:
        """The tensor that `node` is an update of, if its kernel makes it in place."""
        spec = self.specs[self.made[node]]
        if isinstance(spec, ScanSpec):
            return None
        for p, n in zip(spec.algorithm.params, self.param_nodes(spec), strict=True):
            if n is node:
                return spec.inplace.get(p.name)
        return None

    def chain(self, output: Node, leaf: int | None) -> list[Node]:
        """The intermediates that are updated one after another into `output`: they can live in its memory already.

        Where that is the memory of a leaf, nobody may need the leaf any more when the first of them is made.
        """
        out: list[Node] = []
        node = output
        while node in self.made:
            base = self.base(node)
            k = self.made[node]
            if base is None or base not in self.made or base in self.output or base in self.early:
                break
            if self.last_read[base] != k or any(n is base for n in self.specs[k].reads):
                break
            out.append(base)
            node = base
        while leaf is not None and out and not self.may_replace(out[-1], leaf):
            out.pop()
        return out

    def dying(self, k: int, node: Node, taken: set[Node]) -> Node | None:
        """An intermediate of the same size that kernel k reads for the last time and may overwrite with `node`."""
        spec = self.specs[k]
        for old in (*spec.inplace.values(), *spec.reads):
            if old not in self.owner or self.last_read[old] != k or old in taken:
                continue
            if nbytes(old) == nbytes(node) and old.dtype is node.dtype and self.shares(k, node, old):
                taken.add(old)
                return old
        return None

    def param_nodes(self, spec: KernelSpec) -> list[Node]:
        """The node behind each parameter, in order: written ones from `writes`, the others from `reads`."""
        reads, writes = iter(spec.reads), iter(spec.writes)
        return [next(writes) if p.written else next(reads) for p in spec.algorithm.params]

    # --- where everything is

    def lay_out(self) -> list[memory.Request]:
        """The memory that the workspace has to hold, and for how long. Fills in `owner`."""
        requests: list[memory.Request] = []
        taken: set[Node] = set()
        for k, spec in enumerate(self.specs):
            if k in self.loops and self.loops[k].nbytes:
                self.blocks[k] = len(requests)
                requests.append(memory.Request(self.loops[k].nbytes, k, k, "a loop's steps"))
                self.sizes.append({self.loops[k].nbytes: None})
            for node in spec.writes:
                if node in self.output or node in self.early:
                    continue
                last = self.last_read.get(node, k)
                old = self.dying(k, node, taken)
                size = elements(node.shape) * node.dtype.itemsize
                if old is not None:
                    at = self.owner[node] = self.owner[old]
                    requests[at] = replace(requests[at], last=max(requests[at].last, last))
                    self.sizes[at][size] = None
                else:
                    self.owner[node] = len(requests)
                    requests.append(memory.Request(nbytes(node), k, last, repr(node)))
                    self.sizes.append({size: None})
        return requests

    def needs(self) -> Needs:
        """The same by runtime sizes."""
        rows = zip(self.requests, self.sizes, strict=True)
        return Needs(tuple([Tenancy(tuple(sizes), r.first, r.last) for r, sizes in rows]), tuple(self.inside))

    def slot(self, node: Node) -> int:
        """The number by which kernels get the memory of `node`."""
        node = self.early.get(node, node)
        if node in self.leaf:
            return self.leaf[node]
        if node in self.output:
            return len(self.leaf) + self.output[node]
        return len(self.leaf) + len(self.output) + self.owner[node]

    def place(self, node: Node) -> int:
        """Equal for two nodes exactly when they share memory: as `slot`, but for outputs that replace a leaf."""
        k = self.output.get(self.early.get(node, node))
        return self.replaces[k] if k is not None and k in self.replaces else self.slot(node)

    # --- the plan

    def plan(self) -> Unrolled:
        layout = memory.plan(self.requests)
        items = self.steps(len(layout.offsets))
        offsets = [*layout.offsets, *[layout.offsets[block] + at for block, at in self.inside]]
        return Unrolled(
            device=self.device,
            items=tuple(items),
            externals=len(self.leaf) + len(self.output),
            offsets=tuple(offsets),
            workspace_bytes=layout.nbytes,
            codes=tuple(c.code for c in self.programs()),
            outputs=tuple(
                OutputSpec(n.dtype, n.shape, self.replaces.get(k), self.over(k, n))
                for k, n in enumerate(self.job.outputs)
            ),
            variables=self.job.variables,
            computed=self.computed(),
            largest=self.largest(),
            check=self.verify if settings.verify() else None,
            needs=self.needs() if self.job.variables else None,
        )

    def verify(self, commands: Commands, infos: Sequence[KernelInfo]) -> None:
        """IRError where steps read what is not there, or is overwritten: where outputs take what memory they may."""
        # each leaf for one output
        over = {i: k for k, n in enumerate(self.job.outputs) for i in self.over(k, n)}
        given = self.replaces | {k: i for i, k in over.items()}
        replaced = {len(self.leaf) + k: i for k, i in given.items()}
        traces = [self.traces[id(info)](step) for step, info in zip(commands.steps, infos, strict=True)]
        verify_plan(commands, traces, self.job.leaves, replaced)

    def computed(self) -> tuple[Int, ...]:
        """The values of kernels' variables that follow from the job's."""
        values = [x for _, own in self.chosen.values() for x in own.values()]
        return tuple(dict.fromkeys(x for x in values if not isinstance(x, int)))

    def programs(self) -> dict[CompiledProgram, int]:
        """The distinct programs, numbered."""
        return {c: i for i, c in enumerate(dict.fromkeys(c for c, _ in self.chosen.values()))}

    def steps(self, tenants: int) -> list[Item]:
        """The launches, in order, with a copy before what is updated while its old value is still needed. The workspace
        has so many tenants, and slots for these; those for what loops need of it are added."""
        items: list[Item] = []
        number = self.programs()
        runtime = {v.name: i for i, v in enumerate(self.job.variables)}
        first = len(self.leaf) + len(self.output) + tenants
        inside = self.inside

        def take(block: int, offset: int) -> int:
            return inside.setdefault((block, offset), first + len(inside))

        computed = {x: k for k, x in enumerate(self.computed())}

        def constant(x: Int) -> int:
            return len(runtime) + (len(computed) + x if isinstance(x, int) else computed[x])

        for k, spec in enumerate(self.specs):
            if isinstance(spec, ScanSpec):
                own = partial(take, self.blocks.get(k, 0))
                run = Run(self.loops[k], 0, self.slot, own, constant, number, runtime, self.copies)
                items += run.steps()
                for info in run.infos():
                    self.traces[id(info)] = partial(run.trace, info=info)
                continue
            kernel, own = self.chosen[spec]
            nodes = self.param_nodes(spec)
            for p, n in zip(spec.algorithm.params, nodes, strict=True):
                base = spec.inplace.get(p.name)
                if base is not None and self.place(n) != self.place(base):
                    made, info = self.copies.step(
                        self.slot(n), self.slot(base), base, self.chosen, number, runtime
                    )
                    items.append((made, info))
                    self.traces[id(info)] = partial(copy_trace, node=base)
            variables = runtime | {name: constant(x) for name, x in own.items()}
            used = tuple(variables[v] for v in kernel.variables)
            name, moved, flops = spec.algorithm.name, high(spec.bytes), high(spec.flops)
            info = KernelInfo(name, moved, flops, spec.why, spec.written, rate_dtype(spec.algorithm))
            slots = tuple(map(self.slot, nodes))
            items.append((Launch(number[kernel], slots, used), info))
            self.traces[id(info)] = partial(_launch_accesses, spec, nodes, slots, kernel.in_place)
        return items

    def largest(self) -> tuple[Tenant, ...]:
        """The intermediate and final results that need most memory."""
        tenants = [Tenant(f"{r.name} (kernels {r.first} to {r.last})", r.nbytes) for r in self.requests]
        fresh = [n for k, n in enumerate(self.job.outputs) if k not in self.replaces]
        tenants += [Tenant(f"result {n!r}", nbytes(n)) for n in fresh]
        return tuple(sorted(tenants, key=lambda t: -t.nbytes)[:5])


def _launch_accesses(
    spec: KernelSpec,
    nodes: Sequence[Node],
    slots: Sequence[int],
    shared: frozenset[tuple[int, int]],
    step: Step,
) -> StepAccesses:
    """The accesses of a kernel's launch."""
    updated = [k for k, p in enumerate(spec.algorithm.params) if p.name in spec.inplace]
    return launch_trace(spec.algorithm, slots, updated, shared, [What(0, n) for n in nodes])
