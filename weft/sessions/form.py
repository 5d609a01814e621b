"""Forms of a session: the function for arguments of one structure, with its graph, plans and last values."""
# Tests: tests/sessions/test_session.py

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.autograd.value import Value
from weft.core.args.handle import standing_for
from weft.ir import graph
from weft.ir.graph import Node
from weft.ir.index import Var
from weft.ir.regions.region import NOTHING, Region
from weft.sessions.buckets import Bucket, Changes, Placed, changes, in_order, placed
from weft.sessions.inputs import Array, Inputs
from weft.sessions.plans import Run, planned, stored_nodes
from weft.sessions.recorded import Template
from weft.sessions.stale import Leaves, Stale
from weft.sessions.state import copied, own_memory
from weft.sessions.step import Change, StepGraph, leaf_for, step_graph, varying

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

    def __init__(self, template: Template, mode: Callable[[], AbstractContextManager[object]]) -> None:
        self.template, self.counts, self._mode = template, Counts(), mode
        with mode():
            self.kept = stored_nodes(template.results, template.order, template.device)
        self.inputs = Inputs(template)
        self._old = {n: leaf_for(n, template.device.info.name) for n in self.kept}
        self._number = {n: k for k, n in template.leaves.items()}
        self._results = frozenset(template.results)
        self._varying = varying(template.order)
        self._numbers: dict[Var, int] = {}
        self._stale = Stale()
        """What no result needed when it was reached."""
        self._whole: Run | None = None
        self.steps: dict[Bucket, Step] = {}
        self._classes: dict[Bucket, list[Bucket]] = {}
        self.values: dict[Node, Storage] | None = None
        """The last values of what is kept; None where they are not all there."""

    def run(
        self,
        tensors: Sequence[Tensor],
        arrays: Mapping[int, Array],
        said: Mapping[int, Region],
        numbers: Mapping[Var, int],
    ) -> Any:
        """The function's results for tensors as arguments, and numbers as runtime variables. `arrays`, `said`: see
        `Inputs.look`."""
        objects = [*tensors, *self.template.captured]
        moved = [v for v, x in numbers.items() if self._numbers.get(v) != x]
        if self.values is not None and not moved and self.inputs.are_last(objects):
            self.counts.same += 1
            return self._outputs({})
        now, changed = self.inputs.look(objects, arrays, said)
        values = self.values
        self.values = None  # until all is done: what fails or is interrupted leaves nothing
        reach = None
        if values is not None:
            reach = self._computed(
                placed(changed, self.template.leaves, numbers, moved), now, numbers, values
            )
        if reach is None:
            values = dict["Node", "Storage"]()
            reach = self._computed_all(now, numbers, values)
        self.inputs.keep(now)
        self.values, self._numbers = values, dict(numbers)
        return self._outputs(reach)

    def _computed_all(
        self, inputs: Mapping[int, Storage], numbers: Mapping[Var, int], values: dict[Node, Storage]
    ) -> dict[Node, Region]:
        """Compute everything; the regions of results, which are all of them."""
        if self._whole is None:
            results = {n: n for n in self.kept}
            with self._mode():
                self._whole = planned(results, {}, self.template.variables, self.template.device)
        self._execute(self._whole, inputs, values, [numbers[v] for v in self.template.variables])
        self.counts.whole += 1
        self._stale = Stale()
        return {n: Region.whole(n.shape) for n in self._results}

    def _computed(
        self,
        changes: Sequence[Placed],
        inputs: Mapping[int, Storage],
        numbers: Mapping[Var, int],
        values: dict[Node, Storage],
    ) -> dict[Node, Region] | None:
        """Compute what changes of inputs reach, one after the other; the regions of results that they do. None where
        more is to be computed than they reach: what was not needed before is now."""
        found: dict[Node, Region] = {}
        for change in changes:
            step = self._step_at(change, numbers)
            at = (*change.starts, *numbers.values())
            stale = self._stale.after(step.leaves, at)
            if stale is None:
                return None
            env = step.leaves.env(at)
            self._execute(step.run, inputs, values, (*at, *step.graph.starts.made(env)))
            self._stale = stale
            self.counts.steps += 1
            for n in self._results:
                found[n] = found.get(n, NOTHING) | step.graph.reached.at(n, env)
        self.counts.same += not changes
        return found

    def _step_at(self, change: Placed, numbers: Mapping[Var, int]) -> Step:
        """The step for a change: of a class of starts among which boxes are mostly as large as this one's."""
        known = self._classes.setdefault(change.bucket, [])
        bucket = next((b for b in known if b.holds(change.starts)), None)
        if bucket is None:
            with self._mode():
                bucket = self._new_step(change, numbers)
            known.append(bucket)
        return self.steps[bucket]

    def _new_step(self, change: Placed, numbers: Mapping[Var, int]) -> Bucket:
        """The class of a change, with bounds for the starts, and with a step."""
        said, of = self._change(change.bucket)
        variables = in_order(said, self.template.variables)
        at = {v.name: x for v, x in zip(variables, (*change.starts, *numbers.values()), strict=True)}
        bounds = of.bounds_at(at)
        within = tuple([bounds.get(v.name, (v.lo, v.hi)) for v in said.starts])
        bucket = change.bucket._replace(within=within)
        if within != tuple([(v.lo, v.hi) for v in said.starts]):
            said, of = self._change(bucket)
        self.steps[bucket] = self._step(said, of)
        return bucket

    def _change(self, bucket: Bucket) -> tuple[Changes, Change]:
        """What changes in a class, and what that reaches."""
        t, said = self.template, changes(bucket, self.template.leaves)
        moved = {n: Region.whole(n.shape) for n, by in self._varying.items() if by.intersection(bucket.moved)}
        changed = {t.leaves[k]: r for k, r in said.regions.items()} | moved
        return said, Change.of(t.order, t.results, self.kept, changed, said.follows)

    def _step(self, said: Changes, of: Change) -> Step:
        made = step_graph(of, self.kept, self._old)
        variables = in_order(said, self.template.variables)
        stand_for = {at: n for n, at in self._old.items()}
        run = planned(made.new, stand_for, (*variables, *made.starts.tables), self.template.device)
        return Step(made, Leaves(made.parts, variables, made.starts), run)

    def _execute(
        self, r: Run, inputs: Mapping[int, Storage], values: dict[Node, Storage], at: Sequence[int]
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
        numbers = [at[k] for k in r.values]
        storages, given = r.plan.with_results(memories, numbers)
        r.plan.start(given, numbers)
        for nodes, storage in zip(r.results, storages, strict=True):
            values[nodes[0]] = storage
            for n in nodes[1:]:
                values[n] = copied(storage)

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
        return self.values[n] if n in self.values else n.storage  # noqa: SIM401  (typed as there)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What is run for a class of changes."""

    graph: StepGraph
    leaves: Leaves
    run: Run
