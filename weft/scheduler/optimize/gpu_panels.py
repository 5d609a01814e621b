"""Common parts of schedules of thread blocks: axes shared out among threads, and panels that threads fill.

i in 128  ->  warp (2), tile (4), element (2), lane (8)      a thread's own rows are its tiles' elements
"""
# Tests: tests/scheduler/test_golden.py, tests/scheduler/optimize/test_gpu_matrix.py

from __future__ import annotations

from weft.ir import expr as ex
from weft.ir.expr import Expr
from weft.ir.index import Var, coefficient, flatten
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import attempt, run
from weft.ir.kernel.transforms.mark import Bind, Unroll, Vectorize
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.loops import LoopKind
from weft.ir.matrix import LayoutFactor, Role
from weft.scheduler.optimize.steps import merge, split

ACCESS_BYTES = 16
"""The widest access of one thread."""


def share_out(
    k: Kernel, loop: str, warp: int, one: int, factors: tuple[LayoutFactor, ...]
) -> tuple[Kernel, str, list[str], list[str]]:
    """A loop as: warps of `warp` iterations, tiles of `one`, and the factors of a tile. The warps' loop, the loops
    over what one thread has, and those over lanes."""
    k, warps, rest = split(k, loop, warp, f"{loop}w", f"{loop}r")
    k, tiles, rest = split(k, rest, one, f"{loop}m", f"{loop}u")
    own, lanes = [tiles], list[str]()
    size = one
    for at, d in enumerate(factors):
        name = rest
        size //= d.extent
        if at + 1 < len(factors):
            k, name, rest = split(k, rest, size, f"{loop}d", f"{loop}q")
        (lanes if d.role is Role.LANE else own).append(name)
    return k, warps, own, lanes


def is_near(k: Kernel, part: Expr, axis: Var) -> bool:
    """The part's reads of memory step by one along the axis."""
    found = [
        coefficient(flatten(r.index, q.shape), axis)
        for r in loads(part)
        if (q := k.algorithm.param(r.source)) is not None
    ]
    return bool(found) and all(x == 1 for x in found)


def fill(k: Kernel, panel: str, threads: int, itemsize: int) -> Kernel:
    """All threads fill a panel: neighbours take neighbouring pieces, as wide as one access may be."""
    loops = [x.var.name for x in k.nests[panel].loops]
    if not loops:
        return k
    inner, vector = loops[-1], ""
    spec = k.nests[panel].loop(inner)
    width = ACCESS_BYTES // itemsize
    assert spec is not None
    if isinstance(spec.extent, int) and spec.extent % width == 0:
        k, inner, vector = split(k, inner, width, f"{inner}p", f"{inner}v")
    name = loops[0] if len(loops) > 1 else inner
    for n in [*loops[1:-1], inner] if len(loops) > 1 else []:
        k, name = merge(k, name, n)
    spec = k.nests[panel].loop(name)
    assert spec is not None and isinstance(spec.extent, int)
    own = ""
    if spec.extent > threads and spec.extent % threads == 0:
        k, own, name = split(k, name, threads, f"{panel}o", f"{panel}t")
        k = run(k, Permute(panel, (name, own, *([vector] if vector else []))))  # one part: no barriers in it
    k = attempt(k, Bind(name, LoopKind.THREAD))
    if own:
        k = attempt(k, Unroll(own))
    return attempt(k, Vectorize(vector)) if vector else k


def loads(e: Expr) -> list[ex.Load]:
    """The loads in an expression."""
    return [x for x in ex.walk([e]) if isinstance(x, ex.Load)]
