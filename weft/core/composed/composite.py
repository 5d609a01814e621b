"""Functions of tensors that are composed of many ops: run once for each structure of their arguments, then called.

    @composite
    def softplus(input, beta=1.0, threshold=20.0): ...

What such a function builds follows from the shapes, dtypes and devices of its tensors and from its other arguments. The
first call with new ones runs it on placeholders and records the graph; this and every later call is one node (see
ir/calls.py). Gradients are recorded in the same way, when they are first asked for, and are a node each. What differs
from earlier calls in sizes only is mostly made of what these recorded: see sized.py.

A function can be recorded if it reads nothing else: no values, no random numbers, no state, no modes but those that are
part of the key here; and changes nothing. Constants are arguments like others: their values are no part of the key, and
what they simplify is simplified when somebody looks inside. It makes a tensor that is no view, or a tuple of such;
their gradients are recorded one by one, so results that share products had better be calls one after the other. Where
forms are verified (WEFT_VERIFY=1), a function is recorded again now and then, and both graphs are compared.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeAlias, TypeVar, cast, overload

from weft import settings
from weft.autograd.context import context, grad_enabled, grad_mode, switched
from weft.autograd.repeated import rules_of
from weft.autograd.value import Value
from weft.core.args.defaults import get_default_dtype
from weft.core.args.handle import Handle, wrap, wrap_constant, wrap_untracked
from weft.core.composed.learned import Calls, Sizes, alike
from weft.core.composed.precision import rounded_once
from weft.core.composed.sized import SizedCalls
from weft.core.execute import recordings
from weft.errors import WeftError, wraps_calls
from weft.ir import graph
from weft.ir.calls import Given, GraphCall, recorded
from weft.ir.dtypes import DType
from weft.ir.errors import IRError
from weft.ir.forks import forkable
from weft.ir.graph import Shape
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

wraps_calls(__file__)

P = ParamSpec("P")
R = TypeVar("R")
Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

KEPT = 1024
"""Structures whose graphs are kept, some 30 KB each; the least recently used goes first."""

CHECKED_EVERY = 32
"""The number of calls after which a function is recorded again, where forms are verified."""

FEW = 1
"""A function that makes no more nodes than this is run: a call would save nothing."""

_SIMPLE = frozenset({int, float, bool, str, type(None), DType})
"""Types of arguments that are part of the key by value. (A zero is named, since 0.0 and -0.0 are equal.)"""


_WRONG = (WeftError, IRError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of functions that are recorded."""


