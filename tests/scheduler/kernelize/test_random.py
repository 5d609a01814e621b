"""Random programs computed by their kernels, against the reference."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from weft.scheduler.kernelize.cost import NO_LIMIT
from weft.scheduler.kernelize.kernels import kernelize
from weft.testing.kernelized import execute
from weft.testing.programs import GraphProgram, numpy_leaf
from weft.testing.reference import evaluate
from weft.testing.strategies import programs, reduction_programs, view_programs
from weft.testing.tolerance import allowed, difference

QUIET = {"suppress_health_check": list(HealthCheck), "deadline": None, "database": None}


def check(program: GraphProgram, buffers: int = NO_LIMIT) -> None:
    nodes = program.build(numpy_leaf)
    want, bounds = evaluate(nodes), allowed(nodes)
    for got, value, bound in zip(execute(nodes, buffers=buffers), want, bounds, strict=True):
        assert difference(got, value, bound) is None
    assert all(len(s.algorithm.params) <= buffers for s in kernelize(nodes, buffers))


@settings(max_examples=200, derandomize=True, **QUIET)
@given(programs())
def test_programs_of_all_ops(program: GraphProgram) -> None:
    check(program)


@settings(max_examples=100, derandomize=True, **QUIET)
@given(view_programs())
def test_programs_of_views(program: GraphProgram) -> None:
    check(program)


@settings(max_examples=100, derandomize=True, **QUIET)
@given(reduction_programs())
def test_programs_of_reductions(program: GraphProgram) -> None:
    check(program)


@settings(max_examples=60, derandomize=True, **QUIET)
@given(programs())
def test_programs_with_few_buffers(program: GraphProgram) -> None:
    check(program, 4)
