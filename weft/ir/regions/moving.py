"""Parts of boxes that begin where a runtime variable says, of known extents.

    y = pad(x, 1, 1)        x: (8),  y: (10)       y[t : t+4]  =  pad(x[s : s+4], 1, 1)[t - s : t - s + 4],
                                                                   s = t - 1 as far as it lies in 0..4

A part's extents cannot depend on the variable, so an op that would need fewer elements at its edges takes as many there
as elsewhere, which lie further inside; the wanted ones begin later in what is made of them: `Rows` of a reshape, the
source of a padded box. An op not listed makes such a box from whole axes (`weft.ir.regions.parts`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from weft.ir.graph import Along, Axes, Node, Padding, Window, apply
from weft.ir.index import Int, ceildiv, floordiv, high, low, maximum, minimum, mod
from weft.ir.ops import REDUCE, Op
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.part import Parts, attributes, same_op, size_of, taken_at


def moving_parts(node: Node, box: IndexBox) -> Parts | None:
    """The parts that a box, of which some ends are runtime variables, is made from; None where no rule says."""
    rule = _RULES.get(node.op)
    known = all(
        isinstance(n, int) for n in (*size_of(box), *node.shape, *(m for i in node.inputs for m in i.shape))
    )
    return rule(node, box) if rule is not None and known else None


def _on(*boxes: IndexBox) -> Callable[[Node, IndexBox], Parts]:
    return lambda node, box: Parts(boxes, lambda xs: same_op(node, xs, size_of(box)))


# ops that make the box, as they are, from boxes of their inputs -----------------------------------------------------


def _reduce(node: Node, box: IndexBox) -> Parts:
    reduced, kept = attributes(node, Axes).axes, iter(box)
    sides = [Interval(0, n) if k in reduced else next(kept) for k, n in enumerate(node.inputs[0].shape)]
    return _on(tuple(sides))(node, box)


def _permute(node: Node, box: IndexBox) -> Parts:
    sides = dict(zip(attributes(node, Axes).axes, box, strict=True))
    return _on(tuple([sides[k] for k in range(len(box))]))(node, box)


def _expand(node: Node, box: IndexBox) -> Parts:
    sides = zip(node.inputs[0].shape, box, strict=True)
    return _on(tuple([Interval(0, 1) if n == 1 else i for n, i in sides]))(node, box)


def _flip(node: Node, box: IndexBox) -> Parts:
    axes = attributes(node, Axes).axes
    sides = [
        Interval(n - i.hi, n - i.lo) if k in axes else i
        for k, (n, i) in enumerate(zip(node.shape, box, strict=True))
    ]
    return _on(tuple(sides))(node, box)


def _shear(node: Node, box: IndexBox) -> Parts:
    """Windows from the first element of the first one to the last element of the last one."""
    w = attributes(node, Window)
    i, k = box[w.axis], box[w.window]
    read = Interval(i.lo * w.stride + k.lo * w.dilation, (i.hi - 1) * w.stride + (k.hi - 1) * w.dilation + 1)
    return _on((*box[: w.axis], read, *box[w.axis + 1 :]))(node, box)


def _gather(node: Node, box: IndexBox) -> Parts:
    axis = attributes(node, Along).axis
    return _on((*box[:axis], Interval(0, node.inputs[0].shape[axis]), *box[axis + 1 :]), box)(node, box)


def _same_place(node: Node, box: IndexBox) -> Parts:
    return _on(box)(node, box)


# ops that make a box around it --------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """Rows from `first` on, and where in them the wanted elements begin."""

    first: Int
    number: int
    offset: Int


def rows_of(lo: Int, count: int, by: int, most: int) -> Rows:
    """The rows of `by` elements, of `most`, that `count` elements from `lo` on are in wherever that is."""
    phase = mod(lo, by)
    rows = min(most, (high(phase) + count - 1) // by + 1)
    if rows == most:
        return Rows(0, most, lo)
    first, last = floordiv(lo, by), most - rows
    # lo - by * min(first, last), in a form that shows its bounds
    return Rows(minimum(first, last), rows, phase if high(first) <= last else maximum(phase, lo - last * by))


def axis_groups(a: Sequence[int], b: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The axes of two shapes of equally many elements that are reshapes of each other; without axes of 1."""
    i = j = 0
    while i < len(a) or j < len(b):
        ins, outs, size_in, size_out = list[int](), list[int](), 1, 1
        while not ins or size_in != size_out:
            if size_in <= size_out and i < len(a) and (size_in < size_out or not ins):
                ins, size_in, i = [*ins, i], size_in * a[i], i + 1
            elif j < len(b):
                outs, size_out, j = [*outs, j], size_out * b[j], j + 1
            else:
                break
        ins, outs = [k for k in ins if a[k] != 1], [k for k in outs if b[k] != 1]
        if ins:
            yield ins, outs


