"""Products by groups of warps: the machine's own rules, and kernels that the backend makes for Hopper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.backends.cuda.ptx import warpgroups as groups
from tests.backends.cuda.ptx.machine import launch
from tests.backends.cuda.ptx.text import PtxError, parse
from tests.backends.cuda.ptx.warpgroups import places
from weft.backends import registry
from weft.backends.cuda import warpgroups
from weft.backends.cuda.device import CudaBackend
from weft.backends.registry import open_device

ONE = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b)
.maxntid 128
{
	.reg .b32 %r<40>;
	.reg .f32 %f<8>;
	.reg .b64 %rd<20>;
	.shared .align 1024 .b8 tile[4096];
	ld.param.b64 %rd1, [a];
	ld.param.b64 %rd2, [b];
	mov.u32 %r1, %tid.x;
	cvt.u64.u32 %rd3, %r1;
	shl.b64 %rd4, %rd3, 4;
	add.s64 %rd5, %rd1, %rd4;
	ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%rd5];
	mov.b64 %rd6, tile;
	add.s64 %rd7, %rd6, %rd4;
	st.shared.v4.b32 [%rd7], {%r2, %r3, %r4, %r5};
	ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%rd5+2048];
	st.shared.v4.b32 [%rd7+2048], {%r2, %r3, %r4, %r5};
	fence.proxy.async.shared::cta;
	bar.sync 0;
	shr.u64 %rd8, %rd6, 4;
	or.b64 %rd9, %rd8, DESCRIPTOR;
	add.s64 %rd10, %rd9, 128;
	mov.b32 %f1, 0f3F800000; mov.b32 %f2, 0f3F800000; mov.b32 %f3, 0f3F800000; mov.b32 %f4, 0f3F800000;
	wgmma.fence.sync.aligned;
	wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd9, %rd10, 1, 1, 1, 0, 0;
	wgmma.commit_group.sync.aligned;
	wgmma.wait_group.sync.aligned 0;
	add.s64 %rd11, %rd2, %rd4;
	st.global.v4.f32 [%rd11], {%f1, %f2, %f3, %f4};
	ret;
}
"""


