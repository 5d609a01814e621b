"""Replay of what was recorded: gather memory, run the plan, hand out results and rebind state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

import numpy as np

from weft import settings
from weft.autograd.context import context, default_device
from weft.autograd.value import Value
from weft.core.args.handle import standing_for, wrap
from weft.core.compile.aliases import Argument, may_be_captured
from weft.core.compile.direct_call import DirectCall, Expected, direct_call
from weft.core.compile.instantiate import instantiate
from weft.core.compile.kept import Kept, KeptAt, Part
from weft.core.compile.marked import second_recording
from weft.core.compile.recording import Left, Rebind, Recording, Result, SetGrad, record
from weft.core.execute import edits, meshes, plans, run, tracing
from weft.core.execute.changes import restored_on_error
from weft.core.execute.ownership import (
    Taken,
    alone,
    exclusive,
    is_watched,
    rebind,
    sole_thread,
    take,
    to_be_written,
)
from weft.core.execute.writes import count_step
from weft.core.sharding.tensors import laid_out_like
from weft.core.views import views
from weft.errors import MemoryPlanError
from weft.ir import graph
from weft.ir.graph import Node, toposort
from weft.ir.ops import Op
from weft.ir.placement import is_mesh

if TYPE_CHECKING:
    from weft.backends.protocol import Device, Memory
    from weft.backends.storage import Storage
    from weft.core.execute.explanation import Explanation, Profile
    from weft.core.tensor.tensor import Tensor
    from weft.ir.placement import Layout
    from weft.scheduler.invariants import Split
    from weft.scheduler.mesh_plans import MeshPlan, SharedPlan
    from weft.scheduler.parts.plan import PartsPlan
    from weft.scheduler.plan import Plan
    from weft.scheduler.signature import Signature


R = TypeVar("R")

LAYOUTS_KEPT = 4
"""Plans of a compiled function on a mesh, one for each way in which its tensors lie; the oldest one goes first."""


def make_replay(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[Tensor],
    whole: bool,
    dynamic: bool | None,
) -> Replay | Left:
    """Run `fn` once on placeholders, and plan what it computes; unless it is to be compiled as a `whole`, it may ask
    for values, and is done then.

    There is no one plan where a gradient may be asked for through the results, where they depend on runtime variables
    that are bound later, or where they are computed in pieces from large files, or on several devices from files.
    """
    shared = may_be_captured(args, kwargs, tensors)
    r = record(fn, args, kwargs, tensors, whole)
    if isinstance(r, Left):
        return r
    positional = (
        not kwargs and len(args) == len(tensors) and all(a is t for a, t in zip(args, tensors, strict=True))
    )
    classes = [t.__class__ for t in tensors] if positional else None
    placeholders = {v.node for v in r.placeholders.values()}
    wanted = _wanted(r)
    needs_tape = any(
        v.needs_grad and not v.is_leaf and v not in r.differentiated and v.node not in placeholders
        for v in r.values
    )
    order = toposort(wanted)
    devices = {n.device for n in order if n.device is not None}
    unbound = plans.is_bound_later(list(wanted))
    pieces = any(s.device.info.kind == "disk" for s in r.specs.values()) and _needs_pieces(r, wanted, devices)
    replay: Replay | None = None
    meta = run.META in devices
    lazy = needs_tape or unbound or meta
    on_mesh = any(map(is_mesh, devices))
    many = len(devices) > 1 or any(n.op is Op.COPY for n in order) or on_mesh
    if lazy or pieces or many:
        kept = not (lazy or pieces)
        if kept and on_mesh and MeshReplay.serves(r, list(wanted)):
            replay = MeshReplay(r, classes, list(wanted))
        elif kept and not on_mesh and (parts := plans.over_devices(list(wanted))) is not None:
            replay = PartsReplay(r, classes, list(wanted), *parts)
        else:
            replay = LazyReplay(r, classes, realize=not lazy)
    else:
        device = plans.open_device(devices.pop() if devices else default_device())
        if dynamic is not False and not settings.deterministic():
            other = second_recording(fn, args, kwargs, tensors, everything=dynamic is True)
            if other is not None:
                _learn(other, device)
        replay = PlanReplay(r, classes, device, list(wanted), dynamic is not False)
    replay.arguments = {k: Argument(t) for k, t in enumerate(tensors)}
    replay.bind({k: replay.arguments[k] for k in shared})
    return replay


def _wanted(r: Recording) -> dict[Node, None]:
    """The nodes that a call has to compute, in order."""
    placeholders = {v.node for v in r.placeholders.values()}
    return dict.fromkeys(v.node for v in r.values if v.node not in placeholders and v.node.storage is None)


def _learn(r: Recording, device: Device) -> None:
    """Have the plan of a recording that is like this one but for its sizes be one for all sizes."""
    nodes = list(_wanted(r))
    found = _split(r, device, nodes)
    plans.learn(nodes if found is None else found.outputs, device, _replaced(r, device, nodes))


def _needs_pieces(r: Recording, wanted: Iterable[Node], devices: set[str]) -> bool:
    """True where what is to be computed has to be computed in pieces, from files larger than memory."""
    files = [r.placeholders[k].node for k, s in r.specs.items() if s.device.info.kind == "disk"]
    return plans.in_pieces(list(wanted), files, next(iter(devices), default_device()))


class Replay:
    """A recording that can be run again. `classes` are those of the arguments if all are positional tensors."""

    def __init__(self, r: Recording, classes: Sequence[type] | None) -> None:
        self.recording = r
        self.escapes = r.escapes
        # Where an argument is not used, nothing of it is checked but by the key.
        self._classes = tuple(classes) if classes and all(k in r.specs for k in range(r.arguments)) else None
        if r.arguments == 0 and classes is not None:
            self._classes = ()
        self._checks = [(k, s.device, s.shape, s.dtype, s.needs_grad) for k, s in r.specs.items()]
        self._captured = r.captured
        of_captured = range(r.arguments, r.arguments + len(r.captured))
        self._checks_of_others = [c for c in self._checks if c[0] not in of_captured]
        self._edit_of_captured = -1
        """The last edit when captured tensors were found to be as at the trace."""
        for t in r.captured:
            edits.capture(t)
        self._reads_grads = bool(r.had_grad or r.grads_read)
        self._modules = None if r.modules.are_none else r.modules
        now = context()
        self._records, self._casts, self._devices = now.grad, now.casts, now.devices[-1:]
        self._pinned = now.pinned
        mutated = any(isinstance(b.target, int) and b.target < r.arguments for b in r.rebinds)
        self._written = sorted(
            {b.target for b in r.rebinds if isinstance(b.target, int)} | {g.target for g in r.set_grads}
        )
        self._rebound = [b.target for b in r.rebinds if isinstance(b.target, int)]
        self._rebound_new = [b.target for b in r.rebinds if not isinstance(b.target, int)]
        self._distinct = r.arguments > 1 and (mutated or bool(r.set_grads))
        self.captured_ids = frozenset(map(id, r.captured))
        self.arguments: Mapping[int, ref[Any]] = {}
        """The arguments of the trace."""
        self.bound: Mapping[int, ref[Any]] = {}
        self.direct: DirectCall | None = None
        """The shortest way, where there is one; see direct_call.py."""

    def _number_values(self, nodes: Sequence[Node]) -> None:
        """Note where values come from: from what tensors stood for before the call, from fixed leaves, from what is
        computed for `nodes`; in this order. The tape is not needed from here on."""
        r = self.recording
        number = {v.node: k for k, v in r.placeholders.items()}
        self._passed = [number[v.node] for v in r.values if v.node in number]
        computed = set(nodes)
        self._fixed = [v.node for v in r.values if v.node not in number and v.node not in computed]
        places = [*(r.placeholders[k].node for k in self._passed), *self._fixed, *nodes]
        where = {n: i for i, n in enumerate(places)}
        self._source = [where[v.node] for v in r.values]
        leaves = [v.needs_grad and v.is_leaf for v in r.values]
        self._results = [(s, k, leaves[k]) for k, s in zip(r.results, r.same, strict=True)]
        r.values = [Value(v.node, v.needs_grad) for v in r.values]
        r.differentiated = set()

    def bind(self, arguments: Mapping[int, ref[Any]]) -> None:
        """Be for calls with just these tensors as the arguments of those numbers; see aliases.py."""
        self.bound = arguments

    @property
    def lost(self) -> bool:
        """True where a tensor is gone that has to be an argument, or an object that modules had: no call is to find it
        again."""
        return any(tensor() is None for tensor in self.bound.values()) or (
            self._modules is not None and self._modules.are_gone()
        )

    def modes(self) -> list[tuple[int, bool]]:
        """The modules that were called, by identity, and whether each was training."""
        return [(id(module), training) for module, training in self.recording.modules.modes]

    def is_for(self, tensors: Sequence[Any]) -> bool:
        """True where arguments are bound tensors where they have to be, and no others are captured."""
        for k, tensor in self.bound.items():
            if tensor() is not tensors[k]:
                return False
        return not self.captured_ids or self.captured_ids.isdisjoint(map(id, tensors))

    def accepts(self, args: tuple[Any, ...]) -> bool:
        """True for positional tensors as at the trace, in the same mode; `gather` checks the rest."""
        now = context()
        if tuple(map(type, args)) != self._classes or now.grad is not self._records:
            return False
        if now.casts is not self._casts or now.devices[-1:] != self._devices:
            return False
        if now.pinned is not self._pinned:
            return False
        if self._distinct and len(set(map(id, args))) != len(args):
            return False
        return now.trace is None or tracing.current() is None

    def gather(self, tensors: Sequence[Any]) -> list[Any] | None:
        """The numbered tensors for these arguments; None where one, or a module, is not as it was."""
        if not self.is_for(tensors) or (self._modules is not None and not self._modules.are_as_they_were()):
            return None
        return self.objects(tensors)

    def objects(self, tensors: Sequence[Any]) -> list[Any] | None:
        """As `gather`, for modules as they are."""
        objects = [*tensors, *self._captured]
        if self._reads_grads:
            r = self.recording
            for k, had in r.had_grad:
                if (objects[k].__dict__.get("_grad") is not None) is not had:
                    return None
            for k in r.grads_read:
                objects.append(objects[k].__dict__["_grad"])
        edit, checks = edits.tensors.latest(), self._checks
        if edit == self._edit_of_captured:
            checks = self._checks_of_others
        for k, device, shape, dtype, needs_grad in checks:
            v = objects[k].value
            s = v.node.storage
            if s is None:
                run.realize(
                    [objects[j].value.node for j, *_ in self._checks]
                )  # at once: they have much in common
                run.realize_value(v)
                s = v.node.storage
            if s.device is not device or s.shape != shape or s.dtype is not dtype:
                return None
            if v.needs_grad is not needs_grad:
                return None
        self._edit_of_captured = edit
        return objects

    def run(self, objects: list[Any]) -> Any:
        """Repeat the recording on the numbered tensors; the function's result."""
        raise NotImplementedError

    def _changed(self, objects: Sequence[Any]) -> frozenset[int]:
        """The tensors of a call that it rebinds or whose gradient it sets, by identity."""
        return frozenset([id(objects[k]) for k in self._written])

    def spread(self, objects: list[Any], results: Sequence[Any]) -> None:
        """Have what looks at the elements of rebound tensors see them, and results look at what they are views of."""
        self._spread_writes(objects)
        for result, k, steps in self.recording.looks:
            now = [views.with_tensors(s, lambda r: results[r.number], Result) for s in steps]
            views.compose_views(objects[k], results[result], now)

    def _spread_writes(self, objects: list[Any]) -> None:
        """Have what looks at the elements of rebound tensors see them."""
        changed = [objects[k] for k in self._rebound]
        changed += [t for b in self._rebound_new if (t := b()) is not None]
        seen = [t for t in changed if (look := t.look) is not None and not look.shared.are_only(t)]
        if seen:
            here = set(map(id, changed))
            for t in seen:
                views.written(t, here)
            if sole_thread():  # nobody goes through these meanwhile, or adds to them
                for t in seen:
                    t.look.shared.sweep()

    def profile(self, objects: list[Any]) -> Profile:
        """Run, and the time of each step."""
        raise NotImplementedError

    def explain(self, objects: list[Any]) -> Explanation:
        """Run, and the kernels of the run."""
        raise NotImplementedError


