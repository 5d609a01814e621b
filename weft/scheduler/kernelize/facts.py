"""Facts of each node before fusion is decided, from the leaves up: its cost if computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto

from weft.ir.graph import Node, Shape, elements
from weft.ir.index import high
from weft.ir.ops import REDUCE, Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.kernelize import cost
from weft.scheduler.kernelize.contraction import contraction


class Big(Enum):
    """The reduction that a tensor, as large as its result, is or follows from: computing it anew would cost dearly."""

    REDUCTION = auto()
    CONTRACTION = auto()


@dataclass(slots=True)
class Facts:
    """The cost of one node, computed from leaves and presumed cuts.

    A presumed cut is the result of a reduction (or an elementwise function of one, of the same size) with several
    consumers: it will most likely be stored, so what is computed from it counts from there. `bases` are a few of the
    tensors in memory (or contractions) that it depends on, through any other reductions; `reduced` the shape that one
    of those reduces.
    """

    size: int
    nbytes: int
    ops: float = 0
    leaves: frozenset[int] | None = frozenset()
    bases: frozenset[int] = frozenset()
    reduces: bool = False
    big: Big | None = None
    reduced: Shape = ()
    consumers: int = 0


_NONE: frozenset[int] = frozenset()
MAX_LEAVES = 8
"""Tensors in memory that the facts of a node count one by one."""


def is_leaf(node: Node) -> bool:
    """True where the node's value is in memory already."""
    return node.storage is not None or node.op is Op.BUFFER


def gather_facts(order: Sequence[Node], forced: Mapping[int, str]) -> dict[int, Facts]:
    """Facts of all nodes in `order` (topological); `forced` ones will be stored in any case."""
    out: dict[int, Facts] = {}
    for node in order:
        size = high(elements(node.shape))
        f = out[id(node)] = Facts(size, size * node.dtype.itemsize)
        if is_leaf(node):
            f.leaves = f.bases = frozenset((id(node),))
            continue
        for i in node.inputs if len(node.inputs) == 1 else dict.fromkeys(node.inputs):
            out[id(i)].consumers += 1
    for node in order:
        if not is_leaf(node):
            _derive(node, out[id(node)], out, forced)
    return out


def leaf_bytes(leaves: frozenset[int] | None, facts: Mapping[int, Facts]) -> int | None:
    """Bytes of the leaves; None when there are too many to tell."""
    return None if leaves is None else sum(facts[k].nbytes for k in leaves)


def _derive(node: Node, f: Facts, facts: Mapping[int, Facts], forced: Mapping[int, str]) -> None:
    op = node.op
    if op is Op.LOOP:
        f.leaves = f.bases = frozenset((id(node),))
        return
    if op in REDUCE:
        f.leaves = frozenset((id(node),))
        f.reduces = True
        f.big = Big.CONTRACTION if contraction(node) is not None else Big.REDUCTION
        f.reduced = node.inputs[0].shape
        f.bases = f.leaves if f.big is Big.CONTRACTION else facts[id(node.inputs[0])].bases
        return
    leaves: frozenset[int] | None = _NONE
    ops: float = op.info.cost
    for i in node.inputs if len(node.inputs) == 1 else dict.fromkeys(node.inputs):
        g = facts[id(i)]
        f.reduced = f.reduced or g.reduced
        if g.bases and len(f.bases) <= MAX_LEAVES:
            f.bases = f.bases | g.bases if f.bases else g.bases
        if id(i) in forced or (g.big is not None and g.consumers > 1):
            more: frozenset[int] | None = frozenset((id(i),))
        else:
            more = g.leaves
            # loops hoist what is the same for a row
            ops += g.ops if g.size >= f.size else g.ops * g.size / f.size
            f.reduces = f.reduces or g.reduces
            if g.big is not None and 2 * g.size >= f.size and f.big is not Big.CONTRACTION:
                f.big = g.big
        if leaves is None or more is None:
            leaves = None
        elif more:
            leaves = leaves | more if leaves else more
    f.ops = min(ops, cost.SATURATED_OPS)
    f.leaves = None if leaves is not None and len(leaves) > MAX_LEAVES else leaves
