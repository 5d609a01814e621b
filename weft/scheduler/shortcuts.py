"""Shortcuts: the plans of small graphs, found by one look at their nodes.

    g.norm().item()      one call: the plan that the last such graph took
    (x * c).numpy()      one op and a number that never came: the plan for all numbers, if one was found before

A signature, the plan of its key and what its family has for a number take some 30 us, whatever is computed. A graph of
few nodes is read off in three: all that its signature would say, without the values of numbers. What was found for a
graph of which that is true is kept, and serves the next one. While verifying, the signature is asked each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from operator import is_
from typing import TYPE_CHECKING, Any, TypeAlias

from weft import settings
from weft.backends import registry
from weft.errors import MemoryPlanError
from weft.ir.errors import IRError
from weft.ir.expr import Scalar
from weft.ir.graph import Fill, Node
from weft.ir.numerics import pinned
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass
from weft.scheduler import families
from weft.scheduler.outline import is_plain
from weft.scheduler.signature import Key, Signature, signature

if TYPE_CHECKING:
    from weft.backends.protocol import Device
    from weft.backends.storage import Storage
    from weft.scheduler.families import Alike
    from weft.scheduler.plan import Plan

MOST_NODES = 12
"""Nodes of a small graph, with its leaves."""

KEPT = 256
"""Graphs, but for their numbers, whose plans are kept; the one met first goes first."""

NUMBERS_KEPT = 4
"""Plans of its own that a graph may have, each for other numbers; the one found first goes first."""

Turn: TypeAlias = "Callable[[], Plan | None]"
"""Gives a plan for one more run, or none where another may have to take its place."""

_BUFFER, _CONST, _SHRINK = Op.BUFFER, Op.CONST, Op.SHRINK


@dataclass(slots=True, eq=False)
class Look:
    """Everything about a small graph that its plan depends on, but for its `numbers`; and its leaves' `storages`, and
    the nodes that are computed on the way."""

    home: str
    """The name of the device that computes it."""
    key: tuple[Any, ...]
    storages: list[Storage]
    numbers: tuple[Scalar, ...]
    inner: dict[Node, None]


@dataclass(slots=True, eq=False)
class _Shortcut:
    """The plans of graphs of one key, which have these `rows`: those for known numbers, by what gives them, and one for
    all."""

    device: Device
    rows: Key
    verify: bool
    """True where the signature is asked each time."""
    own: dict[tuple[Scalar, ...], Turn] = field(default_factory=dict["tuple[Scalar, ...]", "Turn"])
    alike: Alike | None = None


_shortcuts: dict[tuple[Any, ...], _Shortcut] = {}


def look(node: Node) -> Look | None:
    """A look at the graph of a node that is not computed; None where it is not small, a leaf has no value, or elements
    are cut out: from where, mostly differs each time, and is no number.

    Leaves and numbers are met in the order in which a signature has them."""
    key: list[Any] = [pinned()]
    storages: list[Storage] = []
    numbers: list[Scalar] = []
    inner: dict[Node, None] = {}
    seen: dict[Node, int] = {}
    stack = [node]
    while stack:
        n = stack.pop()
        before = seen.get(n)
        if before is not None:
            key.append(before)
            continue
        if len(seen) == MOST_NODES:
            return None
        seen[n] = len(seen)
        storage, inputs = n.storage, n.inputs  # once: another thread may fill it in at any time
        if storage is not None:
            storages.append(storage)
            key += (n.dtype, n.shape, n.device)
        elif inputs:
            if n.op is _SHRINK:
                return None
            key += (n.op, n.attrs, n.dtype, n.shape, n.device, len(inputs))
            stack += inputs[::-1]
            if n is not node:
                inner[n] = None
        elif isinstance(n.attrs, Fill) and not is_plain(n.attrs.value, n.dtype):
            numbers.append(n.attrs.value)
            key += (_CONST, n.dtype, n.shape)
        elif n.op is _BUFFER:
            return None
        else:  # equal ones are one object
            key.append(n)
    return Look(node.device or settings.device(), tuple(key), storages, tuple(numbers), inner)


def taken(at: Look, node: Node) -> Mapping[Node, Storage] | None:
    """The value of a constant, or nothing where it was stored in `node`: computed by the plan that a graph with such a
    look took. None, with nothing done, where there was none, or it may not serve this one."""
    found = _shortcuts.get(at.key)
    if found is None or registry.open_device(at.home) is not found.device:
        return None
    turn = found.own.get(at.numbers)
    plan = None if turn is None else turn()
    if plan is None and (turn is not None or found.alike is None or settings.deterministic()):
        return None
    if found.verify:
        _compare(at, node, found.rows)
    memories, values = [s.memory for s in at.storages], None
    try:
        if plan is not None:
            values = plan.run(memories)
        elif found.alike is not None:
            values = found.alike.run(at.numbers, memories)
    except MemoryPlanError:
        return None
    if values is None:
        return None
    (value,) = values
    if node.device is None:
        return {node: value}
    if node.storage is None:
        node.storage = value
    return _NOTHING


_NOTHING: Mapping[Node, Storage] = {}


def learn(at: Look, sig: Signature, device: Device, turn: Turn | None) -> None:
    """Keep what a graph took that was computed on a device: the plan of its key, or else what its family has for
    numbers. By one thread at a time."""
    if sig.homeless or sig.variables:
        return
    alike = families.alike(sig.key.rows, device) if turn is None and at.numbers else None
    if turn is None and alike is None:
        return
    found = _shortcuts.get(at.key)
    if found is None or found.device is not device:
        found = _shortcuts[at.key] = _Shortcut(
            device, families.without_numbers(sig.key.rows), settings.verify()
        )
        while len(_shortcuts) > KEPT:
            _shortcuts.pop(next(iter(_shortcuts)), None)
    if alike is not None:
        found.alike = alike
    elif turn is not None:
        found.own[at.numbers] = turn
        while len(found.own) > NUMBERS_KEPT:
            found.own.pop(next(iter(found.own)), None)


def forget() -> None:
    """Forget all that was found."""
    _shortcuts.clear()


def _compare(at: Look, node: Node, rows: Key) -> None:
    """IRError where the signature says something else than a look, or than that of the graph whose plan was kept."""
    sig = signature([node])
    numbers = tuple([sig.key.rows[k][1].value for k in families.varying(sig.key.rows)])
    same = len(sig.storages) == len(at.storages) and all(map(is_, sig.storages, at.storages))
    if numbers != at.numbers or not same or families.without_numbers(sig.key.rows) != rows:
        raise IRError("a look at a graph is not what its signature says", "shortcut")
