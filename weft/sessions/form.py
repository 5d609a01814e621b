"""Forms of a session: the function for arguments of one structure, with its graph, plans and last values."""
# Tests: tests/sessions/test_session.py

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from weft.autograd.value import Value
from weft.backends.storage import Storage
from weft.core.args.handle import standing_for
from weft.errors import MemoryPlanError
from weft.ir import graph
from weft.ir.graph import Node
from weft.ir.index import Int, Var
from weft.ir.regions.region import NOTHING, Region
from weft.sessions import plan_file
from weft.sessions.buckets import Bucket, Changes, Placed, changes, in_order, one_element, placed
from weft.sessions.inputs import Array, Inputs
from weft.sessions.keeper import EVERYTHING, FormMemory, Keeper, name_of
from weft.sessions.plans import Bound, Run, planned
from weft.sessions.pool import MemoryPool
from weft.sessions.recorded import Template
from weft.sessions.stale import Leaves, Stale
from weft.sessions.state import copied, own_memory
from weft.sessions.step import Change, StepGraph, leaf_for, step_graph, varying

if TYPE_CHECKING:
    from weft.backends.protocol import Memory
    from weft.core.tensor.tensor import Tensor


@dataclass(slots=True)
class Counts:
    """The runs of a session, by what they had to compute."""

    whole: int = 0
    steps: int = 0
    same: int = 0


