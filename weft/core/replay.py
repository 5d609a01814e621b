"""One trace of a compiled function, and how a call repeats it: gather memory, run the plan, hand out and rebind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from sys import getrefcount
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from weft.autograd.value import Value
from weft.autograd.value import _mode as recording  # pyright: ignore[reportPrivateUsage]  # read on every call
from weft.backends.registry import open_device
from weft.backends.storage import Storage, from_numpy
from weft.core import differentiate, run, tracing
from weft.core.handle import Handle, wrap
from weft.core.structure import Build, builder
from weft.core.tensor import Tensor
from weft.ir import graph
from weft.ir.dtypes import DType, uint32
from weft.ir.graph import Node, toposort
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.backends.protocol import Device, Memory
    from weft.core.explain import Explanation, Profile
    from weft.core.random import Generator
    from weft.scheduler.plan import Plan


@dataclass(frozen=True, slots=True)
class Spec:
    """What a tensor was when the function was traced."""

    device: Device
    shape: tuple[Any, ...]
    dtype: DType
    needs_grad: bool


@dataclass(frozen=True, slots=True)
class Rebind:
    """After a call, tensor `target` (a number, or one that the function made) stands for value number `value`."""

    target: int | ref[Any]
    value: int
    needs_grad: bool


@dataclass(frozen=True, slots=True)
class SetGrad:
    """After a call, `.grad` of tensor number `target` is a new tensor over value `value`, tensor `tensor`, or None."""

    target: int
    value: int | None = None
    tensor: int | None = None


@dataclass(slots=True, eq=False)
class Recording:
    """What a trace says, by numbers.

    Tensors are numbered: arguments, then `captured`, then the `.grad` of those in `grads_read`. Values are numbered
    too; `values` are the traced ones. `placeholders[k]` is what tensor k stood for, where the function used it.
    """

    arguments: int
    captured: list[Tensor]
    grads_read: list[int]
    had_grad: list[tuple[int, bool]]
    placeholders: dict[int, Value]
    specs: dict[int, Spec]
    values: list[Value]
    rebinds: list[Rebind]
    set_grads: list[SetGrad]
    results: list[int]
    same: list[int | None]
    draws: list[tuple[Generator, Node, int]]
    build: Build
    escapes: bool
    differentiated: set[Value]
    modes: list[tuple[tracing.Modal, bool]]


def make_replay(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[Tensor]
) -> Replay:
    """Run `fn` once on placeholders, and plan what it computes."""
    return _planned(_record(fn, args, kwargs, tensors), args, kwargs, tensors)


class _Numbers:
    """The numbers of tensors and traced values, given as they come up."""

    def __init__(self, tensors: Sequence[Tensor], trace: tracing.Trace) -> None:
        self.arguments = len(tensors)
        self.captured: list[Tensor] = []
        self.grads_read: list[int] = []
        self.values: list[Value] = []
        self._tensors = {id(t): k for k, t in enumerate(tensors)}
        self._values: dict[int, int] = {}
        read = [g for g in trace.grads.values() if g.read and g.before is not None and id(g.before) in trace.shadows]
        old = {id(g.before) for g in read}
        for s in trace.shadows.values():
            if id(s.handle) not in old:
                self._capture(s.handle)
        for g in trace.grads.values():
            self._capture(g.handle)
        for g in read:
            self._tensors[id(g.before)] = self.arguments + len(self.captured) + len(self.grads_read)
            self.grads_read.append(self._tensors[id(g.handle)])

    def _capture(self, t: Tensor) -> None:
        if id(t) not in self._tensors:
            self._tensors[id(t)] = self.arguments + len(self.captured)
            self.captured.append(t)

    def tensor(self, t: Tensor) -> int | None:
        """The number of a tensor from before the trace; None for one that the function made."""
        return self._tensors.get(id(t))

    def of(self, t: Tensor) -> int:
        """The number of a tensor from before the trace."""
        return self._tensors[id(t)]

    def value(self, v: Value) -> int:
        """The number of a value that a call is to produce."""
        if id(v) not in self._values:
            self._values[id(v)] = len(self.values)
            self.values.append(v)
        return self._values[id(v)]


def _record(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[Tensor]
) -> Recording:
    with tracing.tracing(Tensor) as trace:
        result = fn(*args, **kwargs)
        builder(result, _look_at)
        # Inside, so that the values are the traced ones. Tensors must not stay in local names: see the end.
        numbers = _Numbers(tensors, trace)
        rebinds = _rebinds(trace, numbers)
        set_grads = _set_grads(trace, numbers)
        had_grad = [(numbers.of(g.handle), g.before is not None) for g in trace.grads.values() if g.read]
        results, same, build = _results(result, numbers)
        trace.grads.clear()
        del result
        # A tensor that the function made and that lives on: somebody else holds it.
        if _alive(trace):
            gc.collect()  # it may be part of a cycle that nobody holds
        for t in _alive(trace):
            rebinds.append(Rebind(ref(t), numbers.value(t.value), t.value.needs_grad))
    shadows = trace.shadows.values()
    return Recording(
        arguments=numbers.arguments,
        captured=numbers.captured,
        grads_read=numbers.grads_read,
        had_grad=had_grad,
        placeholders={numbers.of(s.handle): s.placeholder for s in shadows},
        specs={numbers.of(s.handle): _spec(s) for s in shadows},
        values=numbers.values,
        rebinds=rebinds,
        set_grads=set_grads,
        results=results,
        same=same,
        draws=[(d.generator, d.placeholder, d.count) for d in trace.draws.values()],
        build=build,
        escapes=any(not isinstance(b.target, int) for b in rebinds),
        differentiated=trace.differentiated,
        modes=list(trace.modes.values()),
    )


def _look_at(t: Tensor) -> None:
    """Have a tensor that the function returns without having used it be part of the trace."""
    t.value  # noqa: B018  (reading is what counts)


def _spec(s: tracing.Shadow) -> Spec:
    node = s.placeholder.node
    return Spec(s.before.node.storage.device, node.shape, node.dtype, s.before.needs_grad)


def _rebinds(trace: tracing.Trace, numbers: _Numbers) -> list[Rebind]:
    return [
        Rebind(numbers.of(s.handle), numbers.value(s.now), s.now.needs_grad)
        for s in trace.shadows.values()
        if s.now is not s.placeholder
    ]


def _set_grads(trace: tracing.Trace, numbers: _Numbers) -> list[SetGrad]:
    out: list[SetGrad] = []
    for g in trace.grads.values():
        if g.now is g.before and (g.read or g.now is not None):
            continue
        target = numbers.of(g.handle)
        if g.now is None:
            out.append(SetGrad(target))
        else:
            known = numbers.tensor(g.now)
            out.append(SetGrad(target, None if known is not None else numbers.value(g.now.value), known))
    return out


def _results(result: Any, numbers: _Numbers) -> tuple[list[int], list[int | None], Build]:
    """The values of the tensors in `result`, which of them are tensors from before, and how to make `result` again."""
    found: dict[int, int] = {}
    results: list[int] = []
    same: list[int | None] = []

    def number(t: Tensor) -> int:
        if id(t) not in found:
            found[id(t)] = len(results)
            results.append(numbers.value(t.value))
            same.append(numbers.tensor(t))
        return found[id(t)]

    return results, same, builder(result, number)


def _alive(trace: tracing.Trace) -> list[Tensor]:
    return [t for r in list(trace.created.values()) if (t := r()) is not None]


def _planned(r: Recording, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[Tensor]) -> Replay:
    """One plan for the recording, or none where a gradient may be asked for through it or it spans devices."""
    placeholder = {id(v.node): k for k, v in r.placeholders.items()}
    compute: dict[int, Node] = {}
    for v in r.values:
        if id(v.node) not in placeholder and v.node.storage is None:
            compute[id(v.node)] = v.node
    nodes = list(compute.values())
    order = toposort(nodes)
    devices = {n.device for n in order if n.device is not None}
    needs_tape = any(
        v.needs_grad and not v.is_leaf and v not in r.differentiated and id(v.node) not in placeholder for v in r.values
    )
    simple = not kwargs and len(args) == len(tensors) and all(a is t for a, t in zip(args, tensors, strict=True))
    if needs_tape or len(devices) > 1 or any(n.op is Op.COPY for n in order):
        return LazyReplay(r, simple, [type(t) for t in tensors], realize=not needs_tape)
    device = open_device(devices.pop() if devices else run.default_device())
    from weft.scheduler.realize import plan_for
    from weft.scheduler.signature import signature

    # A rebound tensor's new value may take the memory of the old one, unless the new value goes elsewhere too.
    uses: dict[int, int] = {}
    new_tensors = [k for k, same in zip(r.results, r.same, strict=True) if same is None]
    for k in (*(b.value for b in r.rebinds), *(g.value for g in r.set_grads if g.value is not None), *new_tensors):
        uses[id(r.values[k].node)] = uses.get(id(r.values[k].node), 0) + 1
    index = {id(n): k for k, n in enumerate(nodes)}
    state: dict[int, Node] = {}
    for b in r.rebinds:
        new = r.values[b.value].node
        if isinstance(b.target, int) and id(new) in index and uses[id(new)] == 1:
            old = r.placeholders[b.target].node
            if id(old) not in uses and r.specs[b.target].device is device:
                state[index[id(new)]] = old
    plan, leaves = None, ()
    if nodes:
        sig = signature(nodes)
        plan = plan_for(nodes, sig, device, state)
        leaves = sig.leaves
    return PlanReplay(r, simple, [type(t) for t in tensors], device, plan, nodes, leaves)


class Replay:
    """A recording that can be run again."""

    def __init__(self, r: Recording, simple: bool, classes: Sequence[type]) -> None:
        self.recording = r
        self.escapes = r.escapes
        self._simple = tuple(classes) if simple else None
        self._checks = [(k, s.device, s.shape, s.dtype, s.needs_grad) for k, s in r.specs.items()]
        self._records = recording.grad
        self._device_name = run.chosen_device()
        mutated = any(isinstance(b.target, int) and b.target < r.arguments for b in r.rebinds)
        self._distinct = r.arguments > 1 and (mutated or bool(r.set_grads))
        unchecked = [(k, t) for k, t in enumerate(classes) if k not in r.specs]
        self._ignored = bool(unchecked)

    def gather(self, tensors: Sequence[Any]) -> list[Any] | None:
        """The numbered tensors for these arguments; None where what was captured has changed its shape or kind."""
        r = self.recording
        objects = [*tensors, *r.captured]
        for module, training in r.modes:
            if module.training is not training:
                return None
        for k, had in r.had_grad:
            if (objects[k].__dict__.get("_grad") is not None) is not had:
                return None
        for k in r.grads_read:
            objects.append(objects[k].__dict__.get("_grad"))
        for k, device, shape, dtype, needs_grad in self._checks:
            v = objects[k].value
            s = v.node.storage
            if s is None:
                run.realize_value(v)
                s = v.node.storage
            if s.device is not device or s.shape != shape or s.dtype is not dtype or v.needs_grad is not needs_grad:
                return None
        return objects

    def accepts(self, args: tuple[Any, ...]) -> bool:
        """Whether these are positional tensors as at the trace, in the same mode; `gather` checks the rest."""
        classes = self._simple
        if classes is None or len(args) != len(classes) or self._ignored or recording.grad is not self._records:
            return False
        for a, c in zip(args, classes, strict=True):
            if a.__class__ is not c:
                return False
        if self._distinct and len(set(map(id, args))) != len(args):
            return False
        return run.chosen_device() == self._device_name and tracing.current() is None

    def run(self, objects: list[Any]) -> Any:
        """Repeat the recording on the numbered tensors; the function's result."""
        raise NotImplementedError

    def explain(self) -> Explanation:
        """The kernels of a run."""
        from weft.core.explain import explain_nodes

        return explain_nodes([v.node for v in self.recording.values])


