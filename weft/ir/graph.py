"""The graph: immutable, hash-consed nodes. Equal subgraphs are one object, so identity is equality.

Make nodes with `apply`, which checks them by the rules in `shape_rules` and simplifies trivial ones, or with the leaf
makers `const`, `arange` and `buffer`. Nodes live as long as something refers to them.
"""
# Tests: tests/ir/test_graph_forms.py, tests/ir/test_shape_rules.py

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import ref

from weft.errors import CallSite
from weft.ir.dtypes import DType, int64
from weft.ir.expr import Scalar, bits, normalize
from weft.ir.index import Int
from weft.ir.interning import entering, first
from weft.ir.numerics import pinned
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.ir.loop_body import LoopNode
    from weft.ir.placement import Layout
    from weft.ir.template import GraphTemplate

Shape: TypeAlias = tuple[Int, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """BUFFER: the device ("cpu:0") whose memory holds it; None: a file, at home on no device. Each is a node of its
    own: they are not interned."""

    device: str | None


@dataclass(frozen=True, slots=True)
class Fill:
    """CONST: the value, and its bits, by which constants compare."""

    bits: int | bytes
    value: Scalar

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fill) and self.bits == other.bits

    def __hash__(self) -> int:
        return hash(self.bits)


@dataclass(frozen=True, slots=True)
class Axes:
    """PERMUTE: input axis of each output axis. FLIP, reductions: the axes, ascending."""

    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProductAxes(Axes):
    """SUM of a contraction, pinned: its terms are products, each added in one rounding; see `ir/numerics.py`."""


@dataclass(frozen=True, slots=True)
class Padding:
    """PAD: per axis, elements added before, after and between each two; and their value, compared by its bits."""

    low: tuple[Int, ...]
    high: tuple[Int, ...]
    interior: tuple[int, ...]
    fill: Scalar = field(default=0, compare=False)
    fill_bits: int | bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fill_bits", bits(self.fill))


@dataclass(frozen=True, slots=True)
class Box:
    """SHRINK, UPDATE: per axis, the first element and the step (> 0); the sizes are the small tensor's shape. `said`:
    the call that asked for it, where runtime variables decide if it is within the tensor, see `places.py`."""

    start: tuple[Int, ...]
    step: tuple[int, ...]
    said: CallSite | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Window:
    """SHEAR, UNSHEAR: the axis that slides, the axis of positions in the window, and the window's geometry."""

    axis: int
    window: int
    stride: int
    dilation: int


@dataclass(frozen=True, slots=True)
class Along:
    """GATHER, CONCAT: the axis."""

    axis: int


@dataclass(frozen=True, slots=True)
class ScatterCombine:
    """SCATTER: the axis, and how values meet: ADD, MUL, MAX, MIN, or None (the last in row-major order stays)."""

    axis: int
    op: Op | None


@dataclass(frozen=True, slots=True)
class Target:
    """COPY: the device, or mesh, to copy to; and how to be laid out on a mesh, where that is asked for."""

    device: str
    layout: Layout | None = None


Plain: TypeAlias = Leaf | Fill | Axes | Padding | Box | Window | Along | ScatterCombine | Target
Attrs: TypeAlias = "Plain | LoopNode | GraphTemplate | None"


class Node:
    """One operation of the graph. Immutable; `storage` is filled in when its value has been computed."""

    __slots__ = ("__weakref__", "attrs", "device", "dtype", "inputs", "op", "shape", "storage")

    def __init__(
        self, op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape, dtype: DType, device: str | None
    ) -> None:
        self.op, self.inputs, self.attrs, self.shape, self.dtype = op, inputs, attrs, shape, dtype
        self.device = device  # the inputs' (see `apply` for files); None: constants only, at home anywhere
        self.storage: Any = None

    def __repr__(self) -> str:
        return f"<{self.op.symbol} {self.dtype.short}{list(self.shape)}>"


_new = object.__new__
_BUFFER, _CONST = Op.BUFFER, Op.CONST  # to load a member of an enumeration takes ten times as long

_nodes: dict[tuple[Any, ...], ref[Node]] = {}
"""All nodes, weakly. A key names its inputs by id: a live node keeps its inputs alive, so their ids are theirs."""

_sweep_at = 4096
_due_at = 4096
"""The size of the table at which it is swept, or watchers are called; less by the new nodes in place of dead ones."""

_slack = (1 << 14) - 4096
"""The number of nodes by which the call of watchers is later than that."""

_leaves: dict[str | None, Leaf] = {}


GROWTH = 1 << 14
"""The number of new nodes after which whoever watches the graph's growth is told, unless it says otherwise."""

_watchers: list[Callable[[], object]] = []


