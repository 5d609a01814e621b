"""The part of a graph that stays from call to call, cut off: it is computed once and kept, the rest at each call.

    y = x @ w.T + table.exp()[:n]       w and table are read by every call, and written by none
        |
    k = table.exp()[:n]                 once, until table is written
    y = x @ w.T + k                     at each call, k being a leaf

A value is worth keeping where it takes less memory than what is read to compute it; or where it takes long to compute,
and no more memory than that, or is small, which tables that constants make may do. So weights in blocks stay as they
are: their scales and numbers, taken apart and widened, are no less than what is read. All that is kept takes no more
than a share of the leaves that it is computed from, beside a fixed room.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from weft.backends.protocol import DeviceInfo
from weft.ir import graph
from weft.ir.calls import expand_calls
from weft.ir.graph import Node, toposort
from weft.ir.ops import MOVEMENT, REDUCE, SLOW, Op
from weft.ir.rewrite import rebuilt
from weft.lazy_dataclass import dataclass
from weft.scheduler.convolutions import convolutions
from weft.scheduler.keeping import nbytes
from weft.scheduler.layouts import channels_innermost
from weft.scheduler.panels import panels
from weft.scheduler.winograd import TiledConvolution

FREE_BYTES = 1 << 20
"""The memory that kept values may take whatever they are computed from."""

FREE_PANEL_BYTES = 3 << 25
"""The memory that weights laid out in panels may take, whatever the others."""

FREE_TILES_BYTES = 1 << 26
"""The memory that weights of convolutions in tiles may take, whatever the others."""

MIN_TABLE_BYTES = 1 << 8
"""Tables of constants that are smaller than this are computed where they are read: kernels know their numbers."""

SHARE = 4
"""Kept values may take the memory of the leaves that stay over this, besides, and so may panels."""

_VIEWS = MOVEMENT | {Op.BITCAST}
"""Ops that give the same bits other names."""

_LONG = SLOW | REDUCE | {Op.GATHER, Op.SCATTER, Op.LOOP}


@dataclass(frozen=True, slots=True)
class Split:
    """A graph in two parts: `kept` depends on leaves that stay alone, `outputs` on leaves that stand for its values."""

    kept: tuple[Node, ...]
    stand_ins: tuple[Node, ...]
    outputs: tuple[Node, ...]


def split(outputs: Sequence[Node], staying: Collection[Node], info: DeviceInfo) -> Split | None:
    """The graph of `outputs` in two parts, where values that depend on the leaves `staying` alone are worth keeping on
    a device; None where there are none."""
    plain = expand_calls(outputs)
    share = sum(map(nbytes, staying)) // SHARE

    def stand_in(n: Node) -> Node:
        return graph.buffer(n.shape, n.dtype, info.name, None)

    weights, in_tiles = _in_tiles(plain, staying, info, FREE_TILES_BYTES + share, stand_in)
    expanded = channels_innermost(plain, staying, info, in_tiles)
    order = toposort(expanded)
    below = _sources(order, frozenset(staying))
    found = dict.fromkeys(_worth_keeping(_met(order, below), below, _slow(order, below), frozenset(expanded)))
    known = {n: stand_in(n) for n in _within(FREE_BYTES + share, sorted(found, key=nbytes))}
    kept = {**weights, **known}
    laid_out = {p: p.laid_out() for p in panels(order, staying, info)}
    for n in _within(FREE_PANEL_BYTES + share, dict.fromkeys(laid_out.values())):
        kept[n] = stand_in(n)
    for p, n in laid_out.items():
        if n in kept:
            known[p.factor] = p.factor_in(kept[n])
    return Split(tuple(kept), tuple(kept.values()), tuple(rebuilt(expanded, known))) if kept else None


def _in_tiles(
    outputs: Sequence[Node],
    staying: Collection[Node],
    info: DeviceInfo,
    room: int,
    stand_in: Callable[[Node], Node],
) -> tuple[dict[Node, Node], dict[Node, tuple[TiledConvolution, Node]]]:
    """The convolutions to compute in tiles, as long as there is room for their weights: what stands for each of these,
    and for each convolution its tiles and what stands for its weight."""
    weights, found = dict[Node, Node](), dict[Node, tuple[TiledConvolution, Node]]()
    for n, tiles in convolutions(outputs, staying, info):
        weight = tiles.weight()
        if weight not in weights:
            if tiles.nbytes > room:
                continue
            room -= tiles.nbytes
            weights[weight] = stand_in(weight)
        found[n] = tiles, weights[weight]
    return weights, found


def _within(room: int, nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes that there is room for, each beside those before."""
    for n in nodes:
        if nbytes(n) <= room:
            room -= nbytes(n)
            yield n


