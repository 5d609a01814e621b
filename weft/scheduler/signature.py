"""The structure of a graph, leaves renumbered: what plans are cached by."""
# Tests: tests/scheduler/test_generalize.py, tests/scheduler/test_realize.py

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from weft.backends.storage import Storage
from weft.ir import graph
from weft.ir.dtypes import DType
from weft.ir.graph import Attrs, Axes, Box, Fill, Node, Padding, Shape, Target
from weft.ir.index import Var, variables
from weft.ir.loop_body import LoopNode
from weft.ir.numerics import pinned
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass
from weft.naming import own_name
from weft.scheduler.keeping import worth_keeping

if TYPE_CHECKING:
    from weft.scheduler.outline import Outline
    from weft.scheduler.plan import Plan

# to load a member of an enumeration takes ten times as long, at each node
_BUFFER, _COPY, _SHRINK = Op.BUFFER, Op.COPY, Op.SHRINK


class Key:
    """A graph's rows, hashed once; `pinned` where it is computed in the mode "same" (see ir/numerics.py)."""

    __slots__ = ("_hash", "pinned", "rows")

    def __init__(self, rows: tuple[Any, ...], pinned: bool = False) -> None:
        self.rows, self.pinned = rows, pinned
        self._hash = ~hash(rows) if pinned else hash(rows)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Key) or self._hash != other._hash or self.pinned is not other.pinned:
            return False
        return self.rows == other.rows


class Result(NamedTuple):
    """The facts about a node that a plan computes it by."""

    dtype: DType
    shape: Shape


class Signature:
    """`key` is equal for graphs that one plan serves; `leaves` are this graph's stored inputs, in the key's order, and
    `storages` what they held when the graph was walked: another thread may store more results at any time."""

    __slots__ = (
        "copies", "elements", "found", "hashed", "homeless", "kept", "key", "leaves", "outlined", "storages",
        "variables",
    )  # fmt: skip

    def __init__(
        self,
        key: Key,
        leaves: tuple[Node, ...],
        storages: tuple[Storage | None, ...],
        used: tuple[Var, ...],
        copies: bool,
        homeless: bool,
        elements: tuple[Node, ...] = (),
        kept: tuple[Node, ...] = (),
    ) -> None:
        self.key, self.leaves, self.storages, self.variables = key, leaves, storages, used
        self.homeless = homeless  # among the leaves are constants, whose memory may be on any device
        self.copies = copies  # between devices: the graph has to be cut there before it can be planned
        self.elements = elements  # the nodes that select one element of several
        self.kept = kept  # results besides those asked for
        self.hashed: str | None = None
        self.outlined: Outline | None = None
        self.found: Plan | None = None  # of its family, on some device, by who asked whether there is one

    def results(self) -> list[Result]:
        """The dtype and shape of each output."""
        rows = self.key.rows
        return [Result(rows[k][2], rows[k][3]) for k in rows[-1]]

    def digest(self) -> str:
        """The key as a hash that is the same in every process, made once: that of the outline, which looks into no call
        that another graph had as well, and the sizes and numbers; of all rows where sizes are runtime variables."""
        if self.hashed is None:
            self.hashed = self._hash_of_rows() if self.variables else self._hash_of_outline()
        return self.hashed

    def _hash_of_outline(self) -> str:
        from weft.scheduler.outline import outline  # outlines are about signatures

        own = outline(self.key.rows) if self.outlined is None else self.outlined
        text = f"{own.key.digest()} {own.sizes} {own.numbers} {self.key.pinned}"
        return hashlib.sha256(text.encode()).hexdigest()

    @own_name()
    def _hash_of_rows(self) -> str:
        heads: dict[Any, bytes] = {}
        h = hashlib.sha256()
        *rows, outputs = self.key.rows
        for row in rows:
            is_leaf = row[0].__class__ is DType
            head, inputs = (row, ()) if is_leaf else (row[:4], row[4:])
            text = heads.get(head)
            if text is None:
                text = heads[head] = repr(head if is_leaf else (row[0].name, *row[1:4])).encode()
            h.update(text)
            h.update(repr(inputs).encode())
        h.update(repr((outputs, [v.fields() for v in self.variables])).encode())
        if self.key.pinned:
            h.update(b"pinned")
        return h.hexdigest()


Held: TypeAlias = Callable[[Mapping[Node, object]], Sequence[Node]]
"""held(nodes): those of a graph's nodes that somebody holds."""

MANY = 4
"""The number of inputs above which a walk goes on behind the last one; fewer are looked at again, which makes no object
that lasts for Python's collector to count."""


