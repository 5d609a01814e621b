"""Convolutions as products of matrices: windows are copied side by side, so that they need no programs of their own.

    y[n, o, p] = sum c, k: x[n, c, p + k] * w[o, c, k]      ->      u[n, c, k, p] = x[n, c, p + k]
                                                                    y[n, o, p] = sum ck: u[n, ck, p] * w[o, ck]

A program for the windows' sizes alone takes longer to compile than the copies take, as long as these are small
(Chellapilla, Puri & Simard 2006, "High performance convolutional neural networks for document processing").
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.ir import graph
from weft.ir.graph import Axes, Box, Node, Window
from weft.ir.index import Int, Var, high, variables
from weft.ir.movement import source
from weft.ir.ops import MOVEMENT, Op
from weft.ir.rewrite import over, rewritten
from weft.scheduler.kernelize.contraction import contraction
from weft.scheduler.kernelize.facts import is_leaf

MOST_BYTES = 1 << 26
"""The bytes of windows side by side, at most: larger ones take longer to copy than a program takes to compile."""

WINDOWS = frozenset({Op.SHEAR, Op.UNSHEAR})


def unfolded(outputs: Sequence[Node]) -> list[Node]:
    """The graph with windows of convolutions copied side by side, where they are not too large."""
    return rewritten(outputs, _unfolded)


def _unfolded(n: Node, inputs: tuple[Node, ...]) -> Node:
    made = over(n, inputs)
    if made.op is not Op.SUM or made.inputs[0].op is not Op.MUL or contraction(made) is None:
        return made
    factors = made.inputs[0].inputs
    assert isinstance(made.attrs, Axes)
    copies = tuple([_copied(f, made.attrs.axes) for f in factors])
    if copies == factors:
        return made
    return graph.apply(Op.SUM, (graph.apply(Op.MUL, copies),), made.attrs)


def _copied(factor: Node, summed: tuple[int, ...]) -> Node:
    """The factor, read from a copy of its elements: its own axes, those summed over, and last those that windows
    slide along. Itself where it has no windows, or too many of them."""
    sliding = _sliding(factor)
    if not sliding:
        return factor
    own = sorted(_axes_of(factor), key=lambda a: (a in sliding, a in summed, a))
    shape = factor.shape
    if prod([high(shape[a]) for a in own]) * factor.dtype.itemsize > MOST_BYTES:
        return factor
    rank, rest = len(shape), [a for a in range(len(shape)) if a not in own]
    small = tuple([n if a in own else 1 for a, n in enumerate(shape)])
    found = graph.apply(Op.SHRINK, (factor,), Box((0,) * rank, (1,) * rank), small)
    found = graph.apply(Op.PERMUTE, (found,), Axes((*rest, *own)))
    found = graph.apply(Op.CONTIGUOUS, (found,))
    order = (*rest, *own)
    found = graph.apply(Op.PERMUTE, (found,), Axes(tuple([order.index(a) for a in range(rank)])))
    return graph.apply(Op.EXPAND, (found,), shape=shape)


def _sliding(factor: Node) -> set[int]:
    """The axes that windows slide along; none where something other than a permutation lies over these."""
    while factor.op in MOVEMENT and not is_leaf(factor):
        if factor.op in WINDOWS:
            found = set[int]()
            while factor.op in WINDOWS and isinstance(factor.attrs, Window):
                found.add(factor.attrs.axis)
                factor = factor.inputs[0]
            return found
        return set()
    return set()


def _axes_of(factor: Node) -> set[int]:
    """The axes along which a factor's elements differ: where they lie, or whether they are nothing."""
    index: tuple[Int, ...] = tuple([Var(f"@{k}", 0, high(n) - 1) for k, n in enumerate(factor.shape)])
    used: set[Var] = set()
    n = factor
    while n.op in MOVEMENT and not is_leaf(n):
        found = source(n, index)
        used.update(
            v for c in found.guard for x in (c.value, c.lo, c.hi) if x is not None for v in variables(x)
        )
        index, n = found.index, n.inputs[0]
    used.update(v for i in index for v in variables(i))
    names = {v.name for v in used}
    return {k for k, n in enumerate(factor.shape) if f"@{k}" in names and n != 1}
