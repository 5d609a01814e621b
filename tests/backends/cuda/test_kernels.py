"""The PTX of every kind of kernel, executed thread by thread, gives what NumPy says; shared memory without races."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.backends.protocol import Commands, Device, Launch
from weft.backends.registry import open_device
from weft.scheduler.lowering import lowered
from weft.testing.kernels import CASES, Case, attention, columns, convolution, matmul, softmax

KERNELS: dict[str, Case] = {
    **CASES,
    "matmul 70": matmul(70, 66, 40),
    "matmul 128": matmul(128, 128, 32),
    "softmax 3000": softmax(3, 3000),
    "softmax 1023": softmax(2, 1023),
    "columns long": columns(3000, 5),
    "attention 40": attention(2, 40, 16, True),
    "convolution 10": convolution(2, 3, 10, 5),
}


def outputs(device: Device, case: Case, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the device computes, and what is right."""
    program = lowered(case.algorithm, device.info)
    inputs = case.inputs(seed)
    expected = case.reference(inputs)
    arrays = {**inputs, **{n: np.full_like(v, np.nan, dtype=np.float32) for n, v in expected.items()}}
    memories = [device.allocate(arrays[b.name].nbytes) for b in program.params]
    for b, m in zip(program.params, memories, strict=True):
        device.write(m, np.ascontiguousarray(arrays[b.name]).data)
    codes, _ = device.compile([program])
    count = len(memories)
    device.link(codes, Commands((Launch(0, tuple(range(count))),), count, (), 0)).run(memories)
    got = {
        b.name: np.frombuffer(device.read(m, arrays[b.name].nbytes), arrays[b.name].dtype).reshape(
            arrays[b.name].shape
        )
        for b, m in zip(program.params, memories, strict=True)
    }
    return {n: got[n] for n in expected}, expected


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(emulated: Any, name: str) -> None:
    emulated.races = True
    got, expected = outputs(open_device("cuda:0"), KERNELS[name])
    for n, want in expected.items():
        np.testing.assert_allclose(got[n], want, rtol=2e-4, atol=2e-5)


