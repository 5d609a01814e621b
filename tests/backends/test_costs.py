"""Cost models: kept on disk only whole and positive, and what schedules are chosen by."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

import weft
from weft import disk_cache
from weft.backends.costs import CostModel, from_json, to_json
from weft.backends.cpu.device import CpuDevice
from weft.backends.cpu.runtime import open_runtime
from weft.ir.kernel.text import show_kernel
from weft.scheduler.disk_cache import describe
from weft.scheduler.kernelize.kernels import kernelize
from weft.scheduler.optimize.rules import schedule

MEASURED = replace(CostModel(), gather_cycles=3.25, line_bytes=128)


def changed(**numbers: object) -> bytes:
    return json.dumps(asdict(CostModel()) | numbers).encode()


def test_what_is_kept_is_what_was_measured() -> None:
    assert from_json(to_json(MEASURED)) == MEASURED


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"gather_cycles": 2.5}', changed(gather_cycles=0.0), changed(gather_cycles="2.5"),
     changed(line_bytes=64.0), changed(wake_ns=float("nan")), changed(another=1.0)],
    ids=range(9),
)  # fmt: skip
def test_what_is_damaged_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        from_json(data)


def test_every_number_names_its_unit() -> None:
    units = ("_cycles", "_ns", "_bytes", "_ways")
    assert all(f.name.endswith(units) for f in fields(CostModel))


def test_the_cpu_counts_with_what_is_kept_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    device = CpuDevice(open_runtime())
    assert device.info.costs == CostModel()
    device.keep_costs(MEASURED)
    assert CpuDevice(open_runtime()).info.costs == MEASURED
    (entry,) = (tmp_path / "cache" / "costs").rglob("*.weft")
    entry.write_bytes(entry.read_bytes()[:-1])
    assert CpuDevice(open_runtime()).info.costs == CostModel()


def test_an_older_model_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    device = CpuDevice(open_runtime())
    kept: list[tuple[str, str]] = []
    monkeypatch.setattr(disk_cache, "put", lambda kind, key, data: kept.append((kind, key)))
    device.keep_costs(MEASURED)
    monkeypatch.undo()
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    ((kind, key),) = kept
    disk_cache.put(kind, key, b'{"gather_cycles": 2.5}')
    assert CpuDevice(open_runtime()).info.costs == CostModel()


def test_schedules_are_chosen_by_it_and_plans_are_kept_apart_by_it() -> None:
    x, w = weft.rand(4, 512).realize(), weft.rand(64, 512).realize()
    (spec,) = kernelize([(x @ w.T).value.node])
    info = replace(CpuDevice(open_runtime()).info, costs=CostModel())
    other = replace(info, costs=replace(info.costs, lane_sum_cycles=1e6))
    assert show_kernel(schedule(spec.algorithm, info)) != show_kernel(schedule(spec.algorithm, other))
    assert describe(info) != describe(other)
