"""The reference itself, on cases worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from weft.ir import dtypes as d
from weft.ir import graph as g
from weft.ir.graph import Along, Axes, Box, Node, Padding, ScatterCombine, Window
from weft.ir.index import Var
from weft.ir.ops import Op
from weft.testing.reference import REFERENCE, evaluate, threefry_block


def leaf(values: Any, dtype: d.DType = d.float32, shape: g.Shape | None = None) -> Node:
    array = np.asarray(values).astype(d.to_numpy(dtype))
    return g.buffer(array.shape if shape is None else shape, dtype, "cpu:0", array)


def value(node: Node, **bindings: int) -> Any:
    return evaluate([node], bindings)[0].tolist()


def test_every_op_has_a_reference() -> None:
    assert set(REFERENCE) == set(Op)


@pytest.mark.parametrize(
    ("op", "dtype", "args", "want"),
    [
        (Op.FLOORDIV, d.int32, ([-7, 7, 7, 5], [2, -2, 0, 2]), [-4, -4, 0, 2]),
        (Op.MOD, d.int32, ([-7, 7, 7], [2, -2, 0]), [1, -1, 0]),
        (Op.MOD, d.float32, ([-7.0, 7.0], [2.0, -2.0]), [-1.0, 1.0]),
        (Op.POW, d.int8, ([2, 3, -1, 1, 0, 2], [7, 5, -3, -2, -1, -1]), [-128, -13, -1, 1, 0, 0]),
        (Op.SHL, d.uint8, ([1, 255, 1, 1], [7, 1, 8, 200]), [128, 254, 0, 0]),
        (Op.SHR, d.int8, ([-128, -1, 64, -5], [7, 9, 9, 1]), [-1, -1, 0, -3]),
        (Op.ADD, d.uint8, ([250, 1], [10, 1]), [4, 2]),
        (Op.MAX, d.float32, ([1.0, 2.0], [3.0, -1.0]), [3.0, 2.0]),
        (Op.LT, d.float32, ([1.0, math.nan], [2.0, 1.0]), [True, False]),
    ],
)
def test_binary(op: Op, dtype: d.DType, args: Any, want: Any) -> None:
    assert value(g.apply(op, (leaf(args[0], dtype), leaf(args[1], dtype)))) == want


def test_maximum_and_minimum_pass_on_nan_and_order_zeros() -> None:
    a, b = leaf([math.nan, 1.0, 0.0, -0.0]), leaf([1.0, math.nan, -0.0, 0.0])
    high, low = evaluate([g.apply(Op.MAX, (a, b)), g.apply(Op.MIN, (a, b))])
    assert np.isnan(high[:2]).all() and np.isnan(low[:2]).all()
    assert not np.signbit(high[2:]).any() and np.signbit(low[2:]).all()


def test_casts_truncate_and_saturate() -> None:
    x = leaf([1.9, -1.9, 300.0, -300.0, math.nan, math.inf, -math.inf])
    assert value(g.apply(Op.CAST, (x,), dtype=d.int8)) == [1, -1, 127, -128, 0, 127, -128]
    assert value(g.apply(Op.CAST, (x,), dtype=d.uint64)) == [1, 0, 300, 0, 0, 2**64 - 1, 0]
    assert value(g.apply(Op.CAST, (x,), dtype=d.int64))[5:] == [2**63 - 1, -(2**63)]
    assert value(g.apply(Op.CAST, (x,), dtype=d.bool_)) == [True] * 7


def test_16_bit_floats_round_after_each_op_and_accumulate_in_f32() -> None:
    x = leaf([1.0] + [2.0**-9] * 256, d.bfloat16)
    assert value(g.apply(Op.SUM, (x,), Axes((0,)))) == 1.5
    two = g.apply(Op.ADD, (leaf([256.0], d.bfloat16), leaf([1.0], d.bfloat16)))
    assert evaluate([two])[0].dtype == ml_dtypes.bfloat16 and value(two) == [256.0]


@pytest.mark.parametrize(
    ("block", "key", "want"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((2**32 - 1, 2**32 - 1), (2**32 - 1, 2**32 - 1), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_known_answers(block: Any, key: Any, want: Any) -> None:
    """The vectors for 20 rounds in `kat_vectors`, which comes with the authors' Random123."""
    words = [np.array([w], np.uint32) for w in (*block, *key)]
    assert tuple(int(w[0]) for w in threefry_block(*words)) == want


