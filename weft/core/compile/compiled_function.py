"""Compiled functions: traced once per distinct structure of their arguments, then replayed as one plan."""
# Tests: tests/core/compile/test_compile.py

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar
from weakref import WeakSet

from weft.autograd.context import context, default_device
from weft.core.args.handle import Handle
from weft.core.args.modes import numerics
from weft.core.args.structure import Key, Same, flatten, is_named_tuple, tensors_in
from weft.core.compile.aliases import disambiguate_captures
from weft.core.compile.direct_call import MISS, DirectCall
from weft.core.compile.make_replay import make_replay
from weft.core.compile.recording import Left, Recording
from weft.core.compile.replay import Replay
from weft.core.execute import run, tracing
from weft.core.execute.watched import hooks_of
from weft.errors import ArgumentError
from weft.ir import graph
from weft.ir.forks import forkable
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.core.execute.explanation import Explanation, Profile
    from weft.core.tensor.tensor import Tensor

P = ParamSpec("P")
R = TypeVar("R")

TRACES_KEPT = 64
"""Traces kept per function; the least recently used goes first."""

VARIANTS_KEPT = 8
"""Traces kept for equal arguments and different captured tensors or modes of modules."""

_WARN_AT = 8

_LEFT_BEFORE = 2
"""Traces that a function leaves before it is no longer traced: many look at values in their first call only."""


@dataclass(slots=True)
class _Broken:
    """The record of calls that look at values: how the last was, and how many traces were left."""

    last: Left
    count: int

    def holds(self) -> bool:
        """True where the next call is not worth a trace."""
        return self.count >= _LEFT_BEFORE and self.is_alike(self.last)

    def is_alike(self, other: Left) -> bool:
        """True where the modules that were called train or not as they did in another call."""
        return all(module.training is training for module, training in other.modes)


