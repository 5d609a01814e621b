"""Nodes that are stored in any case: here those that are compared with the greatest of their own elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft import Tensor
from weft.ir.calls import expand_calls
from weft.ir.ops import Op
from weft.scheduler.kernelize.prepare import prepare


def leaf(*shape: int) -> Tensor:
    return weft.tensor(np.random.default_rng(sum(shape)).standard_normal(shape)).realize()


def stored(t: Tensor) -> list[Op]:
    """The ops of the nodes that are stored for being compared with their extrema."""
    found = prepare(expand_calls([t.value.node]))
    return [n.op for n in found.order if "its own extremum" in found.forced.get(id(n), "")]


def shares(x: Tensor) -> Tensor:
    return x == x.amax(-1, keepdim=True)


def windows(x: Tensor) -> Tensor:
    return F.max_pool1d(x.unsqueeze(0), 2, return_indices=True)[1]


def scattered(x: Tensor) -> Tensor:
    index = weft.arange(6).expand(4, 6) % 3
    return x == weft.zeros(4, 3, dtype=x.dtype).scatter_reduce(1, index, x, "amax").gather(1, index)


def padded(x: Tensor) -> Tensor:
    return shares(weft.where(leaf(4, 6) < 0, x, 0.0))


TWICE: dict[str, tuple[Callable[[Tensor], Tensor], Op]] = {
    "a row": (lambda x: shares(x * leaf(6) + 1.0), Op.ADD),
    "less": (lambda x: (x.sin() * 3.0) < (x.sin() * 3.0).amax(), Op.MUL),
    "least": (lambda x: (x * 2 + 1) != (x * 2 + 1).amin(0), Op.ADD),
    "of magnitudes": (lambda x: (x * 2 + 1).abs() == (-(x * 2 + 1)).abs().amax(), Op.ADD),
    "moved": (lambda x: (x * 2 + 1).T.reshape(-1) == (x * 2 + 1).amax(), Op.ADD),
    "windows": (lambda x: windows(x * leaf(6) + 1.0), Op.ADD),
    "scattered": (lambda x: scattered(x * leaf(6) + 1.0), Op.ADD),
    "chosen": (lambda x: padded(x * leaf(6) + 1.0), Op.ADD),
    "a function of a product": (lambda x: shares((x * leaf(6)).exp()), Op.EXP),
}


@pytest.mark.parametrize("name", TWICE)
def test_elements_of_several_roundings_are_computed_once(name: str) -> None:
    make, op = TWICE[name]
    assert stored(make(leaf(4, 6))) == [op]


@pytest.mark.parametrize(
    "make",
    [
        shares,
        lambda x: shares(x * leaf(6)),
        lambda x: shares(-x.abs()),
        lambda x: shares((x * leaf(6)).sum(0)),
        lambda x: (x * 2 + 1) == x.amax(),
        lambda x: (x * 2 + 1) == (x * 3 + 1).amax(),
        lambda x: (x * 2 + 1) == (x * 2 + 1).sum(),
        lambda x: shares((x * 4).to(weft.int64) * 3 + 1),
        lambda x: padded(x),
        lambda x: shares((x * leaf(6) + 1.0).contiguous()),
    ],
)
def test_others_are_not(make: Callable[[Tensor], Tensor]) -> None:
    assert stored(make(leaf(4, 6))) == []


def test_an_element_that_is_never_inside_is_not_loaded() -> None:
    """It is in a branch that is never taken: of the last element, an offset of its row says so, and its index alone."""
    x0, b0, v0 = (leaf(*s).numpy() for s in ((3, 4), (4,), (12,)))
    x, b, v = map(weft.from_numpy, (x0, b0, v0))
    y = x.clone()
    y.mul_(2.0)
    y[..., :1] = y[..., 1:2] * b[:1]
    found = weft.cat([v, y.reshape(-1)[:1]]).contiguous().numpy()
    np.testing.assert_allclose(found, [*v0, 2 * x0[0, 1] * b0[0]])


def test_the_gradient_of_a_maximum_goes_to_an_element_whatever_kernels_there_are() -> None:
    """Two of them computed the softmax, one with a product and a difference in one rounding: in it no element was the
    greatest, and a part of the gradient was lost (b's), or was 0 / 0."""
    rng = np.random.default_rng(3190)
    for _ in range(20):
        x0, b0 = rng.standard_normal((3, 4)), rng.standard_normal(4) * 0.5 + 1
        x, b = weft.from_numpy(x0).requires_grad_(), weft.from_numpy(b0).requires_grad_()

        def loss(x: Any, b: Any) -> Any:
            t = F.softmax((x + x.sin()) * b, -1)
            return (t - t.amax(-1, keepdim=True) * 0.1).pow(2).sum()

        loss(x, b).backward()
        assert x.grad is not None and b.grad is not None
        x.grad.numpy()
        found, h = b.grad.numpy(), 1e-6
        for k in range(4):
            ends = [
                loss(weft.from_numpy(x0), weft.from_numpy(b0 + s * h * np.eye(4)[k])).item() for s in (1, -1)
            ]
            assert found[k] == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-5, abs=1e-7)
