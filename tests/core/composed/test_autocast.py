"""Autocast: results have torch's dtypes, and values of that precision; compiled functions know of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.core.composed.autocast import autocast
from weft.errors import ArgumentError

CASES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "matmul": lambda fw, x, w: x @ w,
    "linear": lambda fw, x, w: fw.nn.functional.linear(x, w, w[0]),
    "bmm": lambda fw, x, w: fw.bmm(x[None], w[None]),
    "einsum": lambda fw, x, w: fw.einsum("ij,jk->ik", x, w),
    "conv1d": lambda fw, x, w: fw.nn.functional.conv1d(w[None], w[:, :, None]),
    "attention": lambda fw, x, w: fw.nn.functional.scaled_dot_product_attention(x[None], w[None], w[None]),
    "relu of a product": lambda fw, x, w: fw.relu(x @ w) + x,
    "mse_loss": lambda fw, x, w: fw.nn.functional.mse_loss(x @ w, x),
    "cross_entropy": lambda fw, x, w: fw.nn.functional.cross_entropy(x @ w, fw.tensor([0, 1, 2])),
    "softmax": lambda fw, x, w: fw.softmax(x @ w, -1),
    "layer_norm": lambda fw, x, w: fw.nn.functional.layer_norm(x @ w, (4,)),
    "exp": lambda fw, x, w: fw.exp(x @ w),
    "prod": lambda fw, x, w: (x @ w).prod(),
    "sum": lambda fw, x, w: (x @ w).sum(dim=-1),
    "float64": lambda fw, x, w: x.double() @ w.double(),
    "integers": lambda fw, x, w: fw.arange(3) @ fw.arange(3),
}


def _tensors(fw: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return tuple(fw.tensor(rng.standard_normal(s).astype(np.float32)) for s in ((3, 4), (4, 4)))


@pytest.mark.parametrize("case", CASES)
def test_dtypes_and_values_are_torchs_on_the_cpu(case: str) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        want = CASES[case](torch, *_tensors(torch))
    with weft.autocast("cpu", dtype=weft.bfloat16):
        got = CASES[case](weft, *_tensors(weft))
    assert str(got.dtype).rpartition(".")[2] == str(want.dtype).rpartition(".")[2]
    np.testing.assert_allclose(got.double().numpy(), want.double().numpy(), rtol=0.03, atol=0.06)


def test_other_devices_are_left_alone_and_gpus_have_their_own_list() -> None:
    x, w = _tensors(weft)
    with weft.autocast("cuda"):
        assert (x @ w).dtype is weft.float32
        assert weft.is_autocast_enabled("cuda") and weft.get_autocast_dtype("cuda") is weft.float16
    d = x.to("dummy")
    with weft.autocast("dummy", dtype=weft.bfloat16):
        y = d @ w.to("dummy")
        assert y.dtype is weft.bfloat16 and weft.softmax(y, -1).dtype is weft.float32
        with weft.autocast("dummy", enabled=False):
            assert (d @ w.to("dummy")).dtype is weft.float32
    assert not weft.is_autocast_enabled("dummy")
    with pytest.raises(ArgumentError, match="autocast: dtype must be float16 or bfloat16, got float32"):
        autocast("cpu", dtype=weft.float32)


def test_gradients_have_the_dtypes_of_parameters() -> None:
    layer = weft.nn.Linear(4, 2)
    with weft.autocast("cpu"):
        loss = layer(weft.ones(3, 4)).float().pow(2).mean()
    loss.backward()
    assert layer.weight.dtype is weft.float32 and layer.weight.grad.dtype is weft.float32


def test_a_compiled_function_is_traced_for_each_mode() -> None:
    f = weft.compile(lambda x, w: x @ w)
    x, w = _tensors(weft)
    for _ in range(2):
        assert f(x, w).dtype is weft.float32
        with weft.autocast("cpu"):
            assert f(x, w).dtype is weft.bfloat16


def _trained(fw: Any, factor: float) -> list[float]:
    p = fw.tensor([1.0, 2.0], requires_grad=True)
    optimizer = fw.optim.SGD([p], lr=0.1)
    scaler = fw.amp.GradScaler("cpu", init_scale=factor, growth_interval=2)
    out = []
    for k in range(5):
        optimizer.zero_grad()
        loss = (p * p * (float("inf") if k == 2 else 1)).sum()
        scaler.scale(loss).backward()
        if k % 2:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        out += [*p.tolist(), scaler.get_scale()]
    again = fw.amp.GradScaler("cpu")
    again.load_state_dict(scaler.state_dict())
    return [*out, again.get_scale()]


def test_a_scaler_scales_grows_and_leaves_steps_out_as_torchs() -> None:
    assert _trained(weft, 8.0) == pytest.approx(_trained(torch, 8.0))


def test_misuse_of_a_scaler() -> None:
    p = weft.ones(2, requires_grad=True)
    optimizer, scaler = weft.optim.SGD([p], lr=0.1), weft.amp.GradScaler("cpu")
    with pytest.raises(ArgumentError, match="none of the optimizer's parameters has a gradient"):
        scaler.step(optimizer)
    with pytest.raises(ArgumentError, match="no step"):
        scaler.update()
    scaler.scale(p.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(ArgumentError, match="already called"):
        scaler.unscale_(optimizer)


def test_casts_of_functions_with_a_derivative_of_ones_own() -> None:
    """custom_fwd and custom_bwd, against torch."""
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    logs: list[list[str]] = []
    for lib in (weft, torch):
        log: list[str] = []
        for dtype in (None, lib.float32):

            class Product(lib.autograd.Function):  # type: ignore[misc, name-defined]
                @staticmethod
                @lib.amp.custom_fwd(device_type="cpu", cast_inputs=dtype)
                def forward(ctx: Any, x: Any, w: Any) -> Any:
                    ctx.save_for_backward(x, w)
                    out = x @ w
                    log.append(str(out.dtype).split(".")[1] + str(x.dtype).split(".")[1])
                    return out

                @staticmethod
                @lib.amp.custom_bwd(device_type="cpu")
                def backward(ctx: Any, g: Any) -> Any:
                    x, w = ctx.saved_tensors
                    log.append(str((g.to(x.dtype) @ w.t()).dtype).split(".")[1])
                    return (g.to(w.dtype) @ w.t()).to(x.dtype), (x.t() @ g.to(x.dtype)).to(w.dtype)

            x, w = lib.ones(2, 2, requires_grad=True), lib.ones(2, 2, requires_grad=True)
            with lib.autocast("cpu", dtype=lib.bfloat16):
                out = Product.apply(x, w)
            out.float().sum().backward()
            Product.apply(x, w)
        logs.append(log)
    assert logs[0] == logs[1]