class CompiledFunction(Generic[P, R]):
    """A compiled function; see `compile`."""

    numerics: Literal["free", "same"] | None = None
    """The mode of `weft.numerics` that calls are made in; None for the caller's."""

    def __init__(self, fn: Callable[P, R], fullgraph: bool = False, dynamic: bool | None = None) -> None:
        self.fn, self.fullgraph, self.dynamic = fn, fullgraph, dynamic
        self._replays: OrderedDict[Key, list[Replay]] = OrderedDict()
        self._last: dict[Key, Replay] = {}  # the last trace, kept to be run again or not
        self._recent: Replay | None = None
        self._direct: DirectCall | None = None  # that of the most recent trace
        self._tried: dict[Key, None] = {}  # the oldest first, as in _last
        self._broken: OrderedDict[Key, _Broken] = OrderedDict()
        self._lock = forkable(threading.RLock())
        self._warned = False
        update_wrapper(self, fn, updated=())
        _made.add(self)

    @property
    def asked(self) -> dict[str, Any]:
        """The arguments of `compile` that it was made with."""
        return {"fullgraph": self.fullgraph, "dynamic": self.dynamic, "numerics": self.numerics}

    def forget(self) -> None:
        """Trace anew when called again."""
        with self._lock:
            for kept in (self._replays, self._last, self._tried, self._broken):
                kept.clear()
            self._recent = self._direct = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        direct = self._direct
        if direct is not None and not kwargs:
            result = direct(args)
            if result is not MISS:
                return result
        replay = self._recent
        if replay is not None and not kwargs and replay.accepts(args):
            objects = replay.gather(args)
            if objects is not None:
                self._direct = replay.direct
                return replay.run(objects)
        return self.called(args, kwargs)

    def __get__(self, owner: object, cls: type | None = None) -> Any:
        """As a method: the object comes first."""
        call: Any = self
        return self if owner is None else partial(call, owner)

    def __getattr__(self, name: str) -> Any:
        if name == "fn":  # not there yet
            raise AttributeError(name)
        return getattr(self.fn, name)

    def __repr__(self) -> str:
        return f"<weft.compile of {name_of(self.fn)}: {len(self._replays)} traces>"

    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call with these arguments, which are passed on as they are."""
        if tracing.current() is not None or context().stand_ins:
            fn: Callable[..., Any] = self.fn
            return fn(*args, **kwargs)
        if self._broken:
            broken = self._broken.get(self._asked(args, kwargs))
            if broken is not None and broken.holds():
                fn = self.fn
                return fn(*args, **kwargs)
        tensors: list[Tensor] = []
        key = self._key(args, kwargs, tensors)
        if key is None:
            fn = self.fn
            return fn(*args, **kwargs)
        with self._lock:
            replays = self._replays.get(key)
            shortest = replays[0].shortest if replays else None
            if replays and shortest is not None:
                self._replays.move_to_end(key)
                self._remember(replays[0], tensors)
        if shortest is not None and (result := shortest(tensors)) is not MISS:
            return result
        with self._lock:
            found = self._matching(key, tensors)
            if found is None:
                return self._trace(key, args, kwargs, tensors)
            self._replays.move_to_end(key)
            self._remember(found[0], tensors)
        return found[0].run(found[1])

    def _remember(self, replay: Replay, tensors: Sequence[Tensor]) -> None:
        """The next call tries this trace first: not where the gradients of arguments may have hooks, which are part of
        the key only."""
        if any(t.value.needs_grad for t in tensors):
            self._recent = self._direct = None
        else:
            self._recent, self._direct = replay, replay.direct

    def _matching(self, key: Key, tensors: list[Tensor]) -> tuple[Replay, list[Any]] | None:
        """The trace for this key which also fits what it captured, with the tensors it uses."""
        for replay in self._replays.get(key, ()):
            objects = replay.gather(tensors)
            if objects is not None:
                return replay, objects
        return None

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Key | None:
        """The key of a trace: all that it depends on. Realizes the tensors, so that each has memory and a
        device; None where one of them is on "meta", so that there is nothing to compute."""
        structure = flatten((args, kwargs), tensors, {})
        if any(t.value.node.device == run.META for t in tensors):
            return None
        specs: list[Key] = []
        for t in tensors:
            v = t.value
            run.realize_value(v)
            n = v.node
            place = n.storage.device.info.name
            specs.append(
                (n.shape, n.dtype, place, v.needs_grad, v.is_leaf, hooks_of(t) if v.needs_grad else ())
            )
        now = context()
        return (
            structure,
            tuple(specs),
            now.grad,
            now.casts,
            default_device(),
            now.pinned,
        )

    def _asked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
        """As `_key`, without computing anything."""
        tensors: list[Tensor] = []
        structure = flatten((args, kwargs), tensors, {})
        specs = [
            (v.node.shape, v.node.dtype, v.node.device, v.needs_grad, v.is_leaf, hooks_of(t))
            for t, v in ((t, t.value) for t in tensors)
        ]
        now = context()
        return structure, tuple(specs), now.grad, now.casts, default_device(), now.pinned

    def _trace(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
        """Trace the function, and run what was recorded."""
        self._drop_lost()
        self._watch_growth(key)
        asked = self._asked(args, kwargs)
        replay = make_replay(self.fn, args, kwargs, tensors, self.fullgraph, self.dynamic)
        if isinstance(replay, Left):
            before = self._broken.pop(asked, None)
            known = before is not None and before.is_alike(replay)
            result, left = replay.result, Left(None, replay.breaks, replay.modes)
            self._broken[asked] = _Broken(left, before.count + 1 if before is not None and known else 1)
            if len(self._broken) > TRACES_KEPT:
                self._broken.popitem(last=False)
            return result
        self._broken.pop(asked, None)
        if key in self._last:
            disambiguate_captures(self._last[key], replay, tensors)
        self._last.pop(key, None)
        self._last[key] = replay
        if replay.escapes and key not in self._tried:
            # State that the function makes on its first call (an optimizer's moments): it exists now, so the second
            # call is traced with it.
            self._tried[key] = None
        else:
            self._watch_names(self._replays.get(key, ()))
            self._replays[key] = [replay, *self._replays.get(key, ())][:VARIANTS_KEPT]
            self._remember(replay, tensors)
            if len(self._replays) > TRACES_KEPT:
                oldest, _ = self._replays.popitem(last=False)
                self._last.pop(oldest, None)
        for table in (self._last, self._tried):
            while len(table) > TRACES_KEPT:
                table.pop(next(iter(table)))
        objects = replay.objects(tensors)
        assert objects is not None, "what was just traced fits"
        return replay.run(objects)

    def _drop_lost(self) -> None:
        """Let go of traces that no call is to find again, and of the tensors that only they have."""
        for key, replays in list(self._replays.items()):
            self._replays[key] = [r for r in replays if not r.lost]
            if not self._replays[key]:
                del self._replays[key]
        for key in [key for key, replay in self._last.items() if replay.lost]:
            del self._last[key]
        if self._recent is not None and self._recent.lost:
            self._recent = self._direct = None

    def _watch_growth(self, key: Key) -> None:
        if len(self._replays) >= _WARN_AT and not self._warned:
            self._warned = True
            warnings.warn(
                f"weft.compile: {name_of(self.fn)} has been traced {len(self._replays)} times, now for arguments "
                f"{_show(key)}; Python values and shapes that change from call to call are traced each time: "
                "pass numbers as tensors, and pad to a few sizes",
                stacklevel=5,
            )

    def _watch_names(self, replays: Sequence[Replay]) -> None:
        if len(replays) < VARIANTS_KEPT or self._warned:
            return
        name = replays[0].recording.modules.names.changed()
        if name:
            self._warned = True
            warnings.warn(
                f"weft.compile: {name_of(self.fn)} has been traced {len(replays) + 1} times for equal arguments, now "
                f"since {name} has changed: pass what is another value at each call as an argument, as a tensor",
                stacklevel=5,
            )

    def recorded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recording | None:
        """The recording of such a call, in the caller's mode, if it can be run as things are."""
        tensors: list[Tensor] = []
        key = self._key(args, kwargs, tensors)
        with self._lock:
            found = None if key is None else self._matching(key, tensors)
        return None if found is None else found[0].recording

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tracing.GraphBreak, ...]:
        """The places where such calls ask for values, once they are not traced any more; none where they may be."""
        broken = self._broken.get(self._asked(args, kwargs))
        return broken.last.breaks if broken is not None and broken.holds() else ()

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """The kernels that a call with these arguments runs, with their times. The call is made twice: once to trace
        and warm up, once with a clock at every kernel. Where the function asks for values, `breaks` says where, and the
        kernels are those of all segments, without times."""
        self(*args, **kwargs)
        if self._broken.get(self._asked(args, kwargs)) is not None:
            return self._explain_segments(args, kwargs)
        replay, objects = self._current(args, kwargs)
        return replay.explain(objects)

    def _explain_segments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
        from weft.core.execute.explanation import ExplainedKernel, Explanation, explain_nodes

        kernels: list[ExplainedKernel] = []
        asked, fn = self._asked(args, kwargs), self.fn
        with tracing.watching(lambda nodes: kernels.extend(explain_nodes(nodes).kernels)):
            result: Any = fn(*args, **kwargs)
            found: list[Tensor] = []
            flatten(result, found, {})
        kernels.extend(explain_nodes([t.value.node for t in found]).kernels)
        return Explanation(tuple(kernels), breaks=self._broken[asked].last.breaks)

    def profile(self, *args: P.args, **kwargs: P.kwargs) -> Profile:
        """Make the call, and say how long each kernel took: none where it runs in segments."""
        self(*args, **kwargs)
        if self._broken.get(self._asked(args, kwargs)) is not None:
            from weft.core.execute.explanation import Profile

            return Profile(())
        replay, objects = self._current(args, kwargs)
        return replay.profile(objects)

    def _current(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Replay, list[Any]]:
        for _ in range(3):
            tensors: list[Tensor] = []
            key = self._key(args, kwargs, tensors)
            found = None if key is None else self._matching(key, tensors)
            if found is not None:
                return found
            self(*args, **kwargs)  # pyright: ignore[reportCallIssue]
        raise ArgumentError(
            f"compile: {name_of(self.fn)} makes new state in every call, so no plan of it can be kept"
        )


