"""A function's effects on tensors, recorded while it runs once with placeholders in place of their values.

While a thread traces, `Tensor.value` and `Tensor._grad` are descriptors that keep, for that thread, a shadow of every
tensor that existed before: reads give a placeholder, writes stay in the shadow. The tensors themselves change only
when the recorded plan runs, and other threads see nothing of it. What it reads of modules is noted in the same way.

A function that asks for a value while it is traced leaves the trace, as it does where it raises (`Trace.leave`): the
placeholders get the values that they stand for, what was written to shadows is written to the tensors, and the rest of
the call goes on as if nothing had been traced. Nothing is done twice.
"""
# Tests: tests/core/compile/test_compile.py

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import field
from inspect import currentframe
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast
from weakref import ref

import numpy as np

from weft.autograd.context import change, context, default_device, switched
from weft.autograd.value import HOOKS, Value
from weft.core.args.handle import Handle
from weft.core.execute import edits, watched
from weft.core.execute.modules import Modules, module_class
from weft.core.execute.random_draws import Draws, Span
from weft.errors import ArgumentError, GradError, user_call
from weft.ir import graph
from weft.ir.dtypes import uint32
from weft.ir.forks import forkable
from weft.ir.graph import Node, toposort
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.core.functions.random import Generator
    from weft.core.tensor.tensor import Tensor


Watch: TypeAlias = "Callable[[list[Node]], object]"
"""A function that is told of nodes that are computed."""


@dataclass(slots=True, eq=False)
class Shadow:
    """A tensor that existed before the trace: what it stood for, the placeholder for that, what it stands for now."""

    handle: Tensor
    before: Value
    placeholder: Value
    now: Value


