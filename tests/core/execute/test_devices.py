"""Devices by name: where tensors are made, moved, and refused to meet. The dummy backend simulates several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft.distributed.tensor import Shard, distribute_tensor


def test_tensors_are_made_where_told() -> None:
    assert weft.tensor([1.0]).device == "cpu:0"
    assert weft.tensor([1.0], device="dummy:1").device == "dummy:1"
    assert weft.zeros(2, device="dummy").device == "dummy:0"
    assert weft.rand(2, device="dummy:1").device == "dummy:1"
    assert weft.zeros_like(weft.tensor([1.0], device="dummy:1")).device == "dummy:1"


def test_device_as_a_context() -> None:
    with weft.device("dummy:1"):
        made = [
            weft.tensor([1.0]),
            weft.ones(2),
            weft.arange(3),
            weft.randn(2),
            weft.tensor([[1]]).new_ones(2),
        ]
        with weft.device("cpu"):
            inner = weft.ones(2)
    assert {t.device for t in made} == {"dummy:1"}
    assert inner.device == weft.ones(2).device == "cpu:0"


def test_tensors_move() -> None:
    x = weft.tensor([1.0, 2.0])
    y = x.to("dummy:1")
    assert (x.device, y.device, (y * 2).device) == ("cpu:0", "dummy:1", "dummy:1")
    assert x.to("cpu") is x
    assert y.cpu().tolist() == [1.0, 2.0]
    assert y.to(x).device == "cpu:0"
    assert x.to("dummy:1", weft.float64).dtype is weft.float64


def test_gradients_move_with_their_tensors() -> None:
    w = weft.tensor([1.0, 2.0], requires_grad=True)
    (w.to("dummy:1") * 3).sum().backward()
    assert w.grad is not None
    assert w.grad.device == "cpu:0"
    assert w.grad.tolist() == [3.0, 3.0]


def test_constants_are_at_home_anywhere() -> None:
    x = weft.tensor([1.0, 2.0], device="dummy:1")
    assert (x + weft.ones(2)).device == "dummy:1"
    assert (x * 2 + 1).device == "dummy:1"


def test_a_tensor_stays_where_it_is_when_constants_are_written_to_it() -> None:
    x = weft.tensor([1.0, 2.0], device="dummy:1")
    for write in (
        lambda: x.zero_(),
        lambda: x.copy_(weft.ones(2)),
        lambda: x.fill_(3),
        lambda: x.__setitem__(slice(None), 4),
    ):
        write()
        assert x.device == "dummy:1" == (x + 1).device
    assert x.tolist() == [4.0, 4.0]


def test_what_is_drawn_for_a_tensor_is_drawn_on_its_device() -> None:
    F = weft.nn.functional
    x = weft.full((64,), 0.5, device="dummy:1").realize()
    made = {
        "dropout": lambda t: F.dropout(t, 0.5), "alpha_dropout": lambda t: F.alpha_dropout(t, 0.5),
        "rrelu": lambda t: F.rrelu(-t, training=True), "gumbel": lambda t: F.gumbel_softmax(t),
        "bernoulli": lambda t: t.bernoulli(), "of p": lambda t: weft.bernoulli(t, p=0.25),
        "multinomial": lambda t: t.multinomial(4, replacement=True), "poisson": lambda t: weft.poisson(t),
    }  # fmt: skip
    for name, draw in made.items():
        weft.manual_seed(3)
        got = draw(x)
        weft.manual_seed(3)
        assert got.device == "dummy:1", name
        np.testing.assert_allclose(got.tolist(), draw(x.cpu()).tolist(), rtol=1e-5, err_msg=name)


def test_indices_given_as_lists_go_where_the_tensor_is() -> None:
    x = weft.tensor([1.0, 2.0, 3.0], device="dummy:1")
    assert x[[0, 2]].device == x[x > 1].device == "dummy:1"
    x[[0]] = 5.0
    x[x > 4] = 6.0
    assert x.tolist() == [6.0, 2.0, 3.0]
    assert weft.nn.functional.pad(x[None], (1, 1), mode="replicate").tolist() == [[6.0, 6.0, 2.0, 3.0, 3.0]]


def test_tensors_without_axes_go_where_the_others_are() -> None:
    """Those of the CPU and of the default device, as in torch."""
    two, x = weft.tensor(2.0), weft.tensor([1.0, 2.0, 3.0], device="dummy:1")
    for got, want in (
        (x * two, [2, 4, 6]), (two - x, [1, 0, -1]), (weft.where(x > two, x, two), [2, 2, 3]),
        (weft.maximum(two, x), [2, 2, 3]), (two * weft.tensor(3.0, device="dummy:1"), 6),
        (x.clone().mul_(two), [2, 4, 6]), (x * weft.tensor(3), [3, 6, 9]),
    ):  # fmt: skip
        assert got.device == "dummy:1" and got.tolist() == want
    with weft.device("dummy:2"):
        assert (weft.tensor(4.0) + weft.tensor([1.0], device="cpu")).device == "cpu:0"
    w = weft.tensor(3.0, requires_grad=True)
    (x * w).sum().backward()
    assert w.grad is not None and w.grad.device == "cpu:0" and w.grad.item() == 6
    with pytest.raises(weft.DeviceError, match="add_: the result is on dummy:1, the tensor on cpu:0"):
        two.clone().add_(weft.tensor(1.0, device="dummy:1"))
    with pytest.raises(weft.DeviceError, match="on dummy:0 and dummy:1"):
        weft.tensor(2.0, device="dummy:0") + x
    assert (weft.tensor(2.0) + weft.zeros(3, device="meta")).shape == (3,)


def test_tensors_on_two_devices_do_not_meet() -> None:
    x, y = weft.tensor([1.0]), weft.tensor([1.0], device="dummy:1")
    with pytest.raises(weft.DeviceError) as caught:
        x + y
    assert caught.value.message == "add: tensors are on cpu:0 and dummy:1; move one with .to('cpu:0')"
    for act in (
        lambda: x @ y,
        lambda: weft.cat([x, y]),
        lambda: weft.where(x > 0, x, y),
        lambda: x[y.long()],
    ):
        with pytest.raises(weft.DeviceError):
            act()


def test_devices_are_listed() -> None:
    names = [s.name for s in weft.devices()]
    assert "cpu:0" in names
    assert any(n.startswith("dummy:") for n in names)


def _singular(x: weft.Tensor) -> weft.Tensor:
    a = (x @ x.T * 0).requires_grad_()
    return weft.autograd.grad(weft.linalg.det(a), [a])[0]


def _ctc_of_a_constant(x: weft.Tensor) -> weft.Tensor:
    labels, lengths = (x.reshape(-1)[:2] * 0 + 1).long()[None], (x.reshape(-1)[:1] * 0 + 2).long()
    return F.ctc_loss(weft.zeros(7, 1, 5), labels, [7], lengths)


def _lazy(x: weft.Tensor) -> weft.Tensor:
    layer = weft.nn.Sequential(weft.nn.LazyLinear(3, bias=False)).to(x.device)
    with weft.no_grad():
        return layer(x) * 0 + layer[0].weight.sum() * 0


ANYWHERE: dict[str, Callable[[weft.Tensor], Any]] = {
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(
        x.reshape(1, 1, 5, 7), (2, 3), return_indices=True
    ),
    "fractional_max_pool2d": lambda x: F.fractional_max_pool2d(x.reshape(1, 1, 5, 7), 2, output_size=2),
    "multinomial": lambda x: weft.multinomial(x.abs() + 1, 3),
    "multinomial, replacement": lambda x: weft.multinomial(x.abs() + 1, 3, replacement=True),
    "normal, mean": lambda x: weft.normal(x, 2.0),
    "normal, std": lambda x: weft.normal(0.0, x.abs()),
    "normal, scalar mean": lambda x: weft.normal(weft.tensor(1.0), x.abs()),
    "nonzero": lambda x: x.nonzero(),
    "nonzero, as_tuple": lambda x: x.nonzero(as_tuple=True),
    "ctc_loss": lambda x: F.ctc_loss(
        x.reshape(7, 1, 5).log_softmax(-1), (x.reshape(-1)[:2] * 0 + 1).long()[None], [7], [2]
    ),
    "ctc_loss of a constant": _ctc_of_a_constant,
    "a lazy layer": _lazy,
    "det of a singular matrix": _singular,
}


@pytest.mark.parametrize("name", ANYWHERE)
def test_what_a_function_makes_on_the_way_is_where_its_input_is(name: str) -> None:
    function = ANYWHERE[name]
    x = weft.tensor(np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32))
    weft.manual_seed(0)
    want = function(x)
    weft.manual_seed(0)
    found = function(x.to("dummy:1"))
    mesh = weft.distributed.init_device_mesh("dummy", (2,))
    weft.manual_seed(0)
    over = function(distribute_tensor(x, mesh, [Shard(0)]))
    alone = [r if isinstance(r, tuple) else (r,) for r in (want, found, over)]
    for a, b, c in zip(*alone, strict=True):
        assert str(b.device) == "dummy:1" and str(c.device) == mesh.name
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(c.numpy(), a.numpy(), rtol=1e-5, atol=1e-6)
