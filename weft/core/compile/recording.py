"""A function's effects on tensors in a traced run, by numbers: what it reads, computes, returns, rebinds."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ref

from weft.autograd.value import Value
from weft.core.args.handle import Handle
from weft.core.args.structure import Build, builder
from weft.core.execute import run, tracing, watched
from weft.core.execute.modules import Modules
from weft.core.tensor.tensor import Tensor
from weft.core.views import views
from weft.core.views.views import ViewStep
from weft.ir.dtypes import DType
from weft.ir.graph import Node
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.backends.protocol import Device
    from weft.core.functions.random import Generator


@dataclass(frozen=True, slots=True)
class Spec:
    """The state of a tensor when the function was traced."""

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
    watches: bool = True
    """False where it stands for the leaf of another tensor, in whose `.grad` gradients are added up."""


@dataclass(frozen=True, slots=True)
class SetGrad:
    """After a call, `.grad` of tensor number `target` is a new tensor over value `value`, tensor `tensor`, or None."""

    target: int
    value: int | None = None
    tensor: int | None = None


@dataclass(slots=True, eq=False)
class Recording:
    """The contents of a trace, by numbers.

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
    looks: list[tuple[int, int, tuple[ViewStep, ...]]]
    """Results that are views: the number of the result, that of a tensor from before, and the steps from it."""
    draws: list[tuple[Generator, Node, int]]
    build: Build
    escapes: bool
    differentiated: set[Value]
    modules: Modules
    """The modules, as it read them."""


class _Numbers:
    """The numbers of tensors and traced values, given as they come up."""

    def __init__(self, tensors: Sequence[Tensor], trace: tracing.Trace) -> None:
        self.arguments = len(tensors)
        self.captured: list[Tensor] = []
        self.grads_read: list[int] = []
        self.values: list[Value] = []
        self._tensors = {id(t): k for k, t in enumerate(tensors)}
        self._values: dict[int, int] = {}
        read = [
            g
            for g in trace.grads.values()
            if g.read and g.before is not None and id(g.before) in trace.shadows
        ]
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


@dataclass(frozen=True, slots=True)
class Left:
    """A call whose trace was left: its result, where values were asked for, and in which modes the modules were."""

    result: Any
    breaks: tuple[tracing.GraphBreak, ...]
    modes: list[tuple[Any, bool]]


def record(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: Sequence[Tensor],
    whole: bool,
) -> Recording | Left:
    """Run `fn` once on placeholders. `tensors` are those among its arguments, each once. With `whole` it is an error
    for it to ask for values."""
    block = tracing.tracing(tracing.Trace(run, Tensor, whole=whole))
    try:
        return _recorded(block, fn, args, kwargs, tensors)
    finally:  # again: Ctrl-C may have come between
        block.end()


def _recorded(
    block: tracing.tracing,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: Sequence[Tensor],
) -> Recording | Left:
    with block as trace:
        trace.modules.names.enter(fn, args)
        result = fn(*args, **kwargs)
        if not trace.left and (kind := _hiding(result, trace)):
            trace.refuse_or_leave(kind)
        trace.modules.end()
        if trace.left:
            return Left(result, tuple(trace.breaks), trace.modules.modes)
        builder(result, _look_at)
        # Inside, so that the values are the traced ones. Tensors must not stay in local names: see the end.
        numbers = _Numbers(tensors, trace)
        trace.modules.note_captured(numbers.captured)
        rebinds = _rebinds(trace, numbers)
        set_grads = _set_grads(trace, numbers)
        had_grad = [(numbers.of(g.handle), g.before is not None) for g in trace.grads.values() if g.read]
        results, same, looks, build = _results(result, numbers)
        trace.grads.clear()
        del result
        # A tensor that the function made and that lives on: somebody else holds it.
        if _alive(trace):
            gc.collect()  # it may be part of a cycle that nobody holds
        for t in _alive(trace):
            watches = watched.watcher(t.value) is t
            rebinds.append(Rebind(ref(t), numbers.value(t.value), t.value.needs_grad, watches))
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
        looks=looks,
        draws=[(d.generator, d.placeholder, d.count) for d in trace.draws.values()],
        build=build,
        escapes=any(not isinstance(b.target, int) for b in rebinds),
        differentiated=trace.differentiated,
        modules=trace.modules,
    )


def _kind(x: Any) -> str:
    return type(x).__name__


def _hiding(tree: Any, trace: tracing.Trace) -> str:
    """The kind of an object in a result that a call could not make anew: an iterator, or one in which there are tensors
    of the trace. Empty where there is none."""
    found: list[Any] = []
    builder(tree, lambda _: 0, found.append)
    for x in found:
        if isinstance(x, Iterator):
            return _kind(x)
        level: list[Any] = [x]
        for _ in range(_DEEP):
            if any(isinstance(o, Handle) and id(o) in trace.created for o in level):
                return _kind(x)
            inside = gc.get_referents(*[o for o in level if not isinstance(o, _OPAQUE)])
            level = [o for o in inside if gc.is_tracked(o)][:_MANY]
    return ""


_OPAQUE = (type, FunctionType, ModuleType, Handle)
_DEEP, _MANY = 4, 1000
"""The levels within a result, and the objects of each, that are searched for tensors."""


def _look_at(t: Tensor) -> int:
    """Have a tensor that the function returns without having used it be part of the trace."""
    return len(t.value.node.shape)


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


@dataclass(frozen=True, slots=True)
class Result:
    """In the place of a tensor that a call makes: the number of it among the results."""

    number: int


def _results(
    result: Any, numbers: _Numbers
) -> tuple[list[int], list[int | None], list[tuple[int, int, tuple[ViewStep, ...]]], Build]:
    """The values of the tensors in `result`, which of them are tensors from before or views of such, and how to make
    `result` again."""
    found = _Results(numbers)
    build = builder(result, found.number)
    return found.results, found.same, found.looks, build


class _Results:
    """The tensors that a call gives back, numbered as they are met."""

    def __init__(self, numbers: _Numbers) -> None:
        self._numbers = numbers
        self._found: dict[int, int] = {}
        self.results: list[int] = []
        self.same: list[int | None] = []
        self.looks: list[tuple[int, int, tuple[ViewStep, ...]]] = []

    def number(self, t: Tensor) -> int:
        """The number of a tensor."""
        k = self._found.get(id(t))
        if k is not None:
            return k
        k = self._found[id(t)] = len(self.results)
        self.results.append(self._numbers.value(t.value))
        self.same.append(self._numbers.tensor(t))
        if self.same[-1] is None and t.look is not None:
            seen = views.seen_from(t, t.look)
            known = [(n, steps) for m, steps in seen if (n := self._numbers.tensor(m)) is not None]
            self.looks.extend((k, n, tuple(map(self._held, steps))) for n, steps in known[:1])
        return k

    def _held(self, step: ViewStep) -> ViewStep:
        """The step with its tensors, of the trace, as numbers of results: each call has its own."""
        return views.with_tensors(step, lambda t: Result(self.number(t)), Handle)


def _alive(trace: tracing.Trace) -> list[Tensor]:
    return [t for r in list(trace.created.values()) if (t := r()) is not None]