class ReadsValuesError(LookupError):
    """A function that is recorded wants to look at values."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A function's results for arguments of one structure. `args` and `kwargs` have the numbers of the tensors
    in their places; no `results` where the function has to be run. `several` makes a tuple of them."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: tuple[_Argument, ...] = ()
    """Its tensors."""
    records: tuple[Value, ...] = ()
    """Placeholders for these, on which it was recorded; none where its calls are made of those of other sizes."""
    results: tuple[_Result, ...] = ()
    several: Callable[[list[Any]], Any] | None = None
    dtype: DType | None = None
    """The default dtype with which it was recorded."""
    grad: bool = False
    """True where it was recorded in grad mode."""
    family: _Family | None = None
    used: int = 0
    """The time of its last use: a number that grows."""
    checked_in: int = 0
    """The number of calls after which it is recorded again; 0 for never."""

    def run(self, values: Sequence[Value]) -> Any:
        """The function itself, on these values."""
        args = [wrap_untracked(values[a.number]) if isinstance(a, _Place) else a for a in self.args]
        kwargs = {
            k: wrap_untracked(values[a.number]) if isinstance(a, _Place) else a
            for k, a in self.kwargs.items()
        }
        return without_calls(self.function)(*args, **kwargs)

    def at(self, sizes: Sizes) -> _Entry:
        """The function recorded at other sizes, in the modes of its first recording: gradients are asked for later."""
        with switched(grad=self.grad, dtype=self.dtype):
            return _record(self.again(_resized(self.given, sizes)))

    def again(self, given: tuple[_Argument, ...]) -> _Entry:
        """An entry without results for other tensors."""
        return _Entry(self.function, self.args, self.kwargs, given, dtype=self.dtype, grad=self.grad)

    def record(self) -> bool:
        """Record what was made without recording, since somebody has to know how results are made; False where that
        is not to be had."""
        if not self.records:
            again = self.at(_sizes(self.given))
            if len(again.results) != len(self.results):
                return False
            self.records = again.records
            for own, other in zip(self.results, again.results, strict=True):
                own.made = other.made
        return True

    def takes(self, inputs: Sequence[Value]) -> bool:
        """True for tensors like its own."""
        for v, own in zip(inputs, self.given, strict=True):
            n = v.node
            if n.shape != own.shape or n.dtype is not own.dtype:
                return False
            if n.device != own.device and n.device is not None:
                return False
        return True


@dataclass(slots=True)
class _Family:
    """Entries that are alike but for sizes: their calls, and those of each result's gradients."""

    name: str | None = None
    """The name of its record on disk, if it may have one."""
    calls: SizedCalls = field(default_factory=SizedCalls)
    backward: dict[int, SizedCalls] = field(default_factory=dict[int, SizedCalls])
    results: tuple[tuple[bool, str | None], ...] = ()
    """The device of each result, after True where it needs a gradient; none before something was recorded."""
    several: Callable[[list[Any]], Any] | None = None
    like: _Entry | None = None
    """One of them."""

    def takes(self, entry: _Entry) -> None:
        """Take in an entry that was recorded."""
        made = [r.made for r in entry.results if r.made is not None]
        self.results = tuple([(v.needs_grad, v.node.device) for v in made])
        self.several, self.like = entry.several, entry

    def keep(self) -> None:
        """Write what is new to disk."""
        parts = (self.calls, *self.backward.values())
        if self.name is None or self.like is None or not any(p.changed for p in parts):
            return
        kind = getattr(self.several, "__self__", self.several)  # of a named tuple's `_make`
        record = {
            "tensors": len(self.like.given),
            "results": self.results,
            "several": None if kind is None else [kind.__module__, kind.__qualname__],
            "calls": self.calls.written(),
            "backward": [[k, c.written()] for k, c in self.backward.items()],
        }
        recordings.keep(self.name, record)
        for p in parts:
            p.changed = False

    @staticmethod
    def found(name: str | None) -> _Family:
        """The family of that name as earlier processes left it."""
        return recordings.found(name, lambda record: _Family._read(name, record)) or _Family(name)

    @staticmethod
    def _read(name: str | None, record: Any) -> _Family:
        several: Any = None
        if record["several"] is not None:
            module, qualname = record["several"]
            several = tuple if module == "builtins" else getattr(sys.modules[module], qualname)._make
        results = tuple([(bool(needs), _device(device)) for needs, device in record["results"]])
        calls = SizedCalls.read(record["calls"], len(results))
        backward = {int(k): SizedCalls.read(c, int(record["tensors"])) for k, c in record["backward"]}
        return _Family(name, calls, backward, results, several)


def _device(record: Any) -> str | None:
    if record is not None and not isinstance(record, str):
        raise ValueError("no device's name")
    return record


