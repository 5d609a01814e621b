"""What is simplified as the graph is built: the values stay those of the ops as written."""

from __future__ import annotations

import math

import numpy as np
import pytest

import weft
from weft.ir import dtypes
from weft.ir.dtypes import DType, to_numpy
from weft.ir.errors import IRError
from weft.ir.graph import Axes, apply, buffer, const
from weft.ir.ops import Op

VALUES = {"float": [0.0, 1.0, -2.5, 0.1, math.inf, -math.inf, math.nan, 3e38], "int": [0, 1, -3, 100]}
BY_OP = {Op.SUM: np.sum, Op.PROD: np.prod, Op.REDUCE_MAX: np.max, Op.REDUCE_MIN: np.min}


@pytest.mark.parametrize(
    "dtype", [dtypes.float32, dtypes.float64, dtypes.int8, dtypes.uint8, dtypes.int64], ids=str
)
@pytest.mark.parametrize("op", BY_OP, ids=str)
def test_reductions_of_constants_agree_with_numpy(op: Op, dtype: DType) -> None:
    for value in VALUES["float" if dtype.is_float else "int"]:
        if dtype is dtypes.uint8 and value < 0:
            continue
        node = apply(op, (const(value, dtype, (3, 50)),), Axes((1,)), (3, 1))
        with np.errstate(over="ignore", invalid="ignore"):
            array = np.full((3, 50), value, to_numpy(dtype))
            expected = (
                BY_OP[op](array, axis=1, keepdims=True, dtype=array.dtype)
                if op in (Op.SUM, Op.PROD)
                else value
            )
        if node.op is Op.CONST:
            np.testing.assert_allclose(node.attrs.value, np.ravel(expected)[0], rtol=1e-6)
        else:
            assert op is Op.PROD, "all others are folded"


@pytest.mark.parametrize("count", [1, 3])
def test_sums_of_negative_zeros_have_the_sign_of_those_that_are_computed(count: int) -> None:
    computed = weft.tensor(np.full((2, count), -0.0, np.float32)).sum(1).tolist()
    assert str(weft.full((2, count), -0.0).sum(1).tolist()) == str(computed)


def test_only_what_is_constant_is_folded() -> None:
    x = buffer((3, 4), dtypes.float32, "cpu:0", None)
    assert apply(Op.SUM, (x,), Axes((1,)), (3, 1)).op is Op.SUM
    empty = const(1.0, dtypes.float32, (3, 0))
    assert apply(Op.SUM, (empty,), Axes((1,)), (3, 1)).op is Op.SUM


def test_huge_constants_are_summed_at_once() -> None:
    assert weft.ones(10**6, 10**6, 10**6).sum().item() == np.float32(1e18)
    assert weft.ones(1000, 1000, dtype=weft.float16).sum().item() == math.inf
    assert weft.full((2**40,), 3, dtype=weft.int32).sum(dtype=weft.int32).item() == 3 * 2**40 % 2**32


def test_only_axes_of_one_element_expand() -> None:
    x = buffer((1, 3), dtypes.float32, "cpu:0", None)
    assert apply(Op.EXPAND, (x,), None, (4, 3)).shape == (4, 3)
    for shape in ((1, 4), (3, 1), (2, 3, 3), (3,)):
        with pytest.raises(IRError, match=r"only axes of size 1 expand|the ranks differ"):
            apply(Op.EXPAND, (x,), None, shape)
    with pytest.raises(IRError):
        apply(Op.RESHAPE, (x,), None, (4,))
