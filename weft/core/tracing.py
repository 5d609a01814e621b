"""What a function does to tensors, recorded while it runs once with placeholders in place of their values.

While a thread traces, `Tensor.value` and `Tensor._grad` are descriptors that keep, for that thread, a shadow of every
tensor that existed before: reads give a placeholder, writes stay in the shadow. The tensors themselves change only
when the recorded plan runs, so a trace that fails leaves nothing behind, and other threads see nothing of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from weft.autograd.value import Value
from weft.core.handle import Handle, wrap
from weft.errors import ArgumentError, GradError
from weft.ir import graph
from weft.ir.dtypes import uint32
from weft.ir.graph import Node, toposort
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.random import Generator
    from weft.core.tensor import Tensor


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


@dataclass(slots=True, eq=False)
class Draws:
    """Random numbers drawn from one generator: the placeholder of its state, and how many so far."""

    generator: Generator
    placeholder: Node
    count: int = 0


class Modal(Protocol):
    """What computes one thing while training and another afterwards: a module."""

    training: bool


@dataclass(slots=True, eq=False)
class Trace:
    """Everything one run of a function read and rebound."""

    shadows: dict[int, Shadow] = field(default_factory=dict[int, Shadow])
    grads: dict[int, GradShadow] = field(default_factory=dict[int, GradShadow])
    draws: dict[int, Draws] = field(default_factory=dict[int, Draws])
    created: dict[int, ref[Any]] = field(default_factory=dict[int, "ref[Any]"])
    differentiated: set[Value] = field(default_factory=set[Value])
    modes: dict[int, tuple[Modal, bool]] = field(default_factory=dict[int, "tuple[Modal, bool]"])

    def capture(self, t: Tensor) -> Shadow:
        """The shadow of a tensor from before the trace."""
        from weft.core import differentiate, run

        before: Value = _slot.__get__(t)
        if before.node.op is not Op.BUFFER:
            with _suspended():
                run.realize_value(before)
        node = before.node
        # A result of other tensors is a leaf here: `went_back` refuses to differentiate past it.
        placeholder = Value(graph.buffer(node.shape, node.dtype, node.storage.home, None), before.needs_grad)
        shadow = self.shadows[id(t)] = Shadow(t, before, placeholder, placeholder)
        if before.needs_grad and before.is_leaf:
            differentiate.watch(t)
        return shadow

    def read(self, t: Tensor) -> Value:
        """What `t` stands for at this point of the trace."""
        key = id(t)
        shadow = self.shadows.get(key)
        if shadow is None:
            if key in self.created:
                return _slot.__get__(t)
            shadow = self.capture(t)
        return shadow.now

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
                shadow = self.capture(t)
        if shadow is None:
            _slot.__set__(t, value)
        else:
            shadow.now = value

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

    def draw(self, generator: Generator, n: int) -> Value:
        """The state [key0, key1, offset] of a generator for its next `n` numbers in this function."""
        from weft.core import run
        from weft.core.creation import tensor

        draws = self.draws.get(id(generator))
        if draws is None:
            state = graph.buffer((3,), uint32, run.default_device(), None)
            draws = self.draws[id(generator)] = Draws(generator, state)
        state = wrap(Value(draws.placeholder))
        if draws.count:
            state = state + tensor([0, 0, draws.count % (1 << 32)], dtype=uint32)
        draws.count += n
        return state.value

    def went_back(self, values: Iterable[Value], keep: bool) -> None:
        """backward() goes through `values`. As in torch they cannot be differentiated again unless kept, so that
        results need no tape. GradError where it would have to go on outside of the traced function."""
        tape = set(values)
        if not keep:
            self.differentiated |= tape
        outside = {
            s.placeholder for s in self.shadows.values() if s.before.needs_grad and not s.before.is_leaf
        }
        if not outside.isdisjoint(tape):
            raise GradError(
                "backward: inside a compiled function, gradients cannot reach past a tensor that was computed with "
                "gradients outside of it; compute it inside too, or pass it as .detach()"
            )


class _Current(threading.local):
    trace: Trace | None = None


_current = _Current()
_slot: Any = Handle.__dict__["value"]
_lock = threading.Lock()
_traces: set[int] = set()
anywhere = 0
"""How many threads trace."""


def current() -> Trace | None:
    """The trace that this thread is making."""
    return _current.trace if anywhere else None


def note_mode(module: Modal) -> None:
    """A compiled function that calls `module` is traced again when the module's `training` changes."""
    trace = _current.trace
    if trace is not None:
        trace.modes[id(module)] = (module, module.training)


