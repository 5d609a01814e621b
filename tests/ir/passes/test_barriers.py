"""With the barriers that are placed, no thread touches what another stores, in random loops over LOCAL buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft.backends.dummy.interpreter import interpret
from weft.ir import dtypes
from weft.ir.expr import Const, Load, call
from weft.ir.index import Index, Int, Var, in_range
from weft.ir.loops import Accumulate, Alloc, Block, Buffer, If, Loop, LoopKind, Program, Scope, Stmt, Store
from weft.ir.loops_verify import verify
from weft.ir.ops import Op
from weft.ir.passes.barriers import place_barriers

F = dtypes.float32
SIZE = 4
THREAD = Var("t", 0, SIZE - 1)


class _Maker:
    def __init__(self, draw: Any) -> None:
        self.draw, self.loops = draw, 0

    def place(self) -> Int:
        """An element of its own for each thread."""
        shift = self.draw(st.integers(0, SIZE - 1))
        return (THREAD + shift) % SIZE if self.draw(st.booleans()) else SIZE - 1 - THREAD

    def write(self) -> Stmt:
        """One that does not load what another thread stores by it."""
        target, source = self.draw(st.permutations("ab"))
        match self.draw(st.integers(0, 3)):
            case 0:
                return Accumulate(target, self.place(), Op.ADD, Load(F, "x", (self.place(),)))
            case 1:
                return Accumulate("y", THREAD, Op.ADD, Load(F, source, (self.place(),)))
            case _:
                return Store(
                    target, self.place(), call(Op.ADD, Load(F, source, (self.place(),)), Const(F, 1))
                )

    def block(self, depth: int, outer: list[Index]) -> Block:
        out: list[Stmt] = []
        for _ in range(self.draw(st.integers(1, 3))):
            match self.draw(st.integers(0, 6)):
                case 0 if depth:
                    self.loops += 1
                    v = Var(f"k{self.loops}", 0, 2)
                    out.append(Loop(v, 3, self.block(depth - 1, [*outer, v])))
                case 1 if depth and outer:
                    out.append(If(in_range(outer[-1], 1, 3), self.block(depth - 1, outer)))
                case 2:
                    out.append(If(in_range(THREAD, 1, 3), (self.write(),)))
                case _:
                    out.append(self.write())
        return tuple(out)

    def program(self) -> Program:
        start = tuple(Store(n, THREAD, Load(F, "x", (THREAD,))) for n in "ab")
        local = tuple(Alloc(Buffer(n, F, SIZE, Scope.LOCAL)) for n in "ab")
        threads = Loop(THREAD, SIZE, (*start, *self.block(2, [])), LoopKind.THREAD)
        block = Loop(Var("g", 0, 1), 2, (*local, threads), LoopKind.SERIAL)
        params = (Buffer("x", F, SIZE, Scope.GLOBAL), Buffer("y", F, SIZE, Scope.GLOBAL))
        return Program("k", params, frozenset("y"), (), (block,))


@settings(max_examples=200, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_races_are_left(data: st.DataObject) -> None:
    p = _Maker(data.draw).program()
    verify(p)
    placed = place_barriers(p)
    verify(placed)
    arrays = {"x": np.arange(SIZE, dtype=np.float32), "y": np.zeros(SIZE, np.float32)}
    interpret(placed, arrays, races=True)
