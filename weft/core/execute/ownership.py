"""Ownership of memory: where nobody but one tensor can see it, and only there, it may be written over."""
# Tests: tests/core/execute/test_threads.py, tests/core/test_surface.py

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Sequence
from sys import getrefcount
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

from weft.autograd import passed
from weft.autograd.value import Value
from weft.backends.native_threads import is_away
from weft.backends.resting import RestingStorage, anew, place_of
from weft.backends.storage import Storage
from weft.core.args.handle import Handle
from weft.core.execute import edits, watched
from weft.core.execute.writes import known_ranges
from weft.ir import graph
from weft.ir.dtypes import uint32
from weft.ir.forks import forkable
from weft.ir.graph import Node

if TYPE_CHECKING:
    from weft.backends.protocol import Memory
    from weft.ir.dtypes import DType


def rebind(t: Any, node: Node, needs_grad: bool) -> None:
    """`t` stands for `node`. Where only `t` holds its value, that is kept, and with it who watches for gradients."""
    v, own = t.value, t.__dict__
    own["_writes"] = own.get("_writes", 0) + 1
    if getrefcount(v) == _ALONE[0] and v.needs_grad is needs_grad and v.is_leaf:
        try:
            v.node = node
        finally:
            if edits.CAPTURED in own:
                edits.tensors.note()
        return
    if v.needs_grad and v.is_leaf and passed.any_is_held():
        passed.written_over((v,))
    del v
    edits.stand_for(t, Value(node, needs_grad))
    if needs_grad:
        watched.watch(t)


_sources: dict[int, ref[Storage]] = {}
"""Storages, by identity, from which values were computed that somebody keeps: a write in place gives their memory to
others."""


def watch_writes(storage: Storage) -> bool:
    """From here on, a tensor whose elements are in this storage has another one after each write. False where it is
    being written over now."""
    if isinstance(storage, _Overwritten):
        return False
    number = id(storage)
    _sources[number] = ref(storage, lambda _: _sources.pop(number, None))
    return True


def _anew(storage: Storage) -> Storage:
    """The storage that elements are in after they were written over in this one's memory."""
    if id(storage) not in _sources:
        return storage
    return anew(storage)


def is_watched() -> bool:
    """True where somebody keeps what was computed from some elements."""
    return bool(_sources)


def to_be_written(t: Any) -> None:
    """Forget what was computed from the memory that `t` stands for, which only `t` can see: it is about to be written
    over."""
    node, watched = t.value.node, bool(_sources)  # before: a storage that nobody holds is no source any more
    try:
        node.storage = _anew(node.storage)
    finally:
        if watched:
            edits.elements.note()
    if known_ranges and not node.dtype.is_float:
        known_ranges.pop(node, None)


step_lock = threading.RLock()
_steps = forkable(threading.Condition(step_lock))
"""Guards what steps of compiled functions have taken, below. Held by a step that takes nothing, from its first look at
state to its end: a short one, or one beside which no other thread runs."""

