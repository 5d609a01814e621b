"""Conditions without which operands have no effect, for regions: what a mask makes nothing is not reached.

    s = where(j <= i, q k^T, -inf)      s[i, j] does not depend on k[j] for j > i: the other one is chosen
    s = q k^T + m                       nor does it where m is -inf, of any finite number
    y = sum over j of p[i, j] v[j]      nor y[i] on v[j] where a mask makes p[i, j] exactly 0

The first is so whatever the numbers are; the others to the bit for finite numbers: -inf plus x is -inf, and 0 times x
is 0 or -0, of which a sum, beginning with 0, shows neither. This is why a product's operand is left out only where
nothing but sums reads the product, and none of one element, which is that element. An infinity or NaN in an operand
that is left out would have made a NaN of what is masked: `assumed` has these operands, for those who look at their
values.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.graph import Axes, Node
from weft.ir.index import NEVER, Guard, low
from weft.ir.kernel.algorithm import KnownFill
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.kernelize.masks import condition_where, constant, masked_out, opposite_where

_READS_AS_IT_IS = frozenset({Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.SHRINK, Op.FLIP})
"""Movement of elements without others in between."""


@dataclass(frozen=True, slots=True, eq=False)
class Uses:
    """uses(node, k): a condition on places without which input number k of a node has no effect on its elements."""

    conditions: dict[tuple[Node, int], Guard]
    assumed: frozenset[tuple[Node, int]]
    """The operands that are taken to be finite where they have none."""

    def __call__(self, node: Node, k: int) -> Guard:
        return self.conditions.get((node, k), ())


def find_uses(order: Sequence[Node], outputs: frozenset[Node]) -> Uses:
    """The operands of a graph, in the order of computation, that have no effect somewhere."""
    masked: dict[int, KnownFill] = {}
    conditions: dict[tuple[Node, int], Guard] = {}
    assumed: set[tuple[Node, int]] = set()
    summed = _only_summed(order, outputs)
    for n in order:
        if n.storage is not None or not n.inputs:
            continue
        if (fill := masked_out(n, masked) or _zeros(n, masked)) is not None:
            masked[id(n)] = fill
        if n.op is Op.WHERE:
            conditions[n, 1], conditions[n, 2] = condition_where(n.inputs[0]), opposite_where(n.inputs[0])
        elif n.op is Op.ADD or (n.op is Op.MUL and n in summed):
            for k in (0, 1):
                other = masked.get(id(n.inputs[1 - k]))
                if (
                    other is not None
                    and n.inputs[0] is not n.inputs[1]
                    and (other.value < 0) is (n.op is Op.ADD)
                ):
                    conditions[n, k] = other.outside
                    assumed.add((n, k))
    return Uses({at: guard for at, guard in conditions.items() if guard}, frozenset(assumed))


def _zeros(node: Node, masked: dict[int, KnownFill]) -> KnownFill | None:
    """where(condition, x, 0), or the other way round: 0 times any finite number is nothing."""
    if node.op is not Op.WHERE:
        return None
    condition, x, other = node.inputs
    if constant(other, 0.0):
        guard = condition_where(condition)
    elif constant(x, 0.0):
        guard = opposite_where(condition)
    else:
        return None
    return KnownFill(guard, 0.0) if guard and guard != NEVER else None


def _adds(n: Node) -> bool:
    """True for a sum of several elements."""
    if n.op is not Op.SUM:
        return False
    assert isinstance(n.attrs, Axes)
    return any(low(n.inputs[0].shape[axis]) > 1 for axis in n.attrs.axes)


def _only_summed(order: Sequence[Node], outputs: frozenset[Node]) -> frozenset[Node]:
    """The products that nothing but sums of several elements read, by way of movement at most."""
    seen: set[Node] = set()  # by others than sums
    read: set[Node] = set()
    for n in reversed(order):
        plain = n.op in _READS_AS_IT_IS and n in read and n not in seen and n not in outputs
        for i in n.inputs:
            read.add(i)
            if not plain and not _adds(n):
                seen.add(i)
    return frozenset(n for n in order if n.op is Op.MUL and n in read and n not in seen and n not in outputs)