@dataclass(slots=True, eq=False)
class GradShadow:
    """The `.grad` of such a tensor: before, and now. `read` when the function looked at it before it set it."""

    handle: Tensor
    before: Tensor | None
    now: Tensor | None
    read: bool


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A place where a traced function asked for a value: what it called, and its file and line."""

    op: str
    location: str

    def __str__(self) -> str:
        return f"{self.op} at {self.location} needs a value"


class Values(Protocol):
    """The place where a trace has values computed and puts new ones: `run`, which is built on this module."""

    def realize_value(self, value: Value) -> None:
        """Compute what `value` stands for."""

    def from_numpy(self, array: np.ndarray[Any, Any], device: str) -> Node:
        """A leaf with a copy of `array`."""
        ...


@dataclass(slots=True, eq=False)
class Trace:
    """Everything one run of a function read and rebound."""

    values: Values
    cls: Any
    """The class of tensors."""
    shadows: dict[int, Shadow] = field(default_factory=dict[int, Shadow])
    grads: dict[int, GradShadow] = field(default_factory=dict[int, GradShadow])
    draws: dict[int, Draws] = field(default_factory=dict[int, Draws])
    created: dict[int, ref[Any]] = field(default_factory=dict[int, "ref[Any]"])
    differentiated: set[Value] = field(default_factory=set[Value])
    modules: Modules = field(default_factory=Modules)
    whole: bool = False
    """True to refuse what would leave the trace."""
    breaks: list[GraphBreak] = field(default_factory=list[GraphBreak])
    """The reason why the trace was left, and what was computed in the same call afterwards."""
    left: bool = False
    runs: bool = True
    """True while the function runs and the trace was not left: a task that it made may outlive it."""
    cause: Node | None = None
    """The node for whose value it was left, until that is computed."""
    arrives: Callable[[Tensor], None] | None = None
    """Told of each tensor from before the trace when the function first reads it; may move it to another device."""
    walks: int = 0
    """Backward walks under way."""
    made: dict[int, tuple[ref[Any], Value]] | None = None
    """The values that tensors made in the trace had, where this is a trace as it was at some point: see `as_it_is`."""

    def capture(self, t: Tensor) -> Shadow:
        """The shadow of a tensor from before the trace."""
        if self.arrives is not None:
            with switched(trace=None):
                self.arrives(t)
        before: Value = _slot.__get__(t)
        if before.node.op is not Op.BUFFER:
            with switched(trace=None):
                self.values.realize_value(before)
        node = before.node
        # A result of other tensors is a leaf here: `went_back` refuses to differentiate past it.
        placeholder = Value(graph.buffer(node.shape, node.dtype, node.storage.home, None), before.needs_grad)
        shadow = self.shadows[id(t)] = Shadow(t, before, placeholder, placeholder)
        if before.needs_grad and before.is_leaf:
            watched.watch(t)
        return shadow

    def read(self, t: Tensor) -> Value:
        """The value that `t` stands for at this point of the trace."""
        key = id(t)
        shadow = self.shadows.get(key)
        if shadow is None:
            if self.made is not None:  # what it had not read is what it is by now
                entry = self.made.get(key)
                return _slot.__get__(t) if entry is None or entry[0]() is not t else entry[1]
            if key in self.created or self.left_for_meta(t):
                return _slot.__get__(t)
            shadow = self.capture(t)
        return shadow.now

    def as_it_is(self) -> Then:
        """The trace at this point, for a function of it that is run once more after its end."""
        made = [(k, there, there()) for k, there in self.created.items()]
        return Then(
            self,
            {k: s.now for k, s in self.shadows.items()},
            {**(self.made or {}), **{k: (there, _slot.__get__(t)) for k, there, t in made if t is not None}},
        )

    def left_for_meta(self, t: Tensor) -> bool:
        """Leave the trace for a tensor on "meta", which no plan can have; False for any other."""
        if _slot.__get__(t).node.device != "meta:0":
            return False
        host_only("a tensor on the device 'meta'")
        return True

    def write(self, t: Tensor, value: Value) -> None:
        """`t` stands for `value` from here on."""
        key = id(t)
        shadow = self.shadows.get(key)
        if shadow is None and key not in self.created:
            try:
                _slot.__get__(t)
            except AttributeError:  # being made
                created = self.created
                created[key] = ref(t, lambda _: created.pop(key, None))
            else:
                if self.made is not None:
                    self._write_again(t, value)
                    return
                shadow = None if self.left_for_meta(t) else self.capture(t)
        if shadow is None:
            _slot.__set__(t, value)
        else:
            shadow.now = value

    def _write_again(self, t: Tensor, value: Value) -> None:
        """Write to a tensor that is no stand-in of this trace, in a function of it that is run again."""
        made = self.made
        assert made is not None
        entry = made.get(id(t))
        if entry is not None and entry[0]() is t:
            made[id(t)] = entry[0], value
        else:
            check_rule(value)
            _slot.__set__(t, value)

    def grad_shadow(self, t: Tensor, read: bool) -> GradShadow | None:
        """The shadow of `t.grad`; None where `t` is of the trace itself."""
        key = id(t)
        if key in self.created:
            return None
        shadow = self.grads.get(key)
        if shadow is None:
            before = t.__dict__.get("_grad")
            shadow = self.grads[key] = GradShadow(t, before, before, read)
        return shadow

    def stands_for(self, placeholder: Node) -> bool:
        """True where the trace knows what a placeholder stands for."""
        return any(s.placeholder.node is placeholder for s in self.shadows.values()) or any(
            d.placeholder is placeholder for d in self.draws.values()
        )

    def draw(self, generator: Generator, n: int) -> Span:
        """The next `n` numbers of the state [key0, key1, offset] that a generator had before this function."""
        draws = self.draws.get(id(generator))
        if draws is None:
            state = graph.buffer((3,), uint32, default_device(), None)
            draws = self.draws[id(generator)] = Draws(generator, state)
        before = draws.count
        draws.count += n
        return Span(draws, before, n)

    def leave(self) -> None:
        """End the trace where the function is: the tensors become what the function has made of them so far."""
        self.left, self.runs = True, False
        change(trace=None)
        for s in self.shadows.values():
            placeholder, before = s.placeholder, s.before
            placeholder.node.storage = before.node.storage
            if placeholder.needs_grad:  # its history goes on with that of the tensor
                placeholder.op, placeholder.inputs = Op.RESHAPE, (before,)
                watched.passed_on(s.handle, placeholder, before)
        for d in self.draws.values():
            span = d.generator.move(d.count)
            d.left_at = d.generator.initial_seed(), span.start
            words = np.array(span.words(), np.uint32)
            home = d.placeholder.device or default_device()
            d.placeholder.storage = self.values.from_numpy(words, home).storage
        try:
            for s in self.shadows.values():
                if s.now is not s.placeholder:
                    _slot.__set__(s.handle, s.now)
        finally:
            edits.tensors.note()
        for g in self.grads.values():
            if g.now is not g.before:
                g.handle.__dict__["_grad"] = g.now
        if not self.walks:
            self.settle()

    def refuse_or_leave(self, kind: str) -> None:
        """Leave the trace for a result that no later call could make anew; ArgumentError where it must not be left."""
        if not _left(self, f"a result of type {kind}"):
            raise ArgumentError(
                f"compile: the function returns an object of type {kind} that has tensors in it, or gives them later, "
                "and that no other call can make anew; return them in tuples, lists, dicts or dataclasses, or compile "
                "without fullgraph=True"
            )

    def settle(self) -> None:
        """Have no hook called for a placeholder besides the tensor's: once no walk goes through them any more."""
        for s in self.shadows.values():
            HOOKS.pop(s.placeholder, None)

    def went_back(self, values: Iterable[Value], keep: bool) -> None:
        """backward() goes through `values`. As in torch they cannot be differentiated again unless kept, so that
        results need no tape. Where it has to go on outside of the traced function, the trace is left; GradError if it
        must not be."""
        tape = set(values)
        if not keep:
            self.differentiated |= tape
        outside = {
            s.placeholder for s in self.shadows.values() if s.before.needs_grad and not s.before.is_leaf
        }
        if not outside.isdisjoint(tape) and not _left(self):
            raise GradError(
                "backward: inside a compiled function, gradients cannot reach past a tensor that was computed with "
                "gradients outside of it; compute it inside too, or pass it as .detach()"
            )