@dataclass(slots=True, eq=False)
class _Result:
    """One result of an entry: `made` of its records, if it has any. `backward` are its gradients, once they were asked
    for."""

    entry: _Entry
    number: int
    call: GraphCall
    needs_grad: bool
    made: Value | None = None
    backward: list[GraphCall | Given | None] | None = None
    whole: bool = True
    """True where the gradients can be recorded."""

    def on(self, values: Sequence[Value]) -> Tensor:
        """This result for other values."""
        node = self.call.on([v.node for v in values])
        if self.needs_grad:
            return wrap(Value(node, True, None, None, tuple(values), self.rule))
        return wrap_constant(node)

    def rule(self, g: Value, out: Value, *inputs: Value) -> tuple[Value | None, ...]:
        """The vector-Jacobian product."""
        fits = g.node.shape == out.node.shape and self.entry.takes(inputs)
        if fits and self.whole and calls_are_made() and not grad_enabled():
            if self.backward is None:
                self.find_gradients()
            if self.backward is not None:
                nodes = (g.node, out.node, *(x.node for x in inputs))
                return tuple([None if c is None else Value(c.on(nodes)) for c in self.backward])
        return self.composed_gradients(g, inputs)

    def composed_gradients(self, g: Value, inputs: Sequence[Value]) -> tuple[Value | None, ...]:
        """The same by running the function again, so that the gradients can be differentiated."""
        from weft.autograd.reverse import gradients

        with switched(grad=True, dtype=self.entry.dtype):
            own = [Value(x.node, True, Op.RESHAPE, None, (x,)) if x.needs_grad else x for x in inputs]
            again = self.entry.run(own)
            y: Value = (again if self.entry.several is None else again[self.number]).value
        wanted = [x for x in own if x.needs_grad]
        found = gradients([y], [g], wanted, grad_enabled(), past=False)
        return tuple([found.get(x) for x in own])

    def find_gradients(self) -> None:
        """The vector-Jacobian product: made of those of other sizes, or recorded."""
        entry = self.entry
        family = entry.family
        if family is None:
            self.record_gradients()
            return

        def at(sizes: Sizes) -> Calls | None:
            results = entry.at(sizes).results
            try:
                return results[self.number].gradient_calls() if results else None
            except _WRONG:  # of sizes that nobody asked for
                return None

        known = family.backward.setdefault(self.number, SizedCalls())
        sizes = _sizes(entry.given)
        calls = known.at(sizes, at)
        if calls is None:
            calls = self.gradient_calls()
            if calls is not None:
                known.add(sizes, calls)
            return
        if settings.verify():
            _compare(calls, at(sizes), entry.function)
        self.backward = list(calls)

    def gradient_calls(self) -> Calls | None:
        """The vector-Jacobian product, recorded; None where it cannot be."""
        self.record_gradients()
        return None if self.backward is None else tuple(self.backward)

    def record_gradients(self) -> None:
        """Record the vector-Jacobian product."""
        from weft.autograd.reverse import gradients

        if not self.entry.record() or self.made is None:
            self.whole = False
            return

        out, records = self.made, self.entry.records
        seed = Value(graph.buffer(out.shape, out.dtype, out.node.device, None))
        wanted = [x for x in records if x.needs_grad]
        found = without_calls(gradients)([out], [seed], wanted, False, past=False)
        # the result is an input too: where it is stored already it is read
        given = [seed.node, out.node, *(x.node for x in records)]
        passed = {x: Given(given.index(v.node)) for x, v in found.items() if v.node in given}
        made = [x for x in found if x not in passed]
        calls = recorded(given, [found[x].node for x in made])
        if isinstance(calls, str):
            self.whole = False
            return
        known: dict[Value, GraphCall | Given] = {**passed, **dict(zip(made, calls, strict=True))}
        self.backward = [known.get(x) for x in records]


rules_of(_Result)


