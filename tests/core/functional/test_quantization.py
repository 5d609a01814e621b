"""Weights of 8 and 4 bits: how near they are, that products widen them as they load them, layers, files, gradients."""

from __future__ import annotations

import copy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, quantization
from weft.backends.disk.file import MappedFile

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


CODES = (weft.float8_e4m3fn, weft.float8_e5m2)


@pytest.mark.parametrize("code", CODES, ids=lambda c: c.name)
def test_floats_of_eight_bits_are_the_nearest_times_the_scale(code: weft.DType) -> None:
    w = normal(48, 80) * weft.tensor(10.0).pow(weft.arange(48)[:, None].remainder(5).float() - 2)
    q = quantization.quantize(w, block=32, code=code, scale_dtype=weft.float32)
    top = 448 if code is weft.float8_e4m3fn else 57344
    blocks = np.pad(w.numpy(), ((0, 0), (0, 16))).reshape(48, 3, 32)
    scale = np.abs(blocks).max(-1, keepdims=True) / np.float32(top)
    np.testing.assert_array_equal(q.scale.numpy(), scale)
    numbers = (blocks / scale).astype(weft.ir.dtypes.to_numpy(code))
    np.testing.assert_array_equal(q.data.numpy(), numbers.view(np.uint8))
    wanted = (numbers.astype(np.float32) * scale).reshape(48, 96)[:, :80]
    np.testing.assert_array_equal(q.dequantize().numpy(), wanted)
    share = 1 / 16 if code is weft.float8_e4m3fn else 1 / 8
    smallest = np.repeat(scale, 32, -1).reshape(48, 96)[:, :80] * (2.0**-10 if share == 1 / 16 else 2.0**-17)
    assert (np.abs(wanted - w.numpy()) <= np.maximum(np.abs(w.numpy()) * share, smallest) * 1.0001).all()
    assert quantization.quantize(weft.zeros(2, 64), code=code).dequantize().tolist() == [[0.0] * 64] * 2


@pytest.mark.parametrize("code", CODES, ids=lambda c: c.name)
def test_layers_of_floats_of_eight_bits(code: weft.DType, tmp_path: Path) -> None:
    weft.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 64), nn.Linear(64, 48), nn.Linear(48, 5)).eval()
    quantized = quantization.quantize_model_(copy.deepcopy(model), code=code, embeddings=True)
    ids = weft.tensor([[1, 10, 3]])
    x = model[0].weight.numpy()
    y = quantization.quantize(weft.tensor(x), code=code).dequantize()[ids[0]]
    for layer in (model[1], model[2]):
        y = y @ quantization.quantize(layer.weight, code=code).dequantize().T + layer.bias
    np.testing.assert_allclose(quantized(ids)[0].detach().numpy(), y.detach().numpy(), rtol=1e-5, atol=1e-5)
    assert quantized.half()[1].qweight.dtype is weft.uint8
    weft.save(quantized.float().state_dict(), tmp_path / "x")
    other = quantization.quantize_model_(copy.deepcopy(model), code=code, embeddings=True)
    other.load_state_dict(weft.load(tmp_path / "x"))
    assert other(ids).tolist() == quantized(ids).tolist()
    assert code.name in repr(other[1]) and code.name in repr(other[1].quantized())
    with pytest.raises(weft.errors.ArgumentError, match=r"integers\), got"):
        nn.QuantizedLinear(64, 48).fill(other[1].quantized())


def test_codes_that_cannot_be_are_refused() -> None:
    w = normal(4, 32)
    for wrong in (
        {"code": weft.float16},
        {"code": CODES[0], "bits": 4},
        {"code": CODES[1], "symmetric": False},
    ):
        with pytest.raises(weft.errors.ArgumentError, match="code is one of float8_e4m3fn and float8_e5m2"):
            quantization.quantize(w, **wrong)


def test_a_table_whose_weight_a_head_had_leaves_its_pages_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[int] = []
    monkeypatch.setattr(MappedFile, "release", lambda self, begin, end: released.append(end - begin))
    weft.save({"w": weft.randn(64, 32)}, tmp_path / "w.safetensors")
    weight = weft.nn.Parameter(weft.load(tmp_path / "w.safetensors")["w"])
    table, head = weft.nn.Embedding(64, 32), weft.nn.Linear(32, 64, bias=False)
    table.weight = head.weight = weight
    quantization.quantize_model_(weft.nn.Sequential(table, head))
    assert table.weight is weight and released == [64 * 32 * 4]