def watch_growth(watcher: Callable[[], object]) -> None:
    """Have `watcher` called when there are so many new nodes, in the thread that makes the last. It makes none."""
    _watchers.append(watcher)


def watch_after(nodes: int) -> None:
    """Have watchers called next after so many new nodes."""
    global _due_at, _slack
    if _shown:
        return  # all are due until it is hidden, and watchers are called after so many from then on
    watch_at = len(_nodes) + nodes
    _due_at = min(_sweep_at, watch_at)
    _slack = watch_at - _due_at


_shown: list[Callable[[Node], object]] = []
"""All who are shown each new node, once for each time that they asked."""

_ALL_ARE_DUE = -(1 << 62)
"""The size of the table at which nodes are due while each is shown to somebody: others do not pay for the question."""


def show_nodes(see: Callable[[Node], object]) -> None:
    """Have `see` called with each new node, in the thread that makes it, until `hide_nodes`."""
    global _due_at
    _shown.append(see)
    _due_at = _ALL_ARE_DUE


def hide_nodes(see: Callable[[Node], object]) -> None:
    """Take back what was asked of `show_nodes`, once."""
    _shown.remove(see)
    if not _shown:
        watch_after(GROWTH)


def _grown(node: Node) -> None:
    """Call watchers, sweep, or neither: nodes in place of dead ones bring the call of watchers nearer, no sweep."""
    if _shown:
        for see in dict.fromkeys(_shown):
            see(node)
        return
    watch_at = _due_at + _slack
    if len(_nodes) > _sweep_at:
        before = len(_nodes)
        _sweep()
        watch_at -= before - len(_nodes)
    due = len(_nodes) > watch_at
    watch_after(GROWTH if due else watch_at - len(_nodes))
    if due:
        for watcher in _watchers:
            watcher()


_forgetting: list[Callable[[], object]] = []
"""All who keep things by the names of devices, and forget them with these."""


def watch_forgetting(watcher: Callable[[], object]) -> None:
    """Have `watcher` called when devices are gone, whose names others may get."""
    _forgetting.append(watcher)


def forget(is_gone: Callable[[str], bool]) -> None:
    """Have no new node be one on a device that is gone: equal nodes are one, and its value is in that device's memory.
    The nodes that somebody holds stay what they are."""
    left = _due_at + _slack - len(_nodes)
    _sweep(is_gone)
    watch_after(left)
    for watcher in _forgetting:
        watcher()


def _sweep(is_gone: Callable[[str], bool] | None = None) -> None:
    """Drop the entries of dead nodes, and of those on devices that are gone; called when the table has doubled, so a
    node pays for it once or twice."""
    global _sweep_at
    with entering:  # so that others add entries, at the end, and take none away
        for key, entry in zip(list(_nodes), list(_nodes.values()), strict=False):
            node = entry()
            if node is None or (is_gone is not None and node.device is not None and is_gone(node.device)):
                _nodes.pop(key, None)
    _sweep_at = max(4096, 2 * len(_nodes))


def intern(
    op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape, dtype: DType, device: str | None
) -> Node:
    """The one node with these fields. The caller vouches for them; everybody else uses `apply`."""
    count = len(inputs)
    if count == 1:
        key = (op, attrs, shape, dtype, device, id(inputs[0]))
    elif count == 2:
        a, b = inputs
        key = (op, attrs, shape, dtype, device, id(a), id(b))
    else:
        key = (op, attrs, shape, dtype, device, *map(id, inputs))
    entry = _nodes.get(key)
    if entry is not None:
        node = entry()
        if node is not None:
            return node
    node = _new(Node)  # as its constructor does, which takes twice as long
    node.op, node.inputs, node.attrs, node.shape, node.dtype, node.device = (
        op, inputs, attrs, shape, dtype, device,
    )  # fmt: skip
    node.storage = None
    if entry is None:
        made = ref(node)
        there = _nodes.setdefault(key, made)  # one step, whatever other threads do
        if there is not made:
            node = there() or first(_nodes, key, node)
    else:  # of a dead node
        global _due_at
        _due_at -= 1  # the table does not grow
        node = first(_nodes, key, node)
    if len(_nodes) > _due_at:
        _grown(node)
    return node


def product_axes(axes: Iterable[int]) -> Axes:
    """The axes of a contraction's sum, which in the mode "same" says of itself that it is one."""
    found = tuple(axes)
    return ProductAxes(found) if pinned() else Axes(found)


def const(value: Scalar, dtype: DType, shape: Shape = ()) -> Node:
    """`value` in every element."""
    value = normalize(dtype, value)
    return intern(_CONST, (), Fill(bits(value), value), shape, dtype, None)


