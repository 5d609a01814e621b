"""Replay as one plan on one device: in place where nobody else sees the memory."""
# Tests: tests/core/compile/test_compile.py, tests/core/compile/test_compile_state.py, tests/core/compile/test_kept.py

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

import numpy as np

from weft import settings
from weft.autograd.value import Value
from weft.core.args.handle import standing_for, wrap
from weft.core.compile.direct_call import DirectCall, DirectSpec, Effects, Expected, Guards, direct_call
from weft.core.compile.draws import drawn_if_run
from weft.core.compile.kept import KeptAt
from weft.core.compile.recorded_plans import (
    fixed_memory,
    kept_values,
    plan_recorded,
    replaceable,
    split_recorded,
)
from weft.core.compile.recording import Recording
from weft.core.compile.replay import Given, Replay, set_grad, target
from weft.core.execute import plans
from weft.core.execute.ownership import (
    SPARE_BYTES,
    Taken,
    alone,
    exclusive,
    is_watched,
    rebind,
    sole_thread,
    spare_gradient,
    take,
    to_be_written,
)
from weft.core.execute.writes import count_step
from weft.errors import MemoryPlanError
from weft.ir import graph
from weft.ir.graph import Node

if TYPE_CHECKING:
    from weft.backends.protocol import Device, Memory
    from weft.backends.storage import Storage
    from weft.core.execute.explanation import Explanation, Profile
    from weft.scheduler.plan import Plan


R = TypeVar("R")

_NO_LOCK: nullcontext[None] = nullcontext()

DRAW_BYTES = 12
"""The bytes by which a run is told of random numbers: two words of a key, and the first counter."""

AT_REST = MemoryPlanError("the state of this function rests in a slower pool, and there is no room for it")
"""The refusal for which a plan that keeps all values is not tried."""


