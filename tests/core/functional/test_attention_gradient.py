"""Gradients of attention by blocks of rows, beside those of the formula in float64."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft import Tensor
from weft.core.functional import attention_gradient

Array: TypeAlias = np.ndarray[Any, Any]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 8 rows and, without a mask in memory, as many columns, of one or a few heads, however small the
    scores."""
    monkeypatch.setattr(attention_gradient, "BLOCK_ROWS", 8)
    monkeypatch.setattr(attention_gradient, "limits", lambda _: attention_gradient.Limits(1, 512, True))


@pytest.fixture
def whole_rows(monkeypatch: pytest.MonkeyPatch, small_blocks: None) -> None:
    """The same with all columns, as on devices with memory of their own."""
    monkeypatch.setattr(attention_gradient, "limits", lambda _: attention_gradient.Limits(1, 2048, False))


def reference(
    q: Array, k: Array, v: Array, g: Array, allowed: Array, bias: Any, scale: float
) -> tuple[Array, Array, Array, Array]:
    """The result and the three gradients, in float64; rows that see nothing are zeros."""
    q, k, v, g = (x.astype(np.float64) for x in (q, k, v, g))
    s = q @ k.swapaxes(-1, -2) * scale + bias
    s = np.where(allowed, s, -np.inf)
    top = s.max(-1, keepdims=True)
    e = np.where(s == -np.inf, 0.0, np.exp(s - np.where(top == -np.inf, 0.0, top)))
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total == 0, 1.0, total)
    dp = g @ v.swapaxes(-1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * scale
    return p @ v, ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g


def gradients(q: Array, k: Array, v: Array, g: Array, **options: Any) -> list[Array]:
    leaves = [weft.tensor(x, requires_grad=True) for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*leaves, **options)
    return [x.numpy() for x in (out, *weft.autograd.grad(out, leaves, weft.tensor(g)))]


def operands(lead: tuple[int, ...], length: int, columns: int, width: int, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    shapes = [
        (*lead, length, width),
        (*lead, columns, width),
        (*lead, columns, width),
        (*lead, length, width),
    ]
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def close(found: Sequence[Array], expected: Sequence[Array], bound: float = 2e-5) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert np.abs(a - b).max() <= bound * max(1.0, np.abs(b).max())


SIZES = [((), 24, 24), ((3,), 16, 40), ((2, 2), 21, 9), ((4,), 17, 17)]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("lead", "length", "columns"), SIZES)
@pytest.mark.parametrize("kind", ["all", "causal", "bool", "float", "columns", "batch"])
def test_blocks_give_the_gradients_of_the_formula(
    lead: tuple[int, ...], length: int, columns: int, kind: str
) -> None:
    q, k, v, g = operands(lead, length, columns, 8)
    rng = np.random.default_rng(1)
    allowed, bias = np.ones((length, columns), bool), np.zeros(())
    options: dict[str, Any] = {}
    if kind == "causal":
        allowed, options = np.tril(allowed), {"is_causal": True}
    elif kind == "bool":
        allowed = rng.random((length, columns)) < 0.5
        allowed[3] = False
        options = {"attn_mask": weft.tensor(allowed)}
    elif kind == "float":
        bias = np.where(rng.random((length, columns)) < 0.3, -np.inf, rng.standard_normal((length, columns)))
        bias[5] = -np.inf
        options = {"attn_mask": weft.tensor(bias.astype(np.float32))}
        allowed, bias = bias != -np.inf, np.where(bias == -np.inf, 0.0, bias.astype(np.float32))
    elif kind == "columns":
        allowed = rng.random((1, columns)) < 0.7
        options = {"attn_mask": weft.tensor(allowed)}
    elif kind == "batch":
        allowed = rng.random((*lead[:1], *(1 for _ in lead[1:]), length, columns)) < 0.7
        options = {"attn_mask": weft.tensor(allowed)}
    close(gradients(q, k, v, g, **options), reference(q, k, v, g, allowed, bias, 8**-0.5))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", [weft.float16, weft.bfloat16])
def test_halves_are_accumulated_in_float32(dtype: weft.DType) -> None:
    q, k, v, g = operands((2,), 64, 64, 8)
    halves = [weft.tensor(x).to(dtype) for x in (q, k, v, g)]
    rounded = [x.float().numpy() for x in halves]
    leaves = [x.detach().requires_grad_() for x in halves[:3]]
    out = F.scaled_dot_product_attention(*leaves, is_causal=True)
    found = weft.autograd.grad(out, leaves, halves[3])
    assert all(x.dtype is dtype for x in found)
    expected = reference(*rounded, np.tril(np.ones((64, 64), bool)), 0.0, 8**-0.5)
    close([x.float().numpy() for x in (out, *found)], expected, 4e-3 if dtype is weft.float16 else 3e-2)


@pytest.mark.usefixtures("small_blocks")
def test_second_derivatives_are_those_of_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, g = operands((2,), 16, 16, 4)

    def second() -> list[Array]:
        leaves = [weft.tensor(x.astype(np.float64), requires_grad=True) for x in (q, k, v)]
        out = F.scaled_dot_product_attention(*leaves, is_causal=True)
        first = weft.autograd.grad(out, leaves, weft.tensor(g.astype(np.float64)), create_graph=True)
        total = sum((x * x).sum() for x in first)
        return [x.numpy() for x in weft.autograd.grad(total, leaves)]

    found = second()
    monkeypatch.setattr(attention_gradient, "MIN_SCORES_BYTES", 1 << 60)
    close(found, second(), 1e-12)


@pytest.mark.usefixtures("small_blocks")
def test_gradients_are_asked_for_one_by_one_and_of_shared_heads() -> None:
    q, k, v, g = operands((4,), 16, 24, 8)
    k, v = k[:2], v[:2]
    leaves = [weft.tensor(x, requires_grad=i != 1) for i, x in enumerate((q, k, v))]
    out = F.scaled_dot_product_attention(*leaves, enable_gqa=True)
    dq, dv = weft.autograd.grad(out, [leaves[0], leaves[2]], weft.tensor(g))
    _, eq, _, ev = reference(q, k.repeat(2, 0), v.repeat(2, 0), g, np.ones((16, 24), bool), 0.0, 8**-0.5)
    close([dq.numpy(), dv.numpy()], [eq, ev.reshape(2, 2, 24, 8).sum(1)])


@pytest.mark.usefixtures("small_blocks")
def test_a_vector_of_examples_is_differentiated_alike() -> None:
    q, k, v, g = operands((3,), 16, 16, 8)

    def one(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        return weft.func.vjp(lambda *x: F.scaled_dot_product_attention(*x, is_causal=True), q, k, v)[1](g)

    found = weft.vmap(one)(*(weft.tensor(x) for x in (q, k, v, g)))
    expected = reference(q, k, v, g, np.tril(np.ones((16, 16), bool)), 0.0, 8**-0.5)[1:]
    close([x.numpy() for x in found], expected)


@pytest.mark.usefixtures("small_blocks")
def test_a_compiled_step_has_the_same_gradients() -> None:
    q, k, v, g = operands((2,), 24, 24, 8)

    @weft.compile
    def step(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        return weft.autograd.grad(F.scaled_dot_product_attention(*leaves, is_causal=True), leaves, g)

    expected = reference(q, k, v, g, np.tril(np.ones((24, 24), bool)), 0.0, 8**-0.5)[1:]
    for _ in range(3):
        close([x.numpy() for x in step(*(weft.tensor(x) for x in (q, k, v, g)))], expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.usefixtures("small_blocks")
def test_no_kernel_reads_or_writes_all_scores(causal: bool) -> None:
    q, k, v, g = operands((), 256, 256, 8)
    leaves = [weft.tensor(x, requires_grad=True) for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*leaves, is_causal=causal)
    kernels = weft.explain(out, *weft.autograd.grad(out, leaves, weft.tensor(g)))
    assert max(k.bytes for k in kernels) < 256 * 256 * 4 / 4


@pytest.mark.usefixtures("whole_rows")
@pytest.mark.parametrize(("lead", "length", "columns"), SIZES)
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_of_all_columns_give_the_same(
    lead: tuple[int, ...], length: int, columns: int, causal: bool
) -> None:
    q, k, v, g = operands(lead, length, columns, 8)
    allowed = np.tril(np.ones((length, columns), bool)) if causal else np.ones((length, columns), bool)
    close(gradients(q, k, v, g, is_causal=causal), reference(q, k, v, g, allowed, np.zeros(()), 8**-0.5))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kind", ["all", "causal", "bool"])
@pytest.mark.parametrize("first", ["result", "both", "gradients"])
def test_the_order_in_which_results_are_asked_for_does_not_matter(kind: str, first: str) -> None:
    q, k, v, g = operands((2,), 21, 40, 8)
    allowed = np.ones((21, 40), bool)
    options: dict[str, Any] = {}
    if kind == "causal":
        allowed, options = np.tril(allowed), {"is_causal": True}
    if kind == "bool":
        allowed = np.random.default_rng(1).random((21, 40)) < 0.5
        options = {"attn_mask": weft.tensor(allowed)}
    leaves = [weft.tensor(x, requires_grad=True) for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*leaves, **options)
    if first == "result":
        out.numpy()
    found = weft.autograd.grad(out, leaves, weft.tensor(g))
    if first == "both":
        out.numpy()
    got = [x.numpy() for x in found]
    close([out.numpy(), *got], reference(q, k, v, g, allowed, np.zeros(()), 8**-0.5))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("causal", [False, True])
def test_statistics_that_nobody_kept_are_computed_by_blocks(
    causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_gradient, "note_statistics", lambda _: None)
    q, k, v, g = operands((2,), 21, 40, 8)
    leaves = [weft.tensor(x, requires_grad=True) for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*leaves, is_causal=causal)
    out.numpy()
    found = weft.autograd.grad(out, leaves, weft.tensor(g))
    kernels = weft.explain(*found)
    assert all(k.bytes < 8 * 21 * 40 * 4 for k in kernels)
    allowed = np.tril(np.ones((21, 40), bool)) if causal else np.ones((21, 40), bool)
    close([out.numpy(), *(x.numpy() for x in found)], reference(q, k, v, g, allowed, np.zeros(()), 8**-0.5))


def test_the_forward_kernel_keeps_the_sums_of_rows() -> None:
    """Attention is one kernel, with a number per row beside its result, also where the gradient is asked for later."""
    q, k, v, g = operands((8,), 1100, 1100, 16)
    leaves = [weft.tensor(x, requires_grad=True) for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*leaves, is_causal=True)
    assert len(weft.explain(out)) == 1
    out.numpy()
    found = weft.autograd.grad(out, leaves, weft.tensor(g))
    assert not any("max" in kernel.name for kernel in weft.explain(*found))
    weft.realize(*found)


@pytest.mark.usefixtures("small_blocks")
def test_exponentials_of_large_scores_do_not_overflow() -> None:
    q, k, v, g = operands((2,), 24, 24, 8)
    close(
        gradients(q * 40, k * 40, v, g, is_causal=True),
        reference(q * 40, k * 40, v, g, np.tril(np.ones((24, 24), bool)), np.zeros(()), 8**-0.5),
        2e-3,
    )


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("device", "causal"), [("dummy", True), ("opencl", True), ("wgpu", False)])
def test_devices_agree(device: str, causal: bool) -> None:
    if not any(d.name.startswith(device) and d.info is not None for d in weft.devices()):
        pytest.skip(f"no {device} here")
    q, k, v, g = operands((2,), 21, 24, 8)
    leaves = [weft.tensor(x, device=device, requires_grad=True) for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*leaves, is_causal=causal)
    found = weft.autograd.grad(out, leaves, weft.tensor(g, device=device))
    allowed = np.tril(np.ones((21, 24), bool)) if causal else np.ones((21, 24), bool)
    close([x.numpy() for x in (out, *found)], reference(q, k, v, g, allowed, np.zeros(()), 8**-0.5))


def test_blocks_divide_rows_and_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    def blocks(*shape: int, mask: tuple[int, ...] | None = None) -> attention_gradient.Blocks | None:
        q = weft.zeros(*shape).value
        return attention_gradient.blocks_of(q, q, q, None if mask is None else weft.ones(*mask).value)

    Blocks, Limits = attention_gradient.Blocks, attention_gradient.Limits
    monkeypatch.setattr(attention_gradient, "limits", lambda _: Limits(1 << 25, 1 << 18, True))
    assert blocks(8, 512, 64) is None
    for n, length in itertools.product((1, 12), (8192, 8209, 131072)):
        assert blocks(n, length, 64) == Blocks(1, 256, 256)
    assert blocks(64, 1024, 64) == Blocks(1, 256, 256)
    monkeypatch.setattr(attention_gradient, "limits", lambda _: Limits(1 << 25, 1 << 20, False))
    for n, length in itertools.product((1, 12), (8192, 8209, 131072)):
        assert blocks(n, length, 64) == Blocks(1, 32 if length == 131072 else 256, length)
    assert blocks(256, 512, 64) == Blocks(2, 256, 512)
    found = blocks(12, 4096, 64, mask=(12, 4096, 4096))
    assert found is not None
    assert found.heads == 12
    assert found.rows * 12 * 4096 * 4 <= attention_gradient.MAX_HEAD_BYTES


@pytest.mark.parametrize("mask", [{}, {"is_causal": True}])
def test_a_device_without_values_has_shapes_of_gradients(mask: dict[str, bool]) -> None:
    with weft.device("meta"):
        made = weft.zeros(2, 3, 64, 16, requires_grad=True)
    moved = weft.zeros(2, 64, 48, device="meta").requires_grad_()
    q, k, v = (y.reshape(2, 64, 2, 8).transpose(1, 2) for y in moved.split(16, dim=-1))
    F.scaled_dot_product_attention(q, k, v, **mask).sum().backward()
    F.scaled_dot_product_attention(made, made, made, **mask).sum().backward()
    assert moved.grad is not None and moved.grad.shape == moved.shape and moved.grad.is_meta
    assert made.grad is not None and made.grad.shape == made.shape