class _Argument(NamedTuple):
    """A tensor among the arguments."""

    shape: Shape
    dtype: DType
    device: str | None
    needs_grad: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of tensor `number` among the arguments."""

    number: int


_entries: dict[tuple[Any, ...], _Entry] = {}
_families: dict[tuple[Any, ...], _Family] = {}
_keeping = forkable(threading.RLock())
_clock = itertools.count()


@overload
def composite(function: Callable[P, R]) -> Callable[P, R]: ...


@overload
def composite(
    *, autocast: Decorator | None = None, rounds_once: bool = True, recorded: bool = True
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def composite(
    function: Callable[..., Any] | None = None,
    *,
    autocast: Decorator | None = None,
    rounds_once: bool = True,
    recorded: bool = True,
) -> Any:
    """Declare what holds for a function that is composed of several ops; the order is always this one.

    recorded: its graph is recorded for each structure of its arguments, and its calls are nodes: see the top of this
        file for what it must not do.
    autocast: what `autocast` does with its tensors before they are looked at: `lowers`, `widens`, `widens_on_gpus`.
    rounds_once: 16-bit floats are computed in float32 inside (see precision.py). False leaves that to the function:
        what moves, compares or takes apart elements, and what has operands that do not decide the result's dtype.
    """

    def declared(function: Callable[..., Any]) -> Callable[..., Any]:
        run = rounded_once(function) if rounds_once else function
        run = run if autocast is None else autocast(run)
        return _recording(run) if recorded else run

    return declared if function is None else declared(function)


def _recording(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, recorded for each structure of its arguments."""
    run = function

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        now = context()
        if now.inline or now.casts is not None or now.trace is not None:
            return run(*args, **kwargs)
        values: list[Value] = []
        home: str | None = None
        key: list[Any] = [function, len(args), *kwargs]
        for a in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(a, Handle):
                v = a.value
                n = v.node
                if n.device is not None:
                    home = n.device
                elif n.op is Op.BUFFER:  # in a file
                    return run(*args, **kwargs)
                values.append(v)
                key += (n.shape, n.dtype, n.device, v.needs_grad)
            elif a.__class__ in _SIMPLE:
                key += (a.__class__, a or repr(a))
            elif a.__class__ is tuple and all(i.__class__ in _SIMPLE for i in a):
                key.append(repr(a))
            else:
                return run(*args, **kwargs)
        if home is None:  # all are constants
            return run(*args, **kwargs)
        key += (get_default_dtype() if now.dtype is None else now.dtype, now.grad)
        whole = tuple(key)
        entry = _entries.get(whole)
        if entry is None:
            entry = _recorded(run, args, kwargs, values, whole)
            _keep(whole, entry)
        elif entry.checked_in:
            _count_down(entry, values)
        entry.used = next(_clock)
        results = entry.results
        if not results:
            return run(*args, **kwargs)
        if entry.several is None:
            return results[0].on(values)
        return entry.several([r.on(values) for r in results])

    def guarded_by(first: int, guard: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> None:
        """Look at arguments by `guard` before the function is run or recorded."""
        nonlocal run
        inner = run

        @wraps(inner)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            guard(args, kwargs)
            return inner(*args, **kwargs)

        run = guarded

    taking: Any = call
    taking.guarded_by = guarded_by
    return call


def _keep(key: tuple[Any, ...], entry: _Entry) -> None:
    """Enter a structure. Where there are too many, those that were used longest ago are forgotten: an eighth, so that
    not every new one looks at all."""
    with _keeping:
        if len(_entries) >= KEPT:
            many = len(_entries) - KEPT + KEPT // 8 + 1
            for oldest in sorted(_entries, key=lambda k: _entries[k].used)[:many]:
                del _entries[oldest]
        _entries[key] = entry


def _count_down(entry: _Entry, values: Sequence[Value]) -> None:
    """Run the function again where forms are verified: at the second call and every `CHECKED_EVERY`th after.
    IRError where it does not build what was recorded: it reads what is not among its arguments."""
    entry.checked_in -= 1
    if entry.checked_in:
        return
    entry.checked_in = CHECKED_EVERY
    again = _record(entry.again(_arguments(values)))
    if not alike([r.call for r in again.results], [r.call for r in entry.results]):
        name = entry.function.__name__
        raise IRError(
            f"{name} builds another graph than when it was recorded, for the same structure of arguments: it reads "
            f"a value, a flag or a mode that is not in the key of composite.py; pass it as an argument",
            "composite",
        )


def _recorded(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    values: Sequence[Value],
    key: tuple[Any, ...],
) -> _Entry:
    """The function's calls for the values: made of those at other sizes, or recorded on placeholders; an entry without
    a call where it has to be run."""
    given = _arguments(values)
    sizes = _sizes(given)
    if not _known(sizes):
        return _record(_first(function, args, kwargs, given))
    family = _family(key, sizes, given)
    like = family.like  # whose arguments are equal, but for the tensors
    entry = _first(function, args, kwargs, given) if like is None else like.again(given)
    calls = family.calls.at(sizes, _recorder(like or entry)) if family.results else None
    if calls is None:
        _record(entry)
        if entry.results:
            family.calls.add(sizes, tuple([r.call for r in entry.results]))
            entry.family = family
            family.takes(entry)
    else:
        _make(entry, family, calls)
    if entry.results and settings.verify():
        if calls is not None:
            _compare(calls, _recorder(entry)(sizes), function)
        entry.checked_in = 1
    return entry


def _first(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], given: tuple[_Argument, ...]
) -> _Entry:
    """An entry without results for these arguments."""
    places = iter(range(len(given)))
    own = tuple([_Place(next(places)) if isinstance(a, Handle) else a for a in args])
    named = {k: _Place(next(places)) if isinstance(a, Handle) else a for k, a in kwargs.items()}
    return _Entry(function, own, named, given, dtype=get_default_dtype(), grad=context().grad)


def _recorder(entry: _Entry) -> Callable[[Sizes], Calls | None]:
    """The function that records an entry's calls at other sizes."""

    def at(sizes: Sizes) -> Calls | None:
        results = entry.at(sizes).results
        return tuple([r.call for r in results]) if results else None

    return at


def _make(entry: _Entry, family: _Family, calls: Calls) -> None:
    """Fill in an entry by calls that were recorded at other sizes."""
    entry.family = family
    results: list[_Result] = []
    for k, (call, (needs_grad, _)) in enumerate(zip(calls, family.results, strict=True)):
        assert isinstance(call, GraphCall)
        results.append(_Result(entry, k, call, needs_grad))
    entry.results, entry.several = tuple(results), family.several
    family.like = family.like or entry