class PlanReplay(Replay):
    """A recording as one plan."""

    def __init__(
        self,
        r: Recording,
        simple: bool,
        classes: Sequence[type],
        device: Device,
        plan: Plan | None,
        nodes: Sequence[Node],
        leaves: Sequence[Node],
    ) -> None:
        super().__init__(r, simple, classes)
        self._device, self._plan = device, plan
        self._name = device.info.name
        self._lock = threading.RLock()
        number = {id(v.node): k for k, v in r.placeholders.items()}
        drawn = {id(n): k for k, (_, n, _) in enumerate(r.draws)}
        # Where the memory of each leaf comes from: (tensor, -), (-, draw), or fixed.
        self._template: list[Any] = [None if n.storage is None else n.storage.memory for n in leaves]
        self._keep = leaves
        self._from_tensor = [(i, number[id(n)]) for i, n in enumerate(leaves) if id(n) in number]
        self._from_draw = [(i, drawn[id(n)]) for i, n in enumerate(leaves) if id(n) in drawn]
        replaced = {} if plan is None else {k: o.replaces for k, o in enumerate(plan.outputs) if o.replaces is not None}
        owner = dict(self._from_tensor)
        self._in_place = [(k, i, owner[i]) for k, i in replaced.items()]  # output, leaf, tensor
        index = {id(n): k for k, n in enumerate(nodes)}
        # A value is output k (k >= 0), the value that tensor k had before (-1 - k), or fixed.
        self._source: list[int | Node] = []
        for v in r.values:
            n = v.node
            self._source.append(index[id(n)] if id(n) in index else -1 - number[id(n)] if id(n) in number else n)
        in_place = {k for k, _, _ in self._in_place}
        self._rebinds = [b for b in r.rebinds if self._source[b.value] not in in_place]
        self._rebinds_in_place = {self._source[b.value]: b for b in r.rebinds if self._source[b.value] in in_place}
        self._results = [(None if s is None else s, k, r.values[k].needs_grad and r.values[k].is_leaf)
                         for k, s in zip(r.results, r.same, strict=True)]
        self._only = (
            len(r.results) == 1 and r.same[0] is None and not r.rebinds and not r.set_grads and not r.draws
            and isinstance(self._source[r.results[0]], int) and self._source[r.results[0]] == 0
            and not self._results[0][2] and r.build(["x"]) == "x"
        )  # fmt: skip
        # The names that the traced graph kept alive are not needed any more.
        r.values = [Value(v.node, v.needs_grad) for v in r.values]
        r.differentiated = set()

    def run(self, objects: list[Any]) -> Any:
        plan = self._plan
        if self._only and plan is not None:  # a pure function of one result
            memories = self._template.copy()
            for i, k in self._from_tensor:
                memories[i] = objects[k].value.node.storage.memory
            (storage,) = plan.run(memories)
            return wrap(Value(graph.buffer(storage.shape, storage.dtype, self._name, storage)))
        with self._lock:
            return self._run(objects, None)

    def _run(self, objects: list[Any], times: list[int] | None) -> Any:
        r, plan, source = self.recording, self._plan, self._source
        before = {s: objects[-1 - s].value.node for s in source if s.__class__ is int and s < 0}  # pyright: ignore
        nodes: list[Node] = []
        if plan is not None:
            memories = self._template.copy()
            shared = {i for _, i, k in self._in_place if not alone(objects[k])}
            for i, k in self._from_tensor:
                memories[i] = objects[k].value.node.storage.memory
            for i in shared:
                memories[i] = self._copy(memories[i])
            for i, k in self._from_draw:
                generator, _, count = r.draws[k]
                memories[i] = from_numpy(np.array(generator.words(count), np.uint32), uint32, self._device).memory
            if times is None:
                storages = plan.run(memories)
            else:
                storages, spent = plan.profile(memories)
                times.extend(spent)
            unmoved = {k: t for k, i, t in self._in_place if i not in shared}
            for k, s in enumerate(storages):
                if k in unmoved:
                    nodes.append(objects[unmoved[k]].value.node)
                else:
                    nodes.append(graph.buffer(s.shape, s.dtype, self._name, s))
            for k, b in self._rebinds_in_place.items():
                if k not in unmoved or b.needs_grad is not r.specs[b.target].needs_grad:  # pyright: ignore[reportArgumentType]
                    rebind(objects[b.target], nodes[k], b.needs_grad)  # pyright: ignore
        found = [nodes[s] if s.__class__ is int and s >= 0 else before[s] if s.__class__ is int else s for s in source]  # pyright: ignore
        results = [
            objects[s] if s is not None else wrap(Value(found[k], leaf)) for s, k, leaf in self._results  # pyright: ignore
        ]
        for b in self._rebinds:
            t = objects[b.target] if isinstance(b.target, int) else b.target()
            if t is not None:
                rebind(t, found[b.value], b.needs_grad)  # pyright: ignore[reportArgumentType]
        for g in r.set_grads:
            grad = objects[g.tensor] if g.tensor is not None else None if g.value is None else wrap(Value(found[g.value]))  # pyright: ignore
            objects[g.target].__dict__["_grad"] = grad
        return r.build(results)

    def _copy(self, memory: Memory) -> Memory:
        """The same bytes in memory of their own: somebody else still needs the old value."""
        fresh = self._device.allocate(memory.nbytes)
        self._device.write(fresh, self._device.read(memory, memory.nbytes))
        return fresh

    def profile(self, objects: list[Any]) -> Profile:
        """Run, and the time of each step."""
        from weft.core.explain import Profile

        times: list[int] = []
        with self._lock:
            self._run(objects, times)
        return Profile.of(() if self._plan is None else self._plan.steps, times, self._device.info)


