"""Forms of a session: the function for arguments of one structure, with its graph, plans and last values."""
# Tests: tests/sessions/test_session.py

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.autograd.value import Value
from weft.core.args.handle import standing_for
from weft.errors import MemoryPlanError
from weft.ir import graph
from weft.ir.graph import Node
from weft.ir.index import Int, Var
from weft.ir.places import asked, check
from weft.ir.regions.region import NOTHING, Region
from weft.lazy_dataclass import dataclass
from weft.scheduler.keeping import nbytes
from weft.sessions import plan_file
from weft.sessions.buckets import Bucket, Changes, Placed, changes, in_order, one_element, placed
from weft.sessions.execution import Execution
from weft.sessions.inputs import Array, EditedError, Inputs
from weft.sessions.keeper import EVERYTHING, Choice, FormMemory, Keeper, name_of
from weft.sessions.keeping import MAX_CLASSES
from weft.sessions.plans import Run, planned
from weft.sessions.pool import MemoryPool
from weft.sessions.recorded import Template
from weft.sessions.sharing import Ladder
from weft.sessions.stale import Leaves, Stale
from weft.sessions.step import Change, StepGraph, leaf_for, step_graph, varying
from weft.sessions.transitions import TransitionLog
from weft.sessions.trial import PAST_RUNS, Past, is_faster, least_gain

if TYPE_CHECKING:
    from weft.backends.storage import Storage
    from weft.core.tensor.tensor import Tensor


Lost: TypeAlias = "frozenset[Node]"
"""The kept nodes that are not there: a validity class, as one object that is compared by identity first."""

ALL_THERE: Lost = frozenset()