def _sources(order: Sequence[Node], staying: frozenset[Node]) -> dict[Node, frozenset[Node]]:
    """The leaves that a node is computed from, for nodes that depend on those that stay and on constants alone."""
    below: dict[Node, frozenset[Node]] = {}
    for n in order:
        if n in staying or (n.storage is not None and n.device is not None):
            below[n] = frozenset({n})
        elif n.op is Op.BUFFER or n.storage is not None or n.op is Op.COPY:
            continue
        elif all(i in below for i in n.inputs):
            below[n] = frozenset[Node]().union(*(below[i] for i in n.inputs))
    return below


def _slow(order: Sequence[Node], below: dict[Node, frozenset[Node]]) -> set[Node]:
    """The values that stay and take long to compute."""
    slow: set[Node] = set()
    for n in order:
        if (
            n in below
            and (_takes_long(n) or any(i in slow for i in n.inputs))
            and n.inputs
            and n.storage is None
        ):
            slow.add(n)
    return slow


def _takes_long(n: Node) -> bool:
    """Division by a constant is a product."""
    return n.op in _LONG and not (n.op is Op.DIV and _shown(n.inputs[1])[0].op is Op.CONST)


def _met(order: Sequence[Node], below: dict[Node, frozenset[Node]]) -> Iterator[Node]:
    """The values that stay, where they meet what changes."""
    return (i for n in order if n not in below for i in n.inputs if i in below)


def _worth_keeping(
    met: Iterable[Node],
    below: dict[Node, frozenset[Node]],
    slow: Collection[Node],
    outputs: frozenset[Node],
) -> Iterator[Node]:
    """The values to keep: those that are met, in as small a form as there is, or else what they are computed from."""
    stack, seen = list(met), set[Node]()
    while stack:
        n = _smallest(stack.pop())
        if n in seen:
            continue
        seen.add(n)
        if _is_there(n):
            continue
        if n not in outputs and _is_worth(n, below[n], n in slow):
            yield n
        else:
            stack += n.inputs


def _smallest(n: Node) -> Node:
    """The value that `n` shows the elements of, while that takes no more memory."""
    while n.op in MOVEMENT and nbytes(n.inputs[0]) <= nbytes(n):
        n = n.inputs[0]
    return n


def _shown(n: Node) -> tuple[Node, int]:
    """The value that `n` shows bits of, and the bytes of these that are read."""
    size = nbytes(n)
    while n.op in _VIEWS and n.storage is None:
        n = n.inputs[0]
        size = min(size, nbytes(n))
    return n, size


def _is_there(n: Node) -> bool:
    """True for a constant, and a view of a leaf's bits."""
    behind, _ = _shown(n)
    return not behind.inputs or behind.storage is not None


def _bytes_read(n: Node, sources: frozenset[Node]) -> int:
    """The bytes of the leaves `sources` that computing a value reads."""
    stack, seen, read = [n], set[Node](), dict.fromkeys(sources, 0)
    while stack:
        for i in stack.pop().inputs:
            behind, size = _shown(i)
            if behind in sources and i not in seen:
                read[behind] += size
            elif behind not in seen and behind not in sources:
                stack.append(behind)
                seen.add(behind)
            seen.add(i)
    return sum([min(size, nbytes(leaf)) for leaf, size in read.items()])


def _is_worth(n: Node, sources: frozenset[Node], slow: bool) -> bool:
    size = nbytes(n)
    if slow and size <= FREE_BYTES and (sources or size >= MIN_TABLE_BYTES):
        return True
    read = _bytes_read(n, sources)
    return size < read or (slow and size == read > 0)