REDUCTIONS = {
    "f64 sums": (np.float64, lambda x: x.sum(1)),
    "f64 maxima": (np.float64, lambda x: x.amax(1)),
    "i64 sums": (np.int64, lambda x: x.sum(1)),
    "i8 maxima": (np.int8, lambda x: x.amax(1)),
    "u8 minima": (np.uint8, lambda x: x.amin(1)),
    "f16 sums": (np.float16, lambda x: x.sum(1)),
    "bools": (np.int32, lambda x: (x > 99).any(1)),
    "products": (np.float32, lambda x: (x / 50).prod(1)),
    "positions": (np.float32, lambda x: x.argmax(1)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_rows_across_the_threads_of_a_warp(emulated: Any, name: str) -> None:
    """Values of every width go from thread to thread; rows of a warp, of less, and of several."""
    emulated.races = True
    dtype, f = REDUCTIONS[name]
    for shape in ((70, 64), (3, 64), (2, 512)):
        a = np.random.default_rng(0).integers(1, 101, shape).astype(dtype)
        got, want = (f(weft.tensor(a, device=d)).numpy() for d in ("cuda", "cpu"))
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_maxima_across_threads_keep_nans(emulated: Any) -> None:
    """Also where the processor has no instruction for such maxima."""
    a = np.random.default_rng(0).standard_normal((70, 128)).astype(np.float32)
    a[[1, 20, 69], [3, 127, 64]] = np.nan
    for capability in ((7, 5), (9, 0)):
        emulated.capability = capability
        got = weft.tensor(a, device="cuda").amax(1).numpy()
        assert np.array_equal(got, a.max(1), equal_nan=True)


@pytest.mark.parametrize("n", [16, 128, 1024])
def test_short_rows_exchange_registers_only(emulated: Any, n: int) -> None:
    emulated.races = True
    a = np.random.default_rng(n).standard_normal((70, n)).astype(np.float32)
    y = weft.tensor(a, device="cuda").softmax(-1)
    (kernel,) = weft.explain(y).kernels
    assert "shfl.sync.bfly" in kernel.source
    assert "bar.sync" not in kernel.source and ".shared" not in kernel.source
    e = np.exp(a - a.max(1, keepdims=True))
    np.testing.assert_allclose(y.numpy(), e / e.sum(1, keepdims=True), rtol=2e-6)


# matrix units ------------------------------------------------------------------------------------------------------


def product(
    dtype: weft.DType, m: int, n: int, k: int, left: bool, right: bool, batch: int = 0
) -> tuple[weft.Tensor, Any]:
    """relu(a @ b + bias) with factors stored transposed as asked, and what it is in float64."""
    r = np.random.default_rng(m + n + k)
    lead = (batch,) if batch else ()
    x = r.standard_normal((*lead, *((k, m) if left else (m, k))))
    y = r.standard_normal((*lead, *((n, k) if right else (k, n))))
    z = r.standard_normal(n)
    a, b, bias = (weft.tensor(v.astype(np.float32), device="cuda").to(dtype).realize() for v in (x, y, z))
    turned = [v.transpose(-1, -2) if t else v for v, t in ((a, left), (b, right))]
    exact = [v.to(weft.float32).numpy().astype(float) for v in turned]
    wanted = np.maximum(exact[0] @ exact[1] + bias.to(weft.float32).numpy(), 0)
    return (turned[0] @ turned[1] + bias).relu(), wanted


PRODUCTS = {
    "bf16": (weft.bfloat16, 64, 64, 64, False, False),
    "bf16, b transposed": (weft.bfloat16, 64, 64, 32, False, True),
    "bf16, a transposed": (weft.bfloat16, 64, 64, 32, True, False),
    "bf16, both transposed, edges": (weft.bfloat16, 70, 50, 48, True, True),
    "f16, edges": (weft.float16, 33, 72, 16, False, False),
    "f16, large tiles": (weft.float16, 256, 256, 32, False, True),
    "bf16, batched": (weft.bfloat16, 32, 40, 16, False, False, 3),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_on_matrix_units(emulated: Any, name: str) -> None:
    emulated.races = True
    y, wanted = product(*PRODUCTS[name])
    source = "".join(k.source for k in weft.explain(y).kernels)
    assert "mma.sync" in source and "ldmatrix" in source
    bits = 8 if PRODUCTS[name][0] is weft.bfloat16 else 11
    np.testing.assert_allclose(
        y.to(weft.float32).numpy(), wanted, rtol=2.0**-bits, atol=2.0**-bits * wanted.max()
    )


@pytest.mark.parametrize("left, right", [(False, False), (True, True)])
def test_tf32_where_it_is_allowed(
    emulated: Any, left: bool, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_TF32", "1")
    emulated.races = True
    y, wanted = product(weft.float32, 36, 48, 32, left, right)
    assert "mma.sync.aligned.m16n8k8" in "".join(k.source for k in weft.explain(y).kernels)
    assert "tf32" in open_device("cuda:0").fingerprint()
    errors = abs(y.numpy() - wanted).max() / wanted.max()
    assert 1e-6 < errors < 2.0**-9


def test_float32_is_not_rounded_else(emulated: Any) -> None:
    y, wanted = product(weft.float32, 36, 48, 32, False, False)
    assert "mma.sync" not in "".join(k.source for k in weft.explain(y).kernels)
    np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_panels_arrive_while_others_are_used(emulated: Any) -> None:
    """Sums of fewer steps than the ring has places, and of more; with rows that the last block does not have."""
    emulated.races = True
    for m, k in ((64, 64), (40, 96), (40, 352)):
        y, wanted = product(weft.bfloat16, m, 64, k, False, False)
        source = "".join(x.source for x in weft.explain(y).kernels)
        assert "cp.async.cg" in source and "cp.async.wait_group" in source
        np.testing.assert_allclose(
            y.to(weft.float32).numpy(), wanted, rtol=2.0**-8, atol=2.0**-8 * wanted.max()
        )


def test_older_gpus_have_none(emulated: Any) -> None:
    emulated.capability = (7, 5)
    y, wanted = product(weft.bfloat16, 32, 32, 16, False, False)
    assert "mma.sync" not in "".join(k.source for k in weft.explain(y).kernels)
    np.testing.assert_allclose(y.to(weft.float32).numpy(), wanted, rtol=2.0**-8, atol=2.0**-5)


ATTENTIONS = {
    "bf16, causal": (weft.bfloat16, 2, 100, 128, 32, 32, True),
    "bf16, no whole step": (weft.bfloat16, 1, 40, 109, 16, 8, False),
    "f16, one step, wider results": (weft.float16, 1, 64, 60, 16, 40, False),
    "f32, causal": (weft.float32, 2, 70, 70, 16, 24, True),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_is_one_launch(emulated: Any, name: str) -> None:
    """Both products on matrix units where the factors are narrow, no barrier missing."""
    emulated.races = True
    dtype, batch, n, m, deep, wide, causal = ATTENTIONS[name]
    r = np.random.default_rng(0)
    q, k, v = (
        weft.tensor(r.standard_normal(s).astype(np.float32), device="cuda").to(dtype).realize()
        for s in ((batch, n, deep), (batch, m, deep), (batch, m, wide))
    )
    y = weft.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    (kernel,) = weft.explain(y).kernels
    assert kernel.source.count(".entry") == 1
    assert ("mma.sync" in kernel.source) is (dtype is not weft.float32)
    if dtype is weft.bfloat16:  # several steps: panels in a ring
        assert "cp.async.cg" in kernel.source
    a, b, c = (x.float().numpy().astype(float) for x in (q, k, v))
    scores = a @ b.swapaxes(-1, -2) / np.sqrt(deep)
    w = np.exp(np.where(np.tri(n, m, dtype=bool), scores, -np.inf) if causal else scores)
    bits = {weft.bfloat16: 8, weft.float16: 11, weft.float32: 20}[dtype]
    np.testing.assert_allclose(y.float().numpy(), w / w.sum(-1, keepdims=True) @ c, atol=6 * 2.0**-bits)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_remainders_are_exact(emulated: Any, dtype: Any) -> None:
    """Quotients of any size, the smallest and largest numbers, and what is no number."""
    r, info = np.random.default_rng(0), np.finfo(dtype)
    x, y = (r.standard_normal(400).astype(dtype) * scale for scale in (3000, 0.1))
    low, high = int(np.log2(info.smallest_subnormal)), info.maxexp - 3
    a, b = (np.ldexp(r.standard_normal(800), r.integers(low, high, 800)).astype(dtype) for _ in range(2))
    edge = np.array([0, 1, 1.5, 3, info.tiny, info.smallest_subnormal, info.max, np.inf, np.nan], dtype)
    edge = np.concatenate([edge, -edge, np.nextafter(edge, dtype(0))])
    x = np.concatenate([x, a, np.repeat(edge, edge.size)])
    y = np.concatenate([y, b, np.tile(edge, edge.size)])
    with np.errstate(all="ignore"):
        want = np.fmod(x, y)
    for n in (x.size, x.size - 1):  # in vectors, and one by one
        got = weft.fmod(weft.tensor(x[:n], device="cuda"), weft.tensor(y[:n], device="cuda")).numpy()
        assert np.array_equal(got, want[:n], equal_nan=True)
        numbers = ~np.isnan(want[:n])
        assert np.array_equal(np.signbit(got[numbers]), np.signbit(want[:n][numbers]))
