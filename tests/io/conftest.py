"""These tests look at what layers and optimizers mean, so they run on the reference."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from weft.backends.registry import open_device
from weft.backends.storage import from_numpy
from weft.core import run
from weft.ir.graph import Node
from weft.testing.reference import evaluate


def _realize_on_reference(nodes: Sequence[Node]) -> None:
    pending = [n for n in dict.fromkeys(nodes) if n.storage is None]
    for node, array in zip(pending, evaluate(pending), strict=True):
        node.storage = from_numpy(array, node.dtype, open_device("cpu:0"))


@pytest.fixture(autouse=True)
def on_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computation by the reference instead of compiled kernels."""
    monkeypatch.setattr(run, "realize", _realize_on_reference)