class Form:
    """A function for arguments of one structure."""

    def __init__(
        self,
        template: Template,
        mode: Callable[[], AbstractContextManager[object]],
        pool: MemoryPool | None = None,
    ) -> None:
        self.template, self.counts, self._mode = template, Counts(), mode
        with mode():
            self.keeper = Keeper(template, pool)
        self.inputs = Inputs(template)
        self._old = {n: leaf_for(n, template.device.info.name) for n in self.keeper.stored}
        self._number = {n: k for k, n in template.leaves.items()}
        self._results = frozenset(template.results)
        self._varying = varying(template.order)
        self._numbers: dict[Var, int] = {}
        self._stale = Stale()
        """The values that no result needed when they were reached."""
        self._whole: Run | None = None
        self._too_large: set[Bucket] = set()
        """Classes of changes whose steps take more memory than there is."""
        self.steps: dict[Bucket, Step] = {}
        self._bound: dict[Run, Bound] = {}
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
        with self._mode():
            reach = None
            if values is not None:
                steps = placed(changed, self.template.leaves, numbers, moved)
                reach = self._computed(steps, now, numbers, values)
            if reach is None:
                values = dict["Node", "Storage"]()
                reach = self._computed_all(now, numbers, values)
        self.inputs.keep(now)
        self.values, self._numbers = values, dict(numbers)
        return self._outputs(reach)

    @property
    def is_planned(self) -> bool:
        """True where there is a plan for everything."""
        return self._whole is not None

    def _computed_all(
        self, inputs: Mapping[int, Storage], numbers: Mapping[Var, int], values: dict[Node, Storage]
    ) -> dict[Node, Region]:
        """Compute everything; the regions of results, which are all of them."""
        if self._whole is None:
            self.choose()
        assert self._whole is not None
        self.keeper.enter(self)
        self._execute(self._whole, inputs, values, [numbers[v] for v in self.template.variables])
        self.counts.whole += 1
        self.keeper.log.record(EVERYTHING)
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
        changes = [self._in_class(c, numbers) for c in changes]
        if not self._are_planned(changes):
            return None
        self.keeper.enter(self)
        for change in changes:
            step = self.steps[change.bucket]
            at = (*change.starts, *numbers.values())
            stale = self._stale.after(step.leaves, at)
            if stale is None:
                return None
            env = step.leaves.env(at)
            self._execute(step.run, inputs, values, (*at, *step.graph.starts.made(env)))
            self._stale = stale
            self.counts.steps += 1
            self.keeper.log.record(name_of(change.bucket))
            for n in self._results:
                found[n] = found.get(n, NOTHING) | step.graph.reached.at(n, env)
        self.counts.same += not changes
        return found

    def _in_class(self, change: Placed, numbers: Mapping[Var, int]) -> Placed:
        """The change in a class of starts among which boxes are mostly as large as this one's."""
        known = self._classes.setdefault(change.bucket, [])
        bucket = next((b for b in known if b.holds(change.starts)), None)
        if bucket is None:
            with self._mode():
                said, of = self._change(change.bucket)
            variables = in_order(said, self.template.variables)
            at = {v.name: x for v, x in zip(variables, (*change.starts, *numbers.values()), strict=True)}
            bounds = of.bounds_at(at)
            within = tuple([bounds.get(v.name, (v.lo, v.hi)) for v in said.starts])
            bucket = change.bucket._replace(within=within)
            known.append(bucket)
        return Placed(bucket, change.starts)

    def _change(self, bucket: Bucket) -> tuple[Changes, Change]:
        """The changes of a class, and what they reach."""
        t, (said, changed) = self.template, self._changed(bucket)
        return said, Change.of(t.order, t.results, self.keeper.kept, changed, said.follows)

    def _changed(self, bucket: Bucket) -> tuple[Changes, dict[Node, Region]]:
        """The changes of a class, and the regions of nodes that are changed: inputs, and what moves with numbers."""
        leaves = self.template.leaves
        said = changes(bucket, leaves)
        moved = {n: Region.whole(n.shape) for n, by in self._varying.items() if by.intersection(bucket.moved)}
        return said, {leaves[k]: r for k, r in said.regions.items()} | moved

    def _step(self, bucket: Bucket) -> Step:
        said, of = self._change(bucket)
        made = step_graph(of, self.keeper.kept, self._old)
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
        b = self._bound.get(r)
        if b is None:
            b = self._bound[r] = self._bind(r)
        memories: list[Memory] = list(b.template)
        for i, k in b.inputs:
            memories[i] = inputs[k].memory
        for i, n in b.kept:
            memories[i] = values[n].memory
        for i, n in b.given:
            memories[i] = own_memory(values, n)
        numbers = [at[k] for k in r.values]
        memories = r.plan.external(memories, numbers, self.keeper.places_of(r, values))
        r.plan.start(memories, numbers)
        device = self.template.device
        for k, nodes in b.made:
            n = nodes[0]
            values[n] = self.keeper.placed(n, Storage(device, memories[k], n.dtype, _sized(n)))
            for other in nodes[1:]:
                values[other] = copied(values[n], self.keeper.place(other))

    def _bind(self, r: Run) -> Bound:
        """The memories of a run, by where they are found."""
        places, results = self.keeper.places, self._results
        template = list(r.template)
        inputs: list[tuple[int, int]] = []
        kept: list[tuple[int, Node]] = []
        given: list[tuple[int, Node]] = []
        for i, n in r.sources:
            if n in self._number:
                inputs.append((i, self._number[n]))
            elif n in self._old:
                own = i in r.replaced and n in results and n not in places
                (given if own else kept).append((i, n))  # others have results only
            else:
                template[i] = self.template.draws[n]
        assert r.plan is not None
        first = len(r.plan.feed or template)
        made = tuple([
            (first + k, nodes)
            for k, (nodes, o) in enumerate(zip(r.results, r.plan.outputs, strict=True))
            if o.replaces is None or len(nodes) > 1 or not results.isdisjoint(nodes)
        ])  # fmt: skip
        return Bound(tuple(template), tuple(inputs), tuple(kept), tuple(given), made)

    # what is kept ---------------------------------------------------------------------------------------------------

    def choose(self, seconds: float = 0.0, chosen: bool = False) -> None:
        """Choose what to keep, in the limit of the pool, and plan the run that computes everything. Without a limit,
        that is everything, unless it is to be `chosen`."""
        buckets = list(self.steps)
        if self.keeper.pool is None and not chosen:
            self.keep(self.keeper.stored)
            return
        with self._mode():
            reaches = self._reaches(buckets)
            self.keep(self.keeper.solved(reaches, seconds, lambda kept: self._measured(kept, buckets)))

    def keep(self, kept: Sequence[Node]) -> None:
        """Keep these nodes from here on, with a plan for everything; the next run is one."""
        self.release()
        self.keeper.keep(kept)
        self.steps, self._bound = {}, {}
        with self._mode():
            self._whole = planned({n: n for n in kept}, {}, self.template.variables, self.template.device)

    def release(self) -> None:
        """Let go of all that is kept: the next run computes everything."""
        self.values = None
        self.keeper.release(self)

    def memory(self) -> FormMemory:
        """The bytes that the form takes while it runs, by the plans that there are."""
        return self.keeper.memory(
            [r for r in (self._whole, *(s.run for s in self.steps.values())) if r is not None]
        )

    def _measured(self, kept: Sequence[Node], buckets: Sequence[Bucket]) -> int:
        self.keep(kept)
        self.steps = {b: self._step(b) for b in buckets}
        return self.memory().total

    def _are_planned(self, changes: Sequence[Placed]) -> bool:
        """Plan the steps that are new; False where all is to be computed instead: what is kept had to be chosen anew
        for their scratch, or no choice leaves room for it."""
        buckets = {c.bucket for c in changes}
        if not self._too_large.isdisjoint(buckets):
            return False
        new = buckets - self.steps.keys()
        if not new:
            return True
        with self._mode():
            for bucket in new:
                self.steps[bucket] = self._step(bucket)
        self.keeper.planned = self.memory()
        if self.keeper.fits:
            return True
        kept = self.keeper.kept
        try:
            self.choose()
        except MemoryPlanError:
            self._too_large |= new
            self.keep(kept)
        return False

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what is kept, and how often which bucket came, to a plan file."""
        with self._mode():
            plan_file.save(self.keeper.saved(self._reaches(self.steps)), path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Keep what a plan file says. FileError where there is none, FileFormatError for one of something else."""
        with self._mode():
            saved = plan_file.load(path, self.keeper.graph, self.keeper.device)
            self.keep(self.keeper.adopted(saved, os.fspath(path)))
            if not self.keeper.fits:
                self.choose()

    def _reaches(self, buckets: Iterable[Bucket]) -> dict[str, dict[Node, Region]]:
        return {name_of(b): self._reach(b) for b in buckets} or self._guessed()

    def _reach(self, bucket: Bucket) -> dict[Node, Region]:
        """The regions that a class of changes reaches, as far as results need them."""
        said, changed = self._changed(bucket)
        return self._parts(changed, said.follows)

    def _parts(self, changed: Mapping[Node, Region], follows: Mapping[Var, Int]) -> dict[Node, Region]:
        """The regions that a step computes where all is kept that kernels store."""
        t, stored = self.template, self.keeper.stored
        return Change.of(t.order, t.results, stored, changed, follows).computed(stored)

    def _guessed(self) -> dict[str, dict[Node, Region]]:
        """The regions that one element of each argument reaches, while nothing is known of changes."""
        t = self.template
        some = {k: leaf for k, leaf in t.leaves.items() if k < t.arguments}
        return {f"guess {k}": self._parts({n: Region((one_element(n.shape),))}, {}) for k, n in some.items()}

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


def _sized(n: Node) -> tuple[int, ...]:
    """The shape of a node: sessions have no other than known ones."""
    return cast("tuple[int, ...]", n.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The graph and the plan for a class of changes."""

    graph: StepGraph
    leaves: Leaves
    run: Run