def _family(key: tuple[Any, ...], sizes: Sizes, given: Sequence[_Argument]) -> _Family:
    """The entries with keys that differ from this one in sizes only, where the same of these are equal: rules simplify
    by that, so a template for all sizes serves none where they are not (a layer as wide as it is long)."""
    at = (*[len(k) if k.__class__ is tuple else k for k in key], tuple(map(sizes.index, sizes)))
    found = _families.get(at)
    if found is None:
        made = _Family.found(recordings.name_of(key[0], at[1:], [g.device for g in given]))
        with _keeping:
            while len(_families) >= KEPT:
                del _families[next(iter(_families))]
            found = _families.setdefault(at, made)
    return found


@recordings.at_exit
def keep_recordings() -> None:
    """Write to disk what was recorded since the last time, for processes that come after."""
    for family in tuple(_families.values()):
        family.keep()


def _arguments(values: Sequence[Value]) -> tuple[_Argument, ...]:
    """The tensors of a call, constants where the others are."""
    nodes = [v.node for v in values]
    home = next(n.device for n in nodes if n.device is not None)
    return tuple([
        _Argument(n.shape, n.dtype, n.device or home, v.needs_grad)
        for n, v in zip(nodes, values, strict=True)
    ])  # fmt: skip


def _sizes(given: Sequence[_Argument]) -> Sizes:
    return tuple([n for g in given for n in g.shape])  # pyright: ignore[reportReturnType]


_INT = {int}


def _known(sizes: Sizes) -> bool:
    """True where none is a runtime variable."""
    return {n.__class__ for n in sizes} <= _INT


def _resized(given: Sequence[_Argument], sizes: Sizes) -> tuple[_Argument, ...]:
    """Tensors like these, of other sizes."""
    out: list[_Argument] = []
    at = 0
    for g in given:
        out.append(g._replace(shape=sizes[at : at + len(g.shape)]))
        at += len(g.shape)
    return tuple(out)


def _compare(calls: Calls, recorded: Calls | None, function: Callable[..., Any]) -> None:
    """IRError where calls that were made for a size are not those that are recorded there."""
    if recorded is None or not alike(calls, recorded):
        raise IRError(
            f"{function.__name__} builds another graph at some size than it does at those around: what is learned for "
            f"all sizes is wrong",
            "composite",
        )


def _record(entry: _Entry) -> _Entry:
    """The entry with what its function makes of placeholders for its tensors, if that is calls."""
    if not entry.given:
        return entry
    stands = [Value(graph.buffer(g.shape, g.dtype, g.device, None), g.needs_grad) for g in entry.given]
    try:
        with switched(recording=True):
            out: Any = entry.run(stands)
    except _WRONG:
        # what is wrong is said by the function that is run on the arguments themselves
        return entry
    parts = cast("tuple[Any, ...]", out if isinstance(out, tuple) else (out,))
    if not parts or not all(isinstance(t, Handle) and t.look is None for t in parts):
        return entry
    calls = recorded([v.node for v in stands], [t.value.node for t in parts])
    if not isinstance(calls, str) and max(len(c.template.rows) for c in calls) > FEW:
        entry.records = tuple(stands)
        entry.results = tuple(
            [
                _Result(entry, k, c, t.value.needs_grad, t.value)
                for k, (t, c) in enumerate(zip(parts, calls, strict=True))
            ]
        )
        if isinstance(out, tuple):
            entry.several = getattr(cast("Any", out), "_make", tuple)
    return entry


def values_are_read() -> None:
    """Said by what looks at values: the function that is recorded here, if any, has to be run each time."""
    if context().recording:
        raise ReadsValuesError


def calls_are_made() -> bool:
    """True where calls are made: not where they would be looked into at once or casts depend on a mode."""
    now = context()
    return not now.inline and now.casts is None and now.trace is None


def calls_of(
    build: Callable[[list[Tensor]], Sequence[Tensor]], values: Sequence[Value]
) -> list[GraphCall] | str:
    """Calls for what `build` makes of tensors like these values, without history; or why there are none."""
    stands = [Value(graph.buffer(v.shape, v.dtype, v.node.device, None)) for v in values]
    with grad_mode(False):
        made = without_calls(build)([wrap_untracked(v) for v in stands])
    return recorded([v.node for v in stands], [t.value.node for t in made])


def without_calls(function: Callable[P, R]) -> Callable[P, R]:
    """A function within which composed ones are run: for those who look into what they make."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with switched(inline=True):
            return function(*args, **kwargs)

    return call
