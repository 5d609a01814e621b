"""Reshapes and pads over runtime sizes: indices pass through the axes that they leave alone."""

from __future__ import annotations

from weft.ir import dtypes, graph
from weft.ir.graph import Padding
from weft.ir.index import Var
from weft.ir.movement import reshape_index, source
from weft.ir.ops import Op

N, M = Var("n", 2, 256), Var("m", 2, 64)
I, J, K = Var("i", 0, 255), Var("j", 0, 255), Var("k", 0, 63)


def test_an_axis_of_one_element_comes_and_goes() -> None:
    assert reshape_index((0, I, J), (1, N, N), (N, N)) == (I, J)
    assert reshape_index((I, J), (N, N), (N, 1, N)) == (I, 0, J)


def test_axes_that_merge_leave_those_beside_them_alone() -> None:
    assert reshape_index((I, J, K), (N, 4, M), (N * 4, M)) == (4 * I + J, K)
    assert reshape_index((I, K, J), (N, M, N), (N * M, N)) == (I * M + K, J)


def test_an_axis_that_is_not_padded_needs_no_guard() -> None:
    x = graph.buffer((N, 8), dtypes.float32, "cpu:0", None)
    padded = graph.apply(Op.PAD, (x,), Padding((0, 1), (0, 1), (0, 0), 0.0))
    found = source(padded, (I, K))
    assert found.index == (I, K - 1)
    assert [repr(c) for c in found.guard] == ["0 <= k - 1 < 8"]
