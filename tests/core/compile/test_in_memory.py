"""Compiled functions with limits of memory."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import nn
from weft.backends import registry
from weft.errors import ArgumentError, DeviceError


def net(x: weft.Tensor) -> weft.Tensor:
    values = [x]
    for _ in range(6):
        values.append((values[-1] @ x * 0.1).contiguous())
    y = values[-1]
    for v in reversed(values):
        y = (y @ v * 0.1 + v).contiguous()
    return y


def test_calls_keep_within_the_limit_and_others_do_not() -> None:
    x = weft.tensor(np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32), device="dummy")
    place = registry.open_device("dummy:0")
    want = weft.compile(net)(x).numpy()
    room = place.used_bytes() + 6 * 4096
    tight = weft.compile(net, memory={"dummy": room})
    for _ in range(2):
        np.testing.assert_array_equal(tight(x).numpy(), want)
    assert any("values leave memory" in line for line in tight.explain(x).shared)
    assert len(tight.profile(x)) >= 13
    assert registry.limit_set(place) is None
    with pytest.raises(weft.MemoryPlanError, match="would do: a limit of"):
        weft.compile(net, memory={"dummy": place.used_bytes() + 4096})(x)
    assert registry.limit_set(place) is None


def test_one_number_is_for_the_default_device() -> None:
    x = weft.ones(1 << 16).realize()
    with pytest.raises(weft.MemoryPlanError):
        weft.compile(lambda x: x + 1, memory=1)(x)
    assert weft.compile(lambda x: x + 1, memory=1 << 34, numerics="same")(x)[0].item() == 2.0


def test_what_is_asked_is_checked() -> None:
    with pytest.raises(ArgumentError, match="number of bytes"):
        weft.compile(lambda x: x, memory=-1)
    made = weft.compile(nn.Linear(2, 2), memory=1 << 30)
    assert made(weft.ones(1, 2)).shape == (1, 2)
    with pytest.raises(ArgumentError, match="compiled already, with memory=1073741824"):
        weft.compile(made, memory=1 << 20)
    with pytest.raises(DeviceError):
        weft.compile(lambda x: x, memory={"nowhere": 1})(weft.ones(1))
