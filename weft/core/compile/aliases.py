"""Arguments that the function also knows by itself.

    t = weft.ones(3)
    f = weft.compile(lambda x: 2 * x + t)
    f(t), f(u)

In the first call x and t are one tensor, so one trace cannot tell where the function reads its argument, and where the
tensor that it captured. An argument that nothing but the call refers to cannot be captured, and may be any other tensor
in later calls. Where something else does - a list, a module, a variable of the function's - the trace is good for calls
with just this argument: it is bound. A trace of a call with another one shows whether the first is captured; arguments
that are not are unbound.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from types import FrameType, GeneratorType
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

if TYPE_CHECKING:
    from weft.core.compile.replay import Replay

_RUNNING = (FrameType, GeneratorType)


def may_be_captured(args: tuple[Any, ...], kwargs: Mapping[str, Any], tensors: list[Any]) -> set[int]:
    """The numbers of the arguments that something refers to beside the call and variables of running functions."""
    number = {id(t): k for k, t in enumerate(tensors)}
    call = {id(tensors), *map(id, _containers(args)), *map(id, _containers(kwargs))}
    holders = [h for h in gc.get_referrers(*tensors) if id(h) not in call] if tensors else []
    found: set[int] = set()
    for holder in holders:
        if not isinstance(holder, _RUNNING) and _is_held(holder, holders):
            found |= {number[id(x)] for x in gc.get_referents(holder) if id(x) in number}
    return found


def _is_held(x: Any, mine: list[Any]) -> bool:
    """True where anything refers to `x` but running functions and the list `mine`."""
    return any(h is not mine and not isinstance(h, _RUNNING) for h in gc.get_referrers(x))


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
