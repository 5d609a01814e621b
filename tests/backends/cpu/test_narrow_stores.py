"""A last vector with one element left writes that element only, in every narrow dtype."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.testing.reference import evaluate


@pytest.mark.parametrize("dtype", [weft.bfloat16, weft.float16, weft.int16, weft.uint8, weft.int8, weft.bool])
@pytest.mark.parametrize("length", [9, 17, 33, 65])
def test_the_element_behind_stays(dtype: weft.DType, length: int) -> None:
    """LLVM 22 turned such a store of cut-down integers into one of 32 bits (AVX-512)."""
    x = weft.tensor(np.random.default_rng(0).integers(-9, 9, (3, 3, length)).astype(np.float32))
    for y in (x - x.sum((0, 2), keepdim=True), (x.int() - x.int().sum((0, 2), keepdim=True))):
        z = y.to(dtype)
        want = evaluate([z.value.node])[0]
        np.testing.assert_array_equal(z.numpy(), want)