def signature(
    outputs: Sequence[Node],
    held: Held | None = None,
    computed: frozenset[Node] = frozenset(),
    values: Mapping[Node, Storage] | None = None,
) -> Signature:
    """The signature of the graph under `outputs`. BUFFERs, and nodes whose value is there already, are leaves. Those
    of its nodes that `held` gives, and that are worth it, become further results.

    Outputs are computed, also where another thread stores their value meanwhile: values of `computed` are taken for
    absent. Nodes of `values` are leaves that hold these. One walk without recursion, about a microsecond a node: it is
    what realizing a known graph costs.
    """
    numbers: dict[Node, int] = {}
    number_of = numbers.get
    leaves: list[Node] = []
    storages: list[Storage | None] = []
    rows: list[Any] = []
    symbolic = copies = homeless = False
    elements: list[Node] = []
    shapes: set[Any] = set()
    row: tuple[Any, ...]
    walk: list[Node | None] = [None]
    rest: dict[Node | None, Iterator[Node]] = {}  # inputs still to walk, where they are many
    while walk:
        node = walk[-1]
        inputs = outputs if node is None else node.inputs
        for i in inputs if len(inputs) <= MANY else rest.setdefault(node, iter(inputs)):
            if i in numbers:
                continue
            storage = i.storage  # once: another thread may fill it in at any time
            if values is not None and i in values:
                storage = values[i]
            stored = storage is not None and i not in computed
            if i.inputs:
                if not stored:
                    walk.append(i)
                    break
                if i in outputs:  # stored since it was asked for
                    return signature(outputs, held, frozenset(outputs), values)
            if stored or i.op is _BUFFER:
                device = i.device
                leaves.append(i)
                storages.append(storage)
                homeless = homeless or device is None
                row = (i.dtype, i.shape, device)
            else:
                row = (i.op, i.attrs, i.dtype, i.shape)
            numbers[i] = len(rows)
            rows.append(row)
            shapes.add(i.shape)
        else:
            walk.pop()
            if node is None:
                break
            op, attrs, shape = node.op, node.attrs, node.shape
            numbers[node] = len(rows)
            if len(inputs) == 2:
                a, b = inputs
                rows.append((op, attrs, node.dtype, shape, numbers[a], numbers[b]))
            elif len(inputs) == 1:
                rows.append((op, attrs, node.dtype, shape, numbers[inputs[0]]))
            else:
                rows.append((op, attrs, node.dtype, shape, *map(number_of, inputs)))
            shapes.add(shape)
            if attrs is None:
                continue
            copies = copies or op is _COPY
            kind = attrs.__class__
            if kind is Axes or kind is Fill:
                continue
            if isinstance(attrs, Box):
                symbolic = symbolic or any(i.__class__ is not int for i in attrs.start)
                if op is _SHRINK and shape == (1,) * len(shape):
                    elements.append(node)
            elif isinstance(attrs, Padding):
                symbolic = symbolic or any(i.__class__ is not int for i in (*attrs.low, *attrs.high))
            elif isinstance(attrs, LoopNode):
                symbolic = symbolic or attrs.body.length.__class__ is not int
    for shape in shapes:
        for n in shape:
            symbolic = symbolic or n.__class__ is not int
    kept: tuple[Node, ...] = ()
    if held is not None and not symbolic and not copies:
        within = held(numbers)
        if within:
            kept = worth_keeping(sorted(within, key=numbers.__getitem__), outputs, leaves)
            kept = tuple([n for n in kept if rows[numbers[n]][0].__class__ is not DType])
    rows.append(tuple([numbers[o] for o in (*outputs, *kept)]))
    used = _variables(numbers) if symbolic else ()
    key = Key(tuple(rows), pinned())
    return Signature(
        key, tuple(leaves), tuple(storages), used, copies, homeless, tuple(elements), kept
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A graph of one's own: what a signature says, on leaves that hold the storages of its leaves."""

    outputs: tuple[Node, ...]
    leaves: tuple[Node, ...]


def snapshot(sig: Signature) -> Snapshot:
    """The graph of a signature, made anew on leaves of its own, so that no other thread stores a value in it while it
    is planned. Only constants are shared, which never hold a value (see `realize.run`)."""
    made: list[Node] = []
    leaves: list[Node] = []
    given = iter(sig.storages)
    outputs: tuple[int, ...] = sig.key.rows[-1]
    for row in sig.key.rows[:-1]:
        if row[0].__class__ is DType:
            dtype, shape, device = row
            made.append(graph.buffer(shape, dtype, device, next(given)))
            leaves.append(made[-1])
        else:
            op, attrs, dtype, shape = row[:4]
            numbers: tuple[int, ...] = row[4:]
            made.append(_remade(op, tuple([made[k] for k in numbers]), attrs, shape, dtype))
    return Snapshot(tuple([made[k] for k in outputs]), tuple(leaves))


def _remade(op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape, dtype: DType) -> Node:
    """The node with these fields, on the device of its inputs, or that which it is copied to."""
    if isinstance(attrs, Target):
        return graph.intern(op, inputs, attrs, shape, dtype, attrs.device)
    device = next((i.device for i in inputs if i.device is not None), None)
    return graph.intern(op, inputs, attrs, shape, dtype, device)


def _variables(nodes: Sequence[Node] | dict[Node, int]) -> tuple[Var, ...]:
    """The runtime variables in shapes and attributes, by name."""
    used: set[Var] = set()
    for node in nodes:
        for s in node.shape:
            used |= variables(s)
        for name in ("start", "low", "high"):
            for i in getattr(node.attrs, name, ()):
                used |= variables(i)
        if isinstance(node.attrs, LoopNode):
            used |= variables(node.attrs.body.length)
    return tuple(sorted(used, key=lambda v: v.name))
