"""Random loops of the passes' own tests, optimized, as machine code and as the interpreter runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from weft.backends.llvm.scalar import NATIVE
from weft.ir.loops import Block, If, Loop, LoopKind, Stmt
from weft.ir.math.expand import expand
from weft.ir.passes import pipeline
from weft.testing.loop_programs import loop_inputs, loop_programs


def in_order(body: Block) -> Block:
    """The block with serial loops for parallel ones, whose random iterations do share elements."""
    out: list[Stmt] = []
    for s in body:
        match s:
            case Loop():
                kind = LoopKind.SERIAL if s.kind is LoopKind.PARALLEL else s.kind
                out.append(replace(s, kind=kind, body=in_order(s.body)))
            case If():
                out.append(replace(s, body=in_order(s.body)))
            case _:
                out.append(s)
    return tuple(out)


@settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_optimized_loops(compile_all: Callable[..., Any], data: st.DataObject) -> None:
    p = data.draw(loop_programs(exact=True))
    p = pipeline.run(expand(replace(p, body=in_order(p.body)), NATIVE), verify=True)
    arrays, variables = data.draw(loop_inputs(p, exact=True))
    compile_all([p]).check(p.name, arrays, variables)
