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
    assert "of the limit" in str(explained)
    assert y.value.node.storage is None
    np.testing.assert_allclose(y.numpy(), x.numpy() @ x.numpy(), rtol=1e-3, atol=1e-3)


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
