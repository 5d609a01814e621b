"""On a real GPU: results, copies, graphs. Skipped where there is no NVIDIA driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import weft
from weft.backends import registry
from weft.errors import DeviceError


@pytest.fixture(scope="module", autouse=True)
def gpu() -> Iterator[None]:
    try:
        registry.open_device("cuda")
    except DeviceError as error:
        pytest.skip(f"no GPU: {error.message}")
    yield


R = np.random.default_rng(0)
X, Y = R.standard_normal((300, 257), dtype=np.float32), R.standard_normal((257, 130), dtype=np.float32)
FUNCTIONS: dict[str, Callable[[weft.Tensor, weft.Tensor], weft.Tensor]] = {
    "elementwise": lambda x, y: (x * 2 + 1).exp().sin(),
    "matmul": lambda x, y: x @ y,
    "softmax": lambda x, y: x.softmax(-1),
    "column sums": lambda x, y: x.sum(0),
    "sum": lambda x, y: x.sum(),
    "mean and variance": lambda x, y: x.mean(1) + x.var(1),
    "argmax": lambda x, y: x.argmax(1),
    "transpose": lambda x, y: x.T.contiguous(),
    "gather": lambda x, y: x[weft.tensor(np.arange(40) * 7, device=x.device)],
    "half": lambda x, y: (x.to(weft.bfloat16) @ y.to(weft.bfloat16)).to(weft.float32),
    "cumsum": lambda x, y: x.cumsum(1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_on_the_cpu(name: str) -> None:
    f = FUNCTIONS[name]
    ours = f(weft.tensor(X, device="cuda"), weft.tensor(Y, device="cuda")).numpy()
    expected = f(weft.tensor(X, device="cpu"), weft.tensor(Y, device="cpu")).numpy()
    np.testing.assert_allclose(ours, expected, rtol=2e-5 if name != "half" else 2e-2, atol=1e-4)


def test_gradients() -> None:
    grads: dict[str, np.ndarray] = {}
    for device in ("cpu", "cuda"):
        w = weft.tensor(Y, device=device, requires_grad=True)
        (weft.tensor(X, device=device) @ w).tanh().sum().backward()
        assert w.grad is not None
        grads[device] = w.grad.numpy()
    np.testing.assert_allclose(grads["cuda"], grads["cpu"], rtol=1e-4, atol=1e-3)


def test_large_copies() -> None:
    data = R.integers(0, 255, 40_000_001, dtype=np.uint8)
    assert np.array_equal(weft.tensor(data, device="cuda").numpy(), data)


def test_replayed_graphs() -> None:
    @weft.compile
    def step(x: weft.Tensor) -> weft.Tensor:
        y = x / x.sum(0)
        return (y * y).sum(1)

    x = weft.tensor(np.abs(X) + 1, device="cuda")
    a = np.abs(X).astype(np.float64) + 1
    for _ in range(5):
        np.testing.assert_allclose(step(x).numpy(), ((a / a.sum(0)) ** 2).sum(1), rtol=1e-4)
