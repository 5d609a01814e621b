"""Arguments that the function also knows by itself.

    t = weft.ones(3)
    f = weft.compile(lambda x: 2 * x + t)
    f(t), f(u)

In the first call x and t are one tensor, so one trace cannot tell where the function reads its argument, and where the
tensor that it captured. That trace is good for calls with just this argument: it is bound. A trace of a call with
another argument shows whether t is captured; an argument that is not is unbound, and may be any tensor that the
function does not capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

from weft.core.replay import Replay


def tell_apart(before: Replay, now: Replay, tensors: Sequence[Any]) -> None:
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