busy: set[int] = set()
"""The tensors, by identity, that some step is going to rebind: it goes from their old values to its end alone."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=busy.clear)  # whose threads are not there


class exclusive:  # noqa: N801  (a context, read as a word)
    """Within, no other step of a compiled function rebinds any of these tensors, given by identity. A block whose end
    an interrupt prevents ends when it is forgotten."""

    __slots__ = ("_held", "_mine")

    def __init__(self, tensors: frozenset[int]) -> None:
        self._mine, self._held = tensors, False

    def __enter__(self) -> None:
        with _steps:
            while not busy.isdisjoint(self._mine):
                _steps.wait()
            self._held = True
            busy.update(self._mine)

    def __exit__(self, *error: object) -> None:
        if self._held:
            with _steps:
                busy.difference_update(self._mine)
                self._held = False
                _steps.notify_all()

    __del__ = __exit__


class _Overwritten(Storage):
    """Stands for a storage whose memory is being written over: who asks for the memory waits until that is done."""

    __slots__ = ("_after",)
    _after: Storage | None

    def __init__(self, before: Storage) -> None:
        self.device, self.dtype, self.shape = before.device, before.dtype, before.shape
        self._after = None

    @property
    def memory(self) -> Memory:  # pyright: ignore[reportIncompatibleVariableOverride]  (there when it is done)
        if self._after is None:
            with _steps:
                while self._after is None:
                    _steps.wait()
        return self._after.memory

    @property
    def is_open(self) -> bool:
        """True where it is being written still."""
        return self._after is None

    def done(self, after: Storage) -> None:
        """From here on this is `after`."""
        with _steps:
            self._after = after
            _steps.notify_all()


class Taken:
    """The memory of a tensor that nobody else can see until it is given back, which may be done again."""

    __slots__ = ("_node", "_stand_in", "_watched", "storage")

    def __init__(self, node: Node, storage: Storage) -> None:
        self._node, self.storage, self._watched = node, storage, False
        self._stand_in = _Overwritten(storage)

    def hide(self) -> None:
        """Have whoever looks at the tensor wait for the end. What was known of the elements is forgotten."""
        try:
            self._node.storage = self._stand_in
        finally:
            if _sources:
                self._watched = True
                edits.elements.note()
                self.storage = _anew(self.storage)
        if known_ranges:
            known_ranges.pop(self._node, None)

    def give_back(self) -> None:
        """The tensor has its storage again, and who waited for it goes on."""
        try:
            self._node.storage = self.storage
        finally:
            if self._watched or _sources:
                edits.elements.note()
        self._stand_in.done(self.storage)


def sole_thread() -> bool:
    """True where no other thread runs Python: then nobody can look at memory while it is written over. Threads that
    stay in native code, as those of kernels do, run none."""
    frames = _frames()
    try:
        return len(frames) == 1 or sum([not is_away(f) for f in frames.values()]) == 1
    finally:
        del frames  # this call's is among them: a cycle, with all that its callers' variables refer to


_frames = sys._current_frames  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
"""The frames of all threads, also of those that Python did not start."""


def alone(t: Any) -> bool:
    """True where only `t` can see the memory it stands for: asked where no other thread runs."""
    v = t.value
    n = v.node
    s = n.storage
    if s.__class__ is RestingStorage:
        return (getrefcount(v), getrefcount(n), getrefcount(s), getrefcount(s.place)) == _UNTAKEN
    return (getrefcount(v), getrefcount(n), getrefcount(s), getrefcount(s.memory)) == _UNTAKEN


SPARE_BYTES = 1 << 16
"""The bytes of gradients and state whose memory is used again: less is allocated in the time that it takes to look."""


def spare_gradient(t: Any, device: Any, dtype: DType, shape: tuple[int, ...]) -> Memory | None:
    """The memory of `t.grad` for another gradient in its place, where only `t` has that and only it sees that memory:
    asked where no other thread runs. None where there is no such, or it is of another form."""
    grad = t.__dict__.get("_grad")
    if grad is None or getrefcount(grad) != _IN_ONE_PLACE:
        return None
    storage = grad.value.node.storage
    if (
        storage is None
        or storage.device is not device
        or storage.dtype is not dtype
        or storage.shape != shape
    ):
        return None
    del storage
    return grad.value.node.storage.memory if alone(grad) else None


def spent_leaves(tensors: Iterable[Any]) -> set[Node]:
    """The leaves that these tensors stand for, which are about to stand for others, where nobody else can see their
    memory and that is worth looking at: asked where no other thread runs."""
    found: set[Node] = set()
    for t in tensors:
        storage = t.value.node.storage
        # none of a file's, nor of which somebody keeps what is computed from it
        if storage.__class__ is Storage and storage.nbytes >= SPARE_BYTES and id(storage) not in _sources:
            del storage
            if alone(t):
                found.add(t.value.node)
    return found


def take(tensors: Sequence[Any], taken: list[Taken]) -> list[Memory]:
    """The memories that tensors stand for, or the cells that they rest in, to be written over where they were added to
    `taken`, and only to be read where anybody else refers to the value.

    All are taken at once, when no other step has any, so that no two steps wait for each other: whoever has taken
    something waits for no tensor before it is given back. What is in `taken` is to be given back also where this is
    interrupted.
    """
    with _steps:
        while any(_is_away(t) for t in tensors):
            _steps.wait()
        return [_take(t, taken) for t in tensors]


def _is_away(t: Any) -> bool:
    """Another step has taken what `t` stands for."""
    storage = t.value.node.storage
    return isinstance(storage, _Overwritten) and storage.is_open


def _take(t: Any, taken: list[Taken]) -> Memory:
    """First nobody new can get at the storage, then it is counted who has it: in this order, as other threads run."""
    mine = Taken(t.value.node, t.value.node.storage)
    taken.append(mine)
    mine.hide()
    if _holders(t, mine) != _ALONE:
        mine.give_back()
        taken.pop()
    return place_of(mine.storage)


def _holders(t: Any, taken: Taken) -> tuple[int, int, int, int]:
    """The numbers of references to what `t` stands for, its node, its storage and its memory."""
    v = t.value
    n = v.node
    s = taken.storage
    if s.__class__ is RestingStorage:
        return getrefcount(v), getrefcount(n), getrefcount(s), getrefcount(cast("RestingStorage", s).place)
    return getrefcount(v), getrefcount(n), getrefcount(s), getrefcount(s.memory)


class _Probe:
    nbytes = 0


def _fresh_holders() -> tuple[int, int, int, int]:
    """The `_holders` of a tensor that nobody shares: the interpreter's own references differ by version."""
    t = Handle.__new__(Handle)
    device: Any = None
    probe: Any = _Probe()
    storage = Storage(device, probe, uint32, ())
    del probe
    t.value = Value(graph.buffer((), uint32, "", storage))
    taken = Taken(t.value.node, storage)
    taken.hide()
    del storage
    return _holders(t, taken)


_ALONE = _fresh_holders()


def _fresh_untaken() -> tuple[int, int, int, int]:
    """The same as `alone` counts them."""
    t = Handle.__new__(Handle)
    device: Any = None
    probe: Any = _Probe()
    t.value = Value(graph.buffer((), uint32, "", Storage(device, probe, uint32, ())))
    del probe
    v = t.value
    n = v.node
    s = n.storage
    return getrefcount(v), getrefcount(n), getrefcount(s), getrefcount(s.memory)


_UNTAKEN = _fresh_untaken()


def _fresh_in_one_place() -> int:
    place = {"_grad": Handle.__new__(Handle)}
    grad = place.get("_grad")
    return getrefcount(grad)


_IN_ONE_PLACE = _fresh_in_one_place()
"""The references to a gradient that `spare_gradient` counts where only one tensor has it."""