class tracing:  # noqa: N801  (reads as what it does)
    """Trace what this thread does to tensors of class `cls` within the block. `end` may be called again: by who makes
    sure that an interrupt does not leave a thread tracing."""

    def __init__(self, cls: Any) -> None:
        self._cls, self.trace = cls, Trace()

    def __enter__(self) -> Trace:
        global anywhere
        cls = self._cls
        with _lock:
            _traces.add(id(self))
            anywhere = len(_traces)
            cls.value, cls._grad = _VALUE, _GRAD
        _current.trace = self.trace
        return self.trace

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """The thread traces no more."""
        global anywhere
        cls = self._cls
        if _current.trace is self.trace:
            _current.trace = None
        with _lock:
            _traces.discard(id(self))
            anywhere = len(_traces)
            if not anywhere and "value" in cls.__dict__:
                del cls.value
                cls._grad = None


class _suspended:  # noqa: N801  (reads as what it does)
    """Not traced within the block."""

    __slots__ = ("_trace",)

    def __enter__(self) -> None:
        self._trace, _current.trace = _current.trace, None

    def __exit__(self, *error: object) -> None:
        _current.trace = self._trace


class _TracedValue:
    """Stands in for the slot `Handle.value` while some thread traces."""

    def __get__(self, t: Any, owner: Any = None) -> Any:
        if t is None:
            return self
        trace = _current.trace
        return _slot.__get__(t) if trace is None else trace.read(t)

    def __set__(self, t: Any, value: Value) -> None:
        trace = _current.trace
        if trace is None:
            _slot.__set__(t, value)
        else:
            trace.write(t, value)


class _TracedGrad:
    """Stands in for the attribute `Tensor._grad` while some thread traces."""

    def __get__(self, t: Any, owner: Any = None) -> Any:
        if t is None:
            return None
        trace = _current.trace
        shadow = None if trace is None else trace.grad_shadow(t, read=True)
        return t.__dict__.get("_grad") if shadow is None else shadow.now

    def __set__(self, t: Any, grad: Any) -> None:
        trace = _current.trace
        shadow = None if trace is None else trace.grad_shadow(t, read=False)
        if shadow is None:
            t.__dict__["_grad"] = grad
        else:
            shadow.now = grad


_VALUE, _GRAD = _TracedValue(), _TracedGrad()


def is_traced(node: Node) -> bool:
    """True where the value of `node` depends on a placeholder, so that it is known only when the plan runs."""
    return any(is_placeholder(n) for n in toposort([node]))


def is_placeholder(node: Node) -> bool:
    """True for what stands for a tensor's value while a function is traced."""
    return node.op is Op.BUFFER and node.storage is None


def refuse_value(node: Node) -> None:
    """ArgumentError where the value of a traced node is asked for."""
    if is_traced(node):
        if current() is None:
            raise ArgumentError(
                "this tensor has no value: it stands for one example or step in a function that vmap or scan runs, or "
                "was made while weft.compile traced a function that failed or kept it to itself; return it from the "
                "function, and use weft.where instead of if"
            )
        raise ArgumentError(
            "compile: the function asks for the value of a tensor (item, bool, numpy, tolist, print, a mask as index) "
            "while it is traced, when there is none yet; use weft.where instead of if, return the tensor and read it "
            "outside, or leave this part uncompiled"
        )


def host_only(op: str) -> None:
    """ArgumentError where an operation that happens on the host at once is called in a traced function."""
    if current() is not None:
        raise ArgumentError(
            f"{op}: is computed at once, on the host, so a compiled function would repeat its first result; "
            "call it outside and pass the tensor in"
        )
