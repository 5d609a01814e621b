"""Tests of core look at what functions mean, so they run on the reference; `device` runs some on the real path too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from weft.backends.registry import open_device
from weft.backends.storage import from_numpy
from weft.core import run
from weft.ir import dtypes
from weft.ir.graph import Node
from weft.testing.reference import evaluate


def _realize_on_reference(nodes: Sequence[Node]) -> None:
    pending = [n for n in nodes if n.storage is None]
    for node, array in zip(pending, evaluate(pending), strict=True):
        node.storage = from_numpy(array.astype(dtypes.to_numpy(node.dtype)), node.dtype, open_device(node.device or "cpu:0"))


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What computes: the reference, unless a test is marked by the fixture `compiled`."""
    if "compiled" in request.fixturenames:
        yield "compiled"
        return
    monkeypatch.setattr(run, "realize", _realize_on_reference)
    yield "reference"


@pytest.fixture
def compiled() -> None:
    """Use the real path: kernels on the CPU."""