def run(text: str) -> tuple[Any, Any]:
    """What one product of 64 x 8 gives (plus 1), and what it is; operands without a pattern, one after the other."""
    r = np.random.default_rng(0)
    a, b = r.integers(-4, 5, (64, 16)).astype("f2"), r.integers(-4, 5, (8, 16)).astype("f2")
    memory = np.zeros(2048 + 2048, np.uint8).view("f2")
    for m, at in ((a, 0), (b, 1024)):  # blocks of 8 x 8, those of a row of blocks first
        memory[at : at + m.size] = m.reshape(-1, 8, 2, 8).transpose(0, 2, 1, 3).ravel()
    out = np.zeros((128, 4), "f4")
    descriptor = 128 >> 4 << 16 | 256 >> 4 << 32
    given = {x.ctypes.data: x.view(np.uint8).reshape(-1) for x in (memory, out)}
    launch(
        parse(text.replace("DESCRIPTOR", str(descriptor))), "k", 1, 128, 0,
        [memory.ctypes.data, out.ctypes.data], given, True,
    )  # fmt: skip
    got = np.zeros((64, 8), "f4")
    t = np.arange(128)
    for e in range(4):
        got[t // 32 * 16 + t % 32 // 4 + 8 * (e // 2), t % 4 * 2 + e % 2] = out[:, e]
    return got, a.astype("f4") @ b.T.astype("f4") + 1


def test_a_product_of_one_group() -> None:
    got, want = run(ONE)
    assert np.array_equal(got, want)


@pytest.mark.parametrize(
    "line, why",
    [
        ("fence.proxy.async.shared::cta;", "did not fence for other proxies"),
        ("bar.sync 0;", "race"),
        ("wgmma.fence.sync.aligned;", "registers are not fenced"),
    ],
)
def test_what_is_left_out_is_noticed(line: str, why: str) -> None:
    with pytest.raises(PtxError, match=why):
        run(ONE.replace(f"{line}\n", "\n"))


def test_results_are_there_once_they_are_waited_for() -> None:
    got, _ = run(ONE.replace("wgmma.wait_group.sync.aligned 0;\n", "\n"))
    assert np.isnan(got).all()


@pytest.mark.parametrize("mode, width", [(1, 128), (2, 64), (3, 32)])
@pytest.mark.parametrize("across", [False, True])
def test_patterns_hold_each_element_once(mode: int, width: int, across: bool) -> None:
    """Rows of the pattern are permuted by 16 bytes: piece k of row r is piece k ^ r, as far as the row has pieces."""
    leading, stride = (64 * width, 8 * width) if across else (16, 8 * width)
    at = places(leading >> 4 << 16 | stride >> 4 << 32 | mode << 62, width // 2 if across else 16, across)
    assert len(set(at.ravel())) == at.size and (at % 2 == 0).all()
    r, k = (at[:, :, None] * 0 + np.arange(16)[None, :, None])[..., 0], np.arange(len(at))[:, None] + 0 * at
    row, byte = (r, 2 * k) if across else (k, 2 * r)
    # XOR in units of 128 bytes: several short rows share one number
    plain = row % 8 * width + row // 8 * stride + byte
    assert np.array_equal(at, plain ^ ((plain >> 7) % (width // 16) << 4))


def test_the_constant_part_of_a_descriptor() -> None:
    assert warpgroups.descriptor_steps(16, 1024) == 1 << 16 | 64 << 32 | 1 << 62


# kernels -----------------------------------------------------------------------------------------------------------

PRODUCTS = {
    "bf16": (weft.bfloat16, 256, 512, 128, False, False),
    "bf16, b transposed": (weft.bfloat16, 128, 1024, 192, False, True),
    "bf16, a transposed": (weft.bfloat16, 256, 512, 128, True, False),
    "f16, both transposed, edges": (weft.float16, 200, 456, 128, True, True),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_by_groups(emulated: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_WGMMA", "1")
    emulated.races = True
    dtype, m, n, k, left, right = PRODUCTS[name]
    r = np.random.default_rng(m + n)
    shapes = ((k, m) if left else (m, k), (n, k) if right else (k, n))
    x, y = (weft.tensor(r.standard_normal(s).astype("f4"), device="cuda").to(dtype).realize() for s in shapes)
    a, b = x.T if left else x, y.T if right else y
    product = (a @ b).relu()
    (kernel,) = weft.explain(product).kernels
    assert kernel.source.count("wgmma.mma_async") == 4 and "fence.proxy.async" in kernel.source
    assert "wgmma" in open_device("cuda:0").fingerprint()
    want = np.maximum(a.float().numpy().astype(float) @ b.float().numpy(), 0)
    bits = 8 if dtype is weft.bfloat16 else 11
    np.testing.assert_allclose(product.float().numpy(), want, rtol=2.0**-bits, atol=2.0**-bits * want.max())


@pytest.mark.parametrize("right", [True, False])
def test_they_are_tried_first(
    emulated: Any,
    right: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """A GPU that disagrees about descriptors does without, and says so; what was found is kept."""
    monkeypatch.delenv("WEFT_WGMMA")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    if not right:
        monkeypatch.setattr(groups, "WIDTHS", {1: 64, 2: 64, 3: 32})
    for _ in range(2):
        monkeypatch.setattr(registry, "_devices", {})
        monkeypatch.setattr(registry, "_backends", {**registry._backends, "cuda": CudaBackend()})
        before = emulated.launches
        info = open_device("cuda:0").info
        assert any(u.row_bytes for u in info.matrix_units) is right
        assert ("wrong results" in caplog.text) is not right
    assert emulated.launches == before  # the second time


def test_they_can_be_switched_off(emulated: Any) -> None:
    assert not any(u.row_bytes for u in open_device("cuda:0").info.matrix_units)


@pytest.mark.parametrize("capability", [(8, 0), (10, 0)])
def test_other_architectures_have_none(
    emulated: Any, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_WGMMA", "1")
    emulated.capability = capability
    assert not any(u.row_bytes for u in open_device("cuda:0").info.matrix_units)


def test_what_does_not_fit_runs_on_warps(emulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that no copy of 16 bytes can fetch: panels are filled by ordinary stores."""
    monkeypatch.setenv("WEFT_WGMMA", "1")
    emulated.races = True
    r = np.random.default_rng(0)
    x, y = (
        weft.tensor(r.standard_normal(s).astype("f4"), device="cuda").to(weft.float16).realize()
        for s in ((256, 128), (128, 509))
    )
    (kernel,) = weft.explain(x @ y).kernels
    assert "wgmma" not in kernel.source and "mma.sync" in kernel.source
    want = x.float().numpy().astype(float) @ y.float().numpy()
    np.testing.assert_allclose((x @ y).float().numpy(), want, rtol=2e-3, atol=2e-2)
