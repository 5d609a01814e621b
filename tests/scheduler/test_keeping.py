"""Values on the way to others that a tensor stands for are kept: those that are work to compute and not large."""

from __future__ import annotations

import numpy as np
import pytest

import weft
import weft.ir.graph
from weft import Tensor
from weft.ir.ops import Op


def _is_there(t: Tensor) -> bool:
    return t.value.node.storage is not None


def test_what_is_held_is_kept() -> None:
    x = weft.randn(40)
    y = (x * 2).tanh()
    view, mask = y.reshape(4, 10).T, weft.arange(40) > 5
    unrelated = x + 1
    total = (view.sum() + mask.sum()).item()
    assert _is_there(x) and _is_there(y)
    assert not _is_there(view) and not _is_there(mask) and not _is_there(unrelated)
    assert abs(total - (np.tanh(x.numpy() * 2).sum() + 34)) < 1e-4


def test_what_is_large_is_not_kept() -> None:
    a, b = weft.randn(800, 1).realize(), weft.randn(1, 800).realize()
    table = a * b
    row = table.sum(1)
    row.max().item()
    assert _is_there(row) and not _is_there(table)


def test_loops_do_not_grow() -> None:
    y, buffer, total = weft.rand(8), weft.zeros(8), 0.0
    seen: list[int] = []
    for k in range(6):
        y = (y + 1).sqrt()
        buffer[k] = float(k)
        total += y.sum().item() + buffer.sum().item()
        seen.append(len(weft.ir.graph.toposort([y.value.node, buffer.value.node])))
        assert y.value.node.op is Op.BUFFER and buffer.value.node.op is Op.BUFFER
    assert seen == [2] * 6
    np.testing.assert_array_equal(buffer.numpy(), [0, 1, 2, 3, 4, 5, 0, 0])


def test_a_hand_written_step_keeps_its_parameters() -> None:
    w = weft.ones(3, requires_grad=True)
    values: list[float] = []
    for _ in range(4):
        loss = (w * weft.tensor([1.0, 2.0, 3.0])).square().sum()
        values.append(loss.item())
        loss.backward()
        with weft.no_grad():
            assert w.grad is not None
            w -= 0.01 * w.grad
        w.grad = None
    after, want = np.ones(3), []
    for _ in range(4):
        want.append((np.square(after * [1, 2, 3])).sum())
        after = after - 0.01 * 2 * after * np.square([1, 2, 3])
    np.testing.assert_allclose(values, want, rtol=1e-6)


def test_nothing_is_kept_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.backends import registry

    monkeypatch.setattr(registry, "available_bytes", lambda device: 4 << 20)
    x = weft.randn(600, 600).realize()
    y = (x * 2).tanh()
    y.sum().item()
    assert not _is_there(y)
