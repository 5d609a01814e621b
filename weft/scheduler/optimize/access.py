"""The memory accesses of an item's expressions along each of its axes: what vectorization is decided by."""

from __future__ import annotations

from collections.abc import Iterator

from weft.ir import expr as ex
from weft.ir.expr import Expr, Load, ScalarCall
from weft.ir.index import Int, Var, coefficient, flatten, substitute, variables
from weft.ir.kernel.algorithm import Algorithm, Item, Output, reads
from weft.ir.ops import EXPANDED, Op
from weft.lazy_dataclass import dataclass

MIN_RUN = 16
"""Elements side by side that count as contiguous, where an axis is so in blocks only: a vector of AVX-512."""


@dataclass(frozen=True, slots=True)
class Access:
    """One access to a parameter, as a flat offset."""

    param: str
    offset: Int
    store: bool


def accesses(algorithm: Algorithm, item: Item) -> Iterator[Access]:
    """Every access of the item to parameters."""
    for load in reads(item):
        p = algorithm.param(load.source)
        if p is not None:
            yield Access(p.name, flatten(load.index, p.shape), False)
    if isinstance(item, Output):
        for s in item.stores:
            p = algorithm.param(s.param)
            assert p is not None
            yield Access(p.name, flatten(s.index, p.shape), True)


def vector_score(algorithm: Algorithm, item: Item, axis: Var) -> float:
    """The score of vectorizing the item along `axis`: contiguous accesses count for it, strided ones against it."""
    score = 0.0
    for a in accesses(algorithm, item):
        step = lane_step(a.offset, axis, MIN_RUN)
        weight = 2.0 if a.store else 1.0
        match step:
            case 1:
                score += weight
            case 0:
                score += 0.25 if not a.store else -2.0
            case _:
                score -= weight
    return score


def lane_step(offset: Int, axis: Var, width: int) -> int | None:
    """The step of an offset from lane to lane of vectors along `axis`, where all have the same one: that of the axis
    itself, or of aligned blocks of it (a scale for 32 elements, four bits of a byte in one half of a block)."""
    step = coefficient(offset, axis)
    if step is not None or axis.hi < width:
        return step
    block = Var(f"{axis.name}_block", 0, axis.hi // width)
    within = Var(f"{axis.name}_lane", 0, width - 1)
    return coefficient(substitute(offset, {axis: width * block + within}), within)


def axes_of(e: Expr) -> set[Var]:
    """The index variables an expression depends on."""
    return {v for x in ex.walk([e]) for i in ex.indices(x) for v in variables(i)}


def is_costly(e: Expr) -> bool:
    """True where recomputing the expression is worth avoiding."""
    return any(isinstance(x, ScalarCall) and x.op in EXPANDED for x in ex.walk([e]))


def plain_load(e: Expr) -> Load | None:
    """The load behind an expression that is one, or a conversion of one."""
    while isinstance(e, ScalarCall) and e.op is Op.CAST:
        e = e.args[0]
    return e if isinstance(e, Load) else None
