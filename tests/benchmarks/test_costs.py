"""The cost model is fitted by a faked clock: the arithmetic, what is kept, and what is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import accumulate, cycle
from pathlib import Path

import numpy as np
import pytest

from benchmarks import costs
from benchmarks.costs import PROBES, Fit, fitted, main, sampled, sizes
from weft.backends.costs import CostModel
from weft.backends.cpu.device import CpuDevice
from weft.backends.cpu.runtime import open_runtime

TINY = ["--steps", "64", "--rounds", "2"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))


def clock(*durations: float) -> Iterator[float]:
    """Readings before and after runs that take so long, again and again, with pauses between."""
    return accumulate(x for d in cycle(durations) for x in (100.0, d))


def test_a_number_is_the_best_time_over_that_of_a_multiply_add() -> None:
    each = {"cycle": [0.5, 0.25, 1.0], "gather_cycles": [3.0, 1.0, 1.5], "copy_cycles": [0.05]}
    found = fitted(CostModel(), each)
    assert found == {"gather_cycles": Fit(2.5, 4.0, 0.5), "copy_cycles": Fit(0.15, 0.2, 0.0)}


def test_each_probe_is_timed_in_every_round_but_the_first() -> None:
    device = CpuDevice(open_runtime())
    probes = {name: PROBES[name](sizes(device.info, 64)) for name in ("copy_cycles", "gather_cycles")}
    readings = clock(900.0, 800.0, 1.0, 20.0, 3.0, 40.0)
    assert sampled(device, probes, 2, lambda: next(readings)) == {
        "copy_cycles": [1.0, 3.0], "gather_cycles": [20.0, 40.0]
    }  # fmt: skip


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_does_what_it_counts(name: str) -> None:
    device = CpuDevice(open_runtime())
    z = sizes(device.info, 64)
    probe = PROBES[name](z)
    assert 64 <= probe.count < 64 + 2 * max(z.near, z.far)
    assert isinstance(getattr(CostModel(), name), float)


def test_what_is_moved_arrives() -> None:
    device = CpuDevice(open_runtime())
    z = sizes(device.info, 64)
    code, _ = device.compile([costs.optimized(PROBES["gather_cycles"](z).program, device.info)])
    run = device.link(code, costs.Commands((costs.Launch(0, (0, 1)),), 2, (), 0))
    n = max(z.near, z.far)
    x, y = (device.allocate(4 * n) for _ in range(2))
    values = np.arange(n, dtype=np.float32)
    device.write(x, memoryview(values.tobytes()))
    run.run([x, y])
    got = np.frombuffer(device.read(y, 4 * n), np.float32)[: z.near]
    np.testing.assert_array_equal(got, values[: z.near].reshape(z.lanes, -1).T.ravel())


def test_the_numbers_are_printed_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    readings = clock(1000.0)
    assert main(TINY, lambda: next(readings)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(fields(CostModel))
    new = {f: line.split()[2] for f in PROBES for line in lines if line.startswith(f)}
    kept = CpuDevice(open_runtime()).info.costs
    assert new == {f: f"{getattr(kept, f):,.2f}" for f in PROBES}
    z = sizes(CpuDevice(open_runtime()).info, 64)
    ratio = costs.multiply_add(z).count / PROBES["copy_cycles"](z).count
    assert kept.copy_cycles == pytest.approx(ratio)
    assert kept.line_bytes == CostModel().line_bytes


def test_nothing_is_kept_of_a_look_or_of_a_busy_machine(capsys: pytest.CaptureFixture[str]) -> None:
    readings = clock(1000.0)
    assert main([*TINY, "--look"], lambda: next(readings)) == 0
    count = 1 + len(PROBES)
    readings = clock(*[1000.0] * (2 * count), *[2000.0] * count)
    assert main(TINY, lambda: next(readings)) == 1
    assert "Nothing is kept: half of the rounds were up to 50% slower" in capsys.readouterr().out
    assert CpuDevice(open_runtime()).info.costs == CostModel()