class LazyReplay(Replay):
    """A recording whose results are computed lazily: gradients may be asked for through them, or it spans devices."""

    def __init__(self, r: Recording, simple: bool, classes: Sequence[type], realize: bool) -> None:
        super().__init__(r, simple, classes)
        self._realize = realize

    def run(self, objects: list[Any]) -> Any:
        r = self.recording
        known = {v: objects[k].value for k, v in r.placeholders.items()}
        fresh = {
            n: run.from_numpy(np.array(g.words(count), np.uint32), run.default_device()) for g, n, count in r.draws
        }
        values = instantiate(r.values, known, fresh)
        if self._realize:
            run.realize([v.node for v in values])
        results = [
            objects[s] if s is not None else wrap(values[k]) for k, s in zip(r.results, r.same, strict=True)
        ]
        for b in r.rebinds:
            t = objects[b.target] if isinstance(b.target, int) else b.target()
            if t is not None:
                t.rebind(values[b.value])
        for g in r.set_grads:
            objects[g.target].__dict__["_grad"] = (
                objects[g.tensor] if g.tensor is not None else None if g.value is None else wrap(values[g.value])
            )
        return r.build(results)

    def profile(self, objects: list[Any]) -> Profile:
        """Run; there is no plan of its own whose steps could be timed."""
        from weft.core.explain import Profile

        self.run(objects)
        return Profile.of((), (), open_device(run.default_device()).info)


