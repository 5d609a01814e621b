"""Products in integers beside the formula in float64, of what the package gguf widens."""

from __future__ import annotations

import warnings
from typing import Any

import gguf
import numpy as np
import pytest

import weft
from weft.core.functional.integer_blocks import Activations, IntegerBlocks
from weft.errors import ArgumentError, ShapeError
from weft.quantization import BlockFormat, BlockTensor

TABLES = (BlockFormat.IQ4_NL, BlockFormat.IQ4_XS, BlockFormat.MXFP4)
STEPS = [f for f in BlockFormat if f not in TABLES]
Floats = np.ndarray[Any, np.dtype[np.float64]]


def random_blocks(
    f: BlockFormat, rows: int, columns: int, seed: int = 0
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes of a weight whose scales are finite and about as large as those of real ones."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows, columns // f.elements, f.nbytes), dtype=np.uint8)
    for at in HALVES[f.name]:
        scale = (rng.uniform(0.5, 2, data.shape[:2]) * 0.01).astype(np.float16)
        data[..., at : at + 2] = scale[..., None].view(np.uint8)
    return data


HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip
"""The bytes of the float16 numbers in a block."""


def widened(data: np.ndarray[Any, Any], f: BlockFormat) -> Floats:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flat = data.reshape(len(data), -1)
        return gguf.dequantize(flat, gguf.GGMLQuantizationType[f.name]).astype(np.float64)


def rounded(x: np.ndarray[Any, np.dtype[np.float32]]) -> Floats:
    """Activations as the product takes them."""
    blocks = x.reshape(len(x), -1, 32)
    top = np.abs(blocks).max(-1, keepdims=True)
    inverse = np.where(top == 0, 0, np.float32(127) / np.where(top == 0, 1, top)).astype(np.float32)
    numbers = np.round(blocks * inverse).astype(np.float64)
    return (numbers * (top * np.float32(1 / 127)).astype(np.float64)).reshape(x.shape)


def test_the_smallest_activations_are_zeros() -> None:
    x = np.full((1, 64), 1e-38, np.float32)
    x[0, 32:] = 1e-30
    found = Activations.of(weft.tensor(x))
    assert np.isfinite(found.scale.numpy()).all()
    np.testing.assert_array_equal(found.numbers.numpy()[0, 0], 0)  # the inverse of a step is beyond float32
    np.testing.assert_array_equal(found.numbers.numpy()[0, 1], 127)


def test_planes_are_put_together_in_the_product_of_few_rows() -> None:
    data = random_blocks(BlockFormat.Q5_0, 256, 512)
    weight = IntegerBlocks.of(BlockTensor(weft.tensor(data), BlockFormat.Q5_0, (256, 512)))
    names = [
        [k.name for k in weft.explain(weight.linear(Activations.of(weft.zeros(rows, 512).realize())))]
        for rows in (8, 512)
    ]
    assert ["or" in n for n in names] == [False, True]  # a kernel that stores the numbers in bytes


def product(data: np.ndarray[Any, Any], f: BlockFormat, x: np.ndarray[Any, Any], device: str) -> Floats:
    shape = (data.shape[0], data.shape[1] * f.elements)
    weight = IntegerBlocks.of(BlockTensor(weft.tensor(data, device=device), f, shape))
    return weight.linear(Activations.of(weft.tensor(x, device=device))).numpy().astype(np.float64)


@pytest.mark.parametrize("rows, tokens", [(48, 1), (37, 5)])
@pytest.mark.parametrize("f", STEPS, ids=lambda f: f.name)
def test_a_product_in_integers_is_the_formula(f: BlockFormat, rows: int, tokens: int) -> None:
    columns = 512
    data = random_blocks(f, rows, columns, f.number)
    x = np.random.default_rng(rows).standard_normal((tokens, columns)).astype(np.float32)
    x[0, :32] = 0
    expected = rounded(x) @ widened(data, f).T
    found = product(data, f, x, "cpu")
    assert found.shape == (tokens, rows)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6 * np.abs(expected).max())


@pytest.mark.parametrize("f", [BlockFormat.Q8_0, BlockFormat.Q4_K], ids=lambda f: f.name)
def test_the_error_is_within_the_bound(f: BlockFormat) -> None:
    data = random_blocks(f, 32, 512, 7)
    x = np.random.default_rng(1).standard_normal((4, 512)).astype(np.float32) * np.float32(100)
    w = widened(data, f)
    top = np.abs(x.reshape(4, -1, 32)).max(-1)
    bound = top.astype(np.float64) / 254 @ np.abs(w).reshape(32, -1, 32).sum(-1).T
    error = np.abs(product(data, f, x, "cpu") - x.astype(np.float64) @ w.T)
    assert (error <= bound * (1 + 1e-5) + 1e-6).all()


@pytest.mark.parametrize("kind", ["dummy", "opencl", "wgpu"])
@pytest.mark.parametrize("f", [BlockFormat.Q8_0, BlockFormat.Q5_1, BlockFormat.Q6_K], ids=lambda f: f.name)
def test_all_devices_agree(f: BlockFormat, kind: str) -> None:
    device = next((d.name for d in weft.devices() if d.name.startswith(kind) and d.info is not None), None)
    if device is None:
        pytest.skip(f"no {kind} device here")
    columns = f.elements
    data = random_blocks(f, 17, columns, 3)
    x = np.random.default_rng(5).standard_normal((2, columns)).astype(np.float32)
    expected = rounded(x) @ widened(data, f).T
    np.testing.assert_allclose(
        product(data, f, x, device), expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )


def test_one_kernel_reads_the_weight() -> None:
    data = random_blocks(BlockFormat.Q4_0, 64, 256)
    weight = IntegerBlocks.of(BlockTensor(weft.tensor(data), BlockFormat.Q4_0, (64, 256)))
    for tokens in (1, 7):
        kernels = weft.explain(weight.linear(Activations.of(weft.randn(tokens, 256).realize()))).kernels
        assert len(kernels) <= 4, "of the activations' numbers, of their sums, the product, and a copy of it"
        assert ["dot_bytes" in str(k.show()) for k in kernels].count(True) == 1


def test_planes_take_as_many_bytes_as_the_file() -> None:
    for f, more in (
        (BlockFormat.Q8_0, 1),
        (BlockFormat.Q4_0, 1),
        (BlockFormat.Q5_0, 1),
        (BlockFormat.Q4_K, 148 / 144),
        (BlockFormat.Q6_K, 1),
    ):
        data = random_blocks(f, 32, 256)
        weight = IntegerBlocks.of(BlockTensor(weft.tensor(data), f, (32, 256)))
        assert sum(t.numel() * t.element_size() for t in weight.tensors().values()) == round(data.size * more)


@pytest.mark.parametrize("f", TABLES, ids=lambda f: f.name)
def test_formats_with_tables_are_refused(f: BlockFormat) -> None:
    weight = BlockTensor(weft.zeros(16, 1, f.nbytes, dtype=weft.uint8), f, (16, f.elements))
    with pytest.raises(ArgumentError, match="stand for values in a table"):
        IntegerBlocks.of(weight)


def test_other_shapes_are_refused() -> None:
    weight = BlockTensor(weft.zeros(2, 16, 1, 34, dtype=weft.uint8), BlockFormat.Q8_0, (2, 16, 32))
    with pytest.raises(ShapeError, match="2 dimensions"):
        IntegerBlocks.of(weight)
