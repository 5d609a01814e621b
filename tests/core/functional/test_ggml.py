"""Block formats of ggml, beside the package gguf: widened and made bit for bit."""

from __future__ import annotations

import warnings
from typing import Any

import gguf
import numpy as np
import pytest

import weft
from weft.quantization import BlockFormat, BlockTensor, to_blocks

MADE = [f for f in BlockFormat if f.value.make is not None and f.elements == 32]


def reference(data: np.ndarray[Any, Any], f: BlockFormat) -> np.ndarray[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gguf.dequantize(data.reshape(len(data), -1), gguf.GGMLQuantizationType[f.name])


def bits(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of floats, every NaN alike."""
    return np.where(np.isnan(x), 0x7FC00000, x.view(np.int32))


@pytest.mark.parametrize("device", ["cpu", "dummy"])
@pytest.mark.parametrize("f", BlockFormat, ids=lambda f: f.name)
def test_any_bytes_are_widened_to_the_same_bits(f: BlockFormat, device: str) -> None:
    shape = (3, 2, f.nbytes) if device == "dummy" else (16, 64, f.nbytes)
    data = np.random.default_rng(f.number).integers(0, 256, shape, dtype=np.uint8)
    found = BlockTensor(weft.tensor(data, device=device), f, (shape[0], shape[1] * f.elements)).dequantize()
    np.testing.assert_array_equal(bits(found.numpy()), bits(reference(data, f)))


def test_formats_have_the_numbers_and_sizes_of_ggml() -> None:
    for f in BlockFormat:
        kind = gguf.GGMLQuantizationType[f.name]
        assert f.number == kind.value and (f.elements, f.nbytes) == gguf.GGML_QUANT_SIZES[kind]


@pytest.mark.parametrize("f", MADE, ids=lambda f: f.name)
def test_blocks_are_made_as_by_ggml(f: BlockFormat) -> None:
    rng = np.random.default_rng(f.number)
    x = rng.standard_normal((64, 256)).astype(np.float32) * rng.choice([1e-3, 1, 100], (64, 1)).astype(
        np.float32
    )
    x[0], x[1], x[2, :32], x[3] = 0, 1, -2.5, np.round(x[3] * 8) / 8
    found = to_blocks(weft.tensor(x), f)
    expected = gguf.quantize(x, gguf.GGMLQuantizationType[f.name])
    np.testing.assert_array_equal(found.data.numpy().reshape(64, -1), expected)
    assert found.nbytes == expected.size and found.shape == x.shape


def test_a_product_reads_the_blocks_in_one_kernel() -> None:
    w = to_blocks(weft.randn(64, 256), BlockFormat.Q8_0)
    x = weft.randn(1, 256).realize()
    y = x @ w.dequantize().T
    assert len(weft.explain(y).kernels) == 1
    np.testing.assert_allclose(y.numpy(), x.numpy() @ w.dequantize().numpy().T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("f", [f for f in BlockFormat if f.even], ids=lambda f: f.name)
def test_products_of_a_few_rows(f: BlockFormat) -> None:
    """Rows that widen what they read in registers, and rows for which it is packed; 3 vectors would divide a row."""
    data = np.random.default_rng(f.number).integers(0, 32, (23, 1536 // f.elements, f.nbytes), dtype=np.uint8)
    w = BlockTensor(weft.tensor(data), f, (23, 1536))
    wide = reference(data.reshape(-1, f.nbytes), f).reshape(23, 1536).astype(np.float64)
    for rows in (2, 13):
        x = np.random.default_rng(rows).standard_normal((rows, 1536)).astype(np.float32)
        want, size = x @ wide.T, np.abs(x) @ np.abs(wide).T
        assert np.all(np.abs((weft.tensor(x) @ w.dequantize().T).numpy() - want) <= 1e-5 * size + 1e-30)


@pytest.mark.parametrize(
    "call, error, told",
    [
        (lambda: to_blocks(weft.ones(4, 48), BlockFormat.Q8_0), weft.errors.ShapeError, "multiple of 32"),
        (lambda: to_blocks(weft.ones(()), BlockFormat.Q8_0), weft.errors.ShapeError, "multiple of 32"),
        (lambda: to_blocks(weft.ones(4, 256), BlockFormat.Q2_K), weft.errors.ArgumentError, "read only"),
        (lambda: to_blocks(weft.ones(4, 32).int(), BlockFormat.Q8_0), weft.errors.DTypeError, "int32"),
        (
            lambda: BlockTensor(weft.zeros(4, 34, dtype=weft.uint8), BlockFormat.Q8_0, (4, 32)),
            weft.errors.ShapeError, "32 elements in 34 bytes",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_says_why(call: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        call()
