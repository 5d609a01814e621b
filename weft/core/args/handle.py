"""The part of a Tensor that functions need: the value it stands for, and how a result becomes a Tensor."""
# Tests: tests/core/tensor/test_tensor.py

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import ref

from weft.autograd.context import context, grad_enabled, switched
from weft.autograd.value import Value
from weft.errors import DTypeError
from weft.ir import graph
from weft.ir.forks import forkable
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor
    from weft.core.views.views import ViewOf
    from weft.ir.graph import Node

Number: TypeAlias = bool | int | float
TensorLike: TypeAlias = "Tensor | Number"
Dims: TypeAlias = int | tuple[int, ...] | list[int]


class Handle:
    """Base of Tensor. `value` is the graph node and tape entry that the tensor stands for now."""

    __slots__ = ("__dict__", "__weakref__", "value")
    value: Value
    look: ViewOf | None = None
    """The elements that it shares with other tensors; see views.py."""


writing = forkable(threading.RLock())
"""Held while a handle is made to stand for something else, from reading what it stood for, and while one becomes a view
of another: two threads that add to one tensor add twice, and no view misses a write."""

_new = object.__new__
_class: type[Any] = Handle


def set_tensor_class(cls: type[Tensor]) -> None:
    """Called once, where Tensor is defined: functions are methods of it, so they cannot import it."""
    global _class
    _class = cls


def tensor_class() -> type[Tensor]:
    """The class of what `wrap` makes."""
    return _class


RECENT = 16384
"""The number of latest tensors that are looked at when one is computed."""


class _Recent(threading.local):
    """The tensors that this thread made, or rebound, since it last computed something: see realization.py. Bounded, so
    that whoever computes nothing for long holds no more than this. Data of the thread that computes, and no mode."""

    def __init__(self) -> None:
        self.tensors: deque[ref[Any]] = deque(maxlen=RECENT)
        self.plain: Callable[[ref[Any]], object] = self.tensors.append
        self.note: Callable[[ref[Any]], object] = self.plain
        self.body: body | None = None
        """The innermost function that runs for one example or step."""

        self.pinned = 0
        """The bytes of leaves that were made since `look` was called for them."""
        self.reads_much = False
        """True when it was called for them last."""

    def look(self) -> None:
        """Have the next tensor that this thread makes shown to whoever bounds what is not computed yet."""
        self.note = _show


recent_tensors = _Recent()
graph.watch_growth(recent_tensors.look)

_bounds: list[Callable[[Any], object]] = []


def set_bound(bound: Callable[[Any], object]) -> None:
    """Called once, by `realization`, which is built on this module: `bound` is given a tensor now and then, when there
    are many new nodes. It may compute what others stand for."""
    _bounds.append(bound)


def _show(entry: ref[Any]) -> None:
    recent_tensors.note = recent_tensors.plain
    recent_tensors.note(entry)
    for bound in _bounds:
        bound(entry())


class body:  # noqa: N801  (reads as what it does)
    """Within, a function is run once for all examples or steps, as that of vmap and scan: it may change what it makes
    in place, but no other tensor. `changed` is called before one changes, and refuses it."""

    __slots__ = ("_before", "_made", "_mode", "changed")

    def __init__(self, changed: Callable[[Value], object]) -> None:
        self.changed, self._mode = changed, switched(stand_ins=True)
        self._made: dict[int, ref[Any]] = {}

    def __enter__(self) -> None:
        self._before = recent_tensors.body, recent_tensors.plain
        self._mode.__enter__()
        try:
            recent_tensors.body = self
            recent_tensors.plain = recent_tensors.note = self._note
        except BaseException:  # Ctrl-C
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        recent_tensors.body, recent_tensors.plain = self._before
        recent_tensors.note = recent_tensors.plain
        self._mode.__exit__()

    def _note(self, entry: ref[Any], /) -> None:
        self._made[id(entry())] = entry
        recent_tensors.tensors.append(entry)

    def has_made(self, t: Handle) -> bool:
        """True for a tensor that was made within."""
        return (entry := self._made.get(id(t))) is not None and entry() is t


def check_change(t: Handle, value: Value) -> None:
    """Refuse to change a tensor that the function of which this is a part may not change."""
    inner = recent_tensors.body
    if inner is not None and not inner.has_made(t):
        inner.changed(value)


def rule_of_examples(changed: Callable[[Value], object]) -> body | nullcontext[None]:
    """As `body`, within a rule of the tape where that is run on placeholders; else nothing."""
    return body(changed) if context().stand_ins else nullcontext()


def wrap(value: Value) -> Tensor:
    """A new Tensor with the values of `value`: a result, and no leaf, where those are a leaf's that asks for gradients.
    So functions that have nothing to do may give their input's value."""
    if value.needs_grad and value.op is None and value.rule is None:
        value = passed_on(value)
    t = _new(_class)
    t.value = value
    recent_tensors.note(ref(t))
    return t


def wrap_constant(node: Node) -> Tensor:
    """As `wrap(Value(node))`, in less time: a result that no gradient flows through."""
    value = _new(Value)
    value.node, value.needs_grad, value.inputs = node, False, ()
    value.op = value.attrs = value.rule = None
    t = _new(_class)
    t.value = value
    recent_tensors.note(ref(t))
    return t


def made(t: Handle) -> None:
    """Note a tensor that was made otherwise, or stands for something else now."""
    recent_tensors.note(ref(t))


def wrap_untracked(value: Value) -> Tensor:
    """As `wrap`, for what is not to be kept when something that is computed from it is."""
    t = _new(_class)
    t.value = value
    return t


def standing_for(value: Value) -> Tensor:
    """A new Tensor that stands for `value` itself, which may be a leaf."""
    t = _new(_class)
    t.value = value
    recent_tensors.note(ref(t))
    return t


def passed_on(value: Value) -> Value:
    """The same values as a result of their own, with its own hooks and place on the tape: a reshape to the same shape,
    which is recorded, though the node is the same."""
    if not value.needs_grad:
        return value
    return Value(value.node, True, Op.RESHAPE, None, (value,)) if grad_enabled() else Value(value.node)


def own(value: Value) -> Tensor:
    """A new Tensor with these values: a result of its own."""
    return wrap(passed_on(value))


def value_of(op: str, x: object) -> Value:
    """The value of a Tensor; DTypeError for anything else."""
    if isinstance(x, Handle):
        return x.value
    raise DTypeError(f"{op}: expected a Tensor, got {describe(x)}; make one with weft.tensor(...)")


def describe(x: object) -> str:
    """A few words on an argument, for messages."""
    if isinstance(x, Handle):
        return f"a {x.value.dtype.name} Tensor of shape {tuple(x.value.shape)}"
    if x is None or isinstance(x, (bool, int, float, str)):
        return repr(x)
    kind = type(x)
    home = kind.__module__.partition(".")[0]
    name = kind.__name__ if home in ("builtins", "weft", "__main__") else f"{home}.{kind.__name__}"
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
