"""The operands of a sum of products: how they lie along its axes, and from where lines of them come.

An operand is a factor of the sum, by its side. The panel is the one that lanes run along, the stream the one whose
elements are broadcast (`contraction.py`).
"""
# Tests: tests/scheduler/optimize/test_contraction.py

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod

from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir.expr import Expr, Load, ScalarCall, Test
from weft.ir.index import FloorDiv, Mod, Opaque, Var, atoms, coefficient, flatten
from weft.ir.kernel.algorithm import Axis
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.window import Window, main
from weft.scheduler.optimize import access, squares
from weft.scheduler.optimize.access import plain_load
from weft.scheduler.optimize.contraction_form import Contraction
from weft.scheduler.optimize.extents import typical
from weft.scheduler.optimize.rule import TileSize


def reachable(k: Kernel, c: Contraction, side: int) -> Expr | None:
    """The factor, when it is guarded and `Window` makes it a plain load: the indices that it is about are affine."""
    factor = c.factors[side]
    parts = list(ex.walk([factor])) if isinstance(factor, Load | ScalarCall) else []
    if not any(isinstance(x, Test) or (isinstance(x, Load) and x.guard) for x in parts):
        return None
    if Window(c.value.name, factor, "window").check(k) is not None:
        return None
    axes = [a.var for a in c.value.all_axes]
    return factor if all(coefficient(i, v) is not None for i in main(factor).index for v in axes) else None


def row_bytes(k: Kernel, e: Expr, stream: Axis) -> int | None:
    """The distance in memory between the rows of a tile of the stream, where it is a plain load."""
    load = plain_load(e)
    p = k.algorithm.param(load.source) if load is not None and not load.guard else None
    step = (
        coefficient(flatten(load.index, p.shape), stream.var) if load is not None and p is not None else None
    )
    return None if step is None or p is None else abs(step) * p.dtype.itemsize


def run_bytes(k: Kernel, c: Contraction, side: int) -> int | None:
    """The bytes that the summed axes run over without a gap, where the factor is a load at an affine index."""
    load = plain_load(c.factors[side])
    p = k.algorithm.param(load.source) if load is not None else None
    if load is None or p is None or c.value.reduce is None:
        return None
    offset = flatten(load.index, p.shape)
    steps = [(coefficient(offset, a.var), typical(a.extent)) for a in c.value.reduce.axes if a.extent != 1]
    if any(step is None for step, _ in steps):
        return None
    run = 1
    for step, extent in sorted((abs(step), extent) for step, extent in steps if step):
        if step != run:
            break
        run *= extent
    return run * p.dtype.itemsize


def fetched_anew(k: Kernel, c: Contraction, side: int, info: DeviceInfo) -> bool:
    """A step along the innermost summed axis leads to another line of the factor's memory, and all steps' lines do not
    fit into the first cache: where the next tile would use the rest of each line, it comes from the second again."""
    load = plain_load(c.factors[side])
    p = k.algorithm.param(load.source) if load is not None else None
    assert c.value.reduce is not None
    summed = c.value.reduce.axes
    if load is None or p is None:
        return False
    step = coefficient(flatten(load.index, p.shape), summed[-1].var)
    line, sets = info.costs.line_bytes, info.costs.sets(info.l1_bytes, info.l1_ways)
    if step is None or abs(step) * p.dtype.itemsize < line:
        return False
    apart = abs(step) * p.dtype.itemsize // line
    return prod(typical(a.extent) for a in summed) > info.l1_ways * (sets // gcd(sets, apart))


def crowded(k: Kernel, c: Contraction, side: int, info: DeviceInfo) -> bool:
    """The steps along the innermost summed axis are so many lines apart that their lines share few sets of the second
    cache, which hold less than half of them: each tile would fetch them from further away."""
    load = plain_load(c.factors[side])
    p = k.algorithm.param(load.source) if load is not None else None
    if load is None or p is None or load.guard or not fetched_anew(k, c, side, info):
        return False
    assert c.value.reduce is not None
    step = coefficient(flatten(load.index, p.shape), c.value.reduce.axes[-1].var) or 0
    costs, sets = info.costs, info.costs.sets(info.l2_bytes, info.costs.cache_ways)
    apart = abs(step) * p.dtype.itemsize // costs.line_bytes
    return typical(c.value.reduce.axes[-1].extent) > 2 * costs.cache_ways * (sets // gcd(sets, apart))


def clash(apart: int | None, tall: int, info: DeviceInfo) -> bool:
    """The lines of so many rows, so far apart, do not fit into the first cache together: they share its sets."""
    if not apart or tall < info.l1_ways:
        return False
    sets = info.costs.sets(info.l1_bytes, info.l1_ways)
    used = [row * apart // info.costs.line_bytes % sets for row in range(tall)]
    return max(used.count(x) for x in set(used)) >= info.l1_ways


def awkward(k: Kernel, e: Expr) -> bool:
    """The factor is more than a load at an affine index."""
    load = plain_load(e)
    if load is None or load.guard:
        return True
    p = k.algorithm.param(load.source)
    return p is None or any(
        isinstance(a, FloorDiv | Mod | Opaque) for a in atoms(flatten(load.index, p.shape))
    )


def loads(e: Expr) -> Iterator[Load]:
    """The loads of an expression, but for those in indices."""
    return (x for x in ex.walk([e], into_indices=False) if isinstance(x, Load))


def contiguous(k: Kernel, c: Contraction, side: int, axis: Axis) -> bool:
    """A factor is a load that lies along an axis."""
    load = plain_load(c.factors[side])
    return load is not None and lane_step(k, load, axis.var) == 1


def is_packed(k: Kernel, c: Contraction, side: int, axis: Axis, width: int) -> bool:
    """A factor lies in panels already, step by step of the sum, that tiles of this width divide: see `panels.py`."""
    load, reduce = c.factors[side], c.value.reduce
    p = k.algorithm.param(load.source) if isinstance(load, Load) and not load.guard else None
    if p is None or not isinstance(load, Load) or reduce is None or not isinstance(axis.extent, int):
        return False
    offset = flatten(load.index, p.shape)
    steps = [abs(s) for a in reduce.axes if a.extent != 1 and (s := coefficient(offset, a.var))]
    whole = min(steps, default=1)
    return (
        coefficient(offset, axis.var) is None
        and whole % width == 0
        and axis.extent % whole == 0
        and access.lane_step(offset, axis.var, whole) == 1
    )


def square_of(k: Kernel, c: Contraction, side: int, axis: Axis, info: DeviceInfo) -> int:
    """The lanes of the squares in which a factor can be read (`squares.py`); 0 where it cannot."""
    load, reduce, size = c.factors[side], c.value.reduce, squares.width(c.value.dtype, info)
    if reduce is None or not size or not isinstance(load, Load):
        return 0
    last = reduce.axes[-1]
    along = squares.lies_in_squares(k.algorithm.param(load.source), load, axis.var, last.var)
    return size if along and isinstance(last.extent, int) and squares.steps(last.extent, size) else 0


def is_in_squares(tile: TileSize, square: int, info: DeviceInfo) -> bool:
    """Registers hold a square beside the tile, which is as wide."""
    return square > 0 and tile.columns == 1 and tile.rows + square + 2 <= info.vector_registers


def lane_step(k: Kernel, load: Load, axis: Var) -> int | None:
    """The distance in memory between a load's neighbours along an axis, where it is the same for all."""
    p = k.algorithm.param(load.source)
    return None if p is None else coefficient(flatten(load.index, p.shape), axis)
