"""weft.explain of functions, and of work as it would be over devices."""

from __future__ import annotations

import pytest

import weft
from weft import nn
from weft.autograd.context import context
from weft.distributed import init_device_mesh
from weft.distributed.tensor import Replicate, Shard, distribute_tensor
from weft.errors import ArgumentError, DTypeError, MemoryPlanError
from weft.testing import farm


def test_a_function_is_called_and_what_it_returns_explained() -> None:
    calls: list[int] = []

    def f(x: weft.Tensor, k: int) -> dict[str, weft.Tensor]:
        calls.append(k)
        return {"a": x * k, "b": (x + k).sum()}

    x = weft.ones(8)
    found = weft.explain(f, x, 3)
    assert calls == [3] and len(found) >= 1
    with pytest.raises(ArgumentError, match=r"explain: .* returns no tensor, but "):
        weft.explain(lambda: 3)


def test_a_function_of_tensors_on_a_mesh_has_its_lines() -> None:
    mesh = init_device_mesh("dummy", (2,))
    x = distribute_tensor(weft.ones(4, 6), mesh, [Shard(1)]).realize()
    w = distribute_tensor(weft.ones(6, 3), mesh, [Shard(0)]).realize()
    found = weft.explain(lambda x, w: weft.shard(x @ w, None), x, w)
    (c,) = found.collectives
    assert c.pattern == "all-reduce" and c.line is not None and c.line.startswith(__file__)
    assert c.copies == 2 and c.bytes == 96


@pytest.mark.parametrize("count", [3, 16])
def test_as_it_would_be_over_devices_without_moving_anything(count: int) -> None:
    with farm(count, flops=1e9, bandwidth=1e12) as made, weft.device("farm:0"):
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        x = weft.ones(count * 64, 64).realize()
        weft.realize(*model.parameters())
        made.clear()
        found = weft.explain(model, x, devices="farm:*")
        assert not made.timeline().spans
        assert all(str(p.device) == "farm:0" for p in model.parameters())
        assert any("Shard(0), searched" in str(of) for of in found.layouts)
        assert all(of.line is not None and of.line.startswith(__file__) for of in found.layouts)
        assert found.timeline is not None and len(found.pools) == count
        y = model(x)
        assert weft.explain(y, devices=made.names).timeline == found.timeline
        alone = weft.explain(y, devices=["farm:0"]).timeline
        assert alone is not None and alone.makespan_ns > 1.5 * found.timeline.makespan_ns
        assert y.value.node.storage is None


def test_within_a_limit_layouts_take_less_memory() -> None:
    with farm(4, flops=1e9, bandwidth=1e12), weft.device("farm:0"):
        w = weft.ones(1024, 1024).realize()
        x = weft.ones(8, 1024).realize()
        free = weft.explain(lambda: x @ w, devices="farm:*")
        tight = weft.explain(lambda: x @ w, devices="farm:*", memory={"farm:2": 2 << 20})
        with pytest.raises(MemoryPlanError):
            weft.explain(lambda: x @ w, devices="farm:*", memory=1 << 10)
    assert free.timeline is not None and tight.timeline is not None
    assert tight.timeline.makespan_ns >= free.timeline.makespan_ns


def test_sums_as_of_one_device() -> None:
    with farm(4, flops=1e9, bandwidth=1e12), weft.device("farm:0"):
        x = weft.ones(1 << 14).realize()
        free = weft.explain(lambda: x.sum(), devices="farm:*")
        same = weft.explain(lambda: x.sum(), devices="farm:*", numerics="same")
    assert [c.pattern for c in free.collectives] == ["all-reduce"]
    assert "Replicate() of terms along axis 0" in str(free) and "of terms" not in str(same)


def test_a_function_is_called_in_the_mode_that_is_asked_for() -> None:
    modes: list[bool] = []

    def f() -> weft.Tensor:
        modes.append(context().pinned)
        return weft.arange(8.0).sum()

    weft.explain(f, devices="dummy:*", numerics="same")
    weft.explain(f, devices="dummy:*")
    assert modes == [True, False]


def test_misuse() -> None:
    x = weft.ones(4)
    with pytest.raises(ArgumentError, match="give devices="):
        weft.explain(x + 1, memory=100)
    with pytest.raises(ArgumentError, match=r"a compiled function has devices of its own: weft\.compile\("):
        weft.explain(weft.compile(lambda x: x + 1), x, devices="dummy:*")
    with pytest.raises(ArgumentError, match="explain: devices is a list of names"):
        weft.explain(x + 1, devices="dummy")
    with pytest.raises(ArgumentError, match="their times are predicted"):
        weft.explain(x + 1, devices="dummy:*", time=True)
    with pytest.raises(ArgumentError, match="explain: devices= names none"):
        weft.explain(x + 1, devices=[])
    with pytest.raises(DTypeError, match="expected names of devices"):
        weft.explain(x + 1, devices=[3])
    on_mesh = distribute_tensor(x, init_device_mesh("dummy", (2,)), [Replicate()])
    with pytest.raises(ArgumentError, match="devices= is for tensors on one device"):
        weft.explain(on_mesh + 1, devices="dummy:*")
