"""Forms of a session: the function for arguments of one structure, with its graph, plans and last values."""
# Tests: tests/sessions/test_session.py

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.autograd.value import Value
from weft.core.args.handle import standing_for
from weft.ir import graph
from weft.ir.graph import Node
from weft.ir.index import Var, high
from weft.ir.regions.boxes import Interval
from weft.ir.regions.graphs import reached
from weft.ir.regions.region import NOTHING, Region
from weft.scheduler.keeping import nbytes
from weft.sessions.budget import EVERYTHING, Budget, name_of
from weft.sessions.buckets import Bucket, Placed, placed, regions
from weft.sessions.inputs import Array, Inputs
from weft.sessions.keeping import Keeping
from weft.sessions.plans import Run, planned, stored_nodes
from weft.sessions.pool import Arena, MemoryPool, rounded
from weft.sessions.recorded import Template
from weft.sessions.state import copied, own_memory
from weft.sessions.step import StepGraph, leaf_for, step_graph

if TYPE_CHECKING:
    from weft.backends.protocol import Memory
    from weft.backends.storage import Storage
    from weft.core.tensor.tensor import Tensor


@dataclass(slots=True)
class Counts:
    """The runs of a session, by what they had to compute."""

    whole: int = 0
    steps: int = 0
    same: int = 0


