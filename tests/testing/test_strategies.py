"""Random programs: they build, cover every op and dtype, and their reference and tolerance make sense."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings

import weft
from weft.ir import dtypes
from weft.ir.ops import Op
from weft.testing.programs import GraphProgram, numpy_leaf
from weft.testing.reference import evaluate
from weft.testing.strategies import MOVES, programs
from weft.testing.tolerance import allowed, difference

QUIET = {"suppress_health_check": list(HealthCheck), "deadline": None, "database": None}


@settings(max_examples=80, derandomize=True, **QUIET)
@given(programs())
def test_programs_evaluate_within_their_own_tolerance(p: GraphProgram) -> None:
    nodes = p.build(numpy_leaf)
    want, again = evaluate(nodes), evaluate(p.build(numpy_leaf))
    for a, b, bound in zip(want, again, allowed(nodes), strict=True):
        assert difference(a, b, np.zeros_like(bound)) is None
        assert bound.shape == a.shape
    assert repr(p).startswith("GraphProgram:\nv0 = ")


ROUNDS = 8
"""Seeds to try: which ops a few hundred programs hold is chance, and a round rarely misses one."""


def test_every_op_and_dtype_turns_up() -> None:
    ops: Counter[Op] = Counter()
    kinds: Counter[dtypes.DType] = Counter()
    wanted = set(Op) - {Op.BUFFER, Op.FMA, Op.LOOP, Op.CALL}  # of loops: tests/fuzz/test_loops.py
    for number in range(ROUNDS):
        for move in dict.fromkeys(MOVES):
            tries = 12 * MOVES.count(move) ** 2  # a move that is listed twice has many ops to choose from

            @seed(number)
            @settings(max_examples=tries, phases=[Phase.generate], **QUIET)
            @given(programs(6, moves=(move,)))
            def count(p: GraphProgram) -> None:
                ops.update(s.op for s in p.steps)
                kinds.update(dtypes.from_numpy(a.dtype) for a in p.leaves)

            count()
        if wanted <= set(ops) and set(kinds) == set(dtypes.DTYPES.values()):
            return
    assert not wanted - set(ops)
    assert set(kinds) == set(dtypes.DTYPES.values())


def test_ill_conditioned_elements_get_room_and_others_do_not() -> None:
    from weft.ir import graph as g

    a = numpy_leaf(np.array([1e4 + 1, 2.0], np.float32))
    b = numpy_leaf(np.array([1e4, 1.0], np.float32))
    square_difference = g.apply(Op.SUB, (g.apply(Op.MUL, (a, a)), g.apply(Op.MUL, (b, b))))
    loose, tight = allowed([square_difference])[0]
    assert loose > 10.0 and tight < 1e-4


def test_disturbances_that_may_cancel_are_not_taken_for_none() -> None:
    """A float32 that is rounded twice, and widened: each element may be off by its last place, not by float64's."""
    x = weft.tensor(np.linspace(0.3, 5.7, 400, dtype=np.float32).reshape(1, 400)).cos().sum(0).double()
    (bound,) = allowed([x.value.node])
    assert np.all(bound >= 2.0**-23 * np.abs(evaluate([x.value.node])[0]))
