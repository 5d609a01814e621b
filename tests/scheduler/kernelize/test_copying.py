"""Copies of elements to consecutive places of a larger tensor, as kernels."""

from __future__ import annotations

import numpy as np
import pytest

from weft.backends.dummy.interpreter import interpret
from weft.ir.dtypes import float32
from weft.ir.index import Var
from weft.ir.kernel.algorithm import Algorithm, Param
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import initial
from weft.ir.kernel.verify import verify
from weft.scheduler.kernelize.copying import copying


def run(algorithm: Algorithm, data: np.ndarray, into: int, **variables: int) -> np.ndarray:
    verify(algorithm)
    out = np.zeros(into, np.float32)
    interpret(lower(initial(algorithm)), {"p0": data, "y0": out}, variables)
    return out


def test_a_whole_tensor() -> None:
    data = np.arange(5, dtype=np.float32)
    assert run(copying("copy", float32, 5, Param("y0", float32, (5,), written=True)), data, 5).tolist() == [
        0, 1, 2, 3, 4,
    ]  # fmt: skip


def test_a_row_of_a_larger_one() -> None:
    data = np.arange(1, 4, dtype=np.float32)
    into = Param("y0", float32, (2, 4), written=True)
    assert run(copying("copy", float32, 3, into, (1,)), data, 8).tolist() == [0, 0, 0, 0, 1, 2, 3, 0]


@pytest.mark.parametrize("n", [0, 1, 6])
def test_a_size_and_a_row_of_run_time(n: int) -> None:
    size, row = Var("n", 0, 6), Var("r", 0, 2)
    into = Param("y0", float32, (3, 6), written=True)
    algorithm = copying("copy", float32, size, into, (row,))
    assert [v.name for v in algorithm.variables] == ["n", "r"]
    data = np.arange(1, 7, dtype=np.float32)
    want = np.zeros((3, 6), np.float32)
    want[2, :n] = data[:n]
    assert np.array_equal(run(algorithm, data, 18, n=n, r=2).reshape(3, 6), want)