_NO_LOCK: nullcontext[None] = nullcontext()


class PlanReplay(Replay):
    """A recording as one plan for `nodes`."""

    def __init__(
        self,
        r: Recording,
        classes: Sequence[type] | None,
        device: Device,
        nodes: Sequence[Node],
        dynamic: bool,
    ) -> None:
        super().__init__(r, classes)
        self._device, self._device_full_name, self._nodes = device, device.info.name, nodes
        found = _split(r, device, nodes)
        self._kept = None if found is None else _kept(r, device, found.kept, dynamic)
        self._planned = nodes if found is None else found.outputs
        self._stand_ins = () if found is None else found.stand_ins
        self._plan_nodes(dynamic)
        self._number_values(nodes)
        self._heir: PlanReplay | None = None
        self._within: PlanReplay | None = None
        """The one that last ran within less memory than the plan takes."""
        self._is_within = False
        self._take_plan()

    def _plan_nodes(self, dynamic: bool) -> None:
        """Find the plan for what is computed at each call, and where its leaves come from."""
        r, device = self.recording, self._device
        self._plan, sig = _plan(r, device, self._nodes, self._planned, dynamic)
        self._sig = sig
        leaves = sig.leaves if sig is not None else ()
        number = {v.node: k for k, v in r.placeholders.items()}
        drawn = {n: k for k, (_, n, _) in enumerate(r.draws)}
        kept = {n: k for k, n in enumerate(self._stand_ins)}
        self._template: list[Any] = _fixed_memory(sig, device)
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
        self._pure = (
            len(outputs) == 1 and self._source == [0] and self._results == [(None, 0, False)]
            and not self._from_disk and not r.draws and not r.rebinds and not r.set_grads and not r.looks
            and r.build(["result"]) == "result"
        )  # fmt: skip

    def _count_turn(self) -> None:
        """One more run on a plan for all sizes: after so many, one of its own pays. Other threads may be running this
        one, so another replay takes its place."""
        self._turns -= 1
        if self._turns <= 0 or settings.deterministic():
            self._take_heir()

    def _take_heir(self, keeps: bool = True) -> None:
        self._turns = 0
        heir = copy(self)
        heir.get_own_plan(keeps)
        self._heir, self.direct = heir, heir.direct

    def get_own_plan(self, keeps: bool = True) -> None:
        """Run a plan of its own from here on, which `keeps` values or not; nobody else has it yet."""
        if not keeps:
            self._kept, self._planned, self._stand_ins = None, self._nodes, ()
        self._plan_nodes(dynamic=False)
        self._take_plan()
        self.bind(self.bound)

    def bind(self, arguments: Mapping[int, ref[Any]]) -> None:
        super().bind(arguments)
        self.direct = self._direct_call() if self._pure else None

    def _direct_call(self) -> DirectCall | None:
        """The shortest way for a function of tensors, whose one result is computed and which does nothing else."""
        if self._plan is None or self._classes is None or self._reads_grads or self._devices:
            return None
        expected = [Expected(*check) for check in self._checks]
        memories: list[Any] = self._template.copy()
        for i, k in self._from_tensor:
            memories[i] = k
        for i, k in self._from_kept:
            memories[i] = KeptAt(k)
        if not expected or any(m is None for m in memories):
            return None
        return direct_call(
            self._plan,
            self._classes,
            self._captured,
            self.bound,
            expected,
            memories,
            self._kept,
            self._modules,
            self._records,
            self._casts,
            self._pinned,
        )

    def run(self, objects: list[Any]) -> Any:
        if self._turns > 0:
            self._count_turn()
        if self._heir is not None:
            return self._heir.run(objects)
        kept = self._kept
        if kept is not None and kept.is_in_vain:
            self._take_heir(keeps=False)
            return self.run(objects)
        try:
            return self.run_exclusively(objects)
        except MemoryPlanError as refused:
            if kept is None and (self._plan is None or self._plan.shared is None):
                return self._in_memory(refused, lambda other: other.run_exclusively(objects))
        self._take_heir(keeps=False)  # whose plan needs no room for larger sizes, nor for what is kept
        return self.run(objects)

    def _in_memory(self, refused: MemoryPlanError, start: Callable[[PlanReplay], R]) -> R:
        """The result of `start` for a replay that runs a plan for the memory that is left, now that the one which keeps
        all values is refused."""
        if self._sig is None or self._is_within:
            raise refused

        def started(plan: Plan) -> R:
            if self._within is None or not self._within.runs(plan):
                self._within = copy(self)
                self._within.take(plan)
            return start(self._within)

        state = _replaced(self.recording, self._device, self._nodes)
        return plans.within_memory(self._sig, self._device, state, refused, started)

    def runs(self, plan: Plan) -> bool:
        """True where this is the plan that it runs."""
        return self._plan is plan

    def take(self, plan: Plan) -> None:
        """Run another plan of the same graph from here on; nobody else has it yet."""
        self._plan, self._is_within = plan, True
        self._take_plan()

    def run_exclusively(self, objects: list[Any]) -> Any:
        plan = self._plan
        if self._pure and plan is not None:
            memories = self._kept_and_fixed(objects)
            for i, k in self._from_tensor:
                memories[i] = objects[k].value.node.storage.memory
            (storage,) = plan.run(memories)
            return wrap(Value(graph.buffer(storage.shape, storage.dtype, self._device_full_name, storage)))
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
            return self._in_memory(refused, lambda other: other.profile(objects))
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
            return self._in_memory(refused, lambda other: other.explain(objects))
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
        memories = self._inputs(objects)
        executable, nodes, stays = plan.executable, list[Node](), dict[int, int]()
        taken: list[Taken] = []
        ran = broken = False
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
                            memories[i] = objects[t].value.node.storage.memory
                        else:
                            memories[i] = self._copy(objects[t].value.node.storage.memory)
                elif self._in_place:
                    stays = self._taken(objects, memories, taken)
                given = plan.external(memories)
                for k, memory in enumerate(given[len(given) - len(plan.outputs) :]):
                    if k in stays:
                        nodes.append(objects[stays[k]].value.node)
                    else:
                        s = plan.storage(k, memory)
                        nodes.append(graph.buffer(s.shape, s.dtype, self._device_full_name, s))
                env += nodes
                # free where this thread is alone, and taken and given back in less time than it takes to do neither
                with plan.updating if self._in_place else _NO_LOCK:
                    finished = executable.finished
                    try:
                        if times is None:
                            plan.start(given)
                        else:
                            times.extend(plan.start_timed(given))
                        ran = True
                    except BaseException:
                        ran = bool(stays) and executable.finished != finished
                        broken = bool(stays) and not ran and executable.started != finished
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
                self._give_up(objects, stays)
            raise

    def _taken(self, objects: list[Any], memories: list[Memory], taken: list[Taken]) -> dict[int, int]:
        """Fill in the memories that are updated in place, which are taken from other threads, or copies of those that
        somebody else refers to; the tensor by the output for those that are no copies."""
        read = take([objects[t] for _, _, t in self._in_place], taken)
        mine = {id(t.storage.memory) for t in taken}
        stays = {k: t for (k, _, t), memory in zip(self._in_place, read, strict=True) if id(memory) in mine}
        for (k, i, _), memory in zip(self._in_place, read, strict=True):
            memories[i] = memory if k in stays else self._copy(memory)
        return stays

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

    def _give_up(self, objects: list[Any], stays: Mapping[int, int]) -> None:
        """The device failed in the midst of updating tensors in place: nobody is to read what is there."""
        for t in stays.values():
            self._device.free(objects[t].value.node.storage.memory)

    def _copy(self, memory: Memory) -> Memory:
        """The same bytes in memory of their own: somebody else still needs the old value."""
        fresh = self._device.allocate(memory.nbytes)
        self._device.write(fresh, self._device.read(memory, memory.nbytes))
        return fresh


