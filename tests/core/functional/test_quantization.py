"""Weights of 8 and 4 bits: how near they are, that products widen them as they load them, layers, files, gradients."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, quantization

LAYOUTS = tuple(product((8, 4), (True, False)))
layouts = pytest.mark.parametrize(("bits", "symmetric"), LAYOUTS, ids=lambda x: str(x))


def normal(*shape: int, seed: int = 0) -> weft.Tensor:
    return weft.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


@layouts
def test_every_element_is_within_half_a_scale(bits: int, symmetric: bool) -> None:
    for shape, axis, block in (((48, 256), -1, 32), ((100, 70), 0, 64), ((5, 7, 33), 1, 2), ((130,), 0, 128)):
        w = normal(*shape)
        q = quantization.quantize(w, bits, block, symmetric=symmetric, axis=axis)
        assert (q.shape, q.dtype, q.block, q.bits) == (shape, weft.float32, block, bits)
        rows = np.moveaxis(w.numpy(), axis, -1)
        rows = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, -rows.shape[-1] % block)])
        blocks = rows.reshape(*rows.shape[:-1], -1, block)
        if symmetric:
            scale = np.maximum(blocks.max(-1) / (2 ** (bits - 1) - 1), -blocks.min(-1) / 2 ** (bits - 1))
        else:
            scale = (blocks.max(-1) - blocks.min(-1)) / (2**bits - 1)
        allowed = np.repeat(scale / 2 + np.abs(blocks).max(-1) * 2.0**-10, block, -1).reshape(rows.shape)
        error = np.moveaxis(np.abs(q.dequantize().numpy() - w.numpy()), axis, -1)
        assert (error <= allowed[..., : error.shape[-1]]).all()
        assert q.nbytes <= rows.size * bits / 8 + scale.size * (2 if symmetric else 4)


def test_what_fits_exactly_comes_back_exactly() -> None:
    whole = weft.tensor(np.tile(np.arange(-8, 8, dtype=np.float32), (3, 4)))
    for bits in (8, 4):
        q = quantization.quantize(whole * 0.25 if bits == 4 else whole * 16, bits, 16)
        assert q.dequantize().tolist() == (whole * 0.25 if bits == 4 else whole * 16).tolist()
    flat = quantization.quantize(weft.zeros(2, 64), 4)
    assert flat.dequantize().tolist() == weft.zeros(2, 64).tolist()
    for dtype in (weft.float16, weft.bfloat16, weft.float64):
        q = quantization.quantize(weft.ones(2, 32, dtype=dtype), 8, scale_dtype=weft.float32)
        assert q.dequantize().dtype is dtype
        assert np.allclose(q.dequantize().double().numpy(), 1.0, atol=1e-2)


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_product_widens_the_weight_as_it_loads_it(rows: int) -> None:
    """One kernel, and no room for a widened weight: fewer bytes than that."""
    x, w = normal(rows, 512, seed=1).realize(), normal(256, 512)
    for bits, symmetric in LAYOUTS:
        q = quantization.quantize(w, bits, 64, symmetric=symmetric)
        y = x @ q.dequantize().T
        (kernel,) = weft.explain(y).kernels
        assert kernel.bytes < q.nbytes + 4 * (rows * 512 + rows * 256) + 1024
        want = x.numpy().astype(np.float64) @ q.dequantize().numpy().T
        assert np.abs(y.numpy() - want).max() < 1e-3
    small = w.to(weft.float8_e4m3fn).realize()
    assert len(weft.explain(x @ small.float().T).kernels) == 1


def net() -> nn.Sequential:
    weft.manual_seed(0)
    return nn.Sequential(nn.Embedding(20, 64), nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 20, bias=False))


@layouts
def test_a_model_of_quantized_layers(bits: int, symmetric: bool, tmp_path: Path) -> None:
    model, tokens = net(), weft.tensor([[3, 1], [0, 19]])
    want = model(tokens).numpy()
    quantization.quantize_model_(model, bits, 32, symmetric=symmetric, embeddings=True)
    assert [type(m) for m in model] == [
        nn.QuantizedEmbedding,
        nn.QuantizedLinear,
        nn.GELU,
        nn.QuantizedLinear,
    ]
    got = model(tokens)
    assert np.abs(got.numpy() - want).max() < (0.02 if bits == 8 else 0.3)
    step: Any = weft.compile(model)
    assert np.allclose(step(tokens).numpy(), got.numpy(), atol=1e-5)

    weft.io.save_safetensors(model.state_dict(), tmp_path / "m.safetensors")
    again = quantization.quantize_model_(net(), bits, 32, symmetric=symmetric, embeddings=True)
    for name, p in again.state_dict().items():
        p.zero_() if p.dtype.is_float else None
        assert "qweight" in name or "scale" in name or "offset" in name or "bias" in name
    again.load_state_dict(weft.io.load_safetensors(tmp_path / "m.safetensors"))
    assert again(tokens).tolist() == got.tolist()


def test_rows_of_a_quantized_table_are_normalized_as_others_are() -> None:
    table = weft.nn.Embedding(61, 64)
    found = weft.nn.QuantizedEmbedding.from_embedding(table, bits=8, block=32)
    x = weft.tensor([3, 5, 60, 0])
    rows = found(x)
    expected = rows.numpy() / np.sqrt((rows.numpy() ** 2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(
        weft.nn.functional.rms_norm(found(x), (64,), eps=1e-6).numpy(), expected, rtol=1e-5
    )


def test_gradients_flow_to_the_input_and_the_bias() -> None:
    linear = nn.Linear(64, 32)
    layer = nn.QuantizedLinear.from_linear(linear, bits=4)
    x = normal(5, 64).requires_grad_()
    (layer(x) * normal(5, 32, seed=2)).sum().backward()
    assert x.grad is not None
    assert layer.bias is not None and layer.bias.grad is not None
    weight = layer.quantized().dequantize()
    assert np.allclose(x.grad.numpy(), normal(5, 32, seed=2).numpy() @ weight.numpy(), atol=1e-5)
    assert not weight.requires_grad
    assert [name for name, _ in layer.named_parameters()] == ["bias"]
    low = layer(normal(5, 64).bfloat16())
    assert low.dtype is weft.bfloat16


def test_which_layers_are_replaced() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 32)
            self.head = nn.Linear(32, 10, bias=False)
            self.head.weight = self.table.weight
            self.other = nn.ModuleList([nn.Linear(32, 32), nn.Bilinear(3, 3, 3)])

    model = quantization.quantize_model_(
        Tied(), filter=lambda name, m: not name.startswith("other"), embeddings=True
    )
    assert model.head.qweight is model.table.qweight
    assert isinstance(model.other[0], nn.Linear)
    quantization.quantize_model_(model, 4)
    assert isinstance(model.other[0], nn.QuantizedLinear)
    assert "bits=4, block=32, symmetric" in repr(model)


MISTAKES: dict[str, tuple[Any, type[Exception], str]] = {
    "bits": (
        lambda: quantization.quantize(weft.ones(4, 4), 3),
        weft.ArgumentError,
        "bits must be 8 or 4, got 3",
    ),
    "block": (
        lambda: quantization.quantize(weft.ones(4), block=3),
        weft.ArgumentError,
        "block must be an even number",
    ),
    "integers": (
        lambda: quantization.quantize(weft.arange(4)),
        weft.DTypeError,
        r"got int64; convert with \.float",
    ),
    "number": (lambda: quantization.quantize(weft.tensor(1.0)), weft.ShapeError, "at least 1 dimension"),
    "scale": (
        lambda: quantization.quantize(weft.ones(4), scale_dtype=weft.int8),
        weft.DTypeError,
        r"such as weft\.float16",
    ),
    "single layer": (
        lambda: quantization.quantize_model_(nn.Linear(2, 2)),
        weft.ArgumentError,
        r"nn\.QuantizedLinear\.from_linear",
    ),
    "input shape": (
        lambda: nn.QuantizedLinear(4, 2)(weft.ones(3)),
        weft.ShapeError,
        r"last dimension must be 4, got shape \(3,\)",
    ),
    "input dtype": (lambda: nn.QuantizedLinear(4, 2)(weft.arange(4)), weft.DTypeError, "needs a float input"),
    "indices": (lambda: nn.QuantizedEmbedding(4, 2)(weft.ones(4)), weft.DTypeError, "needs integers"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    act, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        act()
