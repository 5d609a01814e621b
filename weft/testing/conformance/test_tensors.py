"""The things a user does: functions of tensors, gradients, a model that is trained, compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
import weft.io
from weft import Tensor
from weft.backends.protocol import Borrower, Device
from weft.testing.conformance.harness import Array, Harness

R = np.random.default_rng(0)
X, Y = R.standard_normal((60, 47), dtype=np.float32), R.standard_normal((47, 33), dtype=np.float32)
I32 = weft.int32

FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "elementwise": lambda x, y: (x * 0.5).exp() * x.sin() + x.tanh(),
    "product": lambda x, y: x @ y,
    "product, bias, relu": lambda x, y: (x @ y + y[0]).relu(),
    "softmax": lambda x, y: x.softmax(-1),
    "layer norm": lambda x, y: (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-5).sqrt(),
    "sums": lambda x, y: x.sum(0)[None, :20] + x.sum(1)[:, None] + x.sum(),
    "extremes": lambda x, y: x.amax(1) - x.amin(1),
    "transpose": lambda x, y: x.T.contiguous(),
    "slices": lambda x, y: x[3::2, -5:].flip(0),
    "gather": lambda x, y: x[weft.arange(40, dtype=I32, device=x.device) % 7],
    "where": lambda x, y: weft.where(x > 0, x, -x * 3),
    "cumsum": lambda x, y: x.cumsum(1),
    "concatenation": lambda x, y: weft.cat([x, x * 2, x[:5]]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_on_the_cpu(device_name: str, name: str) -> None:
    """The same values as on the cpu, to rounding."""
    f = FUNCTIONS[name]
    with weft.device(device_name):
        ours = f(weft.tensor(X), weft.tensor(Y)).numpy()
    with weft.device("cpu"):
        expected = f(weft.tensor(X), weft.tensor(Y)).numpy()
    np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=1e-5)


def test_the_same_random_numbers(device_name: str) -> None:
    """One seed gives the same numbers on every device."""
    drawn: list[Array] = []
    for name in (device_name, "cpu"):
        with weft.device(name):
            weft.manual_seed(7)
            drawn.append(weft.rand(3, 5).numpy())
    assert np.array_equal(drawn[0], drawn[1])


def test_gradients(device_name: str) -> None:
    """The gradients of a product and a function."""
    grads: list[Array] = []
    for name in (device_name, "cpu"):
        w = weft.tensor(Y, device=name, requires_grad=True)
        (weft.tensor(X, device=name) @ w).tanh().sum().backward()
        assert w.grad is not None and w.grad.device.partition(":")[0] == name.partition(":")[0]
        grads.append(w.grad.numpy())
    np.testing.assert_allclose(grads[0], grads[1], rtol=1e-4, atol=1e-4)


def test_a_model_is_trained(device_name: str) -> None:
    """A compiled training step: parameters and moments are replaced in place, and the loss falls as on the cpu."""
    losses: list[list[Any]] = []
    target = (X[:, :1] * X[:, 1:2] > 0).astype(np.float32)
    for name in (device_name, "cpu"):
        with weft.device(name):
            weft.manual_seed(0)
            nn = weft.nn
            model = nn.Sequential(nn.Linear(47, 8), nn.Tanh(), nn.Linear(8, 1))
            optimizer = weft.optim.Adam(model.parameters(), lr=3e-2)

            @weft.compile
            def step(x: Tensor, y: Tensor) -> Tensor:
                optimizer.zero_grad()
                loss = (model(x) - y).square().mean()
                loss.backward()
                optimizer.step()
                return loss.detach()

            x, y = weft.tensor(X), weft.tensor(target)
            losses.append([step(x, y).item() for _ in range(8)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-3)
    assert losses[0][-1] < 0.8 * losses[0][0]


def test_compiled_functions_replay(harness: Harness, device_name: str) -> None:
    """The same plan, many times, on new values: results belong to the caller."""

    @weft.compile
    def normalized(x: Tensor) -> Tensor:
        y = x / x.sum(0)
        return (y * y).sum(1)

    kept: list[tuple[Tensor, Array]] = []
    for seed in range(6):
        a = np.random.default_rng(seed).random((40, 30)) + 1
        got = normalized(weft.tensor(a.astype(np.float32), device=device_name))
        kept.append((got, ((a / a.sum(0)) ** 2).sum(1)))
    for got, want in kept:
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4)


def test_tensors_in_files(device: Device, device_name: str, tmp_path: Path) -> None:
    """A tensor on disk is an operand wherever the other one is: read in place or copied, at any alignment."""
    path = tmp_path / "x.safetensors"
    a = X[:5].copy()
    weft.io.save_safetensors({"x": weft.tensor(a, device="cpu")}, path)
    head, data = path.read_bytes()[8:].split(b"}}", 1)
    spaces = len(data) - a.nbytes
    text = head + b"}}" + b" " * (spaces + 1)  # the elements begin at an odd byte
    (tmp_path / "odd").write_bytes(len(text).to_bytes(8, "little") + text + data[spaces:])
    y = weft.tensor(Y, device=device_name)

    @weft.compile
    def product(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y).relu()

    for name in ("x.safetensors", "odd"):
        x = weft.io.load_safetensors(tmp_path / name, device="disk")["x"]
        for _ in range(2):
            got = product(x, y)
            assert got.device == device_name
            np.testing.assert_allclose(got.numpy(), np.maximum(a @ Y, 0), rtol=2e-5, atol=1e-5)
        assert x.to(device_name).numpy().tobytes() == a.tobytes()
    if isinstance(device, Borrower):
        lent = device.borrow(np.arange(100, dtype=np.uint8))
        assert lent.nbytes == 100 and bytes(device.read(lent, 3, 7)) == b"\x07\x08\x09"
        with pytest.raises(ValueError):
            device.write(lent, memoryview(b"1"))