def instantiate(
    values: Sequence[Value], known: Mapping[Value, Value], nodes: Mapping[Node, Node]
) -> list[Value]:
    """Traced values over other tensors: graph and tape with placeholders replaced, as if the ops were applied anew."""
    order: list[Value] = []
    seen: set[Value] = set()
    stack: list[tuple[Value, bool]] = [(v, False) for v in reversed(values)]
    while stack:
        v, done = stack.pop()
        if done:
            order.append(v)
        elif v not in seen:
            seen.add(v)
            stack.append((v, True))
            if v.needs_grad and v not in known:
                stack.extend((x, False) for x in v.inputs)
    moved: dict[Node, Node] = dict(nodes)
    moved.update({old.node: new.node for old, new in known.items()})
    for n in toposort([v.node for v in order]):
        if n not in moved:
            moved[n] = n if not n.inputs or n.storage is not None else graph.intern(
                n.op, tuple([moved[i] for i in n.inputs]), n.attrs, n.shape, n.dtype, n.device
            )
    made = dict(known)
    for v in order:
        if v not in made:
            inputs = tuple([made[x] for x in v.inputs]) if v.needs_grad else ()
            made[v] = Value(moved[v.node], v.needs_grad, v.op if v.needs_grad else None, v.attrs, inputs)
    return [made[v] for v in values]


