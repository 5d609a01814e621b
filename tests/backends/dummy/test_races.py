"""What the schedule rules make parallel is independent: random programs on a device that watches every access."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, note, settings

from weft.backends.dummy.device import DummyDevice
from weft.backends.registry import open_device
from weft.core.execute import run
from weft.testing.programs import GraphProgram, numpy_leaf
from weft.testing.reference import evaluate
from weft.testing.strategies import programs
from weft.testing.tolerance import allowed, difference

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))


def test_parallel_iterations_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device("dummy:3")
    assert isinstance(device, DummyDevice)
    # so slow that everything is worth spreading over cores
    slow = replace(device.info, name="dummy:3 slow", flops=1e5, bandwidth=1e5, vector_bytes=16)
    monkeypatch.setattr(device, "info", slow)
    monkeypatch.setattr(device, "races", True)

    @settings(
        max_examples=EXAMPLES or 60,
        derandomize=not EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def compare(p: GraphProgram) -> None:
        note(repr(p))
        plain = p.build(numpy_leaf)
        nodes = p.build(lambda a: run.from_numpy(a, "dummy:3"), {"home": "dummy:3", "away": "dummy:2"})
        run.realize(nodes)
        for node, want, bound in zip(nodes, evaluate(plain), allowed(plain), strict=True):
            assert difference(run.to_numpy(node), want, bound) is None

    compare()