def _reshape(node: Node, box: IndexBox) -> Parts:
    """Each group of axes by way of the place in it: rows of the input, of which some elements are taken, and of these,
    in the result's shape, the box."""
    (x,) = node.inputs
    sizes_in, sizes_out = _numbers(x.shape), _numbers(node.shape)
    inside, around = [Interval(0, n) for n in sizes_in], list(box)
    flat, offsets, counts = list[int](), list[Int](), list[int]()
    for ins, outs in axis_groups(sizes_in, sizes_out):
        lead = next((k for k, a in enumerate(outs) if size_of(box)[a] != 1), len(outs) - 1)
        for a in outs[lead + 1 :]:
            around[a] = Interval(0, sizes_out[a])
        steps = [math.prod(sizes_out[b] for b in outs[k + 1 :]) for k in range(len(outs))]
        lo: Int = 0
        for a, step in zip(outs[: lead + 1], steps, strict=False):
            lo = lo + box[a].lo * step
        count = _number(size_of(box)[outs[lead]]) * steps[lead]
        left, before = list(ins), lo
        while left:  # into an axis after the other, as long as one row holds it all
            by = math.prod(sizes_in[a] for a in left[1:])
            rows = rows_of(before, count, by, sizes_in[left[0]])
            inside[left[0]], before, left = (
                Interval(rows.first, rows.first + rows.number),
                rows.offset,
                left[1:],
            )
            if rows.number > 1:
                break
        flat.append(math.prod(_number(size_of(inside)[a]) for a in ins))
        offsets.append(before)
        counts.append(count)
    rest = [i.lo if i != a else 0 for i, a in zip(box, around, strict=True)]

    def make(xs: Sequence[Node]) -> Node:
        rows = apply(Op.RESHAPE, tuple(xs), None, tuple(flat))
        some = taken_at(rows, offsets, tuple(counts))
        return taken_at(apply(Op.RESHAPE, (some,), None, size_of(around)), rest, size_of(box))

    return Parts((tuple(inside),), make)


def _pad(node: Node, box: IndexBox) -> Parts | None:
    """As many elements as fit in the box, padded so that it lies in the result wherever it begins."""
    p, (x,) = attributes(node, Padding), node.inputs
    sides, before, after, offsets = list[Interval](), list[int](), list[int](), list[Int]()
    if 0 in x.shape:
        return None
    amounts = zip(_numbers(p.low), _numbers(p.high), p.interior, strict=True)
    for i, n, (least, most, gap) in zip(box, _numbers(x.shape), amounts, strict=True):
        step, count = gap + 1, _number(i.hi - i.lo)
        if least == most == gap == 0:
            side, offset, fit = i, 0, count
        else:
            fit = min(n, (count - 1) // step + 1)
            here = i.lo - least  # from the input's first element on
            first, last = ceildiv(here, step), n - fit
            start = minimum(maximum(first, 0), last)
            side = Interval(start, start + fit)
            # here - start * step, in a form that shows its bounds
            offset = maximum(minimum(here - first * step, here), here - last * step)
        sides.append(side)
        before.append(max(0, -low(offset)))
        offsets.append(offset + before[-1])
        after.append(max(0, high(offset) + count - (fit - 1) * step - 1))
    attrs = replace(p, low=tuple(before), high=tuple(after))
    return Parts((tuple(sides),), lambda xs: taken_at(apply(Op.PAD, tuple(xs), attrs), offsets, size_of(box)))


def _concat(node: Node, box: IndexBox) -> Parts | None:
    """The box of one input, where it is certainly in that one."""
    axis, start = attributes(node, Along).axis, 0
    for k, x in enumerate(node.inputs):
        n = _number(x.shape[axis])
        here = Interval(box[axis].lo - start, box[axis].hi - start)
        if low(here.lo) >= 0 and high(here.hi) <= n:
            part = (*box[:axis], here, *box[axis + 1 :])
            return Parts(tuple([part if j == k else None for j in range(len(node.inputs))]), lambda xs: xs[0])
        start += n
    return None


def _numbers(shape: Sequence[Int]) -> tuple[int, ...]:
    return tuple(map(_number, shape))


def _number(n: Int) -> int:
    assert isinstance(n, int), n
    return n


_RULES: dict[Op, Callable[[Node, IndexBox], Parts | None]] = {
    **dict.fromkeys(REDUCE, _reduce),
    Op.PERMUTE: _permute,
    Op.EXPAND: _expand,
    Op.FLIP: _flip,
    Op.SHEAR: _shear,
    Op.GATHER: _gather,
    Op.CONTIGUOUS: _same_place,
    Op.COPY: _same_place,
    Op.RESHAPE: _reshape,
    Op.PAD: _pad,
    Op.CONCAT: _concat,
}
