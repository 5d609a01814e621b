"""Python numbers and other dtypes beside tensors, as torch 2.13 combines them; and functions at the ends of floats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft import special
from weft.autograd.value import number_node

SMALL = [0, 1, 5, 200]


def u8(*x: int) -> weft.Tensor:
    return weft.tensor(x or SMALL, dtype=weft.uint8)


@pytest.mark.parametrize(
    ("found", "want", "dtype"),
    [
        (lambda: u8().clamp(-1, 1.5), [0, 1, 1.5, 1.5], "float32"),
        (lambda: u8().clamp(-1.5, 3), [0, 1, 3, 3], "float32"),
        (lambda: u8().clip(-300, 300.75), [0, 1, 5, 200], "float32"),
        (lambda: u8().clamp(max=math.nan), [math.nan] * 4, "float32"),
        (lambda: weft.tensor([1.0, 2.0]).clamp(min=math.nan), [math.nan] * 2, "float32"),
        (lambda: F.hardtanh(weft.tensor([1.0, 2.0]), math.nan, 1.0), [math.nan] * 2, "float32"),
        (lambda: weft.div(u8(4, 255), -3, rounding_mode="trunc"), [0, 1], "uint8"),
        (lambda: weft.fmod(u8(), -300), [0, 1, 5, 200], "uint8"),
        (lambda: weft.fmod(weft.tensor([True, False]), 3), [1, 0], "int64"),
        (lambda: F.threshold(weft.tensor([-1, 0, 1], dtype=weft.int8), -1.5, 7), [7, 0, 1], "int8"),
        (lambda: weft.add(weft.tensor([True, False]), weft.tensor([False, True]), alpha=3), [1, 1], "bool"),
        (lambda: weft.addcmul(u8(1, 2), u8(3, 4), u8(1, 2), value=2), [7, 18], "uint8"),
        (lambda: weft.addcmul(weft.tensor([1]), weft.tensor([3]), weft.tensor([2]), value=1.5), [7], "int64"),
        (lambda: weft.searchsorted(weft.arange(5), 1.5), 2, "int64"),
        (lambda: weft.searchsorted(u8(), -1), 0, "int64"),
        (lambda: weft.searchsorted(weft.arange(4.0), weft.tensor([1, 3])), [1, 3], "int64"),
        (lambda: F.pad(weft.tensor([False]), (1, 1), value=0.1), [1, 0, 1], "bool"),
        (lambda: weft.ldexp(weft.ones(1, dtype=weft.float16), weft.tensor([-3], dtype=weft.int8)), [0.125], "float16"),
        (lambda: weft.ldexp(weft.tensor([3]), weft.tensor([2])), [12], "float32"),
        (lambda: weft.logaddexp(weft.tensor([1, 0]), weft.tensor([1.0, 0.0])), np.log(2) + np.array([1, 0]), "float32"),
        (lambda: weft.logaddexp2(weft.tensor([True]), weft.ones(1, dtype=weft.float64)), [2], "float64"),
        (lambda: F.mse_loss(weft.tensor([0.5, 1.0]), weft.tensor([True, False])), 0.625, "float32"),
        (lambda: F.soft_margin_loss(weft.zeros(2), u8(1, 1)), math.log(2), "float32"),
        (lambda: weft.tensor([True, False]) ** True, [1, 0], "bool"),
    ],
)  # fmt: skip
def test_a_number_beside_a_tensor(found: Any, want: Any, dtype: str) -> None:
    t = found()
    assert t.dtype.name == dtype
    np.testing.assert_allclose(t.double().numpy(), want, rtol=1e-6)


def _of(f: Any, x: float, dtype: Any = weft.float64) -> float:
    return f(weft.tensor([x], dtype=dtype)).double().item()


@pytest.mark.parametrize(
    ("found", "want"),
    [
        (lambda: _of(special.ndtri, 5e-324), -38.46740561714434),
        (lambda: _of(special.ndtri, 1e-300), -37.04709629936120),
        (lambda: _of(special.erfcx, 1.7976931348623157e308), 3.1384087339854e-309),
        (lambda: _of(F.tanhshrink, 1e-5), 3.3333333332e-16),
        (lambda: _of(F.tanhshrink, 0.1), 0.00033200537504418),
        (lambda: _of(weft.logit, 0.5 + 2.0**-40), 4 * 2.0**-40),
        (lambda: _of(weft.lgamma, 1 - 1e-8), 5.7721567602657e-9),
        (lambda: _of(weft.lgamma, -5e-324), 744.4400719213812),
        (lambda: _of(special.modified_bessel_k0, 5e-324), 744.55600343704),
        (lambda: _of(special.modified_bessel_k1, 5e-324), math.inf),
        (lambda: _of(F.hardswish, 1.7e308), 1.7e308),
    ],
)
def test_the_ends(found: Any, want: float) -> None:
    np.testing.assert_allclose(found(), want, rtol=1e-9 if want < 1e-300 or want > 1 else 2e-9)


@pytest.mark.parametrize("x", [1e-3, 0.1, 0.5, 1.4, 1.6, 3.0])
def test_tanhshrink_in_float32(x: float) -> None:
    near = float(np.float32(x))
    want = _of(F.tanhshrink, near)
    np.testing.assert_allclose(_of(F.tanhshrink, near, weft.float32), want, rtol=6e-7)
    assert abs(want - (near - math.tanh(near))) <= 1e-15


@pytest.mark.parametrize("x", [1e-30, 1e-3, 0.1, 0.31, 0.33, 2.0])
def test_the_derivative_of_sinc(x: float) -> None:
    """cos and sin differ by what their rounding leaves, near 0: its limit there is -pi**2 x / 3."""
    found: list[float] = []
    for dtype in (weft.float64, weft.float32):
        t = weft.tensor([np.float32(x)], dtype=dtype, requires_grad=True)
        weft.sinc(t).sum().backward()
        assert t.grad is not None
        found.append(t.grad.item())
    np.testing.assert_allclose(found[1], found[0], rtol=3e-6)
    if x <= 1e-3:
        np.testing.assert_allclose(found[0], -(math.pi**2) * float(np.float32(x)) / 3, rtol=1e-5)


def test_a_number_is_one_node_by_its_bits_and_its_type() -> None:
    zero, below, whole = (number_node(x, weft.float32, (2,)) for x in (0.0, -0.0, 0))
    assert zero is number_node(0.0, weft.float32, (2,)) is whole
    assert zero is not below
    x = weft.tensor([1.0, -1.0])
    assert (x / 0.0).tolist() == [float("inf"), float("-inf")]
    assert (x / -0.0).tolist() == [float("-inf"), float("inf")]
    assert number_node(True, weft.int64, ()) is number_node(1, weft.int64, ())
    assert all(math.isnan(n) for n in (x * float("nan")).tolist())


@pytest.mark.parametrize("swapped", [False, True])
def test_operands_that_fit_are_chosen_between_as_others_are(swapped: bool) -> None:
    mask = weft.tensor([True, False, True])
    x = weft.tensor([1.0, 2.0, 3.0], requires_grad=True)
    for other in (0, -0.0, 0.5, weft.tensor([7.0, 8.0, 9.0]), weft.tensor(7.0), weft.tensor([7, 8, 9])):
        a, b = (other, x) if swapped else (x, other)
        out = weft.where(mask, a, b)
        expected = np.where(
            mask.numpy(), *(np.asarray(v.detach()) if isinstance(v, weft.Tensor) else v for v in (a, b))
        )
        assert out.dtype is weft.float32
        assert np.array_equal(out.detach().numpy(), expected.astype(np.float32))
        (g,) = weft.autograd.grad(out.sum(), x)
        assert g.tolist() == [float(m is not swapped) for m in mask.tolist()]
