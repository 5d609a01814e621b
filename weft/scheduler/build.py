"""Graph -> plan: kernels, their code, and memory for what lies between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft import settings
from weft.backends.protocol import Commands, CopyBytes, Device, Launch, Step
from weft.ir.graph import Node, elements
from weft.ir.graph_verify import verify_graph
from weft.ir.index import Int, Var, high
from weft.ir.kernel.verify import verify as verify_algorithm
from weft.scheduler import memory
from weft.scheduler.kernelize import KernelSpec, kernelize
from weft.scheduler.plan import KernelInfo, OutputSpec, Plan, Tenant
from weft.scheduler.programs import Compiled, compiled


@dataclass(frozen=True, slots=True)
class Job:
    """What a plan is for: the nodes to compute from the leaves. `state[k] = i` asks that output k replace leaf i in
    its memory, which is granted where no kernel reads the old value afterwards."""

    outputs: tuple[Node, ...]
    leaves: tuple[Node, ...]
    variables: tuple[Var, ...]
    state: Mapping[int, int]


def build(job: Job, device: Device) -> tuple[Plan, list[tuple[str, str]] | None]:
    """The plan for a job on a device, and in which stored image its codes are, by which names (None: not storable)."""
    specs = kernelize(job.outputs)
    if settings.verify():
        verify_graph(job.outputs)
        for spec in specs:
            verify_algorithm(spec.algorithm)
    kernels = compiled([s.algorithm for s in specs], device)
    where = [(c.image, c.program.name) for c in dict.fromkeys(kernels) if c.image is not None]
    plan = _Assembly(job, device, specs, kernels).plan()
    return plan, where if len(where) == len(plan.codes) else None


def nbytes(node: Node) -> int:
    """Bytes of a node's value, at the largest runtime sizes."""
    return high(elements(node.shape)) * node.dtype.itemsize


