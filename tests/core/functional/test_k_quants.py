"""Q4_K, Q5_K and Q6_K as they are made: read back by the package gguf, and as near as their steps let them be."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

import weft
from weft.quantization import BlockFormat, to_blocks

ERRORS = {BlockFormat.Q4_K: 0.075, BlockFormat.Q5_K: 0.038, BlockFormat.Q6_K: 0.019}
"""The root of the mean square error of normally distributed numbers, which for Q4_1 and Q5_1 is 0.078 and 0.038."""

FORMATS = pytest.mark.parametrize("f", ERRORS, ids=lambda f: f.name)


def back(
    x: np.ndarray[tuple[int, int], np.dtype[np.float32]], f: BlockFormat
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """The numbers made and read again; by both readers the same."""
    made = to_blocks(weft.tensor(x), f)
    read = gguf.dequantize(made.data.numpy().reshape(len(x), -1), gguf.GGMLQuantizationType[f.name])
    np.testing.assert_array_equal(made.dequantize().numpy(), read)
    return read


@FORMATS
def test_numbers_come_back_as_near_as_the_steps_let_them(f: BlockFormat) -> None:
    x = np.random.default_rng(f.number).standard_normal((16, 512)).astype(np.float32)
    scale = np.float32([1e-3, 1, 100, 30])[:, None].repeat(4, 0)
    error = (back(x * scale, f) - x * scale) / scale
    assert np.sqrt((error**2).mean()) < ERRORS[f]
    assert np.abs(error).max() < 7 * ERRORS[f]


@FORMATS
def test_blocks_without_spread_come_back(f: BlockFormat) -> None:
    x = np.zeros((5, 256), np.float32)
    x[1], x[2], x[3, 40], x[4, ::2] = 1, -2.5, 3, 0.5
    np.testing.assert_allclose(back(x, f), x, atol=0.01 * np.abs(x).max())
