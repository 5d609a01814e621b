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


@pytest.mark.parametrize("dtype", [weft.bfloat16, weft.float16])
@pytest.mark.parametrize("left, right", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("m, n, k", [(2048, 2304, 256), (1000, 2200, 192), (64, 24, 48)])
def test_products_on_matrix_units(m: int, n: int, k: int, left: bool, right: bool, dtype: weft.DType) -> None:
    """Large enough for every tile, in all orders of memory; with WEFT_WGMMA=1 by groups of warps."""
    shapes = (k, m) if left else (m, k), (n, k) if right else (k, n)
    a, b = (weft.tensor(R.standard_normal(s, dtype=np.float32), device="cuda").to(dtype) for s in shapes)
    x, y = a.T if left else a, b.T if right else b
    exact = x.float().numpy().astype(np.float64) @ y.float().numpy()
    got = (x @ y).float().numpy()
    bits = 8 if dtype is weft.bfloat16 else 11
    np.testing.assert_allclose(got, exact, rtol=2.0**-bits, atol=2.0**-bits * np.abs(exact).max() / 8)


@pytest.mark.parametrize("dtype", [weft.bfloat16, weft.float16, weft.float32])
@pytest.mark.parametrize(
    "n, m, d, causal", [(512, 512, 64, True), (300, 1024, 128, False), (130, 77, 40, True)]
)
def test_attention(n: int, m: int, d: int, causal: bool, dtype: weft.DType) -> None:
    q, k, v = (
        weft.tensor(R.standard_normal((2, 4, s, d), dtype=np.float32), device="cuda").to(dtype)
        for s in (n, m, m)
    )
    y = weft.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    a, b, c = (x.float().numpy().astype(np.float64) for x in (q, k, v))
    scores = a @ b.swapaxes(-1, -2) / np.sqrt(d)
    w = np.exp(np.where(np.tri(n, m, dtype=bool), scores, -np.inf) if causal else scores)
    bits = {weft.bfloat16: 8, weft.float16: 11, weft.float32: 20}[dtype]
    np.testing.assert_allclose(y.float().numpy(), w / w.sum(-1, keepdims=True) @ c, atol=8 * 2.0**-bits)