@dataclass(frozen=True, slots=True)
class Then:
    """A trace as it was at some point: what tensors from before it stood for, and those that it had made."""

    trace: Trace
    values: dict[int, Value]
    made: dict[int, tuple[ref[Any], Value]]

    def view(self) -> Trace:
        """A trace of its own that begins there; nothing of what is written in it is kept."""
        shadows = self.trace.shadows
        found = {k: (shadows[k], v) for k, v in self.values.items()}
        return Trace(
            self.trace.values,
            self.trace.cls,
            {k: Shadow(s.handle, s.before, s.placeholder, now) for k, (s, now) in found.items()},
            draws=self.trace.draws,
            whole=True,
            made=dict(self.made),
        )


_slot: Any = Handle.__dict__["value"]
_lock = forkable(threading.Lock())
_traces: set[int] = set()
"""The blocks that trace, by id."""


def current() -> Trace | None:
    """The trace that this thread is making."""
    trace: Trace | None = context().trace
    return trace if trace is None or trace.runs else None


def computable(nodes: list[Node]) -> list[Node]:
    """The nodes among these that can be computed now, which whoever watches is told of (if there are any)."""
    if current() is not None:
        return [n for n in nodes if not is_traced(n)]
    watch = context().watch
    if watch is not None and nodes:
        watch(nodes)
    return nodes


def watching(watch: Watch) -> switched:
    """Have `watch` called with the nodes whenever this thread computes some within the block."""
    return switched(watch=watch)


def note_call(module: Any) -> None:
    """A function that calls `module` is traced again when its hooks or `training` change."""
    trace = current()
    if trace is not None:
        trace.modules.note_call(module)


def note_write(module: Any, name: str) -> None:
    """The function that is traced sets a member of a module."""
    trace = current()
    if trace is not None:
        trace.modules.note_write(module, name)


class tracing:  # noqa: N801  (reads as what it does)
    """Trace what this thread does to tensors within the block. Unless the trace has to be of the whole,
    it may be left, as it is where the block raises; an interrupt leaves nothing behind. `end` may be called again: by
    who makes sure that an interrupt does not leave a thread tracing."""

    def __init__(self, trace: Trace) -> None:
        self._cls, self.trace, self._watch = trace.cls, trace, context().watch

    def __enter__(self) -> Trace:
        cls = self._cls
        with _lock:
            _traces.add(id(self))
            cls.value, cls._grad = _VALUE, _GRAD
            modules = module_class()
            if modules is not None:
                modules.cls.__getattribute__, modules.cls.__setattr__ = _read_attribute, _set_attribute
        change(trace=self.trace)
        return self.trace

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is not None and issubclass(kind, Exception) and not (self.trace.left or self.trace.whole):
                self.trace.leave()
        finally:
            self.end()

    def end(self) -> None:
        """The thread traces no more."""
        cls = self._cls
        self.trace.runs = False
        change(trace=None, watch=self._watch)
        with _lock:
            _traces.discard(id(self))
            if not _traces and "value" in cls.__dict__:
                del cls.value
                cls._grad = None
                modules = module_class()
                if modules is not None and "__getattribute__" in modules.cls.__dict__:
                    del modules.cls.__getattribute__
                    modules.cls.__setattr__ = modules.assign


class as_then:  # noqa: N801  (reads as what it does)
    """Within, tensors are what they were at a point of a trace, if that is over by now and was not left: a function of
    it is run again."""

    __slots__ = ("_block",)

    def __init__(self, then: Then | None) -> None:
        self._block = None
        if then is not None and not then.trace.left and current() is not then.trace:
            self._block = tracing(then.view())

    def __enter__(self) -> None:
        if self._block is not None:
            try:
                self._block.__enter__()
            except BaseException:  # Ctrl-C
                self._block.end()
                raise

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._block is not None:
            self._block.__exit__(kind, *error)


class _TracedValue:
    """Stands in for the slot `Handle.value` while some thread traces."""

    def __get__(self, t: Any, owner: Any = None) -> Any:
        if t is None:
            return self
        trace = current()
        return _slot.__get__(t) if trace is None else trace.read(t)

    def __set__(self, t: Any, value: Value) -> None:
        trace = current()
        if trace is None:
            _slot.__set__(t, value)
        else:
            trace.write(t, value)