def _fixed_memory(sig: Signature | None, device: Device) -> list[Memory | None]:
    """The memory of leaves that are the same at every call; None for the others."""
    if sig is None:
        return []
    return [
        None if s is None else plans.memory_on(n, s, device)
        for n, s in zip(sig.leaves, sig.storages, strict=True)
    ]


def _plan(
    r: Recording, device: Device, nodes: Sequence[Node], planned: Sequence[Node], dynamic: bool
) -> tuple[Plan | None, Signature | None]:
    """The plan for `nodes` as they are computed at each call, `planned`, and the signature of these."""
    return plans.plan(planned, device, _replaced(r, device, nodes), dynamic) if nodes else (None, None)


def _replaced(r: Recording, device: Device, nodes: Sequence[Node]) -> dict[int, Node]:
    """The nodes, by number, that may take the memory of a leaf: a rebound tensor's new value that of the old one,
    unless the new value goes elsewhere too, or the old one does."""
    uses: dict[Node, int] = {}
    new_tensors = [k for k, same in zip(r.results, r.same, strict=True) if same is None]
    grads = [g.value for g in r.set_grads if g.value is not None]
    for k in (*(b.value for b in r.rebinds), *grads, *new_tensors):
        node = r.values[k].node
        uses[node] = uses.get(node, 0) + 1
    index = {n: k for k, n in enumerate(nodes)}
    state: dict[int, Node] = {}
    for b in r.rebinds:
        new = r.values[b.value].node
        if isinstance(b.target, int) and new in index and uses[new] == 1:
            old = r.placeholders[b.target].node
            if old not in uses and r.specs[b.target].device is device:
                state[index[new]] = old
    return state