def rebind(t: Tensor, node: Node, needs_grad: bool) -> None:
    """`t` stands for `node`. Where only `t` holds its value, that value is kept, and with it who watches for gradients."""
    v = t.value
    if getrefcount(v) == _ALONE[0] and v.needs_grad is needs_grad and v.is_leaf:
        v.node = node
        return
    del v
    t.value = Value(node, needs_grad)
    if needs_grad:
        differentiate.watch(t)


def _holders(t: Any) -> tuple[int, int, int, int]:
    """How many references there are to what `t` stands for, its node, its storage and its memory."""
    v = t.value
    n = v.node
    s = n.storage
    return getrefcount(v), getrefcount(n), getrefcount(s), getrefcount(s.memory)


class _Probe:
    nbytes = 0


def _fresh_holders() -> tuple[int, int, int, int]:
    """What `_holders` gives for a tensor that nobody shares: the interpreter's own references differ by version."""
    t = Handle.__new__(Handle)
    device: Any = None
    probe: Any = _Probe()
    storage = Storage(device, probe, uint32, ())
    del probe
    t.value = Value(graph.buffer((), uint32, "", storage))
    del storage
    return _holders(t)


_ALONE = _fresh_holders()


def alone(t: Any) -> bool:
    """Whether only `t` can see the memory it stands for, so that writing over it changes nothing for anybody else."""
    return _holders(t) == _ALONE
