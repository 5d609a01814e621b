"""Arguments that the function also knows by itself.

    t = weft.ones(3)
    f = weft.compile(lambda x: 2 * x + t)
    f(t), f(u)

In the first call x and t are one tensor, so one trace cannot tell where the function reads its argument, and where the
tensor that it captured. An argument that nothing but the call refers to cannot be captured, and may be any other tensor
in later calls. Where something else does - a list, a module, a variable of the function's - the trace is good for calls
with just this argument: it is bound. A trace of a call with another one shows whether the first is captured; arguments
that are not are unbound.

References are counted, so that one of which the collector does not know (an array's of objects, an extension's) is one
too many, and binds. The known ones are those of the arguments' containers, of variables of running functions, and of
the interpreter while it calls.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from inspect import CO_OPTIMIZED, currentframe
from sys import getrefcount
from types import FrameType
from typing import TYPE_CHECKING, Any, cast
from weakref import getweakrefs, ref

from weft.core.execute import holding
from weft.core.execute.routes import is_free_threaded

if TYPE_CHECKING:
    from weft.core.compile.replay import Replay


class Argument(ref[Any]):
    """A trace's weak reference to its argument: of a class of its own, so that no program has the same object."""

    __slots__ = ()


def may_be_captured(args: tuple[Any, ...], kwargs: Mapping[str, Any], tensors: list[Any]) -> set[int]:
    """The numbers of the arguments to which there are references, weak ones too, beside the known ones."""
    if not tensors:
        return set()
    known = _variables()  # by identity, how many references to an object are known
    containers = [*_containers(args), *_containers(kwargs)]
    ours = {id(tensors), id(containers), *map(id, containers)}
    holders = [h for h in gc.get_referrers(*tensors, *containers) if id(h) not in ours]
    calls, forms = _calls(), {tuple: 0, dict: 0}  # the containers in which the interpreter hands on arguments
    for h, count in zip(holders, _references(holders), strict=True):
        kind = h.__class__
        if count > known[id(h)] and forms.get(kind, len(calls)) < len(calls) and _is_of_call(h, args, kwargs):
            forms[kind] += 1
            count -= 1
        if count <= known[id(h)]:
            known.update(map(id, gc.get_referents(h)))
    # Where it calls so, it may have them on its stack besides, and again to put named ones in their places.
    passed = max(forms.values())
    for _ in range(min(passed, sum(calls)) + (passed if kwargs else 0)):
        known.update(map(id, (*args, *kwargs.values())))
    for c, count in zip(containers, _references(containers), strict=True):  # each after the one that it is in
        if count <= known[id(c)]:
            known.update(map(id, gc.get_referents(c)))
    held = {k for k, (t, n) in enumerate(zip(tensors, _references(tensors), strict=True)) if n > known[id(t)]}
    return held | _weakly_held(tensors, known)


def _weakly_held(tensors: list[Any], known: Counter[int]) -> set[int]:
    """The numbers of the tensors to which there are weak references that are not weft's own."""
    known.update(map(id, holding.references()))
    found: set[int] = set()
    for k, t in enumerate(tensors):
        if t.look is not None:
            known.update(map(id, t.look.shared.members))
        weak = [w for w in getweakrefs(t) if w.__class__ is not Argument]
        if any(n > known[id(w)] for w, n in zip(weak, _references(weak), strict=True)):
            found.add(k)
    return found


def _references(objects: list[Any]) -> list[int]:
    """The number of references to each, beside that of the list `objects`."""
    return [n - _OWN for n in _counts(objects)]


def _counts(objects: list[Any]) -> list[int]:
    return [getrefcount(x) for x in objects]


_OWN = _counts([object()])[0]
"""The references that counting takes, with that of the list."""


_EXACT = sys.version_info < (3, 14) and not is_free_threaded()
"""True where the interpreter counts the references of variables: others borrow some, and then all arguments are bound
at first."""


def _variables() -> Counter[int]:
    """The numbers of variables of this thread's running functions that refer to objects, by identity."""
    known: Counter[int] = Counter()
    frame = currentframe() if _EXACT else None
    while frame is not None:
        code = frame.f_code
        if code.co_flags & CO_OPTIMIZED:
            variables = frame.f_locals
            plain = [n for n in code.co_varnames if n in variables and n not in code.co_cellvars]
            known.update([id(variables[n]) for n in plain])
            if sys.version_info < (3, 13) and getrefcount(variables) == _FRAMES_OWN:
                variables.clear()  # it would keep what the variables referred to until the function ends
        frame = frame.f_back
    return known


_FRAMES_OWN = 3
"""The references to a frame's dict of variables that nobody else looks at: the frame's, a variable's, the call's."""


def _calls() -> list[bool]:
    """For each call that leads from the program here by way of a tuple, True where its stack has the arguments too."""
    found: list[bool] = []
    frame = currentframe()
    while frame is not None and _is_in(frame, "weft.core.compile."):
        frame = frame.f_back
    while frame is not None:
        name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX"):
            found.append(name != "CALL_FUNCTION_EX")
        frame = frame.f_back if _is_in(frame, "weft.") else None
    return found


def _is_in(frame: FrameType, package: str) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name.startswith(package)


def _is_of_call(x: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True for a tuple or dict of just these arguments."""
    if isinstance(x, dict):
        given = cast("dict[Any, Any]", x)
        return given.keys() == kwargs.keys() and all(given[k] is v for k, v in kwargs.items())
    return len(x) == len(args) and all(a is b for a, b in zip(x, args, strict=True))


def _containers(x: Any) -> Iterator[Any]:
    """The containers that the arguments are made of, without the tensors."""
    parts: Sequence[Any]
    if isinstance(x, Mapping):
        parts = list(cast("Mapping[Any, Any]", x).values())
    elif isinstance(x, tuple | list):
        parts = cast("Sequence[Any]", x)
    elif is_dataclass(x):
        parts = (
            (vars(x),) if hasattr(x, "__dict__") else [getattr(x, n, None) for n in x.__dataclass_fields__]
        )
    else:
        return
    yield x
    for part in parts:
        yield from _containers(part)


def disambiguate_captures(before: Replay, now: Replay, tensors: Sequence[Any]) -> None:
    """Unbind the arguments of two traces of the same structure that are found not to be captured.

    `tensors` are the arguments of the later trace. Nothing is told where the traces did not do the same.
    """
    first = {k: t() for k, t in before.arguments.items()}
    ids, new = {id(t) for t in first.values() if t is not None}, set(map(id, tensors))
    alike = now.captured_ids <= before.captured_ids | ids and before.captured_ids <= now.captured_ids | new
    if not alike or before.modes() != now.modes():
        return
    unknown = ids & new  # the same tensor both times
    _unbind(before, {id(t): k for k, t in first.items() if t is not None}, unknown | now.captured_ids)
    _unbind(now, {id(t): k for k, t in enumerate(tensors)}, unknown | before.captured_ids)


def _unbind(replay: Replay, arguments: dict[int, int], suspects: frozenset[int] | set[int]) -> None:
    """Leave those arguments bound that are among the suspects, given by identity."""
    free = {number for identity, number in arguments.items() if identity not in suspects}
    kept: dict[int, ref[Any]] = {k: t for k, t in replay.bound.items() if k not in free}
    if len(kept) < len(replay.bound):
        replay.bind(kept)