class _Assembly:
    """Gives every tensor of the plan a slot: externals first (leaves, then outputs), then the workspace."""

    def __init__(self, job: Job, device: Device, specs: Sequence[KernelSpec], kernels: Sequence[Compiled]) -> None:
        self.job, self.device, self.specs, self.kernels = job, device, specs, kernels
        self.leaf = {id(n): k for k, n in enumerate(job.leaves)}
        self.output = {id(n): k for k, n in enumerate(job.outputs)}
        self.made = {id(n): k for k, s in enumerate(specs) for n in s.writes}
        self.last_read: dict[int, int] = {}
        for k, s in enumerate(specs):
            for n in (*s.reads, *s.inplace.values()):
                self.last_read[id(n)] = k
        self.replaces = {o: i for o, i in job.state.items() if self.may_replace(o, i)}
        self.merged: dict[int, int] = {}  # intermediate -> intermediate whose bytes it takes over

    def may_replace(self, output: int, leaf: int) -> bool:
        """Output may be computed into the leaf's memory: the leaf is not read after, nor in a way that would see it."""
        new, old = self.job.outputs[output], self.job.leaves[leaf]
        if new.shape != old.shape or new.dtype is not old.dtype or id(new) in self.leaf:
            return False
        k = self.made.get(id(new), -1)
        if k < 0:  # no elements
            return False
        last = self.last_read.get(id(old), -1)
        if last > k:
            return False
        return last < k or self.shares(k, new, old)

    def shares(self, k: int, new: Node, old: Node) -> bool:
        """Kernel k may write `new` over `old`, which it reads or updates."""
        spec = self.specs[k]
        if any(base is old for base in spec.inplace.values()):
            return all(n is not old for n in spec.reads)
        params = {p.name: i for i, p in enumerate(spec.algorithm.params)}
        nodes = self.param_nodes(spec)
        written = [params[p.name] for p, n in zip(spec.algorithm.params, nodes, strict=True) if n is new]
        read = [params[p.name] for p, n in zip(spec.algorithm.params, nodes, strict=True) if n is old]
        pairs = self.kernels[k].in_place
        return all((w, r) in pairs for w in written for r in read)

    def param_nodes(self, spec: KernelSpec) -> list[Node]:
        """The node behind each parameter, in order: written ones from `writes`, the others from `reads`."""
        reads, writes = iter(spec.reads), iter(spec.writes)
        return [next(writes) if p.written else next(reads) for p in spec.algorithm.params]

    def plan(self) -> Plan:
        requests: list[memory.Request] = []
        owner: dict[int, int] = {}  # intermediate -> request
        for k, spec in enumerate(self.specs):
            for node in spec.writes:
                if id(node) in self.output:
                    continue
                last = self.last_read.get(id(node), k)
                old = self.dying(k, node, owner)
                if old is not None:
                    at = owner[id(old)]
                    r = requests[at]
                    requests[at] = memory.Request(r.nbytes, r.first, max(r.last, last), r.name)
                    owner[id(node)] = at
                else:
                    owner[id(node)] = len(requests)
                    requests.append(memory.Request(nbytes(node), k, last, repr(node)))
        layout = memory.plan(requests)
        externals = len(self.job.leaves) + len(self.job.outputs)

        def slot(node: Node) -> int:
            if id(node) in self.leaf:
                return self.leaf[id(node)]
            if id(node) in self.output:
                return len(self.job.leaves) + self.output[id(node)]
            return externals + owner[id(node)]

        steps: list[Step] = []
        infos: list[KernelInfo] = []
        codes = list(dict.fromkeys(c for c in self.kernels))
        number = {id(c): i for i, c in enumerate(codes)}
        variables = {v.name: i for i, v in enumerate(self.job.variables)}
        for spec, kernel in zip(self.specs, self.kernels, strict=True):
            nodes = self.param_nodes(spec)
            for p, n in zip(spec.algorithm.params, nodes, strict=True):
                base = spec.inplace.get(p.name)
                if base is not None and self.place(slot, n) != self.place(slot, base):
                    steps.append(CopyBytes(slot(n), slot(base), nbytes(base)))
                    infos.append(KernelInfo("copy", 2 * nbytes(base), 0, ("the old value is still needed",)))
            slots = tuple(slot(n) for n in nodes)
            used = tuple(variables[v.name] for v in kernel.program.variables)
            steps.append(Launch(number[id(kernel)], slots, used))
            infos.append(KernelInfo(spec.algorithm.name, _int(spec.bytes), _int(spec.flops), spec.why))
        commands = Commands(
            tuple(steps), externals, tuple(layout.offsets), layout.nbytes, len(self.job.variables)
        )
        outputs = tuple(OutputSpec(n.dtype, n.shape, self.replaces.get(k)) for k, n in enumerate(self.job.outputs))
        executable = self.device.link([c.code for c in codes], commands)
        return Plan(
            self.device, commands, tuple(c.code for c in codes), outputs, self.job.variables, tuple(infos), executable,
            self.largest(requests),
        )  # fmt: skip

    def largest(self, requests: Sequence[memory.Request]) -> tuple[Tenant, ...]:
        """The intermediate and final results that need most memory."""
        tenants = [Tenant(f"{r.name} (kernels {r.first} to {r.last})", r.nbytes) for r in requests]
        tenants += [
            Tenant(f"result {n!r}", nbytes(n)) for k, n in enumerate(self.job.outputs) if k not in self.replaces
        ]
        return tuple(sorted(tenants, key=lambda t: -t.nbytes)[:5])

    def place(self, slot: Mapping[int, int] | object, node: Node) -> tuple[str, int]:
        """Equal for two nodes exactly when they share memory."""
        assert callable(slot)
        k = self.output.get(id(node))
        if k is not None and k in self.replaces:
            return ("slot", self.replaces[k])
        return ("slot", slot(node))

    def dying(self, k: int, node: Node, owner: Mapping[int, int]) -> Node | None:
        """An intermediate of the same size that kernel k reads for the last time and may overwrite."""
        spec = self.specs[k]
        for old in (*spec.inplace.values(), *spec.reads):
            if id(old) not in owner or self.last_read[id(old)] != k or id(old) in self.merged:
                continue
            if nbytes(old) == nbytes(node) and old.dtype is node.dtype and self.shares(k, node, old):
                self.merged[id(old)] = id(node)
                return old
        return None


def _int(x: Int) -> int:
    return high(x)
