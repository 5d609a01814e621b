"""weft.explain: what it says of kernels to come, and that nothing is computed by asking."""

from __future__ import annotations

import numpy as np
import pytest

import weft


def ten(*shape: int) -> weft.Tensor:
    return weft.tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def test_kernels_with_everything_known_of_them() -> None:
    x, w = ten(64, 32), ten(32, 48)
    y = (x @ w).relu()
    explained = weft.explain(y, y.sum())
    assert y.value.node.storage is None
    assert len(explained) == len(explained.kernels) >= 1
    first = explained.kernels[0]
    assert first.bytes >= 4 * (64 * 32 + 32 * 48) and first.flops >= 2 * 64 * 32 * 48
    assert first.why and all(isinstance(w, str) for w in first.why)
    assert first.loops.startswith("kernel ") and "define" in first.source
    assert first.summary in str(first) and "lanes" in first.summary
    assert all(k.schedule is not None and k.name for k in explained)
    text = str(explained)
    assert text == repr(explained) and "moved" in text and first.why[0] in text
    assert explained.flops == sum(k.flops for k in explained)


def test_times() -> None:
    x = ten(128, 128)
    y = x @ x
    explained = weft.explain(y, time=True)
    (kernel,) = explained.kernels
    assert kernel.timing is not None and kernel.timing.ns > 0 and kernel.timing.gflops > 0
    assert "of the limit" in str(explained) and "limits of cpu:0" in str(explained)
    assert explained.ns is not None and explained.ns >= kernel.timing.ns
    assert kernel.timing.bound.by in ("compute", "L2", "L3", "memory") and 0 < kernel.timing.share < 2
    assert y.value.node.storage is None
    np.testing.assert_allclose(y.numpy(), x.numpy() @ x.numpy(), rtol=1e-3, atol=1e-3)


def test_a_compiled_function_is_explained_by_running_it() -> None:
    state = ten(4)

    def f(x: weft.Tensor) -> weft.Tensor:
        state.copy_(state + 1)
        return (x @ x).softmax(-1)

    x, before = ten(16, 16), state.numpy().copy()
    explained = weft.explain(weft.compile(f), x)
    assert [k.timing is not None for k in explained] == [True] * len(explained.kernels)
    np.testing.assert_allclose(state.numpy(), before + 2)
    table = explained.times().splitlines()
    assert table[0].split() == ["time", "share", "runs", "GFLOP/s", "GB/s", "of", "limit", "near", "kernel"]
    assert {line.split()[-1] for line in table[1:-2]} == {k.name for k in explained}


def test_equal_kernels_are_one_row() -> None:
    x, w = ten(8, 8), ten(8, 8)
    explained = weft.explain(((x @ w) @ w) @ w, time=True)
    assert len(explained) == 3 and explained.times().splitlines()[1].split()[4] == "3"


def test_all_forms_of_a_kernel() -> None:
    kernel = weft.explain(ten(8, 8) @ ten(8, 8))[0]
    assert list(kernel.forms()) == ["algorithm", "schedule", "loops", "llvm", "assembly"]
    shown = kernel.show("schedule", "assembly")
    assert shown.startswith("--- schedule of product\n") and "ret" in shown and "algorithm" not in shown
    assert kernel.algorithm in kernel.show() and kernel.source in kernel.show()
    with pytest.raises(weft.ArgumentError, match="algorithm, schedule, loops, llvm, assembly, no 'ptx'"):
        kernel.show("ptx")
    with weft.device("dummy:0"):
        there = weft.explain(ten(4).cos(), time=True)[0]
    assert there.source == there.loops and there.timing is not None and there.timing.bound.by != "L2"


def test_what_cannot_be_timed() -> None:
    n = weft.Variable("n", 1, 3)
    with pytest.raises(weft.ArgumentError, match="the runtime variable n has no value here"):
        weft.explain(ten(3)[:n] + 1, time=True)
    away = (weft.tensor([1.0, 2.0], device="dummy:1") * 2).to("cpu") + 1
    with pytest.raises(weft.ArgumentError, match="on one device"):
        weft.explain(away, time=True)


def test_nothing_to_do() -> None:
    assert str(weft.explain(ten(3))) == "nothing to compute: the values are there already"
    assert len(weft.explain()) == 0


def test_several_devices() -> None:
    y = (weft.tensor([1.0, 2.0], device="dummy:1") * 2).to("cpu") + 1
    devices = [k.device for k in weft.explain(y)]
    assert devices == ["dummy:1", "cpu:0"]


def test_only_tensors() -> None:
    with pytest.raises(weft.DTypeError, match="explain: expected a Tensor, got 3"):
        weft.explain(3)  # type: ignore[arg-type]
