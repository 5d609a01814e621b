"""The 8-bit floats: torch's rounding, to the bit; moved and stored anywhere; arithmetic refused with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.ir.dtypes import convert_array, to_numpy
from weft.ir.float8 import decode, encode

FLOAT8 = (weft.float8_e4m3fn, weft.float8_e5m2)
both = pytest.mark.parametrize("dtype", FLOAT8, ids=lambda d: d.name)
HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
SINGLES = np.arange(0, 1 << 32, 49_999, dtype=np.uint64).astype(np.uint32).view(np.float32)
with np.errstate(invalid="ignore"):  # signaling NaNs
    DOUBLES = SINGLES.astype(np.float64)


def raw(t: weft.Tensor) -> Any:
    return t.view(weft.uint8).numpy()


def every(dtype: weft.DType) -> weft.Tensor:
    return weft.tensor(np.arange(256, dtype=np.uint8)).view(dtype)


@np.errstate(all="ignore")
def rounded(values: Any, dtype: weft.DType) -> Any:
    """The nearest by comparing with all numbers there are, ties to the even byte; NaN, and what is too large."""
    numbers = np.array([decode(dtype, b) for b in range(0x7F)])
    finite = np.isfinite(numbers)
    numbers, top = numbers[finite], int(finite.sum())
    limit = np.inf if dtype is weft.float8_e4m3fn else 61440.0
    wide = np.abs(values.astype(np.float64))
    above = np.minimum(np.searchsorted(numbers, wide), top - 1)
    below = np.maximum(above - 1, 0)
    middle = (numbers[below] + numbers[above]) / 2
    up = (wide > middle) | ((wide == middle) & (above % 2 == 0))
    byte = np.where(wide >= limit, 0x7C, np.where(up, above, below))
    byte = np.where((wide > numbers[-1]) & (wide < limit), top - 1, byte)
    if dtype is weft.float8_e4m3fn:
        byte = np.where(wide > 448, 0x7E, byte)
    byte = np.where(np.isnan(wide), 0x7F, byte)
    return (byte | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


@both
def test_conversion_rounds_to_the_nearest(dtype: weft.DType) -> None:
    for values in (HALVES, SINGLES, DOUBLES):
        got = raw(weft.tensor(values).to(dtype))
        want = rounded(values, dtype)
        assert np.array_equal(got, want), values[got != want][:5]
        with np.errstate(all="ignore"):
            assert np.array_equal(convert_array(values, dtype).view(np.uint8), want)
    assert [encode(dtype, float(x)) for x in SINGLES[::17]] == rounded(SINGLES[::17], dtype).tolist()
    back = every(dtype).float().numpy()
    want = np.array([decode(dtype, b) for b in range(256)], np.float32)
    assert np.array_equal(back, want, equal_nan=True)
    assert np.array_equal(np.signbit(back), np.signbit(want))
    assert np.array_equal(raw(weft.tensor(back).to(dtype))[~np.isnan(back)], np.arange(256)[~np.isnan(back)])


@both
def test_conversion_is_torchs(dtype: weft.DType) -> None:
    torch = pytest.importorskip("torch")
    theirs = getattr(torch, dtype.name)
    if torch.full((1,), 1e9).to(theirs).float().isnan().item() and dtype is weft.float8_e4m3fn:
        pytest.skip("older versions of torch give NaN for what is too large")
    for values in (HALVES, SINGLES):
        want = torch.from_numpy(values).to(theirs).view(torch.uint8).numpy()
        assert np.array_equal(raw(weft.tensor(values).to(dtype)), want)
    again = weft.from_torch(torch.arange(256, dtype=torch.uint8).view(theirs))
    assert np.array_equal(raw(again), np.arange(256))


@both
def test_elements_move_bit_by_bit(dtype: weft.DType) -> None:
    x, b = every(dtype), np.arange(256, dtype=np.uint8)
    keep = weft.tensor(b % 3 == 0)
    moved = {
        "cat": (weft.cat([x, x.flip(0)]), np.concatenate([b, b[::-1]])),
        "stack": (weft.stack([x, x]).T.contiguous(), np.stack([b, b]).T),
        "index": (x[weft.tensor([200, 7])], b[[200, 7]]),
        "slice": (x[3:250:7], b[3:250:7]),
        "mask": (x[keep], b[b % 3 == 0]),
        "where": (weft.where(keep, x, x.flip(0)), np.where(b % 3 == 0, b, b[::-1])),
        "gather": (
            x.reshape(2, 128).gather(1, weft.tensor([[5], [6]])),
            b.reshape(2, 128)[[0, 1], [5, 6]][:, None],
        ),
        "pad": (weft.nn.functional.pad(x, (1, 2)), np.pad(b, (1, 2))),
        "clone": (x.clone(), b),
    }
    for name, (got, want) in moved.items():
        assert got.dtype is dtype, name
        assert np.array_equal(raw(got), want), name
    y = weft.zeros(4, dtype=dtype)
    y[1:3] = 3.3
    assert y.tolist() == [
        0.0,
        3.25 if dtype is weft.float8_e4m3fn else 3.5,
        3.25 if dtype is weft.float8_e4m3fn else 3.5,
        0.0,
    ]
    assert "dtype=weft." + dtype.name in repr(y)
    assert y.element_size() == 1
    assert weft.full((2,), 1.5, dtype=dtype).tolist() == [1.5, 1.5]


@both
def test_the_little_arithmetic_there_is(dtype: weft.DType) -> None:
    a, b = weft.tensor([[1.0, 2.0], [3.0, 4.0]]).to(dtype), weft.tensor([[1.0, -2.0], [-3.0, 7.0]]).to(dtype)
    assert (a == b).tolist() == [[True, False], [False, False]]
    assert (a != b).tolist() == [[False, True], [True, True]]
    assert (a * b).float().tolist() == (a.float() * b.float()).to(dtype).float().tolist()
    assert (a @ b).float().tolist() == (a.float() @ b.float()).to(dtype).float().tolist()
    assert b.abs().tolist() == b.float().abs().tolist()
    assert bool(a.any()) and bool(a.all()) and not a.isnan().any()
    w = weft.tensor([1.0, 2.0, 3.3], requires_grad=True)
    (w.to(dtype).float() * weft.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [1.0, 2.0, 3.0]


REFUSED: dict[str, Callable[[weft.Tensor], object]] = {
    "add": lambda x: x + x,
    "add a number": lambda x: x + 1,
    "sub": lambda x: x - x,
    "div": lambda x: x / x,
    "lt": lambda x: x < x,
    "maximum": lambda x: weft.maximum(x, x),
    "neg": lambda x: -x,
    "exp": lambda x: x.exp(),
    "relu": lambda x: x.relu(),
    "sum": lambda x: x.sum(),
    "max": lambda x: x.max(),
    "mean": lambda x: x.mean(),
    "cumsum": lambda x: x.cumsum(0),
    "index_add": lambda x: x.index_add(0, weft.tensor([0]), x[:1]),
    "other dtype": lambda x: x * weft.ones(3),
}


@both
@pytest.mark.parametrize("name", REFUSED)
def test_other_arithmetic_is_refused(name: str, dtype: weft.DType) -> None:
    with pytest.raises(weft.DTypeError, match=r"only stores numbers.*\.float\(\)"):
        REFUSED[name](weft.ones(3, dtype=dtype))
    for other in (weft.float32, weft.int64, *(d for d in FLOAT8 if d is not dtype)):
        with pytest.raises(weft.DTypeError, match="do not combine"):
            weft.promote_types(dtype, other)


@both
def test_files_and_other_libraries(dtype: weft.DType, tmp_path: Path) -> None:
    x = every(dtype)
    weft.io.save_safetensors({"w": x}, tmp_path / "w.safetensors")
    assert np.array_equal(raw(weft.io.load_safetensors(tmp_path / "w.safetensors")["w"]), np.arange(256))
    array = x.numpy()
    assert array.dtype == to_numpy(dtype)
    assert np.array_equal(raw(weft.tensor(array)), np.arange(256))
    assert np.asarray(x).dtype == array.dtype
    with pytest.raises(BufferError, match=r"\.view\(weft\.uint8\)"):
        np.from_dlpack(x)
    info = weft.finfo(dtype)
    assert (info.max, info.eps, info.tiny) == (
        (448.0, 0.125, 2.0**-6) if dtype is weft.float8_e4m3fn else (57344.0, 0.25, 2.0**-14)
    )


def test_weights_in_8_bits_are_widened_inside_the_product() -> None:
    x, w = weft.randn(4, 256).realize(), weft.randn(64, 256).to(weft.float8_e4m3fn).realize()
    y = x @ w.float().T
    assert len(weft.explain(y).kernels) == 1
    want = x.numpy() @ w.float().numpy().T
    assert np.abs(y.numpy() - want).max() < 1e-4
