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
from weft.ir.regions.graphs import reached
from weft.ir.regions.region import NOTHING, Region
from weft.sessions.buckets import Bucket, Placed, placed, regions
from weft.sessions.inputs import Array, Inputs
from weft.sessions.plans import Run, planned, stored_nodes
from weft.sessions.recorded import Template
from weft.sessions.state import own_memory
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

    def __init__(self, template: Template) -> None:
        self.template, self.counts = template, Counts()
        self.kept = stored_nodes(template.results, template.order, template.device)
        self.inputs = Inputs(template)
        self._old = {n: leaf_for(n, template.device.info.name) for n in self.kept}
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
        if values is None:
            values = dict["Node", "Storage"]()
            reach = self._compute_all(now, values)
        else:
            reach = self._compute_changes(placed(changed, self.template.leaves), now, values)
        self.inputs.keep(now)
        self.values = values
        return self._outputs(reach)

    def _compute_all(self, inputs: Mapping[int, Storage], values: dict[Node, Storage]) -> dict[Node, Region]:
        if self._whole is None:
            self._whole = planned({n: n for n in self.kept}, {}, (), self.template.device)
        self._execute(self._whole, inputs, values, ())
        self.counts.whole += 1
        return {n: Region.whole(n.shape) for n in self._results}

    def _compute_changes(
        self, changes: Sequence[Placed], inputs: Mapping[int, Storage], values: dict[Node, Storage]
    ) -> dict[Node, Region]:
        """Compute what changes of inputs reach, one after the other; the regions of results that they do."""
        found: dict[Node, Region] = {}
        for change in changes:
            step = self.steps.get(change.bucket)
            if step is None:
                step = self.steps[change.bucket] = self._step(change.bucket)
            self._execute(step.run, inputs, values, change.starts)
            self.counts.steps += 1
            env = {v.name: x for v, x in zip(step.graph.variables, change.starts, strict=True)}
            for n, region in step.results.items():
                found[n] = found.get(n, NOTHING) | region.at(env)
        self.counts.same += not changes
        return found

    def _step(self, bucket: Bucket) -> Step:
        leaves = self.template.leaves
        changes, variables = regions(bucket, leaves)
        dirty = reached({leaves[k]: r for k, r in changes.items()}, self.template.order)
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
                memories[i] = own_memory(values, n) if i in r.replaced else values[n].memory
            else:
                memories[i] = self.template.draws[n]
        at = [starts[k] for k in r.values]
        storages, given = r.plan.with_results(memories, at)
        r.plan.start(given, at)
        values.update(zip(r.results, storages, strict=True))

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


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What is run for a class of changes. `results`: the regions of results that they reach."""

    graph: StepGraph
    run: Run
    results: Mapping[Node, Region]
