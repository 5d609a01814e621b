"""Many values joined: concatenations of many parts, and sums of many gradients that each fill their own place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

from weft.autograd.value import Value, apply, apply_fitting
from weft.ir import graph
from weft.ir.graph import Along, Fill, Padding
from weft.ir.index import Int
from weft.ir.ops import Op

AT_ONCE = 16
"""Parts that one kernel joins: its code tests for each of them where an element comes from."""


def joined(parts: Sequence[Value], k: int) -> Value:
    """The parts one after the other along axis k. Many are joined in groups that are in memory, and these again."""
    level = list(parts)
    while len(level) > 2 * AT_ONCE:
        groups = [level[i : i + AT_ONCE] for i in range(0, len(level), AT_ONCE)]
        level = [apply(Op.CONTIGUOUS, (joined(g, k),)) if len(g) > 1 else g[0] for g in groups]
    return level[0] if len(level) == 1 else apply(Op.CONCAT, tuple(level), Along(k))


def total(parts: Sequence[Value]) -> Value:
    """The sum. Of many parts that are zero but for places of their own along one axis, the places side by side.

    The slices of a long sequence, each used in its own step, have such gradients: added up one by one, every element
    would be touched as often as there are steps. Constant zeros, as rounding has them, are not added.
    """
    if len(parts) == 1:
        return parts[0]
    parts = [p for p in parts if not _is_zero(p)] or parts[:1]
    if len(parts) < AT_ONCE:
        return _sum(parts)
    rest: list[Value] = []
    by_axis: dict[int, list[tuple[int, int, Value]]] = {}
    for p in parts:
        place = _place(p)
        if place is None:
            rest.append(p)
        else:
            by_axis.setdefault(place[0], []).append((*place[1:], p))
    for k, places in by_axis.items():
        lanes = _lanes(places)
        rest += [_side_by_side(lane, k) if len(lane) > 2 else _sum([p for *_, p in lane]) for lane in lanes]
    return _sum(rest)


def _is_zero(part: Value) -> bool:
    fill = part.node.attrs
    return isinstance(fill, Fill) and fill.value == 0 and not part.needs_grad  # a zero may have a derivative


def _sum(parts: Sequence[Value]) -> Value:
    """One after the other; of many, sums of groups that are in memory, so that no kernel has hundreds of inputs."""
    level = list(parts)
    while len(level) > 2 * AT_ONCE:
        groups = [level[i : i + AT_ONCE] for i in range(0, len(level), AT_ONCE)]
        level = [apply(Op.CONTIGUOUS, (_added(g),)) for g in groups]
    return _added(level)


def _added(parts: Sequence[Value]) -> Value:
    return reduce(_plus, parts)


_plus = partial(apply_fitting, Op.ADD)


def _place(part: Value) -> tuple[int, int, int] | None:
    """The only axis along which the value is a PAD with zeros, and where what is padded begins and ends."""
    node = part.node
    if node.op is not Op.PAD or (part.needs_grad and part.op is not Op.PAD):
        return None
    a = node.attrs
    assert isinstance(a, Padding)
    axes = [k for k, (lo, hi) in enumerate(zip(a.low, a.high, strict=True)) if lo != 0 or hi != 0]
    if a.fill != 0 or any(a.interior) or len(axes) != 1:
        return None
    (k,) = axes
    start, size = a.low[k], node.inputs[0].shape[k]
    return (k, start, start + size) if isinstance(start, int) and isinstance(size, int) else None


def _lanes(places: Sequence[tuple[int, int, Value]]) -> list[list[tuple[int, int, Value]]]:
    """The places in as few rows as hold them without overlaps, each in order."""
    lanes: list[list[tuple[int, int, Value]]] = []
    for place in sorted(places, key=lambda p: p[:2]):
        for lane in lanes:
            if lane[-1][1] <= place[0]:
                lane.append(place)
                break
        else:
            lanes.append([place])
    return lanes


def _side_by_side(lane: Sequence[tuple[int, int, Value]], k: int) -> Value:
    """The padded values in one row along axis k, zeros in the gaps."""
    whole = lane[0][2]
    pieces: list[Value] = []
    at = 0

    def zeros(size: Int) -> Value:
        shape = (*whole.shape[:k], size, *whole.shape[k + 1 :])
        return Value(graph.const(0, whole.dtype, shape))

    for start, end, part in lane:
        if start > at:
            pieces.append(zeros(start - at))
        pieces.append(part.inputs[0] if part.needs_grad else Value(part.node.inputs[0]))
        at = end
    if whole.shape[k] != at:
        pieces.append(zeros(whole.shape[k] - at))
    return joined(pieces, k)