def _split(r: Recording, device: Device, nodes: Sequence[Node]) -> Split | None:
    """The nodes in a part that is kept and the rest; None where nothing is kept. A call that makes gradients keeps
    nothing: a training step reads parameters that change before the next."""
    return None if r.set_grads or r.differentiated else plans.split(nodes, _staying(r, device), device)


def _staying(r: Recording, device: Device) -> set[Node]:
    """The placeholders of what the function reads without being given it, and does not write."""
    written = {b.target for b in r.rebinds}
    of = range(r.arguments, r.arguments + len(r.captured))
    return {
        v.node
        for k, v in r.placeholders.items()
        if k in of and k not in written and r.specs[k].device is device
    }


def _kept(r: Recording, device: Device, nodes: Sequence[Node], dynamic: bool) -> Kept:
    """The values of nodes that depend on what stays."""
    number = {v.node: k for k, v in r.placeholders.items()}
    parts: list[Part] = []
    for n in nodes:
        plan, sig = plans.plan([n], device, {}, dynamic)
        tensors = [(i, number[leaf]) for i, leaf in enumerate(sig.leaves) if leaf in number]
        parts.append(Part(plan, sig.key, tuple(_fixed_memory(sig, device)), tuple(tensors)))
    return Kept(parts)


class LazyReplay(Replay):
    """A recording whose results are computed lazily, for the reasons that `make_replay` states."""

    def __init__(self, r: Recording, classes: Sequence[type] | None, realize: bool) -> None:
        super().__init__(r, classes)
        self._realize = realize

    def run(self, objects: list[Any]) -> Any:
        with exclusive(self._changed(objects)):
            return self._run(objects)

    def _run(self, objects: list[Any]) -> Any:
        return self._computed(objects, self._values(objects))

    def _values(self, objects: list[Any]) -> list[Value]:
        """The recorded values over the tensors of a call."""
        r = self.recording
        known = {v: objects[k].value for k, v in r.placeholders.items()}
        drawn = {
            n: run.from_numpy(np.array(g.words(count), np.uint32), n.device or default_device())
            for g, n, count in r.draws
        }
        values = instantiate(r.values, known, drawn)
        for b in r.rebinds:
            if isinstance(b.target, int):
                values[b.value] = laid_out_like(objects[b.target].value.node, values[b.value])
        for g in r.set_grads:
            if g.value is not None:
                values[g.value] = laid_out_like(objects[g.target].value.node, values[g.value])
        return values

    def _computed(self, objects: list[Any], values: Sequence[Value]) -> Any:
        r = self.recording
        if self._realize:
            run.realize([v.node for v in values])
        results = [
            objects[s] if s is not None else standing_for(values[k])
            for k, s in zip(r.results, r.same, strict=True)
        ]  # fmt: skip
        return self._committed(
            objects,
            results,
            [values[b.value] for b in r.rebinds],
            [None if g.value is None else values[g.value] for g in r.set_grads],
        )

    def _committed(
        self,
        objects: list[Any],
        results: Sequence[Any],
        rebound: Sequence[Value],
        grads: Sequence[Value | None],
    ) -> Any:
        """The results; state is rebound and gradients are set, all of it or nothing."""
        r = self.recording
        pairs = zip(r.rebinds, rebound, strict=True)
        targets = [(t, value) for b, value in pairs if (t := target(b, objects)) is not None]
        seen = [m for t, _ in targets if t.look is not None for m in t.look.shared.others(t)]
        with restored_on_error([*(t for t, _ in targets), *seen], [objects[g.target] for g in r.set_grads]):
            for t, value in targets:
                t.rebind(value)
            self.spread(objects, results)
            for g, value in zip(r.set_grads, grads, strict=True):
                set_grad(g, objects, value)
        return r.build(results)

    def profile(self, objects: list[Any]) -> Profile:
        """Run; there is no plan of its own whose steps could be timed."""
        from weft.core.execute.explanation import Profile

        self.run(objects)
        return Profile(())

    def explain(self, objects: list[Any]) -> Explanation:
        """The kernels of the run, without times."""
        from weft.core.execute.explanation import explain_nodes

        with exclusive(self._changed(objects)):
            values = self._values(objects)
            found = explain_nodes([v.node for v in values])
            self._computed(objects, values)
        return found


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The leaves of a plan, by where they come from: memory that never changes, numbered tensors, draws on devices."""

    fixed: list[Any]
    tensors: list[tuple[int, int]]
    draws: list[tuple[int, int, str | None]]

    @classmethod
    def of(cls, r: Recording, sig: Signature) -> _Inputs:
        """The leaves of a plan for what was recorded."""
        number = {v.node: k for k, v in r.placeholders.items()}
        drawn = {n: k for k, (_, n, _) in enumerate(r.draws)}
        return cls(
            [None if s is None else s.memory for s in sig.storages],
            [(i, number[n]) for i, n in enumerate(sig.leaves) if n in number],
            [(i, drawn[n], n.device) for i, n in enumerate(sig.leaves) if n in drawn],
        )

    def memories(self, r: Recording, objects: Sequence[Any]) -> list[Any]:
        """The memory of each leaf for a call."""
        found = self.fixed.copy()
        for i, k in self.tensors:
            found[i] = objects[k].value.node.storage.memory
        for i, k, device in self.draws:
            generator, _, count = r.draws[k]
            words = np.array(generator.words(count), np.uint32)
            found[i] = plans.memory_of(words, plans.open_device(device or default_device()))
        return found


class PartsReplay(LazyReplay):
    """A recording over several devices as one plan of parts for `nodes`. State gets new memory at each call, so that
    a call which fails on one device has changed nothing."""

    def __init__(
        self,
        r: Recording,
        classes: Sequence[type] | None,
        nodes: Sequence[Node],
        plan: PartsPlan,
        sig: Signature,
    ) -> None:
        super().__init__(r, classes, realize=True)
        self._plan, self._inputs = plan, _Inputs.of(r, sig)
        self._number_values(nodes)

    def _run(self, objects: list[Any]) -> Any:
        storages = self._plan.run(self._inputs.memories(self.recording, objects), {})
        return self._stored(objects, storages, self._source)

    def _stored(self, objects: list[Any], storages: Sequence[Storage], source: Sequence[int]) -> Any:
        """The results, where a call has computed these values. `source`: the place of each recorded value."""
        r = self.recording
        env: list[Node] = [objects[k].value.node for k in self._passed]
        env += self._fixed
        env += [graph.buffer(s.shape, s.dtype, s.home, s) for s in storages]
        found = [env[i] for i in source]
        results = [
            objects[s] if s is not None else standing_for(Value(found[k], leaf))
            for s, k, leaf in self._results
        ]
        return self._committed(
            objects,
            results,
            [Value(found[b.value], b.needs_grad) for b in r.rebinds],
            [None if g.value is None else Value(found[g.value]) for g in r.set_grads],
        )

    def explain(self, objects: list[Any]) -> Explanation:
        """Run; the kernels of the plan's parts, without times."""
        from weft.core.execute.explanation import explain_nodes

        self.run(objects)
        return explain_nodes([v.node for v in self.recording.values])


