"""The values computed on the way to others that are kept, because the user holds them.

    y = (x * w).tanh()         # computed nowhere yet
    print(y.sum().item())      # computes the sum, and y on the way
    print(y.max().item())      # would compute y again, and w too where that is random numbers

Nobody asked for `y`, and a fused kernel need not store it. But who holds a tensor mostly uses it again; a loop that
makes the next `y` of the last one would have a graph that grows, and a new plan, at each step. So what is held is
stored with the results, unless it is no work to compute or takes much more memory than what it is computed from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from weft.ir.dtypes import DType
from weft.ir.graph import Node, Shape, elements
from weft.ir.index import high
from weft.ir.ops import MOVEMENT, Op

FREE_BYTES = 1 << 20
"""The memory up to which values are kept, whatever they are computed from."""

FORMULA_NODES = 24
"""A value made of constants in more steps than this is kept."""

_WRITES = frozenset({Op.UPDATE, Op.SCATTER})


def worth_keeping(held: Iterable[Node], outputs: Sequence[Node], leaves: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes of `held`, inputs before their users, to be stored when `outputs` are computed from `leaves`."""
    for n in leaves:
        if n.device is None and n.op is Op.BUFFER:  # files: what is computed may not fit in memory
            return ()
    room, counted = FREE_BYTES, False
    known = set(outputs)
    kept: list[Node] = []
    for node in held:
        if node in known or node.storage is not None:
            continue
        source = node
        while source.op in MOVEMENT and source.storage is None:
            source = source.inputs[0]
        if source.storage is not None or not source.inputs or source in known:
            continue  # a view of what is there
        if source.device is None and is_formula(source):
            continue
        size = nbytes(node)
        if size > room and not counted:
            room, counted = room + sum(map(nbytes, leaves)) + sum(map(nbytes, outputs)), True
        if size > nbytes(source) or size > room:
            continue
        room -= size
        known.add(node)
        kept.append(node)
    return tuple(kept)


def is_formula(node: Node) -> bool:
    """True where a value made of constants is a formula of its indices, as masks are, which say more to the
    kernels that use them than stored elements would. Not what was written piece by piece, or has very many steps."""
    stack, seen = [node], {node}
    while stack:
        n = stack.pop()
        if n.op in _WRITES or len(seen) > FORMULA_NODES:
            return False
        for i in n.inputs:
            if i not in seen:
                seen.add(i)
                stack.append(i)
    return True


def nbytes(node: Node) -> int:
    """The memory that a value takes."""
    return _nbytes(node.shape, node.dtype)


@lru_cache(4096)
def _nbytes(shape: Shape, dtype: DType) -> int:
    return int(high(elements(shape))) * dtype.itemsize
