"""Scratch buffers of one dtype as parts of one buffer, for devices that bind few buffers to a launch.

a_kept: f32[1], tile: f32[4096], k_kept: i64[1]   ->   scratch0: f32[4097], scratch1: i64[1]
"""
# Tests: tests/ir/passes/test_grid.py

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.ir.dtypes import DType
from weft.ir.expr import Expr, Load, transform
from weft.ir.index import high
from weft.ir.loops import Accumulate, Block, Buffer, Combine, If, Loop, Prefetch, Program, Scope, Stmt, Store
from weft.ir.passes.grid import Launches
from weft.ir.passes.rewrite import Fresh, index_map, map_stmt

Places = Mapping[str, tuple[Buffer, int]]
"""Scratch buffer -> the buffer that it becomes a part of, and where in it."""


def packed(found: Launches, most: int) -> Launches:
    """The same launches with at most one scratch buffer for each dtype, if one of them has more than `most` buffers."""
    if all(len(g.params) <= most for g in found.grids) or len(found.scratch) < 2:
        return found
    taken = Fresh(found.grids[0])
    for g in found.grids:
        taken.taken |= Fresh(g).taken
    sizes: dict[DType, int] = {}
    starts: dict[str, tuple[DType, int]] = {}
    for b in found.scratch:
        starts[b.name] = (b.dtype, sizes.get(b.dtype, 0))
        sizes[b.dtype] = sizes.get(b.dtype, 0) + high(b.size)
    whole = {d: Buffer(taken.name("scratch"), d, n, Scope.GLOBAL) for d, n in sizes.items()}
    places = {name: (whole[d], start) for name, (d, start) in starts.items()}
    return Launches(tuple(_over(g, places) for g in found.grids), tuple(whole.values()))


def _over(g: Program, places: Places) -> Program:
    params = tuple(dict.fromkeys(places[b.name][0] if b.name in places else b for b in g.params))
    writes = frozenset(places[n][0].name if n in places else n for n in g.writes)
    memo: dict[Expr, Expr] = {}

    def leaf(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.source in places:
            buffer, start = places[e.source]
            return Load(e.dtype, buffer.name, (e.index[0] + start,), e.guard)
        return None

    def expr(e: Expr) -> Expr:
        return transform(e, leaf, None, memo)

    index = index_map(expr)

    def block(body: Block) -> Block:
        out: list[Stmt] = []
        for s in body:
            new = map_stmt(s, expr, index)
            match new:
                case Loop() | If():
                    new = replace(new, body=block(new.body))
                case Store() | Accumulate() | Prefetch() | Combine() if new.buffer in places:
                    buffer, start = places[new.buffer]
                    new = replace(new, buffer=buffer.name, offset=new.offset + start)
                case _:
                    pass
            out.append(new)
        return tuple(out)

    return replace(g, params=params, writes=writes, body=block(g.body))
