"""The work of a program: the count behind the simulated devices' clocks."""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.expr import Load, ScalarCall, walk
from weft.ir.index import evaluate, variables
from weft.ir.loops import Accumulate, Block, If, Loop, Program, Stmt
from weft.ir.loops_names import roots
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """Operations on elements, loads among them, and bytes of the parameters, each counted once."""

    operations: float
    nbytes: int


def work(p: Program, given: Mapping[str, int]) -> Work:
    """The work of `p` with these runtime integers. An extent that depends on a loop counts with its maximum."""
    nbytes = sum(int(evaluate(b.size, given)) * b.dtype.itemsize for b in p.params)
    return Work(_block(p.body, given, 1.0), nbytes)


def _block(body: Block, env: Mapping[str, int], times: float) -> float:
    total = 0.0
    for s in body:
        total += times * _own(s)
        match s:
            case Loop():
                total += _block(s.body, env, times * max(0, _extent(s, env)))
            case If():
                total += _block(s.body, env, times)
            case _:
                pass
    return total


def _extent(s: Loop, env: Mapping[str, int]) -> int:
    if isinstance(s.extent, int):
        return s.extent
    known = not s.extent.computed and all(v.name in env for v in variables(s.extent))
    return int(evaluate(s.extent, env)) if known else s.extent.hi


def _own(s: Stmt) -> int:
    """Operations of one statement, its body not included."""
    return sum(isinstance(e, ScalarCall | Load) for e in walk(roots(s))) + isinstance(s, Accumulate)
