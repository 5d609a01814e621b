"""Rows summed several at a time, so that memory is read in several places at once.

    for i:  for j:  s(i) += x[i, j]     ->     for io:  for j:  for ii in 4:  s(4*io + ii) += x[4*io + ii, j]

The hardware foresees what is read in order, but in each place only so many lines ahead and within a page: with several
places, more lines are under way. Source: Blom et al. 2024, arXiv:2412.16001; decision 195 has what it gains.
"""

from __future__ import annotations

from weft.backends.protocol import DeviceInfo
from weft.ir.index import ceildiv, coefficient, flatten, variables
from weft.ir.kernel.algorithm import Axis, ItemValue, reads
from weft.ir.kernel.decisions import pick
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Refusal, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.loops import LoopKind, Scope
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize.extents import divides, typical
from weft.scheduler.optimize.levels import SUM_CHAIN
from weft.scheduler.optimize.prefetch import MIN_RUN_BYTES, PLACES, large
from weft.scheduler.optimize.steps import split


def count(k: Kernel, item: ItemValue, along: Axis, info: DeviceInfo) -> tuple[Kernel, int]:
    """The number of rows that a sum along an axis takes at a time: more than one where all that it does is read large
    parameters once, in order, in too few places. Where all is one sum, its parts are far apart: if its length is only
    known at run time, it may end in the first one."""
    if k.algorithm.pinned or info.task_kind is not LoopKind.PARALLEL:
        return k, 1
    whole = all(a.extent == 1 for a in item.axes)
    if whole and not isinstance(along.extent, int) and typical(along.extent) < PLACES * _part(item, info):
        return k, 1
    places = 0
    for p in large(k, info):
        own = [r for r in reads(item) if r.source == p.name]
        elsewhere = any(r.source == p.name for i in k.algorithm.items if i is not item for r in reads(i))
        if not own:
            continue
        nbytes = typical(along.extent) * p.dtype.itemsize
        if p.written or elsewhere or nbytes < MIN_RUN_BYTES:
            return k, 1
        if any(coefficient(flatten(r.index, p.shape), along.var) != 1 for r in own):
            return k, 1
        places += len(own)
    if not 0 < places < PLACES:
        return k, 1
    return pick(k, "rows.abreast", (PLACES // places, 1, 2, 4, 8))


def _part(item: ItemValue, info: DeviceInfo) -> int:
    """The terms of a part of a sum whose length is only known at run time, at least."""
    return info.lanes(item.dtype) * SUM_CHAIN * SUM_CHAIN


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that are summed together: the number of their axis among those of the sum, which those of its parts have
    first, and the innermost loop over them."""

    axis: int
    loop: str


def share(steps: int, tasks: int, rows: int) -> int:
    """Steps for each part of a sum that takes so many, in about so many parts, of which groups of `rows` are made."""
    least = int(ceildiv(steps, tasks))
    return next((n for n in range(least, 2 * least) if ceildiv(steps, n) % rows == 0), least)


def grouped(k: Kernel, name: str, rows: int) -> tuple[Kernel, Group] | Refusal:
    """The innermost loop over a value's elements in groups of rows, each inside all that the value sums over."""
    item, nest = k.algorithm.item(name), k.nests[name]
    assert isinstance(item, ItemValue)
    pure = [s for s in nest.loops if not s.reduce]
    if not pure or (isinstance(pure[-1].extent, int) and not divides(rows, pure[-1].extent)):
        return Refusal(f"{name} has no groups of {rows} rows")
    loop = pure[-1].var.name
    axis = next(n for n, a in enumerate(item.axes) if pure[-1].var in variables(nest.bind[a.var]))
    k = k if divides(rows, pure[-1].extent) else run(k, Pad(loop, rows))
    k, _, inner = split(k, loop, rows, f"{loop}_group", f"{loop}_row")
    return _inside(k, name, inner), Group(axis, inner)


def follow(k: Kernel, name: str, group: Group) -> tuple[Kernel, Group]:
    """A part of the sum, computed for a group of rows: these run innermost."""
    loop = loop_of(k, name, group)
    return _inside(k, name, loop), Group(group.axis, loop)


def loop_of(k: Kernel, name: str, group: Group) -> str:
    """A part's loop over the rows of a group."""
    item, nest = k.algorithm.item(name), k.nests[name]
    own = {v.name for v in variables(nest.bind[item.axes[group.axis].var])}
    return next(s.var.name for s in nest.loops if s.var.name in own)


def beside(k: Kernel, name: str, reader: str, group: Group) -> Kernel:
    """The lanes of a group's rows computed just before their only reader adds them up, row by row."""
    nest = k.nests[reader]
    *around, lane, row = (s.var.name for s in nest.loops)
    assert row == group.loop
    k = run(k, Permute(reader, (*around, row, lane)))
    if around:
        return run(k, ComputeAt(name, reader, around[-1], Scope.REGISTER))
    return k if nest.at is None else run(k, ComputeAt(name, nest.at.item, nest.at.loop, Scope.REGISTER))


def _inside(k: Kernel, name: str, loop: str) -> Kernel:
    loops = [s.var.name for s in k.nests[name].loops]
    return run(k, Permute(name, (*(n for n in loops if n != loop), loop)))