State: TypeAlias = "tuple[Bucket, Lost]"
"""A class of changes in a validity class."""


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
        self._asked = asked(template.results)
        self._choice = Choice(self.keeper.stored)
        self._numbers: dict[Var, int] = {}
        self._stale = Stale()
        """The values that no result needed when they were reached."""
        self._whole: Run | None = None
        self._too_large: set[State] = set()
        """Steps that take more memory than there is."""
        self.steps: dict[State, Step] = {}
        self._execution = Execution(template, self.inputs, self.keeper, self._old)
        self._past: deque[Past] = deque(maxlen=PAST_RUNS)
        """The last runs in which something changed."""
        self._lost: Lost = ALL_THERE
        """The kept nodes whose places the scratch of runs has taken."""
        self._lost_after: Lost = ALL_THERE
        """Kept nodes that the run that computes everything takes the places of."""
        self._known_lost: dict[Lost, Lost] = {ALL_THERE: ALL_THERE}
        """The validity classes so far, by what is lost."""
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
        if self._asked:
            check({v.name: x for v, x in numbers.items()}, self._asked)
        objects = [*tensors, *self.template.captured]
        moved = [v for v, x in numbers.items() if self._numbers.get(v) != x]
        if self.values is not None and not moved and self.inputs.are_last(objects):
            self.counts.same += 1
            return self._outputs({})
        values = self.values
        self.values = None  # until all is done: what fails or is interrupted leaves nothing
        try:
            return self._run(values, objects, arrays, said, numbers, moved)
        except EditedError:  # by another thread, or by a handler of a signal
            self.inputs.forget()
            return self._run(None, objects, arrays, {}, numbers, moved)

    def _run(
        self,
        values: dict[Node, Storage] | None,
        objects: Sequence[Tensor],
        arrays: Mapping[int, Array],
        said: Mapping[int, Region],
        numbers: Mapping[Var, int],
        moved: Sequence[Var],
    ) -> Any:
        """The results, from the last values of what is kept."""
        now, changed = self.inputs.look(objects, arrays, said)
        steps = None
        if values is not None:
            steps = placed(changed, self.template.leaves, numbers, moved)
        values, reach = self._computed_from(values, steps, now, numbers)
        self.inputs.keep(now)
        self.values, self._numbers = values, dict(numbers)
        if steps is None or steps:
            self._past.append(Past(steps, self._numbers))
        return self._outputs(reach)

    def _computed_from(
        self,
        values: dict[Node, Storage] | None,
        steps: Sequence[Placed] | None,
        inputs: dict[int, Storage],
        numbers: Mapping[Var, int],
    ) -> tuple[dict[Node, Storage], dict[Node, Region]]:
        """The values kept after changes, None of them for everything, and the regions of results that they reach."""
        reach = None
        if values is not None and steps is not None:
            reach = self._computed(steps, inputs, numbers, values)
        if values is None or reach is None:
            values = dict["Node", "Storage"]()
            reach = self._computed_all(inputs, numbers, values)
        return values, reach

    @property
    def is_planned(self) -> bool:
        """True where there is a plan for everything."""
        return self._whole is not None

    def _computed_all(
        self, inputs: dict[int, Storage], numbers: Mapping[Var, int], values: dict[Node, Storage]
    ) -> dict[Node, Region]:
        """Compute everything; the regions of results, which are all of them."""
        if self._whole is None:
            self.choose()
        if not self.keeper.enter(self):
            self.choose()
            self.keeper.enter(self)
        assert self._whole is not None
        self._execution.moved()
        self._execution.run(self._whole, inputs, values, [numbers[v] for v in self.template.variables])
        self.counts.whole += 1
        self.keeper.log.record(EVERYTHING)
        self._stale, self._lost = Stale(), self._lost_after
        return {n: Region.whole(n.shape) for n in self._results}

    def _computed(
        self,
        changes: Sequence[Placed],
        inputs: dict[int, Storage],
        numbers: Mapping[Var, int],
        values: dict[Node, Storage],
    ) -> dict[Node, Region] | None:
        """Compute what changes of inputs reach, one after the other; the regions of results that they do. None where
        more is to be computed than they reach: what was not needed before is now."""
        found: dict[Node, Region] = {}
        changes = [self._in_class(c, numbers) for c in changes]
        if not self._are_planned(changes):
            return None
        if not self.keeper.enter(self):
            self._whole = None
            return None
        for change in changes:
            step = self.steps[change.bucket, self._lost]
            at = (*change.starts, *numbers.values())
            stale = self._stale.after(step.leaves, at)
            if stale is None:
                return None
            env = step.leaves.env(at)
            for n in step.invalidates:
                del values[n]
            self._execution.run(step.run, inputs, values, (*at, *step.graph.starts.made(env)))
            self._stale, self._lost = stale, step.lost
            self.counts.steps += 1
            self.keeper.log.record(step.name)
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

    def _change(self, bucket: Bucket, kept: Sequence[Node] = ()) -> tuple[Changes, Change]:
        """The changes of a class, and what they reach."""
        t, (said, changed) = self.template, self._changed(bucket)
        return said, Change.of(t.order, t.results, kept or self.keeper.kept, changed, said.follows)

    def _changed(self, bucket: Bucket) -> tuple[Changes, dict[Node, Region]]:
        """The changes of a class, and the regions of nodes that are changed: inputs, and what moves with numbers."""
        leaves = self.template.leaves
        said = changes(bucket, leaves)
        moved = {n: Region.whole(n.shape) for n, by in self._varying.items() if by.intersection(bucket.moved)}
        return said, {leaves[k]: r for k, r in said.regions.items()} | moved

    def _step(self, bucket: Bucket, lost: Lost) -> Step | None:
        """The step for a class of changes, where these nodes are lost already; None where it has no room."""
        keeper, gone = self.keeper, ALL_THERE
        while True:
            there = [n for n in keeper.kept if n not in lost and n not in gone]
            restored = keeper.restored(
                name_of(bucket), lambda: self._reaches(self._buckets(bucket)), there, lost
            )
            restored -= gone
            kept = [n for n in keeper.kept if n in restored or (n not in lost and n not in gone)]
            said, of = self._change(bucket, kept)
            made = step_graph(of, kept, self._old, restored)
            variables = in_order(said, self.template.variables)
            stand_for = {at: n for n, at in self._old.items()}
            moving = (*variables, *made.starts.tables)
            run = planned(made.new, stand_for, moving, self.template.device, self._number)
            reached = keeper.reached(run)
            if reached is not None and reached <= gone:
                after = self._class(frozenset(keeper.places).difference(kept))
                if after is None:
                    return None
                leaves = Leaves(made.parts, variables, made.starts)
                return Step(
                    name_of(bucket), made, leaves, keeper.within(run).with_memories_kept(), gone - lost, after
                )
            if gone == keeper.places.keys():
                return None
            gone = gone | (frozenset(keeper.places) if reached is None else reached)

    def _class(self, lost: Lost) -> Lost | None:
        """The validity class in which these are lost; None where there would be too many."""
        if lost not in self._known_lost and len(self._known_lost) >= MAX_CLASSES:
            return None
        return self._known_lost.setdefault(lost, lost)

    def _buckets(self, *more: Bucket) -> list[Bucket]:
        return list(dict.fromkeys([*(bucket for bucket, _ in self.steps), *more]))

    def _everything(self) -> tuple[Run, Lost]:
        """The run that computes everything, and what it cannot leave. MemoryPlanError where it has no room."""
        keeper, t, gone = self.keeper, self.template, ALL_THERE
        while True:
            todo = {n: n for n in keeper.kept if n not in gone}
            run = planned(todo, {}, t.variables, t.device, self._number)
            reached = keeper.reached(run)
            if reached is not None and reached <= gone:
                return keeper.within(run), gone
            if gone == keeper.places.keys():
                raise MemoryPlanError("session: what computes everything takes more than there is")
            gone = gone | (frozenset(keeper.places) if reached is None else reached)

    # what is kept ---------------------------------------------------------------------------------------------------

    def choose(self, seconds: float = 0.0, chosen: bool = False) -> None:
        """Choose what to keep, in the limit of the pool, and plan the run that computes everything. Without a limit,
        that is everything, unless it is to be `chosen`: then past runs are done again with both, in `seconds`, and
        what was there stays where it is faster."""
        buckets = self._buckets()
        if self.keeper.pool is None and not chosen:
            self.keep(Choice(self.keeper.stored))
            return
        last = (self._choice, self.keeper.answer) if self.is_planned else None
        before = last if chosen else None
        half = seconds / 2  # the rest is for the trial
        try:
            with self._mode():
                reaches = self._reaches(buckets)
                self.keep(self.keeper.solved(reaches, half, lambda choice: self._measured(choice, buckets)))
        except BaseException as error:
            self._whole = None  # of what was tried last
            if last is not None and isinstance(error, MemoryPlanError):
                self.keep(last[0])
                self.keeper.answer = last[1]
            raise
        now, answer = self._choice, self.keeper.answer
        if before is None or (before[0].nodes, before[0].arena) == (now.nodes, now.arena):
            return
        size, previous = (sum(map(nbytes, c.nodes)) for c in (now, before[0]))
        gain = least_gain(size, previous, self.keeper.pool is not None)
        if is_faster(self._timed, lambda: self.keep(before[0]), list(self._past), half, gain):
            self.keep(now)
            self.keeper.answer = answer
        else:
            self.release()
            self.keeper.answer = before[1]

    def _timed(self, past: Sequence[Past], seconds: float) -> list[int]:
        """The nanoseconds of past runs, done again on the last inputs with what is kept now, until time is up, which
        begins after the first: that computes everything. None of them where there are no such inputs any more."""
        counts, log, end = self.counts, self.keeper.log, math.inf
        self.counts, self.keeper.log = Counts(), TransitionLog()
        found: list[int] = []
        values: dict[Node, Storage] | None = None
        try:
            inputs = self.inputs.last_values()
            for run in past:
                plans = len(self.steps)
                values, ns = self._run_timed(values, run, inputs)
                if len(self.steps) != plans:  # what was planned meanwhile takes no time later
                    values, ns = self._run_timed(values, run, inputs)
                found.append(ns)
                end = min(end, time.monotonic() + seconds)
                if time.monotonic() > end:
                    break
        except (EditedError, MemoryPlanError):
            pass
        finally:
            self.counts, self.keeper.log = counts, log
        return found

    def _run_timed(
        self, values: dict[Node, Storage] | None, run: Past, inputs: dict[int, Storage]
    ) -> tuple[dict[Node, Storage], int]:
        """The values kept after a run is done again, and its nanoseconds."""
        start = time.perf_counter_ns()
        values, _ = self._computed_from(values, run.steps, inputs, run.numbers)
        self.template.device.synchronize()
        return values, time.perf_counter_ns() - start

    def keep(self, choice: Choice) -> None:
        """Keep these nodes from here on, with a plan for everything; the next run is one. MemoryPlanError where nodes
        and scratch share an arena that this plan has no room in."""
        self.release()
        self._whole = None  # until all is done
        self.keeper.keep(choice)
        self._choice, self.steps, self._known_lost = choice, {}, {ALL_THERE: ALL_THERE}
        self._execution.clear()
        with self._mode():
            self._whole, lost = self._everything()
        self._lost_after = self._known_lost.setdefault(lost, lost)

    def release(self) -> None:
        """Let go of all that is kept: the next run computes everything."""
        self.values = None
        self._execution.moved()
        self.keeper.release(self)

    def ladder(self, runs: int, turns: int) -> Ladder:
        """The choices of what to keep, for so many runs, of which some came after another form's."""
        with self._mode():
            problem = self.keeper.problem(self._reaches(self._buckets()))
            return self.keeper.ladder(problem, self.memory().scratch, runs, turns)

    def keep_within(self, nbytes: int) -> None:
        """Let go of all that is kept, and choose anew at the next run, within so many bytes."""
        self.release()
        self.keeper.part, self._whole = nbytes, None

    def memory(self) -> FormMemory:
        """The bytes that the form takes while it runs, by the plans that there are."""
        return self.keeper.memory(
            [r for r in (self._whole, *(s.run for s in self.steps.values())) if r is not None]
        )

    def _measured(self, choice: Choice, buckets: Sequence[Bucket]) -> int:
        self.keep(choice)
        if choice.arena is None:
            self._plan([(b, ALL_THERE) for b in buckets])
        return self.memory().total

    def _plan(self, states: Iterable[State]) -> None:
        """Plan steps, each in the validity class that it comes in."""
        with self._mode():
            for bucket, lost in states:
                step = self._step(bucket, lost)
                if step is None:
                    self._too_large.add((bucket, lost))
                else:
                    self.steps[bucket, lost] = step

    def _are_planned(self, changes: Sequence[Placed]) -> bool:
        """Plan the steps that are new; False where all is to be computed instead: what is kept had to be chosen anew
        for their scratch, or no choice leaves room for it."""
        lost, new = self._lost, list[State]()
        for change in changes:
            state = change.bucket, lost
            if state not in self.steps and state not in self._too_large:
                self._plan([state])
                new.append(state)
            if state in self._too_large:
                for unchecked in new:  # against the limit: they are planned again when they come alone
                    self.steps.pop(unchecked, None)
                return False
            lost = self.steps[state].lost
        if not new:
            return True
        self.keeper.planned = self.memory()
        if self.keeper.fits:
            return True
        try:
            self.choose()
        except MemoryPlanError:
            self._too_large.update(new)
        return False

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what is kept, and how often which bucket came, to a plan file."""
        with self._mode():
            plan_file.save(self.keeper.saved(self._reaches(self._buckets())), path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Keep what a plan file says. FileError where there is none, FileFormatError for one of something else."""
        with self._mode():
            saved = plan_file.load(path, self.keeper.graph, self.keeper.device)
            self.keep(Choice(self.keeper.adopted(saved, os.fspath(path))))
            self.keeper.planned = self.memory()
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


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The graph and the plan for a class of changes, by its name, in a validity class; what it `invalidates`, and what
    is lost afterwards."""

    name: str
    graph: StepGraph
    leaves: Leaves
    run: Run
    invalidates: Lost
    lost: Lost