@dataclass(frozen=True, slots=True)
class _Laid:
    """The plan of a recording for tensors that lie so: of the nodes `asked`. `source`: the place of each value, laid
    out as the tensor that stands for it afterwards, or whose gradient it is."""

    layouts: list[Layout | None]
    asked: list[Node]
    plan: MeshPlan | SharedPlan | None
    inputs: _Inputs
    source: list[int]


class MeshReplay(PartsReplay):
    """A recording on meshes: a plan of parts for each of the last ways in which the tensors that it uses lay."""

    def __init__(self, r: Recording, classes: Sequence[type] | None, nodes: Sequence[Node]) -> None:
        LazyReplay.__init__(self, r, classes, realize=True)
        self._number_values(nodes)
        self._known: list[_Laid] = []

    @staticmethod
    def serves(r: Recording, nodes: Sequence[Node]) -> bool:
        """True where plans can be kept: nothing is in files, and of tensors that get gradients the layout is known."""
        known = all(g.value is None or g.target in r.specs for g in r.set_grads)
        return known and not plans.in_files(nodes)

    def _laid(self, objects: list[Any]) -> _Laid:
        """The plan for tensors that lie as these."""
        layouts = [meshes.layout_of(objects[k].value.node) for k in self.recording.specs]
        for known in self._known:
            if known.layouts == layouts:
                return known
        made = self._planned(layouts)
        self._known = [made, *self._known[: LAYOUTS_KEPT - 1]]
        return made

    def _run(self, objects: list[Any]) -> Any:
        known = self._laid(objects)
        storages: list[Storage] = []
        if known.plan is not None:
            storages = known.plan.run(known.inputs.memories(self.recording, objects))
        return self._stored(objects, storages, known.source)

    def _planned(self, layouts: list[Layout | None]) -> _Laid:
        """The plan for these layouts of the tensors."""
        r = self.recording
        lies = {r.placeholders[k].node: l for k, l in zip(r.specs, layouts, strict=True) if l is not None}
        nodes = [v.node for v in r.values]
        for b in r.rebinds:
            if isinstance(b.target, int):
                nodes[b.value] = self._as_before(b.target, nodes[b.value], lies)
        for g in r.set_grads:
            if g.value is not None:
                nodes[g.value] = self._as_before(g.target, nodes[g.value], lies)
        places = [*(r.placeholders[k].node for k in self._passed), *self._fixed]
        known = set(places)
        asked = list(dict.fromkeys([n for n in nodes if n not in known]))
        where = {n: i for i, n in enumerate([*places, *asked])}
        found = plans.over_meshes(asked, lies) if asked else None
        plan, inputs = (None, _Inputs([], [], [])) if found is None else (found[0], _Inputs.of(r, found[1]))
        return _Laid(layouts, asked, plan, inputs, [where[n] for n in nodes])

    def _as_before(self, tensor: int, new: Node, lies: Mapping[Node, Layout]) -> Node:
        """A node that a tensor is to stand for, or its gradient: laid out as the tensor is."""
        old = self.recording.placeholders[tensor].node
        layout = lies.get(old)
        same = new.device in (None, old.device) and new.shape == old.shape
        if layout is None or not same or lies.get(new, meshes.layout_of(new)) == layout:
            return new
        return graph.apply(Op.COPY, (new,), graph.Target(old.device or "", layout))

    def explain(self, objects: list[Any]) -> Explanation:
        """Run; the kernels of the plan for tensors that lie as these, without times."""
        from weft.core.execute.explanation import explain_nodes

        self.run(objects)
        known = {v: objects[k].value for k, v in self.recording.placeholders.items()}
        asked = [Value(n) for n in self._laid(objects).asked]
        return explain_nodes([v.node for v in instantiate(asked, known, {})])


def target(b: Rebind, objects: Sequence[Any]) -> Any:
    """The tensor to rebind; None where it was made by the function and nobody holds it any more."""
    return objects[b.target] if isinstance(b.target, int) else b.target()


def set_grad(g: SetGrad, objects: Sequence[Any], value: Value | None) -> None:
    """Have `.grad` be another tensor of the call, a new tensor, or None."""
    grad = objects[g.tensor] if g.tensor is not None else None if value is None else wrap(value)
    objects[g.target].__dict__["_grad"] = grad
