"""Times of graphs on devices, stated or measured once; of devices that take turns the fastest is used."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import weft
from weft import disk_cache, nn
from weft.core.compile.over_devices import OverDevices
from weft.ir.graph import Node
from weft.scheduler.placing import trials
from weft.testing import farm


def product(rows: int = 8) -> list[Node]:
    x, w = weft.ones(rows, 64), weft.ones(64, 64)
    return [(x.contiguous() @ w.contiguous()).relu().value.node]


def test_devices_are_grouped_by_what_computes() -> None:
    with farm(2, processor="p"), farm(2, "other"):
        names = ["farm:0", "other:0", "farm:1", "other:1"]
        assert trials.processors(names) == [["farm:0", "farm:1"], ["other:0"], ["other:1"]]


def test_simulated_devices_state_their_times() -> None:
    with farm(2, speeds=[1, 2], launch_ns=0.0) as f:
        times = trials.measured(product(), f.names)
        assert times["farm:0"] == pytest.approx(2 * times["farm:1"])
        assert sum(d.clock.launches for d in f.devices) == 0


def test_times_are_measured_once_for_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[tuple[str, str], bytes] = {}

    def put(kind: str, key: str, data: bytes) -> None:
        kept[kind, key] = data

    def get(kind: str, key: str) -> bytes | None:
        return kept.get((kind, key))

    monkeypatch.setattr(disk_cache, "put", put)
    monkeypatch.setattr(disk_cache, "get", get)
    nodes = product(9)
    first = trials.measured(nodes, ["cpu:0"])
    assert 0 < first["cpu:0"] < math.inf and any(kind == "times" for kind, _ in kept)
    assert trials.measured(nodes, ["cpu:0"]) == first
    for key in [k for k in kept if k[0] == "times"]:
        kept[key] = b'{"ns": "broken"}'
    assert trials.measured(nodes, ["cpu:0"])["cpu:0"] > 0


def test_what_does_not_fit_is_no_choice() -> None:
    with farm(1, memory_bytes=1 << 10) as f:
        device: Any = f.devices[0]
        plain = type("Plain", (), {"run": None})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trials, "Foretold", plain)
            assert trials.measured(product(), [device.info.name]) == {"farm:0": math.inf}


def compiled(names: list[str], model: nn.Module) -> OverDevices[Any, Any]:
    def forward(x: weft.Tensor) -> weft.Tensor:
        return model(x).relu()

    found: Any = weft.compile(forward, devices=names)
    return found


@pytest.mark.parametrize("speeds", [(3, 1), (1, 1.05), (1, 3)])
def test_of_devices_that_take_turns_the_fastest_is_used(speeds: tuple[float, float]) -> None:
    """Another one than the default device has to be clearly faster."""
    with (
        farm(2, speeds=speeds, processor="p", link_bandwidth=1e12) as f,
        weft.device("farm:0"),
        weft.no_grad(),
    ):
        model = nn.Linear(128, 128)
        x = weft.randn(64, 128)
        run = compiled(f.names, model)
        want = model(x).relu().numpy()
        for _ in range(4):
            np.testing.assert_allclose(run(x).numpy(), want, rtol=1e-5, atol=1e-6)
        assert set(run.alone) == set(f.names)
        for d in f.devices:
            d.clock.launches = 0
        run(x).realize()
        busy = [d.clock.launches > 0 for d in f.devices]
        assert busy == ([False, True] if speeds == (1, 3) else [True, False])
        assert run.mesh.devices == (("farm:1",) if speeds == (1, 3) else ("farm:0", "farm:1"))
        assert str(model.weight.device).startswith("mesh") is (speeds == (1, 3))


def test_devices_with_processors_of_their_own_are_all_used() -> None:
    with farm(3, processor="", link_bandwidth=1e12) as f, weft.device("farm:0"), weft.no_grad():
        model = nn.Linear(128, 128)
        run = compiled(f.names, model)
        for _ in range(4):
            run(weft.ones(300, 128)).realize()
        assert run.mesh.devices == tuple(f.names) and not run.alone