class Form:
    """A function for arguments of one structure."""

    def __init__(self, template: Template, pool: MemoryPool | None = None) -> None:
        self.template, self.counts, self.pool = template, Counts(), pool
        stored = stored_nodes(template.results, template.order, template.device)
        self.budget = Budget(stored, template.results, template.device.info)
        self.kept = stored
        self.keeping: Keeping | None = None
        """The answer that says what is kept; None where everything is that kernels store."""
        self.inputs = Inputs(template)
        self._arena = Arena(template.device, ())
        self._places: dict[Node, int] = {}
        self._old = {n: leaf_for(n, template.device.info.name) for n in stored}
        self._number = {n: k for k, n in template.leaves.items()}
        self._results = frozenset(template.results)
        self._whole: Run | None = None
        self.steps: dict[Bucket, Step] = {}
        self.values: dict[Node, Storage] | None = None
        """The last values of what is kept; None where they are not all there."""

    def run(
        self, tensors: Sequence[Tensor], arrays: Mapping[int, Array], said: Mapping[int, Region]
    ) -> tuple[Any, ...]:
        """The function's results for tensors as arguments, and the regions that changed."""
        objects = [*tensors, *self.template.captured]
        if self.values is not None and self.inputs.are_last(objects):
            self.counts.same += 1
            return self._outputs({})
        now, changed = self.inputs.look(objects, arrays, said)
        values, self.values = (
            self.values,
            None,
        )  # until all is done: what fails or is interrupted leaves nothing
        changes = () if values is None else placed(changed, self.template.leaves)
        if values is None or not self._are_planned(changes):
            values = dict["Node", "Storage"]()
            reach = self._compute_all(now, values)
        else:
            reach = self._compute_changes(changes, now, values)
        self.inputs.keep(now)
        self.values = values
        return self._outputs(reach)

    def _compute_all(self, inputs: Mapping[int, Storage], values: dict[Node, Storage]) -> dict[Node, Region]:
        if self._whole is None:
            self.settle()
        assert self._whole is not None
        self._enter()
        self._execute(self._whole, inputs, values, ())
        self.counts.whole += 1
        self.budget.log.record(EVERYTHING)
        return {n: Region.whole(n.shape) for n in self._results}

    def _compute_changes(
        self, changes: Sequence[Placed], inputs: Mapping[int, Storage], values: dict[Node, Storage]
    ) -> dict[Node, Region]:
        """Compute what changes of inputs reach, one after the other; the regions of results that they do."""
        found: dict[Node, Region] = {}
        self._enter()
        for change in changes:
            step = self.steps[change.bucket]
            self._execute(step.run, inputs, values, change.starts)
            self.counts.steps += 1
            self.budget.log.record(name_of(change.bucket))
            env = {v.name: x for v, x in zip(step.graph.variables, change.starts, strict=True)}
            for n, region in step.results.items():
                found[n] = found.get(n, NOTHING) | region.at(env)
        self.counts.same += not changes
        return found

    def _step(self, bucket: Bucket) -> Step:
        leaves = self.template.leaves
        changes, variables = regions(bucket, leaves)
        dirty = reached({leaves[k]: r for k, r in changes.items()}, self.template.order)
        self.budget.changes[name_of(bucket)] = dirty
        step = step_graph(self.kept, self._old, dirty, variables)
        stand_for = {at: n for n, at in self._old.items()}
        run = planned(step.new, stand_for, [v.name for v in variables], self.template.device)
        # of results that are inputs, what changed of these
        results = {
            n: step.dirty.get(n, dirty.get(n, NOTHING) if n in self._number else NOTHING)
            for n in self._results
        }
        return Step(step, run, results)

    def _execute(
        self, r: Run, inputs: Mapping[int, Storage], values: dict[Node, Storage], starts: Sequence[int]
    ) -> None:
        """Run a plan. It writes over what is kept."""
        if r.plan is None:
            return
        memories: list[Memory] = list(r.template)
        for i, n in r.sources:
            if n in self._number:
                memories[i] = inputs[self._number[n]].memory
            elif n in values:
                own = i in r.replaced and n not in self._places  # what is in the arena is nobody else's
                memories[i] = own_memory(values, n) if own else values[n].memory
            else:
                memories[i] = self.template.draws[n]
        at = [starts[k] for k in r.values]
        places = self._places_of(r)
        storages, given = r.plan.with_results(memories, at, places)
        r.plan.start(given, at)
        for k, (n, storage) in enumerate(zip(r.results, storages, strict=True)):
            if n in self._places and k not in places and storage.memory is not values[n].memory:
                copied(values[n].memory, storage)
            else:
                values[n] = storage

    def _places_of(self, r: Run) -> dict[int, Memory]:
        """The places in the arena of results of a run that does not read what is there."""
        assert r.plan is not None
        read = {n for _, n in r.sources}
        memories = self._arena.memories if self._places else ()
        return {
            k: memories[self._places[n]]
            for k, (n, o) in enumerate(zip(r.results, r.plan.outputs, strict=True))
            if n in self._places and o.replaces is None and n not in read
        }

    # what is kept ---------------------------------------------------------------------------------------------------

    def settle(self, seconds: float = 0.0, chosen: bool = False) -> None:
        """Choose what to keep, in the limit of the pool, and plan the run that computes everything. Without a limit,
        that is everything, unless it is to be `chosen`."""
        if self.pool is None and not chosen:
            self.keep(self.budget.stored)
            return
        if not self.budget.changes:
            self.budget.guessed = {
                f"guess {k}": reached({leaf: Region((_one(leaf),))}, self.template.order)
                for k, leaf in self.template.leaves.items()
                if k < self.template.arguments
            }
        limit = None if self.pool is None else self.pool.nbytes
        self.keeping, kept = self.budget.solved(limit, seconds, self._measure)
        self.keep(kept)

    def keep(self, kept: Sequence[Node]) -> None:
        """Keep these nodes from here on, with a plan for everything; the next run is one."""
        self.release()
        self.kept, self.steps = tuple(kept), {}
        placed_nodes = [n for n in kept if n not in self._results] if self.pool is not None else []
        self._places = {n: k for k, n in enumerate(placed_nodes)}
        self._arena = Arena(self.template.device, [nbytes(n) for n in placed_nodes])
        self._whole = planned({n: n for n in kept}, {}, (), self.template.device)

    def memory(self) -> FormMemory:
        """The bytes that the form takes while it runs: what was planned up to now."""
        device = self.template.device
        runs = [self._whole, *(s.run for s in self.steps.values())]
        scratch = max((r.scratch_bytes(self._places) for r in runs if r is not None), default=0)
        results = [rounded(device, nbytes(n)) for n in self.kept if n in self._results]
        kept = self._arena.nbytes
        if not self._places:
            kept = sum(rounded(device, nbytes(n)) for n in self.kept if n not in self._results)
        return FormMemory(kept, sum(results), rounded(device, scratch))

    def release(self) -> None:
        """Let go of all that is kept: the next run computes everything."""
        self.values = None
        self._arena.release()
        if self.pool is not None:
            self.pool.leave(self)

    def _measure(self, kept: Sequence[Node]) -> int:
        buckets = list(self.steps)
        self.keep(kept)
        for b in buckets:
            self.steps[b] = self._step(b)
        return self.memory().total

    def _are_planned(self, changes: Sequence[Placed]) -> bool:
        """Plan what is not; False where what is kept had to be chosen anew for that."""
        new = {c.bucket for c in changes} - self.steps.keys()
        for bucket in new:
            self.steps[bucket] = self._step(bucket)
        if new and self.pool is not None and self.memory().total > self.pool.nbytes:
            self.settle()
            return False
        return True

    def _enter(self) -> None:
        if self.pool is not None:
            m = self.memory()
            self.pool.enter(self, m.kept + m.results, m.scratch)

    def _outputs(self, reach: Mapping[Node, Region]) -> tuple[Any, ...]:
        """New tensors over the results."""
        assert self.values is not None
        found: list[Tensor] = []
        for n in self.template.results:
            t = standing_for(
                Value(graph.buffer(n.shape, n.dtype, self.template.device.info.name, self._value(n)))
            )
            t.__dict__["changed"] = reach.get(n, NOTHING)
            found.append(t)
        return self.template.build(found)

    def _value(self, n: Node) -> Storage:
        assert self.values is not None
        if n in self._number:
            return self.inputs.last(self._number[n])
        return self.values.get(n, n.storage)


def _one(leaf: Node) -> tuple[Interval, ...]:
    """One element of a leaf, anywhere."""
    at = [Var(f"at{k}", 0, max(0, high(n) - 1)) for k, n in enumerate(leaf.shape)]
    return tuple([Interval(v, v + 1) if high(n) > 1 else Interval(0, n) for v, n in zip(at, leaf.shape, strict=True)])


@dataclass(frozen=True, slots=True)
class FormMemory:
    """Bytes of what is kept, of the results, and the most scratch of any run, as the device rounds them."""

    kept: int
    results: int
    scratch: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.kept + self.results + self.scratch


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What is run for a class of changes. `results`: the regions of results that they reach."""

    graph: StepGraph
    run: Run
    results: Mapping[Node, Region]