def test_threefry_takes_word_zero() -> None:
    zero = leaf([0], d.uint32)
    assert value(g.apply(Op.THREEFRY, (zero, zero, zero))) == [0x6B200159]


def test_padding_between_elements() -> None:
    x = leaf([[1.0, 2.0, 3.0]])
    assert value(g.apply(Op.PAD, (x,), Padding((0, 1), (0, 2), (0, 1), -1.0))) == [
        [-1, 1, -1, 2, -1, 3, -1, -1]
    ]
    empty = leaf(np.zeros((0,)))
    assert value(g.apply(Op.PAD, (empty,), Padding((1,), (1,), (3,), 5.0))) == [5, 5]


def test_shrink_steps_and_update_writes_the_same_box() -> None:
    x = leaf(np.arange(7.0))
    box = Box((1,), (2,))
    part = g.apply(Op.SHRINK, (x,), box, (3,))
    assert value(part) == [1, 3, 5]
    assert value(g.apply(Op.UPDATE, (x, leaf([-1.0, -2.0, -3.0])), box)) == [0, -1, 2, -2, 4, -3, 6]


def test_shear_makes_windows_and_unshear_spreads_them() -> None:
    x = leaf(np.arange(6.0)[:, None] + np.array([0.0, 10.0, 20.0]))
    w = Window(0, 1, 2, 1)
    windows = g.apply(Op.SHEAR, (x,), w, (2, 3))
    assert value(windows) == [[0, 11, 22], [2, 13, 24]]
    spread = [[0, 0, 0], [0, 11, 0], [2, 0, 22], [0, 13, 0], [0, 0, 24], [0, 0, 0]]
    assert value(g.apply(Op.UNSHEAR, (windows,), w, (6, 3))) == spread


def test_gather_clamps_and_scatter_skips() -> None:
    x, i = leaf([10.0, 20.0, 30.0]), leaf([-5, 0, 9, 0], d.int64)
    assert value(g.apply(Op.GATHER, (x, i), Along(0))) == [10, 10, 30, 10]
    src = leaf([1.0, 2.0, 3.0, 4.0])
    assert value(g.apply(Op.SCATTER, (x, i, src), ScatterCombine(0, Op.ADD))) == [16, 20, 30]
    assert value(g.apply(Op.SCATTER, (x, i, src), ScatterCombine(0, None))) == [4, 20, 30]
    assert value(g.apply(Op.SCATTER, (x, i, src), ScatterCombine(0, Op.MAX))) == [10, 20, 30]


def test_reductions_over_nothing_give_the_neutral_element() -> None:
    x = leaf(np.zeros((2, 0)))
    assert value(g.apply(Op.SUM, (x,), Axes((1,)))) == [0, 0]
    assert value(g.apply(Op.PROD, (x,), Axes((1,)))) == [1, 1]
    assert value(g.apply(Op.SUM, (x,), Axes((0,)))) == []


def test_runtime_sizes_are_bound_by_name() -> None:
    n = Var("n", 1, 8)
    x = g.apply(Op.CAST, (g.arange(n),), dtype=d.float32)
    assert value(g.apply(Op.SUM, (x,), Axes((0,))), n=4) == 6
    part = g.apply(Op.SHRINK, (leaf(np.arange(8.0)),), Box((n - 1,), (1,)), (1,))
    assert value(part, n=3) == [2]


def test_a_leaf_without_storage_is_an_error() -> None:
    with pytest.raises(ValueError, match="no storage"):
        evaluate([g.buffer((2,), d.float32, "cpu:0", None)])


def test_deep_graphs_need_no_recursion() -> None:
    x = leaf([0.0])
    for _ in range(20_000):
        x = g.apply(Op.ADD, (x, g.const(1, d.float32, (1,))))
    assert value(x) == [20_000]
