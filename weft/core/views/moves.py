"""Functions of movement by the ops that they come to: found once for a shape and arguments, then applied at once.

    x[0], x.reshape(-1, 8), x.transpose(1, 2)

Such a function reads its arguments, refuses what does not fit, and applies a movement op or two: the same ones for all
tensors of one shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import EllipsisType, MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from weft.autograd.context import context
from weft.autograd.value import Value
from weft.core.args.handle import Handle, wrap, wrap_constant
from weft.errors import wraps_calls
from weft.ir.graph import Attrs, Shape, intern
from weft.ir.ops import MOVEMENT, Op
from weft.ir.shape_rules import SIMPLIFIED_OVER

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

wraps_calls(__file__)

Move: TypeAlias = tuple[Op, Attrs, Shape]
"""A movement op, its attributes, and the shape that it gives."""

KEPT = 4096
"""Calls of which the moves are known; then all are forgotten."""

LONGEST = 8
"""The number of moves that a call comes to at most, to be kept."""

Moves: TypeAlias = tuple[Move, ...]

_known: dict[tuple[Any, ...], Moves | list[Moves]] = {}
"""The moves of a call; a list of them for each of several results."""

_RESHAPE = Op.RESHAPE  # to load a member takes ten times as long

_NOTHING: Mapping[str, Any] = MappingProxyType({})

_ATOMS = frozenset({int, NoneType, EllipsisType})


def moved(
    function: Callable[..., Any], input: Any, args: tuple[Any, ...], named: Mapping[str, Any] = _NOTHING
) -> Any:
    """`function(input, *args, **named)`."""
    spelled = _spelled(args) if isinstance(input, Handle) else None
    if spelled is not None and named:
        more = _spelled(tuple(named.values()))
        spelled = None if more is None else (spelled, tuple(named), more)
    if spelled is None:
        return function(input, *args, **named)
    v = input.value
    node = v.node
    simplified = node.op in SIMPLIFIED_OVER and node.storage is None
    if node.device is None or (simplified and node.op is not _RESHAPE):
        return function(input, *args, **named)
    recorded = v.needs_grad and context().grad
    key = (function, node.shape, spelled, recorded)
    moves = _known.get(key)
    if moves is None:
        out = function(input, *args, **named)
        _learn(key, v, out, recorded)
        return out
    several = moves.__class__ is list
    parts = cast("list[Moves]", moves if several else [moves])
    if simplified and any(m[0][0] is _RESHAPE for m in parts):  # two reshapes are one
        return function(input, *args, **named)
    found = [_recorded_moves(v, m) if recorded else _moves(v, m) for m in parts]
    return tuple(found) if several else found[0]


def _moves(v: Value, moves: Moves) -> Tensor:
    node = v.node
    dtype, device = node.dtype, node.device
    for op, attrs, shape in moves:
        node = intern(op, (node,), attrs, shape, dtype, device)
    return wrap_constant(node)


def _recorded_moves(v: Value, moves: Moves) -> Tensor:
    node = v.node
    dtype, device = node.dtype, node.device
    for op, attrs, shape in moves:
        node = intern(op, (node,), attrs, shape, dtype, device)
        v = Value(node, True, op, attrs, (v,))
    return wrap(v)


def _spelled(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The arguments as a key: numbers, slices and tuples of these; None where there are others (True is no 1)."""
    for a in args:
        if a.__class__ not in _ATOMS:
            break
    else:
        return args
    key: list[Any] = []
    for a in args:
        kind = a.__class__
        if kind in _ATOMS:
            key.append(a)
        elif kind is slice:
            if not _ATOMS.issuperset((a.start.__class__, a.stop.__class__, a.step.__class__)):
                return None
            key.append((slice, a.start, a.stop, a.step))
        elif isinstance(a, tuple):
            inner = _spelled(cast("tuple[Any, ...]", a))
            if inner is None:
                return None
            key.append(inner)
        else:
            return None
    return tuple(key)


def _learn(key: tuple[Any, ...], v: Value, out: Any, recorded: bool) -> None:
    """Keep the moves from `v` to a result that is nothing else, as it is recorded on the tape."""
    found: Moves | list[Moves]
    if type(out) is tuple:
        found = [_path(v, part, recorded) for part in cast("tuple[Any, ...]", out)]
        known = bool(found) and all(found)
    else:
        found = _path(v, out, recorded)
        known = bool(found)
    if known:
        if len(_known) >= KEPT:
            _known.clear()
        _known[key] = found


def _path(v: Value, out: Any, recorded: bool) -> Moves:
    """The moves from `v` to a result; none where it is something else, or `v` itself."""
    if not isinstance(out, Handle):
        return ()
    moves: list[Move] = []
    at, node, own = out.value, out.value.node, v.node
    while node is not own:
        if node.op not in MOVEMENT or node.storage is not None or len(moves) == LONGEST:
            return ()
        if recorded:
            if at.op is not node.op or at.node is not node or len(at.inputs) != 1:
                return ()
            (at,) = at.inputs
        moves.append((node.op, node.attrs, node.shape))
        (node,) = node.inputs
    return tuple(reversed(moves)) if not recorded or at is v else ()
