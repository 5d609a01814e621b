"""Formulas: expressions of variables that give sizes."""

from __future__ import annotations

import numpy as np
import pytest

from weft.ir.index import Var, evaluate
from weft.scheduler.formulas import HALVES, LIKELY, PLACES, POLYNOMIALS, Column, Form, divided, expressed

N, M = Var("n", 2, 256), Var("m", 2, 256)
KNOWN = [((17, 42, 30), N), ((5, 23, 8), M)]


@pytest.mark.parametrize(
    ("column", "forms", "formula"),
    [
        ((51, 126, 90), POLYNOMIALS, "3*n"),
        ((20, 45, 33), POLYNOMIALS, "n + 3"),
        ((22, 65, 38), POLYNOMIALS, "m + n"),
        ((14, 21, 24), POLYNOMIALS, "-m + n + 2"),
        ((170, 1932, 480), POLYNOMIALS, "2*(m*n)"),
        ((37, 87, 63), POLYNOMIALS, "2*n + 3"),
        ((9, 21, 15), (divided,), "(n + 1)//2"),
        ((6, 14, 10), (divided,), "(n + 2)//3"),
        ((16, 40, 28), (divided,), "4*(n//4)"),
        ((11, 23, 17), (divided,), "(n + 1)//2 + 2"),
        ((48, 504, 120), HALVES, "2*(((m + 1)//2)*(n//2))"),
        ((20, 45, 33), PLACES, "n + 3"),
        ((34, 84, 60), PLACES, "None"),
        ((12, 19, 22), LIKELY, "-m + n"),
        ((20, 45, 33), LIKELY, "None"),
    ],
)
def test_a_column_is_the_formula_that_gives_it(column: Column, forms: tuple[Form, ...], formula: str) -> None:
    assert repr(expressed(column, KNOWN, forms)) == formula


def test_nothing_is_expressed_but_what_it_gives() -> None:
    rng = np.random.default_rng(0)
    found = 0
    for samples in (1, 2, 3, 2, 2):
        for _ in range(60):
            known: list[tuple[Column, Var]] = [
                (tuple(rng.integers(2, 40, samples).tolist()), v) for v in (N, M)
            ]
            column: Column = tuple(rng.integers(0, 60, samples).tolist())
            e = expressed(column, known, (*POLYNOMIALS, divided))
            if e is not None:
                found += 1
                assert all(evaluate(e, {v.name: c[k] for c, v in known}) == x for k, x in enumerate(column))
    assert found > 60


def test_a_number_that_two_graphs_say_is_small() -> None:
    steps: Column = tuple([(x + 1) // 2 + 40 for x in KNOWN[0][0]])
    assert repr(expressed(steps, KNOWN[:1], (divided,))) == "(n + 1)//2 + 40"
    assert expressed(steps[:2], [(KNOWN[0][0][:2], N)], (divided,)) is None
