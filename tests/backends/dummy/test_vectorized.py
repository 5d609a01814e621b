"""Whole loops at once mean what the plain interpreter says, bit for bit."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from weft.backends.dummy import vectorized
from weft.backends.dummy.independent import at_once
from weft.backends.dummy.interpreter import interpret
from weft.backends.dummy.vectorized import Vectorized
from weft.ir import dtypes
from weft.ir.expr import Const, Load, ScalarCall, call
from weft.ir.index import Int, Var
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import initial
from weft.ir.loops import Accumulate, Block, Buffer, Loop, LoopKind, Program, Scope, Stmt, Store
from weft.ir.loops_text import show_program
from weft.ir.ops import Op
from weft.testing.conformance.harness import difference
from weft.testing.conformance.test_loops import in_order
from weft.testing.kernels import CASES
from weft.testing.loop_programs import loop_inputs, loop_programs
from weft.testing.schedules import picked_by, random_schedule

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))
F = dtypes.float32


def fuzz(examples: int) -> settings:
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        phases=(Phase.generate, Phase.shrink) if EXAMPLES else (Phase.generate,),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def test_random_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    @fuzz(150)
    @given(st.data())
    def compare(data: st.DataObject) -> None:
        exact = data.draw(st.booleans())
        p = data.draw(loop_programs(exact=exact))
        p = replace(p, body=in_order(p.body))
        note(show_program(p))
        monkeypatch.setattr(vectorized, "LANES", data.draw(st.sampled_from([1, 7, 1 << 20])))
        want, variables = data.draw(loop_inputs(p, exact=exact))
        got = {name: a.copy() for name, a in want.items()}
        interpret(p, want, variables)
        Vectorized(p).run(got, variables)
        for name, a in want.items():
            assert difference(got[name], a) is None, name

    compare()


@pytest.mark.parametrize("name", CASES)
def test_random_schedules(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]

    @fuzz(3)
    @given(st.data())
    def compare(data: st.DataObject) -> None:
        p = lower(random_schedule(picked_by(data.draw), initial(case.algorithm), 16))
        note(show_program(p))
        monkeypatch.setattr(vectorized, "LANES", data.draw(st.sampled_from([64, 1 << 20])))
        inputs = case.inputs(0)
        want = {k: a.reshape(-1).copy() for k, a in inputs.items()}
        want |= {k: np.full(a.size, np.nan, np.float32) for k, a in case.reference(inputs).items()}
        got = {k: a.copy() for k, a in want.items()}
        interpret(p, want)
        Vectorized(p).run(got)
        for k, a in want.items():
            np.testing.assert_allclose(got[k], a, rtol=2e-5, atol=2e-5)

    compare()


I, J, K = Var("i", 0, 7), Var("j", 0, 3), Var("k", 0, 15)


def loop(v: Var, *body: Stmt, kind: LoopKind = LoopKind.SERIAL) -> Loop:
    return Loop(v, v.hi + 1, body, kind)


def load(name: str, at: Int) -> Load:
    return Load(F, name, (at,))


def store(at: Int, source: str = "x", where: Int = 0) -> Store:
    return Store("y", at, load(source, where))


INDEPENDENT: dict[str, tuple[Loop, bool]] = {
    "rows": (loop(I, loop(J, store(4 * I + J))), True),
    "columns": (loop(I, loop(J, store(8 * J + I))), True),
    "a digit in the middle": (loop(I, loop(J, loop(K, store(128 * J + 16 * I + K)))), True),
    "rows that overlap": (loop(I, loop(J, store(3 * I + J))), False),
    "columns that overlap": (loop(I, loop(J, store(7 * J + I))), False),
    "backwards": (loop(I, store(7 - I)), True),
    "one element": (loop(I, store(0, "x", I)), False),
    "a sum": (loop(I, Accumulate("y", 0, Op.ADD, load("x", I))), True),
    "two kinds of sums": (
        loop(I, Accumulate("y", 0, Op.ADD, load("x", I)), Accumulate("y", 0, Op.MUL, load("x", I))),
        False,
    ),
    "a sum that is read": (loop(I, Accumulate("y", 0, Op.ADD, load("y", 1))), False),
    "its own element": (loop(I, store(I, "y", I)), True),
    "the neighbour": (loop(I, store(I, "y", I + 1)), False),
    "a quotient": (loop(K, store(K // 2)), False),
    "tasks": (loop(K, store(K // 2), kind=LoopKind.PARALLEL), True),
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_which_loops_run_at_once(name: str) -> None:
    s, expected = INDEPENDENT[name]
    assert at_once(s, {}) is expected


def program(body: Block, *names: str, writes: str = "y", size: int = 512) -> Program:
    return Program("p", tuple(Buffer(n, F, size, Scope.GLOBAL) for n in names), frozenset(writes), (), body)


def test_parameters_in_the_same_memory() -> None:
    """A shift in place: in order where the memory is one, also where it begins elsewhere."""
    p = program((loop(I, store(I + 1, "x", I)),), "x", "y", size=9)
    quick = Vectorized(p)
    for start in (0, 1, 9):  # where y begins in x's memory
        want, got = np.arange(20, dtype=np.float32), np.arange(20, dtype=np.float32)
        interpret(p, {"x": want[:9], "y": want[start : start + 9]})
        quick.run({"x": got[:9], "y": got[start : start + 9]})
        assert got.tolist() == want.tolist()


def test_products_are_summed_as_matrices() -> None:
    """A product of matrices whose terms never stand in memory, with an infinity, in pieces and at once."""
    n = 96
    i, j, k = (Var(name, 0, n - 1) for name in "ijk")
    product = ScalarCall(F, Op.MUL, (load("a", n * i + k), load("b", n * k + j)))
    body = loop(
        i, loop(j, Store("y", n * i + j, Const(F, 1)), loop(k, Accumulate("y", n * i + j, Op.ADD, product)))
    )
    p = program((body,), "a", "b", "y", size=n * n)
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(n, n)).astype(np.float32) for _ in range(2))
    a[3, 5], b[5, 7], a[11, 2], b[2, 13] = np.inf, 0, np.inf, -np.inf
    y = np.full(n * n, np.nan, np.float32)
    Vectorized(p).run({"a": a.reshape(-1), "b": b.reshape(-1), "y": y})
    with np.errstate(all="ignore"):
        want = 1 + a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(y.reshape(n, n), want, rtol=1e-6)
    assert np.isnan(want[3, 7]) and want[11, 13] == -np.inf


def test_lanes_beyond_an_extent_that_differs() -> None:
    """Triangles: the extent of an inner loop depends on the outer one's iteration."""
    j = Var("j", 0, 7)
    add = Accumulate("y", I, Op.ADD, call(Op.MUL, load("x", j), load("x", j)))
    p = program((loop(I, Loop(j, I + 1, (add,)), kind=LoopKind.PARALLEL),), "x", "y", size=8)
    x = np.arange(1, 9, dtype=np.float32)
    y = np.zeros(8, np.float32)
    Vectorized(p).run({"x": x, "y": y})
    assert y.tolist() == np.cumsum(x * x).tolist()