class _TracedGrad:
    """Stands in for the attribute `Tensor._grad` while some thread traces."""

    def __get__(self, t: Any, owner: Any = None) -> Any:
        if t is None:
            return None
        trace = current()
        shadow = None if trace is None else trace.grad_shadow(t, read=True)
        return t.__dict__.get("_grad") if shadow is None else shadow.now

    def __set__(self, t: Any, grad: Any) -> None:
        trace = current()
        shadow = None if trace is None else trace.grad_shadow(t, read=False)
        if shadow is None:
            t.__dict__["_grad"] = grad
        elif trace is not None and trace.made is not None:
            raise GradError(_RULE_CHANGES)
        else:
            shadow.now = grad


_VALUE, _GRAD = _TracedValue(), _TracedGrad()


def _read_attribute(m: Any, name: str) -> Any:
    """Stands in for `__getattribute__` of modules while some thread traces."""
    trace, modules = current(), module_class()
    assert modules is not None
    if trace is not None:
        if name == "__dict__" and _is_inside(modules.internals):
            trace.modules.meet(m)
        elif name == "__dict__" or name[:2] != "__":
            trace.modules.note_read(m, name)
    return cast("Any", super(modules.cls, m)).__getattribute__(name)


def _set_attribute(m: Any, name: str, value: Any) -> None:
    """Stands in for `__setattr__` of modules while some thread traces."""
    modules = module_class()
    assert modules is not None
    note_write(m, name)
    modules.assign(m, name, value)


def _is_inside(internals: frozenset[str]) -> bool:
    """True where the attribute is read by one of these Python modules."""
    reader = currentframe()  # in one variable, which must not refer to the frame that it is in: a cycle
    for _ in range(2):
        reader = reader and reader.f_back
    return reader is not None and reader.f_globals.get("__name__") in internals


def is_traced(node: Node) -> bool:
    """True where the value of `node` depends on a placeholder, so that it is known only when the plan runs."""
    return any(is_placeholder(n) for n in toposort([node]))


def check_rule(value: Value) -> None:
    """Refuse to write a value without a value of its own to a tensor from outside, in a rule run on placeholders."""
    if is_traced(value.node):
        raise GradError(_RULE_CHANGES)


_RULE_CHANGES = (
    "backward() changes a tensor in place, or adds to its .grad, in a function whose derivative is of all examples, or "
    "calls, of vmap, scan or compile: return what changes, take gradients with weft.autograd.grad, or call backward() "
    "in the compiled function"
)


def is_placeholder(node: Node) -> bool:
    """True for what stands for a tensor's value while a function is traced."""
    return node.op is Op.BUFFER and node.storage is None and node.device != "meta:0"


def need_value(node: Node) -> None:
    """Leave the trace for the value of a traced node; ArgumentError where there is none to come."""
    trace = current()
    if trace is None or any(is_placeholder(n) and not trace.stands_for(n) for n in toposort([node])):
        raise ArgumentError(
            "this tensor has no value: it stands for one example or step in a function that vmap or scan runs, or "
            "was made while weft.compile traced a function that failed or kept it to itself; return it from the "
            "function, and use weft.where instead of if"
        )
    if not _left(trace):
        raise ArgumentError(
            "compile: the function asks for the value of a tensor (item, bool, numpy, tolist, print, a mask as index) "
            "while it is traced, when there is none yet; use weft.where instead of if, return the tensor and read it "
            "outside, leave this part uncompiled, or compile without fullgraph=True"
        )
    trace.cause = node if node.storage is None else None


def host_only(op: str) -> None:
    """Leave the trace for an operation that happens on the host at once; ArgumentError where it must not be left."""
    trace = current()
    if trace is not None and not _left(trace, op):
        raise ArgumentError(
            f"{op}: is computed at once, on the host, so a compiled function would repeat its first result; "
            "call it outside and pass the tensor in, or compile without fullgraph=True"
        )


def _left(trace: Trace, op: str = "") -> bool:
    """Leave the trace, unless it has to be of the whole function; whether that was done."""
    if trace.whole:
        return False
    trace.breaks.append(graph_break(op))
    trace.leave()
    outer = context().watch

    def watch(nodes: list[Node]) -> None:
        if outer is not None:
            outer(nodes)
        if trace.cause in nodes:
            trace.cause = None
        else:
            trace.breaks.append(graph_break())

    change(watch=watch)
    return True


_SYNTAX = {
    "__bool__": "bool",
    "__repr__": "print",
    "__format__": "print",
    "__index__": "int",
    "__array__": "numpy",
}


def graph_break(op: str = "") -> GraphBreak:
    """The call of the user's that is under way, unless its name is known."""
    call = user_call()
    name = op or call.function or "a call"
    return GraphBreak(_SYNTAX.get(name, name.strip("_")), call.location)
