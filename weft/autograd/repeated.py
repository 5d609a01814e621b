"""Backward passes that repeat: the gradients of a tape like one before are built from what was recorded of it.

    loss.backward()    first    walked
                       second   walked, and what it made is recorded, over the tape's nodes
                       others   built: the nodes that a walk would make, without asking each op's rule

Which nodes a walk makes follows from the ops and attributes of the tape, from what each value's node looks like to the
rules (see `_fact`), and from modes: all that is the key. Where forms are verified, both are made, and must be the same
nodes. What runs a user's own code is walked each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from types import FunctionType, NoneType
from typing import Any, TypeAlias

from weft import settings
from weft.autograd.context import context, main
from weft.autograd.value import HOOKS, Value, VjpRule
from weft.ir.dtypes import DType
from weft.ir.errors import IRError
from weft.ir.forks import forkable
from weft.ir.graph import Attrs, Node, Shape, intern, toposort
from weft.ir.numerics import pinned
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

LONGEST = 8192
"""Values of a tape that is recorded, at most."""

KEPT, ROWS_KEPT, SEEN = 64, 65536, 512
"""Recorded passes, their values and the nodes that they make, and hashes of what came once; the one met longest ago
goes first."""

PATIENCE, PAUSE = 16, 8
"""After so many tapes in a row that were not like one before, one of so many is looked at; after an eighth of them,
none of ops and shapes that are new."""

Gradients: TypeAlias = dict[Value, Value]


Row: TypeAlias = "tuple[Op, tuple[int, ...], Attrs, Shape, DType, str | None]"
"""A node that a walk makes. Its inputs by number: the tape's nodes come first, then the rows."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """The gradients of a tape: the rows that they are made of, the numbers of those that are gradients, and for each
    target that has one, by place, which of them, or -1 for the seed itself."""

    rows: tuple[Row, ...]
    gradients: tuple[int, ...]
    results: tuple[tuple[int, int], ...]

    def build(self, nodes: Sequence[Node]) -> list[Node]:
        """The gradients over the nodes of a tape. What the rows came to be is not to be simplified again."""
        made = list(nodes)
        over: tuple[Node, ...]
        for op, inputs, attrs, shape, dtype, device in self.rows:
            if len(inputs) == 1:
                over = (made[inputs[0]],)
            elif len(inputs) == 2:
                over = (made[inputs[0]], made[inputs[1]])
            else:
                over = tuple([made[k] for k in inputs])
            made.append(intern(op, over, attrs, shape, dtype, device))
        return [made[k] for k in self.gradients]


_known: dict[tuple[Any, ...], _Pass | None] = {}
"""Recorded passes; None for those that cannot be."""

_seen: dict[int, None] = {}
_keeping = forkable(threading.RLock())
_in_vain = [0]
"""Tapes in a row that were not like one before."""

_recorded_rules: set[type] = set()
"""Classes whose bound methods are rules that depend on the object and on what the key tells of the values."""

_hooks: Any = HOOKS
"""Asked for its `data`, as in reverse.py."""


def rules_of(kind: type) -> None:
    """Said of a class: methods of its objects, which are rules, depend on nothing but what the key tells."""
    _recorded_rules.add(kind)


def told(rule: VjpRule | None) -> Hashable:
    """The things that a rule of weft's own depends on, beside what it is called with: nothing, itself, or its code and
    what it has closed over. `UntoldError` where that may be more than a key can tell."""
    if rule is None or getattr(rule, "__self__", None).__class__ in _recorded_rules:
        return rule
    return _fact_of(rule)


def _fact_of(found: Any) -> Hashable:
    """A key's part for what is closed over."""
    kind = found.__class__
    if kind in _SIMPLE:
        return kind, repr(found) if kind is float else found
    if kind is tuple:
        return tuple([_fact_of(x) for x in found])
    if kind is FunctionType and _is_own(found) and not found.__kwdefaults__:
        try:
            cells = [_fact_of(c.cell_contents) for c in found.__closure__ or ()]
        except ValueError:  # one is empty yet
            raise UntoldError from None
        return found.__globals__["__name__"], found.__code__, _fact_of(found.__defaults__), *cells
    raise UntoldError


def _is_own(function: FunctionType) -> bool:
    """True for a function of weft's: its `__module__` may be that of another which it wraps."""
    return str(function.__globals__.get("__name__")).startswith("weft.")


_SIMPLE = frozenset({NoneType, bool, int, float, str, DType, Op})
"""Types of values that are told by value."""


def comes_again(number: int, seen: dict[int, None], most: int) -> bool:
    """True for what has come before; else it is `seen` from now on. By one thread at a time."""
    if number in seen:
        return True
    seen[number] = None
    if len(seen) > most:
        del seen[next(iter(seen))]
    return False


class UntoldError(Exception):
    """A key cannot tell all that something depends on."""


