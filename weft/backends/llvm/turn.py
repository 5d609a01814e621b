"""Copies that turn their data, in square tiles.

    for j in 64:                                    for j_o in 4:
      for i_o in 4:                                   for i_o in 4:
        vector i in 16:                    ->           unroll j_i in 16:
          y[.. + 64*j + i] = x[.. + 1000*i + j]           vector i in 16:
                                                            y[.. 16*j_o + j_i ..] = x[ .. ]

Lanes that lie apart in memory, while a serial loop around them steps through neighbours: `memory` then reads a tile by
rows and transposes it in registers. Where it is the store whose lanes lie apart, the vector loop and that serial
loop change places first. Only for a nest whose iterations are independent of each other. What a serial loop of a size
known at run time has beyond whole tiles is copied as it was.
"""

from __future__ import annotations

from weft.ir.expr import Expr, Load, opaque_values, transform, walk
from weft.ir.index import Index, Int, Var, coefficient, floordiv, high, maximum, mod, rewrite
from weft.ir.loops import Block, Loop, LoopKind, Store

TILE = 16
FEWEST_LANES = 8


def turned(loop: Loop) -> Block | None:
    """The loops to run instead of `loop`, None when it is no such nest."""
    nest = [loop]
    while len(nest[-1].body) == 1 and isinstance(nest[-1].body[0], Loop):
        nest.append(nest[-1].body[0])
    lanes, serial = nest[-1], nest[:-1]
    if (
        not serial
        or lanes.kind is not LoopKind.VECTOR
        or any(x.kind is not LoopKind.SERIAL for x in serial)
        or not isinstance(lanes.extent, int)
        or lanes.extent < FEWEST_LANES
        or len(lanes.body) != 1
    ):
        return None
    store = lanes.body[0]
    if not isinstance(store, Store) or store.guard or not _independent(store, nest):
        return None
    loads = [e for e in walk([store.value]) if isinstance(e, Load)]
    for around in serial:
        if high(around.extent) < TILE:
            continue
        if _apart(store.offset, lanes.var) and coefficient(store.offset, around.var) == 1:
            if lanes.extent % TILE == 0 and any(_beside(e, lanes.var) for e in loads):
                return _tiles(serial, around, lanes, store, swap=True)
        elif any(_apart(e.index[0], lanes.var) and _beside(e, around.var) for e in loads):
            return _tiles(serial, around, lanes, store, swap=False)
    return None


def _apart(i: Int, lane: Var) -> bool:
    step = coefficient(i, lane)
    return step is not None and abs(step) > 1


def _beside(e: Load, v: Var) -> bool:
    return not e.guard and coefficient(e.index[0], v) == 1


def _independent(store: Store, nest: list[Loop]) -> bool:
    """No iteration writes what another one writes or reads."""
    if opaque_values(store.offset) or any(
        isinstance(e, Load) and e.source == store.buffer for e in walk([store.value])
    ):
        return False
    steps: list[tuple[int, int]] = []
    for x in nest:
        step = coefficient(store.offset, x.var)
        if not step:
            return False
        steps.append((abs(step), high(x.extent)))
    reach = 0
    for step, extent in sorted(steps):
        if step <= reach:
            return False
        reach += step * (extent - 1)
    return True


def _tiles(serial: list[Loop], around: Loop, lanes: Loop, store: Store, *, swap: bool) -> Block:
    assert isinstance(lanes.extent, int)
    extent = maximum(around.extent, 0)
    count = floordiv(extent, TILE)
    rest = mod(extent, TILE)
    outer = Var(f"{around.var.name}.o", 0, high(count) - 1)
    inner = Var(f"{around.var.name}.i", 0, TILE - 1)
    mapping: dict[Var, Int] = {around.var: (0 if count == 1 else outer * TILE) + inner}
    if swap:
        run = Var(f"{lanes.var.name}.o", 0, lanes.extent // TILE - 1)
        lane = Var(f"{lanes.var.name}.i", 0, TILE - 1)
        mapping[lanes.var] = (run * TILE if lanes.extent > TILE else 0) + lane
        tile = Loop(
            lane,
            TILE,
            (Loop(inner, TILE, (_substituted(store, mapping),), LoopKind.VECTOR),),
            LoopKind.UNROLL,
        )
        body: Block = (Loop(run, lanes.extent // TILE, (tile,)),)
    else:
        vector = Loop(lanes.var, lanes.extent, (_substituted(store, mapping),), LoopKind.VECTOR)
        body = (Loop(inner, TILE, (vector,), LoopKind.UNROLL),)
    for x in reversed(serial):
        body = (Loop(outer, count, body),) if x is around else (Loop(x.var, x.extent, body),)
    if rest == 0:
        return body
    left = Var(f"{around.var.name}.r", 0, high(rest) - 1)
    tail: Block = (
        Loop(
            lanes.var,
            lanes.extent,
            (_substituted(store, {around.var: left + count * TILE}),),
            LoopKind.VECTOR,
        ),
    )
    for x in reversed(serial):
        tail = (Loop(left, rest, tail),) if x is around else (Loop(x.var, x.extent, tail),)
    return (*body, *tail)


def _substituted(store: Store, mapping: dict[Var, Int]) -> Store:
    memo: dict[Expr, Expr] = {}

    def index(i: Index) -> Int | None:
        return mapping.get(i) if isinstance(i, Var) else None

    return Store(
        store.buffer,
        rewrite(store.offset, index),
        transform(store.value, lambda _: None, index, memo),
        stream=store.stream,
    )