class InMode(CompiledFunction[P, R]):
    """A compiled function whose calls are made in a mode of `weft.numerics`."""

    def __init__(
        self, fn: Callable[P, R], mode: Literal["free", "same"], fullgraph: bool, dynamic: bool | None
    ) -> None:
        self.numerics = mode
        super().__init__(fn, fullgraph, dynamic)

    def _mode(self) -> numerics:
        """The mode, as a context of its own: calls of several threads end in any order."""
        assert self.numerics is not None
        return numerics(self.numerics)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._mode():
            result = super().__call__(*args, **kwargs)
            # those that require grad are not computed yet, and would be in the caller's mode
            for t in tensors_in(result):
                if context().trace is None:
                    run.realize_value(t.value)
            return result

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        with self._mode():
            return super().explain(*args, **kwargs)

    def profile(self, *args: P.args, **kwargs: P.kwargs) -> Profile:
        with self._mode():
            return super().profile(*args, **kwargs)


def compiled(
    fn: Callable[P, R], fullgraph: bool, dynamic: bool | None, mode: Literal["free", "same"] | None
) -> CompiledFunction[P, R]:
    """The compiled form of a function, whose calls are made in the mode of `weft.numerics`, if one is given."""
    if mode is None:
        return CompiledFunction(fn, fullgraph, dynamic)
    return InMode(fn, mode, fullgraph, dynamic)


_made: WeakSet[CompiledFunction[..., Any]] = WeakSet()


def living() -> list[CompiledFunction[..., Any]]:
    """The compiled functions that somebody has."""
    return list(_made)


def _forget() -> None:
    """Recordings may name devices that are gone."""
    for function in living():
        function.forget()


graph.watch_forgetting(_forget)


def name_of(fn: Any) -> str:
    """The name of a function, for people."""
    return getattr(fn, "__qualname__", None) or type(fn).__name__


def _show(key: Any) -> str:
    """A key, for people: the structure with the tensors' dtypes and shapes."""
    (_, args, kwargs), specs, *_ = key
    shown = _text(args, specs)
    return shown if len(kwargs) <= 2 else f"{shown} {_text(kwargs, specs)}"


def _text(k: Any, specs: Sequence[Any]) -> str:
    if isinstance(k, Same):
        return repr(k)
    kind, *parts = k
    if kind is Handle:
        shape, dtype, *_ = specs[parts[0]]
        return f"{dtype.short}{list(shape)}"
    if kind is float:
        return repr(float.fromhex(parts[0]))
    if kind is dict:
        names, *values = parts
        inner = ", ".join(f"{name[1]}: {_text(v, specs)}" for name, v in zip(names, values, strict=True))
        return f"{{{inner}}}"
    if kind in (tuple, list) or is_named_tuple(kind):
        return f"({', '.join(_text(p, specs) for p in parts)})"
    if is_dataclass(kind):
        return f"{name_of(kind)}({', '.join(_text(p, specs) for p in parts)})"
    return repr(parts[0])