def arange(size: Int, dtype: DType = int64) -> Node:
    """0, 1, ..., size - 1."""
    return intern(Op.RANGE, (), None, (size,), dtype, None)


def buffer(shape: Shape, dtype: DType, device: str | None, storage: Any) -> Node:
    """A leaf with storage of its own, and a node of its own: it is not looked up."""
    attrs = _leaves.get(device)
    if attrs is None:
        attrs = _leaves[device] = Leaf(device)
    node = _new(Node)
    node.op, node.inputs, node.attrs, node.shape, node.dtype = _BUFFER, (), attrs, shape, dtype
    node.device, node.storage = device, storage
    return node


def in_memory(node: Node, storage: Any) -> Node:
    """A leaf in the place of `node`, whose elements are in that storage: it holds nothing of what made them."""
    return buffer(node.shape, node.dtype, storage.home, storage)


Result: TypeAlias = tuple[Shape, DType]
ShapeRule: TypeAlias = Callable[[Op, tuple[Node, ...], Attrs, Shape | None, DType | None], Result]
Simplify: TypeAlias = Callable[[Op, tuple[Node, ...], Attrs, Shape, DType], Node | None]

_rules: Mapping[Op, ShapeRule]
_simplify: Simplify


def set_rules(rules: Mapping[Op, ShapeRule], simplify: Simplify) -> None:
    """Called once, by `shape_rules`: the rules are about nodes, so they import this module."""
    global _rules, _simplify
    _rules, _simplify = rules, simplify


def apply(
    op: Op,
    inputs: tuple[Node, ...],
    attrs: Attrs = None,
    shape: Shape | None = None,
    dtype: DType | None = None,
    home: Callable[[], str | None] | None = None,
) -> Node:
    """`op` on `inputs`. `shape` for RESHAPE and EXPAND, `dtype` for CAST and BITCAST; IRError when they do not fit.

    `home()`: the device of what is computed from leaves in files, where no input is on one.
    """
    out_shape, out_dtype = _rules[op](op, inputs, attrs, shape, dtype)
    return made(op, inputs, attrs, out_shape, out_dtype, home)


def made(
    op: Op,
    inputs: tuple[Node, ...],
    attrs: Attrs,
    shape: Shape,
    dtype: DType,
    home: Callable[[], str | None] | None = None,
) -> Node:
    """`op` on `inputs`, simplified. The caller vouches for shape and dtype."""
    simpler = _simplify(op, inputs, attrs, shape, dtype)
    if simpler is not None:
        return simpler
    device = attrs.device if attrs is not None and isinstance(attrs, Target) else None
    if device is None:
        for i in inputs:
            device = i.device
            if device is not None:
                break
        else:
            device = home() if home is not None and in_files(inputs) else None
    return intern(op, inputs, attrs, shape, dtype, device)


def device_over(n: Node, inputs: Sequence[Node]) -> str | None:
    """The device of a node's op on other inputs."""
    if n.op is Op.COPY:
        return n.device
    for i in inputs:
        if i.device is not None:
            return i.device
    return n.device if n.device is not None and in_files(inputs) else None


def in_files(inputs: Sequence[Node]) -> bool:
    """True where one of the nodes is a leaf in a file."""
    return any(i.op is Op.BUFFER and i.device is None for i in inputs)


def toposort(roots: Iterable[Node], stop_at_storage: bool = True, known: Iterable[Node] = ()) -> list[Node]:
    """All nodes under `roots`, inputs before users; nodes that already have storage count as leaves if asked. Those
    that are `known`, and what only they need, are left out."""
    order: list[Node] = []
    seen = {id(n) for n in known}
    stack: list[Node | None] = []
    path: list[Node] = []
    for root in roots:
        stack.append(root)
        while stack:
            node = stack.pop()
            if node is None:
                order.append(path.pop())
                continue
            key = id(node)
            if key in seen:
                continue
            seen.add(key)
            inputs = node.inputs
            if not inputs or (stop_at_storage and node.storage is not None):
                order.append(node)
                continue
            path.append(node)
            stack.append(None)
            stack += inputs[::-1]  # with those that are seen: to skip them is less than to ask here
    return order


def elements(shape: Shape) -> Int:
    """The number of elements."""
    n: Int = 1
    for s in shape:
        n = n * s
    return n


def strides(shape: Shape) -> tuple[Int, ...]:
    """Row-major strides, in elements."""
    out: list[Int] = []
    step: Int = 1
    for s in reversed(shape):
        out.append(step)
        step = step * s
    return tuple(reversed(out))


def live_nodes() -> Iterator[Node]:
    """Every node alive now but for BUFFERs (for tests and leak hunts)."""
    for entry in list(_nodes.values()):
        node = entry()
        if node is not None:
            yield node