def gradients(
    output: Value,
    seed: Value,
    targets: Sequence[Value],
    order: Sequence[Value],
    walk: Callable[[], Gradients],
) -> Gradients:
    """The gradients of `seed * output` for the targets, which are on the tape `order`: what `walk()` gives."""
    now = context()
    if len(order) > LONGEST or _hooks.data or now.trace is not None or now.lifted is not None:
        return walk()
    vain = _in_vain[0]
    if (vain > PATIENCE and vain % PAUSE) or (vain > PATIENCE // 8 and not _looks_known(order)):
        _in_vain[0] += 1
        return walk()
    nodes: list[Node] = []
    rows = _described(seed, targets, order, nodes)
    if rows is None:
        return walk()
    key = (now, main.dtype, main.device, pinned(), *rows)
    known = _known.get(key)
    if known is not None:
        _in_vain[0] = 0
        return _built(known, nodes, seed, targets, walk)
    _in_vain[0] += 1
    found = walk()
    number = hash(key)
    with _keeping:
        if comes_again(number, _seen, SEEN) and key not in _known:
            _known[key] = _recorded(nodes, seed, targets, found)
            while len(_known) > 1 and (len(_known) > KEPT or _rows_kept() > ROWS_KEPT):
                del _known[next(iter(_known))]
    return found


def _looks_known(order: Sequence[Value]) -> bool:
    """True for a tape of ops and shapes that came before, which takes a tenth of the time to tell than the key does."""
    number = hash(tuple([(v.op, v.node.shape) for v in order]))
    with _keeping:
        return comes_again(number, _seen, SEEN)


def _rows_kept() -> int:
    """The values of all recorded passes, and the nodes that they make."""
    return sum([len(key) + (0 if made is None else len(made.rows)) for key, made in _known.items()])


def _built(
    known: _Pass, nodes: Sequence[Node], seed: Value, targets: Sequence[Value], walk: Callable[[], Gradients]
) -> Gradients:
    made = [Value(n) for n in known.build(nodes)]
    found = {targets[place]: seed if k < 0 else made[k] for place, k in known.results}
    if settings.verify():
        walked = walk()
        if [(t, g.node) for t, g in walked.items()] != [(t, g.node) for t, g in found.items()]:
            raise IRError("a backward pass is not the one recorded for its key", "repeated")
    return found


def _recorded(nodes: Sequence[Node], seed: Value, targets: Sequence[Value], found: Gradients) -> _Pass | None:
    """The pass over these nodes of its tape; None where gradients are more than new values, or read other leaves."""
    if any(g is not seed and (g.needs_grad or not g.is_leaf) for g in found.values()):
        return None
    place = {t: k for k, t in enumerate(targets)}
    distinct = [g for g in dict.fromkeys(found.values()) if g is not seed]
    numbers = {n: k for k, n in enumerate(nodes)}
    rows: list[Row] = []
    for n in toposort([g.node for g in distinct], stop_at_storage=False, known=nodes):
        if n.op is _BUFFER:
            return None
        rows.append((n.op, tuple([numbers[i] for i in n.inputs]), n.attrs, n.shape, n.dtype, n.device))
        numbers[n] = len(numbers)
    which = {g: k for k, g in enumerate(distinct)}
    return _Pass(
        tuple(rows),
        tuple([numbers[g.node] for g in distinct]),
        tuple([(place[t], which.get(g, -1)) for t, g in found.items()]),
    )


def _described(
    seed: Value, targets: Sequence[Value], order: Sequence[Value], nodes: list[Node]
) -> list[Any] | None:
    """The things that a walk over the tape looks at, and in `nodes` the nodes that its gradients are made of; None
    where it may look at more. A value stands for its place, counted down from -1, where it is met again, a node for its
    number."""
    numbers: dict[Node, int] = {}
    places: dict[Value, int] = {}
    try:
        rows: list[Any] = [_fact(seed.node, numbers, nodes)]
        for v in order:
            places[v] = ~len(places)
            rule, node = v.rule, v.node
            fact = numbers.get(node)
            row = [v.op, rule and told(rule), v.attrs, _fact(node, numbers, nodes) if fact is None else fact]
            for x in v.inputs:
                if x.needs_grad:
                    row.append(places[x])
                else:
                    fact = numbers.get(x.node)
                    row.append(_fact(x.node, numbers, nodes) if fact is None else fact)
            rows.append(tuple(row))
        rows.append(tuple([places[t] for t in targets]))
    except UntoldError:
        return None
    return rows


_LOOKED_INTO = frozenset({Op.CONST, Op.RANGE, Op.RESHAPE, Op.PAD})
"""The ops of nodes whose attributes and inputs decide how what is made of them is simplified, or gradients joined."""

_BUFFER = Op.BUFFER


def _fact(node: Node, numbers: dict[Node, int], nodes: list[Node]) -> Any:
    """The facts that rules look at of a node, the first time that it is met; then its number."""
    found = numbers.get(node)
    if found is not None:
        return found
    numbers[node] = len(nodes)
    nodes.append(node)
    op = node.op
    if op in _LOOKED_INTO:
        inputs = [_fact(i, numbers, nodes) for i in node.inputs]
        return (op, node.attrs, node.shape, node.dtype, node.device, node.storage is None, *inputs)
    if op is _BUFFER and node.device is None:
        raise UntoldError  # where what is computed from it is at home
    return (op, node.shape, node.dtype, node.device)