class PlanReplay(Replay):
    """A recording as one plan for `nodes`."""

    def __init__(
        self,
        r: Recording,
        given: Given,
        device: Device,
        nodes: Sequence[Node],
        dynamic: bool,
    ) -> None:
        super().__init__(r, given)
        self._device, self._device_full_name, self._nodes = device, device.info.name, nodes
        found = split_recorded(r, device, nodes)
        self._kept = None if found is None else kept_values(r, device, found.kept, dynamic)
        self._planned = nodes if found is None else found.outputs
        self._stand_ins = () if found is None else found.stand_ins
        self._plan_nodes(dynamic)
        self._number_values(nodes)
        self._heir: PlanReplay | None = None
        self._within: PlanReplay | None = None
        """The one that last ran within less memory than the plan takes."""
        self._is_within = False
        self._rests: frozenset[int] = frozenset()
        """The leaves that rest in a slower pool between runs of this one."""
        self._take_plan()

    def _plan_nodes(self, dynamic: bool) -> None:
        """Find the plan for what is computed at each call, and where its leaves come from."""
        r, device = self.recording, self._device
        self._plan, sig = plan_recorded(r, device, self._nodes, self._planned, dynamic)
        self._sig = sig
        leaves = sig.leaves if sig is not None else ()
        number = {v.node: k for k, v in r.placeholders.items()}
        drawn = {n: k for k, (_, n, _) in enumerate(r.draws)}
        kept = {n: k for k, n in enumerate(self._stand_ins)}
        self._template: list[Any] = fixed_memory(sig, device)
        self._from_tensor = [(i, number[n]) for i, n in enumerate(leaves) if n in number]
        # What is on disk is at home on no device: it is lent, or copied, at each call.
        self._from_disk = [(i, k) for i, k in self._from_tensor if r.specs[k].device.info.kind == "disk"]
        self._from_draw = [(i, drawn[n]) for i, n in enumerate(leaves) if n in drawn]
        self._from_kept = [(i, kept[n]) for i, n in enumerate(leaves) if n in kept]

    def _take_plan(self) -> None:
        """Note what the plan updates in place."""
        r, plan = self.recording, self._plan
        # Runs, less one, after which the graph gets a plan of its own; -1: it has, or is to have none.
        self._turns = plans.turns(plan) - 1 if plan is not None else -1
        # (output, leaf, tensor) for what is updated in place.
        owner = dict(self._from_tensor)
        outputs = plan.outputs if plan is not None else ()
        self._in_place = [
            (k, o.replaces, owner[o.replaces]) for k, o in enumerate(outputs) if o.replaces is not None
        ]
        # Integers may be indices, of which something may be known.
        self._numbers = {k for k, _, _ in self._in_place if not outputs[k].dtype.is_float}
        updated = {i for _, i, _ in self._in_place}
        self._only_read = [(i, k) for i, k in self._from_tensor if i not in updated]
        # Whose writes in place are counted by steps, and whose one by one: see writes.version.
        state = {t: r.arguments <= t < r.arguments + len(r.captured) for _, _, t in self._in_place}
        for t, captured in state.items():
            if captured:
                r.captured[t - r.arguments].__dict__["_stepped"] = True
        self._counted = [t for t, captured in state.items() if not captured]
        first = len(self._passed) + len(self._fixed)
        moved = {first + k for k, _, _ in self._in_place}
        self._rebinds = [b for b in r.rebinds if self._source[b.value] not in moved]
        self._rebinds_in_place = {
            self._source[b.value] - first: b for b in r.rebinds if self._source[b.value] in moved
        }
        # Those of which more changes than the elements: the others are rebound only where they are copied.
        self._regraded = {
            k: b
            for k, b in self._rebinds_in_place.items()
            if not isinstance(b.target, int) or r.specs[b.target].needs_grad is not b.needs_grad
        }
        # The outputs that become gradients, with the tensors whose gradients they become.
        self._grads = {
            self._source[g.value] - first: g.target
            for g in r.set_grads
            if g.value is not None and self._source[g.value] >= first
        }
        self._pure = (
            len(outputs) == 1 and self._source == [0] and self._results == [(None, 0, False)]
            and not self._from_disk and not r.draws and not r.rebinds and not r.set_grads and not r.looks
            and r.build(["result"]) == "result"
        )  # fmt: skip

    def _count_turn(self) -> None:
        """One more run on a plan for all sizes: after so many, one of its own pays. Other threads may be running this
        one, so another replay takes its place."""
        self._turns -= 1
        slow = self._plan is not None and plans.is_slow(self._plan)
        if slow or self._turns <= 0 or settings.deterministic():
            self._take_heir()

    def _take_heir(self, keeps: bool = True) -> None:
        self._turns = 0
        heir = copy(self)
        heir.get_own_plan(keeps)
        self._heir, self.shortest = heir, heir.shortest

    def get_own_plan(self, keeps: bool = True) -> None:
        """Run a plan of its own from here on, which `keeps` values or not; nobody else has it yet."""
        if not keeps:
            self._kept, self._planned, self._stand_ins = None, self._nodes, ()
        self._plan_nodes(dynamic=False)
        self._take_plan()
        self.bind(self.bound)

    def bind(self, arguments: Mapping[int, ref[Any]]) -> None:
        super().bind(arguments)
        self.shortest = self._direct_call()

    def _direct_call(self) -> DirectCall | None:
        """The shortest way: for what is on one device, without random numbers, and gives no tensor's own value on."""
        r, plan, n = self.recording, self._plan, self.recording.arguments
        if plan is None or self._turns > 0 or self._devices or self._from_disk or r.draws:
            return None
        effects = self._effects(plan)
        if effects is None:
            return None
        memories: list[Any] = self._template.copy()
        for i, k in self._from_tensor:
            memories[i] = k
        for i, k in self._from_kept:
            memories[i] = KeptAt(k)
        if any(m is None for m in memories):
            return None
        of_captured = range(n, n + len(self._captured))
        guards = Guards(self._records, self._casts, self._pinned, self._modules, r.had_grad, self._distinct)
        return direct_call(
            DirectSpec(
                plan,
                self._given.classes,
                self._captured,
                r.grads_read,
                self.bound,
                [Expected(*c) for c in self._checks_of_others],
                [Expected(*c) for c in self._checks if c[0] in of_captured],
                memories,
                self._kept,
                guards,
                effects,
                self.seen,
                self.objects,
                self.spread,
            )
        )

    def _effects(self, plan: Plan) -> Effects | None:
        """The results and changes by the plan's outputs; None where they are not one for one, in whole."""
        r = self.recording
        if self._regraded or any(leaf for same, _, leaf in self._results if same is None):
            return None
        first, used = len(self._passed) + len(self._fixed), [k for k, _, _ in self._in_place]

        def output(value: int) -> int:
            used.append(self._source[value] - first)
            return used[-1]

        results = [(same, -1 if same is not None else output(v)) for same, v, _ in self._results]
        rebinds = [(b, output(b.value)) for b in self._rebinds]
        grads = [(g, None if g.value is None else output(g.value)) for g in r.set_grads]
        if min(used, default=0) < 0 or len(set(used)) < len(used):
            return None
        in_place = {k: t for k, _, t in self._in_place}
        return Effects(results, r.build, in_place, self._counted, rebinds, grads, bool(r.looks), self._finish)

    def _finish(self, objects: list[Any], memories: Sequence[Memory | None]) -> None:
        """Have state stand for what a direct call computed, which was interrupted after that."""
        plan = self._plan
        assert plan is not None
        stays, nodes = {k: t for k, _, t in self._in_place}, list[Node]()
        for k, memory in enumerate(memories):
            if memory is None:
                nodes.append(objects[stays[k]].value.node)
            else:
                s = plan.storage(k, memory)
                nodes.append(graph.buffer(s.shape, s.dtype, self._device_full_name, s))
        env = [objects[k].value.node for k in self._passed]
        self._committed(objects, [*env, *self._fixed, *nodes], stays, nodes)

    def run(self, objects: list[Any]) -> Any:
        if self._turns > 0:
            self._count_turn()
        if self._heir is not None:
            return self._heir.run(objects)
        kept = self._kept
        if kept is not None and kept.is_in_vain:
            self._take_heir(keeps=False)
            return self.run(objects)
        if self._within is not None and self._within.finds_at_rest(
            objects
        ):  # and is not to bring it back in vain
            return self._in_memory(objects, AT_REST, lambda other: other.run_exclusively(objects))
        try:
            return self.run_exclusively(objects)
        except MemoryPlanError as refused:
            if kept is None and (self._plan is None or self._plan.shared is None):
                return self._in_memory(objects, refused, lambda other: other.run_exclusively(objects))
        self._take_heir(keeps=False)  # whose plan needs no room for larger sizes, nor for what is kept
        return self.run(objects)

    def _in_memory(self, objects: list[Any], refused: MemoryPlanError, start: Callable[[PlanReplay], R]) -> R:
        """The result of `start` for a replay that runs a plan for the memory that is left, now that the one which keeps
        all values is refused."""
        if self._sig is None or self._is_within:
            raise refused

        def started(plan: Plan, rests: frozenset[int]) -> R:
            if self._within is None or not self._within.runs(plan):
                self._within = copy(self)
                self._within.take(plan, rests)
            return start(self._within)

        state = replaceable(self.recording, self._device, self._nodes)

        def movable() -> tuple[dict[int, Storage], int]:
            mine = {i for _, i, t in self._in_place if alone(objects[t])}
            storages = {i: objects[t].value.node.storage for _, i, t in self._in_place}
            copied = [s.nbytes for i, s in storages.items() if i not in mine]
            drawn = [DRAW_BYTES] * len(self._from_draw)
            return {i: s for i, s in storages.items() if i in mine}, plans.room_for(
                [*copied, *drawn], self._device
            )

        return plans.within_memory(self._sig, self._device, state, refused, started, movable)

    def runs(self, plan: Plan) -> bool:
        """True where this is the plan that it runs."""
        return self._plan is plan

    def take(self, plan: Plan, rests: frozenset[int]) -> None:
        """Run another plan of the same graph from here on, between whose runs some leaves rest; nobody else has it
        yet."""
        self._plan, self._is_within, self._rests = plan, True, rests
        self._take_plan()

    def finds_at_rest(self, objects: list[Any]) -> bool:
        """True where state rests in a slower pool."""
        return any(
            i in self._rests and plans.rests(objects[t].value.node.storage) for _, i, t in self._in_place
        )

    def run_exclusively(self, objects: list[Any]) -> Any:
        plan = self._plan
        if self._pure and plan is not None:
            memories = self._kept_and_fixed(objects)
            for i, k in self._from_tensor:
                memories[i] = objects[k].value.node.storage.memory
            (storage,) = plan.run(memories)
            return wrap(Value(graph.buffer(storage.shape, storage.dtype, self._device_full_name, storage)))
        with drawn_if_run(self.recording.draws):
            if not self._written or sole_thread():
                return self._run(objects, None)
            with exclusive(self._changed(objects)):
                return self._run(objects, None, sole=False)

    def profile(self, objects: list[Any]) -> Profile:
        from weft.core.execute.explanation import Profile

        if self._heir is not None:
            return self._heir.profile(objects)
        times: list[int] = []
        try:
            with exclusive(self._changed(objects)):
                self._run(objects, times, sole=False)
        except MemoryPlanError as refused:
            return self._in_memory(objects, refused, lambda other: other.profile(objects))
        return Profile.of(() if self._plan is None else self._plan.steps, times, self._device)

    def explain(self, objects: list[Any]) -> Explanation:
        from weft.core.execute.explanation import Explanation, explained

        if self._heir is not None:
            return self._heir.explain(objects)
        times: list[int] = []
        start = time.perf_counter_ns()
        try:
            with exclusive(self._changed(objects)):
                self._run(objects, times, sole=False)
        except MemoryPlanError as refused:
            return self._in_memory(objects, refused, lambda other: other.explain(objects))
        ns = time.perf_counter_ns() - start
        if self._plan is None:
            return Explanation(())
        found = explained(self._planned, self._device, self._plan, times, ns)
        return found if self._kept is None else replace(found, kept=self._kept.lines())

    def _run(self, objects: list[Any], times: list[int] | None, sole: bool = True) -> Any:
        """Run the plan, and have state stand for what it computed: all of it, or, where that fails or is interrupted,
        nothing."""
        # Before anything is overwritten: who is named here is not `alone`.
        env: list[Node] = [objects[k].value.node for k in self._passed]
        env += self._fixed
        plan = self._plan
        if plan is None:
            return self._committed(objects, env, {}, ())
        if self._rests and sole:
            self._lay_to_rest(objects)
        memories = self._inputs(objects)
        executable, nodes, stays = plan.executable, list[Node](), dict[int, int]()
        taken: list[Taken] = []
        ran = broken = False
        spare = self._spare_gradients(objects) if sole else {}
        try:
            # Until all is given back nothing is waited for but the device: other steps may wait for what is taken.
            try:
                if sole:
                    watched = is_watched()
                    for k, i, t in self._in_place:
                        if alone(objects[t]):
                            stays[k] = t
                            if watched or k in self._numbers:
                                to_be_written(objects[t])
                            storage = objects[t].value.node.storage
                            memories[i] = plans.place_of(storage) if i in self._rests else storage.memory
                        else:
                            memories[i] = self._copy(
                                plans.place_of(objects[t].value.node.storage), i in self._rests
                            )
                elif self._in_place:
                    stays = self._taken(objects, memories, taken)
                given = plan.external(memories, places=spare)
                for k, memory in enumerate(given[len(given) - len(plan.outputs) :]):
                    if k in stays:
                        nodes.append(objects[stays[k]].value.node)
                    else:
                        s = plans.in_place(plan.storage(k, memory), memory)
                        nodes.append(graph.buffer(s.shape, s.dtype, self._device_full_name, s))
                env += nodes
                # free where this thread is alone, and taken and given back in less time than it takes to do neither
                with plan.updating if self._in_place or spare else _NO_LOCK:
                    finished = executable.finished
                    try:
                        if times is None:
                            plan.start(given)
                        else:
                            times.extend(plan.start_timed(given))
                        ran = True
                    except BaseException:
                        overwrites = bool(stays or spare)
                        ran = overwrites and executable.finished != finished
                        broken = overwrites and not ran and executable.started != finished
                        raise
            finally:
                for t in taken:
                    t.give_back()
            return self._committed(objects, env, stays, nodes)
        except BaseException:
            for t in taken:
                t.give_back()
            if ran:  # what is updated in place is: all else goes with it
                self._committed(objects, env, stays, nodes)
            elif broken:
                self._give_up(objects, stays, spare)
            raise

    def _spare_gradients(self, objects: list[Any]) -> dict[int, Memory]:
        """The memories of gradients that go with the call, for the new ones in their places, by output: the old ones
        are read by nothing, and both together would be as much as all parameters twice."""
        found: dict[int, Memory] = {}
        sizes = () if self._plan is None else self._plan.sizes or ()
        for k, t in self._grads.items() if sizes else ():
            nbytes, dtype, shape, replaces = sizes[k]
            if replaces is None and nbytes >= SPARE_BYTES:
                memory = spare_gradient(objects[t], self._device, dtype, shape)
                if memory is not None:
                    found[k] = memory
        return found

    def _taken(self, objects: list[Any], memories: list[Memory], taken: list[Taken]) -> dict[int, int]:
        """Fill in the memories that are updated in place, which are taken from other threads, or copies of those that
        somebody else refers to; the tensor by the output for those that are no copies."""
        read = take([objects[t] for _, _, t in self._in_place], taken)
        mine = {id(plans.place_of(t.storage)): t for t in taken}
        stays = {k: t for (k, _, t), memory in zip(self._in_place, read, strict=True) if id(memory) in mine}
        owned = {i: mine[id(m)] for (_, i, _), m in zip(self._in_place, read, strict=True) if id(m) in mine}
        going = [t for i, t in owned.items() if i in self._rests and not plans.rests(t.storage)]
        for t, storage in zip(going, plans.laid_to_rest([t.storage for t in going]), strict=True):
            t.storage = storage
        del read[:]
        for k, i, t in self._in_place:
            if k in stays:
                storage = owned[i].storage
                memories[i] = plans.place_of(storage) if i in self._rests else storage.memory
            else:
                memories[i] = self._copy(plans.place_of(objects[t].value.node.storage), i in self._rests)
        return stays

    def _lay_to_rest(self, objects: list[Any]) -> None:
        """Have the state that only its tensors see rest where the plan has it rest, asked where no other thread
        runs."""
        going = [
            objects[t].value.node
            for _, i, t in self._in_place
            if i in self._rests and not plans.rests(objects[t].value.node.storage) and alone(objects[t])
        ]
        for node, storage in zip(going, plans.laid_to_rest([n.storage for n in going]), strict=True):
            node.storage = storage

    def _inputs(self, objects: list[Any]) -> list[Memory]:
        """The memory of the leaves, but for those that are updated in place."""
        memories = self._kept_and_fixed(objects)
        for i, k in self._only_read:
            memories[i] = objects[k].value.node.storage.memory
        for i, k in self._from_disk:
            node = objects[k].value.node
            memories[i] = plans.memory_on(node, node.storage, self._device)
        for i, k in self._from_draw:
            generator, _, count = self.recording.draws[k]
            words = np.array(generator.words(count), np.uint32)
            memories[i] = plans.memory_of(words, self._device)
        return memories

    def _kept_and_fixed(self, objects: list[Any]) -> list[Memory]:
        """The memory of the leaves that stand for what is kept, and of those that never change."""
        memories = self._template.copy()
        if self._kept is not None:
            found = self._kept.memories(objects)
            for i, k in self._from_kept:
                memories[i] = found[k]
        return memories

    def _committed(
        self, objects: list[Any], env: Sequence[Node], stays: Mapping[int, int], nodes: Sequence[Node]
    ) -> Any:
        """The results; state that did not stay where it was is rebound. May be done again, where it did not end."""
        r = self.recording
        if self._from_disk:
            plans.check_unchanged([objects[k].value.node for _, k in self._from_disk])
        if stays:
            count_step()
            for t in self._counted:
                own = objects[t].__dict__
                own["_writes"] = own.get("_writes", 0) + 1
        rebinds = self._regraded if len(stays) == len(self._in_place) else self._rebinds_in_place
        for k, b in rebinds.items():
            t = target(b, objects)
            if k not in stays or t.value.needs_grad is not b.needs_grad:
                rebind(t, nodes[k], b.needs_grad)
        found = [env[i] for i in self._source]
        results = [
            objects[s] if s is not None else standing_for(Value(found[k], leaf))
            for s, k, leaf in self._results
        ]
        for b in self._rebinds:
            t = target(b, objects)
            if t is not None:
                rebind(t, found[b.value], b.needs_grad)
        self.spread(objects, results)
        for g in r.set_grads:
            set_grad(g, objects, None if g.value is None else Value(found[g.value]))
        return r.build(results)

    def _give_up(self, objects: list[Any], stays: Mapping[int, int], spare: Mapping[int, Memory]) -> None:
        """The device failed in the midst of updating tensors in place: nobody is to read what is there."""
        for t in stays.values():
            storage = objects[t].value.node.storage
            if plans.rests(storage):
                storage.lose()
            else:
                self._device.free(storage.memory)
        for memory in spare.values():
            self._device.free(memory)

    def _copy(self, memory: Memory, rests: bool = False) -> Memory:
        """The same bytes in memory of their own, or in a cell where they are to rest: somebody else still needs the old
        value."""
        data = plans.bytes_at(memory, self._device)
        if rests:
            return plans.new_cell(self._device, data)
        return plans.new_memory(self._device, data)
